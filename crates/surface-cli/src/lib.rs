//! The command line: it reads arguments and lines, calls the service, and prints.
//!
//! It holds no rule about sessions, capabilities or builds: those are the service's. Start at [`run`].

mod args;
mod attach;
mod chat;
mod commands;
mod config;
mod ends;
mod error;
mod input;
mod output;
mod people;
mod serve;
mod stream;
mod telemetry;
mod wire;

use std::{ffi::OsString, io::BufRead, path::PathBuf, sync::Arc, time::Duration};

use clap::Parser as _;
use meerkat_client::{Client, Place};
use meerkat_service::{AgentBuildConfig, SessionService, clock::World, model::ModelResolver as _};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use output::{Surroundings, Terminal, install_panic_hook};

use crate::{
    args::{Cli, Command, ConfigCommand, ProjectArgs, ProjectCommand, SessionCommand},
    attach::{Door, Entered, Holding},
    commands::{completions::completions, doctor::doctor, local},
    config::{Config, refused},
    ends::{CtrlC, End, Ends},
    error::CliError,
    output::Output,
    telemetry::Telemetry,
};

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
            let (interrupts, state) = (Interrupts::new(interrupts), around.state());
            let streams = Streams { stdin: Some(stdin), has_editor, interrupts, state };
            dispatch(cli, &out, around, streams)
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
    /// The folder of the user's that keeps what is worth less than data.
    state: Option<PathBuf>,
}

impl Streams {
    /// The file that keeps what is typed in chats, if there can be one.
    fn history(&self) -> Option<PathBuf> {
        let file = input::history_file(self.state.as_ref()?);
        file.inspect_err(|error| tracing::info!(%error, "what is typed is kept for this chat only")).ok()
    }

    /// Standard input, once; then nothing.
    fn take_stdin(&mut self) -> Box<dyn BufRead + Send> {
        self.stdin.take().unwrap_or_else(|| Box::new(std::io::empty()))
    }
}

/// Ctrl-C as it comes to a command that listens for it.
struct Interrupts {
    receiver: Option<mpsc::UnboundedReceiver<()>>,
    ctrl_c: CtrlC,
}

impl Interrupts {
    fn new(receiver: Option<mpsc::UnboundedReceiver<()>>) -> Self {
        Self { receiver, ctrl_c: CtrlC::default() }
    }

    /// Takes Ctrl-C over from the process, for which it means the end.
    fn listen(&mut self) {
        self.receiver.get_or_insert_with(|| self.ctrl_c.take());
    }

    async fn next(&mut self) {
        match &mut self.receiver {
            Some(receiver) if !receiver.is_closed() || !receiver.is_empty() => drop(receiver.recv().await),
            _ => std::future::pending().await,
        }
    }
}

/// What the commands share.
pub(crate) struct App {
    service: Arc<dyn SessionService>,
    out: Output,
    config: Arc<Config>,
    /// Which model answers where none is named; `None` where another process decides.
    default_model: Option<DefaultModel>,
    holding: Holding,
    /// The folder that files are named from.
    dir: PathBuf,
    /// Cancelled when a command was told to end and its turns have ended.
    closing: CancellationToken,
}

/// The model that answers where none is named.
pub(crate) struct DefaultModel {
    /// Whether it answers only because nothing was ever configured.
    is_stand_in: bool,
    /// Its name, or why it cannot answer.
    told: String,
}

/// How long an owner that is asked to end says nothing about it.
const QUIET_END: Duration = Duration::from_millis(200);

/// How long a command that was told to end may go on when its turns have ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long turns that were interrupted get to end.
const END_LIMIT: Duration = Duration::from_secs(2);

/// How long an owner waits for the turns of attached commands, in milliseconds; their own limits come first.
const ATTACHED_DRAIN_MS: u64 = 7 * 24 * 60 * 60 * 1000;

