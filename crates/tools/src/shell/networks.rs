//! Networks of sessions, by which their commands reach each other.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use meerkat_service::SessionId;

use crate::confine::{self, Network};

/// Sessions that have a network although none of their commands runs.
const SESSIONS_MAX: usize = 32;

/// Networks of a service's sessions. A session has one from its first command on.
pub(super) struct Networks<T = Network>(Mutex<BTreeMap<SessionId, Kept<T>>>);

/// Network of a session once it is made. It is locked while it is.
type Kept<T> = Arc<Mutex<Option<Arc<T>>>>;

impl<T> Default for Networks<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl Networks {
    /// Returns the network of a session; none where the kernel gives none. It blocks.
    pub(super) fn of(&self, session_id: SessionId) -> Option<Arc<Network>> {
        if !confine::has_networks() {
            return None;
        }
        let made = self.get_or_make(session_id, Network::make);
        // The command runs without sockets.
        made.inspect_err(|error| tracing::warn!(%session_id, "{error}")).ok()
    }
}

impl<T> Networks<T> {
    fn get_or_make(&self, session_id: SessionId, make: impl FnOnce() -> Result<T, String>) -> Result<Arc<T>, String> {
        let kept = {
            let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if sessions.len() >= SESSIONS_MAX && !sessions.contains_key(&session_id) {
                sessions.retain(|_, kept| is_in_use(kept));
            }
            sessions.entry(session_id).or_default().clone()
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(network) => Ok(network.clone()),
            None => Ok(kept.insert(Arc::new(make()?)).clone()),
        }
    }
}

/// Returns true if a command is in the network, or one is about to start.
fn is_in_use<T>(kept: &Kept<T>) -> bool {
    let is_held = || kept.try_lock().map_or(true, |kept| kept.as_ref().is_some_and(|it| Arc::strong_count(it) > 1));
    Arc::strong_count(kept) > 1 || is_held()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_in_use_stays_and_others_make_room() {
        let networks = Networks::<usize>::default();
        let get = |session: usize| {
            let id = format!("01900000-0000-7000-8000-{session:012}").parse().unwrap();
            networks.get_or_make(id, || Ok(session)).unwrap()
        };
        let used = get(0);
        let unused = Arc::downgrade(&get(1));
        for session in 2..10 * SESSIONS_MAX {
            get(session);
            assert!(networks.0.lock().unwrap().len() <= SESSIONS_MAX, "{session}");
        }
        assert!(Arc::ptr_eq(&used, &get(0)));
        assert!(unused.upgrade().is_none());
        // One that could not be made is tried again.
        let id = "01900000-0000-7000-8000-000000009999".parse().unwrap();
        networks.get_or_make(id, || Err("full".to_owned())).unwrap_err();
        assert_eq!(*networks.get_or_make(id, || Ok(7)).unwrap(), 7);
    }
}
