//! `tools` and `servers`: the tools of sessions, and the servers that some of them come from.

use meerkat_service::{
    Operation, SessionError,
    service::{Page, ToolServerState, ToolServerView},
};
use meerkat_tools::servers::{Login, LoginOptions, ServerConfig};
use serde_json::{Value, json};

use super::{
    ask::perform,
    local,
    show::{print, show},
};
use crate::{
    app::{App, Streams},
    args::{LoginArgs, ServersArgs, ServersCommand, ToolsArgs},
    browser,
    config::{Config, UserFile},
    error::{CliError, refused},
    input::{Line, Lines, Source},
    output::{Environment, Output, printable},
    render::tools::{checked, state},
    wire,
};

/// Bytes of an address that is pasted.
const PASTED_BYTES_MAX: u64 = 16 * 1024;

/// `tools`: of a session, or of a new one in the current folder.
pub(crate) async fn tools(app: &App, args: &ToolsArgs) -> Result<u8, CliError> {
    if !app.is_attached {
        app.servers.ready().await;
    }
    let with_workspace = args.session.is_none() && app.workspace(None)?.is_some();
    print(app, wire::tools(args.session.as_deref(), with_workspace)).await
}

/// `servers`: lists all, shows one, logs in to one or out of it.
pub(crate) async fn servers(app: &App, env: &Environment, streams: Streams, args: ServersArgs) -> Result<u8, CliError> {
    app.config.notes().for_each(|note| app.out.note(note));
    match args.command {
        Some(ServersCommand::Check { name, accept }) => check(app, &name, accept).await,
        Some(ServersCommand::Login(args)) => login(app, env, streams, args).await,
        Some(ServersCommand::Logout { name }) => log_out(app, &name).await,
        Some(ServersCommand::Add { .. } | ServersCommand::Remove { .. }) | None => list(app).await,
    }
}

/// Lists the servers of the process that owns the data directory.
async fn list(app: &App) -> Result<u8, CliError> {
    let answer = perform(&app.service, (Operation::ToolServers, json!({}))).await?;
    let servers: Page<ToolServerView> = wire::read(&answer)?;
    if servers.items.is_empty() {
        app.out.note("No server is configured; `meerkat servers add --help` shows how to add one.");
    }
    show(app, Operation::ToolServers, &answer)?;
    Ok(0)
}

/// Starts a server and shows its tools.
async fn check(app: &App, name: &str, accept: bool) -> Result<u8, CliError> {
    let servers = &app.servers;
    let mut status = servers.check(name).await?;
    if accept {
        status = servers.accept(name)?;
    }
    let tools = status.tools.iter().map(|tool| {
        json!({ "name": tool.name, "tokens": tool.tokens, "left_out": tool.quarantined, "description": tool.description })
    });
    let view = status.view();
    let mut answer = row(&view);
    if app.out.is_json {
        answer["tools"] = tools.collect();
    }
    local::print(&app.out, &answer)?;
    if !app.out.is_json && !status.tools.is_empty() {
        app.out.readable(&format!("\n{}", checked(&status.tools, app.out.width)))?;
    }
    Ok(u8::from(matches!(view.state, ToolServerState::Failed | ToolServerState::LoginNeeded)))
}

/// Logs in: the person agrees on a page, whose answer comes to a port of this machine or is pasted.
async fn login(app: &App, env: &Environment, streams: Streams, args: LoginArgs) -> Result<u8, CliError> {
    let scopes = args.scope.iter().flat_map(|scopes| scopes.split_whitespace().map(str::to_owned)).collect();
    let options =
        LoginOptions { scopes, client_id: args.client_id, allows_private: args.private, ..LoginOptions::default() };
    let login = app.servers.login(&args.name, options).await?;
    app.out.notice(&format!("Open this page and agree; {} gives the login:\n{}\n", login.issuer(), login.page()));
    // Without a terminal no person sees a browser.
    let program = browser::program(env).filter(|_| app.out.can_ask && !args.paste && !args.no_browser);
    if let Some(program) = program
        && !browser::open(&program, login.page(), &app.config.data_dir(env)?)
    {
        app.out
            .note(&format!("{} could not be started; open the page yourself.", printable(&program.to_string_lossy())));
    }
    match args.paste {
        true => paste(app, streams, &args.name, login).await?,
        false => app.servers.await_login(&args.name, login).await?,
    }
    app.out.note(&format!("You are logged in to {}.", args.name));
    check(app, &args.name, false).await
}

