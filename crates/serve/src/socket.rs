//! A connection's socket: it is closed if its peer reads nothing for too long, on every surface. It holds the connection's
//! place, so a WebSocket counts as long as it is open.
//!
//! A stalled peer must cost neither memory nor a place: nothing else can end a body that is never polled again.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep},
};

/// Stream whose writes must make progress.
pub(super) struct Socket<S> {
    inner: S,
    stall: Duration,
    /// Runs while a write waits.
    writing: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl<S> Socket<S> {
    pub(super) fn new(inner: S, stall: Duration, place: OwnedSemaphorePermit) -> Self {
        Self { inner, stall, writing: None, _place: place }
    }

    /// Returns the result of a write, which fails once it has waited for the whole limit.
    fn bound<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.writing = None;
            return polled;
        }
        let limit = self.stall;
        ready!(self.writing.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(context));
        self.writing = None;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer read nothing for the stall limit")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
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
    use std::sync::Arc;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        sync::Semaphore,
        time::Instant,
    };

    use super::*;

    const STALL: Duration = Duration::from_secs(30);

    fn socket(bytes: usize) -> (Socket<DuplexStream>, DuplexStream, Arc<Semaphore>) {
        let (near, far) = duplex(bytes);
        let room = Arc::new(Semaphore::new(1));
        (Socket::new(near, STALL, room.clone().try_acquire_owned().unwrap()), far, room)
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (mut near, mut far, room) = socket(8);
        let slow = async {
            let mut taken = [0; 8];
            for _ in 0..4 {
                sleep(Duration::from_secs(20)).await;
                far.read_exact(&mut taken).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[7; 40]), slow);
        written.unwrap();
        let started = Instant::now();
        let stalled = near.write_all(&[7; 40]).await.unwrap_err();
        assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
        assert_eq!((started.elapsed().as_secs(), room.available_permits()), (30, 0));
        drop(near);
        assert_eq!(room.available_permits(), 1);
    }
}
