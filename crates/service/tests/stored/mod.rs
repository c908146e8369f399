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
mod index;
mod journals;
mod keys;
mod layer;
mod life;
mod lists;
mod overview;
mod projection;
mod readers;
mod waiting;
mod workspace;

use std::{path::Path, sync::Arc};

use meerkat_service::{
    AgentBuildConfig, SessionError, SessionId, SessionService,
    clock::{FrozenClock, Timestamp, World},
    doctor::{Diagnosis, Examination, examine},
    model::ModelResolver,
    options::{EngineOptions, Unattended},
    service::{CreateSession, ReadEvents, StartTurn, TurnResult},
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
        std::fs::create_dir(&tools).unwrap();
        options.tools.test_dir = Some(tools);
        options.approval.unattended = Unattended::Wait;
        // Long enough that no loaded machine is slower.
        options.limits.wait_ms = 60_000;
        Self { dir, options, now: None, models: None }
    }

    fn data_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    fn agent(&self) -> AgentBuildConfig {
        let mut config = AgentBuildConfig::new().options(self.options.clone()).store(self.data_dir());
        if let Some(models) = &self.models {
            config = config.models(models.clone());
        }
        match self.now {
            Some(now) => config.world(World { clock: Arc::new(FrozenClock::at(now)), ..World::system() }),
            None => config,
        }
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
    fn process<T, F: Future<Output = T>>(&self, is_clean: bool, work: impl FnOnce(Process) -> F) -> T {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (done, service) = runtime.block_on(async {
            let service = self.agent().build().unwrap().service().clone();
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

    /// The whole journal, as its lines.
    async fn lines(&self, session_id: SessionId) -> Vec<String> {
        let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(session_id, 0) };
        let page = self.service.events(request).await.unwrap();
        page.items.iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
    }

    async fn events(&self, session_id: SessionId) -> Vec<Value> {
        self.lines(session_id).await.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until an event of this type is in the journal.
    async fn until(&self, session_id: SessionId, type_name: &str) {
        let mut follower = self.service.follow(&session_id, 0).await.unwrap();
        let wanted = format!(r#""type":"{type_name}""#);
        while let Some(line) = follower.next().await.unwrap() {
            if std::str::from_utf8(&line.line).unwrap().contains(&wanted) {
                return;
            }
        }
        panic!("the session ended without {type_name}");
    }
}

/// The files beneath a folder, by their paths from it.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
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
