//! The suite passes the stores that keep their promises, and names the promise that a wrong one breaks.

#![expect(clippy::unwrap_used, reason = "helpers of tests stop at an impossible value, as tests do")]

mod ours;
#[path = "../../../src/agent/tests/shared_store.rs"]
#[allow(dead_code, reason = "the engine's own tests use the rest")]
mod shared_store;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use futures::FutureExt as _;
use meerkat_conformance::{Harness, Pair, check};
use meerkat_service::{
    Seq, Session, SessionId,
    session::event::Record,
    store::{
        EventStore, Frame, FramePage, Lease, ReadLimit, RecordSource, SessionFilter, SessionMeta, SessionStore,
        SessionStoreError, StoreError, Ticket, append_only_save_guard,
    },
    wire::encode_event,
};
use tokio::sync::watch;
// What `shared_store` expects of the crate that it is in.
use meerkat_service::{clock, service, session, store};

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    EncodesAnew,
    IgnoresTheCursor,
    ReadsOnWithoutEnd,
    TakesGaps,
    TakesHalfABatch,
    TakesAnyLease,
    ForgetsWhatIsDurable,
    ShowsWhatIsNotDurable,
    WatchesForEver,
    ForksOnlyTheName,
    LosesForksWithTheirParent,
    ImportsAnew,
    ImportsOverOthers,
    ImportsAnyOrder,
    DeletesForNow,
    ListsInAnyOrder,
    SavesWhatShrinks,
    LoadsTheFirstOnly,
    LoadsPastTheJournal,
    IgnoresTheFilter,
    IgnoresTheOffset,
    IgnoresTheLimit,
    CountsTheOffsetFirst,
    KeepsWhatIsDeleted,
    ClaimsWhatIsNotThere,
    DeletesTheSessionToo,
}

/// The simplest store there can be, with one fault.
struct Naive {
    fault: Fault,
    journals: Mutex<BTreeMap<SessionId, Journal>>,
    trash: Mutex<BTreeMap<SessionId, Journal>>,
    snapshots: Mutex<BTreeMap<SessionId, Session>>,
}

#[derive(Default)]
struct Journal {
    frames: Vec<Frame>,
    /// Frames that are not durable: a restart loses them.
    loose: usize,
    epoch: u64,
    parent: Option<SessionId>,
    tail: watch::Sender<Seq>,
}

impl Naive {
    fn new(fault: Fault) -> Arc<Self> {
        let (journals, trash, snapshots) = Default::default();
        Arc::new(Self { fault, journals, trash, snapshots })
    }

    fn journals(&self) -> MutexGuard<'_, BTreeMap<SessionId, Journal>> {
        self.journals.lock().unwrap()
    }

    fn snapshots(&self) -> MutexGuard<'_, BTreeMap<SessionId, Session>> {
        self.snapshots.lock().unwrap()
    }

    fn restart(&self) {
        let mut journals = self.journals();
        for journal in journals.values_mut() {
            let kept = journal.frames.len() - journal.loose;
            journal.frames.truncate(if self.fault == Fault::ForgetsWhatIsDurable { kept - 1 } else { kept });
            journal.loose = 0;
        }
        journals.append(&mut self.trash.lock().unwrap());
    }
}

