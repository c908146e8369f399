//! `store copy` and `nodes`: stores as such, beside the service that may run on them.

use std::{path::PathBuf, sync::Mutex};

use meerkat_service::{
    Capabilities, Capability, SessionError,
    clock::World,
    copy::{Copied, copy},
    memory::{MemoryOptions, SharedMemory, open_memory},
    service::{SessionQuery, SessionState},
    store::{Stores, glance, open_stores, own_directory},
    wire::encode,
};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::local::print;
use crate::{
    args::CopyArgs,
    config::Config,
    database::Database,
    error::CliError,
    output::{Environment, Output},
    render::{receipt::count, table},
    telemetry::Telemetry,
};

/// Kinds of addresses, whatever their database is.
const SCHEME: &str = "://";
/// File that every data directory has.
const FORMAT_FILE: &str = "format";
/// What the memory of a data directory has, one of them at least.
const MEMORY_FILES: [&str; 2] = ["memory.redb", "memory"];
/// Beginning of the names of nodes that only copy.
const COPIER: &str = "copy-";

/// One end of a copy.
enum End {
    Directory(PathBuf),
    Database(Database),
}

impl End {
    /// Reads an argument: an address, the name of a variable that holds one, or a folder.
    fn parse(what: &str, text: &str, config: &Config, env: &Environment) -> Result<Self, CliError> {
        if text.contains(SCHEME) {
            return Ok(Self::Database(config.database_at(text.to_owned())));
        }
        let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        if text.is_empty() || !text.bytes().all(is_name) {
            return Ok(Self::Directory(env.dir.join(text)));
        }
        let address = env.variable(text).filter(|value| value.contains(SCHEME));
        let why = format!("the variable {text} holds no address; write ./{text} if you mean a folder");
        let address = address.ok_or_else(|| SessionError::invalid(what, why))?;
        Ok(Self::Database(config.database_at(address)))
    }

    async fn open(&self, what: &str) -> Result<Stores, CliError> {
        match self {
            Self::Directory(folder) => Ok(open_stores(folder)?),
            Self::Database(database) => {
                let world = World::system();
                let node = format!("{COPIER}{}", world.ids.next_session_id(world.clock.now()));
                let opened = database.stores(node).await;
                opened.map_err(|error| of_end(&error, what))
            }
        }
    }
}

impl End {
    /// Refuses a database that a server works on: what it does meanwhile would be missing.
    async fn check_at_rest(&self, what: &str) -> Result<(), CliError> {
        let Self::Database(database) = self else { return Ok(()) };
        database.check_at_rest(COPIER).await.map_err(|error| of_end(&error, what))
    }

    /// Returns true if it is a data directory with files of memory.
    fn has_memory(&self) -> bool {
        matches!(self, Self::Directory(folder) if MEMORY_FILES.iter().any(|file| folder.join(file).exists()))
    }

    /// Returns the memory of a data directory, whose files are opened when they are needed.
    fn memory(&self) -> Result<Option<SharedMemory>, SessionError> {
        let Self::Directory(folder) = self else { return Ok(None) };
        open_memory(Some(folder), MemoryOptions::default()).map(Some)
    }
}

/// Names the end in a failure of its database: the configuration is not at fault.
fn of_end(error: &SessionError, what: &str) -> CliError {
    let mut body = error.body();
    body.message = body.message.replace("store.url", what);
    body.into()
}

