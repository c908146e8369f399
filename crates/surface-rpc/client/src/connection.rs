//! The wire to the process that serves: one connection, one task that reads, one that writes, and answers matched by
//! their ids.
//!
//! What comes is handed on to the letter. Nothing here waits for a reader: a subscription whose lines are not
//! taken is ended, and whoever follows asks again from its cursor.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use meerkat_service::{Capabilities, ErrorBody, SessionError, SessionId};
use meerkat_surface_rpc::owner::Readiness;
use serde_json::{json, value::RawValue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::wire::Incoming;

/// The method that follows a session.
const SUBSCRIBE: &str = "session/subscribe";

/// The method that ends a subscription.
const UNSUBSCRIBE: &str = "session/unsubscribe";

/// Requests that wait for their answers. A turn waits for as long as it runs.
const REQUESTS_MAX: usize = 1024;

/// Lines of a subscription that wait to be taken.
const LINES_MAX: usize = 256;

/// Messages as they come, until the other side is gone.
pub(crate) type Inlet = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// The way for messages to the other side.
pub(crate) type Outlet = Pin<Box<dyn Sink<String, Error = io::Error> + Send>>;

/// What was found of the other side when the connection was opened.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) capabilities: Capabilities,
    pub(crate) readiness: Readiness,
    /// It is the owner of a data directory, and takes this one for a command of its own.
    pub(crate) is_owner: bool,
    /// Bytes that it takes in one message; a longer one would cost everybody the connection.
    pub(crate) message_bytes: usize,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It was refused.
    Refused(Box<ErrorBody>),
    /// The other side was gone before it was asked.
    Unasked,
    /// The other side is gone; what became of the request is not known.
    Lost,
}

/// A connection to a process that serves.
pub struct Connection {
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
    last_id: AtomicU64,
    pub(crate) found: Found,
    _tasks: [AbortOnDropHandle<()>; 2],
}

struct Shared {
    /// Its length follows the requests under way and the subscriptions.
    out: mpsc::UnboundedSender<Message>,
    state: Mutex<State>,
    closed: CancellationToken,
}

/// A message to the other side, and the request that it is.
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
    /// The other side may have read the request.
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
    /// The next line, or why there is none; `None` if the other side is gone or lines were not taken in time.
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
    pub(crate) fn start(inlet: Inlet, outlet: Outlet, found: Found) -> Self {
        let (out, queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { out, state: Mutex::default(), closed: CancellationToken::new() });
        let tasks = [tokio::spawn(read(inlet, shared.clone())), tokio::spawn(write(outlet, queue, shared.clone()))];
        Self {
            shared,
            room: Arc::new(Semaphore::new(REQUESTS_MAX)),
            last_id: AtomicU64::new(0),
            found,
            _tasks: tasks.map(AbortOnDropHandle::new),
        }
    }

    /// Cancelled when the other side is gone.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.shared.closed
    }

    pub(crate) fn subscriptions(&self) -> usize {
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
        let mut params = json!({ "session_id": session_id, "since_seq": since_seq });
        // Only an owner lets a command wait as if it ran the turn.
        if self.found.is_owner {
            params["is_waiting"] = is_waiting.into();
        }
        self.send(SUBSCRIBE, &params.to_string(), To::Subscription).await
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
        let (bytes, limit) = (line.len() as u64, self.found.message_bytes as u64);
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
            // If the other side is gone, so is the subscription.
            let line = json!({ "jsonrpc": "2.0", "method": UNSUBSCRIBE, "params": params }).to_string();
            self.out.send(Message { request: None, line }).ok();
        }
    }

    fn close(&self) {
        self.closed.cancel();
        let state = std::mem::take(&mut *self.state());
        state.waiting.into_values().for_each(Waiting::fail);
    }

    /// Notes of a request whether the other side may read it; `false` where nobody waits for it any more.
    fn mark(&self, request: u64, is_sent: bool) -> bool {
        self.state().waiting.get_mut(&request).map(|waiting| waiting.is_sent = is_sent).is_some()
    }

    /// Takes in one message.
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
        let id = incoming.id.ok_or_else(|| io::Error::other("the other side could not read a message"))?;
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

async fn read(mut inlet: Inlet, shared: Arc<Shared>) {
    let ended = async {
        while let Some(message) = inlet.next().await {
            shared.take(&message?)?;
        }
        io::Result::Ok(())
    };
    if let Err(error) = ended.await {
        tracing::info!(%error, "the connection to the process that serves broke");
    }
    shared.close();
}

async fn write(mut outlet: Outlet, mut queue: mpsc::UnboundedReceiver<Message>, shared: Arc<Shared>) {
    while let Some(Message { request, line }) = queue.recv().await {
        if request.is_some_and(|request| !shared.mark(request, true)) {
            continue;
        }
        if outlet.send(line).await.is_err() {
            // What did not reach the other side whole it does not perform.
            request.map(|request| shared.mark(request, false));
            return shared.close();
        }
    }
}