#[async_trait]
impl EventStore for Naive {
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        let mut journals = self.journals();
        let journal = journals.entry(session_id).or_default();
        journal.epoch += 1;
        Ok(Lease { session_id, epoch: journal.epoch, tail: journal.frames.len() as Seq })
    }

    async fn release(&self, _: Lease) -> Result<(), StoreError> {
        Ok(())
    }

    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError> {
        let mut journals = self.journals();
        let journal = journals.get_mut(&lease.session_id).ok_or(StoreError::Fenced)?;
        if journal.epoch != lease.epoch && self.fault != Fault::TakesAnyLease {
            return Err(StoreError::Fenced);
        }
        let before = journal.frames.len();
        for (at, record) in batch.iter().enumerate() {
            let is_next = record.seq == (before + at) as Seq + 1;
            if !is_next && self.fault != Fault::TakesGaps {
                let kept = if self.fault == Fault::TakesHalfABatch { before + at } else { before };
                journal.frames.truncate(kept);
                return Err(StoreError::OutOfOrder);
            }
            let mut line = encode_event(record).unwrap();
            if self.fault == Fault::EncodesAnew {
                line = serde_json::to_vec(&serde_json::from_slice::<serde_json::Value>(&line).unwrap()).unwrap().into();
                line = [&line[..], b" "].concat().into();
            }
            journal.frames.push(Frame { seq: record.seq, line });
        }
        let last = batch.last().map_or(0, |record| record.seq);
        journal.tail.send_replace(last);
        let (done, ticket) = Ticket::new();
        done.send(Ok(last)).unwrap();
        if self.fault == Fault::ShowsWhatIsNotDurable {
            journal.loose = batch.len();
        }
        Ok(ticket)
    }

    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
        let journals = self.journals();
        let Some(journal) = journals.get(&session_id).filter(|journal| !journal.frames.is_empty()) else {
            return Ok(None);
        };
        let after = if self.fault == Fault::IgnoresTheCursor { 0 } else { after };
        let mut bytes = if self.fault == Fault::ReadsOnWithoutEnd { usize::MAX } else { limit.bytes };
        let frames = journal.frames.iter().filter(|frame| frame.seq > after).take(limit.frames).enumerate();
        let frames = frames.take_while(|(at, frame)| {
            let fits = *at == 0 || frame.line.len() <= bytes;
            bytes = bytes.saturating_sub(frame.line.len());
            fits
        });
        let frames = frames.map(|(_, frame)| frame.clone()).collect();
        Ok(Some(FramePage { frames, ..FramePage::default() }))
    }

    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError> {
        Ok(self.journals().get(&session_id).map(|journal| journal.tail.subscribe()))
    }

    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError> {
        let mut journals = self.journals();
        let mut frames = journals[&parent].frames.clone();
        frames.truncate(usize::try_from(at).unwrap());
        if self.fault == Fault::ForksOnlyTheName {
            frames.clear();
        }
        frames.extend(first.iter().map(|record| Frame { seq: record.seq, line: encode_event(record).unwrap() }));
        let fork = Journal { frames, parent: Some(parent), ..Journal::default() };
        journals.insert(first[0].session_id, fork);
        Ok(())
    }

    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError> {
        let mut journal = Journal::default();
        loop {
            let part = records.next().await?;
            if part.is_empty() {
                break;
            }
            for (record, line) in part {
                let last = journal.frames.last().map_or(0, |frame| frame.seq);
                let rises = record.seq > last;
                if !rises && self.fault != Fault::ImportsAnyOrder {
                    return Err(StoreError::OutOfOrder);
                }
                let line = if self.fault == Fault::ImportsAnew { encode_event(&record).unwrap() } else { line };
                journal.frames.push(Frame { seq: record.seq, line });
            }
        }
        let mut journals = self.journals();
        let is_there = journals.contains_key(&session_id) && self.fault != Fault::ImportsOverOthers;
        if is_there || journal.frames.is_empty() {
            return Err(StoreError::Failed("there is nothing to import, or no room for it".to_owned()));
        }
        journals.insert(session_id, journal);
        Ok(())
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        let journals = self.journals();
        let frames = journals.get(&session_id).into_iter().flat_map(|journal| &journal.frames);
        Ok(frames.map(|frame| frame.line.len() as u64).sum())
    }

    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError> {
        let mut journals = self.journals();
        let Some(journal) = journals.remove(&session_id) else { return Ok(()) };
        match self.fault {
            Fault::LosesForksWithTheirParent => journals.retain(|_, fork| fork.parent != Some(session_id)),
            // It watches a journal that nobody writes any more.
            Fault::WatchesForEver => std::mem::forget(journal),
            Fault::DeletesForNow => drop(self.trash.lock().unwrap().insert(session_id, journal)),
            _ => {}
        }
        Ok(())
    }

    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(Vec::new())
    }

    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        let journals = self.journals();
        let ids = journals.keys().copied().filter(|id| Some(*id) > after);
        Ok(if self.fault == Fault::ListsInAnyOrder {
            ids.rev().take(limit).collect()
        } else {
            ids.take(limit).collect()
        })
    }
}

#[async_trait]
impl SessionStore for Naive {
    async fn save(&self, session: &Session) -> Result<(), SessionStoreError> {
        let mut snapshots = self.snapshots();
        let previous = snapshots.get(&session.id);
        if self.fault != Fault::SavesWhatShrinks {
            append_only_save_guard(session, previous)?;
        }
        if previous.is_none() || self.fault != Fault::LoadsTheFirstOnly {
            snapshots.insert(session.id, session.clone());
        }
        Ok(())
    }

    async fn load(&self, id: &SessionId) -> Result<Option<Session>, SessionStoreError> {
        let has_journal = self.journals().contains_key(id) || self.fault == Fault::LoadsPastTheJournal;
        Ok(self.snapshots().get(id).filter(|_| has_journal).cloned())
    }

    async fn list(&self, filter: SessionFilter) -> Result<Vec<SessionMeta>, SessionStoreError> {
        let is_not = |fault| self.fault != fault;
        let is_wanted = |session: &&Session| {
            !is_not(Fault::IgnoresTheFilter)
                || filter.created_after.is_none_or(|time| session.created_at > time)
                    && filter.updated_after.is_none_or(|time| session.updated_at > time)
        };
        let offset = if is_not(Fault::IgnoresTheOffset) { filter.offset.unwrap_or(0) } else { 0 };
        let limit = if is_not(Fault::IgnoresTheLimit) { filter.limit.unwrap_or(usize::MAX) } else { usize::MAX };
        let snapshots = self.snapshots();
        let (first, then) = if is_not(Fault::CountsTheOffsetFirst) { (0, offset) } else { (offset, 0) };
        let wanted = snapshots.values().skip(first).filter(is_wanted).skip(then).take(limit);
        let meta = |session: &Session| SessionMeta {
            id: session.id,
            created_at: session.created_at,
            updated_at: session.updated_at,
            message_count: session.message_count,
            last_seq: session.last_seq,
            labels: session.labels.clone(),
        };
        Ok(wanted.map(meta).collect())
    }

