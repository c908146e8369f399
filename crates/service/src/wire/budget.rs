//! Room for answers: how many bytes are read for callers who have not taken them yet.
//!
//! Every surface takes room before it reads, and gives it back when the answer has been written or dropped. What only
//! waits for something to happen holds none.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use meerkat_words::reply::{Reply as _, encode_events};

use super::call::{call, decode_params};
use crate::{
    SessionError,
    operation::Operation,
    service::{FetchReader, ReadEvents, SessionService},
};

/// Bytes that the answer to one read may have: a page of the largest size, an event that is longer, and their envelope.
const READ_BYTES: u32 = 6 * 1024 * 1024;
/// Bytes of answers that one connection may have under way, and those of one batch.
const CONNECTION_BYTES: u32 = 16 * 1024 * 1024;
/// Bytes of answers that all connections may have under way.
const PROCESS_BYTES: u32 = 128 * 1024 * 1024;

/// The room of a process, and perhaps of one connection in it. Clones share it.
#[derive(Clone, Debug)]
pub struct Answers {
    process: Arc<Semaphore>,
    connection: Option<Arc<Semaphore>>,
}

/// Room that an answer has. It is given back when this is dropped.
#[derive(Debug)]
pub struct Room(Vec<OwnedSemaphorePermit>);

/// An answer's JSON, with the room that it takes.
#[derive(Debug)]
pub struct Answer {
    bytes: Vec<u8>,
    room: Option<Room>,
}

/// The one room of a batch, whose reads follow each other.
#[derive(Debug)]
pub struct Batch {
    answers: Answers,
    state: Mutex<BatchState>,
}

#[derive(Debug)]
struct BatchState {
    room: Option<Room>,
    used: usize,
    reads_left: usize,
}

impl Default for Answers {
    fn default() -> Self {
        Self { process: Arc::new(Semaphore::new(PROCESS_BYTES as usize)), connection: None }
    }
}

impl Answers {
    /// The room of one more connection.
    #[must_use]
    pub fn of_connection(&self) -> Self {
        let connection = Some(Arc::new(Semaphore::new(CONNECTION_BYTES as usize)));
        Self { process: self.process.clone(), connection }
    }

    /// Waits for room for the answer to an operation; `None` for what answers little.
    ///
    /// # Errors
    /// None in practice: the room is never closed.
    pub async fn room(&self, operation: Operation) -> Result<Option<Room>, SessionError> {
        if !reads_much(operation) {
            return Ok(None);
        }
        self.take(READ_BYTES).await.map(Some)
    }

    async fn take(&self, bytes: u32) -> Result<Room, SessionError> {
        let closed = |_| SessionError::ShuttingDown;
        let mut permits = Vec::with_capacity(2);
        // The connection's own room first: a client that takes nothing then waits for itself.
        for room in self.connection.iter().chain([&self.process]) {
            permits.push(room.clone().acquire_many_owned(bytes).await.map_err(closed)?);
        }
        Ok(Room(permits))
    }

    /// Performs an operation, its answer within this room.
    ///
    /// # Errors
    /// Whatever the operation is refused with.
    pub async fn call(
        &self,
        service: &dyn SessionService,
        operation: Operation,
        params: &str,
    ) -> Result<Answer, SessionError> {
        let room = self.room(operation).await?;
        let now = read(service, operation, params, Phase::Now).await?;
        if !now.may_wait {
            return Ok(Answer { bytes: now.bytes, room });
        }
        drop(room);
        let first = read(service, operation, params, Phase::First).await?;
        if first.is_empty {
            return Ok(first.bytes.into());
        }
        let room = self.room(operation).await?;
        Ok(Answer { bytes: read(service, operation, params, Phase::Now).await?.bytes, room })
    }

    /// The room of a batch with so many of these operations.
    pub fn batch(&self, operations: impl Iterator<Item = Operation>) -> Batch {
        let reads_left = operations.filter(|operation| reads_much(*operation)).count();
        Batch { answers: self.clone(), state: Mutex::new(BatchState { room: None, used: 0, reads_left }) }
    }
}

impl Batch {
    /// Performs an operation of the batch. A read for which there is no more room is refused, because a batch is
    /// answered as a whole.
    ///
    /// # Errors
    /// `PAYLOAD_TOO_LARGE`, and whatever the operation is refused with.
    pub async fn call(
        &self,
        service: &dyn SessionService,
        operation: Operation,
        params: &str,
    ) -> Result<Vec<u8>, SessionError> {
        if !reads_much(operation) {
            return call(service, operation, params).await;
        }
        let mut state = self.state.lock().await;
        let mut answer = self.read(&mut state, service, operation, params, Phase::Now).await;
        if answer.as_ref().is_ok_and(|read| read.may_wait) {
            // The others need not wait for it.
            drop(state);
            let first = read(service, operation, params, Phase::First).await;
            state = self.state.lock().await;
            answer = match first {
                Ok(first) if !first.is_empty => self.read(&mut state, service, operation, params, Phase::Now).await,
                other => other,
            };
        }
        state.count_off(answer.as_ref().map_or(0, |read| read.bytes.len()));
        Ok(answer?.bytes)
    }

