//! The wire to the owner: one connection, one task that reads, one that writes, and answers matched by their ids.
//!
//! What the owner sends is handed on to the letter. Nothing here waits for a reader: a subscription whose lines are not
//! taken is ended, and whoever follows asks again from its cursor.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use meerkat_errors::ErrorBody;
use meerkat_service::{SessionError, SessionId};
use serde_json::{json, value::RawValue};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    socket::{HELLO_BYTES_MAX, MESSAGE_BYTES_MAX, read_line},
    wire::{HELLO, Hello, Incoming, Readiness, Speaker, Welcome},
};
use crate::serve::owner::{SUBSCRIBE, UNSUBSCRIBE};

/// Requests that wait for their answers. A turn waits for as long as it runs.
const REQUESTS_MAX: usize = 1024;

/// Lines of a subscription that wait to be taken.
const LINES_MAX: usize = 256;

/// Bytes of an answer. The owner is the same user's, so this bounds a fault and no attack.
const ANSWER_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The owner refused it.
    Refused(Box<ErrorBody>),
    /// The owner was gone before it was asked.
    Unasked,
    /// The owner is gone; what became of the request is not known.
    Lost,
}

/// A connection to the owner.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
    last_id: AtomicU64,
    /// How it stood with the owner's service when the connection was opened.
    pub(super) readiness: Readiness,
    _tasks: [AbortOnDropHandle<()>; 2],
}

struct Shared {
    /// Its length follows the requests under way and the subscriptions.
    out: mpsc::UnboundedSender<Message>,
    state: Mutex<State>,
    closed: CancellationToken,
}

/// A line to the owner, and the request that it is.
struct Message {
    request: Option<u64>,
    line: String,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u64, Waiting>,
    subscriptions: HashMap<u64, mpsc::Sender<Result<Bytes, ErrorBody>>>,
}

/// What is done with an answer. Its place is taken until it comes, also where nobody waits for it any more.
struct Waiting {
    to: To,
    /// The owner may have read the request.
    is_sent: bool,
    _permit: OwnedSemaphorePermit,
}

impl Waiting {
    /// No answer comes any more.
    fn fail(self) {
        let failed = if self.is_sent { Failed::Lost } else { Failed::Unasked };
        // Whoever asked may have gone.
        match self.to {
            To::Answer(to) => drop(to.send(Err(failed))),
            To::Subscription(to) => drop(to.send(Err(failed))),
        }
    }
}

enum To {
    Answer(oneshot::Sender<Result<Bytes, Failed>>),
    Subscription(oneshot::Sender<Result<Subscription, Failed>>),
}

/// The events of a session, as they come. Dropping it ends it.
pub(crate) struct Subscription {
    number: u64,
    lines: mpsc::Receiver<Result<Bytes, ErrorBody>>,
    shared: Arc<Shared>,
}

impl Subscription {
    /// The next line, or why there is none; `None` where the owner is gone or lines were not taken in time.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, ErrorBody>> {
        self.lines.recv().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.unsubscribe(self.number);
    }
}

impl Connection {
    /// Says hello to the owner. A refusal is the inner error.
    pub(crate) async fn open(stream: UnixStream, hello: &Hello) -> io::Result<Result<Self, Box<ErrorBody>>> {
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        let message = json!({ "jsonrpc": "2.0", "id": 0, "method": HELLO, "params": hello });
        writer.write_all(format!("{message}\n").as_bytes()).await?;
        let line = read_line(&mut reader, HELLO_BYTES_MAX).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let answer: Incoming<'_> = serde_json::from_slice(&line)?;
        let welcome = answer.result.ok_or_else(|| io::Error::other("the owner speaks another protocol"))?;
        let welcome: Welcome = serde_json::from_str(welcome.get())?;
        let refusal = Speaker::refuse(&welcome.speaker, &hello.speaker).or(welcome.refusal);
        Ok(refusal.map_or_else(|| Ok(Self::start(reader, writer, welcome.readiness)), |body| Err(Box::new(body))))
    }

    fn start(reader: BufReader<OwnedReadHalf>, writer: OwnedWriteHalf, readiness: Readiness) -> Self {
        let (out, queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { out, state: Mutex::default(), closed: CancellationToken::new() });
        let tasks = [tokio::spawn(read(reader, shared.clone())), tokio::spawn(write(writer, queue, shared.clone()))];
        Self {
            shared,
            room: Arc::new(Semaphore::new(REQUESTS_MAX)),
            last_id: AtomicU64::new(0),
            readiness,
            _tasks: tasks.map(AbortOnDropHandle::new),
        }
    }

