//! Ways for messages: lines over the pipes of a process, and a mark on each request that a transport has taken.

use std::{
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::StreamExt as _;
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, GetExtensions as _, JsonRpcMessage, ServerJsonRpcMessage, ServerNotification},
    transport::Transport,
};
use tokio::{
    io::AsyncWriteExt as _,
    process::{ChildStdin, ChildStdout},
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{
    codec::{FramedRead, LinesCodec, LinesCodecError},
    sync::CancellationToken,
};

/// Bytes of one message from a process; a longer one ends the connection.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Answers to a server that may wait until it takes them; one more ends the connection.
const ANSWERS_MAX: usize = 256;

/// Requests and notifications of a server that are not dealt with yet; meanwhile no more is read.
const OPEN_MAX: usize = 64;
/// Requests and notifications of a server since its last answer; one more ends the connection.
const UNASKED_MAX: u32 = 100_000;

/// The reason for which meerkat has ended a connection, if it has.
#[derive(Clone, Default)]
pub(super) struct Why(Arc<OnceLock<String>>);

impl Why {
    /// Keeps the first reason.
    fn set(&self, server: &str, why: String) {
        tracing::warn!(target: "servers", server, why, "its connection is ended");
        self.0.set(why).ok();
    }

    /// Returns the reason.
    pub(super) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Place of a message among those that are not dealt with yet. The library keeps it until then.
#[derive(Clone)]
struct Open(#[expect(dead_code, reason = "held, not looked at")] Arc<OwnedSemaphorePermit>);

/// Mark of a request: true once a transport has taken it, so that the server may have seen it.
#[derive(Clone, Default)]
pub(super) struct Taken(Arc<AtomicBool>);

impl Taken {
    /// Returns true if the server may have seen the request.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Transport that marks each request that it takes. It reads no further while too much is open, for which the library
/// has no bound, and ends if a server asks without taking the answers, or never stops talking.
pub(super) struct Marking<T> {
    server: String,
    transport: T,
    why: Why,
    /// Cloned for each answer that is being sent.
    answers: Arc<()>,
    open: Arc<Semaphore>,
    /// A message that waits for its place; `receive` may be dropped meanwhile.
    next: Option<ServerJsonRpcMessage>,
    /// Requests and notifications since its last answer.
    unasked: u32,
}

impl<T> Marking<T> {
    pub(super) fn new(server: &str, transport: T, why: Why) -> Self {
        let (answers, open) = (Arc::default(), Arc::new(Semaphore::new(OPEN_MAX)));
        Self { server: server.to_owned(), transport, why, answers, open, next: None, unasked: 0 }
    }

    /// Counts a message; returns the reason to end the connection.
    fn excess(&mut self, message: &ServerJsonRpcMessage) -> Option<String> {
        if Arc::strong_count(&self.answers) > ANSWERS_MAX {
            return Some("it asks, and does not take the answers".to_owned());
        }
        let is_answer = matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        self.unasked = if is_answer { 0 } else { self.unasked + 1 };
        (self.unasked > UNASKED_MAX).then(|| {
            format!("it sent more than {UNASKED_MAX} messages that were not requested, and no answer between them")
        })
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Marking<T> {
    type Error = T::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        if let JsonRpcMessage::Request(request) = &message
            && let Some(taken) = request.request.extensions().get::<Taken>()
        {
            taken.0.store(true, Ordering::SeqCst);
        }
        let is_answer = matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
        let waits = is_answer.then(|| self.answers.clone());
        let sent = self.transport.send(message);
        async move {
            let sent = sent.await;
            drop(waits);
            sent
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            if self.next.is_none() {
                let message = self.transport.receive().await?;
                if let Some(why) = self.excess(&message) {
                    self.why.set(&self.server, why);
                    return None;
                }
                self.next = Some(message);
            }
            if let Some(JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)) = self.next {
                return self.next.take();
            }
            let place = Open(Arc::new(self.open.clone().acquire_owned().await.ok()?));
            match self.next.take()? {
                JsonRpcMessage::Request(mut asked) => {
                    asked.request.extensions_mut().insert(place);
                    return Some(JsonRpcMessage::Request(asked));
                }
                // These are not shown anywhere.
                JsonRpcMessage::Notification(said)
                    if matches!(said.notification, ServerNotification::LoggingMessageNotification(_)) => {}
                JsonRpcMessage::Notification(mut said) => {
                    said.notification.extensions_mut().insert(place);
                    return Some(JsonRpcMessage::Notification(said));
                }
                answer => return Some(answer),
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.transport.close()
    }
}

/// Messages as lines over a process's input and output.
pub(super) struct Lines {
    server: String,
    output: FramedRead<ChildStdout, LinesCodec>,
    input: Arc<Mutex<Option<ChildStdin>>>,
    /// Ends what is being written: a server that reads nothing would keep its input open.
    closed: CancellationToken,
    why: Why,
}

impl Lines {
    pub(super) fn new(server: String, output: ChildStdout, input: ChildStdin, why: Why) -> Self {
        let output = FramedRead::new(output, LinesCodec::new_with_max_length(MESSAGE_BYTES_MAX));
        Self { server, output, input: Arc::new(Mutex::new(Some(input))), closed: CancellationToken::new(), why }
    }
}

impl Transport<RoleClient> for Lines {
    type Error = std::io::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = std::io::Result<()>> + Send + 'static {
        let (input, closed) = (self.input.clone(), self.closed.clone());
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let write = async {
                let mut input = input.lock().await;
                input.as_mut().ok_or(std::io::ErrorKind::NotConnected)?.write_all(&line).await
            };
            closed.run_until_cancelled(write).await.unwrap_or_else(|| Err(std::io::ErrorKind::NotConnected.into()))
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            match self.output.next().await? {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(message) => return Some(message),
                    // Many programs print a greeting.
                    Err(_) => {
                        tracing::debug!(target: "servers", server = self.server, "skipped a line that is not a message")
                    }
                },
                Err(error) => {
                    let why = match error {
                        LinesCodecError::MaxLineLengthExceeded => {
                            format!("a line of its output has more than {MESSAGE_BYTES_MAX} bytes")
                        }
                        LinesCodecError::Io(error) => format!("its output cannot be read: {error}"),
                    };
                    self.why.set(&self.server, why);
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> std::io::Result<()> {
        self.closed.cancel();
        // The supervisor sees that it is closed.
        drop(self.input.lock().await.take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;

    /// Transport on which a server says the same for ever.
    struct Talking(serde_json::Value, usize);

    impl Transport<RoleClient> for Talking {
        type Error = std::io::Error;

        fn send(&mut self, _: ClientJsonRpcMessage) -> impl Future<Output = std::io::Result<()>> + Send + 'static {
            std::future::ready(Ok(()))
        }

        async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
            self.1 += 1;
            serde_json::from_value(self.0.clone()).ok()
        }

        async fn close(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn no_more_is_read_while_too_much_is_open() {
        for said in [
            json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }),
            json!({ "jsonrpc": "2.0", "method": "notifications/nobody/knows" }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": "nobody/knows" }),
        ] {
            // So that it is never the runtime that lets others go first.
            tokio::task::yield_now().await;
            let mut marking = Marking::new("t", Talking(said.clone(), 0), Why::default());
            let mut open = Vec::new();
            while let Some(message) = marking.receive().now_or_never() {
                open.push(message.unwrap());
                assert!(open.len() <= OPEN_MAX, "{said}");
            }
            assert_eq!((open.len(), marking.transport.1), (OPEN_MAX, OPEN_MAX + 1), "{said}");
            drop(open.pop());
            open.push(marking.receive().now_or_never().unwrap().unwrap());
            assert!(marking.receive().now_or_never().is_none(), "{said}");
        }
    }
}
