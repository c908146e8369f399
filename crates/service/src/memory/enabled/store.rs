//! [`HnswMemoryStore`]: the memory as the service uses it. Everything that blocks is done on a thread that may.
//!
//! One change is made at a time, and one that was begun is finished, whether its caller waits or not.

use std::{
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    runtime::Handle,
    sync::{Mutex, Semaphore, mpsc},
    task::JoinError,
};
use tokio_util::sync::CancellationToken;

use super::{
    core::Core,
    embedding::embed_query,
    file::{Trouble, unavailable},
};
use crate::{
    SessionError,
    ids::{Seq, SessionId},
    memory::{Embedder, Intake, MemoryStore, ProgressSink},
    service::{ForgetMemory, Forgotten, Page, Reindexed, SearchHit, SearchMemory},
};

/// Steps towards the vectors of what is new that an add waits for where the embedder is quick; the rest is made beside
/// all else.
const STEPS_OF_ADD: usize = 32;
/// How long closing waits for vectors that take longer.
const VECTORS_WAIT_MAX: Duration = Duration::from_secs(2);
/// Who makes vectors beside all else: one does, and one more waits, which sees what came too late for the first.
const MAKERS: u32 = 2;

/// Memory whose postings and vectors stand in redb, with a graph over the vectors.
pub struct HnswMemoryStore {
    core: Arc<Core>,
    /// Held by whoever changes something.
    writer: Arc<Mutex<()>>,
    /// The places of those who make vectors that nobody waits for.
    makers: Arc<Semaphore>,
    /// Held by the one of them that is at work.
    making: Arc<Mutex<()>>,
    /// Whether the last attempt at that failed.
    is_failing: Arc<AtomicBool>,
    /// Ends what nobody needs to be finished.
    closing: CancellationToken,
}

impl HnswMemoryStore {
    /// The memory in `data_dir`, or in this process alone. Its files are opened when they are first needed.
    #[must_use]
    pub fn new(data_dir: Option<&Path>, embedder: Arc<dyn Embedder>, records_intake: bool) -> Self {
        let core = Core::new(data_dir.map(Path::to_owned), embedder, records_intake);
        Self {
            core: Arc::new(core),
            writer: Arc::default(),
            makers: Arc::new(Semaphore::new(MAKERS as usize)),
            making: Arc::default(),
            is_failing: Arc::default(),
            closing: CancellationToken::new(),
        }
    }

    fn worker(&self) -> Worker {
        let (core, writer) = (Arc::downgrade(&self.core), self.writer.clone());
        Worker { core, is_failing: self.is_failing.clone(), writer, closing: self.closing.clone() }
    }

    /// Makes what vectors are missing, without anybody waiting for it.
    fn catch_up(&self) {
        let Ok(place) = self.makers.clone().try_acquire_owned() else { return };
        let (worker, making) = (self.worker(), self.making.clone());
        tokio::spawn(async move {
            let making = making.lock_owned().await;
            while let Some(Step::Embedded(..) | Step::Built) = worker.step_or_warn().await {}
            // Whoever comes from now on finds a place, and makes what this one has not seen.
            drop(place);
            drop(making);
        });
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Core) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, SessionError> {
        let core = self.core.clone();
        let done = tokio::task::spawn_blocking(move || core.work(|| read(&core)));
        answer(done.await)
    }

    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Core) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, SessionError> {
        let (core, writer) = (self.core.clone(), self.writer.clone().lock_owned().await);
        let done = tokio::task::spawn_blocking(move || {
            let done = core.work_alone(|| change(&core));
            drop(writer);
            done
        });
        answer(done.await)
    }
}

impl Drop for HnswMemoryStore {
    fn drop(&mut self) {
        self.closing.cancel();
        // What is made beside all else holds the file no longer: the directory may be opened again at once.
        self.core.shut();
    }
}

fn answer<T>(done: Result<Result<T, Trouble>, JoinError>) -> Result<T, SessionError> {
    let done = done.unwrap_or_else(|error| Err(Trouble::Failed(error.to_string())));
    done.map_err(|trouble| unavailable(&trouble))
}

/// What makes the vectors and the graph, beside all else.
#[derive(Clone)]
struct Worker {
    core: Weak<Core>,
    is_failing: Arc<AtomicBool>,
    writer: Arc<Mutex<()>>,
    closing: CancellationToken,
}

/// What a step of it came to.
enum Step {
    /// So many texts have their vectors, of so many.
    Embedded(u64, u64),
    /// The graph was worked on.
    Built,
    /// Nothing is left to do.
    Done,
}

