//! Room for answers: bytes that are read for callers and not taken yet.
//!
//! Every surface takes room before it reads, and gives it back when the answer is written or dropped. A call that only
//! waits for an event holds none. While others wait for room, connections of many requests that hold some and take nothing
//! are ended: they wait in [`Answers::give_way`].

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, watch},
    time::{sleep, timeout},
};

use meerkat_words::reply::{Reply as _, encode_events};

use super::call::{call, decode_params};
use crate::{
    SessionError,
    operation::Operation,
    service::{FetchReader, FollowSessions, ReadEvents, SessionService},
};

/// Bytes that the answer to one read may have: a page of the largest size, an event that is longer, and their envelope.
const READ_BYTES: u32 = 6 * 1024 * 1024;
/// Bytes of answers that one connection may have under way, and those of one batch.
const CONNECTION_BYTES: u32 = 12 * 1024 * 1024;
/// Bytes of answers that connections may have under way together, and as many again are for single requests, however many
/// connections take nothing.
const SHARE_BYTES: u32 = 64 * 1024 * 1024;
/// How long a read waits for others to take their answers, or to be ended.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a client may take nothing while others wait for the room that it holds.
const GIVE_WAY_AFTER: Duration = Duration::from_secs(5);

/// The room of single requests, or of one connection, and perhaps of one batch in it. Clones share it.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The room that all share who are of this kind.
    shared: Share,
    /// The room that connections share.
    connections: Share,
    /// The room of one client alone.
    own: Option<Arc<Semaphore>>,
    /// Bytes that a batch has read.
    batch: Option<Arc<Mutex<usize>>>,
}

/// Room of many clients, and the number of reads that wait for it.
#[derive(Clone, Debug)]
struct Share {
    room: Arc<Semaphore>,
    waiting: watch::Sender<usize>,
}

/// One of the reads that wait.
struct Waiting<'a>(&'a watch::Sender<usize>);

/// Room that answers have. It is given back when this is dropped.
#[derive(Debug)]
pub struct Room {
    permits: Vec<OwnedSemaphorePermit>,
    /// Keeps the other reads of the batch waiting until this one is done.
    batch: Option<OwnedMutexGuard<usize>>,
}

/// An answer's JSON, with the room that it takes.
#[derive(Debug)]
pub struct Answer {
    bytes: Vec<u8>,
    room: Option<Room>,
}

impl Default for Answers {
    fn default() -> Self {
        Self::new(SHARE_BYTES)
    }
}

impl Answers {
    /// Makes room for so many bytes of single requests, and as many of connections.
    #[must_use]
    pub fn new(bytes: u32) -> Self {
        let share = || Share { room: Arc::new(Semaphore::new(bytes as usize)), waiting: watch::Sender::new(0) };
        Self { shared: share(), connections: share(), own: None, batch: None }
    }

    /// The room of one more connection, which sends requests beside each other.
    #[must_use]
    pub fn of_connection(&self) -> Self {
        let own = Some(Arc::new(Semaphore::new(CONNECTION_BYTES as usize)));
        Self { shared: self.connections.clone(), own, ..self.clone() }
    }

    /// Waits for some seconds, and then until others wait for room that this client holds. If it has taken nothing in
    /// that time, its connection is to be ended.
    pub async fn give_way(&self) {
        sleep(GIVE_WAY_AFTER).await;
        let holds_some = || self.own.as_ref().is_some_and(|own| own.available_permits() < CONNECTION_BYTES as usize);
        // It fails only without a sender, and this is one.
        self.shared.waiting.subscribe().wait_for(|waiting| *waiting > 0 && holds_some()).await.ok();
    }

    /// The room of one batch: its reads follow each other, and each answer keeps its own until all are there.
    #[must_use]
    pub fn of_batch(&self) -> Self {
        Self { batch: Some(Arc::default()), ..self.clone() }
    }

    /// Waits for room for an operation's answer; `None` for operations with small answers.
    ///
    /// # Errors
    /// `TOO_MANY_CONNECTIONS` if others do not take their answers, `PAYLOAD_TOO_LARGE` if the batch has no more.
    pub async fn room(&self, operation: Operation) -> Result<Option<Room>, SessionError> {
        if !reads_much(operation) {
            return Ok(None);
        }
        let Some(batch) = &self.batch else { return self.take().await.map(Some) };
        let used = batch.clone().lock_owned().await;
        let (bytes, limit) = (*used + READ_BYTES as usize, CONNECTION_BYTES as usize);
        if bytes > limit {
            return Err(SessionError::PayloadTooLarge { what: "batch", bytes: bytes as u64, limit: limit as u64 });
        }
        // Two batches of a connection may wait for each other's room.
        let room = timeout(WAIT_MAX, self.take()).await.unwrap_or(Err(SessionError::TooManyAnswers))?;
        Ok(Some(Room { batch: Some(used), ..room }))
    }

