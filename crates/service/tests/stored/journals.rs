//! Journals are compacted: by hand and by themselves, while everything goes on, and read as if nothing had happened.

use meerkat_service::{
    ErrorCode,
    service::{CompactionSkipped, FetchReader, JournalCompactionReport, WaitReader},
};
use serde_json::Value;

use crate::stored::{Place, number, seqs};

/// What is not announced as dropped.
fn kept(events: Vec<Value>) -> Vec<Value> {
    events.into_iter().filter(|event| event["type"] != "pruned").collect()
}

#[test]
fn what_nobody_needs_goes_and_everything_reads_the_same() {
    let place = Place::pruned();
    let (session_id, view, said, events) = place.process(false, async |process| {
        let session_id = process.lived().await;
        let last_seq = process.last_seq(session_id).await;
        let nobody = JournalCompactionReport {
            scanned: 0,
            dropped: 0,
            kept: 0,
            safe_up_to: 0,
            skipped: Some(CompactionSkipped::NoReader),
        };
        assert_eq!(process.compact(session_id, false, false).await, nobody);
        process.register("one").await;
        process.register("two").await;
        process.is_done("one", session_id, last_seq).await;
        let report = process.compact(session_id, false, false).await;
        assert_eq!((report.dropped, report.safe_up_to, report.skipped), (0, 0, None), "one of them has read nothing");
        process.is_done("two", session_id, last_seq - 1).await;
        let (view, said) = (process.view(session_id).await, process.said(session_id).await);
        let before = process.events(session_id).await;
        let due = [&seqs(&before, "reminder_set")[..2], &seqs(&before, "tool_started")].concat();
        let dry = process.compact(session_id, true, false).await;
        assert_eq!(process.events(session_id).await, before, "a dry run changes nothing");
        let (dropped, scanned) = (due.len() as u64, last_seq - 1);
        let report =
            JournalCompactionReport { scanned, dropped, kept: scanned - dropped, safe_up_to: scanned, skipped: None };
        assert_eq!((process.compact(session_id, false, false).await, dry), (report.clone(), report));
        let after = process.events(session_id).await;
        let gaps = after.iter().filter(|event| event["type"] == "pruned");
        let gone: Vec<u64> = gaps.flat_map(|gap| number(gap, "from")..=number(gap, "to")).collect();
        let mut sorted = due.clone();
        sorted.sort_unstable();
        assert_eq!(gone, sorted, "what is gone is said");
        let others = before.into_iter().filter(|event| !due.contains(&number(event, "seq")));
        assert_eq!(kept(after), others.collect::<Vec<_>>(), "the others are as they were");
        assert_eq!(process.compact(session_id, false, false).await.dropped, 0, "a second one drops nothing");
        assert_eq!((process.view(session_id).await, process.said(session_id).await), (view.clone(), said.clone()));
        (session_id, view, said, kept(process.events(session_id).await))
    });
    // With everything that is derived gone, the journal says the same, and every reader is there.
    place.lose_index();
    place.process(true, async |process| {
        assert_eq!((process.view(session_id).await, process.said(session_id).await), (view.clone(), said));
        // What is shown in passing has the time at which it is shown.
        assert_eq!(kept(process.events(session_id).await), events);
        for (reader, acknowledged) in [("one", view.last_seq), ("two", view.last_seq - 1)] {
            let wait = WaitReader { reader: reader.to_owned(), session_id, seq: 0, wait_ms: 0 };
            let seq = process.service.wait_reader(wait).await.unwrap().seq;
            assert!(seq <= acknowledged, "{reader} is at {seq}");
        }
        process.register("cold").await;
        let fetch = FetchReader { reader: "cold".to_owned(), limit: Some(1000), wait_ms: 0 };
        let read = process.service.fetch_reader(fetch).await.unwrap().items.into_iter().map(|record| record.seq);
        assert!(
            read.eq(events.iter().map(|event| number(event, "seq"))),
            "a reader that starts cold reads what is left"
        );
        let next = process.turn(session_id, "@echo messages").await.unwrap();
        assert_eq!(next.text, format!("messages: {}", view.message_count + 1), "the context is whole");
    });
}

#[test]
fn history_goes_only_where_that_is_asked_for_and_says_so() {
    let mut place = Place::pruned();
    place.options.journal.keep_last_replies = 0;
    let ids = place.process(true, async |process| {
        let session_id = process.create().await;
        // Turns that do not fit the window leave the context, and what was said in them is history.
        for _ in 0..3 {
            let failed = process.turn(session_id, "@fail context").await.unwrap();
            assert_eq!(failed.error.unwrap().code, ErrorCode::ModelContextExceeded);
        }
        process.turn(session_id, "@say Short.").await.unwrap();
        let (view, said) = (process.view(session_id).await, process.said(session_id).await);
        process.is_read(session_id).await;
        assert_eq!(process.compact(session_id, false, false).await.dropped, 0);
        let before = process.events(session_id).await;
        let dry = process.compact(session_id, true, true).await;
        assert_eq!(process.events(session_id).await, before, "a dry run changes nothing");
        // The start and the end of the three turns.
        assert_eq!(dry.dropped, 6);
        assert_eq!(process.compact(session_id, false, true).await, dry);
        let after = process.events(session_id).await;
        let snapshot = after.last().unwrap();
        assert_eq!((&snapshot["type"], &snapshot["pruned_to"]), (&"history_snapshot".into(), &7.into()));
        assert_eq!((&after[1]["type"], &after[1]["from"], &after[1]["to"]), (&"pruned".into(), &2.into(), &7.into()));
        let now = process.view(session_id).await;
        assert_eq!((now.message_count, now.turn_count, now.usage), (view.message_count, view.turn_count, view.usage));
        let left = process.said(session_id).await;
        assert_eq!((&left[0]["role"], &left[0]["seq"]), (&"pruned".into(), &7.into()));
        assert_eq!(left[1..], said[3..]);
        assert_eq!(process.compact(session_id, false, true).await.dropped, 0);
        assert_eq!(process.events(session_id).await.len(), after.len(), "a second one records nothing");
        for turn in [0, 2] {
            let refused = process.fork(session_id, Some(turn)).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::HistoryPruned, "turn {turn}");
        }
        // Behind it a fork has the counters of its parent, with the snapshot in what it takes over or one of its own.
        process.turn(session_id, "@say More.").await.unwrap();
        let mut ids = vec![session_id];
        for (turn, messages) in [(3, view.message_count), (4, view.message_count + 2)] {
            let fork = process.fork(session_id, Some(turn)).await.unwrap();
            let now = process.view(fork).await;
            assert_eq!((now.message_count, now.turn_count), (messages, u64::from(turn) + 1), "turn {turn}");
            assert_eq!(process.turn(fork, "@say Here.").await.unwrap().turn, turn + 1);
            ids.push(fork);
        }
        ids
    });
    // What was said may go; what a session is listed by stays.
    place.lose_index();
    place.process(true, async |process| {
        for id in ids {
            assert_eq!(process.view(id).await.title.as_deref(), Some("@fail context"));
        }
    });
}
