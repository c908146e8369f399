//! Questions of a server during a call: who answers, and what the server hears.

use std::sync::{Arc, Mutex};

use meerkat_service::{
    AgentBuildConfig, SessionId,
    redact::Secrets,
    service::{DecideApproval, Decision, ReadEvents, StartTurn},
    session::message::RawJson,
    store::MemoryBlobStore,
    tool::{Answer, Asking, OutputLimits, OutputSink, Tool, ToolError, ToolSource as _},
};
use meerkat_testkit::in_time;
use meerkat_tools::servers::{ServersOptions, servers};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    issuer::Issuer,
    logins,
    server::noted,
    support::{Moved, call, call_heard, config, invocation, options, pool, session, tool, until},
};

crate::tests!(
    a_person_answers_during_a_turn,
    a_question_belongs_to_a_single_call,
    without_a_session_a_question_is_the_answer_to_its_call,
    a_link_is_no_form,
    a_cancelled_call_cancels_its_question,
);

fn form() -> Value {
    let properties = json!({ "name": { "type": "string" }, "count": { "type": "integer", "default": 3 } });
    let schema = json!({ "type": "object", "properties": properties, "required": ["name"] });
    json!({ "mode": "form", "message": "Who\u{1b}[2J?", "requestedSchema": schema })
}

/// Calls the tool that asks, with a person who gives this answer; without one, the question stays open.
async fn ask(
    tool: &dyn Tool,
    question: &Value,
    answer: Option<Answer>,
    cancel: &CancellationToken,
) -> (Result<String, ToolError>, Vec<String>) {
    let (session, asked) = (session(), Mutex::new(Vec::new()));
    let (progress, _said) = mpsc::channel(16);
    let (questions, mut heard) = mpsc::channel(1);
    let blobs = Arc::new(MemoryBlobStore::new(Arc::default()));
    let sink = OutputSink::new(OutputLimits::default(), blobs, session, Secrets::default().stream(), progress);
    let sink = sink.with_questions(questions);
    let person = async {
        let mut open = Vec::new();
        while let Some(Asking { question, reply }) = heard.recv().await {
            asked.lock().unwrap().push(question.message().to_owned());
            match &answer {
                Some(answer) => drop(reply.send(answer.clone())),
                None => {
                    open.push(reply);
                    cancel.cancel();
                }
            }
        }
        std::future::pending::<()>().await;
    };
    let result = tokio::select! {
        result = tool.call(invocation(session, json!({ "text": question.to_string() }), cancel), &sink) => result,
        () = person => unreachable!(),
    };
    let text = sink.finish().await.unwrap().excerpt().into_owned();
    (result.map(|()| text), asked.into_inner().unwrap())
}

