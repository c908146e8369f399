//! The command line: it reads arguments and lines, calls the service, and prints.
//!
//! It holds no rule about sessions, capabilities or builds: those are the service's. Start at [`run`].

mod args;
mod chat;
mod commands;
mod config;
mod error;
mod input;
mod output;
mod serve;
mod stream;
mod telemetry;
mod wire;

use std::{ffi::OsString, io::BufRead, sync::Arc};

use clap::Parser as _;
use meerkat_service::{
    AgentBuildConfig, Operation, SessionService,
    clock::World,
    model::{ModelResolver as _, scripted::ScriptedModel, vendors::VendorModels},
};
use serde_json::json;
use tokio::sync::mpsc;

pub use output::{Surroundings, Terminal, install_panic_hook};

use crate::{
    args::{Cli, Command, ConfigCommand},
    commands::local,
    config::{Config, refused},
    error::CliError,
    output::Output,
    telemetry::Telemetry,
};

/// The model that is built in.
const SCRIPTED: &str = "scripted";

/// The variable that makes a run deterministic.
const TEST_SEED: &str = "MEERKAT_TEST_SEED";

/// Runs one command and answers with its exit code.
#[must_use]
pub fn run(args: Vec<OsString>, terminal: Terminal) -> u8 {
    let Terminal { stdin, stdout, stderr, are_terminals, has_editor, interrupts, around } = terminal;
    let mut out = Output::new((stdout, stderr), are_terminals, &around);
    let done = match Cli::try_parse_from(&args) {
        Ok(cli) => {
            out.set(&cli.globals);
            dispatch(cli, &out, around, Streams { stdin: Some(stdin), has_editor, interrupts: Interrupts(interrupts) })
        }
        Err(error) => {
            // What could not be read said perhaps how it wants its answer.
            out.is_json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
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

/// Tells of a failure: its message on standard error, its body with `--json`.
fn fail(out: &Output, error: CliError) -> u8 {
    let body = match error {
        CliError::OutputClosed => return 0,
        CliError::Refused(body) => body,
    };
    out.error(&body);
    if out.is_json {
        // Where nobody listens any more, the exit code still says what happened.
        drop(out.document(json!(body).to_string().as_bytes()));
    }
    error::exit_code(&body)
}

/// What a command reads from.
pub(crate) struct Streams {
    stdin: Option<Box<dyn BufRead + Send>>,
    has_editor: bool,
    interrupts: Interrupts,
}

impl Streams {
    /// Standard input, once; then nothing.
    fn take_stdin(&mut self) -> Box<dyn BufRead + Send> {
        self.stdin.take().unwrap_or_else(|| Box::new(std::io::empty()))
    }
}

/// Ctrl-C as it comes.
struct Interrupts(Option<mpsc::UnboundedReceiver<()>>);

impl Interrupts {
    /// Takes Ctrl-C over from the process.
    fn listen(&mut self) {
        if self.0.is_none() {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.0 = Some(receiver);
            tokio::spawn(async move { while tokio::signal::ctrl_c().await.is_ok() && sender.send(()).is_ok() {} });
        }
    }

    async fn next(&mut self) {
        match &mut self.0 {
            Some(receiver) if !receiver.is_closed() || !receiver.is_empty() => drop(receiver.recv().await),
            _ => std::future::pending().await,
        }
    }
}

/// What the commands share.
pub(crate) struct App {
    service: Arc<dyn SessionService>,
    out: Output,
    config: Config,
    is_scripted: bool,
}

impl App {
    /// Makes the service that the configuration calls for.
    fn new(config: Config, out: &Output, around: &Surroundings) -> Result<Self, CliError> {
        let vendors = config.vendors(around);
        let keys = [&vendors.anthropic.key, &vendors.openai.key, &vendors.gemini.key];
        let keys: Vec<_> =
            keys.into_iter().chain(vendors.compatible.iter().map(|server| &server.key)).flatten().cloned().collect();
        let models =
            VendorModels::new(&vendors, Arc::new(ScriptedModel)).map_err(|error| config.with_origin(&error))?;
        let is_scripted = config.values.model.name.is_none() && models.default_model() == SCRIPTED;
        let mut build = AgentBuildConfig::new().options(config.engine()).models(Arc::new(models));
        for key in keys {
            build = build.secret(key);
        }
        if !config.values.store.enabled {
            build = build.ephemeral();
        }
        if config.asks_for_compaction() {
            build = build.compaction(config.values.compaction);
        }
        if let Some(seed) = around.env.get(TEST_SEED) {
            let seed = seed.to_str().and_then(|seed| seed.parse().ok());
            let origin = format!("variable {TEST_SEED}");
            let seed = seed.ok_or_else(|| refused("seed", "it must be a whole number, 0 or more", &origin))?;
            build = build.world(World::seeded(seed, 0));
        }
        Ok(Self { service: build.build()?.service().clone(), out: out.clone(), config, is_scripted })
    }

    /// Says that no real model answers, where nobody chose that.
    fn tell_of_scripted_model(&self) {
        if self.is_scripted {
            self.out
                .note("The scripted model answers, since no key of a vendor is set; `meerkat config show` says more.");
        }
    }
}

fn dispatch(cli: Cli, out: &Output, around: Surroundings, streams: Streams) -> Result<u8, CliError> {
    match &cli.command {
        Command::Errors(args) => return local::errors(out, args),
        Command::Completions { shell } => return local::completions(out, *shell),
        Command::Man { folder } => return local::man(out, &around, folder.as_deref()),
        Command::Config { command: ConfigCommand::Init } => return local::init_config(out, &around),
        _ => {}
    }
    let config = Config::load(&around, &cli.globals)?;
    if let Command::Config { command: ConfigCommand::Show } = &cli.command {
        return local::show_config(out, &around, &config);
    }
    let is_server = matches!(cli.command, Command::Serve(_) | Command::Rpc | Command::Mcp);
    let telemetry = Telemetry::begin(out, config.values.log.level, &around, is_server)?;
    // One command needs one thread; a server answers on all of them, and each logs where this one does.
    let mut runtime = match cli.command {
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let logs = tracing::dispatcher::get_default(Clone::clone);
    runtime.on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&logs)));
    let runtime = runtime.enable_all().build()?;
    let done = runtime.block_on(async {
        let app = App::new(config, out, &around)?;
        perform(&app, &around, cli.command, streams).await
    });
    // Whatever still runs ends with the process.
    runtime.shutdown_background();
    telemetry.end();
    done
}

/// Performs a command that needs the service.
async fn perform(app: &App, around: &Surroundings, command: Command, streams: Streams) -> Result<u8, CliError> {
    let configured = app.config.values.compaction;
    match command {
        Command::Run(args) => commands::run(app, streams, args).await,
        Command::Resume(args) => commands::resume(app, streams, args).await,
        Command::Chat(args) => chat::chat(app, streams, &args).await,
        Command::Serve(args) => serve::serve(app, around, &args).await,
        Command::Rpc => serve::rpc(app).await,
        Command::Mcp => serve::mcp(app).await,
        Command::Events(args) => commands::events(app, &args).await,
        Command::Compact(args) => {
            let session = args.target.session.as_deref().unwrap_or_default();
            commands::print(app, wire::compact(&args, session, configured)).await
        }
        Command::Sessions { command } => commands::print(app, wire::session(&command, "")).await,
        Command::Memory { command } => commands::print(app, wire::memory(&command)).await,
        Command::Capabilities => commands::print(app, (Operation::Capabilities, json!({}))).await,
        Command::Errors(_) | Command::Config { .. } | Command::Completions { .. } | Command::Man { .. } => Ok(0),
    }
}
