//! A turn for people: its text as it comes, and short lines about other events.
//!
//! No piece of text is shown twice or left out: the whole message has what deltas lost. No excerpt of an answer is shown:
//! [`make_whole`] comes first.

use meerkat_service::{
    SessionError,
    follow::Shown,
    session::{
        event::{Event, ToolOutcome},
        message::{Block, Body},
    },
};
use serde_json::Value;
use tokio::time::Duration;

use super::calls::{Calls, folded};

use crate::{
    error::CliError,
    output::{Filter, Output, Progress},
    render::{ending, events::human_line, markdown::Markdown},
};

/// Output while a turn runs.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Show {
    /// The model's text on standard output, and other events on standard error.
    Text,
    /// Every event's line on standard output.
    Events,
    /// Nothing.
    Nothing,
}

/// State of a turn's output.
pub(super) struct View {
    pub(super) out: Output,
    pub(super) show: Show,
    filter: Filter,
    /// Colours of the text, if it has any.
    markdown: Option<Markdown>,
    /// True if the turn's answer is JSON: it is shown at its end, and no text before.
    pub(super) hides_text: bool,
    /// Current step, and what was shown of its text.
    step: u64,
    shown: Shown,
    has_said: bool,
    has_thought: bool,
    /// True if the line has text and has not ended.
    is_in_text: bool,
    is_in_reasoning: bool,
    /// Progress of a running compaction, until another line is shown.
    compacting: Option<Progress>,
    /// Tool calls of the step.
    pub(super) calls: Calls,
}

/// Replaces references to blobs by the model's texts.
pub(super) async fn make_whole(
    event: &mut Event,
    whole: impl AsyncFn(&Body) -> Result<String, SessionError>,
) -> Result<(), SessionError> {
    let bodies: Vec<&mut Body> = match event {
        Event::AssistantMessage(message) => {
            let texts = message.blocks.iter_mut().filter_map(|block| match block {
                Block::Text { text } | Block::Reasoning { text, .. } => Some(text),
                Block::ToolCall(_) => None,
            });
            texts.collect()
        }
        Event::PartialText(partial) => vec![&mut partial.text],
        _ => Vec::new(),
    };
    for body in bodies {
        if matches!(body, Body::Blob(_)) {
            *body = Body::Inline(whole(body).await?);
        }
    }
    Ok(())
}

impl View {
    pub(super) fn new(out: Output, show: Show, with_markdown: bool) -> Self {
        Self {
            filter: out.filter(),
            markdown: (with_markdown && out.colours_text()).then(Markdown::default),
            calls: Calls::new(&out),
            out,
            show,
            hides_text: false,
            step: u64::MAX,
            shown: Shown::default(),
            has_said: false,
            has_thought: false,
            is_in_text: false,
            is_in_reasoning: false,
            compacting: None,
        }
    }

    /// Shows a live event.
    pub(super) fn live(&mut self, event: &Value, line: &str) -> Result<(), CliError> {
        if self.show != Show::Text {
            return Ok(());
        }
        match event["type"].as_str() {
            Some("text_delta") => self.delta(event),
            Some("reasoning_delta") => {
                self.enter(event["step"].as_u64().unwrap_or(0));
                self.think(event["text"].as_str().unwrap_or_default())
            }
            Some("tool_progress") if self.calls.are_shown() => {
                self.end_line()?;
                serde_json::from_str(line).iter().for_each(|progress| self.calls.progress(progress));
                Ok(())
            }
            Some("retrying") => {
                let pause = event["wait_ms"].as_u64().unwrap_or(0);
                self.calls.retry_in(Duration::from_millis(pause));
                self.note(human_line(line))
            }
            _ => self.note(human_line(line)),
        }
    }