    async fn take(&self) -> Result<Room, SessionError> {
        let closed = |_| SessionError::ShuttingDown;
        let mut permits = Vec::with_capacity(2);
        // Its own room first: a client that takes nothing then waits for itself, for as long as it likes.
        if let Some(own) = &self.own {
            permits.push(own.clone().acquire_many_owned(READ_BYTES).await.map_err(closed)?);
        }
        let Share { room, waiting } = &self.shared;
        let permit = match room.clone().try_acquire_many_owned(READ_BYTES) {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = Waiting::new(waiting);
                let permit = timeout(WAIT_MAX, room.clone().acquire_many_owned(READ_BYTES)).await;
                permit.map_err(|_| SessionError::TooManyAnswers)?.map_err(closed)?
            }
        };
        permits.push(permit);
        Ok(Room { permits, batch: None })
    }

    /// Performs an operation, its answer within this room.
    ///
    /// # Errors
    /// As [`Self::room`], and whatever the operation is refused with.
    pub async fn call(
        &self,
        service: &dyn SessionService,
        operation: Operation,
        params: &str,
    ) -> Result<Answer, SessionError> {
        // A wait holds no room, and drops what it finds.
        let (bytes, room) = match operation {
            Operation::Events => {
                let request: ReadEvents = decode_params(params)?;
                let now = ReadEvents { wait_ms: 0, ..request.clone() };
                let mut room = self.room(operation).await?;
                let mut page = service.events(now.clone()).await?;
                if page.items.is_empty() && request.wait_ms > 0 {
                    drop(room);
                    service.events(ReadEvents { limit: Some(1), ..request }).await?;
                    room = self.room(operation).await?;
                    page = service.events(now).await?;
                }
                (encode_events(&page), room)
            }
            Operation::FetchReader => {
                let request: FetchReader = decode_params(params)?;
                let now = FetchReader { wait_ms: 0, ..request.clone() };
                let mut room = self.room(operation).await?;
                let mut page = service.fetch_reader(now.clone()).await?;
                if page.items.is_empty() && request.wait_ms > 0 {
                    drop(room);
                    service.fetch_reader(FetchReader { limit: Some(1), ..request }).await?;
                    room = self.room(operation).await?;
                    page = service.fetch_reader(now).await?;
                }
                (page.write()?, room)
            }
            Operation::Changes => {
                let request: FollowSessions = decode_params(params)?;
                let now = FollowSessions { wait_ms: 0, ..request.clone() };
                let mut room = self.room(operation).await?;
                let mut page = service.changes(now.clone()).await?;
                if page.items.is_empty() && !page.restarts && request.wait_ms > 0 {
                    drop(room);
                    service.changes(FollowSessions { limit: Some(1), ..request }).await?;
                    room = self.room(operation).await?;
                    page = service.changes(now).await?;
                }
                (page.write()?, room)
            }
            _ => {
                let room = self.room(operation).await?;
                (call(service, operation, params).await?, room)
            }
        };
        Ok(Answer::within(bytes, room))
    }
}

impl<'a> Waiting<'a> {
    fn new(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|waiting| *waiting += 1);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl Room {
    /// Gives back room that an answer of this length does not need.
    pub fn shrink(&mut self, bytes: usize) {
        for permit in &mut self.permits {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
        if let Some(mut used) = self.batch.take() {
            *used += bytes;
        }
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, room: None }
    }
}

impl Answer {
    /// Makes an answer in its room, and gives back the rest.
    #[must_use]
    pub fn within(bytes: Vec<u8>, mut room: Option<Room>) -> Self {
        if let Some(room) = &mut room {
            room.shrink(bytes.len());
        }
        Self { bytes, room }
    }

    /// Changes the answer's bytes.
    #[must_use]
    pub fn map(self, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Self {
        Self { bytes: change(self.bytes), room: self.room }
    }

    /// Many answers as one, in the room of them all.
    pub fn join(answers: Vec<Self>, join: impl FnOnce(Vec<Vec<u8>>) -> Option<Vec<u8>>) -> Option<Self> {
        let (bytes, rooms): (Vec<_>, Vec<_>) = answers.into_iter().map(Self::into_parts).unzip();
        let permits: Vec<_> = rooms.into_iter().flatten().flat_map(|room| room.permits).collect();
        Some(Self { bytes: join(bytes)?, room: Some(Room { permits, batch: None }) })
    }

    /// Returns the bytes, and the room that they take while it is kept.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, Option<Room>) {
        (self.bytes, self.room)
    }

    /// The bytes. Their room is given back when they are dropped.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.into_parts() {
            (bytes, None) => bytes.into(),
            (bytes, Some(room)) => Bytes::from_owner(Held { bytes, _room: room }),
        }
    }
}

