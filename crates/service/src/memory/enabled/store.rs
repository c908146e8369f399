//! [`HnswMemoryStore`]: the memory as the service uses it. Everything that blocks is done on a thread that may.
//!
//! One change is made at a time, and one that was begun is finished, whether its caller waits or not.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use tokio::{
    runtime::Handle,
    sync::{Mutex, mpsc},
};

use super::{
    core::Core,
    embedding::NoVectors,
    file::{Trouble, unavailable},
};
use crate::{
    SessionError,
    ids::{Seq, SessionId},
    memory::{Embedder, Intake, MemoryStore, ProgressSink},
    service::{ForgetMemory, Forgotten, Page, Reindexed, SearchHit, SearchMemory},
};

/// Memory whose postings and vectors stand in redb, with a graph over the vectors.
pub struct HnswMemoryStore {
    core: Arc<Core>,
    /// Held by whoever changes something.
    writer: Arc<Mutex<()>>,
}

impl HnswMemoryStore {
    /// The memory in `data_dir`, or in this process alone. Its files are opened when they are first needed.
    #[must_use]
    pub fn new(data_dir: Option<&Path>, embedder: Arc<dyn Embedder>, records_intake: bool) -> Self {
        let core = Core::new(data_dir.map(Path::to_owned), embedder, records_intake);
        Self { core: Arc::new(core), writer: Arc::default() }
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
            let done = core.work(|| change(&core));
            drop(writer);
            done
        });
        answer(done.await)
    }
}

fn answer<T>(done: Result<Result<T, Trouble>, tokio::task::JoinError>) -> Result<T, SessionError> {
    let done = done.unwrap_or_else(|error| Err(Trouble::Failed(error.to_string())));
    done.map_err(|trouble| unavailable(&trouble))
}

/// What an embedder did not make is made another time.
fn later(done: Result<(), NoVectors>) -> Result<(), Trouble> {
    match done {
        Ok(()) => Ok(()),
        Err(NoVectors::File(trouble)) => Err(trouble),
        Err(NoVectors::Embedder(error)) => {
            tracing::warn!(%error, "new passages are found by their words alone until the embedder answers");
            Ok(())
        }
    }
}

#[async_trait]
impl MemoryStore for HnswMemoryStore {
    async fn taken_in(&self, session_id: SessionId) -> Result<Seq, SessionError> {
        self.read(move |core| core.read(|open| Ok(open.columns.session(session_id).map_or(0, |it| it.row.up_to)))).await
    }

    async fn add(&self, intakes: Vec<Intake>) -> Result<(), SessionError> {
        let runtime = Handle::current();
        self.change(move |core| {
            core.add(intakes)?;
            later(core.embed(&runtime, &|_, _| ()))
        })
        .await
    }

    async fn search(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError> {
        let runtime = Handle::current();
        let items = self.read(move |core| core.search(&runtime, &request));
        Ok(Page { items: items.await?, next_cursor: None })
    }

    async fn forget(&self, request: ForgetMemory) -> Result<Forgotten, SessionError> {
        let forgotten = self.change(move |core| core.forget(&request)).await?;
        Ok(Forgotten { forgotten })
    }

    async fn gone(&self, session_id: SessionId) -> Result<(), SessionError> {
        self.change(move |core| core.gone(session_id)).await
    }

    async fn reindex(&self, progress: ProgressSink<'_>) -> Result<Reindexed, SessionError> {
        let runtime = Handle::current();
        let (told, mut tells) = mpsc::unbounded_channel();
        let work = self.change(move |core| {
            // Who listens may have gone.
            let tell = |done: u64, of: u64| {
                let _ = told.send((done, of));
            };
            let indexed = core.index_anew(&tell)?;
            let id = core.embedder.id();
            core.drop_vectors(&id)?;
            match core.embed(&runtime, &tell) {
                Err(NoVectors::File(trouble)) => Err(trouble),
                Err(NoVectors::Embedder(error)) => Ok(Err(error)),
                Ok(()) => Ok(Ok(Reindexed { indexed })),
            }
        });
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                Some((done, of)) = tells.recv() => progress(done, of),
                done = &mut work => return done?,
            }
        }
    }

    async fn needs_rebuild(&self) -> bool {
        let is_whole = self.read(|core| Ok(core.records_intake || core.read(|open| Ok(open.is_whole))?));
        !is_whole.await.unwrap_or(true)
    }

    async fn rebuilt(&self) -> Result<(), SessionError> {
        self.change(Core::became_whole).await
    }

    async fn close(&self) {
        let saved = self.change(|core| {
            core.flush(true)?;
            core.save_lane()
        });
        if let Err(error) = saved.await {
            tracing::debug!(%error, "the memory's next start takes longer");
        }
    }
}