impl Worker {
    /// Makes the vectors of some texts, or works on the graph. Others may change the memory while the embedder works.
    async fn step(&self) -> Result<Step, SessionError> {
        if self.closing.is_cancelled() {
            return Ok(Step::Done);
        }
        let runtime = Handle::current();
        let core = self.core.upgrade().ok_or_else(|| unavailable(&Trouble::Failed("it is closed".to_owned())))?;
        let (batch, closing) = (core.clone(), self.closing.clone());
        let made = tokio::task::spawn_blocking(move || {
            let Some(next) = batch.work(|| batch.next_batch()).map_err(|trouble| unavailable(&trouble))? else {
                return Ok(None);
            };
            let vectors = batch.embed(&runtime, &next, &closing)?;
            Ok(Some((next, vectors)))
        });
        let made = match made.await.unwrap_or_else(|error| Err(unavailable(&Trouble::Failed(error.to_string())))) {
            Err(_) if self.closing.is_cancelled() => return Ok(Step::Done),
            made => made?,
        };
        let writer = self.writer.clone().lock_owned().await;
        let put = tokio::task::spawn_blocking(move || {
            let put = core.work_alone(|| match &made {
                Some((batch, vectors)) => core.put_batch(batch, vectors).map(|(done, of)| Step::Embedded(done, of)),
                None => core.step().map(|has_more| if has_more { Step::Built } else { Step::Done }),
            });
            drop(writer);
            put
        });
        answer(put.await)
    }

    /// The same where nobody is told that it failed; `None` where it did.
    async fn step_or_warn(&self) -> Option<Step> {
        let step = self.step().await;
        // Once is enough to know; what goes on failing is told of in a whisper.
        let was_failing = self.is_failing.swap(step.is_err(), Ordering::Relaxed);
        match &step {
            Err(error) if was_failing => tracing::debug!(%error, "the embedder does not answer yet"),
            Err(error) => tracing::warn!(%error, "what is new is found by its words alone until the embedder answers"),
            Ok(_) => {}
        }
        step.ok()
    }
}

#[async_trait]
impl MemoryStore for HnswMemoryStore {
    async fn taken_in(&self, session_id: SessionId) -> Result<Seq, SessionError> {
        self.read(move |core| core.read(|open| Ok(open.columns.session(session_id).map_or(0, |it| it.row.up_to)))).await
    }

    async fn sessions(&self) -> Result<Vec<SessionId>, SessionError> {
        let of_journals = |core: &Core| {
            core.read(|open| {
                let rows = open.columns.sessions().map(|(_, session)| &session.row);
                Ok(rows.filter(|row| !row.is_recorded).map(|row| row.id).collect())
            })
        };
        self.read(of_journals).await
    }

    async fn add(&self, intakes: Vec<Intake>) -> Result<(), SessionError> {
        self.change(move |core| core.add(intakes)).await?;
        let (worker, steps) = (self.worker(), if self.core.embedder.is_quick() { STEPS_OF_ADD } else { 0 });
        for _ in 0..steps {
            if matches!(worker.step_or_warn().await, None | Some(Step::Done)) {
                return Ok(());
            }
        }
        self.catch_up();
        Ok(())
    }

    async fn search(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError> {
        let asked = request.clone();
        let Some((terms, has_vectors)) = self.read(move |core| core.asked(&asked)).await? else {
            return Ok(Page::whole(Vec::new()));
        };
        let embedder = self.core.embedder.as_ref();
        let vector = if has_vectors { embed_query(embedder, &request.query).await } else { None };
        let found = self.read(move |core| core.search(&request, &terms, vector.as_deref()));
        let (items, is_behind) = found.await?;
        if is_behind {
            self.catch_up();
        }
        Ok(Page { items, next_cursor: None })
    }

    async fn forget(&self, request: ForgetMemory) -> Result<Forgotten, SessionError> {
        let forgotten = self.change(move |core| core.forget(&request)).await?;
        Ok(Forgotten { forgotten })
    }

    async fn gone(&self, session_id: SessionId) -> Result<(), SessionError> {
        self.change(move |core| core.gone(session_id)).await
    }

    async fn reindex(&self, progress: ProgressSink<'_>) -> Result<Reindexed, SessionError> {
        let (told, mut tells) = mpsc::unbounded_channel();
        let work = self.change(move |core| {
            let tell = |done: u64, of: u64| {
                // Who listens may have gone.
                let _ = told.send((done, of));
            };
            let indexed = core.index_anew(&tell)?;
            core.drop_vectors(&core.embedder.id())?;
            Ok(indexed)
        });
        tokio::pin!(work);
        let indexed = loop {
            tokio::select! {
                biased;
                Some((done, of)) = tells.recv() => progress(done, of),
                indexed = &mut work => break indexed?,
            }
        };
        let worker = self.worker();
        loop {
            match worker.step().await? {
                Step::Embedded(done, of) => progress(done, of),
                Step::Built => {}
                Step::Done => return Ok(Reindexed { indexed }),
            }
        }
    }

    async fn needs_rebuild(&self) -> Result<bool, SessionError> {
        self.read(|core| Ok(!core.records_intake && core.read(|open| Ok(!open.is_whole))?)).await
    }

    async fn rebuilt(&self) -> Result<(), SessionError> {
        self.change(Core::became_whole).await
    }

    async fn close(&self) {
        let all_made = || self.makers.acquire_many(MAKERS);
        if !self.core.embedder.is_quick() {
            // A process that does one turn and ends would never have vectors.
            drop(tokio::time::timeout(VECTORS_WAIT_MAX, all_made()).await);
        }
        self.closing.cancel();
        drop(all_made().await);
        let saved = self.change(|core| {
            core.flush(true)?;
            core.save_lane()
        });
        if let Err(error) = saved.await {
            tracing::debug!(%error, "the memory's next start takes longer");
        }
    }
}
