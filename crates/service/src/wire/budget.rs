//! Room for answers: bytes that are read for callers and not taken yet.
//!
//! REST and MCP take room before they read, and give it back when the answer is written or dropped. A call that only waits
//! for an event holds none. A client that takes nothing of its answer is ended by the listener, and its room is free then.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use meerkat_words::reply::{Reply as _, encode_events};

use super::call::{call, decode_params};
use crate::{
    SessionError,
    operation::Operation,
    service::{ChangePage, EventPage, FetchReader, FollowSessions, ReadEvents, RecordPage, SessionService},
};

/// Bytes that the answer to one read may have: a page of the largest size, an event that is longer, and their envelope.
const READ_BYTES: u32 = 6 * 1024 * 1024;
/// Bytes of answers that clients may have under way together.
const ANSWERS_BYTES: u32 = 64 * 1024 * 1024;
/// How long a read waits for others to take their answers, or to be ended.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The room that answers have together. Clones share it.
#[derive(Clone, Debug)]
pub struct Answers(Arc<Semaphore>);

/// Room that one answer has. It is given back when this is dropped.
#[derive(Debug)]
pub struct Room(OwnedSemaphorePermit);

/// An answer's JSON, with the room that it takes.
#[derive(Debug)]
pub struct Answer {
    bytes: Vec<u8>,
    room: Option<Room>,
}

impl Default for Answers {
    fn default() -> Self {
        Self::new(ANSWERS_BYTES)
    }
}

impl Answers {
    /// Makes room for so many bytes.
    #[must_use]
    pub fn new(bytes: u32) -> Self {
        Self(Arc::new(Semaphore::new(bytes as usize)))
    }

    /// Waits for room for an operation's answer; `None` for operations with small answers.
    ///
    /// # Errors
    /// `TOO_MANY_CONNECTIONS` if others do not take their answers.
    pub async fn room(&self, operation: Operation) -> Result<Option<Room>, SessionError> {
        if !reads_much(operation) {
            return Ok(None);
        }
        let permit = timeout(WAIT_MAX, self.0.clone().acquire_many_owned(READ_BYTES)).await;
        let permit = permit.map_err(|_| SessionError::TooManyAnswers)?.map_err(|_| SessionError::ShuttingDown)?;
        Ok(Some(Room(permit)))
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
        let (bytes, room) = match operation {
            Operation::Events => {
                let request: ReadEvents = decode_params(params)?;
                let (now, next) = (
                    ReadEvents { wait_ms: 0, ..request.clone() },
                    (request.wait_ms > 0).then_some(ReadEvents { limit: Some(1), ..request }),
                );
                let is_empty = |page: &EventPage| page.items.is_empty();
                let (page, room) = self.page(operation, (now, next), is_empty, |read| service.events(read)).await?;
                (encode_events(&page), room)
            }
            Operation::FetchReader => {
                let request: FetchReader = decode_params(params)?;
                let (now, next) = (
                    FetchReader { wait_ms: 0, ..request.clone() },
                    (request.wait_ms > 0).then_some(FetchReader { limit: Some(1), ..request }),
                );
                let is_empty = |page: &RecordPage| page.items.is_empty();
                let (page, room) =
                    self.page(operation, (now, next), is_empty, |read| service.fetch_reader(read)).await?;
                (page.write()?, room)
            }
            Operation::Changes => {
                let request: FollowSessions = decode_params(params)?;
                let (now, next) = (
                    FollowSessions { wait_ms: 0, ..request.clone() },
                    (request.wait_ms > 0).then_some(FollowSessions { limit: Some(1), ..request }),
                );
                let is_empty = |page: &ChangePage| page.items.is_empty() && !page.restarts;
                let (page, room) = self.page(operation, (now, next), is_empty, |read| service.changes(read)).await?;
                (page.write()?, room)
            }
            _ => {
                let room = self.room(operation).await?;
                (call(service, operation, params).await?, room)
            }
        };
        Ok(Answer::within(bytes, room))
    }

    /// Reads a page. If it is empty, `next` waits for its first item: that wait holds no room, and drops what it finds.
    async fn page<Q: Clone, P, R: Future<Output = Result<P, SessionError>>>(
        &self,
        operation: Operation,
        (now, next): (Q, Option<Q>),
        is_empty: impl Fn(&P) -> bool,
        read: impl Fn(Q) -> R,
    ) -> Result<(P, Option<Room>), SessionError> {
        let room = self.room(operation).await?;
        let page = read(now.clone()).await?;
        let Some(next) = next.filter(|_| is_empty(&page)) else { return Ok((page, room)) };
        drop((page, room));
        read(next).await?;
        let room = self.room(operation).await?;
        Ok((read(now).await?, room))
    }
}

impl Room {
    /// Gives back room that an answer of this length does not need.
    pub fn shrink(&mut self, bytes: usize) {
        drop(self.0.split(self.0.num_permits().saturating_sub(bytes)));
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
            | Operation::Calls
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
    async fn an_answer_keeps_the_room_that_it_takes() {
        let answers = Answers::default();
        let room = room(&answers).await.unwrap();
        let bytes = Answer::within(vec![b' '; 4_000_000], Some(room)).into_bytes();
        assert_eq!(answers.0.available_permits(), ANSWERS_BYTES as usize - 4_000_000);
        drop(bytes);
        assert_eq!(answers.0.available_permits(), ANSWERS_BYTES as usize);
    }
}
