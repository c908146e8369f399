//! Interrupts and commands at every place of a turn, and a session that leaves while it is asked.

use std::{sync::Arc, time::Duration};

use super::{Rig, Subject, TICKS_MAX, check_journal, ticks, walk};
use crate::{
    ErrorCode, SessionError,
    clock::SystemClock,
    options::Policy,
    service::{
        AnswerCall, CancelQueued, Changed, ClearReminder, DecideApproval, EditQueued, InterruptTurn, PinFact, Remind,
        SessionService as _, StartTurn, Unpin,
    },
    session::{event::Decision, reminder::SystemReminderType},
    tool::test_tools::test_tools,
};

/// Text, reasoning, calls that run together, one that runs alone, a failure that is tried again, and an end.
const EVERYTHING: &str = r#"@think Look. @say Reading. @call test_echo {"text":"a"} @call test_echo {"text":"b"}
    @call test_append {"name":"log","line":"x"} @say Writing. @call test_fail {"message":"no"}
    @fail overloaded times=1 @say All done now."#;

async fn subject(dir: &tempfile::TempDir) -> Subject {
    let tools = test_tools(dir.path().to_owned(), Arc::new(SystemClock::new()));
    Subject::new(Rig::new(tools).service()).await
}

/// Wherever the interrupt comes, the turn ends once, each call has one result, the answer names the event that ended
/// the turn, a `once` tool ran at most once, and the session goes on.
#[test]
fn an_interrupt_at_every_place_of_a_turn() {
    walk(async {
        let (mut interrupted, mut late) = (0, 0);
        for tick in 0..TICKS_MAX {
            let dir = meerkat_testkit::folder();
            let subject = subject(&dir).await;
            let accepted = subject.service.accept_turn(StartTurn::new(subject.session_id, EVERYTHING)).await.unwrap();
            ticks(tick).await;
            let request = InterruptTurn { session_id: subject.session_id, turn: Some(accepted.turn) };
            let answer = subject.service.interrupt(request).await;
            let events = subject.check().await;
            let end = events
                .iter()
                .find(|event| {
                    event["turn"] == 0
                        && event["type"].as_str().unwrap().starts_with("turn_")
                        && event["type"] != "turn_started"
                })
                .unwrap();
            match answer {
                Ok(Changed { seq, .. }) => {
                    interrupted += 1;
                    assert_eq!(
                        (&end["type"], &end["seq"]),
                        (&"turn_interrupted".into(), &seq.into()),
                        "at tick {tick}"
                    );
                }
                Err(error) => {
                    late += 1;
                    assert!(matches!(error, SessionError::NotRunning { turn: Some(0) }), "{error:?} at tick {tick}");
                    assert_eq!(end["type"], "turn_completed", "at tick {tick}");
                }
            }
            let written = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            assert!(["", "x\n"].contains(&written.as_str()), "{written:?} at tick {tick}");
            if late == 3 {
                break;
            }
        }
        assert!(interrupted > 30, "the walk saw only {interrupted} places of the turn");
        assert_eq!(late, 3, "the walk must reach the end of the turn");
    });
}

/// Every command that changes a session, and what it is refused with.
const COMMANDS: [(&str, Option<ErrorCode>); 12] = [
    ("remind", None),
    ("clear", Some(ErrorCode::ItemNotFound)),
    ("pin", None),
    ("unpin", Some(ErrorCode::ItemNotFound)),
    ("cancel", Some(ErrorCode::ItemNotFound)),
    ("edit", Some(ErrorCode::ItemNotFound)),
    ("decide", Some(ErrorCode::ItemNotFound)),
    ("answer", Some(ErrorCode::ItemNotFound)),
    // Only while the turn is open.
    ("reject", Some(ErrorCode::SessionBusy)),
    ("queue", None),
    ("interrupt", None),
    ("steer", None),
];

async fn ask(Subject { service, session_id }: &Subject, command: &str) -> Result<Changed, SessionError> {
    let session_id = *session_id;
    let kind = SystemReminderType::ClaudeMd;
    match command {
        "remind" => service.remind(Remind { session_id, kind, text: "rules".into() }).await,
        "clear" => service.clear_reminder(ClearReminder { session_id, kind }).await,
        "pin" => service.pin(PinFact { session_id, text: "fact".into() }).await,
        "unpin" => service.unpin(Unpin { session_id, pin: 1 }).await,
        "cancel" => service.cancel_queued(CancelQueued { session_id, turn: 9 }).await,
        "edit" => service.edit_queued(EditQueued { session_id, turn: 9, prompt: None, position: Some(0) }).await,
        "answer" => {
            let answered = service.answer_call(AnswerCall::text(session_id, "none", "late")).await;
            answered.map(|_| Changed { session_id, seq: 0 })
        }
        "decide" => {
            let (call_id, decision) = ("none", Decision::Approve);
            service.decide_approval(DecideApproval::new(session_id, call_id, decision)).await
        }
        policy => {
            let policy = serde_json::from_value(policy.into()).unwrap();
            let request = StartTurn { policy, ..StartTurn::new(session_id, "@say Second.") };
            service.accept_turn(request).await.map(|accepted| Changed { session_id, seq: accepted.seq })
        }
    }
}

