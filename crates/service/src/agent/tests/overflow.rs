//! Turns that outgrow the model's window: what the next turn still knows of them.

use std::sync::Arc;

use futures::FutureExt as _;

use super::{
    Rig, Subject, check_journal,
    fakes::{Answer, Heard, calls, does, says},
    faults::{Fault, FaultyEvents, Fuse},
};
use crate::{
    ErrorCode,
    service::{CreateSession, InterruptTurn, ResumeTurn, SessionService as _, StartTurn, TurnStatus, UpdateSession},
    session::message::Message,
    store::{EventStore as _, MemoryEventStore, MemoryIndex, MemorySessionStore},
    tool::{Effect, ToolError},
};

/// A rig whose tool must not run twice and writes much; it fails on request.
fn rig(model: Arc<Heard>, window_tokens: u64) -> Rig {
    let tool = does("send", Effect::Once, |invocation, output| {
        async move {
            let to = |name: &str| invocation.arguments.as_str().contains(name);
            match () {
                () if to("nobody") => Err(ToolError::Failed("There is nobody of that name.".to_owned())),
                () if to("nowhere") => std::future::pending().await,
                () if to("tags") => output.write(&"<pin".repeat(7_000)).await,
                () => output.write(&"said much ".repeat(600)).await,
            }
        }
        .boxed()
    });
    super::fakes::rig(model, window_tokens, Arc::new(tool))
}

fn too_long() -> Answer {
    Answer::Fails(ErrorCode::ModelContextExceeded)
}

fn send(to: &str) -> (&'static str, String) {
    ("send", format!("{{\"to\":\"{to}\"}}"))
}

/// Broken once: the next turn did not know the calls of the one before, and repeated them.
#[tokio::test(start_paused = true)]
async fn the_next_turn_knows_what_was_called() {
    let answers =
        [calls([send("ann"), send("nobody")]), calls([send("bob"), send("nowhere")]), too_long(), says("Fine.")];
    let model = Heard::new(answers);
    let subject = Subject::new(rig(model.clone(), 100_000).service()).await;
    let prompt = format!("Write to everybody. {}", "p".repeat(20_000));
    let failed = subject.turn(&prompt).await.unwrap();
    assert_eq!((failed.status, failed.tool_calls), (TurnStatus::Failed, 4));
    assert_eq!(subject.turn("Go on.").await.unwrap().text, "Fine.");
    let messages = model.last();
    assert_eq!(messages.last().unwrap().text(), "Go on.");
    let told = messages.iter().map(|message| message.text()).collect::<Vec<_>>().join("\n");
    assert!(told.contains("Write to everybody."), "{told}");
    let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("- send ")).collect();
    assert_eq!(
        lines,
        [
            r#"- send {"to":"ann"}: succeeded"#,
            // Not in the tool's words: they would be the user's.
            r#"- send {"to":"nobody"}: failed"#,
            r#"- send {"to":"bob"}: succeeded"#,
            r#"- send {"to":"nowhere"}: outcome unknown; verify before repeating"#,
        ]
    );
    assert!(!told.contains("said much") && told.len() < 3_000, "{told}");
    check_journal(&subject.events().await);
}

/// Whatever fills the window, the remainder of a turn leaves most of the turn's room to the next one.
#[tokio::test(start_paused = true)]
async fn many_small_calls_do_not_stand_in_the_way() {
    let many = |n: usize| calls((0..20).map(|m| send(&format!("nobody {n} {m} {}", "y".repeat(90)))));
    let model = Heard::new((0..40).map(many));
    let subject = Subject::new(rig(model.clone(), 10_000).service()).await;
    let failed = subject.turn("Write to everybody.").await.unwrap();
    assert_eq!(failed.error.unwrap().code, ErrorCode::ContextOverflow);
    *model.answers.lock().unwrap() = vec![says("Fine.")];
    assert_eq!(subject.turn("Go on.").await.unwrap().text, "Fine.");
    let bytes: usize = model.last().iter().map(|message| serde_json::to_vec(message).unwrap().len()).sum();
    assert!((2_000..20_000).contains(&bytes), "{bytes}");
    let told = model.last()[0].text();
    // The newest are there, and the number of the others.
    assert!(told.contains("older calls"), "{told}");
    assert!(told.lines().last().unwrap().starts_with("- send {\"to\":\"nobody "), "{told}");
}

/// A prompt that is too long itself leaves whole, as ever.
#[tokio::test(start_paused = true)]
async fn a_turn_that_called_nothing_leaves_nothing() {
    let model = Heard::new([too_long(), says("Fine.")]);
    let subject = Subject::new(rig(model.clone(), 100_000).service()).await;
    let failed = subject.turn("Long.").await.unwrap().error.unwrap();
    assert_eq!((failed.code, &failed.details["vendor"]), (ErrorCode::ModelContextExceeded, &"heard".into()));
    assert_eq!(subject.turn("Short.").await.unwrap().text, "Fine.");
    assert_eq!(model.last().iter().map(|message| message.text()).collect::<Vec<_>>(), ["Short."]);
}

