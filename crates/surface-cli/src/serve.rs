//! `serve`, `rpc`, `mcp` and `acp`: servers made from flags and configuration, and the line that says where they listen.

use std::{sync::Arc, time::Duration};

use meerkat_errors::ErrorBody;
use meerkat_serve::{AcpOptions, Limits, Offer, OpenAi, ServeError, ServeOptions, Server, Toolset, stdio};
use meerkat_service::{AgentBuildConfig, SessionError, tool::Ask};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    app::{App, secrets},
    args::{McpArgs, ServeArgs, Tools},
    commands::{console, models},
    config::Config,
    error::{CliError, refused},
    output::{Environment, Output},
    own_server::{TOKEN_VARIABLE, address, find_token, has_token},
    signals::Ends,
};

/// Milliseconds for which a session that is not stored stays after its last turn.
const PASSING_IDLE_MS: u64 = 5_000;

/// Milliseconds that a call of such a session waits for its output.
const PASSING_CALL_MS: u64 = 10 * 60 * 1000;

/// Bytes of all such sessions.
const PASSING_BYTES: u64 = 256 * 1024 * 1024;

/// Serves until the process must end.
pub(crate) async fn serve(app: &App, env: &Environment, args: &ServeArgs, ends: &mut Ends) -> Result<u8, CliError> {
    let values = &app.config.values.serve;
    if !(args.rest || args.rpc || args.mcp || args.openai || args.acp) {
        let message = "say what to serve: any of --rest, --rpc, --mcp, --openai and --acp, such as `meerkat serve --rest \
                       --rpc --mcp`";
        return Err(SessionError::invalid("serve", message).into());
    }
    for (flag, is_on, is_built) in [("openai", args.openai, OpenAi::IS_BUILT), ("acp", args.acp, AcpOptions::IS_BUILT)]
    {
        if is_on && !is_built {
            let message = format!("this build has not the feature `{flag}`; leave the flag out");
            return Err(SessionError::invalid(format!("--{flag}"), message).into());
        }
    }
    let has_openai = OpenAi::IS_BUILT && (args.rest || args.openai);
    let address = address(&app.config, args.listen.as_deref())?;
    let is_open = !address.ip().is_loopback();
    if is_open && args.no_auth {
        return Err(refused("serve.listen", &ServeError::Open.to_string(), "--no-auth").into());
    }
    if is_open && app.config.engine().tools.test_dir.is_some() {
        return Err(refused("tools.test_dir", "the test tools are only for loopback addresses", "serve.listen").into());
    }
    if is_open && app.default_model.as_ref().is_some_and(|model| model.is_stand_in) {
        let message = "set it, because others can reach this address";
        return Err(refused("model.name", message, "serve.listen").into());
    }
    let (token, token_file) = match args.no_auth {
        true => (None, None),
        false => find_token(&app.config, env).map(|(token, file)| (Some(token), file))?,
    };
    let options = ServeOptions {
        has_rest: args.rest,
        has_rpc: args.rpc,
        mcp: args.mcp.then(|| offer(args.tools.unwrap_or(Tools::All), args.approve)),
        openai: if has_openai { Some(openai(app, env)?) } else { None },
        acp: if args.acp { Some(network_acp(app, env)?) } else { None },
        allowed_hosts: values.allowed_hosts.clone(),
        allowed_origins: values.allowed_origins.clone(),
        public_url: values.public_url.clone(),
        limits: limits(&app.config),
        ..ServeOptions::new(address, token.clone())
    };
    raise_open_files();
    let server = Server::listen(app.service.clone(), options).await.map_err(|error| refused_by(&error))?;
    if is_open && !values.public_url.as_ref().is_some_and(|url| url.starts_with("https:")) {
        app.out.note(
            "Warning: others on the network can read the token and everything else. Listen on loopback behind a proxy \
             with HTTPS, and name its address in serve.public_url.",
        );
    }
    let (rest, rpc, mcp) = (("rest", args.rest), ("rpc", args.rpc), ("mcp", args.mcp));
    let names = [rest, rpc, mcp, ("openai", has_openai), ("acp", args.acp)];
    let names: Vec<&str> = names.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).collect();
    let (url, public_url) = (server.url().to_owned(), values.public_url.as_deref());
    let stop = CancellationToken::new();
    let served = server.serve_until(stop.clone().cancelled_owned());
    tokio::pin!(served);
    let announced = async {
        // Whoever reads the line may use the store at once; until then probes are answered that it is being settled. One
        // that cannot be settled answers reads all the same.
        if let Err(error) = app.service.ready().await {
            tracing::warn!(%error, "what a former process left behind is not settled");
        }
        print_ready(app, &url, public_url, token_file.as_deref(), &names)?;
        if let Some(console) = &args.console {
            console::show(&app.out, env, &app.config, public_url.unwrap_or(&url), token.as_ref(), console.print)?;
        }
        std::future::pending::<Result<(), CliError>>().await
    };
    tokio::select! {
        () = &mut served => return Ok(0),
        failed = announced => failed?,
        _ = ends.next() => {}
    }
    app.out.note("Ending: running turns may finish; a second signal ends at once.");
    stop.cancel();
    tokio::select! {
        () = served => {}
        () = ends.second() => {}
    }
    Ok(0)
}

