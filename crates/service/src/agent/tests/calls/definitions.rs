//! Which tools of its caller a session has: from its creation, from a turn, from a turn in the queue, and in a fork.

use super::*;
use crate::{
    agent::tests::faults::PNG,
    options::Policy,
    service::{ForkSession, ListTools, TurnAccepted},
};

/// The tools of the caller that each request of the model was offered.
fn offered(model: &Heard) -> Vec<Vec<String>> {
    let requests = model.requests.lock().unwrap();
    let names = requests.iter().map(|request| request.tools.iter().map(|tool| tool.name.clone()));
    names.map(|names| names.filter(|name| name != "work").collect()).collect()
}

fn with(session_id: SessionId, tools: &[&str]) -> StartTurn {
    let client_tools = Some(tools.iter().map(|name| tool(name, Effect::Once)).collect());
    StartTurn { client_tools, ..StartTurn::new(session_id, "Go.") }
}

/// Definitions that were recorded, by the names of their tools; those of another event have none.
async fn defined(subject: &Subject) -> Vec<String> {
    let events = subject.events().await;
    let changed = events.iter().filter(|event| event["type"] == "client_tools_changed");
    let names = |event: &Value| {
        let tools = event["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
        tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect::<Vec<_>>().join(",")
    };
    changed.map(names).collect()
}

#[tokio::test(start_paused = true)]
async fn a_turns_tools_replace_the_sessions_and_are_recorded_once() {
    let place = Place::new((0..7).map(|_| says("Done.")));
    let subject = created(place.process(|_| {}), None).await;
    let session_id = subject.session_id;
    for tools in [Some(&[][..]), Some(&["a", "b"]), None, Some(&["a", "b"]), Some(&["a"]), Some(&[]), Some(&["a", "b"])]
    {
        let turn = tools.map_or_else(|| StartTurn::new(session_id, "Go."), |tools| with(session_id, tools));
        subject.service.start_turn(turn).await.unwrap();
    }
    let expected = [&[][..], &["a", "b"], &["a", "b"], &["a", "b"], &["a"], &[], &["a", "b"]];
    assert_eq!(offered(&place.model), expected);
    assert_eq!(defined(&subject).await, ["a,b", "a", "", "a,b"]);
    let listed =
        subject.service.tools(ListTools { session_id: Some(session_id), with_workspace: false }).await.unwrap();
    let of_client: Vec<&str> =
        listed.items.iter().filter(|tool| tool.source == "client").map(|tool| tool.name.as_str()).collect();
    assert_eq!(of_client, ["a", "b"]);
}

/// A turn in the queue keeps the tools that it was accepted with, whatever comes between, and holds them from its start on.
#[tokio::test(start_paused = true)]
async fn turns_in_the_queue_bring_their_tools_with_them() {
    for restarts in [false, true] {
        let place = Place::new([calls([("a", OSLO)])].into_iter().chain((0..5).map(|_| says("Done."))));
        let mut subject = created(place.process(|_| {}), None).await;
        let session_id = subject.session_id;
        subject.service.start_turn(with(session_id, &["a"])).await.unwrap();
        let queue = |turn: StartTurn, policy| StartTurn { policy, ..turn };
        let mut last = TurnAccepted { session_id, turn: 0, seq: 0 };
        for turn in [
            queue(with(session_id, &["b"]), Policy::Queue),
            queue(with(session_id, &["b"]), Policy::Queue),
            queue(with(session_id, &["a"]), Policy::Queue),
            queue(StartTurn::new(session_id, "As they are."), Policy::Queue),
        ] {
            last = subject.service.accept_turn(turn).await.unwrap();
        }
        if restarts {
            drop(subject);
            ticks(100).await;
            let go_on = |rig: &mut Rig| (rig.options.store.turns_go_on, rig.options.store.queue_goes_on) = (true, true);
            subject = Subject { service: place.process(go_on), session_id };
        }
        assert_eq!(ids(&subject.open().await), ["call_4_0"]);
        subject.tell("call_4_0", "sunny").await.unwrap();
        let ended = crate::follow::turn::result(&subject.service, last).await.unwrap();
        assert_eq!(ended.status, TurnStatus::Completed);
        assert_eq!(offered(&place.model), [["a"], ["a"], ["b"], ["b"], ["a"], ["a"]], "restarts: {restarts}");
        // The definitions of `a` and `b`, then two turns that take up what was defined before.
        assert_eq!(defined(&subject).await, ["a", "b", "", ""]);
    }
}

/// No event defines no tools if the session never had any; still a turn in the queue brings that.
#[tokio::test(start_paused = true)]
async fn a_turn_in_the_queue_takes_all_tools_away() {
    for first in [&[][..], &["a"]] {
        let slow = Answer::Late(Box::pin(async { tokio::time::sleep(Duration::from_secs(5)).await }), Vec::new());
        let place = Place::new([slow].into_iter().chain((0..3).map(|_| says("Done."))));
        let subject = created(place.process(|_| {}), None).await;
        let session_id = subject.session_id;
        let mut last = subject.service.accept_turn(with(session_id, first)).await.unwrap();
        for tools in [&["x"][..], &[]] {
            let turn = StartTurn { policy: Policy::Queue, ..with(session_id, tools) };
            last = subject.service.accept_turn(turn).await.unwrap();
        }
        let ended = crate::follow::turn::result(&subject.service, last).await.unwrap();
        assert_eq!(ended.status, TurnStatus::Completed);
        assert_eq!(offered(&place.model), [first, &["x"], &[]]);
        subject.turn("As they are.").await.unwrap();
        assert!(offered(&place.model)[3].is_empty(), "it holds for later turns");
    }
}

/// Turns in the queue bring two sets again and again.
#[tokio::test(start_paused = true)]
async fn tools_that_come_in_turn_are_defined_once() {
    let slow = Answer::Late(Box::pin(async { tokio::time::sleep(Duration::from_secs(5)).await }), Vec::new());
    let place = Place::new([slow].into_iter().chain((0..8).map(|_| says("Done."))));
    let subject = created(place.process(|_| {}), None).await;
    let session_id = subject.session_id;
    let mut last = subject.service.accept_turn(with(session_id, &["a"])).await.unwrap();
    for tools in ["b", "a", "b", "a", "b", "a"] {
        let turn = StartTurn { policy: Policy::Queue, ..with(session_id, &[tools]) };
        last = subject.service.accept_turn(turn).await.unwrap();
    }
    crate::follow::turn::result(&subject.service, last).await.unwrap();
    assert_eq!(offered(&place.model), [["a"], ["b"], ["a"], ["b"], ["a"], ["b"], ["a"]]);
    assert_eq!(defined(&subject).await, ["a", "b", "", "", "", "", "", ""]);
}

#[tokio::test(start_paused = true)]
async fn a_fork_has_the_tools_of_its_parent_and_none_of_its_calls() {
    let place = Place::new([says("One."), calls([("look", OSLO)]), calls([("look", OSLO)]), says("Sunny.")]);
    let subject = place.subject().await;
    let session_id = subject.session_id;
    subject.turn("First.").await.unwrap();
    subject.turn("Weather?").await.unwrap();
    let fork = subject.service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
    let fork = Subject { service: subject.service.clone(), session_id: fork };
    assert!(fork.open().await.is_empty());
    assert_eq!(subject.open().await.len(), 1);
    let waiting = fork.turn("Weather?").await.unwrap();
    assert_eq!(fork.tell_and_wait(&waiting.calls[0].call_id, "sunny").await.text, "Sunny.");
}

#[tokio::test(start_paused = true)]
async fn definitions_that_cannot_be_used_are_refused_and_nothing_is_recorded() {
    let place = Place::new([]);
    let subject = created(place.process(|_| {}), None).await;
    let session_id = subject.session_id;
    let schema = |schema: &str| {
        vec![ClientTool { input_schema: RawJson::parse(schema).unwrap(), ..tool("look", Effect::ReadOnly) }]
    };
    let named = |name: &str| vec![tool(name, Effect::Once)];
    let timed = |timeout_ms| vec![ClientTool { timeout_ms: Some(timeout_ms), ..tool("look", Effect::Once) }];
    let long = |bytes| vec![ClientTool { description: "x".repeat(bytes), ..tool("look", Effect::Once) }];
    let patterns = |count: usize| {
        let field = |n: usize| format!(r#""f{n}":{{"pattern":"^a{n}$"}}"#);
        let fields: Vec<String> = (0..count).map(field).collect();
        format!(r#"{{"type":"object","properties":{{{}}}}}"#, fields.join(","))
    };
    let hostile: Vec<ClientTool> =
        (0..5).map(|n| ClientTool { name: format!("t{n}"), ..schema(&patterns(60)).remove(0) }).collect();
    for (tools, words) in [
        ((0..129).map(|n| tool(&format!("t{n}"), Effect::Once)).collect(), "at most 128"),
        ([named("look"), named("look")].concat(), "two tools are named look"),
        (named("work"), "another tool named work"),
        (named("read"), "another tool named read"),
        (named("answer"), "a model ends a turn with a schema"),
        (named("mcp__github__issues"), "another tool named mcp__github__issues"),
        (named("search_tools"), "another tool named search_tools"),
        (named("web_search"), "vendor's own"),
        (named("get weather"), "not a tool's name"),
        (named(""), "not a tool's name"),
        (named(&"x".repeat(65)), "not a tool's name"),
        (schema("[]"), "not of an object"),
        (schema(r#"{"type":"string"}"#), "not of an object"),
        (schema(r#"{"type":"object","properties":{"a":{"type":"nothing"}}}"#), "cannot be used"),
        (schema(&patterns(65)), "more than 64 patterns"),
        (hostile, "more than 256 patterns"),
        (timed(0), "timeout_ms"),
        (timed(30 * 86_400_000 + 1), "timeout_ms"),
        (long(512 * 1024), "at most 524288"),
    ] {
        let client_tools = Some(tools);
        let turn = StartTurn { client_tools: client_tools.clone(), ..StartTurn::new(session_id, "Go.") };
        let refused = subject.service.start_turn(turn).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidRequest, "{refused}");
        assert!(refused.to_string().contains(words), "{refused}");
        let create = CreateSession { client_tools, ..CreateSession::default() };
        let refused = subject.service.create_session(create).await.unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert_eq!(subject.types_after(0).await, ["session_created"]);
}

#[tokio::test(start_paused = true)]
async fn answers_that_cannot_be_used_are_refused_and_the_call_waits_on() {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    let place = Place::new([calls([("look", OSLO)]), says("Done.")]);
    let service = place.process(|rig| rig.options.tools.max_output_bytes = 1000);
    let subject = created(service, Some(weather())).await;
    let session_id = subject.session_id;
    subject.turn("Go.").await.unwrap();
    let image = |media_type: &str, data: String| CallContent::Image { media_type: media_type.to_owned(), data };
    let png = || image("image/png", BASE64_STANDARD.encode(PNG));
    let text = |bytes: usize| CallContent::Text("x".repeat(bytes));
    let answer = |content| {
        let (call_id, outcome) = ("call_4_0".to_owned(), CallOutcome::Succeeded);
        subject.service.answer_call(AnswerCall { session_id, call_id, outcome, content, wait: false })
    };
    for (content, code, words) in [
        (vec![image("image/jpeg", BASE64_STANDARD.encode(PNG))], ErrorCode::InvalidRequest, "but image/png"),
        (vec![image("image/png", "not base64!".to_owned())], ErrorCode::InvalidRequest, "base64"),
        (vec![image("image/png", BASE64_STANDARD.encode("hi"))], ErrorCode::InvalidRequest, "cannot be used"),
        ((0..9).map(|_| png()).collect(), ErrorCode::InvalidRequest, "at most 8"),
        ((0..65).map(|_| text(1)).collect(), ErrorCode::InvalidRequest, "at most 64"),
        (vec![text(600), text(600)], ErrorCode::PayloadTooLarge, "answer"),
    ] {
        let refused = answer(content).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert_eq!(subject.open().await.len(), 1);
    answer(vec![text(3), png()]).await.unwrap();
    let finished = subject.event("tool_finished").await;
    assert_eq!(finished["output"], format!("xxx\n[Image: image/png, 640 x 480 pixels, {} bytes]", PNG.len()));
    assert_eq!(finished["images"][0]["media_type"], "image/png");
}

#[test]
fn the_time_of_calls_is_at_most_30_days_and_not_0() {
    for (ms, is_taken) in [(0, false), (1, true), (30 * 86_400_000, true), (30 * 86_400_000 + 1, false)] {
        let mut options = crate::options::EngineOptions::default();
        options.tools.client_timeout_ms = ms;
        match crate::AgentBuildConfig::new().options(options).build() {
            Ok(_) => assert!(is_taken, "{ms}"),
            Err(refused) => {
                assert!(!is_taken && refused.code() == ErrorCode::ConfigInvalid, "{ms}: {refused}");
                assert_eq!(refused.body().details["key"], "tools.client_timeout_ms");
            }
        }
    }
}
