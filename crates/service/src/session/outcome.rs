//! Remainder of a turn that did not fit the model's window: its prompt, the texts that were steered into it, and its
//! calls.
//!
//! It is made of the turn's messages alone, so that a replay and a snapshot give the same text.

use super::message::{Message, ToolCall, ToolResult};
use crate::tool::prefix;

/// Bytes of the prompt that stay.
const PROMPT_BYTES_MAX: usize = 1024;
/// Bytes of later texts that stay, of all together.
const TEXTS_BYTES_MAX: usize = 4 * 1024;
/// Bytes of a call's arguments that stay.
const ARGUMENTS_BYTES_MAX: usize = 120;
/// Bytes of all lines together. A smaller turn keeps at most a third of its bytes.
const LINES_BYTES_MAX: usize = 16 * 1024;
const LINES_SHARE: u64 = 3;

const HEADER: &str = "[This turn did not fit the model's window, and the rest of it left the context.";
const CALLED: &str = " It had called:";
/// Before each text that was added later.
const ADDED: &str = "[Added while it ran:]";

/// Returns the remaining text of a turn with so many bytes; `None` if it called nothing and nothing was added to it.
pub(super) fn of_turn(messages: &[&Message], bytes: u64) -> Option<String> {
    let mut lines: Vec<String> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let Message::ToolResults { results } = message else { continue };
        let asked = at.checked_sub(1).and_then(|before| messages.get(before));
        let calls = || asked.into_iter().flat_map(|asked| asked.tool_calls());
        lines.extend(results.iter().map(|result| line(calls().find(|call| call.call_id == result.call_id), result)));
    }
    let texts = messages.iter().skip(1).filter_map(|message| match message {
        Message::User { .. } => Some(head(&message.text())),
        _ => None,
    });
    let texts: Vec<String> = texts.collect();
    if lines.is_empty() && texts.is_empty() {
        return None;
    }
    let room = usize::try_from(bytes / LINES_SHARE).unwrap_or(usize::MAX).min(LINES_BYTES_MAX);
    let mut used = 0;
    let fitting = lines.iter().rev().take_while(|line| {
        used += line.len() + 1;
        used <= room
    });
    let left_out = lines.len() - fitting.count();
    let mut text = String::new();
    if let Some(prompt @ Message::User { .. }) = messages.first() {
        text = head(&prompt.text()) + "\n\n";
    }
    let mut texts_used = 0;
    let newest = texts.iter().rev().take_while(|added| {
        texts_used += added.len();
        texts_used <= TEXTS_BYTES_MAX
    });
    for added in &texts[texts.len() - newest.count()..] {
        text.push_str(&format!("{ADDED}\n{added}\n\n"));
    }
    text.push_str(&format!("{HEADER}{}]", if lines.is_empty() { "" } else { CALLED }));
    if left_out > 0 {
        text.push_str(&format!("\n[{left_out} older calls]"));
    }
    for line in &lines[left_out..] {
        text.push('\n');
        text.push_str(line);
    }
    Some(text)
}

fn line(call: Option<&ToolCall>, result: &ToolResult) -> String {
    let arguments = call.map_or("", |call| call.arguments.as_str());
    // Not in the tool's words: this becomes a user's message.
    let outcome = match result.is_error {
        false => "succeeded",
        true if result.is_unknown() => "outcome unknown; verify before repeating",
        true => "failed",
    };
    format!("- {} {}: {outcome}", result.name, part(arguments))
}

/// The beginning of what a person said.
fn head(text: &str) -> String {
    let head = prefix(text, PROMPT_BYTES_MAX);
    if head.len() < text.len() { format!("{head} [...]") } else { head.to_owned() }
}

/// The beginning of a text, on one line.
fn part(text: &str) -> String {
    let head = prefix(text, ARGUMENTS_BYTES_MAX);
    let line = head.split(char::is_control).collect::<Vec<_>>().join(" ");
    if head.len() < text.len() { format!("{line} ...") } else { line }
}
