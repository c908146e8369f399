//! Failed calls: classed by code, without the key, and never an answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use meerkat_service::{
    ErrorCode,
    model::{ModelError, ModelPart, ModelRequest, ModelResolver},
};
use meerkat_testkit::{campaigns::Part, in_time, refusing_address};
use serde_json::json;
use tokio::net::TcpListener;

use crate::vendors::{
    ANTHROPIC, CHAT, COMPATIBLE, GEMINI, KEY, RESPONSES, WIRES, Wire, models,
    replay::{Ends, Reply},
    user,
};

async fn failure(wire: &Wire, reply: impl Fn() -> Reply + Send + Sync + 'static) -> ModelError {
    let error = wire.hear(reply).await.err().expect("no answer");
    let told = format!("{error} {error:?} {}", json!(error.body()));
    assert!(!told.contains(KEY), "{}: the key is told in {told}", wire.model);
    error
}

/// Cuts a stream after its bytes: in a campaign each of them, else a tenth and those about the ends of lines. Only a prefix with the whole frame of the stop reason is an answer; that
/// frame is the last, except in chat completions.
async fn cut(wire: &'static Wire, story: &str, ends: Ends) {
    let story = wire.on_wire(story);
    let reason = story.find(r#""finish_reason":"stop"}"#).or_else(|| story.find(r#""finish_reason":"tool_calls"}"#));
    let whole = reason.map_or(story.trim_end().len(), |at| at + story[at..].find('\n').unwrap());
    let bytes = story.clone().into_bytes();
    let is_by_a_line_end = |at: usize| bytes[at.saturating_sub(2)..bytes.len().min(at + 2)].contains(&b'\n');
    let is_tried = |at: &usize| Part::Properties.is_whole() || at.is_multiple_of(10) || is_by_a_line_end(*at);
    let lengths: Vec<usize> = (0..story.len()).filter(is_tried).collect();
    let call = wire.start(move |request| {
        let body = request.body.to_string();
        let length: usize = body.split("cut at ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        Reply { ends, ..Reply::stream(&bytes[..length]) }
    });
    let call = call.await;
    for length in lengths {
        match call.ask(vec![user(&format!("cut at {length} bytes"))]).await {
            Ok(_) => assert!(length >= whole, "{}: an answer of {length} bytes", wire.model),
            Err(error) => {
                assert!(length < whole + 2 || reason.is_none(), "{}: {length} bytes: {error}", wire.model);
                assert!(length < whole || ends == Ends::Abruptly, "{}: {length} bytes: {error}", wire.model);
                assert_eq!(error.code, ErrorCode::ModelStreamIncomplete, "{}: {length} bytes: {error}", wire.model);
            }
        }
    }
    assert!(call.ask(vec![user(&format!("cut at {} bytes", story.len()))]).await.is_ok() || ends == Ends::Abruptly);
}

macro_rules! cut_everywhere {
    ($($name:ident $wire:ident)*) => { $(
        #[tokio::test]
        async fn $name() {
            cut(&$wire, $wire.calls, Ends::Cleanly).await;
            cut(&$wire, $wire.text, Ends::Abruptly).await;
        }
    )* };
}

cut_everywhere! {
    a_cut_answer_of_anthropic_is_none ANTHROPIC
    a_cut_answer_of_chat_completions_is_none CHAT
    a_cut_answer_of_responses_is_none RESPONSES
    a_cut_answer_of_gemini_is_none GEMINI
    a_cut_answer_of_a_compatible_server_is_none COMPATIBLE
}

#[tokio::test]
async fn a_stalled_stream_pends_and_dropping_it_closes_the_connection() {
    for wire in WIRES {
        let mut call = wire.start(|_| Reply { ends: Ends::Never, ..Reply::stream(wire.begun()) }).await;
        let mut stream = call.stream(call.request(vec![user("Hello.")])).await;
        let first = stream.next().await.unwrap().unwrap();
        assert!(matches!(first, ModelPart::Text(text) if text == "Grüße, "), "{}", wire.model);
        // A frame without visible content may have come.
        while let std::task::Poll::Ready(part) = futures::poll!(stream.next()) {
            assert!(matches!(part, Some(Ok(ModelPart::Hidden(_)))), "{}: {part:?}", wire.model);
        }
        drop(stream);
        assert_eq!(in_time("the connection is closed", call.server.left.recv()).await, Some(()), "{}", wire.model);
    }
}

#[tokio::test]
async fn a_status_is_classed_and_the_message_holds_no_key() {
    let by_status = [
        (400, ErrorCode::ModelRejected),
        (401, ErrorCode::ModelUnauthorized),
        (403, ErrorCode::ModelUnauthorized),
        (404, ErrorCode::ModelRejected),
        (408, ErrorCode::ModelOverloaded),
        (422, ErrorCode::ModelRejected),
        (429, ErrorCode::ModelRateLimited),
        (500, ErrorCode::ModelOverloaded),
        (502, ErrorCode::ModelOverloaded),
        (503, ErrorCode::ModelOverloaded),
        (504, ErrorCode::ModelOverloaded),
        (529, ErrorCode::ModelOverloaded),
    ];
    // A limit applied before redaction would leave a part of the key.
    let wordy = format!("{}{KEY} {}", "x".repeat(470), "y".repeat(10_000));
    for wire in [&ANTHROPIC, &CHAT, &RESPONSES, &GEMINI] {
        for (status, code) in by_status {
            for body in [json!({ "error": { "type": "some_error", "message": wordy } }).to_string(), wordy.clone()] {
                let error = failure(wire, move || Reply::refusal(status, body.clone())).await;
                assert_eq!((error.code, error.status), (code, Some(status)), "{}: {error}", wire.model);
                assert!(!error.message.contains("sk-planted"), "{}: {error}", wire.model);
            }
        }
    }
}

#[tokio::test]
async fn the_vendors_own_words_are_understood() {
    let said = [
        (
            &ANTHROPIC,
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            ErrorCode::ModelContextExceeded,
        ),
        (
            &ANTHROPIC,
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again"}}"#,
            ErrorCode::ModelContextExceeded,
        ),
        (
            &ANTHROPIC,
            413,
            r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
            ErrorCode::ModelContextExceeded,
        ),
        (
            &CHAT,
            400,
            r#"{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            ErrorCode::ModelContextExceeded,
        ),
        (
            &RESPONSES,
            400,
            r#"{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            ErrorCode::ModelContextExceeded,
        ),
        (
            &GEMINI,
            400,
            r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
            ErrorCode::ModelContextExceeded,
        ),
        (
            &COMPATIBLE,
            400,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error"}}"#,
            ErrorCode::ModelContextExceeded,
        ),
        (
            &GEMINI,
            400,
            r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}"#,
            ErrorCode::ModelUnauthorized,
        ),
        (
            &GEMINI,
            503,
            r#"[{"error":{"code":503,"message":"The model is overloaded. Please try again later.","status":"UNAVAILABLE"}}]"#,
            ErrorCode::ModelOverloaded,
        ),
    ];
    for (wire, status, body, code) in said {
        let error = failure(wire, move || Reply::refusal(status, body)).await;
        assert_eq!(error.code, code, "{body}: {error}");
    }
    let body = r#"{"error":{"code":404,"message":"models/x is not found","status":"NOT_FOUND"}}"#;
    assert_eq!(
        failure(&GEMINI, move || Reply::refusal(404, body)).await.message,
        "gemini: status 404: models/x is not found"
    );
}

#[tokio::test]
async fn the_wait_that_a_vendor_asks_for_is_read() {
    let date = ("date", "Wed, 21 Oct 2026 07:28:00 GMT".to_owned());
    let asked = [
        (vec![("retry-after", "7".to_owned())], Some(7_000)),
        (vec![("retry-after", "9".to_owned()), ("retry-after-ms", "1500".to_owned())], Some(1_500)),
        (vec![date.clone(), ("retry-after", "Wed, 21 Oct 2026 07:28:30 GMT".to_owned())], Some(30_000)),
        (vec![date, ("retry-after", "Wed, 21 Oct 2026 07:27:30 GMT".to_owned())], Some(0)),
        (vec![("retry-after", "-3".to_owned())], None),
        (vec![("retry-after", "soon".to_owned())], None),
        (vec![], None),
    ];
    for wire in [&ANTHROPIC, &CHAT, &RESPONSES, &GEMINI] {
        for (headers, millis) in asked.clone() {
            let told = format!("{headers:?}");
            let error = failure(wire, move || Reply { headers: headers.clone(), ..Reply::refusal(429, "{}") }).await;
            assert_eq!(error.code, ErrorCode::ModelRateLimited);
            assert_eq!(error.retry_after, millis.map(Duration::from_millis), "{}: {told}", wire.model);
        }
    }
    let body = r#"{"error":{"code":429,"message":"Quota exceeded.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}"#;
    let error = failure(&GEMINI, move || Reply::refusal(429, body)).await;
    assert_eq!(error.retry_after, Some(Duration::from_millis(34_500)));
}

/// A used-up quota does not recover within a turn; a rate limit does, and Gemini names both alike.
#[tokio::test]
async fn a_used_up_quota_is_told_from_a_rate() {
    let said = [
        (
            &CHAT,
            r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            true,
        ),
        (
            &CHAT,
            r#"{"error":{"message":"Rate limit reached for gpt-4.1","type":"tokens","code":"rate_limit_exceeded"}}"#,
            false,
        ),
        (
            &GEMINI,
            r#"{"error":{"code":429,"message":"You exceeded your current quota, please check your plan.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34s"}]}}"#,
            false,
        ),
        (
            &GEMINI,
            r#"{"error":{"code":429,"message":"You exceeded your current quota, please check your plan.","status":"RESOURCE_EXHAUSTED"}}"#,
            true,
        ),
    ];
    for (wire, body, is_lasting) in said {
        let error = failure(wire, move || Reply::refusal(429, body)).await;
        assert_eq!((error.code, error.is_lasting), (ErrorCode::ModelRateLimited, is_lasting), "{body}");
    }
}

#[tokio::test]
async fn an_error_within_a_stream_of_status_200_is_classed() {
    use ErrorCode::{ModelContextExceeded, ModelOverloaded, ModelRateLimited, ModelRejected, ModelUnauthorized};
    let anthropic = |kind: &str| {
        format!(
            "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"{KEY}\"}}}}\n\n"
        )
    };
    let chat = |fields: &str| format!("data: {{\"error\":{{\"message\":\"{KEY}\",{fields}}}}}\n\n");
    let failed = |code: &str| {
        format!(
            "event: response.failed\ndata: {{\"type\":\"response.failed\",\"response\":{{\"id\":\"r\",\"status\":\"failed\",\"model\":\"m\",\"error\":{{\"code\":\"{code}\",\"message\":\"{KEY}\"}}}}}}\n\n"
        )
    };
    let gemini = |code: u16, status: &str| {
        format!("data: {{\"error\":{{\"code\":{code},\"message\":\"{KEY}\",\"status\":\"{status}\"}}}}\r\n\r\n")
    };
    let events = [
        (&ANTHROPIC, anthropic("overloaded_error"), ModelOverloaded),
        (&ANTHROPIC, anthropic("api_error"), ModelOverloaded),
        (&ANTHROPIC, anthropic("rate_limit_error"), ModelRateLimited),
        (&ANTHROPIC, anthropic("authentication_error"), ModelUnauthorized),
        (&ANTHROPIC, anthropic("invalid_request_error"), ModelRejected),
        (&CHAT, chat(r#""type":"server_error","code":null"#), ModelOverloaded),
        (&CHAT, chat(r#""type":"tokens","code":"rate_limit_exceeded""#), ModelRateLimited),
        (&CHAT, chat(r#""code":502"#), ModelOverloaded),
        (&CHAT, chat(r#""code":429"#), ModelRateLimited),
        (&RESPONSES, failed("server_error"), ModelOverloaded),
        (&RESPONSES, failed("rate_limit_exceeded"), ModelRateLimited),
        (&RESPONSES, failed("context_length_exceeded"), ModelContextExceeded),
        (
            &RESPONSES,
            format!("event: error\ndata: {{\"type\":\"error\",\"code\":\"server_error\",\"message\":\"{KEY}\"}}\n\n"),
            ModelOverloaded,
        ),
        (&GEMINI, gemini(503, "UNAVAILABLE"), ModelOverloaded),
        (&GEMINI, gemini(429, "RESOURCE_EXHAUSTED"), ModelRateLimited),
    ];
    for (wire, event, code) in events {
        for before in [String::new(), wire.begun()] {
            let told = event.clone();
            let error = failure(wire, move || Reply::stream(format!("{before}{told}"))).await;
            assert_eq!((error.code, error.status), (code, None), "{event}: {error}");
        }
    }
}

/// Returns the error of a call to this address; checks that nothing follows.
async fn unreachable(wire: &Wire, url: &str) -> ModelError {
    let resolved = models(&(wire.options)(url.to_owned())).unwrap().resolve(wire.model).unwrap();
    let request = ModelRequest {
        model: resolved.vendor_model,
        messages: vec![Arc::new(user("Hello."))],
        ..ModelRequest::default()
    };
    let mut stream = resolved.client.stream_response(request).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert!(stream.next().await.is_none());
    error
}

/// What stands before a server, or at a wrong address, does not speak its language.
#[tokio::test]
async fn a_web_page_and_a_redirection_say_what_to_check() {
    for wire in WIRES {
        let page = "<!DOCTYPE html>\n<html><head><Title>502 Bad\n Gateway</Title></head><body>nginx</body></html>";
        let web = move |status, body: &str| Reply {
            headers: vec![("content-type", "text/html".to_owned())],
            ..Reply::refusal(status, body)
        };
        let error = failure(wire, move || web(502, page)).await;
        assert!(
            error.message.ends_with(": status 502: a web page with the title \"502 Bad Gateway\""),
            "{}: {error}",
            wire.model
        );
        assert_eq!(error.code, ErrorCode::ModelOverloaded);
        let error = failure(wire, move || web(502, "<html><title></html>")).await;
        assert!(error.message.ends_with(": status 502: a web page"), "{}: {error}", wire.model);
        let error = failure(wire, move || web(502, "")).await;
        assert!(error.message.ends_with(": status 502"), "{}: {error}", wire.model);
        for body in [page, "", "{\"choices\":[]}"] {
            let error = failure(wire, move || web(200, body)).await;
            assert_eq!(error.code, ErrorCode::ModelStreamIncomplete, "{}: {error}", wire.model);
            let says = |text: &str| assert!(error.message.contains(text), "{}: {error}", wire.model);
            says("sent no part of an answer; check model.");
            says(".base_url");
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_and_one_that_points_elsewhere() {
    let url = format!("http://{}/v1", refusing_address());
    for wire in WIRES {
        let error = unreachable(wire, &url).await;
        assert_eq!((error.code, error.is_lasting), (ErrorCode::ModelTimeout, true), "{}: {error}", wire.model);
        let address = url.trim_end_matches("/v1");
        assert!(error.message.contains(address) && error.message.contains("base_url"), "{}: {error}", wire.model);
    }
    // A server that closes each new connection may recover.
    let breaks = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/v1", breaks.local_addr().unwrap());
    let breaking = tokio::spawn(async move { while breaks.accept().await.is_ok() {} });
    for wire in WIRES {
        let error = unreachable(wire, &url).await;
        assert_eq!((error.code, error.is_lasting), (ErrorCode::ModelTimeout, false), "{}: {error}", wire.model);
    }
    breaking.abort();
    for wire in WIRES {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let error = failure(wire, move || {
            count.fetch_add(1, Ordering::SeqCst);
            Reply { headers: vec![("location", "/v1/elsewhere".to_owned())], ..Reply::refusal(307, "") }
        });
        let error = error.await;
        assert_eq!((error.code, error.status), (ErrorCode::ModelRejected, Some(307)), "{}: {error}", wire.model);
        assert!(error.message.contains("it points to /v1/elsewhere; check model."), "{}: {error}", wire.model);
        assert_eq!(asked.load(Ordering::SeqCst), 1, "{}", wire.model);
    }
}
