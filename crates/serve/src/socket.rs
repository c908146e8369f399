//! A connection's socket: it is closed if its peer reads nothing for too long, on every surface. It holds the connection's
//! place, so a WebSocket counts as long as it is open. A request's body ends if its peer sends too little for too long.
//!
//! A stalled peer must cost neither memory nor a place: nothing else can end a body that is never polled again.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use axum::BoxError;
use bytes::Buf as _;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep},
};

/// Bytes of a body that must come within its time limit. If each byte gave it more time, a few bodies that come byte by
/// byte could hold all places for uploads.
const BODY_PIECE_BYTES: usize = 16 * 1024;

/// Bytes that are read while a write waits: a peer that sends and takes no answers cannot fill the memory with requests,
/// and the interrupt of one that takes them slowly is read.
const READ_AHEAD_BYTES: usize = 256 * 1024;

/// Bytes of an unfinished request that are read and dropped after its answer, the longest wait for the first of them, and
/// the longest time for the rest.
const DROPPED_BYTES_MAX: usize = 256 * 1024 * 1024;
const FIRST_DROPPED_IN: Duration = Duration::from_secs(1);
const DROPPED_FOR: Duration = Duration::from_secs(10);

/// Stream whose writes must make progress. It is of no more use once one has made none for too long.
pub(super) struct Socket<S> {
    inner: S,
    stall: Duration,
    /// Runs while a write waits.
    writing: Option<Pin<Box<Sleep>>>,
    /// Bytes that were read since then, and the reader that waits for it.
    read_ahead: usize,
    reader: Option<Waker>,
    is_given_up: bool,
    /// Whether its last request was answered before its end.
    is_unfinished: Arc<AtomicBool>,
    /// Bytes that were dropped after the last answer, and the time for it.
    dropped: usize,
    dropping: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl<S> Socket<S> {
    pub(super) fn new(inner: S, stall: Duration, place: OwnedSemaphorePermit) -> Self {
        let (writing, reader, dropping, is_unfinished) = (None, None, None, Arc::default());
        let (read_ahead, is_given_up, dropped, _place) = (0, false, 0, place);
        Self { inner, stall, writing, read_ahead, reader, is_given_up, is_unfinished, dropped, dropping, _place }
    }

    /// Returns what its requests set.
    pub(super) fn unfinished(&self) -> Arc<AtomicBool> {
        self.is_unfinished.clone()
    }

    /// Returns the result of a write, which fails once it has waited for the whole limit.
    fn bound<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let is_waiting = polled.is_pending();
        if is_waiting && !self.is_given_up {
            let limit = self.stall;
            ready!(self.writing.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(context));
            self.is_given_up = true;
        }
        (self.writing, self.read_ahead) = (None, 0);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        if is_waiting { Poll::Ready(Err(given_up())) } else { polled }
    }
}

fn given_up() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer read nothing for the stall limit")
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_given_up {
            return Poll::Ready(Err(given_up()));
        }
        if self.read_ahead >= READ_AHEAD_BYTES {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if self.writing.is_some() {
            self.read_ahead += buffer.filled().len() - before;
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
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
        ready!(self.bound(context, polled))?;
        self.drop_rest(context).map(Ok)
    }
}

impl<S: AsyncRead + Unpin> Socket<S> {
    /// Reads what a peer still sends of a request that was answered before its end. If the socket were closed, the system
    /// would tell the peer that its connection is lost, and the peer would not read the answer.
    fn drop_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut buffer = [0; 16 * 1024];
        while self.is_unfinished.load(Ordering::Relaxed) && self.dropped < DROPPED_BYTES_MAX {
            let mut buffer = ReadBuf::new(&mut buffer);
            let Poll::Ready(read) = Pin::new(&mut self.inner).poll_read(context, &mut buffer) else {
                return self.dropping.get_or_insert_with(|| Box::pin(sleep(FIRST_DROPPED_IN))).as_mut().poll(context);
            };
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            if self.dropped == 0 {
                self.dropping = Some(Box::pin(sleep(DROPPED_FOR)));
            }
            self.dropped += buffer.filled().len();
        }
        Poll::Ready(())
    }
}

