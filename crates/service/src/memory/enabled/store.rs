//! [`HnswMemoryStore`]: the memory as the service uses it. Everything that blocks is done on a thread that may.
//!
//! One change is made at a time, and one that was begun is finished, whether its caller waits or not.

use std::{
    path::Path,
    sync::{Arc, PoisonError, Weak},
};

use async_trait::async_trait;
use tokio::{
    runtime::Handle,
    sync::{Mutex, mpsc},
    task::{JoinError, JoinHandle},
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

/// Steps towards the vectors of what is new that an add waits for; the rest is made beside all else.
const STEPS_OF_ADD: usize = 32;

/// Memory whose postings and vectors stand in redb, with a graph over the vectors.
pub struct HnswMemoryStore {
    core: Arc<Core>,
    /// Held by whoever changes something.
    writer: Arc<Mutex<()>>,
    /// The vectors that nobody waits for are made here.
    background: std::sync::Mutex<Option<JoinHandle<()>>>,
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
            background: std::sync::Mutex::default(),
            closing: CancellationToken::new(),
        }
    }

    fn worker(&self) -> Worker {
        let (core, writer) = (Arc::downgrade(&self.core), self.writer.clone());
        Worker { core, writer, closing: self.closing.clone() }
    }

    /// Makes what vectors are missing, without anybody waiting for it.
    fn catch_up(&self) {
        let mut background = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        if background.as_ref().is_none_or(JoinHandle::is_finished) {
            let worker = self.worker();
            let work = async move { while let Ok(Step::Embedded(..) | Step::Built) = worker.step().await {} };
            *background = Some(tokio::spawn(work));
        }
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
        let worker = self.worker();
        for _ in 0..STEPS_OF_ADD {
            match worker.step().await {
                Ok(Step::Done) => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "what is new is found by its words alone until the embedder answers");
                    return Ok(());
                }
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
        self.closing.cancel();
        let background = self.background.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(background) = background {
            // A panic of it was logged where it happened.
            let _ = background.await;
        }
        let saved = self.change(|core| {
            core.flush(true)?;
            core.save_lane()
        });
        if let Err(error) = saved.await {
            tracing::debug!(%error, "the memory's next start takes longer");
        }
    }
}
