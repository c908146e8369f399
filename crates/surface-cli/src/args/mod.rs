//! Commands, flags and their help. Nothing is performed here.
//!
//! The `/` lines of `chat` have the same definitions: see [`chat`].

pub(crate) mod chat;
mod flags;
mod operators;
mod sessions;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use chat::ChosenEffort;
pub(crate) use flags::{CompactFlags, Delivery, ModelFlags, SessionFlags, Target, TurnFlags};
pub(crate) use operators::{CopyArgs, ExportArgs, StoreCommand};
pub(crate) use sessions::{MemoryCommand, SessionCommand};

/// Runs an agent's turns on a language model, records every event, and continues sessions later.
///
/// Until you configure a model, the built-in scripted model answers, so you can try every command without a key.
#[derive(Parser)]
#[command(
    name = "meerkat",
    version,
    arg_required_else_help = true,
    help_template = help_template(),
    after_help = "Examples:\n  \
        meerkat run 'hello'                     runs one turn and prints the answer\n  \
        git diff | meerkat run --json           reads the prompt from standard input, prints JSON\n  \
        meerkat chat                            runs turn after turn; type /help for its commands\n  \
        ANTHROPIC_API_KEY=… meerkat run 'hi'    uses a real model; `meerkat models` lists them\n\n\
        The exit code is 0, or the one that `meerkat errors` lists for the error. It is 0 too if a turn waits until you \
        answer its calls. `doctor` and `servers check` end with 1 if they find an error."
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
    /// Print JSON on standard output, errors too
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Keep control sequences in texts of models and tools
    #[arg(long, global = true)]
    pub(crate) raw: bool,
    /// Print only errors on standard error
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Log more; -vv and -vvv log even more. MEERKAT_LOG=genai=debug also logs what a library reports
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Read this configuration file too, after the others [variable: MEERKAT_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Keep sessions in this folder [variable: MEERKAT_DATA_DIR]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Keep sessions only in memory, until the process ends
    #[arg(long, global = true)]
    pub(crate) ephemeral: bool,
}

const SERVE_HELP: &str = "Give at least one of --rest, --rpc and --mcp. The first line on standard output names the \
    server's address and the file of its token. Clients send the token as `Authorization: Bearer <token>`. If the \
    variable MEERKAT_TOKEN is set, it is the token, and the file is not used. At Ctrl-C running turns get \
    serve.drain_ms to finish; a second Ctrl-C ends the server at once.\n\n\
    Examples:\n  \
        meerkat serve --rest --rpc --mcp               serves all three on http://127.0.0.1:7670\n  \
        meerkat serve --mcp --listen 127.0.0.1:0 --json    takes a free port, prints it as JSON";

const CONSOLE_HELP: &str = "Opens the page of the server that runs; if none runs, starts one, which Ctrl-C ends. The \
    address has a code that signs one browser in, once and within a minute. The sign-in ends after 12 hours, or with the \
    server.\n\n\
    Examples:\n  \
        meerkat console            opens the page in your browser\n  \
        meerkat console --print    prints its address, for another machine or browser";

const DOCTOR_HELP: &str = "Checks the configuration, every journal and blob, the index, memory's log, readers, the \
    files at the project's root, permissions and disk space. Says for each fault what to do. While another process \
    owns the data directory, it only reads. The exit code is 1 if an error remains.\n\n\
    Examples:\n  \
        meerkat doctor             changes nothing\n  \
        meerkat doctor --repair    repairs; keeps what it removes from a journal in quarantine/";

const RPC_HELP: &str = "Reads one JSON-RPC 2.0 message or batch per line, as /rpc of `meerkat serve` does. \
    `rpc.discover` lists the methods. The command ends when its input has ended and every request is answered. Logs go \
    to standard error.\n\n\
    Example:\n  \
        echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"capabilities/get\"}' | meerkat rpc";

const MCP_HELP: &str = "For clients that start their servers; clients that connect to a URL need `meerkat serve \
    --mcp`. No token is needed; logs go to standard error. Each tool costs the client's model tokens in every request, \
    so only a few are offered; `--tools all` offers the others too.\n\n\
    In the client's configuration:\n  \
        {\"mcpServers\": {\"meerkat\": {\"command\": \"meerkat\", \"args\": [\"mcp\"]}}}";

