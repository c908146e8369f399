//! The cut through a context: which messages are retained.
//!
//! A turn begins at a user message. If the model is to answer next, the last turn is active: the message that it is to
//! answer is always retained, and it counts in steps, each an answer with its results. Earlier turns count whole. So
//! calls stay with their results, and a long loop of tool calls shrinks too. A user message behind results was steered
//! into the active turn, or the turn before it was given up: the model has not answered these results, so their steps
//! count as steps of the active turn, and its first prompt is retained too if there is room.

use std::collections::HashSet;

use crate::{
    compaction::{is_state, message_bytes, summary_of},
    session::message::Message,
};

/// Retained part of a context.
pub(super) struct Cut<'a> {
    messages: &'a [Message],
    /// Indexes of the conversation's messages. The fields below are indexes into it.
    said: Vec<usize>,
    /// Beginning of each turn; the first may lack its prompt.
    turns: Vec<usize>,
    /// The prompts of the active turn that are retained: the first one and the newest.
    prompts: Vec<usize>,
    /// Everything from this index on is retained.
    from: usize,
    /// The turn that the cut moved back to.
    anchor: Option<usize>,
}

impl<'a> Cut<'a> {
    /// Retains `units` units if they fit in `limit` bytes with everything else that is retained.
    pub(super) fn new(
        messages: &'a [Message],
        summary_bytes: u64,
        units: usize,
        limit: u64,
        prefers_anchors: bool,
    ) -> Self {
        let former = former_summary(messages);
        let is_said = |at: &usize| {
            !is_state(&messages[*at]) && !matches!(messages[*at], Message::System { .. }) && Some(*at) != former
        };
        let said: Vec<usize> = (0..messages.len()).filter(is_said).collect();
        // Rule 4: a turn begins at a user message, and what follows belongs to it.
        let is_begin = |at: &usize| *at == 0 || matches!(messages[said[*at]], Message::User { .. });
        let turns: Vec<usize> = (0..said.len()).filter(is_begin).collect();
        let from = said.len();
        let mut cut = Self { messages, said, turns, prompts: Vec::new(), from, anchor: None };
        let beginnings = cut.beginnings();
        let is_fixed = |message: &&Message| is_state(message) || matches!(message, Message::System { .. });
        let fixed: u64 = messages.iter().filter(is_fixed).map(message_bytes).sum();
        let room = limit.saturating_sub(fixed + summary_bytes);
        cut.keep(&beginnings, units, room);
        if prefers_anchors {
            let former = former.map_or(0, |at| message_bytes(&messages[at]));
            cut.move_back(units, room, summary_bytes.saturating_sub(former));
        }
        cut
    }

    /// Returns true if the message at this index is retained.
    pub(super) fn keeps(&self, at: usize) -> bool {
        self.said.binary_search(&at).is_ok_and(|at| at >= self.from || self.prompts.contains(&at))
    }

    /// The message that begins the turn which the cut moved back to.
    pub(super) fn anchor(&self) -> Option<usize> {
        self.anchor.map(|at| self.said[at])
    }