impl App {
    /// Makes the service that the configuration calls for: in memory, over the data directory, or the one of the
    /// process that owns that.
    async fn open(config: Arc<Config>, out: &Output, around: &Surroundings) -> Result<Self, CliError> {
        let vendors = config.vendors(around);
        let keys = [&vendors.anthropic.key, &vendors.openai.key, &vendors.gemini.key];
        let memory = config.memory(around);
        let keys = keys.into_iter().chain(vendors.compatible.iter().map(|server| &server.key));
        let keys: Vec<_> = keys.chain([&memory.endpoint.key]).flatten().cloned().collect();
        let models = config.models(around)?;
        let default_model = DefaultModel {
            is_stand_in: models.is_stand_in(),
            told: models.resolve(models.default_model()).map_or_else(|error| error.to_string(), |model| model.name),
        };
        let seed = around.env.get(TEST_SEED).map(|seed| {
            let seed = seed.to_str().and_then(|seed| seed.parse().ok());
            let origin = format!("variable {TEST_SEED}");
            seed.ok_or_else(|| refused("seed", "it must be a whole number, 0 or more", &origin))
        });
        let compaction = config.compaction()?;
        let (models, seed, values) = (Arc::new(models), seed.transpose()?, config.clone());
        let projection_dir = config.projection_dir(around);
        let build = move |data_dir: Option<PathBuf>| {
            let mut options = values.engine();
            options.projection.dir.clone_from(&projection_dir);
            let mut build = AgentBuildConfig::new().options(options).models(models.clone());
            for key in &keys {
                build = build.secret(key.clone());
            }
            if let Some(data_dir) = data_dir.clone().filter(|_| values.keeps_sessions()) {
                build = build.store(data_dir);
            }
            if !values.values.store.enabled {
                build = build.ephemeral();
            }
            build = build.memory(data_dir, memory.clone());
            if let Some(compaction) = compaction {
                build = build.compaction(compaction);
            }
            if let Some(seed) = seed {
                build = build.world(World::seeded(seed, 0));
            }
            build
        };
        let (service, holding) = match config.opens_data_dir() {
            false => {
                let agent = build(None).build().map_err(|error| config.with_origin(&error))?;
                (agent.service().clone(), Holding::Memory)
            }
            true => enter(&config, around, out.is_quiet, build).await?,
        };
        // Which model answers is the owner's business, and each answer names it.
        let default_model = Some(default_model).filter(|_| !holding.is_attached());
        Ok(Self {
            service,
            out: out.clone(),
            config,
            default_model,
            holding,
            dir: around.dir.clone(),
            closing: CancellationToken::new(),
        })
    }

    /// Ends the service: what runs gets `drain_ms` to end, the turns of attached commands as long as they take.
    async fn end(self, drain_ms: u64, ends: &mut Ends) {
        let is_needed = self.holding.attached().await > 0;
        let ending = self.service.shut_down(if is_needed { ATTACHED_DRAIN_MS } else { drain_ms });
        let ended = async {
            tokio::pin!(ending);
            if tokio::time::timeout(QUIET_END, &mut ending).await.is_err() {
                if is_needed {
                    self.out.note("Waiting for the turns of attached commands; Ctrl-C ends at once.");
                }
                ending.await;
            }
        };
        // A tool that does not stop keeps nobody: the next start finds its turn.
        let limit = if is_needed { Duration::MAX } else { Duration::from_millis(drain_ms) + END_LIMIT };
        tokio::select! {
            _ = tokio::time::timeout(limit, ended) => {}
            _ = ends.next() => {}
        }
        self.holding.end().await;
    }

    /// Performs a command until it ends, or until its user leaves it, or until the process is told to end: then running
    /// turns get `drain_ms`, the command a moment to say what came of them, and that is no failure.
    async fn until_told(
        &self,
        drain_ms: u64,
        ends: &mut Ends,
        work: impl Future<Output = Result<u8, CliError>>,
    ) -> Result<u8, CliError> {
        tokio::pin!(work);
        // What came while the process started counts before anything is performed.
        let end = tokio::select! {
            biased;
            end = ends.next() => end,
            done = &mut work => return done,
        };
        if end == End::Left {
            return Ok(end.exit_code());
        }
        let drained = async {
            self.service.shut_down(drain_ms).await;
            self.closing.cancel();
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            _ = &mut work => {}
            () = drained => {}
            _ = ends.next() => {}
        }
        Ok(end.exit_code())
    }

    /// Says that no real model answers, where nobody chose that.
    fn tell_of_scripted_model(&self) {
        if self.default_model.as_ref().is_some_and(|model| model.is_stand_in) {
            self.out
                .note("The scripted model answers, since no model was ever configured; `meerkat models` says more.");
        }
    }
}

/// Owns the data directory, or attaches to the process that does.
async fn enter(
    config: &Arc<Config>,
    around: &Surroundings,
    is_quiet: bool,
    build: impl Fn(Option<PathBuf>) -> AgentBuildConfig + Send + Sync + 'static,
) -> Result<(Arc<dyn SessionService>, Holding), CliError> {
    let (data_dir, owned, built) = (config.data_dir(around)?, config.clone(), config.clone());
    let project = config.project(around, is_quiet);
    let door = Door {
        place: Place::new(data_dir.clone(), around.variable("XDG_RUNTIME_DIR").map(PathBuf::from)),
        open: Arc::new(move || {
            let agent = build(Some(data_dir.clone())).build().map_err(|error| built.located(error))?;
            project.keep(&data_dir);
            Ok(agent.service().clone())
        }),
        settings: config.settings().into(),
        agrees: Arc::new(move |settings| owned.agrees(settings)),
        owner: Arc::default(),
    };
    Ok(match door.enter().await? {
        Entered::Owner(service, owner) => (service, Holding::Owner(owner)),
        Entered::Attached(connection) => {
            let client = Client::over(door.clone(), connection, config.defaults());
            (Arc::new(client), Holding::Attached(door))
        }
    })
}

