//! The command line: it reads arguments and lines, calls the service, and prints.
//!
//! It holds no rule about sessions, capabilities or builds: those are the service's. Start at [`run`]. Modules use only
//! those above them: `args` and `output` know nothing of the service, `app` opens it, `commands` and `chat` ask it.

mod error;

mod args;
mod attach;
mod input;
mod output;

mod database;

mod config;
mod private;
mod signals;
mod telemetry;

mod wire;

mod render;

mod data_dir;

mod app;
mod browser;
mod stream;

mod own_server;

mod commands;

mod chat;
mod serve;

use std::{ffi::OsString, sync::Arc, time::Duration};

use clap::Parser as _;
use serde_json::json;

pub use output::{Environment, Terminal, install_panic_hook};
pub use private::keep_memory_private;

use crate::{
    app::{ATTACHED_DRAIN_MS, App, Streams},
    args::{Cli, Command, ConfigCommand, SessionCommand, StoreCommand},
    commands::{doctor::doctor, local},
    config::Config,
    error::CliError,
    output::Output,
    signals::{Ends, Interrupts},
    telemetry::Telemetry,
};

/// Runs one command and returns its exit code.
#[must_use]
pub fn run(args: Vec<OsString>, terminal: Terminal) -> u8 {
    let Terminal { stdin, stdout, stderr, are_terminals, has_editor, has_keyboard, interrupts, environment: env } =
        terminal;
    let mut out = Output::new((stdout, stderr), are_terminals, &env);
    let done = match Cli::try_parse_from(&args) {
        Ok(cli) => {
            out.set(&cli.globals);
            let interrupts = Interrupts::new(interrupts);
            let streams = Streams { stdin: Some(stdin), has_editor, has_keyboard, interrupts };
            dispatch(cli, &out, &env, streams)
        }
        Err(error) => {
            // Arguments that cannot be parsed may still say how to answer.
            let flags = args.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str());
            out.is_json = flags.clone().any(|flag| flag == "--json");
            out.is_quiet = flags.clone().any(|flag| flag == "--quiet" || flag.starts_with("-q"));
            match error::help(&error) {
                Some(help) => out.text(&help).map(|()| 0).map_err(CliError::from),
                None => {
                    if error::is_bare(&error) && !out.is_json {
                        out.notice(&error.to_string());
                    }
                    Err(error::usage(&error).into())
                }
            }
        }
    };
    done.unwrap_or_else(|error| fail(&out, error))
}

/// Reports a failure: its message on standard error, its body with `--json`. Returns the exit code.
fn fail(out: &Output, error: CliError) -> u8 {
    let body = match error {
        CliError::OutputClosed => return 0,
        CliError::Refused(body) => body,
    };
    out.error(&body);
    if out.is_json {
        // If nobody reads it any more, the exit code still says what happened.
        drop(out.document(json!(body).to_string().as_bytes()));
    }
    error::exit_code(&body)
}

/// Performs a command: those that need no service at once, the others on a runtime.
fn dispatch(cli: Cli, out: &Output, env: &Environment, streams: Streams) -> Result<u8, CliError> {
    match &cli.command {
        Command::Errors(args) => return local::errors(out, args),
        Command::Doctor(args) => return doctor(out, env, &cli.globals, args),
        Command::Call(args) => {
            if let Some(done) = commands::call::help(out, args) {
                return done.map(|()| 0);
            }
        }
        Command::Completions { shell } => return local::completions(out, *shell),
        Command::Config { command: ConfigCommand::Set { key, value } } => {
            return local::set_config(out, env, &cli.globals, key, value);
        }
        Command::Config { command: ConfigCommand::Trust { yes } } => {
            let config = Config::load_untrusted(env, &cli.globals)?;
            return local::trust_config(out, env, &config, streams, *yes);
        }
        _ => {}
    }
    let config = Config::load(env, &cli.globals)?;
    config.warnings().iter().for_each(|warning| out.note(warning));
    match &cli.command {
        Command::Config { command: ConfigCommand::Show } => return local::show_config(out, env, &config),
        Command::Token { path } => return serve::token(out, env, &config, *path),
        Command::Console(args) => {
            if let Some(done) = commands::console::of_running(out, env, &config, args)? {
                return Ok(done);
            }
        }
        Command::Models => return commands::models::models(out, env, &config),
        Command::Servers(args) => {
            if let Some(done) = commands::servers::change(out, env, &config, args) {
                return done;
            }
        }
        Command::Sessions { command: command @ SessionCommand::List { all_projects: true, .. } } => {
            return commands::sessions::all_projects(out, env, command);
        }
        Command::Capabilities => return local::capabilities(out, &config),
        Command::Store { command: StoreCommand::Copy(args) } => {
            return commands::store::store_copy(out, env, &config, args);
        }
        Command::Store { command: StoreCommand::Nodes } => return commands::store::nodes(out, env, &config),
        _ => {}
    }
    config.new_note(env).iter().for_each(|found| out.note(found));
    let command = match cli.command {
        Command::Console(args) => Command::Serve(args.server()),
        command => command,
    };
    on_runtime(command, config, out, env, streams)
}

