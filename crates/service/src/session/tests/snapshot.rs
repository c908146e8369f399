//! A snapshot and the journal make the session that was; without the journal it is nothing.

use std::collections::BTreeMap;

use meerkat_testkit::cases_and_regressions;
use proptest::{collection::vec, prelude::*};

use super::{fold, walk::Walk};
use crate::{
    Session,
    ids::Seq,
    session::{
        event::{Event, Record},
        message::Message,
        snapshot::{Snapshot, Unfounded},
    },
    wire::{decode_outline, encode_event},
};

/// Reads the records that a store reads for a snapshot, and no others.
fn read(snapshot: &Snapshot, records: &[Record]) -> BTreeMap<Seq, Record> {
    let at = |seq: Seq| usize::try_from(seq).unwrap() - 1;
    let runs = snapshot.ranges();
    assert!(runs.is_sorted_by(|(_, to), (from, _)| to < from), "{runs:?}");
    let wanted = runs.into_iter().flat_map(|(from, to)| from..=to);
    let mut read: BTreeMap<Seq, Record> = wanted.map(|seq| (seq, records[at(seq)].clone())).collect();
    for seq in Snapshot::missing(&read) {
        read.insert(seq, records[at(seq)].clone());
    }
    read
}

/// A restored session goes on like the journal, up to an undo whose context the snapshot lacks.
fn assert_goes_on(mut restored: Session, records: &[Record]) {
    let from = restored.last_seq;
    let mut whole = restored.clone();
    for record in records {
        // The end of a compaction follows right behind its rebuilt context.
        let is_unknown = matches!(&record.event, Event::CompactionUndone(undone) if undone.compaction <= from + 1);
        let before = restored.clone();
        let applied = restored.apply(record);
        assert_eq!(applied.is_err(), is_unknown, "{applied:?}");
        if is_unknown {
            assert!(restored == before, "{record:?} was refused and changed the session");
            return;
        }
    }
    records.iter().for_each(|record| whole.apply(record).unwrap());
    assert!(restored == whole);
}

