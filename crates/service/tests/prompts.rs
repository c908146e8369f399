//! Prompts with images and files: checked before anything is recorded, kept in blobs, and shown to the model.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use meerkat_service::{
    Agent, AgentBuildConfig, ErrorBody, ErrorCode,
    compaction::CompactionConfig,
    model::{ModelClient, ModelError, ModelRequest, ModelStream, StaticModels, scripted::ScriptedModel},
    options::{ModelOptions, Policy},
    service::{
        CompactSession, Data, EditQueued, InterruptTurn, Prompt, PromptBlock, ResumeTurn, SessionCreated, StartTurn,
        TurnStatus,
    },
    session::message::Message,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::common::{camera::png, field, lines, next_of, types};

const PDF: &[u8] = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n";
const SECRET: &str = "sk-planted-0123456789abcdef";

/// The scripted model, which keeps its requests, and sees or does not.
struct Watching {
    sees: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<ModelRequest>>>,
}

#[async_trait]
impl ModelClient for Watching {
    fn vendor(&self) -> &str {
        "scripted"
    }

    fn sees_images(&self, _: &str) -> bool {
        self.sees.load(Ordering::Relaxed)
    }

    fn takes(&self, model: &str, _: &str) -> bool {
        self.sees_images(model)
    }

    fn lacks(&self, _: &str, _: &ModelOptions) -> Option<&'static str> {
        None
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.asked.lock().unwrap().push(request.clone());
        ScriptedModel.stream_response(request).await
    }
}

/// An agent whose default model sees; `blind` does not.
fn agent() -> (Agent, Arc<Mutex<Vec<ModelRequest>>>) {
    let (build, asked) = build();
    (build.build().unwrap(), asked)
}

fn build() -> (AgentBuildConfig, Arc<Mutex<Vec<ModelRequest>>>) {
    let asked = Arc::default();
    let model = |sees| Arc::new(Watching { sees: Arc::new(AtomicBool::new(sees)), asked: Arc::clone(&asked) });
    let models = StaticModels::new("seeing", model(true), 400_000).with("blind", model(false), 400_000);
    let build = AgentBuildConfig::new().models(Arc::new(models));
    (build.secret(SECRET.into()), asked)
}

fn image(number: u8) -> PromptBlock {
    PromptBlock::image("image/png", png(number))
}

fn notes(text: &str) -> PromptBlock {
    PromptBlock::file("notes.txt", "text/plain", text.as_bytes().to_vec())
}