struct Held {
    bytes: Vec<u8>,
    _room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns true if an answer may be a page.
const fn reads_much(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Events
            | Operation::History
            | Operation::Blob
            | Operation::Read
            | Operation::List
            | Operation::Changes
            | Operation::Approvals
            | Operation::Steps
            | Operation::Turns
            | Operation::ExportSession
            | Operation::FetchReader
            | Operation::SearchMemory
    )
}

#[cfg(test)]
mod tests {
    use meerkat_errors::ErrorCode;

    use super::*;

    async fn room(answers: &Answers) -> Result<Room, ErrorCode> {
        answers.room(Operation::List).await.map(Option::unwrap).map_err(|error| error.code())
    }

    #[tokio::test(start_paused = true)]
    async fn room_that_others_keep_is_waited_for_for_so_long() {
        let answers = Answers::new(READ_BYTES);
        let kept = room(&answers).await.unwrap();
        assert_eq!(room(&answers).await.unwrap_err(), ErrorCode::TooManyConnections);
        assert!(answers.room(Operation::Read).await.is_err() && answers.room(Operation::Queue).await.is_ok());
        drop(kept);
        assert!(room(&answers).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_is_too_large_is_refused_before_any_wait() {
        let agent = crate::AgentBuildConfig::new().build().unwrap();
        let session_id = agent.create_session().await.unwrap().session_id;
        let params = format!(r#"{{"session_id":"{session_id}","since_seq":1,"limit":1000000,"wait_ms":5000}}"#);
        let began = tokio::time::Instant::now();
        let refused = Answers::default().call(agent.service().as_ref(), Operation::Events, &params).await;
        assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidRequest);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_for_itself() {
        let answers = Answers::default();
        let slow = answers.of_connection();
        let kept = [room(&slow).await.unwrap(), room(&slow).await.unwrap()];
        assert!(timeout(WAIT_MAX * 100, room(&slow)).await.is_err(), "it is neither refused nor served");
        assert!(room(&answers.of_connection()).await.is_ok());
        drop(kept);
        assert!(room(&slow).await.is_ok());
    }

    /// True if this client would be ended now, had it taken nothing for so long.
    async fn gives_way(client: &Answers, limit: Duration) -> bool {
        timeout(limit, client.give_way()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_gives_way_only_if_others_wait_for_what_it_holds() {
        let answers = Answers::new(READ_BYTES);
        let (holder, idle, next) = (answers.of_connection(), answers.of_connection(), answers.of_connection());
        let kept = room(&holder).await.unwrap();
        assert!(!gives_way(&holder, WAIT_MAX * 100).await, "nobody waits");
        // The holder is ended in time for the one that waits.
        let ended = async {
            holder.give_way().await;
            drop(kept);
        };
        let (came, (), idle_ended, early) = futures::join!(
            room(&next),
            ended,
            gives_way(&idle, WAIT_MAX),
            gives_way(&holder, GIVE_WAY_AFTER - Duration::from_millis(1)),
        );
        assert!(came.is_ok() && !idle_ended && !early);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_leave_room_to_single_requests_however_many_they_are() {
        let answers = Answers::default();
        let mut kept = Vec::new();
        while let Ok(room) = room(&answers.of_connection()).await {
            kept.push(room);
        }
        assert!(kept.len() > 1 && room(&answers).await.is_ok());
        kept.pop();
        assert!(room(&answers.of_connection()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_keeps_what_its_answers_take() {
        let answers = Answers::default();
        let batch = answers.of_batch();
        let mut kept = Vec::new();
        let refusal = loop {
            match room(&batch).await {
                Ok(mut room) => {
                    room.shrink(4_000_000);
                    kept.push(room);
                }
                Err(code) => break code,
            }
        };
        assert_eq!((refusal, kept.len()), (ErrorCode::PayloadTooLarge, 2));
        assert_eq!(answers.shared.room.available_permits(), SHARE_BYTES as usize - 8_000_000);
        drop(kept);
        assert_eq!(answers.shared.room.available_permits(), SHARE_BYTES as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn two_batches_of_a_connection_do_not_wait_for_each_other_for_ever() {
        let connection = Answers::default().of_connection();
        let batches = [connection.of_batch(), connection.of_batch()];
        let mut kept = Vec::new();
        for batch in &batches {
            kept.push(room(batch).await.unwrap());
            kept.last_mut().unwrap().shrink(4_000_000);
        }
        let both = futures::join!(room(&batches[0]), room(&batches[1]));
        assert_eq!(
            (both.0.unwrap_err(), both.1.unwrap_err()),
            (ErrorCode::TooManyConnections, ErrorCode::TooManyConnections)
        );
    }
}
