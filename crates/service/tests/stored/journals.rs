//! Journals are compacted: by hand and by themselves, while everything goes on, and read as if nothing had happened.

use meerkat_service::{
    ErrorCode, SessionId,
    service::{
        AcknowledgeReader, CompactJournal, CompactionSkipped, FetchReader, ForkSession, JournalCompactionReport,
        NamedReader, ReadHistory, Remind, WaitReader,
    },
};
use serde_json::Value;

use crate::stored::{Place, Process};

/// A place where nothing is too young to go.
pub(super) fn place() -> Place {
    let mut place = Place::new();
    place.options.journal.min_record_age_ms = 0;
    place
}

impl Process {
    pub(super) async fn compact(
        &self,
        session_id: SessionId,
        dry_run: bool,
        drop_history: bool,
    ) -> JournalCompactionReport {
        self.service.compact_journal(CompactJournal { session_id, dry_run, drop_history }).await.unwrap()
    }

    pub(super) async fn register(&self, reader: &str) {
        self.service.create_reader(NamedReader { reader: reader.to_owned() }).await.unwrap();
    }

    pub(super) async fn is_done(&self, reader: &str, session_id: SessionId, seq: u64) {
        let request = AcknowledgeReader { reader: reader.to_owned(), session_id, seq };
        assert_eq!(self.service.acknowledge_reader(request).await.unwrap().seq, seq);
    }

    pub(super) async fn remind(&self, session_id: SessionId, text: &str) {
        let (kind, text) = ("git_status".parse().unwrap(), text.to_owned());
        self.service.remind(Remind { session_id, kind, text }).await.unwrap();
    }

