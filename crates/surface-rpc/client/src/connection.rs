//! One connection to the process that serves: a task that reads, a task that writes, and answers matched with requests by
//! their ids.
//!
//! Results and events are handed on to the letter. Nothing here waits for a reader: a subscription whose lines are not
//! taken is ended, and its follower subscribes again from its cursor.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use meerkat_service::{Capabilities, ErrorBody, ErrorCode, SessionError, TurnNumber, service::ReadEvents};
use meerkat_surface_rpc::owner::{BYE, Readiness};
use serde_json::{Value, json, value::RawValue};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::wire::{Incoming, Refusal};

/// The method that follows a session.
const SUBSCRIBE: &str = "session/subscribe";

/// The method that ends a subscription.
const UNSUBSCRIBE: &str = "session/unsubscribe";

/// Requests that wait for their answers. A turn waits for as long as it runs.
const REQUESTS_MAX: usize = 1024;

/// Lines of a subscription that wait to be taken.
const LINES_MAX: usize = 256;

/// How long the end of what the other side sent is waited for once it takes nothing any more.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Messages from the other side, until it closes. An empty one is a sign of life.
pub(crate) type Inlet = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Messages to the other side. An empty one asks for a sign of life.
pub(crate) type Outlet = Pin<Box<dyn Sink<String, Error = io::Error> + Send>>;

/// Facts about the other side, known when the connection is opened.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) capabilities: Capabilities,
    pub(crate) readiness: Readiness,
    /// It owns a data directory, and takes this process for a command of its own.
    pub(crate) is_owner: bool,
    /// Bytes that it takes in one message; a longer one would close the connection for everybody.
    pub(crate) message_bytes: usize,
    /// How long it may be silent before it is asked for a sign of life, and then again before it counts as lost.
    pub(crate) silence: Duration,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It was refused.
    Refused(Box<ErrorBody>),
    /// The connection was closed before the request was sent, or the other side did not take it on.
    Unasked,
    /// The connection was closed before the answer came; nobody knows if the request was performed.
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
    /// As long as the requests under way and the subscriptions are many.
    out: mpsc::UnboundedSender<Message>,
    state: Mutex<State>,
    closed: CancellationToken,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Goodbye,
    Broken,
}

/// A message to the other side, and the id of its request, if it is one.
struct Message {
    request: Option<u64>,
    line: String,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u64, Waiting>,
    subscriptions: HashMap<u64, mpsc::Sender<Result<Bytes, ErrorBody>>>,
}

/// A request under way. It keeps its permit until the answer comes, even if its caller has left.
struct Waiting {
    to: To,
    /// Bytes of the request.
    bytes: u64,
    /// The other side may have read the request.
    is_sent: bool,
    _permit: OwnedSemaphorePermit,
}

impl Waiting {
    fn fail(self, failed: Failed) {
        // The caller may have left.
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

/// The events of a session, as they come. Dropping it unsubscribes.
pub(crate) struct Subscription {
    number: u64,
    lines: mpsc::Receiver<Result<Bytes, ErrorBody>>,
    shared: Arc<Shared>,
}

impl Subscription {
    /// The next line, or the reason for the end; `None` if the connection was closed or lines were not taken in time.
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
        let reading = tokio::spawn(read(inlet, shared.clone(), found.silence));
        let writing = tokio::spawn(write(outlet, queue, shared.clone()));
        Self {
            shared,
            room: Arc::new(Semaphore::new(REQUESTS_MAX)),
            last_id: AtomicU64::new(0),
            found,
            _tasks: [reading, writing].map(AbortOnDropHandle::new),
        }
    }

    /// Cancelled when the connection is closed.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.shared.closed
    }

    pub(crate) fn subscriptions(&self) -> usize {
        self.shared.state().subscriptions.len()
    }

    /// Sends a request, and waits for the answer's bytes.
    pub(crate) async fn request(&self, method: &str, params: &str) -> Result<Bytes, Failed> {
        self.send(method, params, To::Answer).await
    }

    /// Follows a session from after the request's cursor, for a caller that waits for `turn` if there is one.
    pub(crate) async fn subscribe(
        &self,
        request: &ReadEvents,
        turn: Option<TurnNumber>,
    ) -> Result<Subscription, Failed> {
        let ReadEvents { session_id, since_seq, skip_damage, .. } = request;
        let mut params = json!({ "session_id": session_id, "since_seq": since_seq, "skip_damage": skip_damage });
        // Only an owner lets a command wait as if it ran the turn.
        if self.found.is_owner {
            params["turn"] = turn.into();
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
        let waiting = Waiting { to: to(sender), bytes, is_sent: false, _permit: permit };
        self.shared.state().waiting.insert(id, waiting);
        // Checked after the insertion, because `close` empties the table after it has cancelled.
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
            let line = json!({ "jsonrpc": "2.0", "method": UNSUBSCRIBE, "params": params }).to_string();
            // A closed connection has no subscriptions.
            self.out.send(Message { request: None, line }).ok();
        }
    }

    /// Closes the connection. If the other side said goodbye, it has begun nothing that it did not answer.
    fn close(&self, last: Last) {
        self.closed.cancel();
        let state = std::mem::take(&mut *self.state());
        for waiting in state.waiting.into_values() {
            let is_lost = waiting.is_sent && last == Last::Broken;
            waiting.fail(if is_lost { Failed::Lost } else { Failed::Unasked });
        }
    }

