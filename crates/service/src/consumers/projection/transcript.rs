//! A session as Markdown: its messages, turn by turn. It only grows at its end.

use std::{fmt::Write as _, io};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{Seq, SessionId, TurnNumber},
    service::HistoryItem,
    session::{
        HistoryFold,
        event::{Event, Record},
        message::{Attached, Block, Body, Message},
    },
    store::{Frame, restore::decode},
    tool::fenced,
};

/// Parent of a fork, and the last record that both have. A fork's files do not repeat them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parent {
    pub(crate) session_id: SessionId,
    pub(crate) seq: Seq,
}

/// Transcript of one session.
pub(super) struct Transcript {
    session_id: SessionId,
    /// Parent whose transcript has what both have.
    parent: Option<Parent>,
    fold: HistoryFold,
    /// Last record that was read.
    read: Seq,
    /// Seq up to which the messages are written already.
    written: Seq,
    /// Last turn with a heading.
    turn: Option<TurnNumber>,
    /// Record before a step that lacks results, or before a cut-off answer whose turn has not ended.
    open_after: Option<Seq>,
    /// Prompts of queued turns, and steered texts that are not in the context yet.
    waiting: Vec<Record>,
}

impl Transcript {
    /// Continues a transcript that was written up to a record and a turn, and reads on after an earlier record.
    pub(super) fn new(
        session_id: SessionId,
        parent: Option<Parent>,
        written: Seq,
        read: Seq,
        turn: Option<TurnNumber>,
    ) -> Self {
        let (fold, read) = (HistoryFold::default(), read.min(written));
        Self { session_id, parent, fold, read, written, turn, open_after: None, waiting: Vec::new() }
    }

    /// Returns the last record that was read.
    pub(super) const fn read_to(&self) -> Seq {
        self.read
    }

    /// Returns the state for a checkpoint: the seq after which to read on, and the last turn.
    pub(super) fn state(&self) -> (Seq, Option<TurnNumber>) {
        let waits = self.waiting.first().map(|record| record.seq - 1);
        let open = self.open_after.into_iter().chain(waits).min();
        (open.unwrap_or(self.read), self.turn)
    }

    /// Reads the next record and writes what it completes. Returns true if it is left to the parent's files.
    pub(super) fn push(&mut self, frame: &Frame, out: &mut String) -> io::Result<bool> {
        let record = decode(frame).map_err(io::Error::other)?;
        let is_shared = self.parent.is_some_and(|parent| record.seq <= parent.seq);
        if self.written == 0 && self.read == 0 {
            _ = writeln!(out, "# Session {}", self.session_id);
        }
        if let Some(Parent { session_id, seq }) = self.parent
            && self.written.max(self.read) <= seq
            && !is_shared
        {
            let up_to = self.turn.map(|turn| format!(" up to turn {turn}")).unwrap_or_default();
            _ = writeln!(
                out,
                "\n*A fork: what was said before is in [{session_id}](../{session_id}/transcript.md){up_to}.*"
            );
        }
        let is_new = record.seq > self.written;
        let mut again = String::new();
        // Written records are read for what they began, and not written again.
        let out = if is_new && !is_shared { out } else { &mut again };
        let is_gap = record.seq > self.read + 1;
        self.read = record.seq;
        let said = self.said(&record);
        if let (Event::TurnStarted(_), Some(turn)) = (&record.event, record.turn) {
            if is_gap && self.turn.map_or(0, |last| last + 1) < turn {
                _ = write!(out, "\n*What was said before was removed by journal compaction.*\n");
            }
            if is_new {
                self.turn = Some(turn);
            }
            _ = write!(out, "\n## Turn {turn}\n\n*{}*\n", record.time);
        }
        // A history that was given follows the session's first event.
        if matches!(record.event, Event::HistoryGiven(_)) && record.seq == 2 {
            out.push_str("\n## Before the first turn\n");
        }
        if matches!(record.event, Event::PartialText(_)) {
            // The end of its turn makes it a message.
            self.open_after.get_or_insert(record.seq - 1);
        }
        for item in said.into_iter().flatten() {
            self.open_after = match &item.message {
                message if message.tool_calls().next().is_some() => Some(record.seq - 1),
                _ => None,
            };
            say(&item.message, out);
        }
        match &record.event {
            Event::TurnFailed(failed) => _ = write!(out, "\n*Failed: {}*\n", clean(&failed.error.message)),
            Event::TurnInterrupted(interrupted) => {
                _ = write!(out, "\n*Interrupted: {}.*\n", clean(&interrupted.reason));
            }
            _ => {}
        }
        Ok(is_shared)
    }

