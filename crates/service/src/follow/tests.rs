//! Following: durable events without a gap or a duplicate, live ones in passing.

use std::sync::{Arc, Weak};

use futures::FutureExt as _;

use super::{
    cursor::Follower,
    live::{FollowedLine, LiveHub, READ_AHEAD_BYTES},
};
use crate::{
    SessionError,
    clock::{FrozenClock, SeededIds, Timestamp},
    ids::Seq,
    service::ReadEvents,
    session::{
        event::{LiveEvent, LiveRecord, ToolProgress},
        tests::{pinned, session_id},
    },
    store::{EventStore as _, Lease, MemoryEventStore, ReadLimit},
    wire::decode_live,
};

/// A session's store and hub, and the lease to append with.
struct Stage {
    store: Arc<MemoryEventStore>,
    hub: Arc<LiveHub>,
    lease: Lease,
}

impl Stage {
    async fn new(events: u64) -> Self {
        Self::keeping(u64::MAX, events).await
    }

    async fn keeping(bytes: u64, events: u64) -> Self {
        let store = Arc::new(MemoryEventStore::new(bytes, Arc::default()));
        let lease = store.lease(session_id()).await.unwrap();
        let stage = Self { store, hub: Arc::new(LiveHub::new(session_id(), Weak::new())), lease };
        (1..=events).for_each(|seq| stage.append(seq));
        stage
    }

    fn append(&self, seq: Seq) {
        drop(self.store.stage(&self.lease, &[pinned(seq, "x")]).unwrap());
    }

    fn begin_step(&self, after: Seq) {
        self.hub.begin_step(after, 3, 1, now());
    }

    fn progress(&self, after: Seq, text: &str) {
        let progress = ToolProgress { call_id: "c".to_owned(), text: text.to_owned() };
        self.hub.show(after, 3, now(), &LiveEvent::ToolProgress(progress));
    }

    async fn try_follow(&self, cursor: Seq) -> Result<Follower, SessionError> {
        let clock = Arc::new(FrozenClock::at(now()));
        Follower::new(&ReadEvents::new(session_id(), cursor), self.store.clone(), clock, self.hub.clone()).await
    }

    async fn follow(&self, cursor: Seq) -> Follower {
        self.try_follow(cursor).await.unwrap()
    }
}

fn now() -> Timestamp {
    SeededIds::wall_time()
}

/// Lines that a follower has at once, before it waits.
fn ready(follower: &mut Follower) -> Vec<FollowedLine> {
    std::iter::from_fn(|| follower.next().now_or_never().map(|line| line.unwrap().expect("the session is there")))
        .collect()
}

/// The lines in short: a seq, or a live event's content and the seq that it follows.
fn short(lines: &[FollowedLine]) -> Vec<String> {
    let short = |line: &FollowedLine| match line.seq {
        Some(seq) => seq.to_string(),
        None => {
            let LiveRecord { after, event, .. } =
                decode_live(std::str::from_utf8(&line.line).unwrap()).unwrap().unwrap();
            match event {
                LiveEvent::TextDelta(delta) => format!("{after}: {}+{} {}", delta.block, delta.offset, delta.text),
                LiveEvent::ReasoningDelta(delta) => {
                    format!("{after}: {}+{} ({})", delta.block, delta.offset, delta.text)
                }
                LiveEvent::ToolProgress(progress) => format!("{after}: {}", progress.text),
                LiveEvent::Retrying(retrying) => format!("{after}: attempt {}", retrying.attempt),
                LiveEvent::Pruned(pruned) => format!("{after}: pruned {} to {}", pruned.from, pruned.to),
                LiveEvent::SessionDeleted(_) => format!("{after}: deleted"),
            }
        }
    };
    lines.iter().map(short).collect()
}

fn shown(follower: &mut Follower) -> Vec<String> {
    short(&ready(follower))
}

#[tokio::test]
async fn who_comes_in_the_middle_of_a_step_gets_what_has_come_from_its_beginning() {
    let stage = Stage::new(2).await;
    let mut early = stage.follow(2).await;
    assert!(shown(&mut early).is_empty());
    stage.begin_step(2);
    for (is_reasoning, text) in [(true, "hm"), (true, "..."), (false, "Hel"), (false, "lo")] {
        stage.hub.delta(2, is_reasoning, text.to_owned());
    }
    assert_eq!(shown(&mut early), ["2: 0+0 (hm)", "2: 0+2 (...)", "2: 1+0 Hel", "2: 1+3 lo"]);
    let mut late = stage.follow(0).await;
    assert_eq!(shown(&mut late), ["1", "2", "2: 0+0 (hm...)", "2: 1+0 Hello"]);
    stage.hub.delta(2, false, "!".to_owned());
    assert_eq!(shown(&mut early), ["2: 1+5 !"]);
    assert_eq!(shown(&mut late), ["2: 1+5 !"]);
}