    /// Notes if the other side may read a request; `false` if the request is not waited for any more.
    fn mark(&self, request: u64, is_sent: bool) -> bool {
        self.state().waiting.get_mut(&request).map(|waiting| waiting.is_sent = is_sent).is_some()
    }

    /// Takes in one message; returns true for the last one of an owner that ends.
    fn take(self: &Arc<Self>, line: &Bytes) -> io::Result<bool> {
        let incoming: Incoming<'_> = serde_json::from_slice(line)?;
        if incoming.method.as_deref() == Some(BYE) {
            return Ok(true);
        }
        self.take_answer(line, incoming).map(|()| false)
    }

    fn take_answer(self: &Arc<Self>, line: &Bytes, incoming: Incoming<'_>) -> io::Result<()> {
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
        let Some(id) = incoming.id else { return self.take_refusal(incoming.error) };
        let answer = match (incoming.result, incoming.error) {
            (Some(result), _) => Ok(bytes(result)),
            (None, Some(error)) => Err(Failed::Refused(Box::new(error.data))),
            (None, None) => return Err(io::Error::other("an answer is empty")),
        };
        let waiting = self.state().waiting.remove(&id);
        // If the caller has left, the answer is dropped, and a subscription ended.
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

    /// Takes in a refusal without an id. If a message was too long for the other side, every request that is as long is
    /// refused; after anything else nobody knows which request has no answer.
    fn take_refusal(&self, refusal: Option<Refusal>) -> io::Result<()> {
        let too_large = refusal.map(|refusal| refusal.data).filter(|body| body.code == ErrorCode::PayloadTooLarge);
        let limit = too_large.as_ref().and_then(|body| body.details.get("limit")).and_then(Value::as_u64);
        let (Some(body), Some(limit)) = (too_large, limit) else {
            return Err(io::Error::other("the other side could not read a message"));
        };
        for (_, waiting) in self.state().waiting.extract_if(|_, waiting| waiting.bytes > limit) {
            waiting.fail(Failed::Refused(Box::new(body.clone())));
        }
        Ok(())
    }
}

async fn read(mut inlet: Inlet, shared: Arc<Shared>, silence: Duration) {
    let ended = async {
        let mut is_asked = false;
        loop {
            match timeout(silence, inlet.next()).await {
                Ok(None) => return io::Result::Ok(Last::Broken),
                Ok(Some(message)) => {
                    is_asked = false;
                    let message = message?;
                    if !message.is_empty() && shared.take(&message)? {
                        return Ok(Last::Goodbye);
                    }
                }
                Err(_) if is_asked => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {
                    is_asked = true;
                    // If nothing can be written any more, the writer closes the connection.
                    shared.out.send(Message { request: None, line: String::new() }).ok();
                }
            }
        }
    };
    let last = ended.await.unwrap_or_else(|error| {
        tracing::info!(%error, "the connection to the process that serves broke");
        Last::Broken
    });
    shared.close(last);
}

async fn write(mut outlet: Outlet, mut queue: mpsc::UnboundedReceiver<Message>, shared: Arc<Shared>) {
    while let Some(Message { request, line }) = queue.recv().await {
        if request.is_some_and(|request| !shared.mark(request, true)) {
            continue;
        }
        if outlet.send(line).await.is_err() {
            // A message that did not arrive whole is not performed.
            request.map(|request| shared.mark(request, false));
            // What has come already is read first: it may be answers and a goodbye.
            let is_read = timeout(LAST_WORDS, shared.closed.cancelled()).await.is_ok();
            if !is_read {
                shared.close(Last::Broken);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, sink, stream};
    use meerkat_service::Operation;

    use super::*;

    /// The other side ends while requests are written: only what it began has an unknown outcome, and that is nothing.
    #[tokio::test(start_paused = true)]
    async fn a_goodbye_is_read_also_if_nothing_can_be_written_any_more() {
        let (said, inlet) = mpsc::unbounded_channel::<io::Result<Bytes>>();
        let (taken, mut taking) = mpsc::unbounded_channel();
        let inlet = stream::unfold(inlet, async |mut inlet| Some((inlet.recv().await?, inlet)));
        let outlet = sink::unfold((), move |(), line: String| {
            let is_closed = line.contains("second");
            taken.send(line).unwrap();
            async move { if is_closed { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) } }
        });
        let found = Found {
            capabilities: Capabilities::compiled(),
            readiness: Readiness::default(),
            is_owner: true,
            message_bytes: 1024,
            silence: Duration::MAX,
        };
        let connection = Connection::start(Box::pin(inlet), Box::pin(outlet), found);
        let method = Operation::StartTurn.public_name();
        let mut first = Box::pin(connection.request(method, r#"{"prompt":"first"}"#));
        assert!(first.as_mut().now_or_never().is_none());
        taking.recv().await.unwrap();
        let mut second = Box::pin(connection.request(method, r#"{"prompt":"second"}"#));
        assert!(second.as_mut().now_or_never().is_none());
        taking.recv().await.unwrap();
        said.send(Ok(Bytes::from(json!({ "jsonrpc": "2.0", "method": BYE }).to_string()))).unwrap();
        assert!(matches!(first.await, Err(Failed::Unasked)));
        assert!(matches!(second.await, Err(Failed::Unasked)));
    }
}
