//! The other nodes of a store: requests for sessions that one of them works on, the changes that they make in lists, what
//! they forget, and the sessions of those that have ended.
//!
//! Nodes do not call each other. A request for a session that another node works on is left in its inbox; that node runs
//! it as its own, and answers there. An idle session needs no letter: its lease moves to the node that is asked.

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::{indexed::SCANS, sessions::Sessions};
use crate::{
    SessionError,
    ids::SessionId,
    operation::Operation,
    store::{Fate, Letter, ListedChange, TAKEN_WITHIN},
    wire::call,
};

/// Time between two searches for sessions of ended nodes, for changes of living ones and for what they forget.
const SWEEP: Duration = Duration::from_millis(500);
/// Time between two looks into this node's inbox.
const INBOX: Duration = Duration::from_millis(100);
/// First and longest time between two looks for the answer to a letter.
const ANSWER: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));
/// How far behind the newest change to look for changes that were under way when it was seen, in its own unit.
const OVERLAP: u64 = 5_000_000;

/// How long a node that ends waits until its answers to letters are written.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// First and longest time after which a session that could not be taken over is tried again.
const TRIED_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What is known here of the other nodes.
#[derive(Default)]
pub(super) struct Others {
    heard: tokio::sync::Mutex<Heard>,
    /// Sessions that could not be taken over: until when they are left alone, and for how long that is.
    failed: Mutex<HashMap<SessionId, (Duration, Duration)>>,
    /// Letters whose requests run here, or whose answers are on their way.
    work: Mutex<HashSet<Uuid>>,
    /// Held while letters are taken, until they are in `work`.
    taking: tokio::sync::Mutex<()>,
    /// Looks that failed the last time; of each, one line of the log says it until it succeeds again.
    failing: [AtomicBool; 4],
}

/// Look at the store that is made again and again.
#[derive(Clone, Copy, Debug)]
enum Look {
    Orphans,
    Changes,
    Forgotten,
    Inbox,
}

/// Changes of lists that are known here.
#[derive(Default)]
struct Heard {
    /// Place of the newest; `None` before the first look.
    newest: Option<u64>,
    /// Each session's last change, for as long as it may come again.
    places: HashMap<SessionId, u64>,
}