/// How often free memory is given back to the system.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);

/// Gives memory back that sessions have left.
async fn give_back_memory() {
    loop {
        tokio::time::sleep(GIVE_BACK_EVERY).await;
        if let Err(error) = tokio::task::spawn_blocking(meerkat_heap::give_back).await {
            tracing::warn!(%error, "free memory could not be given back");
        }
    }
}

/// Opens the service, performs a command, and ends both in order.
fn on_runtime(
    command: Command,
    mut config: Config,
    out: &Output,
    env: &Environment,
    streams: Streams,
) -> Result<u8, CliError> {
    let is_server = matches!(command, Command::Serve(_) | Command::Rpc | Command::Acp | Command::Mcp(_));
    config.is_server = is_server;
    config.has_modes = match &command {
        Command::Serve(args) => args.acp,
        command => matches!(command, Command::Acp),
    };
    let telemetry = Telemetry::begin(out, config.values.log.level, env, is_server)?;
    // A command needs one thread, and another to answer attached commands; a server uses all cores. Each thread logs as
    // this one does.
    let mut runtime = match command {
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ if config.opens_data_dir() => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    if !matches!(command, Command::Serve(_)) {
        runtime.worker_threads(1);
    }
    let logs = tracing::dispatcher::get_default(Clone::clone);
    runtime.on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&logs)));
    let runtime = runtime.enable_all().build()?;
    // Before anything is opened, so that a signal meanwhile ends the command in order.
    let mut ends = Ends::new(is_server, &streams.interrupts)?;
    let done = runtime.block_on(async {
        let configured_ms = config.values.serve.drain_ms;
        // A server has drained when it returns; sessions in memory end with the process.
        let drain_ms = match &command {
            Command::Serve(_) => None,
            Command::Rpc | Command::Acp | Command::Mcp(_) => Some(configured_ms),
            // A turn that was decided about, or answered, goes on here, unless another process owns it.
            Command::Sessions {
                command: SessionCommand::Approve { .. } | SessionCommand::Deny { .. } | SessionCommand::Answer { .. },
            } => Some(ATTACHED_DRAIN_MS),
            Command::Call(args) if commands::call::lets_go_on(args) => Some(ATTACHED_DRAIN_MS),
            _ => config.opens_data_dir().then_some(0),
        };
        // Before the service is made, so that the first one of a project knows its token as a secret too.
        if matches!(&command, Command::Serve(args) if !args.no_auth) {
            own_server::find_token(&config, env)?;
        }
        tokio::spawn(give_back_memory());
        let app = App::open(Arc::new(config), out, env).await?;
        let done = match command {
            Command::Serve(args) => serve::serve(&app, env, &args, &mut ends).await,
            command => app.until_end(configured_ms, &mut ends, Box::pin(perform(&app, env, command, streams))).await,
        };
        match drain_ms {
            Some(drain_ms) => app.end(drain_ms, &mut ends).await,
            None => app.release().await,
        }
        done
    });
    // What still runs ends with the process.
    runtime.shutdown_background();
    telemetry.end();
    done
}

/// Performs a command that needs the service.
async fn perform(app: &App, env: &Environment, command: Command, streams: Streams) -> Result<u8, CliError> {
    match command {
        Command::Tools(args) => commands::servers::tools(app, &args).await,
        Command::Servers(args) => commands::servers::servers(app, env, streams, args).await,
        Command::Run(args) => commands::run::run(app, streams, args).await,
        Command::Resume(args) => commands::run::resume(app, streams, args).await,
        Command::Chat(args) => chat::chat(app, streams, &args).await,
        Command::Rpc => serve::rpc(app).await,
        Command::Acp => serve::acp(app, env).await,
        Command::Mcp(args) => serve::mcp(app, &args).await,
        Command::Events(args) => commands::events::events(app, &args).await,
        Command::Compact(args) => commands::compact::compact(app, streams, &args).await,
        Command::Sessions { command } => commands::sessions::run(app, streams, &command).await,
        Command::Memory { command } => commands::memory::run(app, streams, &command).await,
        Command::Call(args) => commands::call::call(app, streams, &args).await,
        Command::Serve(_)
        | Command::Console(_)
        | Command::Capabilities
        | Command::Models
        | Command::Token { .. }
        | Command::Errors(_)
        | Command::Doctor(_)
        | Command::Store { .. }
        | Command::Config { .. }
        | Command::Completions { .. } => Ok(0),
    }
}
