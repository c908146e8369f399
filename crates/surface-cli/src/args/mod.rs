//! Commands, flags and their help. Nothing is performed here.
//!
//! The `/` lines of `chat` have the same definitions: see [`chat`].

pub(crate) mod chat;
mod flags;
mod operators;
mod other_words;
mod sessions;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use flags::{CompactFlags, Delivery, SessionFlags, Target, TurnFlags};
pub(crate) use operators::{ExportArgs, JournalCommand, ProjectArgs, ProjectCommand, ReaderCommand};
pub(crate) use other_words::{our_command, our_flag};
pub(crate) use sessions::{MemoryCommand, SessionCommand};

/// Keeps agent sessions: runs turns against a language model, records every event, and goes on where it left off.
///
/// Until a model is configured, the built-in scripted model answers, so everything can be tried at once.
#[derive(Parser)]
#[command(
    name = "meerkat",
    version,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        meerkat run 'hello'                     one turn, the answer on standard output\n  \
        git diff | meerkat run --json           the prompt from standard input, one JSON document\n  \
        meerkat chat                            turn after turn; /help lists what else it takes\n  \
        ANTHROPIC_API_KEY=… meerkat run 'hi'    a real model; `meerkat config show` says what is set\n\n\
        The exit code is 0, or the one that `meerkat errors` lists for the error."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Args)]
#[command(next_help_heading = "Always")]
pub(crate) struct Globals {
    /// Print JSON on standard output, also for an error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Keep control sequences in texts of models and tools
    #[arg(long, global = true)]
    pub(crate) raw: bool,
    /// Print nothing on standard error but errors
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Log more; -vv and -vvv log still more. MEERKAT_LOG=genai=debug logs what a library says as well
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Read this configuration file too, after the others [variable: MEERKAT_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Keep sessions in this folder [variable: MEERKAT_DATA_DIR]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Keep sessions in memory alone
    #[arg(long, global = true)]
    pub(crate) ephemeral: bool,
}

const SERVE_HELP: &str = "At least one of --rest, --rpc and --mcp is needed. The first line on standard output says where \
    it listens and in which file its token stands. Requests carry it as `Authorization: Bearer <token>`; the variable \
    MEERKAT_TOKEN holds it instead of the file. At Ctrl-C running turns may finish; a second one ends at once.\n\n\
    Examples:\n  \
        meerkat serve --rest --rpc --mcp               everything, on http://127.0.0.1:7670\n  \
        meerkat serve --mcp --listen 127.0.0.1:0 --json    a free port, told as JSON";

const DOCTOR_HELP: &str = "It checks every journal and body, the index, the memory's log, readers, files at the \
    project's root, permissions and room, and says which command mends what it finds. Beside a running process it only \
    reads. It ends with 1 where an error is left.\n\n\
    Examples:\n  \
        meerkat doctor             changes nothing\n  \
        meerkat doctor --repair    mends; whatever it takes out of a journal is kept in quarantine/";

const RPC_HELP: &str = "One JSON-RPC 2.0 message or batch on each line, as at /rpc of `meerkat serve`. `rpc.discover` \
    lists the methods. It ends with its input, when all is answered. Logs go to standard error.\n\n\
    Example:\n  \
        echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"capabilities/get\"}' | meerkat rpc";

const MCP_HELP: &str = "For clients that start their servers. It needs no token; logs go to standard error. Clients that \
    connect to a URL need `meerkat serve --mcp`. Each tool costs the client's model tokens in every request, so a few \
    are offered; `--tools all` offers the rest.\n\n\
    In the client's configuration:\n  \
        {\"mcpServers\": {\"meerkat\": {\"command\": \"meerkat\", \"args\": [\"mcp\"]}}}";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run one turn and print the answer
    Run(RunArgs),
    /// Run turn after turn on one session
    #[command(after_long_help = chat::PROTOCOL)]
    Chat(ChatArgs),
    /// Go on with a session that a former process left behind
    Resume(ResumeArgs),
    /// Serve over HTTP: REST, JSON-RPC and MCP on one address
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArgs),
    /// Print the token that clients of this project's server need
    Token {
        /// Print the path of its file in its place
        #[arg(long)]
        path: bool,
    },
    /// Speak JSON-RPC on standard input and output
    #[command(after_help = RPC_HELP)]
    Rpc,
    /// Speak the Model Context Protocol on standard input and output
    #[command(after_help = MCP_HELP)]
    Mcp(McpArgs),
    /// Print a session's events
    Events(EventsArgs),
    /// Compact a session's live context
    Compact(CompactArgs),
    /// List, show and change sessions
    Sessions {
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Search what was said, or make it forgotten
    Memory {
        #[command(subcommand)]
        command: MemoryCommand,
    },
    /// Hand every event to programs that pick up where they stopped
    #[command(after_help = operators::READERS_HELP)]
    Readers {
        #[command(subcommand)]
        command: ReaderCommand,
    },
    /// Keep journals from growing for ever
    Journal {
        #[command(subcommand)]
        command: JournalCommand,
    },
    /// Files that show the project's sessions
    Project {
        #[command(subcommand)]
        command: ProjectArgs,
    },
    /// Choose a model: asks three questions and writes the answers to your configuration
    Init,
    /// List the models that can be used, where they come from, and why not the others
    Models,
    /// List the tools that a session's model is offered, or those that a new session here would be
    Tools(ToolsArgs),
    /// List the servers of the Model Context Protocol, with their tools
    Servers(ServersArgs),
    /// Say what this build can do
    Capabilities,
    /// Look for what is wrong in the configuration and the data directory, and mend it
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArgs),
    /// List the error codes with their numbers, or say what to do about one
    Errors(ErrorsArgs),
    /// Show the configuration, or begin a file for it
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// The sessions that a word may mean, one on a line, for the completions of a shell
    #[command(name = "__complete-sessions", hide = true)]
    CompleteSessions {
        /// What there is of the word
        #[arg(default_value = "")]
        word: String,
    },
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Install completions, manual pages and a unit of systemd
    #[command(after_help = INSTALL_HELP)]
    InstallFiles(InstallArgs),
    /// Print the manual page, or write those of all commands to a folder
    Man {
        /// An existing folder
        folder: Option<PathBuf>,
    },
}

