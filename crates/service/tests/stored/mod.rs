//! Sessions that outlive their process, through the SDK's front door and a real data directory.
//!
//! A process that ends is a runtime that ends: either it shuts its service down, or everything in it is dropped where
//! it stands. What a real `kill -9` leaves is tested beside the binary.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod alone;
mod bundles;
mod compacting;
mod crashes;
mod damaged;
mod doctor;
mod ended;
mod flips;
mod given;
mod index;
mod journals;
mod keys;
mod layer;
mod life;
mod lists;
mod overview;
mod projection;
mod put_blob;
mod readers;
mod saves;
mod waiting;
mod workspace;

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    AgentBuildConfig, SessionError, SessionId, SessionService,
    clock::{FrozenClock, Timestamp, World},
    doctor::{Diagnosis, Examination, examine},
    model::ModelResolver,
    options::{EngineOptions, Unattended},
    service::{
        AcknowledgeReader, CompactJournal, CreateSession, DeleteSession, ExportSession, ForkSession, ImportBundle,
        InterruptTurn, JournalCompactionReport, NamedReader, Page, ReadEvents, ReadHistory, Remind, SessionQuery,
        SessionSummary, SessionView, StartTurn, TurnHandle, TurnResult,
    },
    store::{Stores, open_stores},
};
use meerkat_testkit::PATIENCE;
use serde_json::Value;
use tempfile::TempDir;

/// A data directory, and a folder that the test tools write in.
struct Place {
    dir: TempDir,
    options: EngineOptions,
    /// Time of the clock; the system's if `None`.
    now: Option<Timestamp>,
    /// Models; the engine's own if `None`.
    models: Option<Arc<dyn ModelResolver>>,
}

impl Place {
    fn new() -> Self {
        let dir = meerkat_testkit::folder();
        let mut options = EngineOptions::default();
        let tools = dir.path().join("tools");
        fs::create_dir(&tools).unwrap();
        options.tools.test_dir = Some(tools);
        options.approval.unattended = Unattended::Wait;
        // Long enough that no loaded machine is slower.
        options.limits.wait_ms = 60_000;
        Self { dir, options, now: None, models: None }
    }

    /// A place where no record is too young to be dropped from its journal.
    fn pruned() -> Self {
        let mut place = Self::new();
        place.options.journal.min_record_age_ms = 0;
        place
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn index(&self) -> PathBuf {
        self.data_dir().join("index.redb")
    }

    /// The index does not know: what it says comes from the journals alone.
    fn lose_index(&self) {
        drop(fs::remove_file(self.index()));
    }

    fn session_dir(&self, id: SessionId) -> PathBuf {
        let id = id.to_string();
        self.data_dir().join("journal").join(&id[id.len() - 2..]).join(id)
    }

    /// The files of a session's journal, in order.
    fn segments(&self, id: SessionId) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.session_dir(id)).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|it| it == "mlog")).collect();
        paths.sort();
        paths
    }

    /// Changes a bit where this text is first in the first file of a session's journal; returns the file and the place.
    fn damage(&self, id: SessionId, text: &str) -> (PathBuf, usize) {
        let path = self.segments(id).remove(0);
        let bytes = fs::read(&path).unwrap();
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        change(&path, at, 1);
        (path, at)
    }

    fn config(&self) -> AgentBuildConfig {
        let mut config = AgentBuildConfig::new().options(self.options.clone());
        if let Some(models) = &self.models {
            config = config.models(models.clone());
        }
        match self.now {
            Some(now) => config.world(World { clock: Arc::new(FrozenClock::at(now)), ..World::system() }),
            None => config,
        }
    }

    fn agent(&self) -> AgentBuildConfig {
        self.config().store(self.data_dir())
    }

    /// Examines the data directory, and the projection if there is one.
    fn examine(&self, is_repair: bool) -> Diagnosis {
        let projection = self.options.projection.dir.clone();
        let what = Examination { data_dir: self.data_dir(), projection, is_repair };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(examine(what, &|_, _| true)).unwrap()
    }

    /// A process: it opens the store and does `work`. With `is_clean` it shuts down afterwards, else it just ends: the
    /// service outlives the runtime, so that nothing that still runs can see it leave.
    fn process<T>(&self, is_clean: bool, work: impl AsyncFnOnce(Process) -> T) -> T {
        Self::process_of(|| self.agent(), is_clean, work)
    }

    /// As [`Self::process`], of another configuration.
    fn process_of<T>(
        config: impl FnOnce() -> AgentBuildConfig,
        is_clean: bool,
        work: impl AsyncFnOnce(Process) -> T,
    ) -> T {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (done, service) = runtime.block_on(async {
            let service = config().build().unwrap().service().clone();
            let done = work(Process { service: service.clone() }).await;
            if is_clean {
                service.shut_down(1_000).await;
            }
            (done, service)
        });
        runtime.shutdown_timeout(PATIENCE);
        drop(service);
        done
    }

    /// As [`Self::process`], over the stores that `change` makes of the directory's own.
    fn process_over<T, L>(
        &self,
        is_clean: bool,
        change: impl FnOnce(&mut Stores) -> L,
        work: impl AsyncFnOnce(Process, L) -> T,
    ) -> T {
        let mut stores = open_stores(&self.data_dir()).unwrap();
        let layer = change(&mut stores);
        Self::process_of(|| self.config().stores(stores), is_clean, async |process| work(process, layer).await)
    }
}

