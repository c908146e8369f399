//! The framing: each line is one JSON-RPC message, and both sides send requests.
//!
//! One task reads, one writes, and each request is answered by its own task. A notification is handled before the next
//! line is read, so a cancellation never passes a prompt by.

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
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{mpsc, oneshot},
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

/// Longest wait for the last answers.
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

/// Answers lines until the input ends or `stop` is cancelled.
pub(crate) async fn serve(
    agent: Agent,
    reader: impl AsyncRead + Send + Unpin,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> io::Result<()> {
    let limit = agent.message_bytes();
    let (out, queue) = mpsc::channel(QUEUE);
    let writing = AbortOnDropHandle::new(tokio::spawn(write(queue, writer)));
    let peer = Peer { out, next: Arc::default(), asked: Arc::default() };
    let (agent, gone) = (Arc::new(agent), CancellationToken::new());
    let (mut requests, mut reader) = (JoinSet::new(), BufReader::new(reader));
    loop {
        while requests.try_join_next().is_some() {}
        let line = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = peer.out.closed() => break,
            line = read_line(&mut reader, limit) => line?,
        };
        let Some(line) = line else {
            gone.cancel();
            break;
        };
        match read(line, limit) {
            Err(refusal) => drop(peer.send(&failed(RequestId::Null, refusal)).await),
            Ok(Incoming { id: Some(id), method: None, result, error, .. }) => {
                peer.take_answer(
                    &id,
                    error.map_or_else(|| Ok(result.unwrap_or_default()), |error| Err(its_error(error))),
                );
            }
            Ok(Incoming { id: None, method: Some(method), params, .. }) => {
                agent.notified(&method, params.as_deref().map_or("{}", RawValue::get));
            }
            Ok(Incoming { id: Some(id), method: Some(method), params, .. }) => {
                let params = params.map_or_else(|| "{}".to_owned(), |params| params.get().to_owned());
                // A prompt can be cancelled from here on.
                let begun = agent.begin(&method, &params);
                let (agent, peer, gone) = (agent.clone(), peer.clone(), gone.clone());
                requests.spawn(async move {
                    let (answer, then) = match agent.answer(&peer, &method, &params, begun, &gone).await {
                        Ok(Answer { result, then }) => (json!({ "jsonrpc": "2.0", "id": id, "result": result }), then),
                        Err(error) => (failed(id, error), None),
                    };
                    if peer.send(&answer).await
                        && let Some(then) = then
                    {
                        then.await;
                    }
                });
            }
            Ok(Incoming { id: None, method: None, .. }) => {
                let refusal = error::no_request("a message has a `method`, or an `id` with a `result` or an `error`");
                peer.send(&failed(RequestId::Null, refusal)).await;
            }
        }
    }
    let ended = async { while requests.join_next().await.is_some() {} };
    // A client that reads nothing does not hear the end.
    timeout(LAST_WORDS, ended).await.ok();
    requests.shutdown().await;
    drop(peer);
    drop(agent);
    timeout(LAST_WORDS, writing).await.map_or(Ok(()), |written| written.map_err(io::Error::other)?)
}

/// The error of an answer. One that cannot be read is an error too, so that its question ends.
fn its_error(error: Value) -> Error {
    serde_json::from_value(error.clone()).unwrap_or_else(|_| error::unreadable(&error))
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

/// A line of the input.
enum Line {
    Whole(Vec<u8>),
    /// Longer than the limit.
    TooLong,
}

/// Reads the next line that is not blank; `None` at the end. The last line needs no end.
async fn read_line(reader: &mut (impl AsyncBufRead + Unpin), limit: usize) -> io::Result<Option<Line>> {
    let (mut line, mut is_long) = (Vec::new(), false);
    loop {
        let taken = (&mut *reader).take(limit as u64 + 1).read_until(b'\n', &mut line).await?;
        let has_end = line.pop_if(|byte| *byte == b'\n').is_some();
        is_long |= line.len() > limit;
        match (has_end || taken == 0, is_long) {
            (true, true) => return Ok(Some(Line::TooLong)),
            (true, false) if !line.trim_ascii().is_empty() => return Ok(Some(Line::Whole(line))),
            (true, false) if taken == 0 => return Ok(None),
            (true, false) | (false, true) => line.clear(),
            (false, false) => {}
        }
    }
}

/// The one task that writes. It ends when all senders are dropped.
async fn write(mut queue: mpsc::Receiver<String>, mut writer: impl AsyncWrite + Send + Unpin) -> io::Result<()> {
    while let Some(mut line) = queue.recv().await {
        line.push('\n');
        writer.write_all(line.as_bytes()).await?;
        writer.flush().await?;
    }
    writer.shutdown().await
}