/// Wherever a command comes, it is answered with the event that recorded it or with its refusal, and both turns end.
#[test]
fn every_command_at_every_place_of_a_turn() {
    walk(async {
        for (name, refusal) in COMMANDS {
            let mut finished = 0;
            for tick in 0..TICKS_MAX {
                let dir = meerkat_testkit::folder();
                let subject = subject(&dir).await;
                let request = StartTurn::new(subject.session_id, EVERYTHING);
                let first = subject.service.accept_turn(request).await.unwrap();
                ticks(tick).await;
                let was_over = subject.events().await.iter().any(|event| event["type"] == "turn_completed");
                let asked = ask(&subject, name).await;
                let end = subject.events().await.into_iter().find(|event| event["type"] == "turn_completed");
                let end = end.map(|end| end["seq"].as_u64().unwrap());
                match asked {
                    Ok(Changed { seq, .. }) if name == "reject" => {
                        assert!(end.is_some_and(|end| end < seq), "{name} at tick {tick}: the turn is open");
                    }
                    Ok(Changed { seq, .. }) => {
                        assert!(refusal.is_none() && seq > first.seq, "{name} at tick {tick}");
                    }
                    Err(error) => {
                        assert_eq!(Some(error.code()), refusal, "{name} at tick {tick}: {error:?}");
                        assert!(name != "reject" || !was_over, "{name} at tick {tick}: the turn was over");
                    }
                }
                let last = StartTurn { policy: Policy::Queue, ..StartTurn::new(subject.session_id, "@say Last.") };
                assert_eq!(subject.service.start_turn(last).await.unwrap().text, "Last.", "{name} at tick {tick}");
                check_journal(&subject.events().await);
                finished += usize::from(was_over);
                if finished == 2 {
                    break;
                }
            }
            assert_eq!(finished, 2, "the walk of {name} must reach the end of the turn");
        }
    });
}

/// A decision at every place of a wait for approval, together with an interrupt: one of them wins, and the
/// call has one result.
#[test]
fn a_decision_against_an_interrupt() {
    walk(async {
        for tick in 0..40 {
            let dir = meerkat_testkit::folder();
            let subject = subject(&dir).await;
            let request = StartTurn::new(subject.session_id, r#"@call test_ask {"name":"log","line":"x"} @say Done."#);
            subject.service.accept_turn(request).await.unwrap();
            let call_id = subject.asked().await;
            let decision = DecideApproval::new(subject.session_id, call_id, Decision::Approve);
            let decide = async {
                ticks(tick).await;
                subject.service.decide_approval(decision).await
            };
            let interrupt = async {
                ticks(20).await;
                subject.service.interrupt(InterruptTurn { session_id: subject.session_id, turn: Some(0) }).await
            };
            let (decided, interrupted) = tokio::join!(decide, interrupt);
            let events = subject.check().await;
            let was_interrupted = events.iter().any(|event| event["type"] == "turn_interrupted");
            assert_eq!(interrupted.is_ok(), was_interrupted, "at tick {tick}: {decided:?} {interrupted:?}");
            assert!(decided.is_ok() || was_interrupted, "at tick {tick}: {decided:?}");
        }
    });
}

/// A command that comes while an idle session leaves is answered by the session or by `SESSION_NOT_FOUND`,
/// and never lost.
#[test]
fn a_session_that_leaves_while_it_is_asked() {
    walk(async {
        let (mut kept, mut gone) = (0, 0);
        for tick in 0..20 {
            for early_ms in [0, 1] {
                let mut rig = Rig::new(Vec::new());
                rig.options.ephemeral.idle_ms = 1_000;
                let subject = Subject::new(rig.service()).await;
                tokio::time::sleep(Duration::from_millis(1_000 - early_ms)).await;
                ticks(tick).await;
                match tokio::time::timeout(Duration::from_secs(60), subject.turn("@say Here.")).await.unwrap() {
                    Ok(result) => {
                        kept += 1;
                        assert_eq!(result.text, "Here.");
                    }
                    Err(error) => {
                        gone += 1;
                        assert!(matches!(error, SessionError::NotFound(_)), "{error:?}");
                    }
                }
            }
        }
        assert!(kept > 0 && gone > 0, "kept {kept}, gone {gone}: both sides must be met");
    });
}

/// A service that shuts down lets a running turn finish within the limit, then interrupts it, empties the queue, and
/// takes nothing new.
#[tokio::test(start_paused = true)]
async fn a_service_that_ends() {
    let dir = meerkat_testkit::folder();
    let subject = subject(&dir).await;
    let running = StartTurn::new(subject.session_id, "@say Part. @stall");
    subject.service.accept_turn(running).await.unwrap();
    let waiting = StartTurn { policy: Policy::Queue, ..StartTurn::new(subject.session_id, "@say Never.") };
    let service = subject.service.clone();
    let waiting = tokio::spawn(async move { service.start_turn(waiting).await });
    ticks(20).await;
    subject.service.shut_down(5_000).await;
    assert!(matches!(waiting.await.unwrap(), Err(SessionError::Interrupted { turn: 1 })));
    let events = subject.events().await;
    check_journal(&events);
    assert_eq!(events.last().unwrap()["reason"], "shutting_down");
    assert!(matches!(subject.turn("@say More.").await, Err(SessionError::ShuttingDown)));
}