const ACP_HELP: &str = "For editors that start their agents: Zed, the IDEs of JetBrains, Neovim, Emacs and others. The \
    folder that is open in the editor is the session's workspace, and the editor asks you about calls. Logs go to \
    standard error. docs/editors.md has the lines for each editor.\n\n\
    In Zed's settings:\n  \
        {\"agent_servers\": {\"meerkat\": {\"type\": \"custom\", \"command\": \"meerkat\", \"args\": [\"acp\"]}}}";

const CALL_HELP: &str = "Operations, parameters and answers are those of REST, JSON-RPC and MCP.\n\n\
    Examples:\n  \
        meerkat call                                         lists the operations\n  \
        meerkat call reader/fetch --help                     lists the parameters of one\n  \
        meerkat call reader/fetch reader=audit wait_ms=1000  text, or what the parameter's type makes of it\n  \
        meerkat call session/update session_id=last labels:='{\"team\":\"dig\"}'    JSON\n  \
        meerkat call turn/start @request.json                an object of parameters; `-` is standard input";

/// Commands by what they are for: each has its place in the help.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Turns and sessions", &["run", "chat", "resume", "sessions", "models"]),
    ("What a session holds", &["events", "compact", "memory", "tools", "servers", "call"]),
    ("Programs and browsers", &["serve", "console", "token", "rpc", "mcp", "acp"]),
    ("Set up and look after", &["config", "store", "doctor", "capabilities", "errors", "completions"]),
];

/// Lays the program's help out, with the commands in their groups.
fn help_template() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("meerkat"));
    let about = |name: &str| commands.find_subcommand(name).and_then(clap::Command::get_about);
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        text += &format!("\n{heading}:\n");
        for name in names {
            let about = about(name).map(ToString::to_string).unwrap_or_default();
            text += &format!("  {name:<12}  {about}\n");
        }
    }
    text + "\nAlways:\n{options}{after-help}"
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run one turn and print the answer
    Run(RunArgs),
    /// Run turn after turn on one session
    #[command(after_long_help = chat::PROTOCOL)]
    Chat(ChatArgs),
    /// Continue a session's interrupted turn, or run a new turn if you give a prompt
    Resume(ResumeArgs),
    /// Serve over HTTP: REST, JSON-RPC and MCP on one address
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArgs),
    /// Open the console, the web page of `serve --rest`
    #[command(after_help = CONSOLE_HELP)]
    Console(ConsoleArgs),
    /// Print the token that clients of this project's server need
    Token {
        /// Print the path of the token's file instead
        #[arg(long)]
        path: bool,
    },
    /// Speak JSON-RPC on standard input and output
    #[command(after_help = RPC_HELP)]
    Rpc,
    /// Speak the Model Context Protocol on standard input and output
    #[command(after_help = MCP_HELP)]
    Mcp(McpArgs),
    /// Speak the Agent Client Protocol on standard input and output, for editors
    #[command(after_help = ACP_HELP)]
    Acp,
    /// Print a session's events
    Events(EventsArgs),
    /// Compact a session's live context
    Compact(CompactArgs),
    /// List, show and change sessions
    Sessions {
        #[command(subcommand)]
        command: SessionCommand,
    },
    /// Search what was said in all sessions, or forget some of it
    Memory {
        #[command(subcommand)]
        command: MemoryCommand,
    },
    /// Call any operation by its name; without one, list them
    #[command(disable_help_flag = true, after_help = CALL_HELP)]
    Call(CallArgs),
    /// List the models that you can use, where they come from, and what the others lack
    Models,
    /// List the tools that a session's model is offered; without a session, those of a new one
    Tools(ToolsArgs),
    /// List the servers of the Model Context Protocol (MCP), or add, check and remove them
    Servers(ServersArgs),
    /// List what this build can do
    Capabilities,
    /// Copy sessions between a data directory and a database, or list the servers of a database
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Check the configuration and the data directory or database; --repair repairs what it can
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArgs),
    /// List the error codes with their numbers, or explain one
    Errors(ErrorsArgs),
    /// Show the configuration, set a key of your own, or trust the project's files
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print a shell's completion script
    Completions {
        /// The shell
        shell: clap_complete::Shell,
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
    /// Serve OpenAI's protocols at /v1/responses and /v1/chat/completions; --rest does so too
    #[arg(long)]
    pub(crate) openai: bool,
    /// Serve the Agent Client Protocol at /acp, over WebSocket
    #[arg(long)]
    pub(crate) acp: bool,
    /// Offer these tools over MCP [default: all]
    #[arg(long, value_name = "SET", requires = "mcp")]
    pub(crate) tools: Option<Tools>,
    /// Offer `turn_approve` over MCP too: a client's model may then approve its own calls instead of a person
    #[arg(long, requires = "mcp")]
    pub(crate) approve: bool,
    /// Listen at this address and port; port 0 takes a free one [default: 127.0.0.1:7670]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Accept requests without a token; allowed only on a loopback address
    #[arg(long)]
    pub(crate) no_auth: bool,
    /// Show the console too.
    #[arg(skip)]
    pub(crate) console: Option<ConsoleArgs>,
}