    /// Counts an operation off that was refused before it was performed.
    pub async fn refused(&self, operation: Operation) {
        if reads_much(operation) {
            self.state.lock().await.count_off(0);
        }
    }

    async fn read(
        &self,
        state: &mut BatchState,
        service: &dyn SessionService,
        operation: Operation,
        params: &str,
        phase: Phase,
    ) -> Result<Read, SessionError> {
        let limit = CONNECTION_BYTES as usize;
        let bytes = state.used + READ_BYTES as usize;
        if bytes > limit {
            return Err(SessionError::PayloadTooLarge { what: "batch", bytes: bytes as u64, limit: limit as u64 });
        }
        if state.room.is_none() {
            state.room = Some(self.answers.take(CONNECTION_BYTES).await?);
        }
        read(service, operation, params, phase).await
    }

    /// The batch's whole answer, in its room.
    #[must_use]
    pub fn into_answer(self, bytes: Vec<u8>) -> Answer {
        Answer { bytes, room: self.state.into_inner().room }
    }
}

impl BatchState {
    /// Counts a read off. After the last one the room is what the answers take, however long the rest of the batch waits.
    fn count_off(&mut self, bytes: usize) {
        self.reads_left = self.reads_left.saturating_sub(1);
        self.used += bytes;
        if let (0, Some(room)) = (self.reads_left, &mut self.room) {
            room.shrink(self.used);
        }
    }
}

impl Room {
    /// Gives back what an answer of this length does not need.
    pub fn shrink(&mut self, bytes: usize) {
        for permit in &mut self.0 {
            drop(permit.split(permit.num_permits().saturating_sub(bytes)));
        }
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, room: None }
    }
}

impl Answer {
    /// The same answer, put another way.
    #[must_use]
    pub fn map(self, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Self {
        Self { bytes: change(self.bytes), room: self.room }
    }

    /// The bytes, and the room that they take for as long as it is kept.
    #[must_use]
    pub fn into_parts(mut self) -> (Vec<u8>, Option<Room>) {
        if let Some(room) = &mut self.room {
            room.shrink(self.bytes.len());
        }
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

/// Whether an answer may be a page.
const fn reads_much(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Events
            | Operation::History
            | Operation::Blob
            | Operation::Read
            | Operation::List
            | Operation::ExportSession
            | Operation::FetchReader
            | Operation::SearchMemory
    )
}

/// When something is read that may be waited for.
#[derive(Clone, Copy)]
enum Phase {
    /// At once, and whole.
    Now,
    /// Once it is there, and no more than the first of it: this needs no room.
    First,
}

impl Phase {
    fn limits(self, limit: Option<usize>, wait_ms: u64) -> (Option<usize>, u64) {
        match self {
            Self::Now => (limit, 0),
            Self::First => (Some(1), wait_ms),
        }
    }
}

struct Read {
    bytes: Vec<u8>,
    is_empty: bool,
    /// Whether there is nothing yet and the caller waits for it.
    may_wait: bool,
}

async fn read(
    service: &dyn SessionService,
    operation: Operation,
    params: &str,
    phase: Phase,
) -> Result<Read, SessionError> {
    let (bytes, is_empty, wait_ms) = match operation {
        Operation::Events => {
            let asked: ReadEvents = decode_params(params)?;
            let (limit, wait_ms) = phase.limits(asked.limit, asked.wait_ms);
            let page = service.events(ReadEvents { limit, wait_ms, ..asked }).await?;
            (encode_events(&page), page.items.is_empty(), asked.wait_ms)
        }
        Operation::FetchReader => {
            let asked: FetchReader = decode_params(params)?;
            let asked_ms = asked.wait_ms;
            let (limit, wait_ms) = phase.limits(asked.limit, asked_ms);
            let page = service.fetch_reader(FetchReader { limit, wait_ms, ..asked }).await?;
            (page.write()?, page.items.is_empty(), asked_ms)
        }
        _ => (call(service, operation, params).await?, false, 0),
    };
    Ok(Read { bytes, is_empty, may_wait: is_empty && wait_ms > 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_batch_keeps_no_room_for_what_was_refused() {
        let answers = Answers::default();
        let batch = answers.batch([Operation::List, Operation::List, Operation::StartTurn].into_iter());
        batch.state.lock().await.room = Some(answers.take(CONNECTION_BYTES).await.unwrap());
        batch.state.lock().await.count_off(10);
        batch.refused(Operation::StartTurn).await;
        assert_eq!(answers.process.available_permits(), (PROCESS_BYTES - CONNECTION_BYTES) as usize);
        batch.refused(Operation::List).await;
        assert_eq!(answers.process.available_permits(), PROCESS_BYTES as usize - 10);
    }
}
