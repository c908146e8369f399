//! Signs of life: every byte that arrives shows that a vendor is working, and is counted.

use futures::StreamExt;
use meerkat_service::{
    ErrorCode,
    model::{ModelPart, StopReason, Usage},
};
use meerkat_testkit::in_time;

use crate::vendors::{
    ANTHROPIC, CHAT, COMPATIBLE, GEMINI, RESPONSES, WIRES, Wire, lines,
    replay::{Ends, Reply},
    user,
};

/// Counts hidden bytes of an endless stream until there are `bytes`.
async fn hidden(wire: &Wire, story: String, bytes: usize) -> usize {
    let call = wire.start(move |_| Reply { ends: Ends::Never, ..Reply::stream(story.clone()) }).await;
    let mut stream = call.stream(call.request(vec![user("Hello.")])).await;
    let mut counted = 0;
    let count = async {
        while counted < bytes {
            match stream.next().await.unwrap().unwrap() {
                ModelPart::Hidden(more) => counted += more,
                ModelPart::Text(_) | ModelPart::Reasoning(_) => {}
                ModelPart::End(answer) => panic!("{answer:?}"),
            }
        }
    };
    in_time(wire.model, count).await;
    counted
}

/// The idle timeout once ended calls during a long argument, or while the server only sent pings.
#[tokio::test]
async fn arguments_and_pings_are_signs_of_life() {
    let comment = ": alive\n\n".repeat(50);
    for wire in WIRES {
        hidden(wire, wire.on_wire(&format!("{}{comment}", wire.begun().replace("\r\n", "\n"))), 500).await;
    }
    for wire in [&ANTHROPIC, &CHAT, &COMPATIBLE, &RESPONSES] {
        let at = wire.calls.find(r#"{\"path\""#).unwrap();
        let end = at + wire.calls[at..].find("\n\n").unwrap() + 2;
        let begin = wire.calls[..at].rfind("\n\n").unwrap() + 2;
        let piece = wire.calls[begin..end].repeat(20);
        hidden(wire, format!("{}{piece}", &wire.calls[..begin]), piece.len() / 2).await;
    }
    let ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n".repeat(20);
    hidden(&ANTHROPIC, ping, 300).await;
}

/// Endless arguments were once kept, and copied with each frame.
#[tokio::test]
async fn arguments_without_an_end_are_refused_as_they_come() {
    let begin = CHAT.calls.find(r#"data: {"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id""#);
    let piece = format!(
        r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":0,"function":{{"arguments":"{}"}}}}]}}}}]}}"#,
        "x".repeat(10_000)
    );
    let first = &CHAT.calls[..begin.unwrap()];
    let open =
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}}]}"#;
    let story = format!("{first}data: {open}\n\n{}", format!("data: {piece}\n\n").repeat(30));
    let heard = CHAT.hear(move || Reply { ends: Ends::Never, ..Reply::stream(story.clone()) });
    let heard = in_time("it does not wait for the end", heard).await;
    assert_eq!(heard.err().unwrap().code, ErrorCode::ModelRejected);
}

/// Servers may omit `[DONE]`: the answer is whole once its stop reason has come.
#[tokio::test]
async fn a_reason_to_stop_ends_an_answer_of_chat_completions() {
    for wire in [&CHAT, &COMPATIBLE] {
        for story in [wire.text, wire.calls] {
            let whole = wire.hear(move || Reply::stream(story)).await.unwrap();
            for ends in [Ends::Cleanly, Ends::Abruptly] {
                let reply = move || Reply { ends, ..Reply::stream(story.replace("data: [DONE]\n\n", "")) };
                let heard = wire.hear(reply).await.unwrap();
                assert_eq!(lines(&heard.answer.blocks), lines(&whole.answer.blocks), "{}", wire.model);
                let ended = |answer: &meerkat_service::model::ModelAnswer| (answer.stop_reason, answer.usage);
                assert_eq!(ended(&heard.answer), ended(&whole.answer), "{}", wire.model);
            }
        }
        for (reason, stop_reason) in [
            ("length", StopReason::MaxTokens),
            ("content_filter", StopReason::ContentFilter),
            ("eos", StopReason::EndTurn),
        ] {
            let end = wire.text.find(r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4.1","choices":[],"#);
            let story = wire.text[..end.unwrap()].replace("\"stop\"", &format!("\"{reason}\""));
            let heard = wire.hear(move || Reply::stream(story.clone())).await.unwrap();
            assert_eq!((heard.answer.stop_reason, heard.answer.usage), (stop_reason, Usage::default()), "{reason}");
        }
        let error = r#"data: {"error":{"message":"Boom.","code":502}}"#;
        let story = wire.text.replace("data: [DONE]", error);
        let failed = wire.hear(move || Reply::stream(story.clone())).await.err().unwrap();
        assert_eq!(failed.code, ErrorCode::ModelOverloaded, "an error after the reason is one");
    }
    let cut = GEMINI.hear(|| Reply::stream(GEMINI.begun())).await.err().unwrap();
    assert_eq!(cut.code, ErrorCode::ModelStreamIncomplete);
}
