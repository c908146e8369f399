//! A connection's socket: it is closed if its peer begins nothing, or reads nothing for too long, on every surface. It
//! holds the connection's place, so a WebSocket counts as long as it is open.
//!
//! A stalled peer must cost neither memory nor a place: nothing else can end a body that is never polled again.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use meerkat_service::wire::Answers;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep},
};

/// First bytes of a peer that speaks HTTP/2 without asking, and the answer: no settings, and the end of the connection,
/// because HTTP/1.1 is required.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const GO_AWAY: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d";

/// Bytes that a peer must send before hyper's own timeout runs: enough to tell HTTP/2 from HTTP/1.
const OPENING_BYTES: usize = PREFACE.len();

/// Longest waits for a peer.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// For its first bytes.
    pub(super) opening: Duration,
    /// While it reads nothing and data is waiting.
    pub(super) stall: Duration,
}

/// Stream whose peer must begin, and whose writes must make progress.
pub(super) struct Socket<S> {
    inner: S,
    stall: Duration,
    /// The room of this connection's answers.
    answers: Answers,
    /// Runs while a write waits, and ends when it has waited for too long.
    writing: Option<Pin<Box<dyn Future<Output = &'static str> + Send>>>,
    /// Runs until the first bytes have come.
    opening: Option<Opening>,
    _place: OwnedSemaphorePermit,
}

/// State of a connection that begins.
struct Opening {
    timer: Pin<Box<Sleep>>,
    /// Bytes that have come, and true if they are the preface so far.
    seen: usize,
    is_preface: bool,
}

impl Opening {
    fn see(&mut self, bytes: &[u8]) {
        let rest = &PREFACE[self.seen..];
        let known = rest.len().min(bytes.len());
        self.is_preface &= rest[..known] == bytes[..known];
        self.seen += known;
    }
}

impl<S> Socket<S> {
    pub(super) fn new(inner: S, patience: Patience, answers: Answers, place: OwnedSemaphorePermit) -> Self {
        let opening = Some(Opening { timer: Box::pin(sleep(patience.opening)), seen: 0, is_preface: true });
        Self { inner, stall: patience.stall, answers, writing: None, opening, _place: place }
    }

    /// Returns the result of a write, which fails once it has waited for the whole limit, or gives way to others.
    fn bound<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.writing = None;
            return polled;
        }
        let (limit, answers) = (self.stall, &self.answers);
        let given_up = self.writing.get_or_insert_with(|| {
            let answers = answers.clone();
            Box::pin(async move {
                tokio::select! {
                    () = sleep(limit) => "the peer read nothing for the stall limit",
                    () = answers.give_way() => "the peer read nothing while others waited for room",
                }
            })
        });
        let reason = ready!(given_up.as_mut().poll(context));
        self.writing = None;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, reason)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(context, buffer);
        let Some(opening) = &mut this.opening else { return polled };
        if polled.is_ready() {
            opening.see(&buffer.filled()[before..]);
            if opening.seen == OPENING_BYTES {
                let is_preface = opening.is_preface;
                this.opening = None;
                if is_preface {
                    // It fits into an unused socket; otherwise the close says enough.
                    drop(Pin::new(&mut this.inner).poll_write(context, GO_AWAY));
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::Unsupported, "the peer speaks HTTP/2")));
                }
            }
            return polled;
        }
        ready!(opening.timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer did not begin a request")))
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

    use meerkat_service::Operation;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        sync::Semaphore,
        time::Instant,
    };

    use super::*;

    const PATIENCE: Patience = Patience { opening: Duration::from_secs(10), stall: Duration::from_secs(30) };

    fn socket(bytes: usize) -> (Socket<DuplexStream>, DuplexStream, Arc<Semaphore>) {
        socket_of(Answers::default(), bytes)
    }

    fn socket_of(answers: Answers, bytes: usize) -> (Socket<DuplexStream>, DuplexStream, Arc<Semaphore>) {
        let (near, far) = duplex(bytes);
        let room = Arc::new(Semaphore::new(1));
        (Socket::new(near, PATIENCE, answers, room.clone().try_acquire_owned().unwrap()), far, room)
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

    /// It is given up only when it has taken nothing for a while, and only if it holds room.
    #[tokio::test(start_paused = true)]
    async fn a_peer_gives_way_to_others() {
        let answers = Answers::new(6 * 1024 * 1024);
        let (holder, idle) = (answers.of_client(), answers.of_client());
        let kept = holder.room(Operation::List).await.unwrap();
        let ((mut near, mut far, _), (mut beside, _far, _)) = (socket_of(holder, 8), socket_of(idle, 8));
        let slow = async {
            let mut taken = [0; 8];
            for _ in 0..3 {
                sleep(Duration::from_secs(4)).await;
                far.read_exact(&mut taken).await.unwrap();
            }
            far
        };
        let started = Instant::now();
        let given_up = async {
            let given_up = near.write_all(&[7; 40]).await.unwrap_err();
            drop(kept);
            (given_up.kind(), started.elapsed().as_secs())
        };
        let others = async {
            assert!(answers.room(Operation::List).await.is_err());
            let came = answers.room(Operation::List).await;
            (came.is_ok(), started.elapsed().as_secs())
        };
        let without_room = async {
            let stalled = beside.write_all(&[7; 40]).await.unwrap_err();
            (stalled.kind(), started.elapsed().as_secs())
        };
        let (given_up, others, without_room, _far) = tokio::join!(given_up, others, without_room, slow);
        let timed_out = io::ErrorKind::TimedOut;
        assert_eq!((given_up, others, without_room), ((timed_out, 17), (true, 17), (timed_out, 30)));
    }

    /// However it spreads its first bytes, they have one limit; then hyper's timeout counts.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_begin_is_given_up() {
        let started = Instant::now();
        let (mut near, mut far, _) = socket(64);
        let slow = async {
            for _ in 0..9 {
                sleep(Duration::from_secs(1)).await;
                far.write_all(b"P").await.unwrap();
            }
            far
        };
        let mut bytes = [0; OPENING_BYTES];
        let (read, _far) = tokio::join!(near.read_exact(&mut bytes), slow);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 10);

        let (mut near, mut far, _) = socket(64);
        far.write_all(&[b'x'; OPENING_BYTES]).await.unwrap();
        near.read_exact(&mut bytes).await.unwrap();
        let late = async {
            sleep(Duration::from_secs(100)).await;
            far.write_all(b"y").await.unwrap();
        };
        let (read, ()) = tokio::join!(near.read_u8(), late);
        assert_eq!(read.unwrap(), b'y');
    }
}