/// Body of a request, which says if it was left before its end. It fails if a piece of it, or its end, is waited for too
/// long.
pub(super) struct Received<B: Body = Incoming> {
    body: B,
    /// Longest wait for each piece.
    limit: Duration,
    /// Bytes that are still missing of a piece, and the rest of its time. What the server needs between two reads is not
    /// its peer's time.
    missing: usize,
    left: Duration,
    /// Runs while bytes are waited for.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Whether all of it was read. A chunked body itself does not say so.
    has_ended: bool,
    is_unfinished: Arc<AtomicBool>,
}

impl<B: Body> Received<B> {
    pub(super) fn new(body: B, limit: Duration, is_unfinished: Arc<AtomicBool>) -> Self {
        is_unfinished.store(true, Ordering::Relaxed);
        let (missing, left, waiting, has_ended) = (BODY_PIECE_BYTES, limit, None, false);
        Self { body, limit, missing, left, waiting, has_ended, is_unfinished }
    }

    fn has_ended(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }
}

impl<B: Body> Drop for Received<B> {
    fn drop(&mut self) {
        self.is_unfinished.store(!self.has_ended(), Ordering::Relaxed);
    }
}

impl<B: Body<Error: Into<BoxError>> + Unpin> Body for Received<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            let left = self.left;
            ready!(self.waiting.get_or_insert_with(|| Box::pin(sleep(left))).as_mut().poll(context));
            let error = io::Error::new(io::ErrorKind::TimedOut, "the peer sent too little of a body in its time limit");
            return Poll::Ready(Some(Err(error.into())));
        };
        if let Some(waiting) = self.waiting.take() {
            self.left = waiting.deadline().saturating_duration_since(Instant::now());
        }
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, |data| data.remaining());
        self.missing = self.missing.saturating_sub(bytes);
        if self.missing == 0 {
            (self.missing, self.left) = (BODY_PIECE_BYTES, self.limit);
        }
        self.has_ended |= frame.is_none();
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use http_body_util::BodyExt as _;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        sync::Semaphore,
    };

    use super::*;

    const STALL: Duration = Duration::from_secs(30);

    fn socket(bytes: usize) -> (Socket<DuplexStream>, DuplexStream, Arc<Semaphore>) {
        let (near, far) = duplex(bytes);
        let room = Arc::new(Semaphore::new(1));
        (Socket::new(near, STALL, room.clone().try_acquire_owned().unwrap()), far, room)
    }

    #[tokio::test(start_paused = true)]
    async fn little_is_read_while_a_write_waits() {
        const SENT: usize = 2 * READ_AHEAD_BYTES;
        let (near, far, _room) = socket(READ_AHEAD_BYTES / 4);
        let (mut reader, mut writer) = tokio::io::split(near);
        let (mut taker, mut sender) = tokio::io::split(far);
        let writing = tokio::spawn(async move { writer.write_all(&[7; SENT]).await });
        let sending = tokio::spawn(async move { sender.write_all(&[8; SENT]).await });
        // The clock is paused: it moves only when every task waits.
        sleep(Duration::from_secs(1)).await;
        let read = Arc::new(AtomicUsize::new(0));
        let count = read.clone();
        let reading = tokio::spawn(async move {
            let mut buffer = [0; 1000];
            while count.load(Ordering::Relaxed) < SENT {
                count.fetch_add(reader.read(&mut buffer).await.unwrap(), Ordering::Relaxed);
            }
        });
        sleep(Duration::from_secs(1)).await;
        let ahead = read.load(Ordering::Relaxed);
        assert!((READ_AHEAD_BYTES..READ_AHEAD_BYTES + 1000).contains(&ahead), "{ahead}");
        // As soon as the peer takes something, it is read on.
        taker.read_exact(&mut [0; SENT]).await.unwrap();
        reading.await.unwrap();
        writing.await.unwrap().unwrap();
        sending.await.unwrap().unwrap();
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
        let ended = [near.write_all(&[7]).await, near.read_u8().await.map(drop)].map(|ended| ended.unwrap_err().kind());
        assert_eq!((ended, started.elapsed().as_secs()), ([io::ErrorKind::TimedOut; 2], 30));
        drop(near);
        assert_eq!(room.available_permits(), 1);
    }

    /// A body that does not know where it ends: pieces of so many bytes, each so many seconds after it is asked for.
    struct Chunked(VecDeque<(u64, usize)>, Option<Pin<Box<Sleep>>>);

    impl Body for Chunked {
        type Data = bytes::Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<bytes::Bytes>, io::Error>>> {
            let Some((seconds, bytes)) = self.0.front().copied() else { return Poll::Ready(None) };
            let next = self.1.get_or_insert_with(|| Box::pin(sleep(Duration::from_secs(seconds))));
            ready!(next.as_mut().poll(context));
            (self.1, _) = (None, self.0.pop_front());
            Poll::Ready(Some(Ok(Frame::data(vec![7; bytes].into()))))
        }
    }

    #[tokio::test]
    async fn a_body_that_was_read_to_its_end_is_finished_however_it_came() {
        let is_unfinished = Arc::<AtomicBool>::default();
        for (read, expected) in [(0, true), (1, true), (2, false)] {
            let mut body = Received::new(Chunked([(0, 5)].into(), None), STALL, is_unfinished.clone());
            for _ in 0..read {
                let _read = body.frame().await;
            }
            drop(body);
            assert_eq!(is_unfinished.load(Ordering::Relaxed), expected, "{read}");
        }
    }

    /// Each byte gave it more time, so one byte now and then held a place for ever.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_too_slowly_ends_and_a_slow_server_is_not_its_peers_fault() {
        const PIECE: usize = BODY_PIECE_BYTES;
        let trickle = |first: Vec<(u64, usize)>| [first, vec![(8, 1); 1000]].concat();
        let in_quarters = vec![(7, PIECE / 4); 40];
        for (pieces, server_seconds, expected) in [
            // Nothing comes.
            (vec![(1000, 1)], 0, (0, 30, false)),
            (trickle(vec![]), 0, (3, 30, false)),
            (trickle(vec![]), 1000, (3, 3030, false)),
            // What came before, all at once or not, gives the rest no more time.
            (trickle(vec![(20, PIECE - 1)]), 0, (PIECE - 1 + 1 + 3, 58, false)),
            (trickle(vec![(0, 64 * PIECE)]), 0, (64 * PIECE + 3, 30, false)),
            // Slow ones that send enough come to their end.
            (in_quarters.clone(), 0, (10 * PIECE, 280, true)),
            (in_quarters, 1000, (10 * PIECE, 40_280, true)),
        ] {
            let started = Instant::now();
            let mut body = Received::new(Chunked(pieces.into(), None), STALL, Arc::default());
            let (mut bytes, mut is_whole) = (0, true);
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else {
                    is_whole = false;
                    break;
                };
                bytes += frame.into_data().unwrap().len();
                sleep(Duration::from_secs(server_seconds)).await;
            }
            assert_eq!((bytes, started.elapsed().as_secs(), is_whole), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_after_an_early_answer_is_dropped_for_a_while() {
        let started = Instant::now();
        let seconds = || started.elapsed().as_secs();
        let ended = async |mut near: Socket<DuplexStream>, is_unfinished: bool| {
            near.is_unfinished.store(is_unfinished, Ordering::Relaxed);
            near.shutdown().await.unwrap();
            near.dropped
        };
        // A peer that sends nothing is not waited for, or not for long.
        let (near, far, _room) = socket(8);
        assert_eq!((ended(near, false).await, seconds()), (0, 0));
        drop(far);
        let (near, far, _room) = socket(8);
        assert_eq!((ended(near, true).await, seconds()), (0, 1));
        drop(far);
        // One that sends reaches its end, and one that never ends is left.
        let (near, mut far, _room) = socket(8);
        let sending = async {
            sleep(FIRST_DROPPED_IN / 2).await;
            far.write_all(&[7; 1000]).await.unwrap();
            drop(far);
        };
        assert_eq!(tokio::join!(ended(near, true), sending).0, 1000);
        let (near, mut far, _room) = socket(8);
        let sending = async {
            while far.write_all(&[7]).await.is_ok() {
                sleep(FIRST_DROPPED_IN / 2).await;
            }
        };
        let before = seconds();
        assert_eq!((tokio::join!(ended(near, true), sending).0, seconds() - before), (20, 10));
    }
}
