//! A connection that messages come in by and go out by: a WebSocket, or a pair of pipes.
//!
//! One task reads, one task writes, and each message is answered by a task of its own, so that nothing waits behind a
//! turn. What came in is performed also where its client leaves before the answer, unless it only reads.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use meerkat_service::SessionError;
use tokio::{
    io::AsyncWrite,
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_util::{
    io::InspectWriter,
    task::{AbortOnDropHandle, TaskTracker},
};

use crate::{
    error::Failure,
    handlers::{From, Reply, Rpc, is_control},
    stream::{Peer, Start, unless_stalled},
    wire::{NO_ID, Outward, answer},
};

/// Messages that wait for the writer. More would only be memory: a subscription waits with its cursor.
const QUEUE: usize = 4;
/// Messages of the largest size that one connection may have under way.
const LARGEST_MESSAGES: usize = 4;
/// Requests that end or decide something which have places of their own, and how long each may be.
const CONTROLS_MAX: usize = 64;
const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// What comes in. Its end means that nothing more comes, and that the answers are waited for.
pub(crate) enum Inward {
    Message(Bytes),
    /// Something that is answered with a failure.
    Refused(Failure),
    /// The same, and nothing after it can be read.
    Unreadable(Failure),
    /// A sign of life.
    Alive,
    /// Nobody is there to answer to.
    Gone,
}

/// Why no more is read.
enum End {
    Finished,
    Stopped,
    Gone,
}

/// A way to send and to receive.
pub(crate) struct Transport<I, O> {
    pub(crate) inlet: I,
    pub(crate) outlet: O,
    /// Bytes that were written so far.
    pub(crate) written: Arc<AtomicU64>,
    /// How long the other side may be silent before it is pinged, and again before it counts as gone.
    pub(crate) silence: Duration,
}

/// Counts what is written, where it leaves.
pub(crate) fn counted<W>(io: W, written: &Arc<AtomicU64>) -> InspectWriter<W, impl FnMut(&[u8]) + Send + Unpin + use<W>>
where
    W: AsyncWrite,
{
    let written = written.clone();
    InspectWriter::new(io, move |bytes: &[u8]| {
        written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    })
}

/// Serves a connection until it ends.
pub(crate) async fn serve<I, O>(rpc: Arc<Rpc>, transport: Transport<I, O>) -> io::Result<()>
where
    I: Stream<Item = io::Result<Inward>> + Unpin,
    O: Sink<Outward, Error = io::Error> + Send + Unpin + 'static,
{
    let Transport { mut inlet, outlet, written, silence } = transport;
    let (out, queue) = mpsc::channel(QUEUE);
    let stall = rpc.options.stall();
    // A subscription ends after one such time, so there is another one in which its client can hear of it.
    let writer = AbortOnDropHandle::new(tokio::spawn(write(queue, outlet, stall * 2, written.clone())));
    let peer = Arc::new(Peer::new(out, written, stall, rpc.options.subscriptions));
    let requests = TaskTracker::new();
    let end = tokio::select! {
        end = read(&rpc, &mut inlet, &peer, &requests, silence) => end?,
        () = rpc.stop.cancelled() => End::Stopped,
        // The writer alone knows why.
        () = peer.out.closed() => End::Finished,
    };
    let reason = match end {
        End::Gone => return Ok(()),
        End::Finished => None,
        End::Stopped => Some(SessionError::ShuttingDown.into()),
    };
    requests.close();
    tokio::select! {
        () = requests.wait() => {}
        () = peer.out.closed() => {}
    }
    peer.end(reason.as_ref()).await;
    drop(peer);
    writer.await.map_err(io::Error::other)?
}

async fn read<I: Stream<Item = io::Result<Inward>> + Unpin>(
    rpc: &Arc<Rpc>,
    inlet: &mut I,
    peer: &Arc<Peer>,
    requests: &TaskTracker,
    silence: Duration,
) -> io::Result<End> {
    // In bytes. A small message takes as much of it as leaves room for so many of them.
    let budget = u32::try_from(rpc.options.message_bytes.saturating_mul(LARGEST_MESSAGES)).unwrap_or(u32::MAX);
    let least = budget / u32::try_from(rpc.options.concurrent_messages).unwrap_or(u32::MAX).max(1);
    let (room, controls) = (Arc::new(Semaphore::new(budget as usize)), Arc::new(Semaphore::new(CONTROLS_MAX)));
    let answers = rpc.options.answers.of_connection();
    let mut is_pinged = false;
    loop {
        let Ok(inward) = timeout(silence, inlet.next()).await else {
            if is_pinged {
                return Ok(End::Gone);
            }
            is_pinged = true;
            // Where the queue is full, the writer's own limit is running.
            peer.out.try_send(Outward::Ping).ok();
            continue;
        };
        is_pinged = false;
        match inward.transpose()? {
            Some(Inward::Message(message)) => {
                let cost = u32::try_from(message.len()).unwrap_or(u32::MAX).clamp(least, budget);
                let place = match room.clone().try_acquire_many_owned(cost) {
                    Ok(place) => place,
                    Err(_) if message.len() <= CONTROL_BYTES_MAX && is_control(&message) => {
                        controls.clone().acquire_owned().await.map_err(io::Error::other)?
                    }
                    Err(_) => room.clone().acquire_many_owned(cost).await.map_err(io::Error::other)?,
                };
                let from = From { peer: Some(peer.clone()), answers: answers.clone(), place: Some(Arc::new(place)) };
                requests.spawn(reply(rpc.clone(), peer.clone(), message, from));
            }
            Some(Inward::Refused(failure)) => refuse(peer, failure).await,
            Some(Inward::Unreadable(failure)) => {
                refuse(peer, failure).await;
                return Ok(End::Finished);
            }
            Some(Inward::Alive) => {}
            Some(Inward::Gone) => return Ok(End::Gone),
            None => return Ok(End::Finished),
        }
    }
}

async fn refuse(peer: &Peer, failure: Failure) {
    // A client that is gone needs no answer.
    peer.out.send(Outward::Answer(answer(NO_ID, &Err(failure)).into())).await.ok();
}

/// Answers a message. Its place is free again when the answer is on its way; where the client has left, nothing is read
/// for it any more.
async fn reply(rpc: Arc<Rpc>, peer: Arc<Peer>, message: Bytes, from: From) {
    let Reply { answer, starts, places } = tokio::select! {
        biased;
        reply = rpc.reply(message, from) => reply,
        () = peer.out.closed() => return,
    };
    starts.iter().for_each(Start::announce);
    if let Some(answer) = answer
        && peer.out.send(Outward::Answer(answer)).await.is_err()
    {
        return;
    }
    for start in starts {
        start.begin();
    }
    drop(places);
}

/// The one task that writes. It ends when nobody has anything more to say, or the other side takes nothing for `limit`.
async fn write<O: Sink<Outward, Error = io::Error> + Unpin>(
    mut queue: mpsc::Receiver<Outward>,
    mut outlet: O,
    limit: Duration,
    written: Arc<AtomicU64>,
) -> io::Result<()> {
    let stalled = || Err(io::Error::from(io::ErrorKind::TimedOut));
    while let Some(message) = queue.recv().await {
        let send = async {
            outlet.feed(message).await?;
            while let Ok(message) = queue.try_recv() {
                outlet.feed(message).await?;
            }
            outlet.flush().await
        };
        unless_stalled(send, limit, &written).await.unwrap_or_else(stalled)?;
    }
    unless_stalled(outlet.close(), limit, &written).await.unwrap_or_else(stalled)
}