    /// A session with turns, calls of tools, and reminders of which the last one counts.
    pub(super) async fn lived(&self) -> (SessionId, u64) {
        let session_id = self.create().await;
        for n in 0..3 {
            self.remind(session_id, &format!("state {n}")).await;
            self.turn(session_id, r#"@call test_echo {"text":"hi"} @echo last_result"#).await.unwrap();
        }
        (session_id, self.service.read(&session_id).await.unwrap().last_seq)
    }

    async fn said(&self, session_id: SessionId) -> Vec<Value> {
        let request = ReadHistory { limit: Some(1000), ..ReadHistory::new(session_id) };
        let page = self.service.history(request).await.unwrap();
        page.items.iter().map(|item| serde_json::to_value(item).unwrap()).collect()
    }
}

pub(super) fn seqs(events: &[Value], type_name: &str) -> Vec<u64> {
    events.iter().filter(|event| event["type"] == type_name).map(|event| event["seq"].as_u64().unwrap()).collect()
}

#[test]
fn what_nobody_needs_goes_and_everything_reads_the_same() {
    let place = place();
    let (session_id, view, said, lines) = place.process(false, |process| async move {
        let (session_id, last_seq) = process.lived().await;
        let report = process.compact(session_id, false, false).await;
        let nobody = JournalCompactionReport {
            scanned: 0,
            dropped: 0,
            kept: 0,
            safe_up_to: 0,
            skipped: Some(CompactionSkipped::NoReader),
        };
        assert_eq!(report, nobody);
        process.register("one").await;
        process.register("two").await;
        process.is_done("one", session_id, last_seq).await;
        let report = process.compact(session_id, false, false).await;
        assert_eq!((report.dropped, report.safe_up_to, report.skipped), (0, 0, None), "one of them has read nothing");
        process.is_done("two", session_id, last_seq - 1).await;
        let (view, said) = (process.service.read(&session_id).await.unwrap(), process.said(session_id).await);
        let before = process.events(session_id).await;
        let due = [&seqs(&before, "reminder_set")[..2], &seqs(&before, "tool_started")].concat();
        let dry = process.compact(session_id, true, false).await;
        assert_eq!(process.events(session_id).await, before, "a dry run changes nothing");
        let report = process.compact(session_id, false, false).await;
        assert_eq!(report, dry);
        let (dropped, scanned) = (due.len() as u64, last_seq - 1);
        let due_report =
            JournalCompactionReport { scanned, dropped, kept: scanned - dropped, safe_up_to: scanned, skipped: None };
        assert_eq!(report, due_report);
        let after = process.events(session_id).await;
        assert!(due.iter().all(|gone| after.iter().all(|event| event["seq"] != *gone)), "they are gone");
        let gaps: Vec<(u64, u64)> = after
            .iter()
            .filter(|event| event["type"] == "pruned")
            .map(|event| (event["from"].as_u64().unwrap(), event["to"].as_u64().unwrap()))
            .collect();
        assert_eq!(gaps.iter().map(|(from, to)| to - from + 1).sum::<u64>(), dropped, "{gaps:?}");
        assert!(gaps.iter().all(|(from, to)| (*from..=*to).all(|seq| due.contains(&seq))), "{gaps:?}");
        let whole = |events: &[Value]| -> Vec<Value> {
            let is_kept = |event: &&Value| event["type"] != "pruned" && !due.iter().any(|gone| event["seq"] == *gone);
            events.iter().filter(is_kept).cloned().collect()
        };
        assert_eq!(whole(&after), whole(&before), "the others are as they were");
        assert_eq!(process.compact(session_id, false, false).await.dropped, 0, "a second one drops nothing");
        assert_eq!(process.service.read(&session_id).await.unwrap(), view);
        assert_eq!(process.said(session_id).await, said);
        (session_id, view, said, process.lines(session_id).await)
    });
    // With everything that is derived gone, the journal says the same, and every reader is there.
    std::fs::remove_file(place.data_dir().join("index.redb")).unwrap();
    place.process(true, |process| async move {
        assert_eq!(process.service.read(&session_id).await.unwrap(), view);
        assert_eq!(process.said(session_id).await, said);
        // What is shown in passing has the time at which it is shown.
        let kept = |lines: Vec<String>| lines.into_iter().filter(|line| !line.contains(r#""type":"pruned""#));
        assert!(kept(process.lines(session_id).await).eq(kept(lines)));
        for (reader, acknowledged) in [("one", view.last_seq), ("two", view.last_seq - 1)] {
            let wait = WaitReader { reader: reader.to_owned(), session_id, seq: 0, wait_ms: 0 };
            let seq = process.service.wait_reader(wait).await.unwrap().seq;
            assert!(seq <= acknowledged, "{reader} is at {seq}");
        }
        process.register("cold").await;
        let fetch = FetchReader { reader: "cold".to_owned(), limit: Some(1000), wait_ms: 0 };
        let items = process.service.fetch_reader(fetch).await.unwrap().items;
        let read: Vec<u64> = items.iter().map(|record| record.seq).collect();
        let due: Vec<u64> = process.events(session_id).await.iter().filter_map(|event| event["seq"].as_u64()).collect();
        assert_eq!(read, due, "a reader that starts cold reads what is left");
        let next = process.turn(session_id, "@echo messages").await.unwrap();
        assert_eq!(next.text, format!("messages: {}", view.message_count + 1), "the context is whole");
    });
}

#[test]
fn history_goes_only_where_that_is_asked_for_and_says_so() {
    let mut place = place();
    place.options.journal.keep_last_replies = 0;
    place.process(true, |process| async move {
        let session_id = process.create().await;
        // Turns that do not fit the window leave the context, and what was said in them is history.
        for _ in 0..3 {
            let failed = process.turn(session_id, "@fail context").await.unwrap();
            assert_eq!(failed.error.unwrap().code, ErrorCode::ModelContextExceeded);
        }
        process.turn(session_id, "@say Short.").await.unwrap();
        let view = process.service.read(&session_id).await.unwrap();
        let said = process.said(session_id).await;
        process.register("one").await;
        process.is_done("one", session_id, view.last_seq).await;
        assert_eq!(process.compact(session_id, false, false).await.dropped, 0);
        let before = process.events(session_id).await;
        let dry = process.compact(session_id, true, true).await;
        assert_eq!(process.events(session_id).await, before, "a dry run changes nothing");
        // The start and the end of the three turns.
        assert_eq!(dry.dropped, 6);
        let report = process.compact(session_id, false, true).await;
        assert_eq!(report, dry);
        let after = process.events(session_id).await;
        let snapshot = after.last().unwrap();
        assert_eq!((&snapshot["type"], &snapshot["pruned_to"]), (&"history_snapshot".into(), &7.into()));
        assert_eq!((&after[1]["type"], &after[1]["from"], &after[1]["to"]), (&"pruned".into(), &2.into(), &7.into()));
        let now = process.service.read(&session_id).await.unwrap();
        assert_eq!((now.message_count, now.turn_count, now.usage), (view.message_count, view.turn_count, view.usage));
        let left = process.said(session_id).await;
        assert_eq!((&left[0]["role"], &left[0]["seq"]), (&"pruned".into(), &7.into()));
        assert_eq!(left[1..], said[3..]);
        let again = process.compact(session_id, false, true).await;
        assert_eq!(again.dropped, 0, "a second one drops nothing, and records nothing");
        assert_eq!(process.events(session_id).await.len(), after.len());
        for turn in [0, 2] {
            let refused = process.service.fork(ForkSession { session_id, turn: Some(turn) }).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::HistoryPruned, "turn {turn}");
        }
        // Behind it a fork has the counters of its parent, with the snapshot in what it takes over or one of its own.
        process.turn(session_id, "@say More.").await.unwrap();
        for (turn, messages) in [(3, view.message_count), (4, view.message_count + 2)] {
            let fork = process.service.fork(ForkSession { session_id, turn: Some(turn) }).await.unwrap();
            let fork = process.service.read(&fork.session_id).await.unwrap();
            assert_eq!((fork.message_count, fork.turn_count), (messages, u64::from(turn) + 1), "turn {turn}");
            assert_eq!(fork.title.as_deref(), Some("@fail context"), "what said it is gone");
            let answer = process.turn(fork.session_id, "@say Here.").await.unwrap();
            assert_eq!(answer.turn, turn + 1);
        }
    });
}
