//! Images and files of a prompt: the whole body of a request, as each vendor documents it.

use std::sync::Arc;

use meerkat_service::{
    model::{ModelRequest, ModelResolver, vendors::VendorOptions},
    options::ModelOptions,
    session::message::{Attached, AttachedFile, Image, Message},
};
use serde_json::{Value, json};

use crate::vendors::{ANTHROPIC, CHAT, COMPATIBLE, GEMINI, RESPONSES, Wire, models, sent};

/// Text that every vendor is sent: a line for each, the text of the text file, and what the user says.
const TEXT: &str = "[Image 1: image/png, 640 x 480 pixels, 3 bytes]\n\n[File 1: report.pdf, application/pdf, 3 bytes]\n\n\
                    [File 2: notes.txt, text/plain, 5 bytes]\nnotes\n\nWhat is this?";

/// The text for a model that is not sent the first two.
fn unseen() -> String {
    TEXT.replace("pixels, 3 bytes]", "pixels, 3 bytes] [not shown]")
        .replace("pdf, 3 bytes]", "pdf, 3 bytes] [not shown]")
}

fn prompt() -> Message {
    let file = |name: &str, media_type: &str, blob: &str, bytes| {
        let [name, media_type, blob] = [name, media_type, blob].map(str::to_owned);
        Attached::File(AttachedFile { name, media_type, blob, bytes, pages: None })
    };
    let [media_type, blob] = ["image/png", "b10b"].map(str::to_owned);
    let image = Attached::Image(Image { media_type, blob, bytes: 3, width: 640, height: 480 });
    let blocks =
        vec![image, file("report.pdf", "application/pdf", "b10b-2", 3), file("notes.txt", "text/plain", "b10b-3", 5)];
    Message::User { content: "What is this?".into(), blocks }
}

/// Asks with the image, the PDF and the text; `shows` says if the model is sent the first two.
async fn body(wire: &Wire, shows: bool) -> Value {
    let ask = |request: &mut ModelRequest| {
        request.system = Some("Be brief.".into());
        request.options = ModelOptions { max_output_tokens: Some(500), ..ModelOptions::default() };
        if shows {
            request.images = Arc::new(["b10b", "b10b-2"].map(|blob| (blob.to_owned(), "QUJD".into())).into());
        }
        request.files = [("b10b-3".to_owned(), "notes".into())].into();
    };
    sent(wire, ask, vec![prompt()]).await
}

#[tokio::test]
async fn anthropic_is_sent_an_image_and_a_document() {
    let source = |media_type: &str| json!({"type": "base64", "media_type": media_type, "data": "QUJD"});
    let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let expected = |content: Value| {
        json!({
            "model": ANTHROPIC.model,
            "stream": true,
            "max_tokens": 500,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": content}],
        })
    };
    let shown = json!([
        {"type": "image", "source": source("image/png")},
        {"type": "document", "source": source("application/pdf")},
        text(TEXT),
    ]);
    assert_eq!(body(&ANTHROPIC, true).await, expected(shown));
    assert_eq!(body(&ANTHROPIC, false).await, expected(json!([text(&unseen())])));
}

#[tokio::test]
async fn chat_completions_are_sent_data_urls() {
    let expected = |model: &str, content: Value| {
        let message = json!({"role": "user", "content": content});
        let mut body = json!({
            "model": model,
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": 500,
            "messages": [{"role": "system", "content": "Be brief."}],
        });
        body["messages"].as_array_mut().unwrap().push(message);
        body
    };
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}});
    let file = json!({"filename": "report.pdf", "file_data": "data:application/pdf;base64,QUJD"});
    let (file, text) = (json!({"type": "file", "file": file}), json!({"type": "text", "text": TEXT}));
    assert_eq!(body(&CHAT, true).await, expected(CHAT.model, json!([&image, &file, &text])));
    assert_eq!(body(&CHAT, false).await, expected(CHAT.model, json!(unseen())));
    assert_eq!(body(&COMPATIBLE, false).await, expected("qwen/qwen-max", json!(unseen())));
    // A server gets images alone, since its table says that its models take them; the engine sends it no PDF.
    assert_eq!(body(&COMPATIBLE, true).await, expected("qwen/qwen-max", json!([image, file, text])));
}

