//! A memory that finds what holds the query to the letter. It can fail, and lose what it knew.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use meerkat_service::{
    Seq, SessionError, SessionId,
    memory::{Intake, MemoryStore, Passage, ProgressSink},
    service::{ForgetMemory, Page, Reindexed, SearchHit, SearchMemory},
};

/// What it knows of one session.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) up_to: Seq,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) passages: BTreeMap<(Seq, u32), Passage>,
}

#[derive(Default)]
pub(crate) struct Fake {
    sessions: Mutex<BTreeMap<SessionId, Known>>,
    /// Passages that it was given, also those that it had.
    given: Mutex<usize>,
    pub(crate) fails: AtomicBool,
    /// It does not say how far it has a session.
    pub(crate) is_mute: AtomicBool,
    pub(crate) is_lost: AtomicBool,
    /// It loses everything once more before it is told that it has everything.
    pub(crate) is_lost_again: AtomicBool,
    /// Sessions that it fails for.
    pub(crate) failing: Mutex<BTreeSet<SessionId>>,
    /// Number of additions that fail.
    pub(crate) failures: AtomicUsize,
}

impl Fake {
    pub(crate) fn sessions(&self) -> MutexGuard<'_, BTreeMap<SessionId, Known>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn given(&self) -> usize {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<(), SessionError> {
        let why = || SessionError::MemoryUnavailable { why: "it was told to fail".to_owned() };
        if self.fails.load(Ordering::Relaxed) { Err(why()) } else { Ok(()) }
    }

    /// The texts of a session, in order.
    pub(crate) fn texts(&self, session_id: SessionId) -> Vec<String> {
        let sessions = self.sessions();
        sessions.get(&session_id).map_or_else(Vec::new, |it| it.passages.values().map(|it| it.text.clone()).collect())
    }
}

#[async_trait]
impl MemoryStore for Fake {
    async fn taken_in(&self, session_id: SessionId) -> Result<Seq, SessionError> {
        let fails = self.failing.lock().unwrap_or_else(PoisonError::into_inner).contains(&session_id);
        if self.is_mute.load(Ordering::Relaxed) || fails {
            return Err(SessionError::MemoryUnavailable { why: "it was told to say nothing".to_owned() });
        }
        Ok(self.sessions().get(&session_id).map_or(0, |known| known.up_to))
    }

    async fn add(&self, intakes: Vec<Intake>) -> Result<(), SessionError> {
        self.check()?;
        let fails =
            self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        if fails {
            return Err(SessionError::MemoryUnavailable { why: "it was told to fail once".to_owned() });
        }
        for Intake { session_id, labels, passages, up_to, .. } in intakes {
            let mut sessions = self.sessions();
            let known = sessions.entry(session_id).or_default();
            assert!(up_to > known.up_to, "{session_id} is taken in up to {} and then to {up_to}", known.up_to);
            (known.up_to, known.labels) = (up_to, labels);
            *self.given.lock().unwrap_or_else(PoisonError::into_inner) += passages.len();
            for passage in passages {
                known.passages.insert((passage.seq, passage.part), passage);
            }
        }
        Ok(())
    }

    async fn search(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError> {
        let sessions = self.sessions();
        let wanted = sessions.iter().filter(|(id, _)| request.session_id.is_none_or(|wanted| wanted == **id));
        let all = wanted.flat_map(|(id, known)| known.passages.values().map(|passage| (*id, passage.clone())));
        let fits = |passage: &Passage| {
            request.role.as_ref().is_none_or(|role| *role == passage.role) && passage.text.contains(&request.query)
        };
        let hits = all.filter(|(_, passage)| fits(passage)).map(|(session_id, passage)| {
            let Passage { seq: from_seq, to_seq, role, time, text, .. } = passage;
            SearchHit { session_id, from_seq, to_seq, role, time, text, score: 1.0, lanes: BTreeMap::new() }
        });
        Ok(Page::whole(hits.take(request.limit.unwrap_or(usize::MAX)).collect()))
    }

    async fn to_forget(&self, request: ForgetMemory) -> Result<Vec<ForgetMemory>, SessionError> {
        Ok(vec![request])
    }

    async fn forget(&self, decided: Vec<ForgetMemory>) -> Result<u64, SessionError> {
        let mut forgotten = 0;
        for (id, Known { passages, .. }) in self.sessions().iter_mut() {
            let before = passages.len();
            passages.retain(|_, passage| {
                !decided.iter().any(|request| {
                    request.session_id.is_none_or(|wanted| wanted == *id)
                        && request.source.as_ref().is_none_or(|source| *source == passage.source)
                        && (request.from_seq.unwrap_or(0)..=request.to_seq.unwrap_or(Seq::MAX)).contains(&passage.seq)
                })
            });
            forgotten += (before - passages.len()) as u64;
        }
        Ok(forgotten)
    }

    async fn gone(&self, session_id: SessionId) -> Result<(), SessionError> {
        self.check()?;
        self.sessions().remove(&session_id);
        Ok(())
    }

    async fn reindex(&self, progress: ProgressSink<'_>) -> Result<Reindexed, SessionError> {
        let indexed = self.sessions().values().map(|known| known.passages.len() as u64).sum();
        progress(indexed, indexed);
        Ok(Reindexed { indexed })
    }

    async fn needs_rebuild(&self) -> Result<bool, SessionError> {
        self.check()?;
        Ok(self.is_lost.load(Ordering::Relaxed))
    }

    async fn rebuilt(&self) -> Result<(), SessionError> {
        let is_lost = self.is_lost_again.swap(false, Ordering::Relaxed);
        if is_lost {
            self.sessions().clear();
        }
        self.is_lost.store(is_lost, Ordering::Relaxed);
        Ok(())
    }
}
