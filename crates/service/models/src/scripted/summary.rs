//! Summaries by the scripted model: as a prompt scripts them, or a short one of its own.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    RunningTurn, check_pairs,
    grammar::{self, Action, Chunks, Distortion, Step, Words},
    rejected,
};
use crate::ModelError;
use meerkat_words::{
    compaction::COMPACTION_PROMPT,
    message::{Body, Message},
};

/// Longest summary without a script.
const SUMMARY_CHARS_MAX: usize = 2000;

/// Longest summary with deliberate errors.
const DISTORTED_CHARS_MAX: usize = 8000;

/// Longest part of a prompt in it.
const PROMPT_CHARS_MAX: usize = 200;

/// Returns the call and its script, if these messages ask for a summary. All of them are read, so all must be in order.
pub(super) fn summary_call(messages: &[Arc<Message>]) -> Option<Result<(RunningTurn<'static>, Vec<Step>), ModelError>> {
    let (last, before) = messages.split_last()?;
    let is_asked = matches!(&**last, Message::User { content: Body::Inline(text), .. } if text == COMPACTION_PROMPT);
    is_asked.then(|| {
        if before.iter().any(|message| matches!(**message, Message::System { .. })) {
            return Err(rejected("there is a system message among the messages"));
        }
        check_pairs(before)?;
        let scripted = prompts(before).rev().find_map(|prompt| grammar::parse(prompt).ok()?.compaction);
        let steps = scripted.unwrap_or_else(|| vec![plain_summary(before)]);
        Ok((RunningTurn { prompt: COMPACTION_PROMPT, step: 0 }, steps))
    })
}

fn prompts(messages: &[Arc<Message>]) -> impl DoubleEndedIterator<Item = &str> {
    messages.iter().filter_map(|message| match &**message {
        Message::User { content: Body::Inline(prompt), .. } => Some(prompt.as_str()),
        _ => None,
    })
}

/// Writes the model's own summary: the number of messages, and the beginning of each prompt with its images and files.
fn plain_summary(messages: &[Arc<Message>]) -> Step {
    let mut text = format!("Summary of {} messages.", messages.len());
    for message in messages.iter().filter(|message| matches!(***message, Message::User { .. })) {
        text.extend(["\n", &excerpt(&message.text(), PROMPT_CHARS_MAX)]);
    }
    let words = Words::Plain(excerpt(&text, SUMMARY_CHARS_MAX));
    Step { actions: vec![Action::Say { is_reasoning: false, words, chunks: Chunks::Words }], ..Step::default() }
}

/// Summarises everything before the last message, with deliberate errors. Repeated sentences appear once.
pub(super) fn distorted(distortion: Distortion, messages: &[Arc<Message>]) -> String {
    let earlier = messages.split_last().map_or(&[][..], |(_, before)| before);
    let texts: Vec<String> = earlier.iter().map(|message| message.text()).collect();
    let parts = texts.iter().flat_map(|text| text.split('\n')).flat_map(|line| line.split(". "));
    let mut seen = BTreeSet::new();
    let sentences = parts.map(|part| part.trim().trim_end_matches('.')).filter(|it| !it.is_empty());
    let new = sentences.filter(|sentence| seen.insert(*sentence));
    let kept = new.enumerate().filter_map(|(nth, sentence)| {
        let words: Vec<&str> = sentence.split_whitespace().collect();
        match distortion {
            Distortion::Drop if nth % 2 == 1 => None,
            Distortion::Drop => Some(words.join(" ")),
            Distortion::Negate => Some(negated(&words)),
            Distortion::Paraphrase => {
                Some(words.iter().rev().map(|word| word.to_lowercase()).collect::<Vec<_>>().join(" "))
            }
        }
    });
    excerpt(&kept.map(|sentence| format!("{sentence}.")).collect::<Vec<_>>().join(" "), DISTORTED_CHARS_MAX)
}

/// Negates the sentence: "not" after its verb, or after its first word.
fn negated(words: &[&str]) -> String {
    let is_verb = |word: &&str| ["is", "are", "was", "must", "may", "should", "will"].contains(word);
    let (before, after) = words.split_at(words.iter().position(is_verb).unwrap_or(0) + 1);
    [before, &["not"], after].concat().join(" ")
}

/// Cuts a text, and marks the cut.
pub(super) fn excerpt(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