impl Others {
    fn work(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// Begins to work with the other nodes of a store that several may share, until this service ends.
    pub(super) fn work_with_others(&self) {
        if self.engine().events.node().is_none() {
            return;
        }
        let sweep = self.regularly(SWEEP, |service| {
            async move {
                // A program that does not stay would hold what it took, or cut it off.
                if service.engine().options.store.turns_go_on {
                    service.take_over_now().await;
                }
                service.seen(Look::Changes, service.hear().await);
            }
            .boxed()
        });
        // Beside the sweep, which must not wait until a large memory is written again.
        let forgotten = self.regularly(SWEEP, |service| {
            async move {
                if let Some(memory) = &service.engine().derived.memory {
                    service.seen(Look::Forgotten, memory.forget_with_others().await);
                }
            }
            .boxed()
        });
        let letters = self.regularly(INBOX, |service| async move { service.answer_letters().await }.boxed());
        // Settling happens once, so nobody has set it before.
        drop(self.inner.with_others.set([sweep, forgotten, letters]));
    }

    fn regularly(&self, pause: Duration, work: fn(Self) -> BoxFuture<'static, ()>) -> AbortOnDropHandle<()> {
        let (inner, clock) = (Arc::downgrade(&self.inner), self.engine().world.clock.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                clock.sleep(pause).await;
                let Some(service) = inner.upgrade().map(Self::of) else { return };
                work(service).await;
            }
        }))
    }

    /// Loads the sessions of nodes that have ended, whose open turns end by that.
    async fn take_over_now(&self) {
        let orphaned = self.engine().events.orphaned().await.map_err(SessionError::from);
        let mut orphaned = self.seen(Look::Orphans, orphaned).unwrap_or_default();
        let now = self.engine().world.clock.elapsed();
        let failed = || self.inner.others.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let listed: HashSet<SessionId> = orphaned.iter().copied().collect();
        failed().retain(|session_id, _| listed.contains(session_id));
        orphaned.retain(|session_id| failed().get(session_id).is_none_or(|(until, _)| *until <= now));
        stream::iter(orphaned)
            .for_each_concurrent(SCANS, async |session_id| {
                let taken_over = match self.live(session_id).await {
                    // Its node may have ended before it was listed.
                    Ok(_) => self.index_stored(session_id).await.map(drop),
                    Err(error) => Err(error),
                };
                match taken_over {
                    Ok(()) => {}
                    // Another node was first, or it was deleted.
                    Err(
                        SessionError::HeldBy { .. }
                        | SessionError::TakenOver(_)
                        | SessionError::NotFound(_)
                        | SessionError::ShuttingDown,
                    ) => {}
                    Err(error) => {
                        if !error.code().retry().is_retryable() {
                            // No node can load it: who waits for its turn is told.
                            self.inner.registry.hub(session_id).lose(0, &error);
                        }
                        let before = failed().get(&session_id).map(|(_, pause)| *pause);
                        let pause = before.map_or(TRIED_AGAIN.0, |pause| (pause * 2).min(TRIED_AGAIN.1));
                        failed().insert(session_id, (now + pause, pause));
                        match before {
                            None => tracing::warn!(%session_id, %error, "a session of an ended node could not be taken over"),
                            Some(_) => tracing::debug!(%session_id, %error, "it still cannot be taken over"),
                        }
                    }
                }
            })
            .await;
    }

    /// Returns what a look has found. The first failure after a success is a warning.
    fn seen<T>(&self, look: Look, found: Result<T, SessionError>) -> Option<T> {
        let is_failing = &self.inner.others.failing[look as usize];
        match found {
            Ok(found) => {
                is_failing.store(false, Ordering::Relaxed);
                Some(found)
            }
            Err(error) if is_failing.swap(true, Ordering::Relaxed) => {
                tracing::debug!(?look, %error, "asking for the other nodes still fails");
                None
            }
            Err(error) => {
                tracing::warn!(?look, %error, "asking for the other nodes failed");
                None
            }
        }
    }

    /// Notes what other nodes have changed in lists since the last look, for readers and for those who follow the list.
    pub(super) async fn hear(&self) -> Result<(), SessionError> {
        let derived = &self.engine().derived;
        let mut heard = self.inner.others.heard.lock().await;
        let changes = derived.index.changes(heard.newest.map(|newest| newest.saturating_sub(OVERLAP))).await?;
        let is_first = heard.newest.is_none();
        if is_first && self.engine().events.node().is_some() {
            // A reader may have scanned before, and others have written since. If the caller leaves here, it is the first
            // look again.
            derived.readers.scan_again().await;
        }
        heard.newest.get_or_insert(0);
        let listed: HashSet<SessionId> = changes.iter().map(|change| change.session_id).collect();
        for ListedChange { place, session_id, summary } in changes {
            heard.newest = heard.newest.max(Some(place));
            // What was before the first look is found by a scan, and on the first page of the list.
            let is_new = heard.places.insert(session_id, place) != Some(place) && !is_first;
            let shared = self.inner.registry.shared(session_id);
            let is_own = |last_seq| shared.as_ref().is_some_and(|shared| shared.newest_seq() >= last_seq);
            if is_new && !summary.as_ref().is_some_and(|summary| is_own(summary.last_seq)) {
                derived.heard(session_id, summary);
            }
        }
        if is_first && self.engine().events.node().is_some() {
            // A reader may have scanned before, and others have written since.
            derived.readers.scan_again().await;
        }
        let oldest = heard.newest.unwrap_or_default().saturating_sub(OVERLAP);
        heard.places.retain(|session_id, place| *place >= oldest || listed.contains(session_id));
        Ok(())
    }

    /// Runs the requests that other nodes left for this one.
    async fn answer_letters(&self) {
        let Some(inbox) = &self.engine().inbox else { return };
        let taking = self.inner.others.taking.lock().await;
        let work: Vec<Uuid> = self.inner.others.work().iter().copied().collect();
        let letters = self.seen(Look::Inbox, inbox.take(&work).await.map_err(SessionError::from));
        let letters = letters.unwrap_or_default();
        self.inner.others.work().extend(letters.iter().map(|(id, _)| *id));
        drop(taking);
        for (id, letter) in letters {
            let (service, inbox) = (self.clone(), inbox.clone());
            tokio::spawn(async move {
                let answer = match Operation::from_name(&letter.operation) {
                    Some(operation) => {
                        let answer = AssertUnwindSafe(call(&service, operation, &letter.params)).catch_unwind().await;
                        let panicked = |_| Err(SessionError::Internal("a request of another node panicked".to_owned()));
                        answer.unwrap_or_else(panicked)
                    }
                    None => Err(SessionError::UnknownOperation(letter.operation)),
                };
                let (answer, engine) = (written(answer), service.engine());
                // Its sender waits for as long as this node lives.
                while let Err(error) = inbox.answer(id, answer.clone()).await {
                    tracing::debug!(%error, "a request of another node was run, and cannot be answered yet");
                    if engine.is_shutting_down.load(Ordering::Acquire) {
                        break;
                    }
                    engine.world.clock.sleep(ANSWER.1).await;
                }
                service.inner.others.work().remove(&id);
            });
        }
    }

    /// Ends this node's leases, so that others take at once what it leaves. While a letter is answered they do not end,
    /// because its sender would take the answer for lost: then they expire.
    pub(super) async fn leave_others(&self) {
        let (engine, others) = (self.engine(), &self.inner.others);
        let _taking = others.taking.lock().await;
        let answered = async {
            while !others.work().is_empty() {
                engine.world.clock.sleep(ANSWER.0).await;
            }
        };
        tokio::select! {
            () = answered => engine.events.end_leases().await,
            () = engine.world.clock.sleep(ANSWERED_WITHIN) => {}
        }
    }

    /// Leaves a request for the node that has its session, and waits for the answer. `None` if the request must be tried
    /// here again: nobody has run it, or running it twice does no harm.
    ///
    /// # Errors
    /// Those of the operation; the refusal, if there is no inbox or nobody takes the letter; `STORE_FAILED` if the node
    /// ended while it may have run it, or the store does not say for as long as a letter may lie there.
    pub(super) async fn by_inbox(
        &self,
        operation: Operation,
        params: String,
        refusal: SessionError,
    ) -> Result<Option<Bytes>, SessionError> {
        let (Some(inbox), SessionError::HeldBy { session_id, holder }) = (&self.engine().inbox, &refusal) else {
            return Err(refusal);
        };
        let clock = self.engine().world.clock.as_ref();
        let letter = Letter {
            node: holder.node.clone(),
            session_id: *session_id,
            operation: operation.name().to_owned(),
            params,
        };
        #[expect(clippy::disallowed_methods, reason = "no other node has it, whatever the sources of ids are")]
        let id = Uuid::now_v7();
        let since = clock.elapsed();
        let (mut pause, mut known, mut is_left) = (ANSWER.0, since, false);
        loop {
            let now = clock.elapsed();
            let is_over = now.saturating_sub(since) >= TAKEN_WITHIN;
            let fate = match is_left {
                true => inbox.fate(id, is_over).await,
                false => inbox.leave(id, &letter).await.map(|()| Fate::Open),
            };
            let fate = match fate {
                Ok(fate) => fate,
                Err(error) => {
                    let is_ending = self.engine().is_shutting_down.load(Ordering::Acquire);
                    if is_ending || now.saturating_sub(known) >= TAKEN_WITHIN {
                        return Err(error.into());
                    }
                    // It may be there, or running, all the same.
                    clock.sleep(pause).await;
                    continue;
                }
            };
            (known, is_left) = (now, true);
            return match fate {
                Fate::Open => {
                    clock.sleep(pause).await;
                    pause = (pause * 2).min(ANSWER.1);
                    continue;
                }
                Fate::Answered(answer) => read(&answer).map(Some),
                Fate::Returned if is_over => Err(refusal),
                Fate::Returned => Ok(None),
                Fate::Lost if operation.is_repeatable(&letter.params) => Ok(None),
                Fate::Lost => Err(SessionError::StoreFailed),
            };
        }
    }
}

/// Writes the answer to a letter.
fn written(answer: Result<Vec<u8>, SessionError>) -> String {
    match answer {
        Ok(json) => format!("ok {}", String::from_utf8_lossy(&json)),
        Err(error) => format!("error {}", json!(error.body())),
    }
}

/// Reads the answer to a letter.
fn read(answer: &str) -> Result<Bytes, SessionError> {
    let unreadable = || SessionError::Internal("the answer of another node cannot be read".to_owned());
    match answer.split_once(' ').ok_or_else(unreadable)? {
        ("ok", json) => Ok(Bytes::copy_from_slice(json.as_bytes())),
        (_, body) => Err(SessionError::Remote(serde_json::from_str(body).map_err(|_| unreadable())?)),
    }
}
