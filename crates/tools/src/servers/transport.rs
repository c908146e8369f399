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
use tokio_util::codec::{FramedRead, LinesCodec};

/// Bytes of one message from a process; a longer one ends the connection.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Mark of a request: true once a transport has taken it, so that the server may have seen it.
#[derive(Clone, Default)]
pub(super) struct Taken(Arc<AtomicBool>);

impl Taken {
    /// Returns true if the server may have seen the request.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Transport that marks each request that it takes.
pub(super) struct Marking<T>(pub(super) T);

impl<T: Transport<RoleClient>> Transport<RoleClient> for Marking<T> {
    type Error = T::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        if let JsonRpcMessage::Request(request) = &message
            && let Some(taken) = request.request.extensions().get::<Taken>()
        {
            taken.0.store(true, Ordering::SeqCst);
        }
        self.0.send(message)
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.0.receive()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.0.close()
    }
}

/// Messages as lines over a process's input and output.
pub(super) struct Lines {
    server: String,
    output: FramedRead<ChildStdout, LinesCodec>,
    input: Arc<Mutex<Option<ChildStdin>>>,
}

impl Lines {
    pub(super) fn new(server: String, output: ChildStdout, input: ChildStdin) -> Self {
        let output = FramedRead::new(output, LinesCodec::new_with_max_length(MESSAGE_BYTES_MAX));
        Self { server, output, input: Arc::new(Mutex::new(Some(input))) }
    }
}

impl Transport<RoleClient> for Lines {
    type Error = std::io::Error;

    fn send(&mut self, message: ClientJsonRpcMessage) -> impl Future<Output = std::io::Result<()>> + Send + 'static {
        let input = self.input.clone();
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut input = input.lock().await;
            input.as_mut().ok_or(std::io::ErrorKind::NotConnected)?.write_all(&line).await
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
        // The supervisor sees that it is closed.
        drop(self.input.lock().await.take());
        Ok(())
    }
}