/// `console`.
#[derive(Args, Clone)]
pub(crate) struct ConsoleArgs {
    /// Print the address, and open no browser
    #[arg(long)]
    pub(crate) print: bool,
    /// Address and port of the server, which starts there if none runs [default: 127.0.0.1:7670]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
}

impl ConsoleArgs {
    /// The server that starts if none runs.
    pub(crate) fn server(self) -> ServeArgs {
        let (listen, console) = (self.listen.clone(), Some(self));
        ServeArgs {
            rest: true,
            rpc: false,
            mcp: false,
            openai: false,
            acp: false,
            tools: None,
            approve: false,
            listen,
            no_auth: false,
            console,
        }
    }
}

/// `mcp`.
#[derive(Args)]
pub(crate) struct McpArgs {
    /// Offer these tools [default: core]
    #[arg(long, value_name = "SET")]
    pub(crate) tools: Option<Tools>,
    /// Offer `turn_approve` too: the client's model may then approve its own calls instead of a person
    #[arg(long)]
    pub(crate) approve: bool,
}

/// Which tools an MCP client is offered.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Tools {
    /// Create sessions, run turns, resume, list, read and search
    Core,
    /// Every tool except `turn_approve`
    All,
}

/// `doctor`.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Repair what can be repaired; no other process may own the data directory
    #[arg(long)]
    pub(crate) repair: bool,
}

/// `run`.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// The prompt; if it is `-` or left out, standard input is read
    pub(crate) prompt: Option<String>,
    /// Show the model this image, PDF or text file; give it once for each file
    #[arg(short, long = "file", value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
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

/// `call`.
#[derive(Args)]
pub(crate) struct CallArgs {
    /// The operation, such as session/list; if left out, all are listed
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: Option<String>,
    /// A parameter: NAME=TEXT or NAME:=JSON; or several in an object: @FILE or - for standard input
    #[arg(value_name = "PARAMETER")]
    pub(crate) parameters: Vec<String>,
    /// List the parameters of the operation
    #[arg(long, short)]
    pub(crate) help: bool,
}

