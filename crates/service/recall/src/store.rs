//! [`HnswMemoryStore`]: memory for the service. Blocking work runs on blocking threads.
//!
//! Changes run one at a time, and each completes even if its caller stops waiting.

use std::{
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    runtime::Handle,
    sync::{Mutex, Semaphore, watch},
    task::JoinError,
};
use tokio_util::sync::CancellationToken;

use super::{
    core::Core,
    file::{Trouble, unavailable},
    rebuild::Rebuild,
};
use meerkat_words::{
    SessionError,
    answers::{Page, Reindexed, SearchHit},
    ids::{Seq, SessionId},
    memory::{Intake, MemoryOptions, MemoryStore, ProgressSink},
    requests::{ForgetMemory, SearchMemory},
};

/// Longest wait for vectors at the end; a later process makes the rest.
const END_MAX: Duration = Duration::from_secs(1);

/// Searches that run at once; others wait. Each needs some bytes for every text.
const SEARCHES: usize = 3;

/// Memory with postings and vectors in redb, and a graph over many vectors.
pub struct HnswMemoryStore {
    pub(super) core: Arc<Core>,
    pub(super) searches: Semaphore,
    writer: Arc<Mutex<()>>,
    /// Erasures that were begun in the background.
    begun: AtomicU64,
    /// State of the worker that makes vectors in the background.
    making: Arc<watch::Sender<Making>>,
    closing: CancellationToken,
}

/// State of the worker: running or not, and if more was requested since it began.
#[derive(Default)]
struct Making {
    is_wanted: bool,
    is_running: bool,
}

/// Exclusive right to make vectors, until dropped.
struct Alone<'a>(&'a watch::Sender<Making>);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|making| making.is_running = false);
    }
}

impl HnswMemoryStore {
    /// Makes the memory in `data_dir`, or in this process alone. Its files are opened when they are first needed.
    #[must_use]
    pub fn new(data_dir: Option<&Path>, options: MemoryOptions) -> Self {
        let core = Core::new(data_dir.map(Path::to_owned), options);
        let (writer, making, closing) = (Arc::default(), Arc::default(), CancellationToken::new());
        let (core, searches) = (Arc::new(core), Semaphore::new(SEARCHES));
        Self { core, searches, writer, begun: AtomicU64::new(0), making, closing }
    }

    fn worker(&self) -> Worker {
        let (core, writer) = (Arc::downgrade(&self.core), self.writer.clone());
        Worker { core, writer, making: self.making.clone(), closing: self.closing.clone() }
    }

    /// Starts the worker, unless it runs.
    fn catch_up(&self) {
        let mut begins = false;
        self.making.send_modify(|making| {
            making.is_wanted = true;
            begins = !std::mem::replace(&mut making.is_running, true);
        });
        if begins {
            tokio::spawn(self.worker().work());
        }
    }

    /// Waits until the worker ends, and keeps it from starting.
    async fn alone(&self) -> Alone<'_> {
        loop {
            self.made().await;
            let mut is_taken = false;
            self.making.send_modify(|making| is_taken = !std::mem::replace(&mut making.is_running, true));
            if is_taken {
                return Alone(&self.making);
            }
        }
    }

    /// Waits until the worker ends.
    pub(super) async fn made(&self) {
        // An error means that no worker is left.
        let _ = self.making.subscribe().wait_for(|making| !making.is_running).await;
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Core) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, SessionError> {
        let core = self.core.clone();
        let done = tokio::task::spawn_blocking(move || core.work(|| read(&core))).await;
        self.erase();
        answer(done)
    }

    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Core) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, SessionError> {
        let done = changed(self.core.clone(), &self.writer, change).await;
        self.erase();
        done
    }

    /// Erases in the background what was asked for since it last did, in steps between which others change memory. If
    /// that fails, the next forgetting or the next start goes on.
    fn erase(&self) {
        let marks = self.core.marks.load(Ordering::Acquire);
        if self.begun.fetch_max(marks, Ordering::AcqRel) >= marks {
            return;
        }
        let (core, writer, closing) = (Arc::downgrade(&self.core), self.writer.clone(), self.closing.clone());
        tokio::spawn(async move {
            while !closing.is_cancelled()
                && let Some(core) = core.upgrade()
            {
                match changed(core, &writer, Core::erase_some).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        tracing::warn!(%error, "what was forgotten is not found, but its bytes are still in memory's files");
                        break;
                    }
                }
            }
        });
    }
}