#[tokio::test]
async fn openais_responses_are_sent_inputs() {
    let expected = |content: Value| {
        json!({
            "model": RESPONSES.model,
            "stream": true,
            "store": false,
            "instructions": "Be brief.",
            "max_output_tokens": 500,
            "reasoning": null,
            "include": ["reasoning.encrypted_content"],
            "input": [{"role": "user", "content": content}],
        })
    };
    let shown = json!([
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,QUJD"},
        {"type": "input_file", "filename": "report.pdf", "file_data": "data:application/pdf;base64,QUJD"},
        {"type": "input_text", "text": TEXT},
    ]);
    assert_eq!(body(&RESPONSES, true).await, expected(shown));
    assert_eq!(body(&RESPONSES, false).await, expected(json!(unseen())));
}

#[tokio::test]
async fn gemini_is_sent_inline_data() {
    let inline = |mime_type: &str| json!({"inline_data": {"mime_type": mime_type, "data": "QUJD"}});
    let parts = json!([inline("image/png"), inline("application/pdf"), {"text": TEXT}]);
    let shown = body(&GEMINI, true).await;
    assert_eq!(shown["contents"], json!([{"role": "user", "parts": parts}]));
    // Nothing else of the request depends on them.
    let mut without = body(&GEMINI, false).await;
    assert_eq!(without["contents"], json!([{"role": "user", "parts": [{"text": unseen()}]}]));
    without["contents"] = shown["contents"].clone();
    assert_eq!(without, shown);
}

/// A prompt that is shown again is in the request once: a second copy would pass every bound.
#[tokio::test]
async fn what_is_named_twice_is_sent_where_it_is_named_last() {
    let ask = |request: &mut ModelRequest| {
        request.images = Arc::new(["b10b", "b10b-2"].map(|blob| (blob.to_owned(), "QUJD".into())).into());
        request.files = [("b10b-3".to_owned(), "notes".into())].into();
    };
    let said = Message::Assistant { content: "A page.".into() };
    let times = |body: &Value| body.to_string().matches("QUJD").count();
    for wire in [&ANTHROPIC, &CHAT, &RESPONSES, &GEMINI] {
        let once = sent(wire, ask, vec![prompt()]).await;
        let again = sent(wire, ask, vec![prompt(), said.clone(), prompt()]).await;
        assert_eq!((times(&once), times(&again)), (2, 2));
    }
    let body = sent(&ANTHROPIC, ask, vec![prompt(), said, prompt()]).await;
    assert_eq!(body["messages"][0]["content"], TEXT);
    let kinds = body["messages"][2]["content"].as_array().unwrap().iter().map(|part| &part["type"]);
    assert_eq!(kinds.collect::<Vec<_>>(), ["image", "document", "text"]);
}

#[test]
fn models_that_read_pdfs_are_known_by_vendor_and_name() {
    let takes = |wire: &Wire, change: fn(&mut VendorOptions), name: &str, media_type: &str| {
        let mut options = (wire.options)("http://127.0.0.1:9/v1".to_owned());
        change(&mut options);
        let resolved = models(&options).unwrap().resolve(name).unwrap();
        resolved.client.takes(&resolved.vendor_model, media_type)
    };
    let reads = |wire: &Wire, change: fn(&mut VendorOptions), name: &str| takes(wire, change, name, "application/pdf");
    assert!(reads(&ANTHROPIC, |_| {}, "claude-sonnet-5-5") && !reads(&ANTHROPIC, |_| {}, "claude-2.1"));
    assert!(reads(&CHAT, |_| {}, "gpt-4o") && reads(&CHAT, |_| {}, "gpt-4.1") && !reads(&CHAT, |_| {}, "gpt-4-turbo"));
    assert!(reads(&GEMINI, |_| {}, GEMINI.model));
    // Servers show images at most.
    assert!(!reads(&COMPATIBLE, |options| options.compatible[0].sees_images = true, COMPATIBLE.model));
    assert!(takes(&GEMINI, |_| {}, GEMINI.model, "image/png") && !takes(&GEMINI, |_| {}, GEMINI.model, "image/gif"));
    assert!(takes(&CHAT, |_| {}, "gpt-4o", "image/gif") && takes(&ANTHROPIC, |_| {}, ANTHROPIC.model, "image/gif"));
    for blind in ["gpt-4", "gpt-4-0613", "gpt-4-1106-preview", "gpt-4-32k"] {
        assert!(!takes(&CHAT, |_| {}, blind, "image/png"), "{blind}");
    }
    assert!(takes(&CHAT, |_| {}, "gpt-4-turbo", "image/png"));
}