/// Makes what OpenAI's protocols need: a service of their own for what is not stored, and the models.
fn openai(app: &App, env: &Environment) -> Result<OpenAi, CliError> {
    let config = &app.config;
    let models = config.models(env)?;
    let names = models::usable(&models);
    let mut options = config.engine();
    let scope_label = options.memory.scope_label.clone();
    options.ephemeral.idle_ms = PASSING_IDLE_MS;
    options.ephemeral.max_bytes = options.ephemeral.max_bytes.min(PASSING_BYTES);
    // The turn is interrupted before, so that no model is asked without a reader.
    options.tools.client_timeout_ms = 2 * PASSING_CALL_MS;
    options.tools.test_dir = None;
    let build = AgentBuildConfig::new().options(options).models(Arc::new(models)).ephemeral();
    let hidden = secrets(config, env).into_iter().chain(app.servers.secrets());
    let build = hidden.fold(build, AgentBuildConfig::secret);
    let passing = build.build().map_err(|error| config.with_origin(&error))?;
    let call_time = Duration::from_millis(PASSING_CALL_MS);
    Ok(OpenAi { passing: passing.service().clone(), models: names, scope_label, call_time })
}

/// Raises the limit on open files as far as possible: often a process may have more than it has.
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit on open files could not be raised");
    }
}

/// Speaks JSON-RPC on standard input and output.
pub(crate) async fn rpc(app: &App) -> Result<u8, CliError> {
    stdio::rpc(app.service.clone(), message_bytes(app), app.closing.clone()).await?;
    Ok(0)
}

/// Speaks the Model Context Protocol on standard input and output.
pub(crate) async fn mcp(app: &App, args: &McpArgs) -> Result<u8, CliError> {
    let offer = offer(args.tools.unwrap_or(Tools::Core), args.approve);
    stdio::mcp(app.service.clone(), offer, message_bytes(app), app.closing.clone()).await?;
    Ok(0)
}

/// Speaks the Agent Client Protocol on standard input and output.
pub(crate) async fn acp(app: &App, env: &Environment) -> Result<u8, CliError> {
    stdio::acp(app.service.clone(), acp_options(app, env)?, app.closing.clone()).await?;
    Ok(0)
}

fn acp_options(app: &App, env: &Environment) -> Result<AcpOptions, CliError> {
    Ok(AcpOptions {
        message_bytes: message_bytes(app),
        workspaces: app.workspaces(),
        access: app.config.values.tools.access,
        has_full: matches!(app.config.values.tools.ask, Ask::Escapes | Ask::Never),
        models: models::usable(&app.config.models(env)?),
        search_path: env.variable("PATH"),
    })
}

