//! A fork and an export that begin at any moment of a compaction have the whole session, or what is left with what says so.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use crate::{
    AgentBuildConfig, ErrorCode, SessionService,
    ids::SessionId,
    options::EngineOptions,
    service::{
        AcknowledgeReader, CompactJournal, CreateSession, ExportSession, ForkSession, ImportBundle, NamedReader,
        SessionView, StartTurn,
    },
    store::{
        MemoryBlobStore, MemoryIndex, MemoryReaders, MemorySessionStore, SessionIndex, Stores,
        directory::{
            RedbEventStore,
            journal::{
                Executor, Limits, lock,
                simulated::{Random, SimulatedDisk},
            },
            lengths::Lengths,
            pruner::FilePruner,
        },
    },
};

/// Whatever the stores do on the disk, one job after the other, mostly the newest first: so many of those who came
/// later overtake one that waits.
struct Jobs {
    waiting: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    random: Mutex<Random>,
}

impl Jobs {
    /// Runs a job once nothing else can go on.
    async fn step(&self) {
        tokio::task::yield_now().await;
        let is_newest = lock(&self.random).chance(90);
        let mut waiting = lock(&self.waiting);
        let job = if is_newest { waiting.pop_back() } else { waiting.pop_front() };
        drop(waiting);
        job.into_iter().for_each(|job| job());
    }

    /// Works until both are done; the second begins some steps after the first.
    async fn race<A, B>(&self, first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
        let steps = lock(&self.random).below(40);
        let late = async {
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
            second.await
        };
        let work = async {
            loop {
                self.step().await;
            }
        };
        tokio::select! {
            biased;
            done = async { tokio::join!(first, late) } => done,
            () = work => unreachable!("it has no end"),
        }
    }

    async fn until<T>(&self, work: impl Future<Output = T>) -> T {
        self.race(work, async {}).await.0
    }
}

impl Executor for Jobs {
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        lock(&self.waiting).push_back(job);
    }

    fn drain(&self) {}
}

fn service(jobs: &Arc<Jobs>) -> Arc<dyn SessionService> {
    let mut options = EngineOptions::default();
    (options.journal.min_record_age_ms, options.journal.keep_last_replies) = (0, 0);
    let disk = Arc::new(SimulatedDisk::new());
    let witness = Arc::new(Lengths(std::sync::Weak::new()));
    // Frames in memory would be read at once.
    let limits = Limits { cache_bytes: 0, ..Limits::default() };
    let events = Arc::new(RedbEventStore::open_with(disk, None, witness, jobs.clone(), limits).unwrap());
    let index: Arc<dyn SessionIndex> = Arc::new(MemoryIndex::default());
    let stores = Stores {
        blobs: Arc::new(MemoryBlobStore::new(Arc::default())),
        readers: Arc::new(MemoryReaders::default()),
        index: index.clone(),
        snapshots: Arc::new(MemorySessionStore::new(events.clone())),
        pruner: Some(Arc::new(FilePruner { events: events.clone(), index })),
        inbox: None,
        events,
    };
    AgentBuildConfig::new().options(options).stores(stores).build().unwrap().service().clone()
}

/// A session whose first turns are history, and that nobody waits for to go.
async fn lived(service: &dyn SessionService) -> SessionView {
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    for prompt in ["@fail context", "@fail context", "@say Short."] {
        service.start_turn(StartTurn::new(session_id, prompt)).await.unwrap();
    }
    let view = service.read(&session_id).await.unwrap();
    let done = AcknowledgeReader { reader: "one".to_owned(), session_id, seq: view.last_seq };
    service.acknowledge_reader(done).await.unwrap();
    view
}

/// The bundle, from whichever beginning could be followed to the end.
async fn exported(service: &dyn SessionService, session_id: SessionId) -> Vec<u8> {
    'anew: loop {
        let (mut bundle, mut cursor) = (Vec::new(), None);
        loop {
            let request = ExportSession { cursor, ..ExportSession::new(session_id) };
            let page = match service.export_session(request).await {
                Err(error) if error.code() == ErrorCode::InvalidRequest => continue 'anew,
                page => page.unwrap(),
            };
            bundle.extend(BASE64_STANDARD.decode(page.data).unwrap());
            cursor = page.next_cursor;
            if cursor.is_none() {
                return bundle;
            }
        }
    }
}

async fn copied(service: &dyn SessionService, session_id: SessionId, is_fork: bool) -> SessionId {
    if is_fork {
        return service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
    }
    let data = BASE64_STANDARD.encode(exported(service, session_id).await);
    let request = ImportBundle { upload: None, offset: 0, data, is_last: true, new_ids: true, keep_scope: false };
    service.import_bundle(request).await.unwrap().sessions[0].session_id
}

#[tokio::test(start_paused = true)]
async fn what_is_made_of_a_session_while_history_goes_is_whole() {
    let jobs = Arc::new(Jobs { waiting: Mutex::default(), random: Mutex::new(Random(5)) });
    let service = service(&jobs);
    jobs.until(service.create_reader(NamedReader { reader: "one".to_owned() })).await.unwrap();
    for round in 0..200 {
        let view = jobs.until(lived(service.as_ref())).await;
        let session_id = view.session_id;
        let compaction =
            service.compact_journal(CompactJournal { drop_history: true, ..CompactJournal::new(session_id) });
        let copy = copied(service.as_ref(), session_id, round % 2 == 0);
        let (report, copy) = match round % 4 {
            0 | 1 => jobs.race(compaction, copy).await,
            _ => {
                let (copy, report) = jobs.race(copy, compaction).await;
                (report, copy)
            }
        };
        assert!(report.unwrap().dropped > 0);
        let copy = jobs.until(service.read(&copy)).await.unwrap();
        let counts = |it: &SessionView| (it.turn_count, it.message_count, it.usage);
        assert_eq!(counts(&copy), counts(&view), "in round {round}");
        let next = StartTurn::new(copy.session_id, "@say On.");
        assert_eq!(jobs.until(service.start_turn(next)).await.unwrap().turn, 3, "in round {round}");
    }
}
