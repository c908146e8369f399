//! One owner per data directory: a command holds its lock and listens on its socket, or attaches to the process that does.
//!
//! Nothing here decides about sessions. The two sides of the socket are `meerkat-serve`'s owner and `meerkat-client`.

#[cfg(test)]
mod tests;

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use meerkat_client::{Connection, Place, Server, Setting, Way, attach};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_serve::owner::{Agrees, Owner};
use meerkat_service::{SessionError, SessionService};
use tokio::{sync::Mutex, time::sleep};

/// Longest time that a command tries to own the data directory or to attach to its owner.
const OPEN_LIMIT: Duration = Duration::from_secs(2);

/// Pause between two tries. An owner that begins or ends holds the lock for a moment without listening.
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// Opens the store: `STORE_LOCKED` if another process holds its lock.
pub(crate) type Open = Arc<dyn Fn() -> Result<Arc<dyn SessionService>, SessionError> + Send + Sync>;

/// Data directory that a command works with.
#[derive(Clone)]
pub(crate) struct DataDir {
    pub(crate) open: Open,
    pub(crate) place: Place,
    /// Settings of this command that are the owner's to decide.
    pub(crate) settings: Arc<[Setting]>,
    /// `PATH` of this command.
    pub(crate) search_path: Option<String>,
    /// Compares an attached command's settings with this process's.
    pub(crate) agrees: Agrees,
    /// Socket of this process, while it is the owner.
    pub(crate) owner: Arc<Mutex<Option<Owner>>>,
}

impl DataDir {
    async fn own(&self, service: Arc<dyn SessionService>) -> Result<Server, SessionError> {
        let bound = match self.place.bind() {
            Ok(bound) => Some(bound),
            // The store says it of what needs room. Reading needs none.
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                tracing::warn!("the disk has no room for a socket, so other commands cannot attach to this process");
                None
            }
            Err(error) => {
                return Err(SessionError::StoreNotWritable {
                    path: self.place.data_dir().display().to_string(),
                    why: format!("its socket cannot be made: {error}"),
                });
            }
        };
        // Turns that a former owner left open end now, not at the first request for them.
        let settled = service.clone();
        tokio::spawn(async move {
            if let Err(error) = settled.ready().await {
                tracing::error!(%error, "what a former process left behind is not settled; the next request tries again");
            }
        });
        *self.owner.lock().await = bound.map(|bound| Owner::start(bound, service.clone(), self.agrees.clone()));
        Ok(Server::Here(service))
    }

    async fn attach(&self) -> io::Result<Result<Connection, Box<ErrorBody>>> {
        attach(&self.place, self.settings.to_vec(), self.search_path.clone()).await
    }

    /// Counts the commands that are attached to this one.
    pub(crate) async fn attached(&self) -> usize {
        self.owner.lock().await.as_ref().map_or(0, Owner::attached)
    }

    /// Ends the owner's part, if this process has it; its turns have ended before.
    pub(crate) async fn release(&self) {
        if let Some(owner) = self.owner.lock().await.take() {
            owner.end().await;
        }
    }
}

#[async_trait]
impl Way for DataDir {
    async fn connect(&self) -> Result<Connection, SessionError> {
        match self.attach().await {
            Ok(attached) => attached.map_err(SessionError::Remote),
            // The owner has just ended, or begins or ends.
            Err(_) => Err(SessionError::ShuttingDown),
        }
    }

    /// Owns the data directory, or attaches to its owner.
    async fn find(&self) -> Result<Server, SessionError> {
        let mut limit = std::pin::pin!(sleep(OPEN_LIMIT));
        loop {
            let open = self.open.clone();
            let lost = |_| SessionError::Internal("the data directory could not be opened".to_owned());
            let locked = match tokio::task::spawn_blocking(move || open()).await.map_err(lost)? {
                Ok(service) => return self.own(service).await,
                Err(error) if error.code() == ErrorCode::StoreLocked => error,
                Err(error) => return Err(error),
            };
            tokio::select! {
                attached = self.attach() => match attached {
                    Ok(Ok(connection)) => return Ok(Server::There(Arc::new(connection))),
                    Ok(Err(refusal)) => return Err(SessionError::Remote(refusal)),
                    Err(error) => tracing::debug!(%error, "the owner of the data directory cannot be reached"),
                },
                () = &mut limit => return Err(locked),
            }
            tokio::select! {
                () = sleep(TRY_PAUSE) => {}
                () = &mut limit => return Err(locked),
            }
        }
    }
}