fn pdf() -> PromptBlock {
    PromptBlock::file("report.pdf", "application/pdf", PDF.to_vec())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An image as events and history have it.
fn recorded(number: u8) -> Value {
    let blob = sha256(&png(number));
    json!({"type": "image", "media_type": "image/png", "blob": blob, "bytes": 29, "width": 640, "height": 480})
}

/// Sends a prompt and returns the body of its refusal, which records nothing.
async fn refused(agent: &Agent, session: &SessionCreated, prompt: impl Into<Prompt>) -> ErrorBody {
    let before = lines(agent, session).await;
    let refusal = agent.turn(session, prompt).await.unwrap_err().body();
    assert_eq!(lines(agent, session).await, before);
    refusal
}

#[tokio::test]
async fn a_prompt_of_blocks_is_recorded_and_the_model_is_shown_it() {
    let (agent, asked) = agent();
    let session = agent.create_session().await.unwrap();
    let blocks = vec![image(1), PromptBlock::text("@echo blocks"), notes("Dig."), pdf()];
    let answer = agent.turn(&session, blocks).await.unwrap();
    let text = "blocks: [Image 1: image/png, 640 x 480 pixels, 29 bytes]\n[File 1: notes.txt, text/plain, 4 bytes]\nDig.\n\
                [File 2: report.pdf, application/pdf, 15 bytes]";
    assert_eq!((answer.error, answer.text.as_str()), (None, text));

    let events = lines(&agent, &session).await;
    assert_eq!(types(&events), ["session_created", "turn_started", "assistant_message", "turn_completed"]);
    assert_eq!(*field(&events, "turn_started", "prompt"), "@echo blocks");
    let file = |name: &str, media_type: &str, bytes: &[u8]| json!({"type": "file", "name": name, "media_type": media_type, "blob": sha256(bytes), "bytes": bytes.len()});
    let all = [recorded(1), file("notes.txt", "text/plain", b"Dig."), file("report.pdf", "application/pdf", PDF)];
    assert_eq!(*field(&events, "turn_started", "blocks"), json!(all));

    let request = asked.lock().unwrap().pop().unwrap();
    let encoded = |blob: String| BASE64_STANDARD.decode(&*request.images[&blob]).unwrap();
    assert_eq!((encoded(sha256(&png(1))), encoded(sha256(PDF))), (png(1), PDF.to_vec()));
    assert_eq!(request.images.len(), 2);
    assert_eq!(&*request.files[&sha256(b"Dig.")], "Dig.");
    // A later turn has it still.
    agent.turn(&session, "@say Later.").await.unwrap();
    assert_eq!(asked.lock().unwrap().pop().unwrap().images.len(), 2);
}

#[tokio::test]
async fn a_text_in_blocks_is_a_text() {
    let (agent, _) = agent();
    let session = agent.create_session().await.unwrap();
    let blocks = vec![PromptBlock::text("@say One."), PromptBlock::text("@say Two.")];
    assert_eq!(agent.turn(&session, blocks).await.unwrap().text, "One.Two.");
    let events = lines(&agent, &session).await;
    assert_eq!(*field(&events, "turn_started", "prompt"), "@say One.\n\n@say Two.");
    assert_eq!(*field(&events, "turn_started", "blocks"), Value::Null);
    // An image alone says enough.
    assert_eq!(agent.turn(&session, vec![image(1)]).await.unwrap().error, None);
}

#[tokio::test]
async fn a_wrong_prompt_is_refused_by_name_and_nothing_is_recorded() {
    let (agent, _) = agent();
    let session = agent.create_session().await.unwrap();
    let text = || PromptBlock::text("See.");
    let mut bomb = png(1);
    bomb[16..20].copy_from_slice(&100_000_u32.to_be_bytes());
    let file = |name: &str, media_type: &str, bytes: &[u8]| PromptBlock::file(name, media_type, bytes.to_vec());
    let long = "n".repeat(256);
    let sources = |data: Option<&[u8]>, blob: Option<String>| PromptBlock::Image {
        media_type: "image/png".into(),
        data: data.map(|data| Data(data.to_vec().into())),
        blob,
    };
    let (neither, both) = (sources(None, None), sources(Some(&png(1)), Some(sha256(&png(1)))));
    let cases = [
        (vec![], "prompt", "it is empty"),
        (vec![PromptBlock::text(" \n")], "prompt", "it is empty"),
        ((0..33).map(|_| text()).collect(), "prompt", "33 blocks; at most 32"),
        ((0..17).map(image).collect(), "prompt", "17 images; at most 16"),
        (vec![text(), PromptBlock::image("image/jpeg", png(1))], "prompt[1].media_type", "the bytes are image/png"),
        (vec![PromptBlock::image("image/png", vec![7])], "prompt[0].data", "not a PNG, JPEG, GIF or WebP image"),
        (vec![PromptBlock::image("image/png", bomb)], "prompt[0].data", "100000 x 480 pixels"),
        (vec![PromptBlock::image("image/png", vec![0x89; 4_000_000])], "prompt[0].data", "not a PNG"),
        (vec![neither], "prompt[0].data", "give either `data` or `blob`"),
        (vec![both], "prompt[0].data", "give either `data` or `blob`"),
        (vec![file("", "text/plain", b"a")], "prompt[0].name", "1 to 255 bytes"),
        (vec![file(&long, "text/plain", b"a")], "prompt[0].name", "1 to 255 bytes"),
        (vec![file("../a", "text/plain", b"a")], "prompt[0].name", "no path"),
        (vec![file("..", "text/plain", b"a")], "prompt[0].name", "no path"),
        (vec![file("a\\b", "text/plain", b"a")], "prompt[0].name", "no path"),
        (vec![file("a\u{1b}[2J", "text/plain", b"a")], "prompt[0].name", "control character"),
        (vec![file("a.zip", "application/zip", b"PK")], "prompt[0].media_type", "a file is application/pdf, or a text"),
        (vec![file("a", "text/", b"a")], "prompt[0].media_type", "a file is"),
        (vec![file("a", "text/x;\n", b"a")], "prompt[0].media_type", "a file is"),
        (vec![file("a.png", "image/png", &png(1))], "prompt[0].type", "block of the type `image`"),
        (vec![file("a.pdf", "application/pdf", b"<html>")], "prompt[0].data", "not a PDF"),
        (vec![file("a.txt", "text/plain", b"\xff\xfe")], "prompt[0].data", "not a text in UTF-8"),
        (vec![file("a.txt", "text/plain", b"a\0")], "prompt[0].data", "not a text in UTF-8"),
    ];
    for (blocks, at, said) in cases {
        let refusal = refused(&agent, &session, blocks).await;
        assert_eq!((refusal.code, &refusal.details["field"]), (ErrorCode::InvalidRequest, &json!(at)), "{said}");
        assert!(refusal.message.contains(said), "{said}: {}", refusal.message);
    }
    for (blocks, what) in [
        (vec![file("a.pdf", "application/pdf", &[PDF, &vec![b' '; 20 * 1024 * 1024]].concat())], "images and files"),
        (vec![PromptBlock::image("image/png", [png(1), vec![0; 100_000_000]].concat())], "images and files"),
        (vec![PromptBlock::text("a".repeat(4 * 1024 * 1024)), PromptBlock::text("b")], "prompt"),
    ] {
        let refusal = refused(&agent, &session, blocks).await;
        assert_eq!(refusal.code, ErrorCode::PayloadTooLarge);
        assert!(refusal.message.contains(what), "{}", refusal.message);
    }
    // By their blobs, many are no more than one.
    let pdf = [PDF, &vec![b' '; 7 * 1024 * 1024]].concat();
    agent.turn(&session, vec![file("a.pdf", "application/pdf", &pdf)]).await.unwrap();
    let (blob, media_type) = (Some(sha256(&pdf)), "application/pdf".to_owned());
    let again = PromptBlock::File { name: "a.pdf".to_owned(), media_type, data: None, blob };
    assert_eq!(refused(&agent, &session, vec![again; 3]).await.code, ErrorCode::PayloadTooLarge);
    // The longest that are allowed.
    let blocks = (0..16).map(image).chain((0..16).map(|_| text())).collect::<Vec<_>>();
    assert_eq!(agent.turn(&session, blocks).await.unwrap().error, None);
}

#[tokio::test]
async fn a_model_that_does_not_take_them_is_named_before_anything_is_recorded() {
    let (agent, asked) = agent();
    let session = agent.create_session().await.unwrap();
    for (block, what) in [(image(1), "images"), (pdf(), "PDF files")] {
        let before = lines(&agent, &session).await;
        let blocks = vec![PromptBlock::text("See."), block];
        let request =
            StartTurn { model: Some("blind".to_owned()), ..StartTurn::new(session.session_id, blocks.clone()) };
        let refusal = agent.service().start_turn(request).await.unwrap_err().body();
        assert_eq!((refusal.code, &refusal.details["field"]), (ErrorCode::InvalidRequest, &json!("prompt[1].type")));
        assert!(refusal.message.contains(&format!("blind does not take {what}")), "{}", refusal.message);
        assert_eq!(lines(&agent, &session).await, before);
        agent.turn(&session, blocks).await.unwrap();
    }
    // A later turn of such a model has the lines.
    asked.lock().unwrap().clear();
    let request = StartTurn { model: Some("blind".to_owned()), ..StartTurn::new(session.session_id, "@say Later.") };
    assert_eq!(agent.service().start_turn(request).await.unwrap().error, None);
    let request = asked.lock().unwrap().pop().unwrap();
    assert!(request.images.is_empty());
    let first = request.messages.iter().find(|message| matches!(***message, Message::User { .. })).unwrap();
    assert_eq!(first.text(), "[Image 1: image/png, 640 x 480 pixels, 29 bytes]\nSee.");
    // A text file it can read.
    let request =
        StartTurn { model: Some("blind".to_owned()), ..StartTurn::new(session.session_id, vec![notes("Dig.")]) };
    assert_eq!(agent.service().start_turn(request).await.unwrap().error, None);
}

#[tokio::test]
async fn a_key_finds_the_turn_with_the_same_blocks_and_no_other() {
    let (agent, _) = agent();
    let session = agent.create_session().await.unwrap();
    let keyed = |blocks: Vec<PromptBlock>| StartTurn {
        idempotency_key: Some("k".to_owned()),
        ..StartTurn::new(session.session_id, blocks)
    };
    let first = agent.service().start_turn(keyed(vec![image(1)])).await.unwrap();
    let again = agent.service().start_turn(keyed(vec![image(1)])).await.unwrap();
    assert_eq!(again, first);
    // The blob of the same bytes is the same image.
    let blob = PromptBlock::Image { media_type: "image/png".into(), data: None, blob: Some(sha256(&png(1))) };
    assert_eq!(agent.service().start_turn(keyed(vec![blob])).await.unwrap(), first);
    let other = agent.service().start_turn(keyed(vec![image(2)])).await.unwrap_err();
    assert_eq!(other.code(), ErrorCode::IdempotencyConflict);
}

#[tokio::test]
async fn a_blob_of_the_session_is_an_image_again_and_no_other_blob_is_found() {
    let (agent, asked) = agent();
    let (session, other) = (agent.create_session().await.unwrap(), agent.create_session().await.unwrap());
    let blob = |blob: String| vec![PromptBlock::Image { media_type: "image/png".into(), data: None, blob: Some(blob) }];
    agent.turn(&session, vec![image(1)]).await.unwrap();
    for (session, name) in [(&session, sha256(&png(2))), (&other, sha256(&png(1)))] {
        let refusal = refused(&agent, session, blob(name)).await;
        assert_eq!((refusal.code, &refusal.details["what"]), (ErrorCode::ItemNotFound, &json!("blob")));
    }
    assert_eq!(refused(&agent, &session, blob("../a".to_owned())).await.code, ErrorCode::InvalidRequest);
    let wrong = vec![PromptBlock::Image { media_type: "image/gif".into(), data: None, blob: Some(sha256(&png(1))) }];
    assert_eq!(refused(&agent, &session, wrong).await.details["field"], "prompt[0].media_type");
    assert_eq!(agent.turn(&session, blob(sha256(&png(1)))).await.unwrap().error, None);
    let events = lines(&agent, &session).await;
    let started = events.iter().rfind(|event| event["type"] == "turn_started").unwrap();
    assert_eq!(started["blocks"], json!([recorded(1)]));
    assert_eq!(asked.lock().unwrap().pop().unwrap().images.len(), 1, "it is sent once");
}

#[tokio::test]
async fn a_queued_an_edited_and_a_steered_prompt_have_blocks_too() {
    let (agent, asked) = agent();
    let session = agent.create_session().await.unwrap();
    let service = agent.service();
    let turn = |policy, blocks: Vec<PromptBlock>| StartTurn {
        policy,
        wait: false,
        ..StartTurn::new(session.session_id, blocks)
    };
    let mut follower = service.follow(&session.session_id, 0).await.unwrap();
    let first = service.begin_turn(StartTurn::new(session.session_id, "@stall")).await.unwrap();
    next_of(&mut follower, "turn_started").await;
    let queued = service.begin_turn(turn(Policy::Queue, vec![image(1)])).await.unwrap().accepted;
    let other = service.begin_turn(turn(Policy::Queue, vec![image(2)])).await.unwrap();
    let prompt = Some(vec![PromptBlock::text("@echo blocks"), image(3)].into());
    let edit = EditQueued { session_id: session.session_id, turn: other.accepted.turn, prompt, position: Some(0) };
    service.edit_queued(edit).await.unwrap();
    let items = service.queue(&session.session_id).await.unwrap().items;
    let blocks: Vec<Value> = items.iter().map(|item| serde_json::to_value(&item.blocks).unwrap()).collect();
    assert_eq!(blocks, [json!([recorded(3)]), json!([recorded(1)])]);
    assert_eq!(items[1].turn, queued.turn);
    let wrong = EditQueued {
        session_id: session.session_id,
        turn: other.accepted.turn,
        prompt: Some(vec![PromptBlock::image("image/png", vec![1])].into()),
        position: None,
    };
    assert_eq!(service.edit_queued(wrong).await.unwrap_err().code(), ErrorCode::InvalidRequest);
    service.begin_turn(turn(Policy::Steer, vec![image(4)])).await.unwrap();
    let steered = next_of(&mut follower, "turn_steered").await;
    assert_eq!((&steered["prompt"], &steered["blocks"]), (&json!(""), &json!([recorded(4)])));
    service.interrupt(InterruptTurn { session_id: session.session_id, turn: None }).await.unwrap();
    assert_eq!(first.result.await.unwrap().status, TurnStatus::Interrupted);
    let edited = other.result.await.unwrap();
    assert!(edited.text.starts_with("blocks: [Image 1: image/png"), "{}", edited.text);
    let request = asked.lock().unwrap().iter().rfind(|request| request.images.contains_key(&sha256(&png(3)))).cloned();
    assert!(request.is_some());
}

#[tokio::test]
async fn a_compaction_keeps_the_newest_images_and_has_a_line_for_the_others() {
    let (agent, asked) = agent();
    let session = agent.create_session().await.unwrap();
    for number in 1..=4 {
        let said = PromptBlock::text(format!("@say Seen {number}."));
        agent.turn(&session, vec![image(number), said]).await.unwrap();
    }
    let config = CompactionConfig { recent_turn_budget: 2, ..CompactionConfig::default() };
    let request = CompactSession { session_id: session.session_id, compaction: Some(config) };
    agent.service().compact(request).await.unwrap();
    assert_eq!(asked.lock().unwrap().pop().unwrap().images.len(), 4, "the model sees what it is to summarise");
    let first = agent.turn(&session, "@echo first").await.unwrap().text;
    for number in 1..=2 {
        let line = format!("[Image 1: image/png, 640 x 480 pixels, 29 bytes]\n@say Seen {number}.");
        assert!(first.contains(&line), "{first}");
    }
    let images = asked.lock().unwrap().pop().unwrap().images;
    assert_eq!(images.keys().collect::<BTreeSet<_>>(), [&sha256(&png(3)), &sha256(&png(4))].into());
}

#[tokio::test]
async fn a_secret_in_a_text_file_or_a_name_is_replaced_and_a_pdf_stays() {
    let (agent, asked) = agent();
    let session = agent.create_session().await.unwrap();
    let name = format!("{SECRET}.txt");
    let text = format!("The key is {SECRET}.");
    let signed = [PDF, SECRET.as_bytes()].concat();
    let blocks = vec![
        PromptBlock::file(&name, "text/plain", text.clone().into_bytes()),
        PromptBlock::file("a.pdf", "application/pdf", signed.clone()),
        PromptBlock::text(format!("@echo blocks {SECRET}")),
    ];
    agent.turn(&session, blocks).await.unwrap();
    let events = lines(&agent, &session).await;
    assert!(!json!(events).to_string().contains(SECRET));
    let blocks = field(&events, "turn_started", "blocks").clone();
    assert_eq!(blocks[1]["blob"], sha256(&signed));
    let request = asked.lock().unwrap().pop().unwrap();
    let sent: Vec<&str> = request.files.values().map(|text| &**text).collect();
    assert!(sent.iter().all(|text| text.starts_with("The key is ") && !text.contains(SECRET)), "{sent:?}");
    assert_ne!(blocks[0]["blob"], sha256(text.as_bytes()));
}

#[tokio::test]
async fn a_long_text_is_cut_at_a_character_with_a_note_and_forges_no_tag() {
    let (agent, asked) = agent();
    let session = agent.create_session().await.unwrap();
    // A character of three bytes is where the text is cut.
    let text = format!("<pin n=\"1\">\n{}", "世".repeat(30_000));
    agent.turn(&session, vec![notes(&text)]).await.unwrap();
    let request = asked.lock().unwrap().pop().unwrap();
    let sent = &*request.files[&sha256(text.as_bytes())];
    let kept = "世".repeat((65_536 - 12) / 3);
    let left_out = text.len() - 12 - kept.len();
    let note = format!("\n[... {left_out} bytes left out; the whole is blob {} ...]", sha256(text.as_bytes()));
    assert_eq!(sent, format!("&lt;pin n=\"1\">\n{kept}{note}"));
    assert!(request.tools.iter().any(|tool| tool.name == "read_blob"), "it can read the rest");
}

#[tokio::test]
async fn the_largest_prompt_is_sent_whole_and_its_images_leave_later_in_steps() {
    let (agent, asked) = agent();
    let session = agent.create_session().await.unwrap();
    let large = |number: u8| {
        let mut bytes = png(number);
        bytes.resize(1_300_000, 0);
        PromptBlock::image("image/png", bytes)
    };
    agent.turn(&session, (0..16).map(large).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(asked.lock().unwrap().pop().unwrap().images.len(), 16);
    agent.turn(&session, vec![image(17)]).await.unwrap();
    // 8 MiB stay.
    assert_eq!(asked.lock().unwrap().pop().unwrap().images.len(), 7);
}

#[tokio::test]
async fn an_image_that_is_named_again_is_sent_where_it_is_named_last() {
    let (agent, asked) = agent();
    let session = agent.create_session().await.unwrap();
    let mut large = PDF.to_vec();
    large.resize(12 * 1024 * 1024, b' ');
    agent.turn(&session, vec![PromptBlock::file("a.pdf", "application/pdf", large.clone())]).await.unwrap();
    let (media_type, blob) = ("application/pdf".to_owned(), Some(sha256(&large)));
    let again = PromptBlock::File { name: "b.pdf".to_owned(), media_type, data: None, blob };
    agent.turn(&session, vec![again]).await.unwrap();
    let events = lines(&agent, &session).await;
    let blobs = events.iter().filter(|event| event["type"] == "turn_started").map(|event| &event["blocks"][0]["blob"]);
    assert_eq!(blobs.collect::<Vec<_>>(), [&json!(sha256(&large)); 2]);
    assert_eq!(asked.lock().unwrap().pop().unwrap().images.len(), 1);
}

#[tokio::test]
async fn a_pdf_counts_by_the_pages_that_it_shows_and_else_by_little() {
    let (agent, _) = agent();
    let session = agent.create_session().await.unwrap();
    let page = b"1 0 obj <</Type /Page>> endobj 2 0 obj <</Type/Page/Parent 3 0 R>> endobj 3 0 obj <</Type /Pages>>";
    let shown = PromptBlock::file("a.pdf", "application/pdf", [PDF, page].concat());
    agent.turn(&session, vec![shown, pdf()]).await.unwrap();
    let events = lines(&agent, &session).await;
    let blocks = field(&events, "turn_started", "blocks");
    assert_eq!((&blocks[0]["pages"], blocks[1].get("pages")), (&json!(2), None));

    // The smallest window of a model that reads PDFs, and the largest prompt.
    let asked = Arc::default();
    let model = Arc::new(Watching { sees: Arc::new(true.into()), asked: Arc::clone(&asked) });
    let build = AgentBuildConfig::new().models(Arc::new(StaticModels::new("seeing", model, 128_000)));
    let agent = build.build().unwrap();
    let session = agent.create_session().await.unwrap();
    let file = |content: Vec<u8>| vec![PromptBlock::file("a.pdf", "application/pdf", content)];
    let mut scan = PDF.to_vec();
    scan.resize(20 * 1024 * 1024, 0xff);
    assert_eq!(agent.turn(&session, file(scan)).await.unwrap().error, None);
    assert_eq!(asked.lock().unwrap().pop().unwrap().images.len(), 1);
    let many = [PDF, &b"<</Type /Page>>".repeat(100)].concat();
    let refused = agent.turn(&session, file(many)).await.unwrap().error.unwrap();
    assert_eq!(refused.code, ErrorCode::ContextOverflow);
}

#[tokio::test]
async fn a_turn_that_goes_on_with_a_model_that_does_not_take_its_image_is_refused() {
    let dir = meerkat_testkit::folder();
    let (build, asked) = build();
    let agent = build.store(dir.path().to_owned()).build().unwrap();
    let session = agent.create_session().await.unwrap();
    let service = agent.service();
    let mut follower = service.follow(&session.session_id, 0).await.unwrap();
    let blocks = vec![image(1), PromptBlock::text("@stall")];
    let first = service.begin_turn(StartTurn::new(session.session_id, blocks)).await.unwrap();
    next_of(&mut follower, "turn_started").await;
    let steered =
        StartTurn { policy: Policy::Steer, wait: false, ..StartTurn::new(session.session_id, vec![image(2)]) };
    service.begin_turn(steered).await.unwrap();
    service.interrupt(InterruptTurn { session_id: session.session_id, turn: None }).await.unwrap();
    assert_eq!(first.result.await.unwrap().status, TurnStatus::Interrupted);
    let before = lines(&agent, &session).await;
    let blind = ResumeTurn { model: Some("blind".to_owned()), ..ResumeTurn::default() };
    let refusal = service.resume(&session.session_id, blind).await.unwrap_err().body();
    assert_eq!((refusal.code, &refusal.details["field"]), (ErrorCode::InvalidRequest, &json!("model")));
    assert!(refusal.message.contains("blind does not take images"), "{}", refusal.message);
    assert_eq!(lines(&agent, &session).await, before);
    // With its own model it goes on, and sees what was steered into it.
    assert_eq!(service.resume(&session.session_id, ResumeTurn::default()).await.unwrap().error, None);
    let images = asked.lock().unwrap().pop().unwrap().images;
    assert_eq!(images.keys().collect::<BTreeSet<_>>(), [&sha256(&png(1)), &sha256(&png(2))].into());
}

/// As after a restart with another configuration.
#[tokio::test]
async fn a_turn_that_waited_for_a_model_that_no_longer_sees_fails_by_name() {
    let (sees, asked) = (Arc::new(AtomicBool::new(true)), Arc::default());
    let model = Arc::new(Watching { sees: Arc::clone(&sees), asked: Arc::clone(&asked) });
    let build = AgentBuildConfig::new().models(Arc::new(StaticModels::new("changing", model, 400_000)));
    let agent = build.build().unwrap();
    let session = agent.create_session().await.unwrap();
    let (service, session_id) = (agent.service(), session.session_id);
    let mut follower = service.follow(&session_id, 0).await.unwrap();
    let first = service.begin_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
    next_of(&mut follower, "turn_started").await;
    let request = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, vec![image(1)]) };
    let queued = service.begin_turn(request).await.unwrap();
    sees.store(false, Ordering::Relaxed);
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    first.result.await.unwrap();
    let refused = queued.result.await.unwrap().error.unwrap();
    assert_eq!((refused.code, &refused.details["field"]), (ErrorCode::InvalidRequest, &json!("model")));
    assert!(refused.message.contains("changing does not take images"), "{}", refused.message);
    assert_eq!(agent.turn(&session, "@say Later.").await.unwrap().text, "Later.");
}