/// An interrupted turn and its continuation are one turn; and a snapshot says the same as the journal.
#[tokio::test(start_paused = true)]
async fn what_is_left_outlives_the_service() {
    let model = Heard::new([calls([send("ann")]), Answer::Stalls, calls([send("bob")]), too_long()]);
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let snapshots = Arc::new(MemorySessionStore::new(events.clone()));
    let service = |model: Arc<Heard>, snapshots| {
        rig(model, 100_000).stored_with(snapshots, events.clone(), Arc::new(MemoryIndex::default()))
    };
    let first = service(model.clone(), snapshots.clone());
    let session_id = first.create_session(CreateSession::default()).await.unwrap().session_id;
    let accepted = first.accept_turn(StartTurn::new(session_id, "Write.")).await.unwrap();
    while model.requests.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    first.interrupt(InterruptTurn { session_id, turn: Some(accepted.turn) }).await.unwrap();
    let resumed = first.resume(&session_id, ResumeTurn::default()).await.unwrap();
    assert_eq!(resumed.status, TurnStatus::Failed);
    first.shut_down(0).await;
    let mut heard = Vec::new();
    for snapshots in [snapshots, Arc::new(MemorySessionStore::new(events.clone()))] {
        let model = Heard::new([says("Fine.")]);
        let service = service(model.clone(), snapshots);
        service.start_turn(StartTurn::new(session_id, "Go on.")).await.unwrap();
        service.shut_down(0).await;
        heard.push(model.last().iter().map(|message| message.text()).collect::<Vec<_>>());
    }
    for name in ["ann", "bob"] {
        assert!(heard[0][0].contains(&format!(r#"- send {{"to":"{name}"}}: succeeded"#)), "{heard:#?}");
    }
    assert_eq!(heard[0], heard[1][..heard[0].len()]);
}

/// An update that changed nothing answered with an event that a crash could still take back.
#[tokio::test(start_paused = true)]
async fn what_changes_nothing_answers_with_what_is_durable() {
    let model = Heard::new([calls([send("ann")]), Answer::Stalls]);
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let slow = Arc::new(FaultyEvents(events.clone(), Fault::Slow, Fuse::new(0, 0)));
    let service = rig(model.clone(), 100_000).stored(slow, Arc::new(MemoryIndex::default()));
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    service.accept_turn(StartTurn::new(session_id, "Write.")).await.unwrap();
    while model.requests.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    let update = UpdateSession { session_id, title: Some(String::new()), labels: None };
    let seq = service.update(update).await.unwrap().seq;
    // The result of the call is written, and its writer has not heard yet that it is durable.
    let written = *events.watch(session_id).await.unwrap().unwrap().borrow();
    assert!(seq < written, "{seq} is answered and {written} is written");
    service.shut_down(0).await;
}

/// Broken once: a result was cut, the model was shown a blob, and no tool could read it.
#[tokio::test(start_paused = true)]
async fn what_was_cut_out_of_a_result_can_be_read() {
    let model = Heard::new([calls([send("ann")]), says("Long."), says("Later.")]);
    let mut rig = rig(model.clone(), 100_000);
    rig.options.tools.inline_bytes = 1_000;
    let subject = Subject::new(rig.service_that_reads_blobs()).await;
    let offered = |at: usize| {
        let requests = model.requests.lock().unwrap();
        requests[at].tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>()
    };
    subject.turn("Go.").await.unwrap();
    assert_eq!((offered(0), offered(1)), (vec!["send".to_owned()], vec!["read_blob".to_owned(), "send".to_owned()]));
    let told = model.last()[2].clone();
    let Message::ToolResults { results } = &*told else { panic!("{told:?}") };
    let excerpt = results[0].content.excerpt().into_owned();
    let blob = excerpt.split("the whole is blob ").nth(1).unwrap()[..64].to_owned();
    let read = |offset: u64| ("read_blob", format!("{{\"blob\":\"{blob}\",\"offset\":{offset},\"limit\":900}}"));
    let other = ("read_blob", format!("{{\"blob\":\"{}\"}}", "0".repeat(64)));
    // A page that were longer than a result may be would be another blob.
    let plain = ("read_blob", format!("{{\"blob\":\"{blob}\"}}"));
    let (wrong, long) = (
        ("read_blob", r#"{"blob":"../x"}"#.to_owned()),
        ("read_blob", format!("{{\"blob\":\"{blob}\",\"limit\":30000}}")),
    );
    *model.answers.lock().unwrap() =
        vec![calls([read(0), read(5_400), read(9_999), other, wrong, long, plain]), says("Done.")];
    subject.turn("Read it.").await.unwrap();
    let told = model.last().pop().unwrap();
    let Message::ToolResults { results } = &*told else { panic!("{told:?}") };
    let texts: Vec<String> = results.iter().map(|result| result.content.excerpt().into_owned()).collect();
    let whole = "said much ".repeat(600);
    assert_eq!(texts[0], format!("{}\n[More follows at offset 900.]", &whole[..900]));
    assert_eq!((texts[1].as_str(), texts[2].as_str()), (&whole[5_400..], "[The blob has no more than 9999 bytes.]"));
    assert!(texts[3].starts_with("This session has no such blob."), "{}", texts[3]);
    assert!(results[4..6].iter().all(|result| result.is_error), "{texts:?}");
    assert_eq!(texts[6], texts[0]);
    // A vendor caches the beginning of a request while it stays the same.
    let count = model.requests.lock().unwrap().len();
    assert!((2..count).all(|at| offered(at) == offered(1)), "once offered, offered from then on");
}

/// Tags that were escaped after the request was measured made it longer than the window.
#[tokio::test(start_paused = true)]
async fn no_request_is_longer_than_it_was_measured() {
    let model = Heard::new([calls([send("tags")]), says("Never.")]);
    let subject = Subject::new(rig(model.clone(), 10_000).service()).await;
    let failed = subject.turn("Go.").await.unwrap();
    assert_eq!(failed.error.map(|error| error.code), Some(ErrorCode::ContextOverflow));
    assert_eq!(model.requests.lock().unwrap().len(), 1);
}
