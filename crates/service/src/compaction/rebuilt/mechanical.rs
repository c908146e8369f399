//! A summary without a model: from each message the sentences that are hard to find again, then its beginning.
//!
//! Such sentences contain a path, a number, an id or a name from code, or they deny, decide or leave something open.
//! Equal messages always give equal summaries.

use std::collections::{BTreeSet, HashSet};

use crate::{
    compaction::summary_of,
    session::message::{Block, Message, ToolResult},
};

/// First line.
const HEADER: &str = "No model wrote this summary: it is parts of what was said, the oldest first.";

/// Mark for left-out lines.
const GAP: &str = "[...]";

/// Bytes that a prompt, an answer or a call may have; the first that all lines fit with is taken.
const LINE_BYTES: [usize; 6] = [2000, 1000, 500, 250, 120, 70];

/// Bytes of a line if not all of them fit.
const TELLING_BYTES: usize = 120;

/// Share of the room that is reserved for tools and models beside prompts: one in so many.
const REST_PART: usize = 4;

/// Bytes of a word that may be kept without its line.
const WORD_BYTES_MAX: usize = 80;

/// Words that deny, decide, or leave something open.
const TELLING_WORDS: [&str; 9] = ["never", "not", "cannot", "must", "decided", "agreed", "open", "todo", "still"];

/// A message, or a part of one, as a line.
struct Line {
    /// True for a prompt, or for a line of the former summary.
    is_prompt: bool,
    lead: &'static str,
    text: String,
}

/// Summarises messages in at most `room` bytes of JSON.
pub(super) fn summary(discarded: &[Message], room: usize) -> String {
    let (former, said) = match discarded.split_first() {
        Some((first, rest)) if summary_of(first).is_some() => (summary_of(first), rest),
        _ => (None, discarded),
    };
    let former = former.into_iter().flat_map(str::lines).map(flat).filter(is_worth_keeping);
    let former = former.map(|text| Line { is_prompt: true, lead: "", text });
    let said = said.iter().enumerate().flat_map(|(at, message)| lines(said, at, message));
    let lines: Vec<Line> = former.chain(said).collect();
    let header = Some(HEADER.to_owned()).filter(|header| cost(header) * 4 <= room);
    let room = room - header.as_deref().map_or(0, cost);
    header.into_iter().chain(chosen(&lines, room)).collect::<Vec<_>>().join("\n")
}

/// Returns false for lines that every mechanical summary has.
fn is_worth_keeping(line: &String) -> bool {
    !line.is_empty() && line != HEADER && line != GAP
}

