//! A summary without a model: the beginning of each thing that was said, and of the rest of it the words that are hard
//! to find again: paths, numbers, names of code.
//!
//! The same messages always give the same summary.

use crate::{
    compaction::summary_of,
    session::message::{Block, Message, ToolResult},
};

/// What it begins with.
const HEADER: &str = "No model wrote this summary: it is the beginnings of what was said, the oldest first.";

/// What stands where lines were left out.
const GAP: &str = "[...]";

/// Bytes that a prompt, an answer or a call may have; the first that all lines fit with is taken.
const LINE_BYTES: [usize; 6] = [2000, 1000, 500, 250, 120, 70];

/// How much of the summary before may be in a summary that cannot hold everything, as a part of it.
const FORMER_PART: usize = 3;

/// How long a word may be to be kept out of its line.
const WORD_BYTES_MAX: usize = 80;

/// A thing that was said, on one line.
struct Line {
    /// Whether a person said it.
    is_prompt: bool,
    lead: &'static str,
    text: String,
}

/// The summary of what was said, in at most `room` bytes as JSON.
pub(super) fn summary(discarded: &[Message], room: usize) -> String {
    let (former, said) = match discarded.split_first() {
        Some((first, rest)) if summary_of(first).is_some() => (summary_of(first), rest),
        _ => (None, discarded),
    };
    let lines: Vec<Line> = said.iter().enumerate().flat_map(|(at, message)| lines(said, at, message)).collect();
    let header = Some(HEADER.to_owned()).filter(|header| cost(header) * 4 <= room);
    let room = room - header.as_deref().map_or(0, cost);
    let former: Vec<String> = former.into_iter().flat_map(str::lines).map(flat).filter(is_worth_keeping).collect();
    let former_cost: usize = former.iter().map(|line| cost(line)).sum();
    let chosen = chosen(&lines, room - former_cost.min(room / FORMER_PART));
    let chosen_cost: usize = chosen.iter().map(|line| cost(line)).sum();
    let former = beginning(former, room - chosen_cost);
    header.into_iter().chain(former).chain(chosen).collect::<Vec<_>>().join("\n")
}

/// Not what every such summary says of itself.
fn is_worth_keeping(line: &String) -> bool {
    !line.is_empty() && line != HEADER && line != GAP
}

/// The lines of a message: what was asked, what was called and what came of it, what was answered.
fn lines(said: &[Message], at: usize, message: &Message) -> Vec<Line> {
    let line = |is_prompt: bool, lead: &'static str, text: &str| Line { is_prompt, lead, text: flat(text) };
    match message {
        Message::User { content } => vec![line(true, "User: ", &content.excerpt())],
        Message::Assistant { content } => vec![line(false, "Answer: ", &content.excerpt())],
        Message::BlockAssistant { blocks, .. } => {
            let text = |block: &Block| match block {
                Block::Text { text } if !text.is_empty() => Some(line(false, "Answer: ", &text.excerpt())),
                Block::Text { .. } | Block::Reasoning { .. } | Block::ToolCall(_) => None,
            };
            blocks.iter().filter_map(text).collect()
        }
        Message::ToolResults { results } => {
            let asked = at.checked_sub(1).map(|at| &said[at]);
            results.iter().map(|result| line(false, "- ", &called(asked, result))).collect()
        }
        Message::System { .. } | Message::SystemReminder { .. } | Message::Pin { .. } => Vec::new(),
    }
}

/// What was called with what, and what came of it.
fn called(asked: Option<&Message>, result: &ToolResult) -> String {
    let call = asked.into_iter().flat_map(Message::tool_calls).find(|call| call.call_id == result.call_id);
    let arguments = call.map_or("", |call| call.arguments.as_str());
    let outcome = if result.is_error { "failed" } else { "ok" };
    format!("{} {} {outcome}: {}", result.name, excerpt(&flat(arguments), 200), result.content.excerpt())
}

/// The lines as long as they can be with all of them there; where that is too much, the oldest and the newest.
fn chosen(lines: &[Line], room: usize) -> Vec<String> {
    let mut written = Vec::new();
    for limit in LINE_BYTES {
        written = lines.iter().map(|line| format!("{}{}", line.lead, excerpt(&line.text, limit))).collect();
        if written.iter().map(|line| cost(line)).sum::<usize>() <= room {
            return written;
        }
    }
    let mut is_chosen = vec![false; lines.len()];
    let mut left = room;
    // Half of the room is for what people asked; what is left of it goes to the rest.
    for (prompts_only, reserved) in [(true, room / 2), (false, 0)] {
        for at in from_both_ends(lines.len()) {
            let is_due = !is_chosen[at] && (lines[at].is_prompt || !prompts_only);
            // A line that is not chosen may need a mark in its place, in each gap once.
            let price = cost(&written[at]) + cost(GAP);
            if is_due && left.saturating_sub(reserved) >= price {
                (is_chosen[at], left) = (true, left - price);
            }
        }
    }
    with_gaps(written, &is_chosen)
}

/// 0, the last, 1, the last but one, and so on.
fn from_both_ends(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |nth| if nth % 2 == 0 { nth / 2 } else { count - 1 - nth / 2 })
}

/// The chosen lines with a mark in each gap that has one before it.
fn with_gaps(written: Vec<String>, is_chosen: &[bool]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (line, is_chosen) in written.into_iter().zip(is_chosen) {
        if *is_chosen {
            lines.push(line);
        } else if lines.last().is_some_and(|last| last != GAP) {
            lines.push(GAP.to_owned());
        }
    }
    lines
}

/// The first of these lines that fit; where not even one does, its beginning.
fn beginning(lines: Vec<String>, room: usize) -> Vec<String> {
    let mut left = room;
    let mut kept = Vec::new();
    for line in lines {
        if cost(&line) > left {
            let part = excerpt(&line, left.saturating_sub(cost("")) / 2);
            kept.extend(Some(part).filter(|part| kept.is_empty() && !part.is_empty() && cost(part) <= left));
            break;
        }
        left -= cost(&line);
        kept.push(line);
    }
    kept
}

/// Bytes of a line as JSON, its end included.
fn cost(line: &str) -> usize {
    let of = |character: char| if matches!(character, '"' | '\\') { 2 } else { character.len_utf8() };
    line.chars().map(of).sum::<usize>() + 2
}

/// A text on one line, without control characters.
fn flat(text: &str) -> String {
    let words = text.split(|character: char| character.is_whitespace() || character.is_control());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The beginning of a line, and of the rest the words that tell the most.
fn excerpt(line: &str, limit: usize) -> String {
    const MARK: &str = " ...";
    if line.len() <= limit {
        return line.to_owned();
    }
    let head_end = line.floor_char_boundary(limit * 3 / 5);
    let head_end = line[..head_end].rfind(' ').unwrap_or(head_end);
    let mut excerpt = format!("{}{MARK}", &line[..head_end]);
    for word in line[head_end..].split(' ').filter(|word| is_telling(word)) {
        if excerpt.len() + 4 > limit {
            break;
        }
        if excerpt.len() + 1 + word.len() <= limit && !excerpt.contains(word) {
            excerpt.extend([" ", word]);
        }
    }
    if excerpt.len() > limit { String::new() } else { excerpt }
}

/// Whether a word is likely a path, a number, an id or a name of code.
fn is_telling(word: &str) -> bool {
    let is_mark = |character: char| character.is_ascii_digit() || "/_#=".contains(character);
    (3..=WORD_BYTES_MAX).contains(&word.len()) && (word.contains(is_mark) || word.contains("::"))
}
