//! A connection whose peer takes nothing for too long is closed, whatever surface writes to it.
//!
//! A stalled reader must cost neither memory nor a place: nothing else can end a body that is never polled again.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A stream whose writes must make progress.
pub(super) struct StallLimit<S> {
    inner: S,
    limit: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> StallLimit<S> {
    pub(super) const fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit, timer: None }
    }

    /// What a write came to; one that waited for the whole limit fails.
    fn bound<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.timer = None;
            return polled;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer took nothing for the stall limit")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.bound(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.bound(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.bound(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(context);
        self.bound(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (near, mut far) = duplex(8);
        let mut near = StallLimit::new(near, Duration::from_secs(30));
        let slow = async {
            let mut taken = [0; 8];
            for _ in 0..4 {
                sleep(Duration::from_secs(20)).await;
                far.read_exact(&mut taken).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[7; 40]), slow);
        written.unwrap();
        let started = tokio::time::Instant::now();
        let stalled = near.write_all(&[7; 40]).await.unwrap_err();
        assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 30);
    }
}