/// What runs in one process.
#[derive(Clone)]
struct Process {
    service: Arc<dyn SessionService>,
}

impl Process {
    async fn create(&self) -> SessionId {
        self.service.create_session(CreateSession::default()).await.unwrap().session_id
    }

    async fn turn(&self, session_id: SessionId, prompt: &str) -> Result<TurnResult, SessionError> {
        self.service.start_turn(StartTurn::new(session_id, prompt)).await
    }

    async fn begin(&self, session_id: SessionId, prompt: &str) -> TurnHandle {
        self.service.begin_turn(StartTurn::new(session_id, prompt)).await.unwrap()
    }

    async fn interrupt(&self, session_id: SessionId, turn: Option<u32>) {
        self.service.interrupt(InterruptTurn { session_id, turn }).await.unwrap();
    }

    async fn fork(&self, session_id: SessionId, turn: Option<u32>) -> Result<SessionId, SessionError> {
        self.service.fork(ForkSession { session_id, turn }).await.map(|fork| fork.session_id)
    }

    async fn delete(&self, session_id: SessionId) {
        self.service.delete(DeleteSession { session_id, force: false }).await.unwrap();
    }

    async fn view(&self, session_id: SessionId) -> SessionView {
        self.service.read(&session_id).await.unwrap()
    }

    async fn last_seq(&self, session_id: SessionId) -> u64 {
        self.view(session_id).await.last_seq
    }

    async fn listed(&self) -> Vec<SessionSummary> {
        self.service.list(SessionQuery::default()).await.unwrap().items
    }

    async fn remind(&self, session_id: SessionId, kind: &str, text: &str) {
        let (kind, text) = (kind.parse().unwrap(), text.to_owned());
        self.service.remind(Remind { session_id, kind, text }).await.unwrap();
    }