fn dispatch(cli: Cli, out: &Output, around: Surroundings, streams: Streams) -> Result<u8, CliError> {
    match &cli.command {
        Command::Errors(args) => return local::errors(out, args),
        Command::Doctor(args) => return doctor(out, &around, &cli.globals, args),
        Command::Completions { shell } => return completions(out, *shell),
        Command::Man { folder } => return local::man(out, &around, folder.as_deref()),
        Command::Config { command: ConfigCommand::Init } => return local::init_config(out, &around),
        _ => {}
    }
    let config = Config::load(&around, &cli.globals)?;
    if let Command::Config { command: ConfigCommand::Trust { yes } } = cli.command {
        return local::trust_config(out, &around, config, streams, yes);
    }
    if !matches!(cli.command, Command::CompleteSessions { .. }) {
        config.warning().iter().for_each(|warning| out.note(warning));
    }
    // Completing makes nothing, not even the folder that it would look in.
    let is_new = || config.data_dir(&around).is_ok_and(|folder| !folder.exists());
    if matches!(cli.command, Command::CompleteSessions { .. }) && (!config.keeps_sessions() || is_new()) {
        return Ok(0);
    }
    if let Command::Config { command: ConfigCommand::Show } = &cli.command {
        return local::show_config(out, &around, &config);
    }
    if let Command::Models = &cli.command {
        return local::models(out, &around, &config);
    }
    if let Command::Sessions { command: command @ SessionCommand::List { all_projects: true, .. } } = &cli.command {
        return commands::sessions::all_projects(out, &around, command);
    }
    if let Command::Capabilities = &cli.command {
        return local::capabilities(out, &config);
    }
    if let Command::Project { command: ProjectArgs::Adopt } = &cli.command {
        return local::adopt(out, &around, &config);
    }
    if !matches!(cli.command, Command::CompleteSessions { .. }) && !out.is_quiet {
        config.new_note(&around).iter().for_each(|found| out.note(found));
    }
    let is_server = matches!(cli.command, Command::Serve(_) | Command::Rpc | Command::Mcp(_));
    let telemetry = Telemetry::begin(out, config.values.log.level, &around, is_server)?;
    // One command needs one thread, and another where it answers those attached to it; a server answers on all of them.
    // Each logs where this one does.
    let mut runtime = match cli.command {
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ if config.opens_data_dir() => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    if !matches!(cli.command, Command::Serve(_)) {
        runtime.worker_threads(1);
    }
    let logs = tracing::dispatcher::get_default(Clone::clone);
    runtime.on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&logs)));
    let runtime = runtime.enable_all().build()?;
    // Before anything is opened: a signal that comes meanwhile ends the command once it can end in order.
    let mut ends = Ends::new(is_server, streams.interrupts.ctrl_c.clone())?;
    let done = runtime.block_on(async {
        // A server has drained when it returns; what memory holds ends with the process.
        let drain_ms = match &cli.command {
            Command::Serve(_) => None,
            Command::Rpc | Command::Mcp(_) => Some(config.values.serve.drain_ms),
            _ => config.opens_data_dir().then_some(0),
        };
        let told_ms = config.values.serve.drain_ms;
        let app = App::open(Arc::new(config), out, &around).await?;
        let done = match cli.command {
            Command::Serve(args) => serve::serve(&app, &around, &args, &mut ends).await,
            command => app.until_told(told_ms, &mut ends, perform(&app, command, streams)).await,
        };
        match drain_ms {
            Some(drain_ms) => app.end(drain_ms, &mut ends).await,
            None => app.holding.end().await,
        }
        done
    });
    // Whatever still runs ends with the process.
    runtime.shutdown_background();
    telemetry.end();
    done
}

/// Performs a command that needs the service.
async fn perform(app: &App, command: Command, streams: Streams) -> Result<u8, CliError> {
    match command {
        Command::Run(args) => commands::run(app, streams, args).await,
        Command::Resume(args) => commands::resume(app, streams, args).await,
        Command::Chat(args) => chat::chat(app, streams, &args).await,
        Command::Rpc => serve::rpc(app).await,
        Command::Mcp(args) => serve::mcp(app, &args).await,
        Command::Events(args) => commands::events(app, &args).await,
        Command::Compact(args) => commands::compact::compact(app, streams, &args).await,
        Command::Sessions { command } => commands::sessions::run(app, streams, &command).await,
        Command::CompleteSessions { word } => commands::sessions::complete(app, &word).await,
        Command::Memory { command } => commands::memory::run(app, streams, &command).await,
        Command::Readers { command } => commands::print(app, wire::reader(&command, "")).await,
        Command::Journal { command } => commands::print(app, wire::journal(&command, "")).await,
        Command::Project { command: ProjectArgs::Files(ProjectCommand::Rebuild) } => {
            commands::operators::rebuild(app).await
        }
        Command::Project { command: ProjectArgs::Adopt }
        | Command::Serve(_)
        | Command::Capabilities
        | Command::Models
        | Command::Errors(_)
        | Command::Doctor(_)
        | Command::Config { .. }
        | Command::Completions { .. }
        | Command::Man { .. } => Ok(0),
    }
}