/// A turn is queued, or a fact pinned, while the model speaks.
#[tokio::test]
async fn a_durable_event_within_a_step_stops_no_delta() {
    let stage = Stage::new(2).await;
    let mut follower = stage.follow(2).await;
    stage.begin_step(2);
    stage.hub.delta(2, false, "Hel".to_owned());
    assert_eq!(shown(&mut follower), ["2: 0+0 Hel"]);
    stage.append(3);
    assert_eq!(shown(&mut stage.follow(2).await), ["3", "3: 0+0 Hel"]);
    stage.hub.delta(3, false, "lo".to_owned());
    assert_eq!(shown(&mut follower), ["3", "3: 0+3 lo"]);
    assert_eq!(shown(&mut stage.follow(3).await), ["3: 0+0 Hello"]);
}

#[tokio::test]
async fn what_is_answered_is_not_shown_as_a_delta_again() {
    let stage = Stage::new(2).await;
    stage.begin_step(2);
    stage.hub.delta(2, false, "Hello".to_owned());
    stage.hub.end_step();
    stage.append(3);
    let mut follower = stage.follow(2).await;
    assert_eq!(shown(&mut follower), ["3"]);
    stage.append(4);
    stage.progress(4, "half");
    assert_eq!(shown(&mut follower), ["4", "4: half"]);
    assert!(shown(&mut stage.follow(4).await).is_empty());
}

#[tokio::test]
async fn deltas_stand_between_the_durable_events_that_they_follow_and_stale_ones_are_dropped() {
    let stage = Stage::new(1).await;
    let mut follower = stage.follow(1).await;
    assert!(shown(&mut follower).is_empty());
    stage.begin_step(1);
    stage.hub.delta(1, false, "one".to_owned());
    stage.append(2);
    // The delta that follows 1 is below the cursor once 2 was read.
    assert_eq!(shown(&mut follower), ["2"]);
    // Shown before the durable event that it follows can be read.
    stage.begin_step(3);
    stage.hub.delta(3, false, "after three".to_owned());
    let mut late = stage.follow(2).await;
    assert!(shown(&mut follower).is_empty() && shown(&mut late).is_empty());
    stage.append(3);
    assert_eq!(shown(&mut follower), ["3", "3: 0+0 after three"]);
    assert_eq!(shown(&mut late), ["3", "3: 0+0 after three"]);
}

#[tokio::test]
async fn a_slow_follower_loses_deltas_and_nothing_else() {
    let stage = Stage::new(1).await;
    let (mut slow, mut quick) = (stage.follow(1).await, stage.follow(1).await);
    stage.begin_step(1);
    stage.hub.delta(1, false, "0".to_owned());
    assert_eq!(shown(&mut slow), ["1: 0+0 0"]);
    let mut pieces = shown(&mut quick);
    for _ in 0..1000 {
        stage.hub.delta(1, false, "x".to_owned());
        pieces.extend(shown(&mut quick));
    }
    assert_eq!(pieces.len(), 1001);
    // One delta from where it was replaces a thousand pieces.
    assert_eq!(shown(&mut slow), [format!("1: 0+1 {}", "x".repeat(1000))]);
    stage.hub.end_step();
    (2..=200).for_each(|seq| stage.append(seq));
    let expected: Vec<String> = (2..=200).map(|seq: Seq| seq.to_string()).collect();
    assert_eq!(shown(&mut slow), expected);
    assert_eq!(shown(&mut quick), expected);
}

