//! A fork begins with its parent's records to the letter and is a session of its own from then on.

use meerkat_errors::ErrorCode;
use meerkat_testkit::cases_and_regressions;
use proptest::{collection::vec, prelude::*};

use super::{fold, walk::Walk};
use crate::{
    Session, SessionId,
    clock::SeededIds,
    ids::{Seq, TurnNumber},
    service::SessionState,
    session::{
        ForkPoint,
        event::{Event, Record},
    },
};

const CHILD: SessionId = SessionId::from_uuid(uuid::Uuid::from_u128(7));

/// The turns that have started, each with the seq of its end.
fn turns(records: &[Record]) -> Vec<(TurnNumber, Option<Seq>)> {
    let mut turns: Vec<(TurnNumber, Option<Seq>)> = Vec::new();
    for record in records {
        match record.event {
            Event::TurnStarted(_) => turns.push((record.turn.unwrap(), None)),
            Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_) => {
                turns.last_mut().unwrap().1 = Some(record.seq);
            }
            _ => {}
        }
    }
    turns
}

fn point(session: &Session, turn: Option<TurnNumber>) -> Result<ForkPoint, ErrorCode> {
    session.fork_at(turn).map_err(|refused| refused.code())
}

/// Finds the point of the fork; the journal knows it if the session does not.
fn cut(point: ForkPoint, records: &[Record]) -> Seq {
    match point {
        ForkPoint::After(seq) => seq,
        ForkPoint::EndOf { turn, from } => {
            let behind = records.iter().filter(|record| record.seq > from);
            let is_end = |record: &&Record| ForkPoint::is_end(turn, record);
            behind.into_iter().find(is_end).expect("the turn has ended").seq
        }
    }
}

proptest! {
    #![proptest_config(cases_and_regressions(256))]

    #[test]
    fn a_fork_is_cut_behind_the_end_of_its_turn(choices in vec(any::<u16>(), 0..80)) {
        let walk = Walk::new(&choices);
        let (session, turns) = (fold(&walk.records), turns(&walk.records));
        let ended = turns.iter().rev().find_map(|(_, end)| *end);
        let compacts = |record: &&Record| matches!(record.event, Event::CompactionStarted(_));
        let started = walk.records.iter().rfind(compacts).filter(|_| walk.compacting.is_some());
        let at = match (&walk.open, started) {
            (Some(_), _) => ended,
            (None, Some(started)) => Some(started.seq - 1),
            (None, None) => Some(session.last_seq),
        };
        prop_assert_eq!(point(&session, None), at.map(ForkPoint::After).ok_or(ErrorCode::SessionBusy));
        if let Some(at) = at {
            // An open turn stays with the parent.
            let mut child = fold(&walk.records[..usize::try_from(at).unwrap()]);
            child.apply(&session.fork_record(at, CHILD, SeededIds::wall_time())).unwrap();
            prop_assert_eq!((child.state(), child.open_compaction()), (SessionState::Idle, None));
        }
        for &(turn, end) in &turns {
            let Some(end) = end else {
                prop_assert_eq!(point(&session, Some(turn)), Err(ErrorCode::SessionBusy));
                continue;
            };
            let at = cut(point(&session, Some(turn)).unwrap(), &walk.records);
            prop_assert_eq!(at, end);

            let first = session.fork_record(at, CHILD, SeededIds::wall_time());
            let parent = fold(&walk.records[..usize::try_from(at).unwrap()]);
            let mut child = parent.clone();
            child.apply(&first).unwrap();
            prop_assert_eq!((child.id, child.forked_from, child.last_seq), (CHILD, Some(session.id), at + 1));
            prop_assert_eq!(child.messages(), parent.messages());
            prop_assert_eq!((child.message_count, child.next_turn), (parent.message_count, parent.next_turn));
            prop_assert_eq!((child.title(), &child.labels), (parent.title(), &parent.labels));
            prop_assert!(child.queue.is_empty() && child.open_turn().is_none() && !child.is_archived);
            prop_assert!(child.key("a").is_none() && child.created_key.is_none());
        }
        let unstarted = walk.queue.iter().map(|&(turn, _)| turn).chain([session.next_turn, TurnNumber::MAX]);
        for turn in unstarted {
            prop_assert_eq!(point(&session, Some(turn)), Err(ErrorCode::ItemNotFound));
        }
    }
}
