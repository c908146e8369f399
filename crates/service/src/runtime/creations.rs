//! Creates that run or ran: each is one detached task that all its callers await, found again by its key.

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};

use crate::{
    SessionError,
    service::SessionCreated,
    session::{KEY_KEPT_MS, event::Key},
};

/// Time for which a key is kept here.
const KEY_KEPT: Duration = Duration::from_millis(KEY_KEPT_MS.unsigned_abs());

/// Most keys to keep; further ones are refused until some are a day old.
const KEYS_MAX: usize = 100_000;

type Creation = Shared<BoxFuture<'static, Result<SessionCreated, SessionError>>>;

/// Creates of one store.
#[derive(Default)]
pub(super) struct Creations {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_key: HashMap<String, Known>,
    /// By the time of this process, which no clock that is set changes.
    by_age: VecDeque<(Duration, String)>,
    /// Sessions that are being created; they count for the limit.
    in_flight: usize,
}

struct Known {
    request: String,
    used: Duration,
    creation: Creation,
}

impl Creations {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the create of this key, or begins a new one: `check` gets the number in flight, and `make` also returns
    /// true if the index has the key by then. `now` never goes back, nor ahead of the time that has passed.
    pub(super) fn find_or_make<F>(
        self: &Arc<Self>,
        key: Option<Key>,
        now: Duration,
        check: impl FnOnce(usize) -> Result<(), SessionError>,
        make: impl FnOnce() -> F,
    ) -> Result<Creation, SessionError>
    where
        F: Future<Output = (Result<SessionCreated, SessionError>, bool)> + Send + 'static,
    {
        let mut state = self.state();
        state.forget_old(now);
        if let Some(key) = &key
            && let Some(known) = state.by_key.get(&key.key)
        {
            let is_same = known.request == key.request;
            return if is_same {
                Ok(known.creation.clone())
            } else {
                Err(SessionError::IdempotencyConflict { what: "idempotency_key" })
            };
        }
        check(state.in_flight)?;
        if key.is_some() && state.by_key.len() >= KEYS_MAX {
            return Err(SessionError::Limit { what: "keys", limit: KEYS_MAX as u64 });
        }
        state.in_flight += 1;
        let creations = self.clone();
        let (made, name) = (make(), key.as_ref().map(|key| key.key.clone()));
        let task = tokio::spawn(async move {
            let done = AssertUnwindSafe(made).catch_unwind().await;
            let failed = || (Err(SessionError::Internal("a session could not be made".to_owned())), false);
            let (done, is_known) = done.unwrap_or_else(|_| failed());
            let mut state = creations.state();
            state.in_flight -= 1;
            match name {
                // After a failure the key is free again, and a key in the index is not kept twice.
                Some(name) if done.is_err() || is_known => drop(state.by_key.remove(&name)),
                Some(name) => state.by_age.push_back((now, name)),
                None => {}
            }
            done
        });
        let done = async move { task.await.unwrap_or(Err(SessionError::ShuttingDown)) };
        let creation = done.boxed().shared();
        if let Some(Key { key, request }) = key {
            state.by_key.insert(key, Known { request, used: now, creation: creation.clone() });
        }
        Ok(creation)
    }
}

impl State {
    fn forget_old(&mut self, now: Duration) {
        let is_old = |(used, _): &mut (Duration, String)| now.saturating_sub(*used) >= KEY_KEPT;
        while let Some((used, key)) = self.by_age.pop_front_if(is_old) {
            // The key may have been used again since.
            if self.by_key.get(&key).is_some_and(|known| known.used == used) {
                self.by_key.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::SeededIds, ids::SessionId};

    fn key(name: usize) -> Option<Key> {
        Some(Key { key: name.to_string(), request: "r".to_owned() })
    }

    /// A key is kept here unless its create failed or the index has it.
    #[tokio::test]
    async fn only_keys_that_nobody_else_has_are_kept() {
        let (creations, now) = (Arc::new(Creations::default()), Duration::ZERO);
        let session_id = SessionId::from_uuid(uuid::Uuid::nil());
        let made = SessionCreated { session_id, seq: 1, created_at: SeededIds::wall_time() };
        for (name, (done, is_known)) in
            [(Err(SessionError::StoreFull), false), (Ok(made.clone()), true), (Ok(made), false)].into_iter().enumerate()
        {
            let make = async move || (done, is_known);
            let creation = creations.find_or_make(key(name), now, |_| Ok(()), make).unwrap();
            drop(creation.await);
        }
        let state = creations.state();
        let kept: Vec<&str> = state.by_key.keys().map(String::as_str).collect();
        assert_eq!((kept, state.by_age.len(), state.in_flight), (vec!["2"], 1, 0));
    }
}
