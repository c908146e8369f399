//! Ways for messages: lines over the pipes of a process, and a mark on each request that a transport has taken.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::StreamExt as _;
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, GetExtensions as _, JsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::AsyncWriteExt as _,
    process::{ChildStdin, ChildStdout},
    sync::Mutex,
};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    sync::CancellationToken,
};

/// Bytes of one message from a process; a longer one ends the connection.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Answers to a server that may wait until it takes them; one more ends the connection.
const ANSWERS_MAX: usize = 256;

/// Mark of a request: true once a transport has taken it, so that the server may have seen it.
#[derive(Clone, Default)]
pub(super) struct Taken(Arc<AtomicBool>);

impl Taken {
    /// Returns true if the server may have seen the request.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Transport that marks each request that it takes, and ends if a server asks without taking the answers.
pub(super) struct Marking<T> {
    transport: T,
    /// Cloned for each answer that is being sent.
    answers: Arc<()>,
}

impl<T> Marking<T> {
    pub(super) fn new(transport: T) -> Self {
        Self { transport, answers: Arc::default() }
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
        let received = self.transport.receive().await?;
        if Arc::strong_count(&self.answers) > ANSWERS_MAX {
            tracing::warn!(target: "servers", "a server asks, and does not take the answers");
            return None;
        }
        Some(received)
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
}

impl Lines {
    pub(super) fn new(server: String, output: ChildStdout, input: ChildStdin) -> Self {
        let output = FramedRead::new(output, LinesCodec::new_with_max_length(MESSAGE_BYTES_MAX));
        Self { server, output, input: Arc::new(Mutex::new(Some(input))), closed: CancellationToken::new() }
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
                        tracing::debug!(target: "servers", server = self.server, "skipped a line that is no message")
                    }
                },
                Err(error) => {
                    tracing::warn!(target: "servers", server = self.server, %error, "its output cannot be read");
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
