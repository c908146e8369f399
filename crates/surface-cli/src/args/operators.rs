//! `readers …`, `journal …`, `project …`, and what `sessions export` takes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::flags::Target;

pub(super) const READERS_HELP: &str = "A reader gets every record of every session at least once: it fetches some, does \
    its work, and acknowledges them; what it has not acknowledged comes again. The idempotency key of a record is its \
    session and its seq.\n\n\
    Examples:\n  \
        meerkat readers create audit\n  \
        meerkat readers fetch audit --wait-ms 30000 --json\n  \
        meerkat readers acknowledge audit last 12\n  \
        meerkat readers list                    how far each is behind";

const COMPACT_HELP: &str = "Only what every reader has acknowledged is dropped, and only records whose effect newer ones \
    have replaced. Without a reader nothing is.\n\n\
    Examples:\n  \
        meerkat journal compact last --dry-run\n  \
        meerkat journal compact last --drop-history    also what was said, but for the newest replies";

const REBUILD_HELP: &str = "The files below `.rkat` come from the journals alone, so they can be made anew at any time.\n\n\
    Example:\n  \
        rm -r .rkat; meerkat project rebuild";

pub(super) const EXPORT_HELP: &str = "A bundle is a tar file with every event, every blob and their hashes. The file is \
    there when it is whole.\n\n\
    Examples:\n  \
        meerkat sessions export last -o dig.tar\n  \
        meerkat sessions export --all -o backup.tar\n  \
        meerkat sessions export last --redact -o to-show.tar    without what looks like a key";

pub(super) const IMPORT_HELP: &str = "Everything is checked before anything is made; a bundle that is damaged leaves \
    nothing behind.\n\n\
    Examples:\n  \
        meerkat sessions import backup.tar\n  \
        meerkat sessions import dig.tar --new-ids    beside the session that it was made of";

pub(super) const RETAIN_HELP: &str = "What is left out comes from the configuration, where nothing is deleted by \
    default.\n\n\
    Examples:\n  \
        meerkat sessions retain --max-age-days 90 --dry-run\n  \
        meerkat sessions retain --max-sessions 1000 --yes";

/// Operations on readers.
#[derive(Subcommand)]
pub(crate) enum ReaderCommand {
    /// Register a reader
    Create {
        /// Its name: small letters, digits, `.`, `_` and `-`
        reader: String,
    },
    /// List the readers, and how far each is behind
    List,
    /// Get records that a reader has not acknowledged
    Fetch {
        /// The reader
        reader: String,
        /// At most so many records
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Wait so long for the first one
        #[arg(long, value_name = "MS")]
        wait_ms: Option<u64>,
    },
    /// Say up to which event of a session a reader is done
    Acknowledge {
        /// The reader
        reader: String,
        #[command(flatten)]
        target: Target,
        /// The last event that it is done with
        seq: u64,
    },
    /// Wait until a reader is done with an event of a session
    Wait {
        /// The reader
        reader: String,
        #[command(flatten)]
        target: Target,
        /// The event
        seq: u64,
        /// Wait so long
        #[arg(long, value_name = "MS")]
        wait_ms: Option<u64>,
    },
    /// Forget a reader and how far it has come
    Delete {
        /// The reader
        reader: String,
    },
}

/// Operations on a journal.
#[derive(Subcommand)]
pub(crate) enum JournalCommand {
    /// Drop records of a session that nothing depends on any more
    #[command(after_help = COMPACT_HELP)]
    Compact {
        #[command(flatten)]
        target: Target,
        /// Say what would be dropped, and drop nothing
        #[arg(long)]
        dry_run: bool,
        /// Also drop what was said, but for the live context and the newest replies
        #[arg(long)]
        drop_history: bool,
    },
}

/// Operations on the project's files.
#[derive(Subcommand)]
pub(crate) enum ProjectCommand {
    /// Make the files below `.rkat` anew
    #[command(after_help = REBUILD_HELP)]
    Rebuild,
}

/// `project`: the operations, and what is about the data directory itself.
#[derive(Subcommand)]
pub(crate) enum ProjectArgs {
    #[command(flatten)]
    Files(ProjectCommand),
    /// Go on with the sessions that `.rkat` was made from, such as after the project was moved
    Adopt,
}

/// `sessions export`.
#[derive(Args, Clone)]
pub(crate) struct ExportArgs {
    /// The sessions: ids, `last`, or at least six digits that an id ends with
    #[arg(value_name = "SESSION")]
    pub(crate) session: Vec<String>,
    /// All sessions
    #[arg(long, conflicts_with = "session")]
    pub(crate) all: bool,
    /// Write to this file
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Replace what looks like a key
    #[arg(long)]
    pub(crate) redact: bool,
}
