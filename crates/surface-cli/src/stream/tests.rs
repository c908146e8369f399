//! A turn's text reaches standard output whole, however it comes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    fmt,
    io::{self, Write},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use meerkat_service::{
    SessionError, SessionId, cost::Cost, options::Budgets, service::TurnResult, session::message::Body,
    wire::decode_event,
};
use meerkat_testkit::cases;
use proptest::{prelude::*, sample::Index, test_runner::TestRunner};
use serde_json::json;

use super::{
    Show, explained, remarks,
    view::{View, make_whole},
};
use crate::output::{Environment, Output};

const SESSION: &str = "01900000-0000-7000-8000-000000000001";

/// Records the output, and takes at most so many bytes at a time.
#[derive(Clone)]
struct Slow(Arc<Mutex<Vec<u8>>>, usize);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.1);
        self.0.lock().unwrap().extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Way in which an answer comes.
struct Coming {
    /// The texts of its blocks.
    blocks: Vec<String>,
    /// True if reasoning comes before the first of them.
    thinks_first: bool,
    /// Bytes of a delta.
    delta: usize,
    /// The deltas that a slow reader loses, from one to another.
    lost: Option<(Index, Index)>,
    /// Texts with more bytes are stored outside of their event.
    inline: usize,
    /// Bytes that standard output takes at once.
    takes: usize,
    /// True if the turn is interrupted, so its text comes as a part.
    is_part: bool,
    /// True if it is shown on a terminal, in colours.
    is_coloured: bool,
}

impl fmt::Debug for Coming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, thinks_first, delta, lost, inline, takes, is_part, is_coloured } = self;
        let blocks: Vec<usize> = blocks.iter().map(String::len).collect();
        write!(f, "{blocks:?} {thinks_first} {delta} {lost:?} {inline} {takes} {is_part} {is_coloured}")
    }
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..200_usize,
        4 => 4_000..9_000_usize,
        3 => 32_700..32_900_usize,
        1 => 60_000..300_000_usize,
    ]
}

fn coming() -> impl Strategy<Value = Coming> {
    let text = (sizes(), prop_oneof!["[a-z \n]{7}", "[a-zé猫😀\n]{5}", "[`#*a\n -]{6}"]).prop_map(|(size, piece)| {
        let mut text = piece.repeat(size / piece.len() + 1);
        text.truncate(text.floor_char_boundary(size));
        text
    });
    let lost = prop::option::of(any::<(Index, Index)>());
    let inline = prop_oneof![Just(0_usize), Just(8_192), Just(32_768)];
    let blocks = prop::collection::vec(text, 1..3);
    (blocks, 1..5_000_usize, lost, inline, 1..70_000_usize, any::<(bool, bool, bool)>()).prop_map(
        |(blocks, delta, lost, inline, takes, (is_part, thinks_first, is_coloured))| {
            let delta = delta.max(blocks.iter().map(String::len).sum::<usize>() / 200);
            Coming { blocks, thinks_first, delta, lost, inline, takes, is_part, is_coloured }
        },
    )
}

impl Coming {
    fn deltas(&self) -> Vec<(usize, usize, &str)> {
        let mut deltas = Vec::new();
        for (block, text) in self.blocks.iter().enumerate() {
            let mut at = 0;
            while at < text.len() {
                let end = text.ceil_char_boundary(at + self.delta);
                deltas.push((2 * block + usize::from(self.thinks_first), at, &text[at..end]));
                at = end;
            }
        }
        deltas
    }

