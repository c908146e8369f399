//! What a session was given at its creation, through its life: restarts, forks, bundles, compactions of both kinds, the
//! projection and damage.

use meerkat_service::{
    SessionId,
    given::GivenMessage,
    options::Overflow,
    service::{CompactSession, CreateSession, DeleteSession, ReadHistory, UpdateSession},
};
use serde_json::{Value, json};

use crate::stored::{Place, Process, pages, whole};

/// Two exchanges, the first with a call.
fn history() -> Vec<GivenMessage> {
    let said = "The walls are lime and the roof is slate, and so it was said of the doors. ".repeat(20);
    let history = json!([
        { "role": "user", "content": "Where is the logo?" },
        { "role": "assistant", "content": "I look.", "blocks": [
            { "type": "tool_call", "call_id": "a", "name": "look", "arguments": { "for": "logo" } },
        ] },
        { "role": "tool_results", "results": [{ "call_id": "a", "content": "logo.svg" }] },
        { "role": "assistant", "content": said },
        { "role": "user", "content": "And the icon?" },
        { "role": "assistant", "content": "I do not know." },
    ]);
    serde_json::from_value(history).unwrap()
}

async fn given(process: &Process, history: Vec<GivenMessage>) -> SessionId {
    let request = CreateSession { history, ..CreateSession::default() };
    process.service.create_session(request).await.unwrap().session_id
}

/// Roles and turns of what was said.
async fn roles(process: &Process, session_id: SessionId) -> Vec<(String, Option<u64>)> {
    let said = process.said(session_id).await;
    said.iter().map(|item| (item["role"].as_str().unwrap().to_owned(), item["turn"].as_u64())).collect()
}

fn before(roles: &[&str]) -> Vec<(String, Option<u64>)> {
    roles.iter().map(|role| ((*role).to_owned(), None)).collect()
}

const ROLES: [&str; 6] = ["user", "assistant", "tool_results", "assistant", "user", "assistant"];

async fn echo(process: &Process, session_id: SessionId) -> String {
    process.turn(session_id, "@echo messages").await.unwrap().text
}

#[test]
fn a_history_lives_on_in_restarts_forks_and_bundles() {
    let place = Place::new();
    let session_id = place.process(false, async |process| given(&process, history()).await);
    let bundle = place.process(false, async |process| {
        assert_eq!(roles(&process, session_id).await, before(&ROLES));
        let view = process.view(session_id).await;
        assert_eq!((view.turn_count, view.message_count, view.last_seq), (0, 6, 7));
        assert_eq!(view.title.as_deref(), Some("Where is the logo?"));
        assert_eq!(echo(&process, session_id).await, "messages: 7");
        process.export(session_id, false).await
    });
    place.process(true, async |process| {
        assert_eq!(echo(&process, session_id).await, "messages: 9");
        let fork = process.fork(session_id, Some(0)).await.unwrap();
        assert_eq!(echo(&process, fork).await, "messages: 9");
        assert_eq!(roles(&process, fork).await[..6], before(&ROLES));

        process.service.delete(DeleteSession { session_id, force: false }).await.unwrap();
        process.service.import_bundle(whole(&bundle, false)).await.unwrap();
        assert_eq!(roles(&process, session_id).await[..6], before(&ROLES));
        assert_eq!(echo(&process, session_id).await, "messages: 9");
    });
    assert!(place.examine(false).findings.is_empty());
}

/// Pages of any length have every message once, and none is lost between them.
#[test]
fn a_history_is_read_page_by_page() {
    let place = Place::new();
    place.process(true, async |process| {
        let session_id = given(&process, history()).await;
        process.turn(session_id, "@say One.").await.unwrap();
        for limit in 1..9 {
            let page = async |cursor| {
                process
                    .service
                    .history(ReadHistory { cursor, limit: Some(limit), ..ReadHistory::new(session_id) })
                    .await
            };
            let (pages, error) = pages(page).await;
            assert!(error.is_none(), "{error:?}");
            let seqs: Vec<u64> = pages.into_iter().flatten().map(|item| item.seq).collect();
            assert_eq!(seqs, [2, 3, 4, 5, 6, 7, 8, 9], "{limit}");
        }
    });
}

/// Each message of the user begins what a compaction keeps or replaces as a whole; a compaction of the journal keeps all.
#[test]
fn compactions_replace_a_history_like_turns_and_no_journal_loses_it() {
    let place = Place::pruned();
    place.process(true, async |process| {
        let session_id = given(&process, history()).await;
        process.turn(session_id, "@say One. @compaction @say Handed over.").await.unwrap();
        let keeps = |turns: usize| CompactSession {
            session_id,
            compaction: Some(serde_json::from_value(json!({ "recent_turn_budget": turns })).unwrap()),
        };
        let receipt = process.service.compact(keeps(2)).await.unwrap();
        // The first exchange is gone; the second and the turn stay.
        assert_eq!((receipt.discarded, receipt.retained), (4, 4));
        assert_eq!(echo(&process, session_id).await, "messages: 6");
        process.is_read(session_id).await;
        process.compact(session_id, false, true).await;
        assert_eq!(roles(&process, session_id).await[..6], before(&ROLES));
        assert_eq!(echo(&process, session_id).await, "messages: 8");
    });
    place.process(true, async |process| {
        let sessions = process.listed().await;
        assert_eq!(echo(&process, sessions[0].session_id).await, "messages: 10");
    });
}