    /// Shows a durable event.
    pub(super) fn durable(&mut self, event: &Event) -> Result<(), CliError> {
        if self.show != Show::Text {
            return Ok(());
        }
        match event {
            Event::AssistantMessage(message) => {
                self.calls.has_answered();
                let (mut thought, mut said) = (String::new(), String::new());
                for block in &message.blocks {
                    match block {
                        Block::Text { text } => said.push_str(&text.excerpt()),
                        Block::Reasoning { text, .. } => thought.push_str(&text.excerpt()),
                        Block::ToolCall(_) => {}
                    }
                }
                self.enter(message.step.into());
                // A turn may outrun its deltas: then its reasoning was not shown yet.
                if !self.has_said && !self.has_thought {
                    self.think(&thought)?;
                }
                self.calls.propose(message.blocks.iter().filter_map(|block| match block {
                    Block::ToolCall(call) => Some(call),
                    Block::Text { .. } | Block::Reasoning { .. } => None,
                }));
                self.rest_of_step(message.step.into(), &said)
            }
            Event::ToolStarted(started) if self.calls.are_shown() => {
                self.end_line()?;
                self.calls.start(&started.call_id);
                Ok(())
            }
            Event::ToolFinished(finished) if self.calls.are_shown() => {
                let lines = self.calls.finish(finished);
                self.end_line()?;
                lines.iter().for_each(|line| self.out.note(line));
                self.calls.draw();
                Ok(())
            }
            Event::DelegateStarted(started) => {
                self.calls.start(&started.call_id);
                let title = self.calls.title_of(&started.call_id).unwrap_or("delegate").to_owned();
                self.note(Some(format!("{title}: the sub-agent {} works", ending(&started.child))))?;
                self.calls.draw();
                Ok(())
            }
            Event::ToolStarted(started) => {
                let runs = format!("{} runs", self.calls.title_of(&started.call_id).unwrap_or(&started.name));
                self.note(Some(runs))
            }
            Event::ToolFinished(finished) => {
                self.note(Some(event.human_line()))?;
                if matches!(finished.outcome, ToolOutcome::Failed | ToolOutcome::NotRun) {
                    folded(&finished.output).iter().skip(1).for_each(|line| self.out.note(line));
                }
                Ok(())
            }
            Event::PartialText(partial) => self.rest_of_step(partial.step.into(), &partial.text.excerpt()),
            // The question says it, at its time.
            Event::ApprovalRequested(_) if self.out.can_ask => self.wait_for_decision(),
            Event::TurnStarted(started) => {
                self.hides_text = started.output.is_some();
                self.calls.ask_model(&started.model);
                Ok(())
            }
            Event::CompactionCompleted(_) | Event::CompactionFailed(_) => {
                self.calls.ask_again();
                self.note(Some(event.human_line()))
            }
            Event::ApprovalDecided(_) => {
                self.calls.decided();
                self.note(Some(event.human_line()))
            }
            Event::ApprovalRequested(_)
            | Event::ToolAllowed(_)
            | Event::CallRequested(_)
            | Event::CallAnswered(_)
            | Event::BudgetWarning(_)
            | Event::SummaryUnused(_)
            | Event::CompactionUndone(_)
            | Event::OutputRefused(_)
            | Event::TurnQueued(_)
            | Event::TurnEdited(_)
            | Event::TurnSteered(_) => self.note(Some(event.human_line())),
            Event::CompactionStarted(_) => {
                self.end_line()?;
                self.calls.has_answered();
                let mut progress = self.out.progress();
                progress.show(0, 1, &event.human_line());
                self.compacting = Some(progress);
                Ok(())
            }
            Event::SessionCreated(_)
            | Event::SessionForked(_)
            | Event::SessionImported(_)
            | Event::SessionUpdated(_)
            | Event::SessionArchived(_)
            | Event::SessionUnarchived(_)
            | Event::ClientToolsChanged(_)
            | Event::LogTailRepaired(_)
            | Event::RecordsLost(_)
            | Event::HistorySnapshot(_)
            | Event::ContextRebuilt(_)
            | Event::HistoryGiven(_)
            | Event::TurnDequeued(_)
            | Event::SteeringEntered(_)
            | Event::ReminderSet(_)
            | Event::ReminderCleared(_)
            | Event::Pinned(_)
            | Event::Unpinned(_)
            | Event::TurnCompleted(_)
            | Event::TurnFailed(_)
            | Event::TurnInterrupted(_)
            | Event::Unknown(_) => Ok(()),
        }
    }

    /// A person is asked next.
    pub(super) fn wait_for_decision(&mut self) -> Result<(), CliError> {
        self.calls.ask_person();
        self.end_line()
    }

    /// Shows a short line of its own.
    fn note(&mut self, line: Option<String>) -> Result<(), CliError> {
        let Some(line) = line else { return Ok(()) };
        self.compacting = None;
        self.end_line()?;
        self.out.note(&line);
        Ok(())
    }

    fn delta(&mut self, event: &Value) -> Result<(), CliError> {
        let number = |name: &str| event[name].as_u64().unwrap_or(0);
        self.enter(number("step"));
        let (block, text) = (u32::try_from(number("block")), event["text"].as_str().unwrap_or_default());
        let is_next = self.shown.takes(block.unwrap_or(u32::MAX), number("offset"), text);
        if is_next { self.print(text) } else { Ok(()) }
    }

    fn enter(&mut self, step: u64) {
        if step != self.step {
            (self.step, self.shown, self.has_said, self.has_thought) = (step, Shown::default(), false, false);
        }
    }

    fn think(&mut self, text: &str) -> Result<(), CliError> {
        if text.is_empty() {
            return Ok(());
        }
        self.has_thought = true;
        self.calls.has_answered();
        if !self.is_in_reasoning {
            self.end_line()?;
            self.is_in_reasoning = true;
        }
        self.out.reasoning(&self.filter.push(text));
        Ok(())
    }

    /// Shows the rest of a step's whole text.
    pub(super) fn rest_of_step(&mut self, step: u64, text: &str) -> Result<(), CliError> {
        self.enter(step);
        if self.show != Show::Text {
            return Ok(());
        }
        let Some(rest) = self.shown.rest(text) else {
            return Err(SessionError::Internal("an answer differs from what was shown as it came".to_owned()).into());
        };
        self.print(rest)?;
        self.end_line()?;
        self.markdown = self.markdown.take().map(|_| Markdown::default());
        Ok(())
    }

    fn print(&mut self, text: &str) -> Result<(), CliError> {
        if self.is_in_reasoning {
            self.end_line()?;
        }
        self.has_said |= !text.is_empty();
        if self.hides_text {
            return Ok(());
        }
        let text = self.filter.push(text);
        if !text.is_empty() {
            self.calls.has_answered();
            self.is_in_text = !text.ends_with('\n');
            match &mut self.markdown {
                Some(markdown) => self.out.text(&markdown.push(&text))?,
                None => self.out.text(&text)?,
            }
        }
        Ok(())
    }

    /// Shows the JSON of an answer.
    pub(super) fn answer(&mut self, json: &str) -> Result<(), CliError> {
        let text = self.filter.push(json);
        Ok(self.out.text(&(text + "\n"))?)
    }

    /// Ends a line of text or reasoning that has not ended.
    pub(super) fn end_line(&mut self) -> Result<(), CliError> {
        self.filter = self.out.filter();
        if std::mem::take(&mut self.is_in_reasoning) {
            self.out.reasoning("\n");
        }
        if std::mem::take(&mut self.is_in_text) {
            let held = self.markdown.as_mut().map(Markdown::end_line).unwrap_or_default();
            self.out.text(&(held + "\n"))?;
        }
        Ok(())
    }
}
