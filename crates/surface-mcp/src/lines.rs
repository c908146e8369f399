//! The protocol over a pair of streams: a message is a line.
//!
//! The library's own transport does not answer a line that it cannot read, and its client waits for ever. Here every
//! line is answered. `receive` may be dropped at any time without losing what was read of a line.

use std::{io, sync::Arc};

use futures::future::BoxFuture;
use rmcp::{
    RoleServer,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::Mutex,
};

use crate::error;

/// Lines in, lines out.
pub(crate) struct Lines<R, W> {
    read: BufReader<R>,
    write: Arc<Mutex<W>>,
    /// The part of the current line that has been read.
    line: Vec<u8>,
    /// The current line was refused already, so its rest is skipped.
    is_refused: bool,
    /// The refusal that is being written. Nothing is read meanwhile, so refusals cannot pile up.
    refusing: Option<BoxFuture<'static, io::Result<()>>>,
    max_bytes: usize,
}

impl<R, W> Lines<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    pub(crate) fn new(read: R, write: W, max_bytes: usize) -> Self {
        let (read, write) = (BufReader::new(read), Arc::new(Mutex::new(write)));
        Self { read, write, line: Vec::new(), is_refused: false, refusing: None, max_bytes }
    }

    /// Reads up to the end of the line, or one byte past its limit; returns `false` at the end of the input.
    async fn fill(&mut self) -> io::Result<bool> {
        let room = (self.max_bytes + 1).saturating_sub(self.line.len());
        let mut bounded = (&mut self.read).take(room as u64);
        Ok(bounded.read_until(b'\n', &mut self.line).await? > 0)
    }

    /// Begins to answer a line that is not a message.
    fn refuse(&mut self, message: ServerJsonRpcMessage) {
        self.refusing = Some(Box::pin(self.send(message)));
    }
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(&mut self, message: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let write = self.write.clone();
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut write = write.lock().await;
            write.write_all(&line).await?;
            write.flush().await
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if let Some(refusing) = &mut self.refusing {
                let refused = refusing.await;
                self.refusing = None;
                refused.inspect_err(|error| tracing::info!(%error, "the output broke")).ok()?;
            }
            let is_open = self.fill().await.inspect_err(|error| tracing::info!(%error, "the input broke")).ok()?;
            let is_whole = self.line.ends_with(b"\n");
            if !is_open && !is_whole {
                // A line without an end is not a message.
                return None;
            }
            let is_too_long = !is_whole && self.line.len() > self.max_bytes;
            if !is_whole && !is_too_long {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let was_refused = std::mem::replace(&mut self.is_refused, is_too_long);
            if was_refused || line.trim_ascii().is_empty() {
                continue;
            }
            if is_too_long {
                self.refuse(error::oversized(self.max_bytes));
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(message) => return Some(message),
                Err(_) => self.refuse(error::unreadable(&line)),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.write.lock().await.shutdown().await
    }
}