    /// Cancelled when the owner is gone.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.shared.closed
    }

    #[cfg(test)]
    pub(super) fn subscriptions(&self) -> usize {
        self.shared.state().subscriptions.len()
    }

    /// Asks for something, and waits for the answer's bytes.
    pub(crate) async fn request(&self, method: &str, params: &str) -> Result<Bytes, Failed> {
        self.send(method, params, To::Answer).await
    }

    /// Follows a session from after `since_seq`.
    pub(crate) async fn subscribe(
        &self,
        session_id: SessionId,
        since_seq: u64,
        is_waiting: bool,
    ) -> Result<Subscription, Failed> {
        let params = json!({ "session_id": session_id, "since_seq": since_seq, "is_waiting": is_waiting }).to_string();
        self.send(SUBSCRIBE, &params, To::Subscription).await
    }

    async fn send<T>(
        &self,
        method: &str,
        params: &str,
        to: impl FnOnce(oneshot::Sender<Result<T, Failed>>) -> To,
    ) -> Result<T, Failed> {
        let permit = self.room.clone().acquire_owned().await.map_err(|_| Failed::Unasked)?;
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let (bytes, limit) = (line.len() as u64, MESSAGE_BYTES_MAX as u64);
        if bytes > limit {
            let error = SessionError::PayloadTooLarge { what: "message", bytes, limit };
            return Err(Failed::Refused(Box::new(error.body())));
        }
        let (sender, answer) = oneshot::channel();
        self.shared.state().waiting.insert(id, Waiting { to: to(sender), is_sent: false, _permit: permit });
        // Looked at after the insertion: whoever closes empties the table after closing.
        if self.shared.closed.is_cancelled() || self.shared.out.send(Message { request: Some(id), line }).is_err() {
            self.shared.state().waiting.remove(&id);
            return Err(Failed::Unasked);
        }
        answer.await.unwrap_or(Err(Failed::Lost))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsubscribe(&self, number: u64) {
        if self.state().subscriptions.remove(&number).is_some() {
            let params = json!({ "subscription": number });
            // Where the owner is gone, so is the subscription.
            let line = json!({ "jsonrpc": "2.0", "method": UNSUBSCRIBE, "params": params }).to_string();
            self.out.send(Message { request: None, line }).ok();
        }
    }

    fn close(&self) {
        self.closed.cancel();
        let state = std::mem::take(&mut *self.state());
        state.waiting.into_values().for_each(Waiting::fail);
    }

    /// Notes of a request whether the owner may read it; `false` where nobody waits for it any more.
    fn mark(&self, request: u64, is_sent: bool) -> bool {
        self.state().waiting.get_mut(&request).map(|waiting| waiting.is_sent = is_sent).is_some()
    }

    /// Takes in one line of the owner's.
    fn take(self: &Arc<Self>, line: &Bytes) -> io::Result<()> {
        let incoming: Incoming<'_> = serde_json::from_slice(line)?;
        let bytes = |raw: &RawValue| line.slice_ref(raw.get().as_bytes());
        if let Some(event) = incoming.params {
            let item = match (event.result, event.error) {
                (Some(result), _) => Ok(bytes(result)),
                (None, Some(error)) => Err(error.data),
                (None, None) => return Ok(()),
            };
            let sender = self.state().subscriptions.get(&event.subscription).cloned();
            if sender.is_some_and(|sender| sender.try_send(item).is_err()) {
                self.unsubscribe(event.subscription);
            }
            return Ok(());
        }
        let id = incoming.id.ok_or_else(|| io::Error::other("the owner could not read a message"))?;
        let answer = match (incoming.result, incoming.error) {
            (Some(result), _) => Ok(bytes(result)),
            (None, Some(error)) => Err(Failed::Refused(Box::new(error.data))),
            (None, None) => return Err(io::Error::other("an answer is empty")),
        };
        let waiting = self.state().waiting.remove(&id);
        // Where nobody waits any more, the answer is dropped, and a subscription ended.
        match (waiting.map(|waiting| waiting.to), answer) {
            (Some(To::Answer(to)), answer) => drop(to.send(answer)),
            (Some(To::Subscription(to)), Err(failed)) => drop(to.send(Err(failed))),
            (Some(To::Subscription(to)), Ok(number)) => {
                let (sender, lines) = mpsc::channel(LINES_MAX);
                let number = serde_json::from_slice(&number)?;
                self.state().subscriptions.insert(number, sender);
                drop(to.send(Ok(Subscription { number, lines, shared: self.clone() })));
            }
            (None, _) => {}
        }
        Ok(())
    }
}

async fn read(mut reader: BufReader<OwnedReadHalf>, shared: Arc<Shared>) {
    let ended = async {
        while let Some(line) = read_line(&mut reader, ANSWER_BYTES_MAX).await? {
            shared.take(&line.into())?;
        }
        io::Result::Ok(())
    };
    if let Err(error) = ended.await {
        tracing::info!(%error, "the connection to the owner of the data directory broke");
    }
    shared.close();
}

async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<Message>, shared: Arc<Shared>) {
    while let Some(Message { request, mut line }) = queue.recv().await {
        line.push('\n');
        if request.is_some_and(|request| !shared.mark(request, true)) {
            continue;
        }
        if writer.write_all(line.as_bytes()).await.is_err() {
            // What did not reach the owner whole it does not perform.
            request.map(|request| shared.mark(request, false));
            return shared.close();
        }
    }
}