async fn paste(app: &App, mut streams: Streams, name: &str, login: Login) -> Result<(), SessionError> {
    app.out.notice("The browser ends at a page that it cannot show. Paste the address of that page: ");
    let is_keyboard = streams.has_keyboard;
    let mut lines = Lines::start(Source::Plain { input: streams.take_stdin(), limit: PASTED_BYTES_MAX, is_keyboard });
    lines.ask();
    match lines.next().await {
        Line::Text(address) => app.servers.paste_login(name, login, &address).await,
        Line::Refused(_) | Line::Interrupt | Line::End => {
            Err(SessionError::invalid("address", "No address was pasted, so there is no login."))
        }
    }
}

async fn log_out(app: &App, name: &str) -> Result<u8, CliError> {
    let had_login = app.servers.log_out(name).await?;
    if had_login {
        app.out.note(
            "The login is deleted here. Its issuer may accept it until it expires, or until you revoke it there.",
        );
    }
    local::print(&app.out, &json!({ "server": name, "had_login": had_login }))
}

/// `servers add` and `servers remove`: change the user's own configuration; they start nothing. Returns `None` for other
/// commands.
pub(crate) fn change(
    out: &Output,
    env: &Environment,
    config: &Config,
    args: &ServersArgs,
) -> Option<Result<u8, CliError>> {
    match args.command.as_ref()? {
        ServersCommand::Add { name, env: variables, folder, url, command } => {
            let mut words = command.iter().cloned();
            let server = ServerConfig {
                command: words.next(),
                args: words.collect(),
                env: variables.iter().cloned().collect(),
                folder: folder.clone(),
                url: url.clone(),
                ..ServerConfig::default()
            };
            Some(add(out, env, config, name, &server))
        }
        ServersCommand::Remove { name } => Some(remove(out, env, name)),
        ServersCommand::Check { .. } | ServersCommand::Login(_) | ServersCommand::Logout { .. } => None,
    }
}

fn add(out: &Output, env: &Environment, config: &Config, name: &str, server: &ServerConfig) -> Result<u8, CliError> {
    server.check(name).map_err(|error| match error {
        SessionError::ConfigInvalid { key, message } => SessionError::invalid(key, message),
        other => other,
    })?;
    if config.has_server(name) {
        let message = format!("{name} is configured already; `meerkat config show` says where. Choose another name");
        return Err(SessionError::invalid("server", message).into());
    }
    let file = user_file(env)?;
    file.add_server(name, server)?;
    let next = format!("meerkat servers check {name}");
    local::print(out, &json!({ "server": name, "file": file.0.display().to_string(), "next": next }))
}

fn remove(out: &Output, env: &Environment, name: &str) -> Result<u8, CliError> {
    let file = user_file(env)?;
    file.remove_server(name)?;
    local::print(out, &json!({ "server": name, "file": file.0.display().to_string(), "removed": true }))
}

fn user_file(env: &Environment) -> Result<UserFile, CliError> {
    Config::user_file(env).ok_or_else(|| refused("HOME", "set it", "the environment").into())
}

/// A server that was started.
fn row(server: &ToolServerView) -> Value {
    json!({
        "server": server.name,
        "kind": server.kind,
        "state": state(server.state),
        "tools": server.tools,
        "tokens": server.tokens,
        "error": server.error,
    })
}