/// A follower holds as many whole lines as fit, or one that does not.
#[tokio::test]
async fn a_follower_holds_a_bounded_number_of_bytes() {
    let text = |bytes: usize| "x".repeat(bytes);
    let stage = Stage::new(0).await;
    for seq in 1..=200 {
        drop(stage.store.stage(&stage.lease, &[pinned(seq, &text(if seq == 100 { 200_000 } else { 1000 }))]).unwrap());
    }
    let frames = stage.store.read(session_id(), 0, ReadLimit::frames(200)).await.unwrap().unwrap().frames;
    let mut follower = stage.follow(0).await;
    let mut held = 0;
    for frame in frames {
        let before = follower.held_bytes();
        assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(frame.seq));
        let taken = if before == 0 { follower.held_bytes() + frame.line.len() } else { before };
        assert_eq!(follower.held_bytes(), taken - frame.line.len());
        assert!(taken <= READ_AHEAD_BYTES || taken == frame.line.len(), "{taken} bytes at {}", frame.seq);
        held = held.max(taken.min(READ_AHEAD_BYTES));
    }
    let line = crate::wire::encode_event(&pinned(150, &text(1000))).unwrap().len();
    assert!(held > READ_AHEAD_BYTES - line, "no more than one line's room is left unused: {held}");

    // Live lines as well, whether they are read one by one or all at once by one who comes late.
    stage.begin_step(200);
    assert!(follower.next().now_or_never().is_none());
    for _ in 0..100 {
        stage.hub.delta(200, false, text(1000));
    }
    let mut late = stage.follow(200).await;
    for is_reasoning in [true, false, true] {
        stage.hub.delta(200, is_reasoning, text(10_000));
    }
    let mut shown = 0;
    while let Some(line) = follower.next().now_or_never() {
        shown += line.unwrap().unwrap().line.len();
        assert!(follower.held_bytes() <= READ_AHEAD_BYTES);
    }
    assert!(shown > 130_000, "nothing is lost: {shown}");
    let whole: Vec<usize> = [100_000, 10_000, 10_000, 10_000].to_vec();
    let mut shown = vec![0; 4];
    while let Some(line) = late.next().now_or_never() {
        let line = line.unwrap().unwrap();
        assert!(line.line.len() + late.held_bytes() <= READ_AHEAD_BYTES);
        let (block, offset, text) = delta(&line);
        assert_eq!(offset, shown[block], "no byte is missing, and none comes twice");
        shown[block] += text.len();
    }
    assert_eq!(shown, whole);
}

/// Block, offset and text of a delta.
fn delta(line: &FollowedLine) -> (usize, usize, String) {
    let record = decode_live(std::str::from_utf8(&line.line).unwrap()).unwrap().unwrap();
    match record.event {
        LiveEvent::TextDelta(delta) => (delta.block as usize, delta.offset as usize, delta.text),
        LiveEvent::ReasoningDelta(delta) => (delta.block as usize, delta.offset as usize, delta.text),
        other => panic!("{other:?}"),
    }
}

/// Each time that it fell behind, it got the whole answer again, in one line.
#[tokio::test]
async fn a_slow_follower_reads_a_long_answer_once_and_piece_by_piece() {
    const PARTS: usize = 4000;
    let stage = Stage::new(1).await;
    let mut slow = stage.follow(1).await;
    stage.begin_step(1);
    let (mut read, mut text) = (String::new(), String::new());
    let mut take = |follower: &mut Follower, count: usize| {
        for _ in 0..count {
            let Some(line) = follower.next().now_or_never() else { return };
            let line = line.unwrap().unwrap();
            assert!(line.line.len() <= READ_AHEAD_BYTES, "{} bytes", line.line.len());
            let (_, offset, piece) = delta(&line);
            assert_eq!(offset, read.len());
            read.push_str(&piece);
        }
    };
    for part in 0..PARTS {
        let part = format!("{part} é{}", "x".repeat(500));
        stage.hub.delta(1, false, part.clone());
        text.push_str(&part);
        if part.len() % 3 == 0 {
            take(&mut slow, 1);
        }
    }
    take(&mut slow, usize::MAX);
    assert!(read == text, "{} of {} bytes", read.len(), text.len());
    stage.hub.delta(1, false, "!".to_owned());
    assert_eq!(shown(&mut slow), [format!("1: 0+{} !", text.len())]);
}

#[tokio::test]
async fn what_was_pruned_is_announced_at_the_start_and_on_the_way() {
    let line = crate::wire::encode_event(&pinned(10, "x")).unwrap().len() as u64;
    let stage = Stage::keeping(3 * line, 10).await;
    assert_eq!(shown(&mut stage.follow(0).await), ["0: pruned 1 to 7", "8", "9", "10"]);
    assert_eq!(shown(&mut stage.follow(7).await), ["8", "9", "10"]);
    let mut follower = stage.follow(8).await;
    assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(9));
    (11..=20).for_each(|seq| stage.append(seq));
    // So near the end it reads no further ahead.
    assert_eq!(shown(&mut follower), ["9: pruned 10 to 17", "18", "19", "20"]);
    let refused = stage.try_follow(21).await.err().unwrap();
    assert!(matches!(refused, SessionError::CursorOutOfRange { oldest_seq: 18, last_seq: 20 }), "{refused:?}");
}