    /// The whole journal, as its lines.
    async fn lines(&self, session_id: SessionId) -> Vec<String> {
        let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(session_id, 0) };
        let page = self.service.events(request).await.unwrap();
        page.items.iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
    }

    async fn events(&self, session_id: SessionId) -> Vec<Value> {
        self.lines(session_id).await.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Its messages.
    async fn said(&self, session_id: SessionId) -> Vec<Value> {
        let request = ReadHistory { limit: Some(1000), ..ReadHistory::new(session_id) };
        let page = self.service.history(request).await.unwrap();
        page.items.iter().map(|item| serde_json::to_value(item).unwrap()).collect()
    }

    /// Waits until an event of this type is in the journal; returns it.
    async fn until(&self, session_id: SessionId, type_name: &str) -> Value {
        let mut follower = self.service.follow(&session_id, 0).await.unwrap();
        while let Some(line) = follower.next().await.unwrap() {
            let event: Value = serde_json::from_slice(&line.line).unwrap();
            if event["type"] == type_name {
                return event;
            }
        }
        panic!("the session ended without {type_name}");
    }

    async fn register(&self, reader: &str) {
        self.service.create_reader(NamedReader { reader: reader.to_owned() }).await.unwrap();
    }

    async fn is_done(&self, reader: &str, session_id: SessionId, seq: u64) {
        let request = AcknowledgeReader { reader: reader.to_owned(), session_id, seq };
        assert_eq!(self.service.acknowledge_reader(request).await.unwrap().seq, seq);
    }

    /// Lets the only reader be done with all of a session.
    async fn is_read(&self, session_id: SessionId) {
        self.register("one").await;
        self.is_done("one", session_id, self.last_seq(session_id).await).await;
    }

    async fn compact(&self, session_id: SessionId, dry_run: bool, drop_history: bool) -> JournalCompactionReport {
        self.service
            .compact_journal(CompactJournal { dry_run, drop_history, ..CompactJournal::new(session_id) })
            .await
            .unwrap()
    }

    /// A session with turns, calls of tools, and reminders of which the last one counts.
    async fn lived(&self) -> SessionId {
        let session_id = self.create().await;
        for n in 0..3 {
            self.remind(session_id, "git_status", &format!("state {n}")).await;
            self.turn(session_id, r#"@call test_echo {"text":"hi"} @echo last_result"#).await.unwrap();
        }
        session_id
    }

    /// The whole bundle that a request asks for, and the ranges that it leaves out.
    async fn bundle(&self, request: ExportSession) -> Result<(Vec<u8>, Vec<(u64, u64)>), SessionError> {
        let (mut bundle, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.service.export_session(ExportSession { cursor, ..request.clone() }).await?;
            bundle.extend(BASE64_STANDARD.decode(page.data).unwrap());
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok((bundle, page.lost));
            }
        }
    }

    async fn export(&self, session_id: SessionId, redact: bool) -> Vec<u8> {
        self.bundle(ExportSession { redact, ..ExportSession::new(session_id) }).await.unwrap().0
    }
}

/// A piece of a bundle that is sent.
fn piece(upload: Option<String>, offset: u64, bytes: &[u8]) -> ImportBundle {
    let data = BASE64_STANDARD.encode(bytes);
    ImportBundle { upload, offset, data, is_last: false, new_ids: false, keep_scope: false }
}

/// A whole bundle that is sent at once.
fn whole(bundle: &[u8], new_ids: bool) -> ImportBundle {
    ImportBundle { is_last: true, new_ids, ..piece(None, 0, bundle) }
}

/// Reads pages to the last one, or to the error at which they end.
async fn pages<T>(
    ask: impl AsyncFn(Option<String>) -> Result<Page<T>, SessionError>,
) -> (Vec<Vec<T>>, Option<SessionError>) {
    let (mut pages, mut cursor) = (Vec::new(), None);
    loop {
        match ask(cursor).await {
            Err(error) => return (pages, Some(error)),
            Ok(page) => {
                pages.push(page.items);
                cursor = page.next_cursor;
            }
        }
        if cursor.is_none() {
            return (pages, None);
        }
    }
}

/// The number in a field of an event.
fn number(event: &Value, field: &str) -> u64 {
    event[field].as_u64().unwrap()
}

/// The seqs of the events of a type.
fn seqs(events: &[Value], type_name: &str) -> Vec<u64> {
    events.iter().filter(|event| event["type"] == type_name).map(|event| number(event, "seq")).collect()
}

/// Changes these bits of a byte of a file, also for whoever shares the file.
fn change(path: &Path, offset: usize, bits: u8) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let (mut byte, offset) = ([0], offset as u64);
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ bits], offset).unwrap();
}

/// The files beneath a folder, by their paths from it.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(root).unwrap().display().to_string()),
            }
        }
    }
    found.sort();
    found
}

/// The bytes of each file beneath a folder.
fn contents(root: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    files(root).into_iter().map(|name| (name.clone(), fs::read(root.join(name)).unwrap())).collect()
}
