//! Requested compactions, interrupted at every place and with a fault at every write; and compactions that are given
//! up.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Bench, SUMMARY, WINDOW, Write, outcomes, patient, rig};
use crate::{
    ErrorCode, SessionError,
    agent::tests::{
        Subject, TICKS_MAX,
        faults::{Fault, Fuse},
        ticks, walk,
    },
    compaction::{CompactionContext, CompactionResult, Compactor, SUMMARY_PREFIX, is_state},
    service::{Changed, CompactSession, InterruptTurn, PinFact, SessionService as _},
    session::message::Message,
};

/// Checks the answer of an interrupt: it ended the compaction, or nothing ran.
fn check_interrupt(answer: Result<Changed, SessionError>, events: &[Value], place: &str) -> bool {
    match answer {
        Ok(Changed { seq, .. }) => {
            let failed = &events[usize::try_from(seq).unwrap() - 1];
            let expected = (&json!("compaction_failed"), &json!("TURN_INTERRUPTED"));
            assert_eq!((&failed["type"], &failed["code"]), expected, "{place}: {events:#?}");
            true
        }
        Err(error) => {
            assert!(["SESSION_NOT_RUNNING", "STORE_FAILED", "INTERNAL"].contains(&error.code().as_str()), "{error:?}");
            false
        }
    }
}

/// Wherever the interrupt comes, the compaction ends once, both callers get the same outcome, and the session goes on.
#[test]
fn an_interrupt_at_every_place_of_a_compaction() {
    walk(async {
        let (mut early, mut interrupted, mut late) = (0, 0, 0);
        for tick in 0..TICKS_MAX {
            let (rig, model) = rig(WINDOW, patient());
            let service = rig.faulty(Fault::Slow, &Fuse::new(usize::MAX, 0));
            let bench = Bench { model, subject: Subject::new(service).await };
            bench.fill().await;
            let compacting = tokio::spawn(bench.compact());
            ticks(tick).await;
            let begun = bench.subject.events().await.iter().any(|event| event["type"] == "compaction_started");
            let request = InterruptTurn { session_id: bench.id(), turn: None };
            let answer = bench.subject.service.interrupt(request).await;
            let receipt = compacting.await.unwrap();
            let events = bench.subject.check().await;
            let is_interrupted = check_interrupt(answer, &events, &format!("at tick {tick}"));
            let outcome = outcomes(&events).pop().unwrap();
            match receipt {
                Ok(receipt) => {
                    assert!(!is_interrupted && outcome == (Value::Null, "summary".to_owned()), "at tick {tick}");
                    let completed = &events[usize::try_from(receipt.compaction.unwrap()).unwrap() - 1];
                    assert_eq!(completed["type"], "compaction_completed");
                    early += usize::from(!begun);
                    late += usize::from(begun);
                }
                Err(error) => {
                    assert!(is_interrupted && error.code() == ErrorCode::TurnInterrupted, "at tick {tick}: {error:?}");
                    assert_eq!(outcome, (Value::Null, "TURN_INTERRUPTED".to_owned()));
                    interrupted += 1;
                }
            }
            if late == 3 {
                break;
            }
        }
        assert!(early > 0 && interrupted > 3 && late == 3, "early {early}, interrupted {interrupted}, late {late}");
    });
}

/// Fails each write: the caller gets a code, no answer is wrong, and the session goes on from its journal.
#[tokio::test(start_paused = true)]
async fn a_fault_at_every_write_of_a_compaction() {
    for fault in [Fault::Panic, Fault::Failure, Fault::Fenced, Fault::LostSync, Fault::LostWrite] {
        // The creation and two turns are five writes; then come the start, a pin perhaps, and the end.
        for (at, is_interrupted) in [(5, false), (6, false), (7, false), (5, true), (6, true), (7, true)] {
            let (rig, model) = rig(WINDOW, patient());
            let fuse = Fuse::new(at, 1);
            let bench = Bench { model, subject: Subject::new(rig.faulty(fault, &fuse)).await };
            bench.fill().await;
            bench.writes([Write::Late(Arc::default())].into_iter().filter(|_| is_interrupted));
            let place = format!("{fault:?} at {at}, {is_interrupted}");
            let compacting = tokio::spawn(bench.compact());
            if is_interrupted {
                ticks(30).await;
            }
            // Both are there when the actor looks, and the interrupt comes first.
            let request = InterruptTurn { session_id: bench.id(), turn: None };
            let pin = bench.subject.service.pin(PinFact { session_id: bench.id(), text: "a fact".to_owned() });
            let interrupting = async {
                match is_interrupted {
                    true => Some(bench.subject.service.interrupt(request).await),
                    false => None,
                }
            };
            let (interrupt, pinned) = tokio::join!(interrupting, pin);
            let answer = compacting.await.unwrap();
            let events = bench.subject.check().await;
            if let Some(interrupt) = interrupt {
                check_interrupt(interrupt, &events, &place);
            }
            if let Ok(Changed { seq, .. }) = pinned {
                assert_eq!(events[usize::try_from(seq).unwrap() - 1]["type"], "pinned", "{place}");
            }
            let ended = outcomes(&events);
            match answer {
                Ok(receipt) => {
                    let completed = &events[usize::try_from(receipt.compaction.unwrap()).unwrap() - 1];
                    assert_eq!(completed["type"], "compaction_completed", "{place}");
                }
                Err(error) => {
                    let is_known = ["STORE_FAILED", "INTERNAL", "TURN_INTERRUPTED", "SESSION_BUSY"];
                    assert!(is_known.contains(&error.code().as_str()), "{place}: {error:?}");
                    // A failed sync may have written events that nobody was answered.
                    let is_written = ended.iter().any(|(_, outcome)| outcome == "summary");
                    assert!(!is_written || fault == Fault::LostSync, "{place}: {ended:?}");
                }
            }
            assert!(fuse.calls() > at, "{place}: the fault must be met");
        }
    }
}