/// A fork below the kept frames has a past without frames.
#[tokio::test]
async fn a_past_that_is_gone_whole_is_announced_once() {
    let line = crate::wire::encode_event(&pinned(10, "x")).unwrap().len() as u64;
    let stage = Stage::keeping(line, 10).await;
    let child = crate::SessionId::from_uuid(uuid::Uuid::from_u128(7));
    let first = crate::session::event::Record { session_id: child, ..pinned(6, "x") };
    stage.store.fork(session_id(), 5, &[first]).await.unwrap();
    let clock = Arc::new(FrozenClock::at(now()));
    let mut follower =
        Follower::new(&ReadEvents::new(child, 0), stage.store.clone(), clock, stage.hub.clone()).await.unwrap();
    assert_eq!(short(&[follower.next().await.unwrap().unwrap()]), ["0: pruned 1 to 5"]);
    assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(6));
    assert!(follower.next().now_or_never().is_none());
}

/// Broken once: followers were shown a deletion that was not durable yet and could fail.
#[tokio::test]
async fn a_deletion_is_shown_when_it_is_durable() {
    for is_durable in [true, false] {
        let stage = Stage::new(1).await;
        let (mut waits, mut late) = (stage.follow(1).await, stage.follow(0).await);
        assert!(waits.next().now_or_never().is_none());
        stage.hub.begin_deletion(Vec::new());
        stage.store.delete(session_id()).await.unwrap();
        assert!(waits.next().now_or_never().is_none() && late.next().now_or_never().is_none());
        let waiting = tokio::spawn(async move { (waits.next().await.unwrap(), waits.next().await.unwrap()) });
        tokio::task::yield_now().await;
        stage.hub.end_deletion(is_durable);
        for (last, end) in [waiting.await.unwrap(), (late.next().await.unwrap(), late.next().await.unwrap())] {
            let shown = last.map(|line| String::from_utf8(line.line.to_vec()).unwrap());
            assert_eq!(shown.is_some_and(|line| line.contains(r#""type":"session_deleted""#)), is_durable);
            assert_eq!(end, None);
        }
    }
    let stage = Stage::new(1).await;
    let frames = stage.store.read(session_id(), 0, ReadLimit::frames(9)).await.unwrap().unwrap().frames;
    for (is_durable, kept) in [(false, 0), (true, 1)] {
        stage.hub.begin_deletion(frames.clone());
        stage.hub.end_deletion(is_durable);
        assert_eq!(stage.hub.last_frames(0).len(), kept, "what is still there is read from the store");
    }
}

/// A session whose deletion failed goes on, and so do its followers.
#[tokio::test]
async fn a_deletion_that_failed_ends_no_follower() {
    let stage = Stage::new(1).await;
    let mut follower = stage.follow(1).await;
    assert!(follower.next().now_or_never().is_none());
    stage.hub.begin_deletion(Vec::new());
    // A store may drop the session from memory before it fails to delete it.
    stage.store.delete(session_id()).await.unwrap();
    assert!(follower.next().now_or_never().is_none());
    let waiting = tokio::spawn(async move { follower.next().await.unwrap().map(|line| line.seq) });
    tokio::task::yield_now().await;
    let stage = Stage { lease: stage.store.lease(session_id()).await.unwrap(), ..stage };
    stage.append(1);
    stage.hub.end_deletion(false);
    tokio::task::yield_now().await;
    stage.append(2);
    assert_eq!(waiting.await.unwrap(), Some(Some(2)));
}

/// Followers come and read while events and deltas are added: each gets every durable event once, in order, and each
/// delta between its events.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_has_a_gap_or_a_duplicate_while_it_happens() {
    const EVENTS: Seq = 400;
    let stage = Arc::new(Stage::new(1).await);
    let mut readers = Vec::new();
    let reader = |since: Seq| {
        let stage = stage.clone();
        tokio::spawn(async move {
            let mut follower = stage.follow(since).await;
            let mut last = since;
            while last < EVENTS {
                let line = follower.next().await.unwrap().unwrap();
                match line.seq {
                    Some(seq) => {
                        assert_eq!(seq, last + 1);
                        last = seq;
                    }
                    None => assert!(short(&[line])[0].starts_with(&format!("{last}: 0+"))),
                }
            }
        })
    };
    for seq in 2..=EVENTS {
        if seq % 50 == 2 {
            readers.extend([reader(0), reader(seq - 1)]);
        }
        stage.begin_step(seq - 1);
        stage.hub.delta(seq - 1, false, "x".to_owned());
        stage.hub.end_step();
        stage.append(seq);
        tokio::task::yield_now().await;
    }
    for reader in readers {
        reader.await.unwrap();
    }
}