async fn a_person_answers_during_a_turn() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({ "approval": "allow", "call_timeout_ms": 60_000 })));
    pool.ready().await;
    assert_eq!(call(&pool, "ask", json!({})).await.text(), r#"{"form":{}}"#, "it is said to the server");
    let agent = AgentBuildConfig::new().tool_source(pool.clone()).build().unwrap();
    let asking = json!({ "text": form().to_string() });
    for (decision, given, expected) in [
        (Decision::Approve, Some(r#"{"name":"Ann"}"#), r#"{"action":"accept","content":{"count":3,"name":"Ann"}}"#),
        (Decision::Deny, None, r#"{"action":"decline"}"#),
    ] {
        let session_id: SessionId = agent.create_session().await.unwrap().session_id;
        let prompt = format!("@call mcp__t__ask {asking} @echo last_result");
        let turn = StartTurn { attended: true, ..StartTurn::new(session_id, prompt) };
        let begun = agent.service().begin_turn(turn).await.unwrap();
        let mut follower = agent.service().follow(&session_id, 0).await.unwrap();
        let asked = loop {
            let line = follower.next().await.unwrap().unwrap();
            let event: Value = serde_json::from_slice(&line.line).unwrap();
            if event["type"] == "approval_requested" {
                break event;
            }
        };
        assert_eq!((&asked["form"]["server"], &asked["form"]["message"]), (&json!("t"), &json!("Who\\u{1b}[2J?")));
        let answer = given.map(|given| RawJson::parse(given).unwrap());
        let decided = DecideApproval::new(session_id, asked["call_id"].as_str().unwrap(), decision);
        agent.service().decide_approval(DecideApproval { answer, ..decided }).await.unwrap();
        let result = begun.result.await.unwrap();
        assert_eq!(result.text, format!("last_result: {expected}"));
        let read = ReadEvents::new(session_id, 0);
        assert!(agent.service().events(read).await.unwrap().items.len() > 6);
    }
    pool.shut_down().await;
}

/// The protocol does not say during which call a server asks.
async fn a_question_belongs_to_a_single_call() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Moved::new();
    let options = options(config(folder.path(), "", json!({})));
    let pool = servers(ServersOptions { clock: clock.clone(), ..options }).unwrap();
    let (slow, asks) = (tool(&pool, "slow").await, tool(&pool, "ask").await);
    let answer = || Some(Answer::Accepted(RawJson::parse(r#"{"name":"Ann"}"#).unwrap()));
    let (result, asked) = ask(&*asks, &form(), answer(), &CancellationToken::new()).await;
    assert_eq!(result.unwrap(), r#"{"action":"accept","content":{"name":"Ann"}}"#);
    assert_eq!(asked, ["Who\\u{1b}[2J?"]);
    let (cancel, begun) = (CancellationToken::new(), CancellationToken::new());
    let other = call_heard(&*slow, session(), json!({}), &cancel, || begun.cancel());
    let question = async {
        begun.cancelled().await;
        let asked = ask(&*asks, &form(), answer(), &CancellationToken::new()).await;
        cancel.cancel();
        asked
    };
    let (_, (result, asked)) = tokio::join!(other, question);
    assert_eq!((result.unwrap().as_str(), asked.len()), (r#"{"action":"decline"}"#, 0));
    until("the other call has ended", || noted(folder.path(), "cancelled") == 1).await;
    // The stopped call may still be at work over there, and the question its own.
    let (result, asked) = ask(&*asks, &form(), answer(), &CancellationToken::new()).await;
    assert_eq!((result.unwrap().as_str(), asked.len()), (r#"{"action":"decline"}"#, 0));
    // Broken once: it counted for as long as the connection lived.
    clock.pass(30_000);
    let again = async { while ask(&*asks, &form(), answer(), &CancellationToken::new()).await.1.is_empty() {} };
    in_time("a person is asked again", again).await;
    pool.shut_down().await;
}

async fn without_a_session_a_question_is_the_answer_to_its_call() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    issuer.book().has_no_sessions = true;
    let pool = logins::pool(folder.path(), &issuer);
    logins::log_in(&pool).await;
    let asks = tool(&pool, "ask").await;
    let given = Answer::Accepted(RawJson::parse(r#"{"name":"Ann"}"#).unwrap());
    let accepted = json!({ "action": "accept", "content": { "name": "Ann" } });
    for (answer, said) in [(given, accepted), (Answer::Declined, json!({ "action": "decline" }))] {
        let (result, asked) = ask(&*asks, &form(), Some(answer), &CancellationToken::new()).await;
        let expected = json!({ "answers": { "first": said, "second": said }, "state": "asked" });
        assert_eq!(result.unwrap(), expected.to_string());
        assert_eq!(asked, ["Who\\u{1b}[2J?", "Who\\u{1b}[2J?"]);
    }
    assert_eq!(noted(folder.path(), "calls"), 4);
    let later = call(&pool, "ask", json!({ "text": "later" })).await.text();
    assert_eq!(later, r#"{"answers":null,"state":"later"}"#);
    // A stopped call is not sent on.
    let (result, asked) = ask(&*asks, &form(), None, &CancellationToken::new()).await;
    assert!(matches!(result, Err(ToolError::Unknown(_))), "{result:?}");
    assert_eq!((asked.len(), noted(folder.path(), "calls")), (1, 7));
    pool.shut_down().await;
}

async fn a_link_is_no_form() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    let asks = tool(&pool, "ask").await;
    let link = json!({ "mode": "url", "message": "Come.", "url": "https://example.com/", "elicitationId": "1" });
    let nested = json!({ "type": "object", "properties": { "a b": { "type": "string" } } });
    let odd = json!({ "mode": "form", "message": "?", "requestedSchema": nested });
    for question in [link, odd] {
        let given = Some(Answer::Accepted(RawJson::empty_object()));
        let (result, asked) = ask(&*asks, &question, given, &CancellationToken::new()).await;
        assert_eq!((result.unwrap().as_str(), asked.len()), (r#"{"action":"decline"}"#, 0), "{question}");
    }
    pool.shut_down().await;
}

async fn a_cancelled_call_cancels_its_question() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    let asks = tool(&pool, "ask").await;
    let (result, asked) = ask(&*asks, &form(), None, &CancellationToken::new()).await;
    // It has asked, so it has the call, and may have done something.
    assert!(matches!(result, Err(ToolError::Unknown(_))), "{result:?}");
    assert_eq!(asked.len(), 1);
    until("the server hears of it", || noted(folder.path(), "answers") == 1).await;
    let answers = std::fs::read_to_string(folder.path().join("answers")).unwrap();
    assert_eq!(answers, "{\"action\":\"cancel\"}\n");
    pool.shut_down().await;
}