/// `serve`.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Serve REST at /v1, described at /openapi.json
    #[arg(long)]
    pub(crate) rest: bool,
    /// Serve JSON-RPC at /rpc, over HTTP and WebSocket
    #[arg(long)]
    pub(crate) rpc: bool,
    /// Serve the Model Context Protocol at /mcp
    #[arg(long)]
    pub(crate) mcp: bool,
    /// Offer these tools over MCP [default: all]
    #[arg(long, value_name = "SET", requires = "mcp")]
    pub(crate) tools: Option<Tools>,
    /// Offer `turn_approve` over MCP too: a client's model may then approve what its own turn asks a person
    #[arg(long, requires = "mcp")]
    pub(crate) approve: bool,
    /// Listen at this address and port; port 0 takes a free one [default: 127.0.0.1:7670]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Let everyone in without a token; only on a loopback address
    #[arg(long)]
    pub(crate) no_auth: bool,
}

const INSTALL_HELP: &str = "It asks nothing and lists every file. A file that it did not write, or that was changed since, \
    is never overwritten: then nothing is written at all.\n\n\
    Examples:\n  \
        meerkat install-files                         completions and manual pages, below ~/.local\n  \
        meerkat install-files --service user          and meerkat.service, for a server of your own\n  \
        sudo meerkat install-files --service system   for the machine's server, below /usr/local";

/// `install-files`.
#[derive(Args)]
pub(crate) struct InstallArgs {
    /// Install below this folder [default: ~/.local, or /usr/local for root]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) prefix: Option<PathBuf>,
    /// Install meerkat.service too
    #[arg(long, value_name = "WHOSE")]
    pub(crate) service: Option<Service>,
    /// List the files, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Whose server a unit of systemd starts.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Service {
    /// A user's, with that user's folders
    User,
    /// The machine's, under the user "meerkat", confined to /var/lib/meerkat
    System,
}

/// `mcp`.
#[derive(Args)]
pub(crate) struct McpArgs {
    /// Offer these tools [default: core]
    #[arg(long, value_name = "SET")]
    pub(crate) tools: Option<Tools>,
    /// Offer `turn_approve` too: the client's model may then approve what its own turn asks a person
    #[arg(long)]
    pub(crate) approve: bool,
}

/// Which tools an MCP client is offered.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Tools {
    /// Make a session, run turns, go on, list, read, search
    Core,
    /// Every tool, but for `turn_approve`
    All,
}

/// `doctor`.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Mend what can be mended; no other process may own the data directory
    #[arg(long)]
    pub(crate) repair: bool,
}

/// `run`.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// What to say; `-` or nothing reads standard input
    pub(crate) prompt: Option<String>,
    /// Run the turn on this session instead of a new one
    #[arg(long, value_name = "SESSION", conflicts_with = "SessionFlags")]
    pub(crate) session: Option<String>,
    /// Print the session's events as JSON lines up to the turn's end
    #[arg(long, conflicts_with = "json")]
    pub(crate) events: bool,
    #[command(flatten)]
    pub(crate) create: SessionFlags,
    #[command(flatten)]
    pub(crate) turn: TurnFlags,
    #[command(flatten)]
    pub(crate) delivery: Delivery,
}

/// `tools`.
#[derive(Args)]
pub(crate) struct ToolsArgs {
    /// The session: its id, `last`, or at least six digits that its id ends with
    #[arg(value_name = "SESSION")]
    pub(crate) session: Option<String>,
}

/// `servers`.
#[derive(Args)]
pub(crate) struct ServersArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ServersCommand>,
}