/// A compactor that is right except in one part.
struct Odd {
    part: &'static str,
    /// Calls of `should_compact` before it gives the compaction up.
    asked: AtomicU32,
    cancel: CancellationToken,
}

impl Odd {
    fn new(part: &'static str) -> Arc<Self> {
        Arc::new(Self { part, asked: AtomicU32::new(u32::MAX), cancel: CancellationToken::new() })
    }
}

impl Compactor for Odd {
    fn should_compact(&self, _: &CompactionContext) -> bool {
        if self.asked.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.cancel.cancel();
        }
        false
    }

    fn compaction_prompt(&self) -> &str {
        "Summarise."
    }

    fn max_summary_tokens(&self) -> u32 {
        100
    }

    fn masks_tool_results(&self) -> bool {
        self.part == "mask"
    }

    fn rebuild_history(&self, messages: &[Message], summary: &str) -> CompactionResult {
        if summary == SUMMARY && self.part == "cancel" {
            self.cancel.cancel();
        }
        let (state, said): (Vec<_>, Vec<_>) = messages.iter().cloned().partition(is_state);
        let loses_state = self.part == "state" || summary == SUMMARY && self.part == "pin";
        let state = if loses_state { Vec::new() } else { state };
        let (last, discarded) = said.split_last().unwrap();
        let summary = Message::user(format!("{SUMMARY_PREFIX}\n\n{summary}"));
        let messages = [summary].into_iter().chain(state).chain([last.clone()]).collect();
        let discarded = if self.part == "said" { Vec::new() } else { discarded.to_vec() };
        CompactionResult { messages, discarded }
    }
}

/// A compaction that is given up while the context is rebuilt fails, with a summary or with masking.
#[tokio::test]
async fn a_compaction_that_is_given_up_at_the_last_moment_is_none() {
    for (part, summaries) in [("cancel", 1), ("mask", 0)] {
        let compactor = Odd::new(part);
        let cancel = compactor.cancel.clone();
        let (mut rig, model) = rig(WINDOW, patient());
        rig.compactor = Some(compactor.clone());
        let bench = Bench { model, subject: Subject::new(rig.service()).await };
        for _ in 0..5 {
            bench.subject.turn(r#"@call fill {"bytes":900} @say Filled."#).await.unwrap();
        }
        // Once before it begins, whether masking would be enough, and once more when it has begun.
        compactor.asked.store(2, Ordering::Relaxed);
        let request = CompactSession { session_id: bench.id(), compaction: None };
        let error = bench.subject.service.compact_until(request, cancel).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::TurnInterrupted, "{part}");
        assert_eq!(bench.outcomes().await, [(Value::Null, "TURN_INTERRUPTED".to_owned())]);
        assert_eq!(bench.requests(true).len(), summaries, "{part}");
    }
}

/// A compaction that would lose a pin is dropped, and the context stays as it was.
#[tokio::test]
async fn a_pin_that_a_compactor_loses_is_not_lost() {
    let (mut rig, model) = rig(WINDOW, patient());
    rig.compactor = Some(Odd::new("pin"));
    let bench = Bench { model, subject: Subject::new(rig.service()).await };
    bench.fill().await;
    bench.subject.service.pin(PinFact { session_id: bench.id(), text: "a fact".to_owned() }).await.unwrap();
    assert_eq!(bench.compact().await.unwrap_err().code(), ErrorCode::CompactionPinLost);
    assert_eq!(bench.outcomes().await, [(Value::Null, "COMPACTION_PIN_LOST".to_owned())]);
    bench.turn("@say After.").await;
    let last = bench.requests(false).pop().unwrap();
    assert_eq!((last.messages.len(), last.tail.unwrap().contains("a fact")), (5, true));
}

#[tokio::test]
async fn a_preview_says_that_its_compactor_loses_something() {
    for (part, code) in [("state", ErrorCode::CompactionPinLost), ("said", ErrorCode::CompactionNoProgress)] {
        let (mut rig, model) = rig(WINDOW, patient());
        rig.compactor = Some(Odd::new(part));
        let bench = Bench { model, subject: Subject::new(rig.service()).await };
        bench.fill().await;
        bench.subject.service.pin(PinFact { session_id: bench.id(), text: "a fact".to_owned() }).await.unwrap();
        let request = CompactSession { session_id: bench.id(), compaction: None };
        let preview = bench.subject.service.preview_compaction(request).await;
        assert_eq!(preview.unwrap_err().code(), code, "{part}");
    }
}
