//! `sessions …` and `memory …`.

use std::path::PathBuf;

use clap::Subcommand;
use meerkat_service::service::Scope;

use super::{
    chat::NewArgs,
    flags::{Target, label, scope},
    operators::{EXPORT_HELP, ExportArgs, IMPORT_HELP},
};

/// Operations on one session, and the list of them.
#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions
    List {
        /// Sessions of all your projects, read from the disk without opening their data directories
        #[arg(long, conflicts_with = "cursor")]
        all_projects: bool,
        /// Only sessions with this label; may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
        /// Only archived sessions; with `false`, only the others
        #[arg(long, num_args = 0..=1, default_missing_value = "true")]
        archived: Option<bool>,
        /// Sub-agents too
        #[arg(long)]
        children: bool,
        /// Only sessions created after this time, such as 2026-01-31T00:00:00Z
        #[arg(long, value_name = "TIME")]
        created_after: Option<String>,
        /// Only sessions changed after this time
        #[arg(long, value_name = "TIME")]
        updated_after: Option<String>,
        /// Continue after a page: the cursor that was printed below it
        #[arg(long)]
        cursor: Option<String>,
        /// At most this many sessions
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Create a session
    Create(Box<NewArgs>),
    /// Show a session
    Show(Target),
    /// Show a session and its sub-agents, with what each used and each branch
    Tree(Target),
    /// Show what was said, page by page
    History {
        #[command(flatten)]
        target: Target,
        /// Continue after a page: the cursor that was printed below it
        #[arg(long)]
        cursor: Option<String>,
        /// At most this many messages
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// All remaining pages at once
        #[arg(long, conflicts_with = "limit")]
        all: bool,
        /// Print texts whole, also those that are stored in blobs
        #[arg(long)]
        full: bool,
        /// Go on behind damage with the next good event
        #[arg(long)]
        skip_damage: bool,
    },
    /// Set a session's title
    Title {
        #[command(flatten)]
        target: Target,
        /// The title; an empty one removes it
        #[arg(value_name = "TEXT")]
        text: String,
    },
    /// Archive a session
    Archive(Target),
    /// Let an archived session accept turns again
    Unarchive(Target),
    /// Delete a session for good
    Delete {
        #[command(flatten)]
        target: Target,
        /// Delete it even if it runs a turn
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// List the files that the agent has changed
    #[command(after_help = FILES_HELP)]
    Files {
        #[command(flatten)]
        target: Target,
        /// Only changes of this turn and later ones
        #[arg(long, value_name = "N")]
        turn: Option<u32>,
    },
    /// Put files back as they were before a turn
    #[command(after_help = FILES_HELP)]
    RestoreFiles {
        #[command(flatten)]
        target: Target,
        /// Undo the changes of this turn and of all later ones
        #[arg(long, value_name = "N")]
        turn: u32,
        /// Leave this file as it is now; may be repeated
        #[arg(long, value_name = "PATH")]
        except: Vec<String>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Copy the beginning of a session into a new session
    Fork {
        #[command(flatten)]
        target: Target,
        /// The last turn to copy; if left out, the last finished one
        #[arg(long, value_name = "N")]
        turn: Option<u32>,
    },
    /// Write sessions into a file that `import` reads
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArgs),
    /// Create sessions from a file that `export` wrote
    #[command(after_help = IMPORT_HELP)]
    Import {
        /// The file
        file: PathBuf,
        /// Give each session a new id
        #[arg(long)]
        new_ids: bool,
        /// Keep the label that parts memory: the sessions join those here with the same value
        #[arg(long)]
        keep_scope: bool,
    },
    /// End the running turn or compaction
    Interrupt {
        #[command(flatten)]
        target: Target,
        /// End only this turn
        turn: Option<u32>,
    },
    /// Allow a call that waits for approval
    Approve {
        #[command(flatten)]
        target: Target,
        /// The call's id
        call_id: String,
        /// Allow only this call (once), or also further calls like it: in this session (session) or everywhere (always)
        #[arg(long, value_name = "SCOPE", default_value = "once", value_parser = scope, hide_default_value = true)]
        scope: Scope,
        /// Answer to a server's question as a JSON object; fields that are left out get their defaults
        #[arg(long, value_name = "JSON")]
        answer: Option<String>,
        /// A reason that the model reads
        reason: Option<String>,
    },
    /// Refuse a call that waits for approval
    Deny {
        #[command(flatten)]
        target: Target,
        /// The call's id
        call_id: String,
        /// A reason that the model reads
        reason: Option<String>,
    },
    /// List the calls that wait until you answer them
    Calls(Target),
    /// Answer a call of a tool that you run
    #[command(after_help = ANSWER_HELP)]
    Answer {
        #[command(flatten)]
        target: Target,
        /// The call's id
        call_id: String,
        /// What the call returned, for the model
        text: Option<String>,
        /// What the call returned as JSON
        #[arg(long, value_name = "JSON")]
        value: Option<String>,
        /// The call failed
        #[arg(long)]
        failed: bool,
        /// Wait for the turn's result, or until it waits for you again
        #[arg(long)]
        wait: bool,
    },
    /// List the queued turns, or cancel or change one
    Queue {
        #[command(flatten)]
        target: Target,
        /// Cancel this turn
        #[arg(long, value_name = "TURN", conflicts_with = "edit")]
        cancel: Option<u32>,
        /// Change this turn: its prompt, its place, or both
        #[arg(long, value_name = "TURN")]
        edit: Option<u32>,
        /// Its new prompt
        #[arg(long, value_name = "TEXT", requires = "edit")]
        prompt: Option<String>,
        /// Its new place, from 0; a number past the end is the last place
        #[arg(long, value_name = "N", requires = "edit")]
        position: Option<u64>,
    },
    /// Pin a fact
    Pin {
        #[command(flatten)]
        target: Target,
        /// The fact
        text: String,
    },
}

const ANSWER_HELP: &str = "The same answer again changes nothing. Images go by `meerkat call turn/answer`.\n\n\
    Examples:\n  \
        meerkat sessions calls last\n  \
        meerkat sessions answer last call_4_0 'Sunny, 21 degrees.'\n  \
        meerkat sessions answer last call_4_0 --value '{\"celsius\":21}' --wait";

const FILES_HELP: &str = "Only changes by the tools edit and write are known, not those by commands and servers. If \
    someone else has changed one of the files since, nothing is put back.\n\n\
    Examples:\n  \
        meerkat sessions files last\n  \
        meerkat sessions restore-files last --turn 2\n  \
        meerkat sessions restore-files last --turn 2 --except data/large.csv";

const SEARCH_HELP: &str = "Examples:\n  \
        meerkat memory search 'which database did we choose'\n  \
        meerkat memory search deadline --role user --since 2026-01-01T00:00:00Z --limit 5\n  \
        meerkat memory search 'retry policy' --session last --json";

const FORGET_HELP: &str = "Forgotten text is not found again, even if the index is rebuilt. The session's history keeps it.\n\n\
    Examples:\n  \
        meerkat memory forget --session last\n  \
        meerkat memory forget --session last --from-seq 10 --to-seq 20\n  \
        meerkat memory forget --source tool:read_file --yes";

/// Operations on what was said in all sessions.
#[derive(Subcommand)]
pub(crate) enum MemoryCommand {
    /// Search what was said
    #[command(after_help = SEARCH_HELP)]
    Search {
        /// What to look for
        query: String,
        /// Only in this session
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
        /// Only what this role said
        #[arg(long)]
        role: Option<String>,
        /// Only sessions with this label; may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
        /// Only from this time on
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Only up to this time
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        /// At most this many hits
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Make memory forget the texts that match all given flags
    #[command(after_help = FORGET_HELP)]
    Forget {
        /// Only texts of this session
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
        /// Only from this seq on
        #[arg(long, value_name = "SEQ")]
        from_seq: Option<u64>,
        /// Only up to this seq
        #[arg(long, value_name = "SEQ")]
        to_seq: Option<u64>,
        /// Only texts from this source: user, assistant, or tool:<name>
        #[arg(long)]
        source: Option<String>,
        /// Answer when no search finds the texts, before they have left memory's files
        #[arg(long)]
        no_wait: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Rebuild memory's index
    Reindex,
}
