//! A vendor's server that is hostile or broken: nothing that it sends fills the memory, stops a thread or ends the
//! process, and each of its answers without a bound is refused with a code.

use meerkat_service::{ErrorCode, model::ModelError};
use meerkat_testkit::in_time;

use crate::vendors::{
    CHAT, COMPATIBLE, KEY, WIRES, Wire,
    replay::{Ends, Reply},
    user,
};

/// Failure of a call that is answered with `reply`.
async fn failure(wire: &Wire, reply: impl Fn() -> Reply + Send + Sync + 'static) -> ModelError {
    let error = in_time(wire.model, wire.hear(reply)).await.err().expect("no answer");
    assert!(!error.to_string().contains(KEY), "{error}");
    error
}

#[tokio::test]
async fn an_event_without_an_end_is_refused() {
    let endless = |part: &'static str| {
        let body = part.repeat(6 * 1024 * 1024 / part.len());
        move || Reply { ends: Ends::Never, ..Reply::stream(body.clone()) }
    };
    for wire in WIRES {
        let error = failure(wire, endless("a")).await;
        assert_eq!(error.code, ErrorCode::ModelRejected, "{}: {error}", wire.model);
    }
    // Lines alone end no event.
    for part in ["data: a\n", ": a\r\n"] {
        let error = failure(&CHAT, endless(part)).await;
        assert_eq!(error.code, ErrorCode::ModelRejected, "{part:?}: {error}");
    }
}

#[tokio::test]
async fn an_answer_without_an_end_is_refused() {
    // Comments are no part of an answer, so that nothing else counts them.
    let body = format!(": {}\n\n", "a".repeat(1024 * 1024)).repeat(65);
    let error = failure(&CHAT, move || Reply { ends: Ends::Never, ..Reply::stream(body.clone()) }).await;
    assert_eq!(error.code, ErrorCode::ModelRejected, "{error}");
}

#[tokio::test]
async fn a_refusal_without_an_end_is_classed_by_its_beginning() {
    for wire in WIRES {
        for (status, code) in [(503, ErrorCode::ModelOverloaded), (401, ErrorCode::ModelUnauthorized)] {
            let body = "a".repeat(1024 * 1024);
            let error =
                failure(wire, move || Reply { ends: Ends::Never, ..Reply::refusal(status, body.clone()) }).await;
            assert_eq!((error.code, error.status), (code, Some(status)), "{}: {error}", wire.model);
        }
    }
}

#[tokio::test]
async fn a_call_with_a_number_past_any_answer_is_refused() {
    let call = |index: &str| {
        let call = format!(r#"{{"index":{index},"id":"c","function":{{"name":"f","arguments":"{{}}"}}}}"#);
        format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n")
    };
    for wire in [&CHAT, &COMPATIBLE] {
        for index in ["256", "2147483648", "4294967295"] {
            let body = call(index);
            let error = failure(wire, move || Reply::stream(body.clone())).await;
            assert_eq!(error.code, ErrorCode::ModelRejected, "{}: {index}: {error}", wire.model);
        }
    }
}

#[tokio::test]
async fn an_answer_of_endless_calls_or_blocks_is_refused() {
    let chat: String = (0..255)
        .flat_map(|index| [index, index])
        .enumerate()
        .map(|(n, index)| {
            let call = format!(r#"{{"index":{index},"id":"c{n}","function":{{"name":"f","arguments":""}}}}"#);
            format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n")
        })
        .collect();
    let error = failure(&CHAT, move || Reply::stream(chat.clone())).await;
    assert_eq!(error.code, ErrorCode::ModelRejected, "{error}");

    let thoughts: String = (0..5_000)
        .map(|index| {
            format!(
                "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{index},\
                 \"content_block\":{{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}}}\n\n"
            )
        })
        .chain([
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":5000,\
             \"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
                .to_owned(),
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":5000,\
             \"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n"
                .to_owned(),
        ])
        .collect();
    let error = failure(&crate::vendors::ANTHROPIC, move || Reply::stream(thoughts.clone())).await;
    assert_eq!(error.code, ErrorCode::ModelRejected, "{error}");
}

#[tokio::test]
async fn no_vendor_is_asked_for_a_compressed_answer() {
    for wire in WIRES {
        let story = wire.on_wire(wire.text);
        let call = wire.start(move |request| match request.headers.get("accept-encoding") {
            None => Reply::stream(story.clone()),
            Some(asked) => Reply::refusal(400, asked.clone()),
        });
        let heard = call.await.ask(vec![user("Hello.")]).await;
        assert!(heard.is_ok(), "{}: {:?}", wire.model, heard.err());
    }
}
