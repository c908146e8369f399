//! A connection in both directions: a WebSocket, or a pair of pipes.
//!
//! One task reads, one task writes, and each message is answered by its own task, so nothing waits for a turn to end. If
//! the client leaves, requests that change something are performed all the same.

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
use meerkat_service::{SessionError, wire::Answers};
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
    wire::{NO_ID, Outward, answer, bye},
};

/// Messages that wait for the writer. More would only cost memory: a subscription waits with its cursor.
const QUEUE: usize = 4;
/// Messages of the largest size that one connection may have under way.
const LARGEST_MESSAGES: usize = 4;
/// Requests that end or decide something and have their own places, and bytes of each.
const CONTROLS_MAX: usize = 64;
const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// Input of a connection. At its end, the client still waits for its answers.
pub(crate) enum Inward {
    Message(Bytes),
    /// Bytes that are answered with a failure.
    Refused(Failure),
    /// Bytes that are answered with a failure, and after which nothing can be read.
    Unreadable(Failure),
    /// A sign of life.
    Alive,
    /// The client has left.
    Gone,
}

/// The reason why reading ends.
enum End {
    Finished,
    Stopped,
    Gone,
}

/// Both directions of a connection.
pub(crate) struct Transport<I, O> {
    pub(crate) inlet: I,
    pub(crate) outlet: O,
    /// Bytes written so far.
    pub(crate) written: Arc<AtomicU64>,
    /// How long the client may be silent before it is pinged, and then again before it counts as gone.
    pub(crate) silence: Duration,
    /// `PATH` of the command at the other end, if it sent one.
    pub(crate) search_path: Option<String>,
}

/// Counts the bytes that are written.
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
    let Transport { mut inlet, outlet, written, silence, search_path } = transport;
    let (out, queue) = mpsc::channel(QUEUE);
    let stall = rpc.options.stall();
    // A subscription ends after one such time, so there is another one in which its client can hear of it.
    let answers = rpc.options.answers.of_connection();
    let patience = Patience { stall: stall * 2, answers: answers.clone() };
    let writer = AbortOnDropHandle::new(tokio::spawn(write(queue, outlet, patience, written.clone())));
    let peer = Arc::new(Peer::new(out, written, stall, rpc.options.subscriptions, search_path));
    let requests = TaskTracker::new();
    let end = tokio::select! {
        end = read(&rpc, &mut inlet, &peer, &requests, &answers, silence) => end?,
        () = rpc.stop.cancelled() => End::Stopped,
        // The writer has the error.
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
    if reason.is_some() && rpc.options.is_for_commands {
        // The command may have left.
        peer.out.send(Outward::Answer(bye())).await.ok();
    }
    drop(peer);
    writer.await.map_err(io::Error::other)?
}

async fn read<I: Stream<Item = io::Result<Inward>> + Unpin>(
    rpc: &Arc<Rpc>,
    inlet: &mut I,
    peer: &Arc<Peer>,
    requests: &TaskTracker,
    answers: &Answers,
    silence: Duration,
) -> io::Result<End> {
    // In bytes. A small message takes enough of it to bound their number.
    let budget = u32::try_from(rpc.options.message_bytes.saturating_mul(LARGEST_MESSAGES)).unwrap_or(u32::MAX);
    let least = budget / u32::try_from(rpc.options.concurrent_messages).unwrap_or(u32::MAX).max(1);
    let (room, controls) = (Arc::new(Semaphore::new(budget as usize)), Arc::new(Semaphore::new(CONTROLS_MAX)));
    let mut is_pinged = false;
    loop {
        let Ok(inward) = timeout(silence, inlet.next()).await else {
            if is_pinged {
                return Ok(End::Gone);
            }
            is_pinged = true;
            // If the queue is full, the writer's own limit is running.
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
    // The client may have left.
    peer.out.send(Outward::Answer(answer(NO_ID, &Err(failure)).into())).await.ok();
}

/// Answers a message. It keeps its place until the answer is queued; if the client leaves, reads are cancelled.
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

/// Longest waits for a client that reads nothing.
struct Patience {
    /// In any case.
    stall: Duration,
    /// Others may wait for what it holds of this room.
    answers: Answers,
}

impl Patience {
    /// Waits for `work` while bytes are written; fails if the client reads nothing for too long.
    async fn wait_for<T>(&self, work: impl Future<Output = io::Result<T>>, written: &AtomicU64) -> io::Result<T> {
        let gives_way = async {
            loop {
                let before = written.load(Ordering::Relaxed);
                self.answers.give_way().await;
                if written.load(Ordering::Relaxed) == before {
                    return;
                }
            }
        };
        let stalled = || Err(io::Error::from(io::ErrorKind::TimedOut));
        tokio::select! {
            biased;
            done = unless_stalled(work, self.stall, written) => done.unwrap_or_else(stalled),
            () = gives_way => stalled(),
        }
    }
}

/// The one task that writes. It ends when all senders are dropped, or the client reads nothing for too long.
async fn write<O: Sink<Outward, Error = io::Error> + Unpin>(
    mut queue: mpsc::Receiver<Outward>,
    mut outlet: O,
    patience: Patience,
    written: Arc<AtomicU64>,
) -> io::Result<()> {
    while let Some(message) = queue.recv().await {
        let send = async {
            outlet.feed(message).await?;
            while let Ok(message) = queue.try_recv() {
                outlet.feed(message).await?;
            }
            outlet.flush().await
        };
        patience.wait_for(send, &written).await?;
    }
    patience.wait_for(outlet.close(), &written).await
}

#[cfg(test)]
mod tests {
    use meerkat_service::Operation;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// One that reads a little now and then is not ended, however long others wait; one that reads nothing is.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_gives_way() {
        let answers = Answers::new(6 * 1024 * 1024);
        let (holder, written) = (answers.of_connection(), AtomicU64::new(0));
        let kept = holder.room(Operation::List).await.unwrap();
        let patience = Patience { stall: Duration::from_secs(60), answers: holder };
        let slow = async {
            for _ in 0..8 {
                sleep(Duration::from_secs(4)).await;
                written.fetch_add(1, Ordering::Relaxed);
            }
            std::future::pending::<io::Result<()>>().await
        };
        let next = answers.of_connection();
        let others = async { while next.room(Operation::List).await.is_err() {} };
        let started = Instant::now();
        let ended = async {
            let ended = patience.wait_for(slow, &written).await.unwrap_err();
            drop(kept);
            (ended.kind(), started.elapsed().as_secs())
        };
        let (ended, ()) = tokio::join!(ended, others);
        assert_eq!(ended.0, io::ErrorKind::TimedOut);
        assert!((37..=42).contains(&ended.1), "after {} s, of which it read 32", ended.1);
    }
}
