//! Subscriptions: each is a cursor, never a queue. One task moves it as fast as the client reads.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use meerkat_service::{
    ErrorBody, Seq, SessionError, SessionId, SessionService,
    follow::Follower,
    service::{ChangePage, FollowSessions},
    wire::encode,
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    error::{self, Failure},
    wire::{Outward, end_of_subscription},
};

/// Milliseconds to wait for changes of the list before it is asked again; nobody sees it.
const LIST_WAIT_MS: u64 = 30_000;

/// The origin of a subscription's lines.
pub(crate) enum Source {
    /// The events of a session.
    Session(SessionId, Follower),
    /// The changes of the list, with the first page and the cursor after the last one.
    List(Arc<dyn SessionService>, Box<Option<ChangePage>>, Option<String>),
}

impl Source {
    /// The session, and the seq after which its events come.
    fn place(&self) -> Option<(SessionId, Seq)> {
        match self {
            Self::Session(session_id, follower) => Some((*session_id, follower.cursor())),
            Self::List(..) => None,
        }
    }

    /// Waits for the next line.
    async fn next(&mut self) -> Result<Bytes, SessionError> {
        match self {
            Self::Session(session_id, follower) => {
                let line = follower.next().await?.ok_or(SessionError::NotFound(*session_id))?;
                Ok(line.line)
            }
            Self::List(service, first, cursor) => loop {
                let page = match first.take() {
                    Some(page) => page,
                    None => {
                        let cursor = cursor.clone();
                        service.changes(FollowSessions { cursor, limit: None, wait_ms: LIST_WAIT_MS }).await?
                    }
                };
                let has_news = page.restarts || !page.items.is_empty();
                let line = encode(&page)?;
                *cursor = Some(page.next_cursor);
                if has_news {
                    return Ok(line.into());
                }
            },
        }
    }
}

/// The beginning of a subscription; if it is dropped, the subscription ends.
pub(crate) struct Start {
    begin: oneshot::Sender<()>,
    at: watch::Sender<Option<Seq>>,
    since: Option<Seq>,
}

impl Start {
    /// Makes answers wait for the subscription's events from now on. Called before its number is answered.
    pub(crate) fn announce(&self) {
        self.at.send_replace(self.since);
    }

    /// Lets the events come. Called after its number is answered.
    pub(crate) fn begin(self) {
        // The task may have ended.
        self.begin.send(()).ok();
    }
}

/// Waits for `work` while bytes are written; `None` if for `limit` it did not end and no byte was written.
pub(crate) async fn unless_stalled<T>(
    work: impl Future<Output = T>,
    limit: Duration,
    written: &AtomicU64,
) -> Option<T> {
    tokio::pin!(work);
    let mut seen = written.load(Ordering::Relaxed);
    loop {
        if let Ok(done) = timeout(limit, &mut work).await {
            return Some(done);
        }
        let now = written.load(Ordering::Relaxed);
        if now == seen {
            return None;
        }
        seen = now;
    }
}

/// Bytes of events on their way to one client; a longer event is alone.
const IN_FLIGHT_BYTES: u32 = 16 * 1024;

/// Requests of one connection that wait for the end of a turn. Further ones keep the place of their message.
const WAITS_MAX: usize = 4096;

/// The client of a connection, with its subscriptions.
pub(crate) struct Peer {
    pub(crate) out: mpsc::Sender<Outward>,
    /// In bytes of events.
    room: Arc<Semaphore>,
    /// In requests that wait for the end of a turn.
    waits: Arc<Semaphore>,
    /// Bytes written so far.
    written: Arc<AtomicU64>,
    stall: Duration,
    subscriptions_max: usize,
    subscriptions: Mutex<Subscriptions>,
    /// `PATH` of the command at the other end, if it sent one.
    pub(crate) search_path: Option<String>,
}

#[derive(Default)]
struct Subscriptions {
    last: u64,
    tasks: HashMap<u64, Subscription>,
}

struct Subscription {
    task: AbortOnDropHandle<()>,
    /// `None` for the list.
    session_id: Option<SessionId>,
    /// The cursor behind the last event that was sent; `None` before the subscription begins.
    sent: watch::Receiver<Option<Seq>>,
}

impl Peer {
    pub(crate) fn new(
        out: mpsc::Sender<Outward>,
        written: Arc<AtomicU64>,
        stall: Duration,
        subscriptions_max: usize,
        search_path: Option<String>,
    ) -> Self {
        let room = Arc::new(Semaphore::new(IN_FLIGHT_BYTES as usize));
        let waits = Arc::new(Semaphore::new(WAITS_MAX));
        let subscriptions = Mutex::default();
        Self { out, room, waits, written, stall, subscriptions_max, subscriptions, search_path }
    }