proptest! {
    #![proptest_config(cases_and_regressions(500))]

    #[test]
    fn a_snapshot_and_the_journal_make_the_session_at_every_point(choices in vec(any::<u16>(), 0..60)) {
        let records = Walk::new(&choices).records;
        let mut session = Session::begin(&records[0]).unwrap();
        for (at, record) in records.iter().enumerate() {
            if at > 0 {
                session.apply(record).unwrap();
            }
            let bytes = serde_json::to_vec(&Snapshot::of(&session)).unwrap();
            let snapshot: Snapshot = serde_json::from_slice(&bytes).unwrap();
            let restored = snapshot.clone().restore(&read(&snapshot, &records[..=at])).unwrap();
            prop_assert!(restored == session, "{restored:?}\n{session:?}");
            prop_assert_eq!(Snapshot::of(&restored), snapshot, "what equal sessions leave out");
            let left = session.context.left_bytes();
            prop_assert_eq!(restored.resident_bytes() + left, session.resident_bytes());
            prop_assert_eq!(restored.context.left_bytes(), 0);
            if at % 3 == 0 {
                assert_goes_on(restored, &records[at + 1..]);
            }
        }
    }

    #[test]
    fn what_happened_is_the_same_without_what_was_said(choices in vec(any::<u16>(), 0..60)) {
        let records = Walk::new(&choices).records;
        let line = |record: &Record| String::from_utf8(encode_event(record).unwrap().to_vec()).unwrap();
        let outlined = |record: &Record, keeps_prompt| decode_outline(&line(record), keeps_prompt).unwrap();
        let mut outline = Session::begin(&outlined(&records[0], false)).unwrap();
        let mut session = Session::begin(&records[0]).unwrap();
        for record in &records[1..] {
            session.apply(record).unwrap();
            outline.apply(&outlined(record, outline.first_line.is_none())).unwrap();
            prop_assert_eq!(outline.summary(), session.summary());
        }
        // Hashes of results differ; a turn that is loaded does not run on.
        if let (Some(open), Some(outlined)) = (&mut session.0.open_turn, &outline.open_turn) {
            open.signatures.clone_from(&outlined.signatures);
        }
        let snapshot = Snapshot::of(&outline);
        prop_assert!(snapshot == Snapshot::of(&session));
        prop_assert!(snapshot.clone().restore(&read(&snapshot, &records)).unwrap() == session);
        match snapshot.outline() {
            Some(outline) => prop_assert_eq!(outline.summary(), session.summary()),
            None => prop_assert!(session.open_turn().is_some() || !session.queue.is_empty()),
        }
    }

    #[test]
    fn no_body_is_in_a_snapshot(choices in vec(any::<u16>(), 0..60)) {
        let mut records = Walk::new(&choices).records;
        let secret = "what was said";
        // A session is listed by its first line.
        let prompt = format!("A line.\n{secret}");
        for record in &mut records {
            match &mut record.event {
                Event::SessionCreated(created) => created.system_prompt = Some(secret.into()),
                Event::HistoryGiven(given) => match &mut given.message {
                    Message::User { content, .. } => *content = prompt.as_str().into(),
                    Message::ToolResults { results } => results.iter_mut().for_each(|it| it.content = secret.into()),
                    message => message.texts_mut().for_each(|text| *text = secret.into()),
                },
                Event::TurnQueued(queued) => queued.prompt = prompt.as_str().into(),
                Event::TurnStarted(started) if started.prompt.is_some() => started.prompt = Some(prompt.as_str().into()),
                Event::TurnEdited(edited) if edited.prompt.is_some() => edited.prompt = Some(prompt.as_str().into()),
                Event::TurnSteered(steered) => steered.prompt = secret.into(),
                Event::AssistantMessage(answer) => answer.blocks.iter_mut().for_each(|block| {
                    if let crate::session::message::Block::Text { text } = block {
                        *text = secret.into();
                    }
                }),
                Event::ToolFinished(finished) => finished.output = secret.into(),
                Event::ClientToolsChanged(changed) => {
                    changed.tools.iter_mut().flatten().for_each(|tool| tool.description = secret.to_owned());
                }
                Event::ApprovalDecided(decided) => decided.reason = Some(secret.to_owned()),
                Event::ReminderSet(set) => set.text = secret.to_owned(),
                Event::Pinned(pinned) => pinned.text = secret.to_owned(),
                Event::ContextRebuilt(rebuilt) if rebuilt.summary.is_some() => rebuilt.summary = Some(secret.into()),
                _ => {}
            }
        }
        let session = fold(&records);
        let snapshot = Snapshot::of(&session);
        prop_assert!(!serde_json::to_string(&snapshot).unwrap().contains(secret));
        prop_assert!(snapshot.clone().restore(&read(&snapshot, &records)).unwrap() == session);
    }

    #[test]
    fn a_snapshot_that_the_journal_does_not_bear_out_is_none(choices in vec(any::<u16>(), 1..40), which in any::<prop::sample::Index>()) {
        let records = Walk::new(&choices).records;
        let session = fold(&records);
        let snapshot = Snapshot::of(&session);
        let whole = read(&snapshot, &records);

        let mut short = whole.clone();
        short.remove(&session.last_seq);
        prop_assert_eq!(snapshot.clone().restore(&short), Err(Unfounded(session.last_seq)));
        let mut other = whole.clone();
        other.get_mut(&session.last_seq).unwrap().session_id = crate::SessionId::from_uuid(uuid::Uuid::nil());
        prop_assert_eq!(snapshot.clone().restore(&other), Err(Unfounded(session.last_seq)));

        // Removes any record: it was read along, or the session is not restored without it.
        let gone = *which.get(&whole.keys().copied().collect::<Vec<_>>());
        let mut holed = whole;
        holed.remove(&gone);
        if let Ok(restored) = snapshot.restore(&holed) {
            let last = session.context.entries().last().map_or(0, |entry| entry.seq);
            let is_of_a_call = session.open_turn().is_some() && gone > last;
            // Holes in a journal are found by the store; this test checks that no message is lost.
            let is_silent = match &records[usize::try_from(gone).unwrap() - 1].event {
                Event::TurnStarted(started) => started.continues.is_some(),
                _ => false,
            };
            prop_assert!(is_of_a_call || is_silent || restored == session, "event {gone} is gone unnoticed");
        }
    }
}
