//! Damaged streams: each is an answer that equals its streamed text, or a failure of the model.

use std::{
    cell::Cell,
    sync::{Arc, Mutex},
};

use meerkat_service::model::{AnswerBlock, ModelError};
use meerkat_testkit::cases;
use proptest::{collection::vec, prelude::*, sample::Index};
use tokio::runtime::{Builder, Runtime};

use crate::vendors::{Call, Heard, KEY, WIRES, Wire, lines, replay::Reply, user};

/// Vendor's server that plays a given body.
struct Stage {
    runtime: Runtime,
    call: Call,
    /// Body of the next answer, and its chunk size.
    next: Arc<Mutex<(Vec<u8>, usize)>>,
}

impl Stage {
    fn new(wire: &'static Wire) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let next = Arc::new(Mutex::new((Vec::new(), 1)));
        let told = next.clone();
        let call = runtime.block_on(wire.start(move |_| {
            let (body, chunk) = told.lock().unwrap().clone();
            Reply { chunk, ..Reply::stream(body) }
        }));
        Self { runtime, call, next }
    }

    fn hear(&self, body: Vec<u8>, chunk: usize) -> Result<Heard, ModelError> {
        *self.next.lock().unwrap() = (body, chunk);
        self.runtime.block_on(self.call.ask(vec![user("Hello.")]))
    }
}

/// Damage to bytes: some are replaced, or repeated.
#[derive(Clone, Debug)]
enum Damage {
    Replace(Index, usize, Vec<u8>),
    Repeat(Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    // Bytes with a meaning in frames or JSON are more frequent.
    let byte = prop_oneof![3 => proptest::sample::select(&b"\n\r: data\"{}[],\\0\xff"[..]), 1 => any::<u8>()];
    prop_oneof![
        (any::<Index>(), 0..4_usize, vec(byte, 0..4)).prop_map(|(at, taken, put)| Damage::Replace(at, taken, put)),
        (any::<Index>(), 1..200_usize).prop_map(|(at, bytes)| Damage::Repeat(at, bytes)),
    ]
}

fn damaged(mut bytes: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
    for damage in damage {
        match damage {
            Damage::Replace(at, taken, put) => {
                let start = at.index(bytes.len() + 1);
                let end = (start + taken).min(bytes.len());
                bytes.splice(start..end, put.iter().copied());
            }
            Damage::Repeat(at, count) => {
                let start = at.index(bytes.len() + 1);
                let again = bytes[start..(start + count).min(bytes.len())].to_vec();
                bytes.splice(start..start, again);
            }
        }
    }
    bytes
}

#[test]
fn a_damaged_stream_is_an_answer_or_a_failure() {
    for wire in WIRES {
        // A tenth of these is enough to meet both ends.
        let (stage, answers, settings) = (Stage::new(wire), Cell::new(0), cases(2_000));
        let tried = settings.cases;
        proptest!(settings, |(is_text: bool, damage in vec(damage(), 1..8), chunk in 1..400_usize)| {
            let story = if is_text { wire.text } else { wire.calls };
            match stage.hear(damaged(wire.on_wire(story).into_bytes(), &damage), chunk) {
                Ok(heard) => {
                    let text: String = heard.answer.blocks.iter().filter_map(|block| match block {
                        AnswerBlock::Text(text) => Some(text.as_str()),
                        AnswerBlock::Reasoning { .. } | AnswerBlock::ToolCall(_) => None,
                    }).collect();
                    prop_assert_eq!(text, heard.text, "{}", wire.model);
                    answers.set(answers.get() + 1);
                }
                Err(error) => {
                    prop_assert!(error.code.as_str().starts_with("MODEL_"), "{}: {error}", wire.model);
                    prop_assert!(!error.message.contains(KEY));
                }
            }
        });
        assert!((1..tried).contains(&answers.get()), "{}: {} answers", wire.model, answers.get());
    }
}

/// Comments that keep a connection alive have no meaning.
#[test]
fn comments_between_frames_change_nothing() {
    for wire in WIRES {
        let stage = Stage::new(wire);
        proptest!(cases(50), |(comments in vec(any::<bool>(), 1..8), chunk in 1..400_usize)| {
            for story in [wire.text, wire.calls] {
                let plain = stage.hear(wire.on_wire(story).into_bytes(), usize::MAX).unwrap();
                let frames = story.split_inclusive("\n\n").zip(comments.iter().cycle());
                let with_comments: String =
                    frames.map(|(frame, said)| if *said { format!(": alive\n\n{frame}") } else { frame.into() }).collect();
                let heard = stage.hear(wire.on_wire(&with_comments).into_bytes(), chunk).unwrap();
                prop_assert_eq!(lines(&heard.answer.blocks), lines(&plain.answer.blocks), "{}", wire.model);
                prop_assert_eq!((heard.text, heard.reasoning), (plain.text, plain.reasoning));
                prop_assert_eq!(heard.answer.usage, plain.answer.usage);
            }
        });
    }
}