    fn message(&self, at: usize) -> &'a Message {
        &self.messages[self.said[at]]
    }

    fn is_user(&self, at: usize) -> bool {
        matches!(self.message(at), Message::User { .. })
    }

    /// Finds the beginnings of the units, the newest first: steps of the active turn, then whole turns. It also sets
    /// the active turn's prompts.
    fn beginnings(&mut self) -> Vec<usize> {
        if !awaits_answer(self.messages) {
            return self.turns.iter().rev().copied().collect();
        }
        let Some(&newest) = self.turns.last() else { return Vec::new() };
        let is_behind_results = |begin: usize| {
            let before = (0..begin).rev().find(|at| !self.is_user(*at));
            before.is_some_and(|at| matches!(self.message(at), Message::ToolResults { .. }))
        };
        let joined = self.turns[1..].iter().rev().take_while(|begin| is_behind_results(**begin)).count();
        self.turns.truncate(self.turns.len() - joined);
        let (begin, older) = (self.turns[self.turns.len() - 1], &self.turns[..self.turns.len() - 1]);
        self.prompts = [begin, newest].into_iter().filter(|at| self.is_user(*at)).collect();
        self.prompts.dedup();
        let first = begin + usize::from(self.is_user(begin));
        let is_step = |at: &usize| {
            let is_answer = !matches!(self.message(*at), Message::ToolResults { .. } | Message::User { .. });
            is_answer || *at == first
        };
        let steps: Vec<usize> = (first..self.said.len()).filter(is_step).collect();
        steps.into_iter().rev().chain(older.iter().rev().copied()).collect()
    }

    /// Rule 3: retains units from the newest to the oldest, as many as allowed and as fit. The newest is always
    /// retained, or a prompt that is behind it.
    fn keep(&mut self, beginnings: &[usize], units: usize, room: u64) {
        let end = self.said.len();
        let is_bare = self.prompts.last().is_some_and(|prompt| prompt + 1 == end);
        let unit = beginnings.first().map_or(0, |begin| self.bytes(*begin, end));
        if self.prompts.len() > 1 && self.prompt_bytes() + unit > room {
            self.prompts.remove(0);
        }
        let mut bytes = self.prompt_bytes();
        if let (Some(prompt), true) = (self.prompts.last(), is_bare) {
            self.from = *prompt;
        }
        for (nth, &begin) in beginnings.iter().take(units.max(1)).enumerate() {
            bytes += self.bytes(begin, self.from);
            if bytes > room && (nth > 0 || is_bare) {
                break;
            }
            self.from = begin;
        }
    }

    /// Bytes from one place up to another, the active turn's retained prompts left out.
    fn bytes(&self, from: usize, to: usize) -> u64 {
        (from..to).filter(|at| !self.prompts.contains(at)).map(|at| message_bytes(self.message(at))).sum()
    }

    fn prompt_bytes(&self) -> u64 {
        self.prompts.iter().map(|at| message_bytes(self.message(*at))).sum()
    }

    /// Moves the cut back to the nearest anchor, if the context stays smaller than it was by that.
    fn move_back(&mut self, turns_max: usize, room: u64, summary_growth: u64) {
        // Within the active turn there is nothing to move back to.
        let prompt = self.prompts.first().copied();
        let active = prompt.filter(|prompt| self.from == prompt + 1).unwrap_or(self.from);
        let Ok(first) = self.turns.binary_search(&active) else { return };
        if prompt != Some(active) && self.is_anchor(first) {
            return;
        }
        let Some(anchor) = (first.saturating_sub(turns_max)..first).rev().find(|turn| self.is_anchor(*turn)) else {
            return;
        };
        let begin = self.turns[anchor];
        let is_smaller = self.bytes(0, begin) > summary_growth;
        if is_smaller && self.bytes(begin, self.said.len()) + self.prompt_bytes() <= room {
            (self.from, self.anchor) = (begin, Some(begin));
        }
    }

    /// Returns true if a turn finished a piece of work or resolved an error.
    fn is_anchor(&self, turn: usize) -> bool {
        let of = |turn: usize| {
            let end = self.turns.get(turn + 1).copied().unwrap_or(self.said.len());
            (self.turns[turn]..end).map(|at| self.message(at))
        };
        if !of(turn).next().is_some_and(|message| matches!(message, Message::User { .. })) {
            return false;
        }
        let mut failing = HashSet::new();
        if let Some(before) = turn.checked_sub(1) {
            of(before).for_each(|message| _ = resolves(message, &mut failing));
        }
        of(turn).any(|message| resolves(message, &mut failing)) || is_finished(of(turn))
    }
}

/// Returns true if a tool succeeds here that had failed before; it is then no longer failing.
fn resolves<'a>(message: &'a Message, failing: &mut HashSet<&'a str>) -> bool {
    let Message::ToolResults { results } = message else { return false };
    let mut is_resolved = false;
    for result in results.iter().filter(|result| !result.is_error) {
        is_resolved |= failing.remove(result.name.as_str());
    }
    failing.extend(results.iter().filter(|result| result.is_error).map(|result| result.name.as_str()));
    is_resolved
}

/// Returns true if tools were called, all of them succeeded, and an answer followed.
fn is_finished<'a>(turn: impl Iterator<Item = &'a Message>) -> bool {
    let (mut has_results, mut last) = (false, None);
    for message in turn {
        if let Message::ToolResults { results } = message {
            if results.iter().any(|result| result.is_error) {
                return false;
            }
            has_results = true;
        }
        last = Some(message);
    }
    has_results && last.is_some_and(is_answer)
}

/// Finds the former summary: the user message right behind the system prompt that begins like one. A prompt that begins
/// so and awaits its answer is not a summary. An answered first prompt that begins with
/// [`SUMMARY_PREFIX`](crate::compaction::SUMMARY_PREFIX) cannot be told from a summary: it leaves with the rest and
/// stays in the history.
fn former_summary(messages: &[Message]) -> Option<usize> {
    let first = messages.iter().position(|message| !matches!(message, Message::System { .. }))?;
    summary_of(&messages[first])?;
    let is_prompt = |message: &Message| matches!(message, Message::User { .. });
    let behind = &messages[first + 1..];
    // It is alone if the turn behind it was dropped.
    let is_alone = behind.iter().all(is_state);
    (is_alone || behind.iter().any(is_prompt) || !awaits_answer(messages)).then_some(first)
}

/// Returns true if the model is to answer next.
fn awaits_answer(messages: &[Message]) -> bool {
    messages.last().is_some_and(|message| !is_answer(message))
}

/// Returns true for an answer without calls, which ends a turn.
fn is_answer(message: &Message) -> bool {
    match message {
        Message::Assistant { .. } => !message.is_cut_off(),
        Message::BlockAssistant { .. } => message.tool_calls().next().is_none(),
        _ => false,
    }
}