    /// The places of requests that wait for the end of a turn.
    pub(crate) fn waits(&self) -> Arc<Semaphore> {
        self.waits.clone()
    }

    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a subscription; returns its number and its beginning.
    pub(crate) fn subscribe(self: &Arc<Self>, source: Source) -> Result<(u64, Start), ErrorBody> {
        let mut held = self.subscriptions();
        if held.tasks.len() >= self.subscriptions_max {
            return Err(error::too_many_subscriptions(self.subscriptions_max));
        }
        held.last += 1;
        let subscription = held.last;
        let (begin, started) = oneshot::channel();
        let peer = self.clone();
        let (at, sent) = watch::channel(None);
        let place = source.place();
        let (session_id, since) = (place.map(|(session_id, _)| session_id), place.map(|(_, since)| since));
        let start = Start { begin, at: at.clone(), since };
        let task = tokio::spawn(async move {
            let end = peer.send_events(subscription, source, started, at).await;
            if let Some(reason) = end {
                // The client may have left.
                peer.out.send(Outward::Answer(end_of_subscription(subscription, &reason.into()))).await.ok();
            }
            peer.subscriptions().tasks.remove(&subscription);
        });
        held.tasks.insert(subscription, Subscription { task: AbortOnDropHandle::new(task), session_id, sent });
        Ok((subscription, start))
    }

    /// Waits until the subscriptions of a session have sent its events up to `seq`, or ended. A subscription that has not
    /// begun is not waited for: its number may be answered in the same batch.
    pub(crate) async fn sent_up_to(&self, session_id: SessionId, seq: Seq) {
        let held = self
            .subscriptions()
            .tasks
            .values()
            .filter(|held| held.session_id == Some(session_id))
            .map(|held| held.sent.clone())
            .collect::<Vec<_>>();
        for mut sent in held {
            sent.wait_for(|sent| sent.is_none_or(|sent| sent >= seq)).await.ok();
        }
    }

    /// Ends a subscription, and sends nothing more of it; returns whether it existed.
    pub(crate) async fn unsubscribe(&self, subscription: u64) -> bool {
        let task = self.subscriptions().tasks.remove(&subscription);
        let is_there = task.is_some();
        if let Some(Subscription { task, .. }) = task {
            task.abort();
            // It was cancelled, or has just ended.
            task.await.ok();
        }
        is_there
    }

    /// Ends all subscriptions, and sends the reason if there is one.
    pub(crate) async fn end(&self, reason: Option<&Failure>) {
        let subscriptions: Vec<u64> = self.subscriptions().tasks.keys().copied().collect();
        for subscription in subscriptions {
            if self.unsubscribe(subscription).await
                && let Some(reason) = reason
            {
                // The client may have left.
                self.out.send(Outward::Answer(end_of_subscription(subscription, reason))).await.ok();
            }
        }
    }

    /// Sends events until the client leaves or the subscription ends; returns the reason for the end.
    async fn send_events(
        &self,
        subscription: u64,
        mut source: Source,
        started: oneshot::Receiver<()>,
        at: watch::Sender<Option<Seq>>,
    ) -> Option<ErrorBody> {
        started.await.ok()?;
        loop {
            let since_seq = source.place().map(|(_, since)| since);
            at.send_replace(since_seq);
            let next = tokio::select! {
                next = source.next() => next,
                () = self.out.closed() => return None,
            };
            let line = match next {
                Ok(line) => line,
                Err(error) => return Some(error.body()),
            };
            match unless_stalled(self.send_event(subscription, line), self.stall, &self.written).await {
                Some(Some(())) => {}
                Some(None) => return None,
                None => return Some(error::lagged(since_seq)),
            }
        }
    }

    /// Sends an event when there is room for it; `None` if the client has left.
    async fn send_event(&self, subscription: u64, line: Bytes) -> Option<()> {
        let bytes = u32::try_from(line.len()).unwrap_or(u32::MAX).clamp(1, IN_FLIGHT_BYTES);
        let room = self.room.clone().acquire_many_owned(bytes).await.ok()?;
        self.out.send(Outward::Event { subscription, line, _room: room }).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use meerkat_service::{
        AgentBuildConfig,
        service::{PinFact, ReadEvents},
    };

    use super::*;

    /// Lets the other tasks go as far as they can.
    async fn settle() {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_is_on_its_way_to_a_client_is_bounded_in_bytes() {
        let agent = AgentBuildConfig::new().build().unwrap();
        let (service, session_id) = (agent.service(), agent.create_session().await.unwrap().session_id);
        for _ in 0..40 {
            service.pin(PinFact { session_id, text: "x".repeat(1000) }).await.unwrap();
        }
        let request = ReadEvents::new(session_id, 0);
        let mut lengths: Vec<usize> = service.events(request).await.unwrap().items.iter().map(Bytes::len).collect();
        // The queue has places for all, so that the bytes alone hold them back.
        let (out, mut queue) = mpsc::channel(100);
        let peer = Arc::new(Peer::new(out, Arc::default(), Duration::from_secs(30), 1, None));
        let (_, start) =
            peer.subscribe(Source::Session(session_id, service.follow(&session_id, 0).await.unwrap())).unwrap();
        start.announce();
        start.begin();
        while !lengths.is_empty() {
            settle().await;
            let queued: Vec<Outward> = std::iter::from_fn(|| queue.try_recv().ok()).collect();
            let mut bytes = 0;
            let fitting = lengths.iter().take_while(|length| {
                bytes += **length;
                bytes <= IN_FLIGHT_BYTES as usize
            });
            let expected = fitting.count();
            assert_eq!(queued.len(), expected);
            lengths.drain(..expected);
        }
    }
}