    async fn delete(&self, id: &SessionId) -> Result<(), SessionStoreError> {
        if self.fault != Fault::KeepsWhatIsDeleted {
            self.snapshots().remove(id);
        }
        if self.fault == Fault::DeletesTheSessionToo {
            self.journals().remove(id);
        }
        Ok(())
    }

    async fn exists(&self, id: &SessionId) -> Result<bool, SessionStoreError> {
        Ok(self.snapshots().contains_key(id) || self.fault == Fault::ClaimsWhatIsNotThere)
    }
}

/// Stores that are made by the first function and restarted by the second.
struct Stores<F, R>(F, R);

#[async_trait]
impl<F: Fn() -> Pair + Send + Sync, R: Fn(Pair) -> Pair + Send + Sync> Harness for Stores<F, R> {
    async fn fresh(&self) -> Pair {
        self.0()
    }

    async fn restart(&self, pair: Pair) -> Pair {
        self.1(pair)
    }
}

/// What the suite finds broken in a naive store.
async fn broken(fault: Fault) -> Vec<&'static str> {
    let last: Mutex<Option<Arc<Naive>>> = Mutex::default();
    let fresh = || {
        let naive = Naive::new(fault);
        *last.lock().unwrap() = Some(naive.clone());
        Pair { events: naive.clone(), snapshots: naive }
    };
    let restart = |pair| {
        last.lock().unwrap().as_ref().unwrap().restart();
        pair
    };
    check(&Stores(fresh, restart)).await.into_iter().map(|broken| broken.promise).collect()
}

#[test]
fn a_wrong_store_is_caught_by_the_promise_that_it_breaks() {
    let caught = |fault| broken(fault).now_or_never().expect("a naive store never waits");
    assert_eq!(caught(Fault::None), [""; 0]);
    for (fault, promise) in [
        (Fault::EncodesAnew, "frames_are_the_encoded_events"),
        (Fault::IgnoresTheCursor, "a_page_begins_behind_its_cursor"),
        (Fault::ReadsOnWithoutEnd, "a_page_keeps_to_its_limit"),
        (Fault::TakesGaps, "a_gap_is_refused"),
        (Fault::TakesHalfABatch, "a_batch_is_taken_whole_or_not"),
        (Fault::TakesAnyLease, "only_the_newest_lease_appends"),
        (Fault::ForgetsWhatIsDurable, "what_is_durable_outlives_the_process"),
        (Fault::ShowsWhatIsNotDurable, "what_was_read_outlives_the_process"),
        (Fault::WatchesForEver, "a_watch_follows_and_ends"),
        (Fault::ForksOnlyTheName, "a_fork_is_the_beginning_and_what_is_its_own"),
        (Fault::LosesForksWithTheirParent, "a_fork_is_the_beginning_and_what_is_its_own"),
        (Fault::ImportsAnew, "an_import_is_its_lines_to_the_letter"),
        (Fault::ImportsOverOthers, "an_import_is_whole_or_not_there"),
        (Fault::ImportsAnyOrder, "an_import_is_whole_or_not_there"),
        (Fault::DeletesForNow, "what_is_deleted_stays_away"),
        (Fault::ListsInAnyOrder, "sessions_come_in_the_order_of_their_ids"),
        (Fault::SavesWhatShrinks, "what_was_said_never_shrinks"),
        (Fault::LoadsTheFirstOnly, "a_snapshot_is_loaded_as_it_was_saved"),
        (Fault::LoadsPastTheJournal, "no_snapshot_goes_past_its_journal"),
        (Fault::IgnoresTheFilter, "a_list_keeps_to_its_filter"),
        (Fault::IgnoresTheOffset, "a_list_keeps_to_its_offset_and_limit"),
        (Fault::IgnoresTheLimit, "a_list_keeps_to_its_offset_and_limit"),
        (Fault::CountsTheOffsetFirst, "a_list_keeps_to_its_offset_and_limit"),
        (Fault::KeepsWhatIsDeleted, "a_deleted_snapshot_is_gone"),
        (Fault::ClaimsWhatIsNotThere, "a_snapshot_never_speaks_for_its_session"),
        (Fault::DeletesTheSessionToo, "a_snapshot_never_speaks_for_its_session"),
    ] {
        let caught = caught(fault);
        assert!(caught.contains(&promise), "{fault:?} was caught by {caught:?}");
    }
}