/// Does work that changes the memory, without other changes meanwhile.
async fn changed<T: Send + 'static>(
    core: Arc<Core>,
    writer: &Arc<Mutex<()>>,
    change: impl FnOnce(&Core) -> Result<T, Trouble> + Send + 'static,
) -> Result<T, SessionError> {
    let writer = writer.clone().lock_owned().await;
    let done = tokio::task::spawn_blocking(move || {
        let done = core.work_alone(|| change(&core));
        drop(writer);
        done
    });
    answer(done.await)
}

impl Drop for HnswMemoryStore {
    fn drop(&mut self) {
        self.closing.cancel();
        // The worker no longer holds the file, so the directory may be opened again at once.
        self.core.shut();
    }
}

fn answer<T>(done: Result<Result<T, Trouble>, JoinError>) -> Result<T, SessionError> {
    let done = done.unwrap_or_else(|error| Err(Trouble::Failed(error.to_string())));
    done.map_err(|trouble| unavailable(&trouble))
}

/// Makes the vectors and the graph in the background.
#[derive(Clone)]
struct Worker {
    core: Weak<Core>,
    writer: Arc<Mutex<()>>,
    making: Arc<watch::Sender<Making>>,
    closing: CancellationToken,
}

enum Step {
    /// Vectors were made: texts that have theirs, and all texts.
    Embedded(u64, u64),
    /// The graph was extended.
    Built,
    /// Nothing is left to do.
    Done,
}

impl Worker {
    /// Works until nothing more is requested.
    async fn work(self) {
        // Resets the state even if the runtime ends first.
        let making = self.making.clone();
        let running = Alone(&making);
        while self.is_wanted() {
            while let Ok(Step::Embedded(..) | Step::Built) = self.step().await {}
        }
        // `is_wanted` has reset the state, and another worker may run by now.
        std::mem::forget(running);
    }

    fn is_wanted(&self) -> bool {
        let mut is_wanted = false;
        self.making.send_modify(|making| {
            is_wanted = std::mem::take(&mut making.is_wanted) && !self.closing.is_cancelled();
            making.is_running = is_wanted;
        });
        is_wanted
    }

