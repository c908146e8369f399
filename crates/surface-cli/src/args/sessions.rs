//! `sessions …` and `memory …`.

use std::path::PathBuf;

use clap::Subcommand;
use meerkat_service::service::Scope;

use super::{
    flags::{Target, label, scope},
    operators::{EXPORT_HELP, ExportArgs, IMPORT_HELP, RETAIN_HELP},
};

/// Operations on one session, and the list of them.
#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// List sessions
    List {
        /// Those of all your projects, as they stand on the disk: nothing is opened there
        #[arg(long, conflicts_with = "cursor")]
        all_projects: bool,
        /// Only those with this label; may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
        /// Only archived ones, or only others
        #[arg(long, num_args = 0..=1, default_missing_value = "true")]
        archived: Option<bool>,
        /// Only those made after this time, such as 2026-01-31T00:00:00Z
        #[arg(long, value_name = "TIME")]
        created_after: Option<String>,
        /// Only those changed after this time
        #[arg(long, value_name = "TIME")]
        updated_after: Option<String>,
        /// Where the page before ended
        #[arg(long)]
        cursor: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Pick a session by typing, and go on with it in a chat
    #[command(after_help = OPEN_HELP)]
    Open {
        /// Its id, `last`, or words of its title
        #[arg(value_name = "WORD")]
        words: Vec<String>,
    },
    /// Show a session
    Show(Target),
    /// Show what was said, page by page
    History {
        #[command(flatten)]
        target: Target,
        /// Where the page before ended
        #[arg(long)]
        cursor: Option<String>,
        /// At most so many messages
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// All pages from there on, as one
        #[arg(long, conflicts_with = "limit")]
        all: bool,
        /// Bodies that stand in blobs too, whole
        #[arg(long)]
        full: bool,
    },
    /// Read a body that stands in a blob
    Blob {
        #[command(flatten)]
        target: Target,
        /// The blob's hash
        hash: String,
        /// Begin at this byte
        #[arg(long, value_name = "BYTE", default_value_t = 0)]
        offset: u64,
        /// At most so many bytes
        #[arg(long, value_name = "BYTES")]
        limit: Option<u64>,
    },
    /// Change the title or the labels
    Update {
        #[command(flatten)]
        target: Target,
        /// The title
        #[arg(long)]
        title: Option<String>,
        /// A label; those given replace all there were
        #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
        label: Vec<(String, String)>,
    },
    /// Archive a session
    Archive(Target),
    /// Bring an archived session back
    Unarchive(Target),
    /// Delete a session for good
    Delete {
        #[command(flatten)]
        target: Target,
        /// Also where it runs
        #[arg(long)]
        force: bool,
        /// Ask no question
        #[arg(long)]
        yes: bool,
    },
    /// List the files that the agent has changed
    #[command(after_help = FILES_HELP)]
    Files {
        #[command(flatten)]
        target: Target,
        /// Only what this turn and later ones changed
        #[arg(long, value_name = "N")]
        turn: Option<u32>,
    },
    /// Put files back as they were before a turn
    #[command(after_help = FILES_HELP)]
    RestoreFiles {
        #[command(flatten)]
        target: Target,
        /// The first turn whose changes are undone; those of later ones are too
        #[arg(long, value_name = "N")]
        turn: u32,
        /// Leave this file as it is now; may be repeated
        #[arg(long, value_name = "PATH")]
        except: Vec<String>,
        /// Ask no question
        #[arg(long)]
        yes: bool,
    },
    /// Make a new session from the beginning of one
    Fork {
        #[command(flatten)]
        target: Target,
        /// The last turn to take over
        #[arg(long, value_name = "N")]
        turn: Option<u32>,
    },
    /// Write sessions into a file that another meerkat can take in
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArgs),
    /// Make sessions from a file that `export` has written
    #[command(after_help = IMPORT_HELP)]
    Import {
        /// The file
        file: PathBuf,
        /// Give each session a new id
        #[arg(long)]
        new_ids: bool,
    },
    /// Delete sessions that are too old or too many
    #[command(after_help = RETAIN_HELP)]
    Retain {
        /// Say which would go, and delete none
        #[arg(long)]
        dry_run: bool,
        /// Those that have not changed for so many days; 0 is none
        #[arg(long, value_name = "DAYS")]
        max_age_days: Option<u64>,
        /// The oldest ones, until all take so many bytes; 0 is without limit
        #[arg(long, value_name = "BYTES")]
        max_bytes: Option<u64>,
        /// The oldest ones, until there are so many; 0 is without limit
        #[arg(long, value_name = "N")]
        max_sessions: Option<u64>,
        /// Ask no question
        #[arg(long)]
        yes: bool,
    },
    /// End the running turn
    Interrupt {
        #[command(flatten)]
        target: Target,
        /// Only if this turn runs
        turn: Option<u32>,
    },
    /// Allow a call that waits for approval
    Approve {
        #[command(flatten)]
        target: Target,
        /// The call
        call_id: String,
        /// Allow the call alone (once), and further ones like it in this session (session) or everywhere (always)
        #[arg(long, value_name = "SCOPE", default_value = "once", value_parser = scope, hide_default_value = true)]
        scope: Scope,
        /// Answer to a server's question as a JSON object; fields that are left out get their defaults
        #[arg(long, value_name = "JSON")]
        answer: Option<String>,
        /// Why, for the model to read
        reason: Option<String>,
    },
    /// Refuse a call that waits for approval
    Deny {
        #[command(flatten)]
        target: Target,
        /// The call
        call_id: String,
        /// Why, for the model to read
        reason: Option<String>,
    },
    /// List the turns that wait, or take one out
    Queue {
        #[command(flatten)]
        target: Target,
        /// Take this turn out
        #[arg(long, value_name = "TURN")]
        cancel: Option<u32>,
    },
    /// Set a system reminder, or remove it
    Remind {
        #[command(flatten)]
        target: Target,
        /// Remove the reminder of this kind
        #[arg(long, value_name = "KIND", conflicts_with_all = ["kind", "text"])]
        clear: Option<String>,
        /// claude_md, environment, git_status, token_status, or custom:<name>
        #[arg(required_unless_present = "clear")]
        kind: Option<String>,
        /// Its text
        #[arg(required_unless_present = "clear")]
        text: Option<String>,
    },
    /// List the system reminders
    Reminders(Target),
    /// Pin a fact
    Pin {
        #[command(flatten)]
        target: Target,
        /// The fact
        text: String,
    },
    /// List the pins
    Pins(Target),
    /// Remove a pin
    Unpin {
        #[command(flatten)]
        target: Target,
        /// The seq that `pins` shows
        pin: u64,
    },
}

