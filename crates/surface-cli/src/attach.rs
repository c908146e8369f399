//! One owner per data directory: a command that opens one holds its lock and listens on its socket, or attaches to the
//! process that does.
//!
//! It decides nothing about sessions. The two halves of the socket are `meerkat-serve`'s owner and `meerkat-client`.

#[cfg(test)]
mod tests;

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use meerkat_client::{Connection, Place, Server, Setting, Way, attach};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_serve::owner::{Agrees, Owner};
use meerkat_service::{SessionError, SessionService};
use tokio::{sync::Mutex, time::sleep};

/// How long a command tries to own the data directory or to attach to its owner.
const ENTER_LIMIT: Duration = Duration::from_secs(2);

/// Between two tries. An owner that begins or ends holds the lock without listening for a moment.
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// Opens the data directory: `STORE_LOCKED` where another process holds its lock.
pub(crate) type Open = Arc<dyn Fn() -> Result<Arc<dyn SessionService>, SessionError> + Send + Sync>;

/// The way into a data directory.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) open: Open,
    pub(crate) place: Place,
    /// What this command was told that is the owner's to decide.
    pub(crate) settings: Arc<[Setting]>,
    /// The same question, asked of this process.
    pub(crate) agrees: Agrees,
    /// The socket of this process, if it has taken the owner's place.
    pub(crate) owner: Arc<Mutex<Option<Owner>>>,
}

/// What came of entering.
pub(crate) enum Entered {
    /// This process owns the data directory.
    Owner(Arc<dyn SessionService>, Owner),
    /// Another does.
    Attached(Connection),
}

impl Door {
    /// Owns the data directory, or attaches to its owner.
    pub(crate) async fn enter(&self) -> Result<Entered, SessionError> {
        let mut limit = std::pin::pin!(sleep(ENTER_LIMIT));
        loop {
            let open = self.open.clone();
            let lost = |_| SessionError::Internal("the data directory could not be opened".to_owned());
            let locked = match tokio::task::spawn_blocking(move || open()).await.map_err(lost)? {
                Ok(service) => return self.own(service),
                Err(error) if error.code() == ErrorCode::StoreLocked => error,
                Err(error) => return Err(error),
            };
            tokio::select! {
                attached = self.attach() => match attached {
                    Ok(Ok(connection)) => return Ok(Entered::Attached(connection)),
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

    fn own(&self, service: Arc<dyn SessionService>) -> Result<Entered, SessionError> {
        let bound = self.place.bind().map_err(|error| SessionError::StoreNotWritable {
            path: self.place.data_dir().display().to_string(),
            why: format!("its socket cannot be made: {error}"),
        })?;
        // What a former owner left open ends now, not when somebody first asks for it.
        let settled = service.clone();
        tokio::spawn(async move {
            if let Err(error) = settled.ready().await {
                tracing::error!(%error, "what a former process left behind is not settled; the next request tries again");
            }
        });
        let owner = Owner::start(bound, service.clone(), self.agrees.clone());
        Ok(Entered::Owner(service, owner))
    }

    async fn attach(&self) -> io::Result<Result<Connection, Box<ErrorBody>>> {
        attach(&self.place, self.settings.to_vec()).await
    }
}

#[async_trait]
impl Way for Door {
    async fn connect(&self) -> Result<Connection, SessionError> {
        match self.attach().await {
            Ok(attached) => attached.map_err(SessionError::Remote),
            // It has just gone, or begins or ends.
            Err(_) => Err(SessionError::ShuttingDown),
        }
    }

    async fn find(&self) -> Result<Server, SessionError> {
        Ok(match self.enter().await? {
            Entered::Owner(service, owner) => {
                *self.owner.lock().await = Some(owner);
                Server::Here(service)
            }
            Entered::Attached(connection) => Server::There(Arc::new(connection)),
        })
    }
}

/// How a command holds the data directory.
pub(crate) enum Holding {
    /// It has none: sessions live in memory.
    Memory,
    /// It owns it.
    Owner(Owner),
    /// It is attached to its owner, or has taken its place.
    Attached(Door),
}

impl Holding {
    /// Whether the service goes on when this command has ended.
    pub(crate) const fn is_attached(&self) -> bool {
        matches!(self, Self::Attached(..))
    }

    /// Commands that are attached to this one.
    pub(crate) async fn attached(&self) -> usize {
        match self {
            Self::Memory => 0,
            Self::Owner(owner) => owner.attached(),
            Self::Attached(door) => door.owner.lock().await.as_ref().map_or(0, Owner::attached),
        }
    }

    /// Lets the data directory go. What runs was waited for.
    pub(crate) async fn end(self) {
        match self {
            Self::Memory => {}
            Self::Owner(owner) => owner.end().await,
            Self::Attached(door) => {
                if let Some(owner) = door.owner.lock().await.take() {
                    owner.end().await;
                }
            }
        }
    }
}
