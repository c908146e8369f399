//! `store …`, and what `sessions export` takes.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const COPY_HELP: &str = "Copies records, blobs, idempotency keys, readers and what memory was told to forget as they are, and \
    reads all of it back. Nothing of FROM is changed, and no session of TO. Sessions that are in both with the same \
    records are left alone, so a copy that was cut off can be run again. No server may run on FROM meanwhile, nor on a \
    data directory. Others on this machine can see an address that you type; a variable keeps it from them.\n\n\
    Examples:\n  \
        meerkat store copy ~/data DATABASE_URL    DATABASE_URL=postgres://user:password@host/database\n  \
        meerkat store copy DATABASE_URL ./data    and back";

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

/// Operations on a whole store.
#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Copy every session into another data directory or database
    #[command(after_help = COPY_HELP)]
    Copy(CopyArgs),
    /// List the nodes that share the database, with the sessions that each holds
    Nodes,
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
