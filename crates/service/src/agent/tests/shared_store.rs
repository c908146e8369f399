//! A store that several nodes share: journals in memory, and leases that end by the clock.
//!
//! Each node has a handle. It renews its leases until it is stopped; a stopped node still runs, and knows nothing of it,
//! as a process does that was suspended for too long.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use uuid::Uuid;

use crate::{
    Seq, SessionId,
    clock::Timestamp,
    service::{SessionState, SessionSummary},
    session::event::{Event, Record},
    store::{
        Creation, EventStore, Fate, FramePage, Holder, Inbox, IndexedKey, Lease, Letter, MemoryEventStore, ReadLimit,
        RecordSource, StoreError, Ticket,
    },
};

/// Time after which a node that does not renew its leases has lost them.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// Handle of one node.
pub(super) struct NodeStore {
    name: &'static str,
    shared: Arc<Shared>,
}

/// Picks a record.
type IsMeant = fn(&Event) -> bool;

#[derive(Default)]
struct State {
    held: HashMap<SessionId, Held>,
    keys: HashMap<String, IndexedKey>,
    /// Nodes that do not renew their leases, since when.
    stopped: HashMap<&'static str, Instant>,
    /// Every lease that was given, in order.
    given: Vec<(&'static str, SessionId)>,
    letters: BTreeMap<Uuid, Posted>,
    takes_nothing: bool,
    loses_answers: bool,
    fails_leaving: bool,
    fails_taking: bool,
    fails_answering: bool,
    fails_asking: bool,
    /// How often records were dropped.
    version: u64,
    drops_beside_a_fork: bool,
    fails_reading: bool,
    /// Records that are fenced, how often, and those whose staging panics.
    fences: Option<(u32, IsMeant)>,
    panics: Option<IsMeant>,
    /// Node that panics when it is asked what it holds.
    panics_at_asking: Option<&'static str>,
    /// Last seq that was staged under each lease, as its node knows it.
    staged: HashMap<(SessionId, u64), Seq>,
    /// Node whose next lease is granted, and known there only when this is notified.
    late: Option<(&'static str, Arc<Notify>)>,
    /// Node that is not given its next leases, how many, and why.
    fails_leasing: Option<(&'static str, u32, StoreError)>,
    /// Node whose next records go lost.
    loses: Option<&'static str>,
    /// Node whose next records are stored, and which does not learn it.
    doubts: Option<&'static str>,
    /// Record that is stored, and known at its node only when this is notified.
    sleeps: Option<(IsMeant, Arc<Notify>)>,
    /// The store's word on lost records.
    lost: Option<oneshot::Sender<Result<Seq, StoreError>>>,
}

/// Letter that was left.
struct Posted {
    letter: Letter,
    is_taken: bool,
    answer: Option<String>,
}

struct Held {
    node: &'static str,
    epoch: u64,
    is_idle: bool,
}

struct Shared {
    events: MemoryEventStore,
    state: Mutex<State>,
}

impl State {
    fn has_expired(&self, held: &Held) -> bool {
        self.stopped.get(held.node).is_some_and(|since| since.elapsed() >= LEASE)
    }

    /// The other node that has a session.
    fn holder(&self, node: &str, session_id: SessionId) -> Option<Holder> {
        let held = self.held.get(&session_id)?;
        let is_free = held.node == node || held.is_idle || self.has_expired(held);
        (!is_free).then(|| Holder { node: held.node.to_owned(), until: Timestamp::from_millis(0) })
    }
}

impl NodeStore {
    /// Makes a store, and the handles of these nodes.
    pub(super) fn of<const N: usize>(names: [&'static str; N]) -> [Arc<Self>; N] {
        let events = MemoryEventStore::new(u64::MAX, Arc::default());
        let shared = Arc::new(Shared { events, state: Mutex::default() });
        names.map(|name| Arc::new(Self { name, shared: shared.clone() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic that is tested may happen under it.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node renews its leases no longer.
    pub(super) fn stop(&self) {
        self.state().stopped.insert(self.name, Instant::now());
    }

    /// The node's leases have ended.
    pub(super) fn ends(&self) {
        self.state().stopped.insert(self.name, Instant::now() - LEASE);
    }

    /// The node renews its leases again.
    pub(super) fn go_on(&self) {
        self.state().stopped.remove(self.name);
    }

    /// No letter is taken from now on.
    pub(super) fn takes_nothing(&self) {
        self.state().takes_nothing = true;
    }

    /// No answer arrives from now on.
    pub(super) fn loses_answers(&self) {
        self.state().loses_answers = true;
    }

    /// The next letters are taken, and the reply that holds them goes lost; then an answer cannot be given at once. Who
    /// asks next what became of one gets an error.
    pub(super) fn fails_at_letters(&self) {
        let mut state = self.state();
        (state.fails_leaving, state.fails_taking) = (true, true);
        (state.fails_answering, state.fails_asking) = (true, true);
    }

    /// Another node drops records just before the next fork is made.
    pub(super) fn drops_beside_a_fork(&self) {
        self.state().drops_beside_a_fork = true;
    }

    /// Another node drops records just before the next fork is made, and then a look at a journal fails.
    pub(super) fn fails_beside_a_fork(&self) {
        let mut state = self.state();
        (state.drops_beside_a_fork, state.fails_reading) = (true, true);
    }

    /// Of the next such records the store says that their node has lost its lease.
    pub(super) fn fences_next(&self, times: u32, is_meant: IsMeant) {
        self.state().fences = Some((times, is_meant));
    }

    /// The next such record makes its node panic.
    pub(super) fn panics_at_next(&self, is_meant: IsMeant) {
        self.state().panics = Some(is_meant);
    }

    /// The node panics when it next looks if it has a session.
    pub(super) fn panics_at_asking(&self) {
        self.state().panics_at_asking = Some(self.name);
    }

    /// The node learns of its next lease only when the answer is notified.
    pub(super) fn learns_late_of_its_lease(&self) -> Arc<Notify> {
        let known = Arc::<Notify>::default();
        self.state().late = Some((self.name, known.clone()));
        known
    }

    /// The store fails this often when that node asks for a lease.
    pub(super) fn fails_leasing_to(&self, other: &Self, times: u32, error: StoreError) {
        self.state().fails_leasing = Some((other.name, times, error));
    }

    /// The next such record is stored, and its node stands still until it is notified.
    pub(super) fn sleeps_after_next(&self, is_meant: IsMeant) -> Arc<Notify> {
        let wakes = Arc::<Notify>::default();
        self.state().sleeps = Some((is_meant, wakes.clone()));
        wakes
    }

    /// Returns true if a letter lies there, or is being answered.
    pub(super) fn has_letters(&self) -> bool {
        !self.state().letters.is_empty()
    }

    /// The next records of this node go lost on their way.
    pub(super) fn loses_next(&self) {
        self.state().loses = Some(self.name);
    }

    /// The next records of this node are stored, and it learns that nobody knows that.
    pub(super) fn doubts_next(&self) {
        self.state().doubts = Some(self.name);
    }

    /// The node learns that nobody knows what became of its lost records.
    pub(super) fn tells_of_the_lost(&self) {
        drop(self.state().lost.take().unwrap());
    }

    /// Nodes that a session was leased to, in order.
    pub(super) fn given(&self, session_id: SessionId) -> Vec<&'static str> {
        self.state().given.iter().filter(|(_, of)| *of == session_id).map(|(node, _)| *node).collect()
    }

    /// Stages as a process does that compares with what it knows itself, before the store knows better.
    fn staged(&self, state: &mut State, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError> {
        let staged = state.staged.entry((lease.session_id, lease.epoch)).or_insert(lease.tail);
        if batch.first().is_some_and(|first| first.seq != *staged + 1) {
            return Err(StoreError::OutOfOrder);
        }
        let ticket = self.shared.events.stage(lease, batch)?;
        *staged += batch.len() as u64;
        Ok(ticket)
    }

    fn expired(&self, is_own: bool) -> Vec<SessionId> {
        let state = self.state();
        let is_due = |held: &Held| !held.is_idle && (state.has_expired(held) || is_own && held.node == self.name);
        state.held.iter().filter(|(_, held)| is_due(held)).map(|(session_id, _)| *session_id).collect()
    }
}

#[async_trait]
impl EventStore for NodeStore {
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        if let Some(holder) = self.state().holder(self.name, session_id) {
            return Err(StoreError::HeldBy { session_id, holder });
        }
        if let Some((node, times @ 1.., error)) = &mut self.state().fails_leasing
            && *node == self.name
        {
            *times -= 1;
            return Err(error.clone());
        }
        let lease = self.shared.events.lease(session_id).await?;
        let late = {
            let mut state = self.state();
            let held = Held { node: self.name, epoch: lease.epoch, is_idle: false };
            state.held.insert(session_id, held);
            state.given.push((self.name, session_id));
            state.staged.insert((session_id, lease.epoch), lease.tail);
            state.late.take_if(|(node, _)| *node == self.name)
        };
        if let Some((_, known)) = late {
            known.notified().await;
        }
        Ok(lease)
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.held.get(&lease.session_id).is_some_and(|held| held.epoch == lease.epoch) {
            state.held.remove(&lease.session_id);
        }
        Ok(())
    }

    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError> {
        self.staged(&mut self.state(), lease, batch)
    }

    fn stage_listed(&self, lease: &Lease, batch: &[Record], row: &SessionSummary) -> Result<Ticket, StoreError> {
        let mut state = self.state();
        let is_next = |is_meant: &mut IsMeant| batch.iter().any(|record| is_meant(&record.event));
        if let Some((times @ 1.., is_meant)) = &mut state.fences
            && is_next(is_meant)
        {
            *times -= 1;
            return Err(StoreError::Fenced);
        }
        assert!(state.panics.take_if(is_next).is_none(), "the panic that is tested");
        if state.loses.take_if(|node| *node == self.name).is_some() {
            let (word, ticket) = Ticket::new();
            state.lost = Some(word);
            return Ok(ticket);
        }
        let ticket = self.staged(&mut state, lease, batch)?;
        if let Some(held) = state.held.get_mut(&lease.session_id) {
            held.is_idle = row.state == SessionState::Idle;
        }
        if let Some((_, wakes)) = state.sleeps.take_if(|(is_meant, _)| is_next(is_meant)) {
            let (word, late) = Ticket::new();
            tokio::spawn(async move {
                wakes.notified().await;
                drop(word.send(ticket.durable().await));
            });
            return Ok(late);
        }
        let is_in_doubt = state.doubts.take_if(|node| *node == self.name).is_some();
        Ok(if is_in_doubt { Ticket::new().1 } else { ticket })
    }

    async fn create(
        &self,
        first: &[Record],
        row: &SessionSummary,
        key: Option<&IndexedKey>,
    ) -> Result<Creation, StoreError> {
        if let Some(key) = key {
            let mut state = self.state();
            if let Some(known) = state.keys.get(&key.key.key) {
                return Ok(Creation::Exists(known.clone()));
            }
            state.keys.insert(key.key.key.clone(), key.clone());
        }
        let lease = self.lease(row.session_id).await?;
        self.stage_listed(&lease, first, row)?.durable().await?;
        Ok(Creation::Made(lease))
    }

    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
        let version = {
            let mut state = self.state();
            if !state.drops_beside_a_fork && std::mem::take(&mut state.fails_reading) {
                return Err(StoreError::Failed("the store is away".to_owned()));
            }
            state.version
        };
        let page = self.shared.events.read(session_id, after, limit).await?;
        Ok(page.map(|page| FramePage { version, ..page }))
    }

    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError> {
        self.shared.events.watch(session_id).await
    }

    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError> {
        self.shared.events.fork(parent, at, first).await
    }

    async fn fork_unpruned(
        &self,
        parent: SessionId,
        version: u64,
        at: Seq,
        first: &[Record],
    ) -> Result<(), StoreError> {
        {
            let mut state = self.state();
            state.version += u64::from(std::mem::take(&mut state.drops_beside_a_fork));
            if state.version != version {
                return Err(StoreError::Fenced);
            }
        }
        self.fork(parent, at, first).await
    }

    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError> {
        self.shared.events.import(session_id, records).await
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.shared.events.bytes(session_id).await
    }

    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError> {
        {
            let mut state = self.state();
            state.held.remove(&session_id);
            state.keys.retain(|_, key| key.session_id != session_id);
        }
        self.shared.events.delete(session_id).await
    }

    fn node(&self) -> Option<&str> {
        Some(self.name)
    }

    async fn end_leases(&self) {
        self.ends();
    }

    async fn holder(&self, session_id: SessionId) -> Result<Option<Holder>, StoreError> {
        Ok(self.state().holder(self.name, session_id))
    }

    async fn holds(&self, session_id: SessionId) -> Result<bool, StoreError> {
        let mut state = self.state();
        let panics = state.panics_at_asking.take_if(|node| *node == self.name).is_some();
        assert!(!panics, "the panic that is tested");
        Ok(state.held.get(&session_id).is_some_and(|held| held.node == self.name))
    }

    async fn orphaned(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(self.expired(false))
    }

    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(self.expired(true))
    }

    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        self.shared.events.sessions(after, limit).await
    }
}

#[async_trait]
impl Inbox for NodeStore {
    async fn leave(&self, id: Uuid, letter: &Letter) -> Result<(), StoreError> {
        let mut state = self.state();
        let posted = Posted { letter: letter.clone(), is_taken: false, answer: None };
        state.letters.entry(id).or_insert(posted);
        match std::mem::take(&mut state.fails_leaving) {
            true => Err(StoreError::Failed("the store is away".to_owned())),
            false => Ok(()),
        }
    }

    async fn fate(&self, id: Uuid, is_over: bool) -> Result<Fate, StoreError> {
        let mut state = self.state();
        if std::mem::take(&mut state.fails_asking) {
            return Err(StoreError::Failed("the store is away".to_owned()));
        }
        let Some(Posted { letter, is_taken, answer }) = state.letters.get(&id) else { return Ok(Fate::Lost) };
        let held = state.held.get(&letter.session_id).filter(|held| held.node == letter.node);
        let has_ended = |held: &Held| state.has_expired(held);
        let fate = match (answer, is_taken) {
            (Some(answer), _) => Fate::Answered(answer.clone()),
            (None, true) if held.is_none_or(has_ended) => Fate::Lost,
            (None, false) if is_over || held.is_none_or(|held| held.is_idle || has_ended(held)) => Fate::Returned,
            (None, _) => return Ok(Fate::Open),
        };
        state.letters.remove(&id);
        Ok(fate)
    }

    async fn take(&self, work: &[Uuid]) -> Result<Vec<(Uuid, Letter)>, StoreError> {
        let mut state = self.state();
        if state.takes_nothing {
            return Ok(Vec::new());
        }
        let is_due = |id: &Uuid, of: &Posted| of.letter.node == self.name && of.answer.is_none() && !work.contains(id);
        let letters = state.letters.iter_mut().filter(|(id, of)| is_due(id, of));
        let letters: Vec<(Uuid, Letter)> = letters
            .map(|(id, posted)| {
                posted.is_taken = true;
                (*id, posted.letter.clone())
            })
            .collect();
        match !letters.is_empty() && std::mem::take(&mut state.fails_taking) {
            true => Err(StoreError::Failed("the reply went lost".to_owned())),
            false => Ok(letters),
        }
    }

    async fn answer(&self, id: Uuid, answer: String) -> Result<(), StoreError> {
        let mut state = self.state();
        if state.loses_answers || std::mem::take(&mut state.fails_answering) {
            return Err(StoreError::Failed("the store is away".to_owned()));
        }
        if let Some(posted) = state.letters.get_mut(&id) {
            posted.answer = Some(answer);
        }
        Ok(())
    }
}