/// `servers login`.
#[derive(Args)]
pub(crate) struct LoginArgs {
    /// Its name in the configuration
    pub(crate) name: String,
    /// Paste the address that the browser ends at: for a machine without one
    #[arg(long)]
    pub(crate) paste: bool,
    /// Open no browser; the address of the page is printed all the same
    #[arg(long)]
    pub(crate) no_browser: bool,
    /// Permissions to ask for, besides those that the server names
    #[arg(long, value_name = "SCOPES")]
    pub(crate) scope: Option<String>,
    /// Client that you registered with the issuer, which registers none by itself
    #[arg(long, value_name = "ID")]
    pub(crate) client_id: Option<String>,
    /// Allow an issuer in a private network
    #[arg(long)]
    pub(crate) private: bool,
}

/// Command about one server.
#[derive(Subcommand)]
pub(crate) enum ServersCommand {
    /// Start a server and list its tools
    Check {
        /// Its name in the configuration
        name: String,
        /// Offer tools again that have changed since they were first listed
        #[arg(long)]
        accept: bool,
    },
    /// Log in to a remote server: opens a page to agree on, and keeps the tokens for you alone
    Login(LoginArgs),
    /// Forget the login at a remote server, and tell who gave it
    Logout {
        /// Its name in the configuration
        name: String,
    },
    /// Add a server to your own configuration
    #[command(after_help = SERVERS_ADD_HELP)]
    Add {
        /// Its name: a-z, 0-9, '-' and single '_'
        name: String,
        /// Give its program a variable; write a secret as `${VAR}`, so that the file does not hold it
        #[arg(long, value_name = "NAME=VALUE", value_parser = flags::variable)]
        env: Vec<(String, String)>,
        /// The address of a server that speaks streamable HTTP, in the place of a command
        #[arg(long, conflicts_with_all = ["command", "env"])]
        url: Option<String>,
        /// Its program and the arguments
        #[arg(last = true, required_unless_present = "url")]
        command: Vec<String>,
    },
    /// Remove a server from your own configuration
    Remove {
        /// Its name
        name: String,
    },
}

const SERVERS_ADD_HELP: &str = "Examples:\n  \
        meerkat servers add github --env 'GITHUB_TOKEN=${GITHUB_TOKEN}' -- npx -y @modelcontextprotocol/server-github\n  \
        meerkat servers add docs --url https://example.com/mcp";

/// `chat`.
#[derive(Args)]
pub(crate) struct ChatArgs {
    /// The session to go on with; a new one where there is none
    #[arg(conflicts_with_all = ["SessionFlags", "TurnFlags"])]
    pub(crate) session: Option<String>,
    #[command(flatten)]
    pub(crate) create: SessionFlags,
    #[command(flatten)]
    pub(crate) turn: TurnFlags,
}

impl ChatArgs {
    /// Makes the arguments of a chat that goes on with a session.
    pub(crate) fn with(session_id: &impl ToString) -> Self {
        let (create, turn) = (SessionFlags::default(), TurnFlags::default());
        Self { session: Some(session_id.to_string()), create, turn }
    }
}

/// `resume`.
#[derive(Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// What to say; without it the interrupted turn goes on; `-` reads standard input
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) turn: TurnFlags,
    #[command(flatten)]
    pub(crate) delivery: Delivery,
}

/// `events`.
#[derive(Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The events after this seq
    #[arg(long, value_name = "SEQ")]
    pub(crate) since: Option<u64>,
    /// The events after this seq
    #[arg(value_name = "SINCE", conflicts_with = "since")]
    pub(crate) after: Option<u64>,
    /// At most so many events
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Wait so long for the first one
    #[arg(long, value_name = "MS")]
    pub(crate) wait_ms: Option<u64>,
    /// Go on with new events as they come
    #[arg(long, conflicts_with_all = ["limit", "wait_ms"])]
    pub(crate) follow: bool,
    /// Follow up to the first event of this type; in `chat` the answer is that event
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["limit", "wait_ms"])]
    pub(crate) until: Option<String>,
}

impl EventsArgs {
    /// Returns the cursor, which may be a flag or an argument.
    pub(crate) fn cursor(&self) -> u64 {
        self.since.or(self.after).unwrap_or(0)
    }
}

/// `compact`.
#[derive(Args)]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Say what would happen, and change nothing
    #[arg(long, conflicts_with = "undo")]
    pub(crate) preview: bool,
    /// Take back the latest compaction, or the one that this seq completed
    #[arg(long, value_name = "SEQ", num_args = 0..=1, conflicts_with = "CompactFlags")]
    pub(crate) undo: Option<Option<u64>>,
    #[command(flatten)]
    pub(crate) compact: CompactFlags,
}

/// `errors`.
#[derive(Args)]
pub(crate) struct ErrorsArgs {
    /// A code, such as SESSION_BUSY
    pub(crate) code: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every value in force and where it comes from
    Show,
    /// Write the project's meerkat.toml with every key commented out
    Init,
    /// Let the project's meerkat.toml set what it wants, and start the servers of its .mcp.json, until these change
    Trust {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}
