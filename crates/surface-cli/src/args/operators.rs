//! `readers …`, `journal …`, `project …`, and what `sessions export` takes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::flags::Target;

pub(super) const READERS_HELP: &str = "A reader gets every record of every session at least once. It fetches records, \
    does its work, and acknowledges them; records that it has not acknowledged come again. Session and seq identify a \
    record.\n\n\
    Examples:\n  \
        meerkat readers create audit\n  \
        meerkat readers fetch audit --wait-ms 30000 --json\n  \
        meerkat readers acknowledge audit last 12\n  \
        meerkat readers list                    shows how far each is behind";

const COMPACT_HELP: &str = "An event is dropped only if every reader has acknowledged it and a newer event has its content \
    too. If there is no reader, nothing is dropped.\n\n\
    Examples:\n  \
        meerkat journal compact last --dry-run\n  \
        meerkat journal compact last --drop-history    also messages that have left the context";

const COPY_HELP: &str = "Copies records, blobs, idempotency keys, readers and what memory was told to forget as they are, and \
    reads all of it back. Nothing of FROM is changed, and no session of TO. Sessions that are in both with the same \
    records are left alone, so a copy that was cut off can be run again. No server may run on FROM meanwhile, nor on a \
    data directory. Others on this machine can see an address that you type; a variable keeps it from them.\n\n\
    Examples:\n  \
        meerkat store copy ~/data DATABASE_URL    DATABASE_URL=postgres://user:password@host/database\n  \
        meerkat store copy DATABASE_URL ./data    and back";

const REBUILD_HELP: &str = "The files below `.rkat` are made from the journals, so you may delete them.\n\n\
    Example:\n  \
        rm -r .rkat; meerkat project rebuild";

pub(super) const EXPORT_HELP: &str = "A bundle is a tar file with every event, every blob and their hashes. The file \
    appears when it is complete.\n\n\
    Examples:\n  \
        meerkat sessions export last -o dig.tar\n  \
        meerkat sessions export --all -o backup.tar\n  \
        meerkat sessions export last --redact -o to-show.tar    replaces what looks like a key";

pub(super) const IMPORT_HELP: &str = "The whole file is checked first. If it is damaged, nothing is imported.\n\n\
    Examples:\n  \
        meerkat sessions import backup.tar\n  \
        meerkat sessions import backup.tar --keep-scope   restores your own backup, with the label `user`\n  \
        meerkat sessions import dig.tar --new-ids    makes a second session of the same content";

pub(super) const RETAIN_HELP: &str = "A limit that you leave out comes from the configuration, where the default \
    deletes nothing.\n\n\
    Examples:\n  \
        meerkat sessions retain --max-age-days 90 --dry-run\n  \
        meerkat sessions retain --max-sessions 1000 --yes";

/// Operations on readers.
#[derive(Subcommand)]
pub(crate) enum ReaderCommand {
    /// Register a reader
    Create {
        /// The reader's name: a-z, digits, `.`, `_` and `-`
        reader: String,
    },
    /// List the readers, and how far each is behind
    List,
    /// Get records that a reader has not acknowledged
    Fetch {
        /// The reader
        reader: String,
        /// At most this many records
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Wait at most this long for the first record
        #[arg(long, value_name = "MS")]
        wait_ms: Option<u64>,
    },
    /// Record that a reader is done with a session's events up to a seq
    Acknowledge {
        /// The reader
        reader: String,
        #[command(flatten)]
        target: Target,
        /// The seq of the last event that the reader is done with
        seq: u64,
    },
    /// Wait until a reader is done with an event of a session
    Wait {
        /// The reader
        reader: String,
        #[command(flatten)]
        target: Target,
        /// The event's seq
        seq: u64,
        /// Wait at most this long
        #[arg(long, value_name = "MS")]
        wait_ms: Option<u64>,
    },
    /// Delete a reader and its position
    Delete {
        /// The reader
        reader: String,
    },
}

/// Operations on a journal.
#[derive(Subcommand)]
pub(crate) enum JournalCommand {
    /// Drop a session's records that nothing needs any more
    #[command(after_help = COMPACT_HELP)]
    Compact {
        #[command(flatten)]
        target: Target,
        /// Show what would be dropped, and drop nothing
        #[arg(long)]
        dry_run: bool,
        /// Also drop messages that have left the context, except the newest replies
        #[arg(long)]
        drop_history: bool,
    },
}

/// Operations on a whole store.
#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy every session into another data directory or database
    #[command(after_help = COPY_HELP)]
    Copy(CopyArgs),
}

/// `store copy`.
#[derive(Args)]
pub(crate) struct CopyArgs {
    /// The data directory or database that has the sessions: a folder, an address, or a variable that holds an address
    #[arg(value_name = "FROM")]
    pub(crate) from: String,
    /// The data directory or database that is to have them
    #[arg(value_name = "TO")]
    pub(crate) to: String,
}

/// Operations on the project's files.
#[derive(Subcommand)]
pub(crate) enum ProjectCommand {
    /// Write the files below `.rkat` again
    #[command(after_help = REBUILD_HELP)]
    Rebuild,
}

/// `project`: the operations, and what is about the data directory itself.
#[derive(Subcommand)]
pub(crate) enum ProjectArgs {
    #[command(flatten)]
    Files(ProjectCommand),
    /// Take over the sessions of a project that was copied here, or that was at this path before
    Adopt,
}

/// `sessions export`.
#[derive(Args, Clone)]
pub(crate) struct ExportArgs {
    /// The sessions: ids, the last six or more characters of ids, or `last` (the most recently changed)
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
    /// Leave damaged events out; the bundle says which are missing
    #[arg(long)]
    pub(crate) skip_damage: bool,
}
