//! Where the tokens of a request went.

use std::sync::Arc;

use futures::FutureExt as _;
use serde_json::{Value, json};

use super::{
    Rig, Subject,
    fakes::{Heard, calls, does, says},
};
use crate::{
    compaction::estimate_tokens,
    model::StaticModels,
    options::Overflow,
    service::{CreateSession, PinFact, Remind, SessionService as _},
    session::{message::Message, reminder::SystemReminderType},
    tool::Effect,
};

/// The split of each step.
async fn splits(subject: &Subject) -> Vec<Value> {
    let events = subject.events().await;
    events.into_iter().filter_map(|mut event| event.get_mut("context").map(Value::take)).collect()
}

fn sum(split: &Value) -> u64 {
    split.as_object().unwrap().values().map(|tokens| tokens.as_u64().unwrap()).sum()
}

/// Tokens of the messages of a request that are results, and of those that are not.
fn tokens(messages: &[Arc<Message>]) -> (u64, u64) {
    let of = |wanted: bool| {
        let is_wanted = |message: &&Arc<Message>| matches!(message.as_ref(), Message::ToolResults { .. }) == wanted;
        let messages: Vec<Message> = messages.iter().filter(is_wanted).map(|message| Message::clone(message)).collect();
        estimate_tokens(&messages)
    };
    (of(true), of(false))
}

fn rig(model: &Arc<Heard>, window_tokens: u64) -> Rig {
    let shows = does("show", Effect::ReadOnly, |_, output| async move { output.write(&"x".repeat(999)).await }.boxed());
    let mut rig = Rig::new(vec![Arc::new(shows)]);
    rig.models = Arc::new(StaticModels::new("heard", model.clone(), window_tokens));
    rig
}

#[tokio::test(start_paused = true)]
async fn each_step_says_where_its_request_went() {
    let model = Heard::new([calls([("show", "{}")]), says("Shown."), says("Again.")]);
    let service = rig(&model, 10_000).service();
    let system_prompt = Some("s".repeat(403));
    let request = CreateSession { system_prompt, ..CreateSession::default() };
    let session_id = service.create_session(request).await.unwrap().session_id;
    let subject = Subject { service, session_id };
    subject.service.pin(PinFact { session_id, text: "p".repeat(100) }).await.unwrap();
    let reminder = Remind { session_id, kind: SystemReminderType::Environment, text: "r".repeat(200) };
    subject.service.remind(reminder).await.unwrap();
    subject.turn("Go on.").await.unwrap();
    subject.turn("And again.").await.unwrap();
    let splits = splits(&subject).await;
    assert_eq!(splits.len(), 3);
    let requests = model.requests.lock().unwrap();
    for (split, request) in splits.iter().zip(requests.iter()) {
        assert_eq!(sum(split), 10_000, "{split}");
        let (results, others) = tokens(&request.messages);
        assert_eq!((&split["tool_results"], &split["history"]), (&json!(results), &json!(others)));
        // 403 bytes of prompt; the definition is `show`, `Works.` and `{}`.
        assert_eq!((&split["system"], &split["tools"]), (&json!(100), &json!(3)));
        // The text between their tags: `<pin n="2">`, `</pin>`, and two line breaks.
        assert_eq!(split["pins"], (100 + 11 + 6 + 2) / 4);
        let tag = r#"<system-reminder kind="environment"></system-reminder>"#.len() as u64;
        // With the line break between the two.
        assert_eq!(split["reminders"], (200 + tag + 2 + 1) / 4);
    }
    assert!(splits[0]["tool_results"] == 0 && splits[1]["tool_results"].as_u64() > Some(250), "{splits:?}");
}

/// What a sliding context leaves out of the request does not count.
#[tokio::test(start_paused = true)]
async fn only_what_was_sent_counts() {
    let model = Heard::new((0..8).flat_map(|_| [calls([("show", "{}")]), says("Shown.")]));
    let mut rig = rig(&model, 1_000);
    rig.options.turn.max_output_tokens = 0;
    rig.options.context.overflow = Overflow::Slide;
    let subject = Subject::new(rig.service()).await;
    for _ in 0..8 {
        subject.turn("Go on.").await.unwrap();
    }
    let splits = splits(&subject).await;
    let requests = model.requests.lock().unwrap();
    assert!(requests.last().unwrap().messages.len() < 16, "it slides");
    for (split, request) in splits.iter().zip(requests.iter()) {
        let (results, others) = tokens(&request.messages);
        assert_eq!((&split["tool_results"], &split["history"]), (&json!(results), &json!(others)));
        assert_eq!(sum(split), 1_000);
    }
}