    /// Makes the vectors of one batch, or extends the graph. Memory may change while the embedder works.
    async fn step(&self) -> Result<Step, SessionError> {
        if self.closing.is_cancelled() {
            return Ok(Step::Done);
        }
        let runtime = Handle::current();
        let core = self.core.upgrade().ok_or_else(|| unavailable(&Trouble::Failed("it is closed".to_owned())))?;
        let (batch, closing) = (core.clone(), self.closing.clone());
        let made = tokio::task::spawn_blocking(move || {
            let Some(next) = batch.work(|| batch.next_batch()).map_err(|trouble| unavailable(&trouble))? else {
                return Ok::<_, SessionError>(None);
            };
            let vectors = batch.embed(&runtime, &next, &closing).inspect_err(|error| {
                if !closing.is_cancelled() {
                    batch.embedder_failed(error);
                }
            })?;
            Ok(Some((next, vectors)))
        });
        let made = match made.await {
            Err(_) | Ok(Err(_)) if self.closing.is_cancelled() => return Ok(Step::Done),
            // The embedder panicked.
            Err(error) => {
                let error = unavailable(&Trouble::Failed(error.to_string()));
                core.embedder_failed(&error);
                return Err(error);
            }
            Ok(made) => made?,
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
        let (runtime, closing) = (Handle::current(), self.closing.clone());
        self.change(move |core| core.add_and_embed(intakes, &runtime, &closing)).await?;
        self.catch_up();
        Ok(())
    }

    async fn search(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError> {
        let asked = request.clone();
        let Some((terms, question)) = self.read(move |core| core.asked(&asked)).await? else {
            return Ok(Page::whole(Vec::new()));
        };
        let vector = match question {
            Some(question) => self.core.embed_question(question).await,
            None => None,
        };
        let permit = self.searches.acquire().await;
        let found = self.read(move |core| core.search(&request, &terms, vector.as_deref()));
        let (items, is_behind) = found.await?;
        drop(permit);
        // A failed embedder is asked again when more is taken in, not by every search.
        if is_behind && !self.core.is_embedder_failing.load(Ordering::Relaxed) {
            self.catch_up();
        }
        Ok(Page { items, next_cursor: None })
    }

    async fn beside(&self, hits: &[SearchHit]) -> Result<Vec<Option<String>>, SessionError> {
        let hits = hits.to_vec();
        self.read(move |core| core.beside(&hits)).await
    }

    async fn to_forget(&self, request: ForgetMemory) -> Result<Vec<ForgetMemory>, SessionError> {
        self.read(move |core| core.to_forget(&request)).await
    }

    async fn forget(&self, decided: Vec<ForgetMemory>) -> Result<u64, SessionError> {
        self.change(move |core| core.forget(decided)).await
    }

    async fn erased(&self) -> Result<(), SessionError> {
        // Opens the files, which may say that something is to be erased.
        let marks = self.read(|core| Ok(core.marks.load(Ordering::Acquire))).await?;
        while self.core.erased.load(Ordering::Acquire) < marks {
            self.change(Core::erase_some).await?;
        }
        Ok(())
    }

    async fn forgotten(&self) -> Result<Vec<ForgetMemory>, SessionError> {
        self.read(Core::forgotten).await
    }

    async fn gone(&self, session_id: SessionId) -> Result<(), SessionError> {
        self.change(move |core| core.gone(session_id)).await
    }

    async fn reindex(&self, progress: ProgressSink<'_>) -> Result<Reindexed, SessionError> {
        // Others change the memory between the steps.
        let mut rebuild = Rebuild::default();
        loop {
            let step = self.change(move |core| Ok((core.rebuild_step(&mut rebuild)?, rebuild))).await?;
            let Some((done, of)) = step.0 else { break };
            progress(done, of);
            rebuild = step.1;
        }
        while self.change(Core::merge_some).await? {}
        let indexed =
            self.change(|core| core.begin_vectors().and_then(|()| core.read(|open| Ok(open.columns.live)))).await?;
        progress(u64::from(indexed), u64::from(indexed));
        let (alone, worker) = (self.alone().await, self.worker());
        loop {
            match worker.step().await? {
                Step::Embedded(done, of) => progress(done, of),
                Step::Built => {}
                Step::Done if self.closing.is_cancelled() => {
                    return Err(unavailable(&Trouble::Failed("it was closed before all vectors were made".to_owned())));
                }
                Step::Done => break,
            }
        }
        drop(alone);
        // More may have been taken in meanwhile.
        self.catch_up();
        Ok(Reindexed { indexed: u64::from(indexed) })
    }

    async fn needs_rebuild(&self) -> Result<bool, SessionError> {
        self.read(Core::needs_rebuild).await
    }

    async fn rebuilt(&self) -> Result<(), SessionError> {
        self.change(Core::became_whole).await
    }

    async fn close(&self) {
        // The next process makes the rest.
        if tokio::time::timeout(END_MAX, self.made()).await.is_err() {
            tracing::warn!("not all that was said has its vector yet; a process that runs longer makes the rest");
        }
        self.closing.cancel();
        let _ = tokio::time::timeout(END_MAX, self.made()).await;
        let saved = self.change(|core| core.flush(true));
        if let Err(error) = saved.await {
            tracing::debug!(%error, "the memory's next start takes longer");
        }
        // Whoever still holds the store keeps no other from opening the file.
        let core = self.core.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || core.shut()).await {
            tracing::warn!(%error, "the memory's file stays open until the process ends");
        }
    }
}