/// `store copy`.
pub(crate) fn store_copy(out: &Output, env: &Environment, config: &Config, args: &CopyArgs) -> Result<u8, CliError> {
    Capabilities::compiled().require(Capability::SessionStore)?;
    let telemetry = Telemetry::begin(out, config.values.log.level, env, false)?;
    let (from, to) = (End::parse("FROM", &args.from, config, env)?, End::parse("TO", &args.to, config, env)?);
    if let End::Directory(folder) = &from {
        if !folder.join(FORMAT_FILE).is_file() {
            let why = format!("there is no data directory at {}", folder.display());
            return Err(SessionError::invalid("FROM", why).into());
        }
        let is_same = matches!(&to, End::Directory(other) if other.canonicalize().ok() == folder.canonicalize().ok());
        if is_same {
            return Err(SessionError::invalid("TO", "it is the folder that FROM names").into());
        }
    }
    let bar = Mutex::new(out.progress());
    let progress = |done, of| {
        if let Ok(mut bar) = bar.lock() {
            bar.show(done, of, &format!("{done} of {}", count(of, "session")));
        }
    };
    let copied = runtime()?.block_on(async {
        from.check_at_rest("FROM").await?;
        let ours = if from.has_memory() { from.memory()? } else { None };
        // Without memory in this build, a copy is refused if there is something to forget.
        let theirs = to.memory().unwrap_or_default();
        let stores = (from.open("FROM").await?, to.open("TO").await?);
        let copied = copy(&stores.0, &stores.1, [ours.as_ref(), theirs.as_ref()], &progress).await;
        for memory in [ours, theirs.filter(|_| to.has_memory())].into_iter().flatten() {
            memory.close().await;
        }
        Ok::<_, CliError>(copied?)
    });
    drop(bar);
    telemetry.end();
    let copied = copied?;
    match out.is_json {
        true => out.document(&encode(&copied)?)?,
        false => out.readable(&described(&copied))?,
    }
    Ok(0)
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn described(copied: &Copied) -> String {
    let Copied { sessions, copied, records, blobs, damaged_blobs } = copied;
    let mut text = match copied {
        0 => {
            let are = if *sessions == 1 { "is" } else { "are" };
            let sessions = count(*sessions, "session");
            format!("Nothing to copy: {sessions} {are} there already, with the same records.\n")
        }
        _ => {
            let (sessions, records, blobs) =
                (count(*sessions, "session"), count(*records, "record"), count(*blobs, "blob"));
            format!("Copied {copied} of {sessions}, with {records} and {blobs}; everything reads back equal.\n")
        }
    };
    if *damaged_blobs > 0 {
        let blobs = count(*damaged_blobs, "damaged blob");
        text += &format!("Left out {blobs}; `meerkat doctor` says more.\n");
    }
    text
}

/// `nodes`.
pub(crate) fn nodes(out: &Output, env: &Environment, config: &Config) -> Result<u8, CliError> {
    Capabilities::compiled().require(Capability::SessionStore)?;
    let items = match config.database(env)? {
        Some(database) => runtime()?.block_on(database.nodes())?,
        None => {
            out.note("No database is configured (store.url), so this is about the data directory here.");
            owner(config, env)?
        }
    };
    if out.is_json {
        return print(out, &json!({ "items": items, "next_cursor": null }));
    }
    if items.is_empty() {
        out.note("No node works here now.");
    }
    let words = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let rows = items.iter().map(|item| {
        let lease = item["lease_ms"].as_i64().map_or("-".to_owned(), |ms| match ms / 1000 {
            seconds if ms > 0 => format!("{seconds} s left"),
            seconds => format!("ended {} s ago", -seconds),
        });
        let working: Vec<String> = item["working"].as_array().into_iter().flatten().map(words).collect();
        let sessions = item["sessions"].as_u64().map_or("-".to_owned(), |sessions| sessions.to_string());
        let working = if working.is_empty() { "-".to_owned() } else { working.join(" ") };
        [words(&item["node"]), lease, sessions, working]
    });
    out.readable(&table(["NODE", "LEASE", "SESSIONS", "WORKING ON"], rows, out.width))?;
    Ok(0)
}

/// Returns the process that owns the data directory, which is its only node.
fn owner(config: &Config, env: &Environment) -> Result<Vec<Value>, CliError> {
    let data_dir = config.data_dir(env)?;
    if !data_dir.join(FORMAT_FILE).is_file() {
        return Ok(Vec::new());
    }
    let pid = match own_directory(&data_dir) {
        Ok(_) => return Ok(Vec::new()),
        Err(SessionError::StoreLocked { pid }) => pid,
        Err(error) => return Err(error.into()),
    };
    // An index that is not there yet lists nothing.
    let sessions = glance(&data_dir, &SessionQuery::default()).map_or_else(|_| Vec::new(), |page| page.items);
    let working =
        sessions.iter().filter(|session| session.state != SessionState::Idle).map(|session| session.session_id);
    let working: Vec<_> = working.collect();
    Ok(vec![json!({
        "node": pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")),
        "is_alive": true,
        "lease_ms": null,
        "sessions": null,
        "working": working,
    })])
}