/// Turns a message into lines: prompts, calls with their outcomes, and answers.
fn lines(said: &[Message], at: usize, message: &Message) -> Vec<Line> {
    let line = |is_prompt: bool, lead: &'static str, text: &str| Line { is_prompt, lead, text: flat(text) };
    match message {
        Message::User { .. } => vec![line(true, "User: ", &message.text())],
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

/// Describes a call and its outcome.
fn called(asked: Option<&Message>, result: &ToolResult) -> String {
    let call = asked.into_iter().flat_map(Message::tool_calls).find(|call| call.call_id == result.call_id);
    let arguments = call.map_or("", |call| call.arguments.as_str());
    let outcome = if result.is_error { "failed" } else { "ok" };
    format!("{} {} {outcome}: {}", result.name, excerpt(&flat(arguments), 200), result.content.excerpt())
}

/// Chooses lines: all of them at the longest length that fits, or else the most telling of the oldest and the newest.
fn chosen(lines: &[Line], room: usize) -> Vec<String> {
    for limit in LINE_BYTES {
        let written: Vec<String> = lines.iter().map(|line| line.written(limit)).collect();
        if written.iter().map(|line| cost(line)).sum::<usize>() <= room {
            return written;
        }
    }
    let told: Vec<Option<String>> = lines.iter().map(Line::told).collect();
    let written = lines.iter().zip(&told).map(|(line, told)| told.clone().unwrap_or_else(|| line.written(70)));
    let written: Vec<String> = written.collect();
    let is_told = |at: usize| told[at].is_some();
    let passes: [(&dyn Fn(usize) -> bool, usize); 4] = [
        (&|at| is_told(at) && lines[at].is_prompt, room / REST_PART),
        (&is_told, 0),
        (&|at| lines[at].is_prompt, 0),
        (&|_| true, 0),
    ];
    let (mut chosen, mut left) = (BTreeSet::new(), room);
    for (is_due, reserved) in passes {
        for at in from_both_ends(lines.len()) {
            let price = cost(&written[at]) + gaps_more(&chosen, at, lines.len()) * cost(GAP);
            if is_due(at) && !chosen.contains(&at) && left.saturating_sub(reserved) >= price {
                chosen.insert(at);
                left -= price;
            }
        }
    }
    match lines.first() {
        // Better the beginning of one line than nothing.
        Some(line) if chosen.is_empty() => {
            let part = line.written(room.saturating_sub(cost("")) / 2);
            Some(part).filter(|part| !part.is_empty() && cost(part) <= room).into_iter().collect()
        }
        _ => with_gaps(written, &chosen),
    }
}

/// Counts the additional marks if this line is chosen too: each gap behind a line has one.
fn gaps_more(chosen: &BTreeSet<usize>, at: usize, end: usize) -> usize {
    let before = chosen.range(..at).next_back();
    let after = chosen.range(at..).next().copied().unwrap_or(end);
    let gap = |from: usize, to: usize| usize::from(to - from > 1);
    let had = before.map_or(0, |before| gap(*before, after));
    (before.map_or(0, |before| gap(*before, at)) + gap(at, after)).saturating_sub(had)
}

/// 0, the last, 1, the last but one, and so on.
fn from_both_ends(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |nth| if nth % 2 == 0 { nth / 2 } else { count - 1 - nth / 2 })
}

/// The chosen lines with a mark in each gap that has one before it.
fn with_gaps(written: Vec<String>, chosen: &BTreeSet<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (at, line) in written.into_iter().enumerate() {
        if chosen.contains(&at) {
            lines.push(line);
        } else if lines.last().is_some_and(|last| last != GAP) {
            lines.push(GAP.to_owned());
        }
    }
    lines
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

impl Line {
    /// Returns the line with at most `limit` bytes behind its lead.
    fn written(&self, limit: usize) -> String {
        format!("{}{}", self.lead, excerpt(&self.text, limit))
    }

    /// Returns its telling sentences, if it has any.
    fn told(&self) -> Option<String> {
        let has_any = sentences(&self.text).any(is_telling_sentence);
        let told = || telling(&self.text, TELLING_BYTES, false).unwrap_or_else(|| words(&self.text, TELLING_BYTES));
        has_any.then(|| format!("{}{}", self.lead, told()))
    }
}

/// Shortens a line: its telling sentences come first, or else its beginning.
fn excerpt(line: &str, limit: usize) -> String {
    if line.len() <= limit {
        return line.to_owned();
    }
    telling(line, limit, true).unwrap_or_else(|| words(line, limit))
}

/// Returns the telling sentences of a line that fit, each once, perhaps with others; `None` if there are none.
fn telling(line: &str, limit: usize, has_others: bool) -> Option<String> {
    let sentences: Vec<(bool, &str)> = sentences(line).map(|it| (is_telling_sentence(it), it)).collect();
    let (mut seen, mut kept, mut left) = (HashSet::new(), BTreeSet::new(), limit + 1);
    for is_due in [true, false] {
        for (at, (is_telling, sentence)) in sentences.iter().enumerate() {
            if *is_telling == is_due && sentence.len() < left && seen.insert(*sentence) {
                left -= sentence.len() + 1;
                kept.insert(at);
            }
        }
        if kept.is_empty() || !has_others {
            break;
        }
    }
    let told: Vec<&str> = kept.iter().map(|&at| sentences[at].1).collect();
    (!told.is_empty()).then(|| told.join(" "))
}

/// The sentences of a line, each with its mark.
fn sentences(line: &str) -> impl Iterator<Item = &str> {
    let ends = line.match_indices(' ').map(|(at, _)| at).filter(|at| line[..*at].ends_with(['.', '!', '?', ';']));
    let mut begin = 0;
    ends.chain([line.len()]).map(move |end| line[std::mem::replace(&mut begin, end)..end].trim())
}

/// Returns true if a sentence is hard to find again.
fn is_telling_sentence(sentence: &str) -> bool {
    sentence.split(' ').any(|word| {
        let bare = word.trim_matches(|character: char| !character.is_alphanumeric());
        is_telling(word) || bare.ends_with("n't") || TELLING_WORDS.iter().any(|known| bare.eq_ignore_ascii_case(known))
    })
}

/// The beginning of a line, and of the rest the words that tell the most.
fn words(line: &str, limit: usize) -> String {
    const MARK: &str = " ...";
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

/// Returns true if a word is likely a path, a number, an id or a name from code.
fn is_telling(word: &str) -> bool {
    let is_mark = |character: char| character.is_ascii_digit() || "/_#=".contains(character);
    (3..=WORD_BYTES_MAX).contains(&word.len()) && (word.contains(is_mark) || word.contains("::"))
}