/// Makes the options for clients on a network, which work in the configured folders alone and always ask.
fn network_acp(app: &App, env: &Environment) -> Result<AcpOptions, CliError> {
    let workspaces = app.network_workspaces();
    Ok(AcpOptions { workspaces, has_full: false, search_path: None, ..acp_options(app, env)? })
}

/// Returns the most bytes of a message.
fn message_bytes(app: &App) -> usize {
    usize::try_from(app.config.values.serve.max_body_bytes).unwrap_or(usize::MAX)
}

/// Returns the tools to offer to MCP clients.
const fn offer(tools: Tools, approve: bool) -> Offer {
    let set = match tools {
        Tools::Core => Toolset::Core,
        Tools::All => Toolset::All,
    };
    Offer { set, approve }
}

/// Returns the configured limits of a server.
pub(crate) fn limits(config: &Config) -> Limits {
    let values = &config.values.serve;
    Limits {
        connections: values.max_connections,
        streams: values.max_streams,
        header_timeout: Duration::from_millis(values.header_timeout_ms),
        body_bytes: values.max_body_bytes,
        bundle_bytes: config.values.limits.bundle_bytes,
        stall_ms: values.stall_ms,
        drain_ms: values.drain_ms,
    }
}

/// Adds the key to a server's refusal.
fn refused_by(error: &ServeError) -> ErrorBody {
    let (key, origin) = match error {
        ServeError::Nothing | ServeError::Open | ServeError::Listen { .. } => {
            ("serve.listen", "--listen, or the configuration")
        }
        ServeError::AllowedHost(host) => ("serve.allowed_hosts", host.as_str()),
        ServeError::AllowedOrigin(origin) => ("serve.allowed_origins", origin.as_str()),
        ServeError::PublicUrl(url) => ("serve.public_url", url.as_str()),
    };
    refused(key, &error.to_string(), origin)
}

/// `token`: the token of this project's server, or the path of its file. It makes none.
pub(crate) fn token(out: &Output, env: &Environment, config: &Config, wants_path: bool) -> Result<u8, CliError> {
    if !has_token(config, env)? {
        let message = "this project has no token yet; its first `meerkat serve` makes one. If the server runs in another \
                       folder, run this there";
        return Err(SessionError::invalid("token", message).into());
    }
    let (token, path) = find_token(config, env)?;
    if !wants_path && let Some(warning) = console::foreign_listener(config, env)? {
        out.note(&warning);
    }
    let path = path.map(|path| path.display().to_string());
    let line = match wants_path {
        false => token.text(),
        true => path.as_deref().ok_or_else(|| {
            let message = format!("the token is in the variable {TOKEN_VARIABLE}, not in a file; leave --path out");
            SessionError::invalid("--path", message)
        })?,
    };
    match (out.is_json, wants_path) {
        (true, true) => out.document(json!({ "path": line }).to_string().as_bytes())?,
        (true, false) => out.document(json!({ "token": line, "path": path }).to_string().as_bytes())?,
        (false, _) => out.text(&format!("{line}\n"))?,
    }
    Ok(0)
}

/// Prints where the server listens, and the file of its token.
fn print_ready(
    app: &App,
    base: &str,
    public: Option<&str>,
    token_file: Option<&std::path::Path>,
    surfaces: &[&str],
) -> Result<(), CliError> {
    let token_file = token_file.map(|path| path.display().to_string());
    if app.out.is_json {
        let model = app.default_model.as_ref().map(|model| &model.description);
        let mut document = json!({ "listening": base, "token_file": token_file, "surfaces": surfaces, "model": model });
        if let Some(public) = public {
            document["public_url"] = public.into();
        }
        return Ok(app.out.document(document.to_string().as_bytes())?);
    }
    if let Some(model) = &app.default_model {
        app.out.note(&format!("Sessions that name no model: {}.", model.description.trim_end_matches('.')));
    }
    let token = token_file.map_or_else(|| "no token file".to_owned(), |path| format!("token in {path}"));
    let public = public.map_or_else(String::new, |public| format!(", reached at {public}"));
    Ok(app.out.text(&format!("listening on {base} for {} ({token}){public}\n", surfaces.join(", ")))?)
}