/// Of what does not fit the window the oldest exchanges slide out, whole.
#[test]
fn the_oldest_exchanges_slide_out_of_a_window() {
    let mut place = Place::new();
    place.options.context.overflow = Overflow::Slide;
    let exchange = |n: usize| {
        let text = format!("{n} {}", "a".repeat(100 * 1024));
        [json!({ "role": "user", "content": text }), json!({ "role": "assistant", "content": "Yes." })]
    };
    let long: Vec<Value> = (0..20).flat_map(exchange).collect();
    let long = serde_json::from_value(Value::from(long)).unwrap();
    place.process(true, async |process| {
        let session_id = given(&process, long).await;
        let said = echo(&process, session_id).await;
        let messages: usize = said.strip_prefix("messages: ").unwrap().parse().unwrap();
        // The window has 100,000 tokens of four bytes: three exchanges of 100 KiB fit it, and four do not.
        assert_eq!(messages, 2 * 3 + 1);
    });
}

#[test]
fn a_history_of_ten_thousand_messages_is_given_and_comes_back() {
    let mut place = Place::new();
    place.options.context.overflow = Overflow::Slide;
    let message = |n: usize| match n % 2 {
        0 => json!({ "role": "user", "content": format!("Question {n}.") }),
        _ => json!({ "role": "assistant", "content": format!("Answer {n}.") }),
    };
    let long: Vec<Value> = (0..10_000).map(message).collect();
    let long: Vec<GivenMessage> = serde_json::from_value(Value::from(long)).unwrap();
    let session_id = place.process(false, async |process| given(&process, long).await);
    place.process(true, async |process| {
        assert_eq!(process.last_seq(session_id).await, 10_001);
        process.turn(session_id, "@say On.").await.unwrap();
        let view = process.view(session_id).await;
        assert_eq!((view.turn_count, view.message_count), (1, 10_002));
        let fork = process.fork(session_id, None).await.unwrap();
        assert_eq!(process.view(fork).await.message_count, 10_002);
    });
}

#[test]
fn the_transcript_says_what_was_said_before_the_first_turn() {
    let place = Place::projected();
    place.process(true, async |process| {
        let session_id = given(&process, history()).await;
        process.turn(session_id, "@say One.").await.unwrap();
        process.projected(session_id).await;
        let path = place.rkat().join(format!("sessions/{session_id}/transcript.md"));
        let transcript = std::fs::read_to_string(path).unwrap();
        let places: Vec<usize> = [
            "## Before the first turn",
            "### User\n\nWhere is the logo?",
            "### Assistant\n\nI look.",
            "### Call of `look`",
            "### Result of `look`",
            "### User\n\nAnd the icon?",
            "## Turn 0",
        ]
        .iter()
        .map(|part| transcript.find(part).unwrap_or_else(|| panic!("{part:?} is missing: {transcript}")))
        .collect();
        assert!(places.is_sorted(), "{places:?}: {transcript}");
        assert_eq!(transcript.matches("## Before the first turn").count(), 1);
    });
}

/// A call without its result would make every later request one that vendors refuse.
#[test]
fn a_call_whose_given_result_is_damaged_leaves_the_context() {
    let place = Place::new();
    let session_id = place.process(true, async |process| {
        let session_id = given(&process, history()).await;
        process.turn(session_id, "@say One.").await.unwrap();
        session_id
    });
    place.damage(session_id, "logo.svg");
    place.lose_index();
    place.examine(true);
    place.process(true, async |process| {
        // Of eight messages the result and its call are not there any more.
        assert_eq!(echo(&process, session_id).await, "messages: 7");
    });
}

/// Also if no turn came before the repair: the session goes on, and its bundle can be imported.
#[test]
fn a_call_whose_given_result_is_damaged_before_the_first_turn_leaves_the_context() {
    let place = Place::new();
    let session_id = place.process(true, async |process| {
        let session_id = given(&process, history()[..3].to_vec()).await;
        let update = UpdateSession { session_id, title: Some("A title".to_owned()), labels: None };
        process.service.update(update).await.unwrap();
        session_id
    });
    place.damage(session_id, "logo.svg");
    place.lose_index();
    place.examine(true);
    place.process(true, async |process| {
        // The question is left, and the prompt follows it.
        assert_eq!(echo(&process, session_id).await, "messages: 2");
        let bundle = process.export(session_id, false).await;
        process.service.import_bundle(whole(&bundle, true)).await.unwrap();
    });
}