/// `tools`.
#[derive(Args)]
pub(crate) struct ToolsArgs {
    /// The session: its id, the last six or more characters of its id, or `last` (the most recently changed)
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
    /// The server's name in the configuration
    pub(crate) name: String,
    /// Paste the address at which the browser ends, for a machine without a browser
    #[arg(long)]
    pub(crate) paste: bool,
    /// Open no browser; the page's address is printed in any case
    #[arg(long)]
    pub(crate) no_browser: bool,
    /// Permissions to ask for, besides those that the server names
    #[arg(long, value_name = "SCOPES")]
    pub(crate) scope: Option<String>,
    /// Id of a client that you registered, for an issuer that registers none by itself
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
        /// The server's name in the configuration
        name: String,
        /// Accept tools that changed since they were first listed, so that they are offered again
        #[arg(long)]
        accept: bool,
    },
    /// Log in to a remote server: opens the page where you agree, and stores the tokens readable for you alone
    Login(LoginArgs),
    /// Delete the login at a remote server; its issuer may accept it until it expires
    Logout {
        /// The server's name in the configuration
        name: String,
    },
    /// Add a server to your own configuration
    #[command(after_help = SERVERS_ADD_HELP)]
    Add {
        /// A name for the server: a-z, 0-9, '-' and single '_'
        name: String,
        /// Set a variable for the program; write a secret as `${VAR}` to keep it out of the file
        #[arg(long, value_name = "NAME=VALUE", value_parser = flags::variable)]
        env: Vec<(String, String)>,
        /// The folder that the program starts in; without it an empty one, as a project may hold code that the program runs
        #[arg(long, value_name = "PATH")]
        folder: Option<PathBuf>,
        /// The address of a server that speaks streamable HTTP, instead of a command
        #[arg(long, conflicts_with_all = ["command", "env", "folder"])]
        url: Option<String>,
        /// The program and its arguments
        #[arg(last = true, required_unless_present = "url")]
        command: Vec<String>,
    },
    /// Remove a server from your own configuration
    Remove {
        /// The server's name
        name: String,
    },
}

const SERVERS_ADD_HELP: &str = "Examples:\n  \
        meerkat servers add github --env 'GITHUB_TOKEN=${GITHUB_TOKEN}' -- npx -y @modelcontextprotocol/server-github\n  \
        meerkat servers add docs --url https://example.com/mcp";

/// `chat`.
#[derive(Args)]
pub(crate) struct ChatArgs {
    /// The session to continue; if left out, a new one
    pub(crate) session: Option<String>,
    #[command(flatten)]
    pub(crate) create: SessionFlags,
    #[command(flatten)]
    pub(crate) turn: TurnFlags,
}

/// `resume`.
#[derive(Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The prompt of a new turn; if left out, the interrupted turn continues; `-` reads standard input
    pub(crate) prompt: Option<String>,
    /// Show the model this image, PDF or text file; give it once for each file
    #[arg(short, long = "file", value_name = "FILE", requires = "prompt")]
    pub(crate) input: Vec<PathBuf>,
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
    /// Only events after this seq
    #[arg(long, value_name = "SEQ")]
    pub(crate) since: Option<u64>,
    /// Only events after this seq
    #[arg(value_name = "SINCE", conflicts_with = "since")]
    pub(crate) after: Option<u64>,
    /// At most this many events
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Wait at most this long for the first event
    #[arg(long, value_name = "MS")]
    pub(crate) wait_ms: Option<u64>,
    /// Keep printing new events as they come
    #[arg(long, conflicts_with_all = ["limit", "wait_ms"])]
    pub(crate) follow: bool,
    /// Follow until the first event of this type
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["limit", "wait_ms"])]
    pub(crate) until: Option<String>,
    /// Go on behind damage with the next good event
    #[arg(long)]
    pub(crate) skip_damage: bool,
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
    #[command(flatten)]
    pub(crate) how: CompactHow,
}

/// What a compaction is to do, also in a line of `chat`.
#[derive(Args)]
pub(crate) struct CompactHow {
    /// Show what would happen, and change nothing
    #[arg(long, conflicts_with = "undo")]
    pub(crate) preview: bool,
    /// Undo the latest compaction, or the one whose `compaction_completed` has this seq
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

const SET_HELP: &str = "Examples:\n  \
        meerkat config set model.name ollama/llama3.2\n  \
        meerkat config set turn.max_steps 50\n  \
        meerkat config set model.compatible.vllm.base_url http://localhost:8000/v1";

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every value and where it comes from
    Show,
    /// Set a key in your own configuration, such as model.name
    #[command(after_help = SET_HELP)]
    Set {
        /// The key, with its section; config/meerkat.toml has all keys
        key: String,
        /// The value as in a file; a text needs no quotes
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Trust the project's meerkat.toml, .mcp.json, AGENTS.md and .claude/agents, each until it changes
    Trust {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn each_command_is_in_one_group_of_the_help() {
        let cli = Cli::command();
        let mut known: Vec<&str> = cli.get_subcommands().map(clap::Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(listed[..5], ["run", "chat", "resume", "sessions", "models"]);
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }
}