    /// Returns the messages that a record completes. A prompt that waited comes where it enters the context.
    fn said(&mut self, record: &Record) -> [Option<HistoryItem>; 2] {
        match &record.event {
            Event::TurnEdited(edited) if edited.prompt.is_some() => {
                self.waiting.retain(|waiting| waiting.turn != record.turn);
                self.waiting.push(record.clone());
            }
            Event::TurnQueued(_) | Event::TurnSteered(_) => self.waiting.push(record.clone()),
            // Damage may have taken the place of a text.
            Event::TurnDequeued(_) | Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_) => {
                self.waiting.retain(|waiting| waiting.turn != record.turn)
            }
            _ => {}
        }
        let item = self.fold.push(record);
        let Some(queued) = self.fold.queued_at() else { return [item, None] };
        let at = self.waiting.iter().position(|waiting| waiting.seq == queued);
        // A turn whose prompt was dropped has none.
        let waited = at.map_or_else(|| record.clone(), |at| self.waiting.remove(at));
        [item, self.fold.queued_prompt(&waited)]
    }
}

fn say(message: &Message, out: &mut String) {
    match message {
        Message::System { content } => part("System", content, out),
        Message::User { content, blocks } => {
            part("User", content, out);
            for (line, block) in Attached::lines(blocks).iter().zip(blocks) {
                let line = line.trim_start_matches('[').trim_end_matches(']');
                _ = write!(out, "\n[{}](blob:{})\n", linked(line), block.blob());
            }
        }
        Message::Assistant { content } => part("Assistant", content, out),
        Message::SystemReminder { kind, content } => part(&format!("Reminder {kind}"), content, out),
        Message::Pin { n, content } => part(&format!("Pin {n}"), content, out),
        Message::BlockAssistant { blocks, .. } => blocks.iter().for_each(|block| match block {
            Block::Text { text } => part("Assistant", text, out),
            Block::Reasoning { text, .. } if text.is_empty() => {}
            Block::Reasoning { text, .. } => part("Reasoning", text, out),
            Block::ToolCall(call) => {
                _ = write!(out, "\n### Call of `{}`\n", clean(&call.name));
                _ = write!(out, "\n{}\n", fenced("json", &clean(call.arguments.as_str())));
            }
        }),
        Message::ToolResults { results } => results.iter().for_each(|result| {
            let outcome = if result.is_error { "Error" } else { "Result" };
            _ = write!(out, "\n### {outcome} of `{}`\n", clean(&result.name));
            _ = write!(out, "\n{}\n", fenced("", &clean(&result.content.excerpt())));
        }),
    }
}

fn part(who: &str, content: &Body, out: &mut String) {
    _ = write!(out, "\n### {who}\n\n{}\n", clean(&content.excerpt()));
}

/// The text of a link, which a file's name with brackets must not end.
fn linked(text: &str) -> String {
    let escaped = |c: char| [Some('\\').filter(|_| matches!(c, '[' | ']' | '\\')), Some(c)];
    text.chars().filter(|c| !c.is_control()).flat_map(escaped).flatten().collect()
}

/// Removes control characters, which a terminal would obey.
fn clean(text: &str) -> String {
    text.chars().filter(|character| !character.is_control() || matches!(character, '\n' | '\t')).collect()
}