    /// Shows the answer, and returns the standard output.
    async fn shown(&self) -> Vec<u8> {
        let slow = Slow(Arc::default(), self.takes);
        let env = Environment { variables: BTreeMap::new(), dir: PathBuf::new() };
        let out = Output::new((Box::new(slow.clone()), Box::new(io::sink())), [false, self.is_coloured, false], &env);
        let mut view = View::new(out, Show::Text, true);
        let deltas = self.deltas();
        let lost = match self.lost {
            Some((from, to)) if !deltas.is_empty() => from.index(deltas.len())..to.index(deltas.len()) + 1,
            _ => 0..0,
        };
        for (number, (block, offset, text)) in deltas.into_iter().enumerate() {
            if !lost.contains(&number) {
                let delta = json!({ "type": "text_delta", "step": 0, "block": block, "offset": offset, "text": text });
                view.live(&delta, "").ok().unwrap();
            }
        }
        let blobs = RefCell::new(HashMap::new());
        let body = |text: &str| {
            if text.len() <= self.inline {
                return json!(text);
            }
            let blob = format!("{:064x}", blobs.borrow().len());
            blobs.borrow_mut().insert(blob.clone(), text.to_owned());
            json!({ "blob": blob, "bytes": text.len(), "head": "", "tail": "" })
        };
        let (kind, mut payload) = if self.is_part {
            ("partial_text", json!({ "step": 0, "text": body(&self.blocks.concat()) }))
        } else {
            let blocks: Vec<_> = self.blocks.iter().map(|text| json!({ "type": "text", "text": body(text) })).collect();
            let usage = json!({ "input_tokens": 1, "output_tokens": 1, "cached_tokens": 0 });
            (
                "assistant_message",
                json!({
                    "step": 0, "model": "m", "blocks": blocks, "stop_reason": "end_turn", "usage": usage,
                }),
            )
        };
        payload["type"] = kind.into();
        let envelope = json!({
            "session_id": "01900000-0000-7000-8000-000000000001", "seq": 4, "turn": 0,
            "time": "2026-01-01T00:00:00.000Z",
        });
        payload.as_object_mut().unwrap().extend(envelope.as_object().unwrap().clone());
        let mut event = decode_event(&payload.to_string()).unwrap().event;
        let fetch = async |body: &Body| match body {
            Body::Inline(text) => Ok(text.clone()),
            Body::Blob(blob) => Ok(blobs.borrow()[&blob.blob].clone()),
        };
        make_whole(&mut event, fetch).await.unwrap();
        view.durable(&event).ok().unwrap();
        view.end_line().ok().unwrap();
        let written = slow.0.lock().unwrap();
        written.clone()
    }
}

#[test]
fn an_answer_that_ended_early_or_cost_too_much_is_remarked_on() {
    let result = |stop_reason: &str, error: serde_json::Value| -> TurnResult {
        let usage = json!({ "input_tokens": 20, "output_tokens": 5, "cached_tokens": 0 });
        serde_json::from_value(json!({
            "session_id": SESSION, "turn": 0, "seq": 3, "status": "completed", "model": "m",
            "text": "", "stop_reason": stop_reason, "usage": usage, "steps": 1, "tool_calls": 0, "compactions": 0,
            "error": error,
        }))
        .unwrap()
    };
    let tokens = |limit| Budgets { tokens: Some(limit), ..Budgets::default() };
    for (reason, is_said) in [
        ("max_tokens", true),
        ("content_filter", true),
        ("refusal", true),
        ("empty", true),
        ("end_turn", false),
        ("tool_use", false),
    ] {
        let said = remarks(&result(reason, json!(null)), tokens(25));
        assert_eq!(said.len(), usize::from(is_said), "{said:?}");
        assert!(said.iter().all(|line| line.contains(reason)), "{said:?}");
    }
    let said = remarks(&result("empty", json!(null)), tokens(24));
    assert!(said[1].contains("25") && said[1].contains("24"), "{said:?}");
    let paid = TurnResult { cost: Some(Cost::from_micros(12)), ..result("end_turn", json!(null)) };
    let said = |limit| remarks(&paid, Budgets { cost: Some(Cost::from_micros(limit)), ..Budgets::default() });
    assert_eq!(said(12), Vec::<String>::new());
    assert_eq!(said(11), ["The turn cost 0.000012 USD, over its budget of 0.000011 USD."]);
    let interrupted = SessionError::Interrupted { turn: 0 }.body();
    assert!(remarks(&result("empty", json!(interrupted)), tokens(1)).is_empty(), "the error says why it ended");
}

#[test]
fn a_process_that_ended_is_said_and_what_goes_on() {
    let session_id: SessionId = SESSION.parse().unwrap();
    let body = |reason: &str| SessionError::Interrupted { turn: 0 }.body().detail("reason", reason);
    let message = explained(body("process_ended"), session_id).message;
    assert!(message.contains("process") && message.contains(&format!("`meerkat resume {SESSION}`")), "{message}");
    assert_eq!(explained(body("requested"), session_id).message, body("requested").message);
}

fn without_colours(shown: Vec<u8>) -> Vec<u8> {
    let mut bytes = shown.into_iter();
    let mut text = Vec::new();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\x1b' => assert_eq!(bytes.find(|byte| byte.is_ascii_alphabetic()), Some(b'm')),
            byte => text.push(byte),
        }
    }
    text
}

/// Of an answer of 200,001 bytes 8,310 were shown, without a word about the rest.
#[test]
fn an_answer_is_printed_whole_however_it_comes() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut runner = TestRunner::new(cases(1000));
    let done = runner.run(&coming(), |coming| {
        let mut expected = coming.blocks.concat();
        if !expected.is_empty() && !expected.ends_with('\n') {
            expected.push('\n');
        }
        let shown = without_colours(runtime.block_on(coming.shown()));
        prop_assert!(shown == expected.as_bytes(), "{} bytes of {}", shown.len(), expected.len());
        Ok(())
    });
    done.unwrap();
}
