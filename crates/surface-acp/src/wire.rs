//! The framing: each line is one JSON-RPC message, and both sides send requests.
//!
//! One task reads, one writes, and each request is answered by its own task. A notification is handled before the next
//! line is read, and so is a request up to where it first waits, so a cancellation never passes a prompt by.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use agent_client_protocol_schema::v1::{Error, RequestId};
use futures::FutureExt as _;
use meerkat_service::wire::{Line, read_line};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{Semaphore, mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    agent::{Agent, Answer},
    error,
};

/// Lines that wait for the writer. More would only cost memory: a turn waits with its cursor.
const QUEUE: usize = 4;

/// Requests under way at one time.
pub(crate) const REQUESTS_MAX: usize = 256;

/// Longest messages whose bytes the requests under way may have together. Those of a short one are not counted.
const MESSAGES_HELD: usize = 4;
const SHORT_BYTES: usize = 1024;

/// Longest time in which a client takes nothing of a line.
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

type Answered = oneshot::Sender<Result<Value, Error>>;

/// The client, as requests and notifications reach it. Clones are the same client.
#[derive(Clone)]
pub(crate) struct Peer {
    out: mpsc::Sender<String>,
    next: Arc<AtomicI64>,
    asked: Arc<Mutex<HashMap<i64, Answered>>>,
}

/// Request that the client has not answered. Dropping it forgets the answer.
pub(crate) struct Asked {
    peer: Peer,
    id: i64,
    answer: oneshot::Receiver<Result<Value, Error>>,
}

impl Peer {
    /// Sends a line; returns `false` if the client is gone.
    async fn send(&self, message: &impl Serialize) -> bool {
        match serde_json::to_string(message) {
            Ok(line) => self.out.send(line).await.is_ok(),
            Err(error) => {
                tracing::error!(%error, "a message could not be written");
                true
            }
        }
    }

    /// Sends a notification; returns `false` if the client is gone.
    pub(crate) async fn notify(&self, method: &str, params: &impl Serialize) -> bool {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await
    }

    /// Sends a request; `None` if the client is gone.
    pub(crate) async fn ask(&self, method: &str, params: &impl Serialize) -> Option<Asked> {
        let (id, (answered, answer)) = (self.next.fetch_add(1, Ordering::Relaxed), oneshot::channel());
        self.waiting(|asked| asked.insert(id, answered));
        let asked = Asked { peer: self.clone(), id, answer };
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(&request).await.then_some(asked)
    }

    fn waiting<T>(&self, act: impl FnOnce(&mut HashMap<i64, Answered>) -> T) -> T {
        act(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take_answer(&self, id: &RequestId, answer: Result<Value, Error>) {
        if let RequestId::Number(id) = id
            && let Some(answered) = self.waiting(|asked| asked.remove(id))
        {
            // The question may have been withdrawn.
            answered.send(answer).ok();
        }
    }
}

impl Asked {
    /// Waits for the answer; `None` if there will be none. It can be dropped and called again.
    pub(crate) async fn answer(&mut self) -> Option<Result<Value, Error>> {
        (&mut self.answer).await.ok()
    }

    /// Tells the client that no answer is wanted.
    pub(crate) async fn withdraw(self) {
        self.peer.notify("$/cancel_request", &json!({ "requestId": self.id })).await;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.peer.waiting(|asked| asked.remove(&self.id));
    }
}

/// Answers lines until the input ends, and then waits for the answers; or until `stop` is cancelled.
pub(crate) async fn serve(
    agent: Agent,
    reader: impl AsyncRead + Send + Unpin,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> io::Result<()> {
    let limit = agent.options.message_bytes;
    let (out, queue) = mpsc::channel(QUEUE);
    let writing = AbortOnDropHandle::new(tokio::spawn(write(queue, writer)));
    let peer = Peer { out, next: Arc::default(), asked: Arc::default() };
    let (agent, gone) = (Arc::new(agent), CancellationToken::new());
    let bytes = Arc::new(Semaphore::new(limit.saturating_mul(MESSAGES_HELD).min(Semaphore::MAX_PERMITS)));
    let (mut requests, mut reader) = (JoinSet::new(), BufReader::new(reader));
    let is_stopped = loop {
        while requests.try_join_next().is_some() {}
        let line = tokio::select! {
            biased;
            () = stop.cancelled() => break true,
            () = peer.out.closed() => break false,
            line = read_line(&mut reader, limit) => line?,
        };
        let Some(line) = line else { break false };
        let refusal = match read(line, limit) {
            Err(refusal) => failed(RequestId::Null, refusal),
            Ok(Incoming { id: Some(id), method: None, result, error, .. }) => {
                let answer = error.map_or_else(|| Ok(result.unwrap_or_default()), |error| Err(its_error(error)));
                peer.take_answer(&id, answer);
                continue;
            }
            Ok(Incoming { id: None, method: Some(method), params, .. }) => {
                agent.notified(&method, params.as_deref().map_or("{}", RawValue::get));
                continue;
            }
            Ok(Incoming { id: None, method: None, .. }) => {
                let why = "a message has a `method`, or an `id` with a `result` or an `error`";
                failed(RequestId::Null, error::no_request(why))
            }
            Ok(Incoming { id: Some(id), method: Some(method), params, .. }) => {
                let params = params.map_or_else(|| "{}".to_owned(), |params| params.get().to_owned());
                let counted = if params.len() <= SHORT_BYTES { 0 } else { params.len() };
                let held = bytes.clone().try_acquire_many_owned(u32::try_from(counted).unwrap_or(u32::MAX));
                match held {
                    Ok(held) if requests.len() < REQUESTS_MAX => {
                        let (agent, peer, gone) = (agent.clone(), peer.clone(), gone.clone());
                        let mut answering = async move {
                            let answer = agent.answer(&peer, &method, &params, &gone).await;
                            drop((held, params));
                            let (answer, then) = match answer {
                                Ok(Answer { result, then }) => {
                                    (json!({ "jsonrpc": "2.0", "id": id, "result": result }), then)
                                }
                                Err(error) => (failed(id, error::of(&error)), None),
                            };
                            if let (true, Some(then)) = (peer.send(&answer).await, then) {
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
            _ = peer.send(&refusal) => {}
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

/// The error of an answer. One that cannot be read is an error too, so that its question ends.
fn its_error(error: Value) -> Error {
    serde_json::from_value(error.clone())
        .unwrap_or_else(|_| error::no_request(format!("its error cannot be read: {error}")))
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

/// The one task that writes. It ends when all senders are dropped, or the client takes no line for too long.
async fn write(mut queue: mpsc::Receiver<String>, mut writer: impl AsyncWrite + Send + Unpin) -> io::Result<()> {
    while let Some(mut line) = queue.recv().await {
        line.push('\n');
        let written = async {
            writer.write_all(line.as_bytes()).await?;
            writer.flush().await
        };
        timeout(STALL, written).await??;
    }
    writer.shutdown().await
}