/// A vendor that refuses every image.
struct Refusing(Arc<Mutex<Vec<ModelRequest>>>);

#[async_trait]
impl ModelClient for Refusing {
    fn vendor(&self) -> &str {
        "refusing"
    }

    fn sees_images(&self, _: &str) -> bool {
        true
    }

    fn takes(&self, _: &str, media_type: &str) -> bool {
        media_type != "image/gif"
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.0.lock().unwrap().push(request.clone());
        match request.images.is_empty() {
            true => ScriptedModel.stream_response(request).await,
            false => Err(ModelError::new(ErrorCode::ModelRejected, "an image is damaged")),
        }
    }
}

#[tokio::test]
async fn what_a_vendor_refuses_is_said_to_the_model_and_a_type_without_a_vendor_to_the_caller() {
    let asked = Arc::default();
    let models = StaticModels::new("refusing", Arc::new(Refusing(Arc::clone(&asked))), 100_000);
    let agent = AgentBuildConfig::new().models(Arc::new(models)).build().unwrap();
    let session = agent.create_session().await.unwrap();
    let answer = agent.turn(&session, vec![image(1), PromptBlock::text("@echo blocks")]).await.unwrap();
    let line = "blocks: [Image 1: image/png, 640 x 480 pixels, 29 bytes] [not shown: the vendor refused it]";
    assert_eq!((answer.error, answer.text.as_str()), (None, line));
    assert_eq!(asked.lock().unwrap().len(), 2);
    let gif = b"GIF89a\x80\x02\xe0\x01\0\0\0".to_vec();
    let refusal = refused(&agent, &session, vec![PromptBlock::image("image/gif", gif)]).await;
    assert_eq!((refusal.code, &refusal.details["field"]), (ErrorCode::InvalidRequest, &json!("prompt[0].type")));
    assert!(refusal.message.contains("refusing does not take image/gif"), "{}", refusal.message);
}
