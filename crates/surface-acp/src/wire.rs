//! JSON-RPC, in which both sides send requests.
//!
//! One task reads, one writes, and each request is answered by its own task. A notification is handled before the next
//! message is read, and so is a request up to where it first waits, so a cancellation never passes a prompt by.

use std::{
    collections::HashMap,
    io,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use agent_client_protocol_schema::v1::{Error, RequestId};
use futures::{FutureExt as _, Sink, SinkExt as _, Stream, StreamExt as _};
use meerkat_service::{SessionService, wire::Line};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{AcpOptions, agent::Agent, error};

/// Messages that wait for the writer. More would only cost memory: a turn waits with its cursor.
const QUEUE: usize = 4;

/// Requests under way at one time.
pub(crate) const REQUESTS_MAX: usize = 256;

/// Longest messages whose bytes the requests under way may have together. Those of a short one are not counted.
const MESSAGES_HELD: usize = 4;
const SHORT_BYTES: usize = 1024;

/// Longest time in which a client takes nothing of a message.
const STALL: Duration = Duration::from_secs(60);

/// Longest wait for the last answers when the process must end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Message from the client.
#[derive(Deserialize)]
struct Incoming {
    jsonrpc: String,
    id: Option<RequestId>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Value>,
    error: Option<Value>,
}

/// Takes the answer of the client, or its error.
type Answered = oneshot::Sender<Result<Value, String>>;

/// The client, as requests and notifications reach it. Clones are the same client.
#[derive(Clone)]
pub(crate) struct Peer {
    out: mpsc::Sender<String>,
    next: Arc<AtomicI64>,
    asked: Arc<Mutex<HashMap<RequestId, Answered>>>,
}

impl Peer {
    /// Sends a message; returns `false` if the client is gone.
    async fn send(&self, message: Value) -> bool {
        self.out.send(message.to_string()).await.is_ok()
    }

    /// Sends a notification; returns `false` if the client is gone.
    pub(crate) async fn notify(&self, method: &str, params: impl Serialize) -> bool {
        self.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await
    }

    /// Asks the client, and withdraws the question when it is `settled`; `None` if no answer comes.
    pub(crate) async fn ask(
        &self,
        method: &str,
        params: Value,
        settled: &CancellationToken,
    ) -> Option<Result<Value, String>> {
        let (id, (answered, answer)) = (self.next.fetch_add(1, Ordering::Relaxed), oneshot::channel());
        {
            let mut asked = self.asked();
            asked.retain(|_, answered| !answered.is_closed());
            asked.insert(RequestId::Number(id), answered);
        }
        if !self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await {
            return None;
        }
        tokio::select! {
            biased;
            answer = answer => answer.ok(),
            () = settled.cancelled() => {
                self.notify("$/cancel_request", json!({ "requestId": id })).await;
                None
            }
        }
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<RequestId, Answered>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves one client until there are no more messages, which interrupts no turn, and then waits for the answers; or until
/// `stop` is cancelled, when running turns have ended. The sink takes messages, and `None` at their end.
///
/// # Errors
/// If reading or writing fails.
pub async fn serve(
    service: Arc<dyn SessionService>,
    options: AcpOptions,
    (messages, sink): (
        impl Stream<Item = io::Result<Line>>,
        impl Sink<Option<String>, Error = io::Error> + Send + 'static,
    ),
    stop: CancellationToken,
) -> io::Result<()> {
    let limit = options.message_bytes;
    let (out, queue) = mpsc::channel(QUEUE);
    let writing = AbortOnDropHandle::new(tokio::spawn(write(queue, sink)));
    let peer = Peer { out, next: Arc::default(), asked: Arc::default() };
    let gone = CancellationToken::new();
    let agent = Agent::new(service, options, (peer.clone(), gone.clone()));
    let bytes = Arc::new(Semaphore::new(limit.saturating_mul(MESSAGES_HELD).min(Semaphore::MAX_PERMITS)));
    let (mut requests, mut messages) = (JoinSet::new(), pin!(messages));
    let is_stopped = loop {
        while requests.try_join_next().is_some() {}
        let message = tokio::select! {
            biased;
            () = stop.cancelled() => break true,
            () = peer.out.closed() => break false,
            message = messages.next() => message.transpose()?,
        };
        let Some(message) = message else { break false };
        let refusal = match read(message, limit) {
            Err(refusal) => failed(RequestId::Null, refusal),
            Ok(Incoming { id: Some(id), method: None, result, error, .. }) => {
                let answer = error.map_or_else(|| Ok(result.unwrap_or_default()), |error| Err(error.to_string()));
                // The question may have been withdrawn.
                peer.asked().remove(&id).map(|answered| answered.send(answer));
                continue;
            }
            Ok(Incoming { id: None, method: None, .. }) => {
                let why = "a message has a `method`, or an `id` with a `result` or an `error`";
                failed(RequestId::Null, error::no_request(why))
            }
            Ok(Incoming { id, method: Some(method), params, .. }) => {
                let params = params.map_or_else(|| "{}".to_owned(), |params| params.get().to_owned());
                let Some(id) = id else {
                    agent.notified(&method, &params);
                    continue;
                };
                let counted = if params.len() <= SHORT_BYTES { 0 } else { params.len() };
                let held = bytes.clone().try_acquire_many_owned(u32::try_from(counted).unwrap_or(u32::MAX));
                match held {
                    Ok(held) if requests.len() < REQUESTS_MAX => {
                        let (agent, peer) = (agent.clone(), peer.clone());
                        let mut answering = async move {
                            let answer = agent.answer(&method, &params).await;
                            drop((held, params));
                            let (answer, then) = match answer {
                                Ok((result, then)) => (json!({ "jsonrpc": "2.0", "id": id, "result": result }), then),
                                Err(error) => (failed(id, error::of_body(&error.body())), async {}.boxed()),
                            };
                            if peer.send(answer).await {
                                then.await;
                            }
                        }
                        .boxed();
                        if (&mut answering).now_or_never().is_none() {
                            requests.spawn(answering);
                        }
                        continue;
                    }
                    _ => failed(id, error::too_many()),
                }
            }
        };
        // Nothing is read meanwhile, so refusals cannot pile up.
        tokio::select! {
            biased;
            () = stop.cancelled() => break true,
            _ = peer.send(refusal) => {}
        }
    };
    // At a stop the turns have ended, and what they still say is sent.
    if !is_stopped {
        gone.cancel();
    }
    let patience = if is_stopped { LAST_WORDS } else { Duration::MAX };
    let (out, answered) = (peer.out.clone(), async { while requests.join_next().await.is_some() {} });
    // A client that takes nothing does not hear the end.
    let answered = async {
        tokio::select! { () = out.closed() => {}, () = answered => {} }
    };
    timeout(patience, answered).await.ok();
    requests.shutdown().await;
    drop((peer, agent, out));
    timeout(patience, writing).await.map_or(Ok(()), |written| written.map_err(io::Error::other)?)
}

fn failed(id: RequestId, error: Error) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

/// Reads a message.
fn read(line: Line, limit: usize) -> Result<Incoming, Error> {
    let Line::Whole(line) = line else { return Err(error::too_long(limit)) };
    let message: Incoming = match serde_json::from_slice(&line) {
        Ok(message) => message,
        Err(why) if why.is_data() => return Err(error::no_request(why.to_string())),
        Err(why) => return Err(error::not_json(format!("invalid JSON: {why}"))),
    };
    match message.jsonrpc.as_str() {
        "2.0" => Ok(message),
        other => Err(error::no_request(format!("`jsonrpc` is {other:?}, and must be \"2.0\""))),
    }
}

/// The one task that writes. It ends when all senders are dropped, or the client takes no message for too long.
async fn write(
    mut queue: mpsc::Receiver<String>,
    sink: impl Sink<Option<String>, Error = io::Error>,
) -> io::Result<()> {
    let mut sink = pin!(sink);
    while let Some(message) = queue.recv().await {
        timeout(STALL, sink.send(Some(message))).await??;
    }
    timeout(STALL, sink.send(None)).await?
}