const OPEN_HELP: &str = "Examples:\n  \
        meerkat sessions open           lists the sessions; words that you type make the list shorter\n  \
        meerkat sessions open login     the one with `login` in its title";

const FILES_HELP: &str = "Only changes by the tools edit and write are known; what commands and servers changed is not. \
    Nothing is put back if somebody else has changed one of the files since.\n\n\
    Examples:\n  \
        meerkat sessions files last\n  \
        meerkat sessions restore-files last --turn 2\n  \
        meerkat sessions restore-files last --turn 2 --except data/large.csv";

const SEARCH_HELP: &str = "Examples:\n  \
        meerkat memory search 'which database did we choose'\n  \
        meerkat memory search deadline --role user --since 2026-01-01T00:00:00Z --limit 5\n  \
        meerkat memory search 'retry policy' --session last --json";

const FORGET_HELP: &str = "What is forgotten stays so, also where the index is made anew. The session itself keeps it.\n\n\
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
        /// At most so many hits
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Make memory forget what matches all that is given
    #[command(after_help = FORGET_HELP)]
    Forget {
        /// What this session said
        #[arg(long, value_name = "SESSION")]
        session: Option<String>,
        /// From this seq on
        #[arg(long, value_name = "SEQ")]
        from_seq: Option<u64>,
        /// Up to this seq
        #[arg(long, value_name = "SEQ")]
        to_seq: Option<u64>,
        /// What came from this source: user, assistant, or tool:<name>
        #[arg(long)]
        source: Option<String>,
        /// Do not ask first
        #[arg(long)]
        yes: bool,
    },
    /// Build the memory's index anew
    Reindex,
}
