//! A response made of a session's events: its items, and the pieces in which they came. Streams, answers and later reads
//! go through it, so that they cannot differ.
//!
//! It decides nothing: what it is given was recorded, or is shown live and recorded later. A model's message is its runs
//! of text and of reasoning, which are shown live, and then those of its calls that the caller is to run. A call that is
//! answered here, because its arguments are wrong for example, is no item.

use std::collections::BTreeSet;

use meerkat_service::{
    ErrorBody, SessionError, SessionService, TurnNumber,
    follow::turn::{record_at, whole},
    model::{StopReason, Usage},
    output::ANSWER_TOOL,
    service::TurnResult,
    session::{
        event::{AssistantMessage, Event, LiveEvent, PartialText, Record, TurnStarted},
        message::{Block, Body},
    },
};

use crate::{
    App,
    ids::{ResponseId, call_id_of},
    own::{Own, own},
    past::{Past, Records},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Message,
    Reasoning,
    /// A call of a tool: its id for clients, and the tool.
    Call {
        call_id: String,
        name: String,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// The step, and the place among its items: its runs come first, then its calls.
    pub(crate) at: (u32, usize),
    pub(crate) kind: Kind,
    /// Text, reasoning or arguments.
    pub(crate) text: String,
    pub(crate) is_done: bool,
}

/// Piece of the output as it comes; each names its item.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece {
    Opened(usize),
    More(usize, String),
    Closed(usize),
}

#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Completed(StopReason),
    /// All open calls wait for the caller.
    Waiting,
    Interrupted,
    Failed(Box<ErrorBody>),
}

/// Block of a step that is shown live.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shown {
    step: u32,
    block: u32,
    /// The item that it is in, and the bytes there before it.
    index: usize,
    before: u64,
}

/// A response, as far as it has come.
#[derive(Default)]
pub(crate) struct Unfold {
    pub(crate) id: ResponseId,
    pub(crate) own: Own,
    pub(crate) turn: TurnNumber,
    /// Terms of its turn; those of a turn in the queue are known when it starts.
    pub(crate) terms: Option<Box<TurnStarted>>,
    /// Milliseconds since 1970.
    pub(crate) begun_at: i64,
    /// When it ended, or if it waits, when the last call was requested.
    pub(crate) ended_at: Option<i64>,
    pub(crate) items: Vec<Item>,
    pub(crate) usage: Usage,
    pub(crate) ending: Option<Ending>,
    /// Calls of its messages that have no result yet, and those of them that wait for the caller.
    open_calls: BTreeSet<String>,
    requested: BTreeSet<String>,
    shown: Option<Shown>,
    /// An answer by a schema that may still be refused.
    held: Option<AssistantMessage>,
    has_answered: bool,
    /// Step of its last message.
    step: u32,
    /// What has come and was not handed out yet.
    pieces: Vec<Piece>,
}

impl Unfold {
    /// Begins a response of a session by the record that its id names.
    pub(crate) async fn begin(service: &dyn SessionService, id: ResponseId, own: Own) -> Result<Self, SessionError> {
        let unknown = || SessionError::ItemNotFound("response");
        let record = record_at(service, id.session_id, id.seq).await?.ok_or_else(unknown)?;
        let turn = record.turn.ok_or_else(unknown)?;
        let terms = match &record.event {
            Event::TurnStarted(started) => Some(Box::new(started.clone())),
            Event::TurnQueued(_) => None,
            Event::CallAnswered(answered) => {
                match record_at(service, id.session_id, answered.started).await?.map(|record| record.event) {
                    Some(Event::TurnStarted(started)) => Some(Box::new(started)),
                    _ => None,
                }
            }
            _ => return Err(unknown()),
        };
        Ok(Self { id, own, turn, terms, begun_at: record.time.as_millis(), ..Self::default() })
    }

    /// Reads a response as far as it was recorded, and what else its session says.
    pub(crate) async fn read(
        app: &App,
        service: &dyn SessionService,
        id: ResponseId,
    ) -> Result<(Self, Past), SessionError> {
        let own = own(app, service, id.session_id).await?;
        let (mut read, mut past) = (Self::begin(service, id, own).await?, Past::default());
        let mut records = Records::after(service, id.session_id, 0);
        while let Some(record) = records.next().await? {
            past.take(&record);
            read.durable(service, record).await?;
        }
        let waits = !read.requested.is_empty() && read.open_calls.is_subset(&read.requested);
        if read.ending.is_none() && waits {
            read.end(Ending::Waiting);
        }
        Ok((read, past))
    }

    pub(crate) const fn waiting(&self) -> &BTreeSet<String> {
        &self.requested
    }

    pub(crate) fn model(&self) -> &str {
        self.terms.as_ref().map_or(&self.own.model, |terms| &terms.model)
    }

    fn has_schema(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.output.is_some())
    }

    /// Takes what is shown live. Text that is lost on the way comes with the record.
    pub(crate) fn live(&mut self, turn: Option<TurnNumber>, event: &LiveEvent) -> Vec<Piece> {
        let (kind, step, block, offset, text) = match event {
            LiveEvent::TextDelta(it) => (Kind::Message, it.step, it.block, it.offset, &it.text),
            LiveEvent::ReasoningDelta(it) => (Kind::Reasoning, it.step, it.block, it.offset, &it.text),
            _ => return Vec::new(),
        };
        // An answer by a schema may be refused, so none of it is shown before.
        let is_shown = turn == Some(self.turn) && self.terms.is_some() && !self.has_schema() && self.ending.is_none();
        if !is_shown || text.is_empty() {
            return Vec::new();
        }
        let known = self.shown.filter(|shown| (shown.step, shown.block) == (step, block));
        let shown = known.unwrap_or_else(|| {
            let index = self.run(step, kind);
            Shown { step, block, index, before: self.items[index].text.len() as u64 }
        });
        self.shown = Some(shown);
        let item = &mut self.items[shown.index];
        if !item.is_done && item.text.len() as u64 == shown.before + offset {
            item.text.push_str(text);
            self.pieces.push(Piece::More(shown.index, text.clone()));
        }
        std::mem::take(&mut self.pieces)
    }

    /// The run of a step that text of this kind goes on with, or a new one.
    fn run(&mut self, step: u32, kind: Kind) -> usize {
        let of_step = self.items.iter().filter(|item| item.at.0 == step).count();
        match self.items.last() {
            Some(last) if last.at.0 == step && last.kind == kind => self.items.len() - 1,
            _ => self.open((step, of_step), kind),
        }
    }

    fn is_its(&self, record: &Record) -> bool {
        record.turn == Some(self.turn) && record.seq >= self.id.seq && self.ending.is_none()
    }

    pub(crate) async fn durable(
        &mut self,
        service: &dyn SessionService,
        mut record: Record,
    ) -> Result<Vec<Piece>, SessionError> {
        if !self.is_its(&record) {
            return Ok(Vec::new());
        }
        match &mut record.event {
            Event::AssistantMessage(message) => {
                for block in &mut message.blocks {
                    if let Block::Text { text } | Block::Reasoning { text, .. } = block {
                        *text = Body::Inline(whole(service, self.id.session_id, text).await?);
                    }
                }
            }
            Event::PartialText(PartialText { text, .. }) => {
                *text = Body::Inline(whole(service, self.id.session_id, text).await?);
            }
            _ => {}
        }
        Ok(self.take(record))
    }

    /// Takes a record whose texts are whole.
    fn take(&mut self, record: Record) -> Vec<Piece> {
        if !self.is_its(&record) {
            return Vec::new();
        }
        if let Some(held) = self.held.take()
            && !matches!(record.event, Event::OutputRefused(_))
        {
            self.emit(held);
        }
        let time = record.time.as_millis();
        match record.event {
            // The answers to the calls of its last message begin the next response.
            Event::CallAnswered(_) if self.has_answered => self.end(Ending::Waiting),
            Event::TurnStarted(started) => self.terms = Some(Box::new(started)),
            Event::AssistantMessage(message) => {
                (self.has_answered, self.step) = (true, message.step);
                self.usage.add(message.usage);
                for block in &message.blocks {
                    if let Block::ToolCall(call) = block {
                        self.open_calls.insert(call.call_id.clone());
                    }
                }
                match self.has_schema() {
                    true => self.held = Some(message),
                    false => self.emit(message),
                }
            }
            Event::PartialText(partial) => self.cut(partial.step, &inline(partial.text)),
            Event::CallRequested(request) => {
                let call_id = call_id_of(self.id.session_id, &request.call_id);
                let at = (self.step, self.items.iter().filter(|item| item.at.0 == self.step).count());
                let index = self.open(at, Kind::Call { call_id, name: request.name });
                self.fill(index, request.arguments.as_str().to_owned());
                self.close();
                self.requested.insert(request.call_id);
                self.ended_at = Some(time);
            }
            Event::ToolFinished(finished) => {
                self.open_calls.remove(&finished.call_id);
                self.requested.remove(&finished.call_id);
            }
            Event::TurnCompleted(ended) => self.end(Ending::Completed(ended.stop_reason)),
            Event::TurnFailed(ended) => self.end(Ending::Failed(Box::new(ended.error))),
            Event::TurnInterrupted(_) | Event::TurnDequeued(_) => self.end(Ending::Interrupted),
            _ => {}
        }
        if !matches!(self.ending, None | Some(Ending::Waiting)) {
            self.ended_at = Some(time);
        }
        std::mem::take(&mut self.pieces)
    }

    /// Takes the end of its turn as its caller is answered, after all records: if none of them has ended it, it waits.
    pub(crate) fn ended(&mut self, end: Result<TurnResult, SessionError>) -> Vec<Piece> {
        if self.ending.is_none() {
            if let Some(held) = self.held.take() {
                self.emit(held);
            }
            let failed = |error: SessionError| Ending::Failed(Box::new(error.body()));
            self.end(end.map_or_else(failed, |_| Ending::Waiting));
        }
        std::mem::take(&mut self.pieces)
    }

    fn end(&mut self, ending: Ending) {
        self.close();
        self.ending = Some(ending);
    }

    /// Shows what is missing of a message's runs, or the answer by a schema.
    fn emit(&mut self, message: AssistantMessage) {
        let (mut runs, mut answers) = (Vec::<(Kind, String)>::new(), Vec::new());
        for block in message.blocks {
            let (kind, text) = match block {
                Block::Text { text } => (Kind::Message, inline(text)),
                Block::Reasoning { text, .. } => (Kind::Reasoning, inline(text)),
                Block::ToolCall(call) => {
                    let is_answer = self.has_schema() && call.name == ANSWER_TOOL;
                    answers.extend(is_answer.then(|| (Kind::Message, call.arguments.as_str().to_owned())));
                    continue;
                }
            };
            // Live, nothing is shown of an empty text, and texts on both sides of a call are one run.
            match runs.last_mut() {
                _ if text.is_empty() => {}
                Some((last, run)) if *last == kind => run.push_str(&text),
                _ => runs.push((kind, text)),
            }
        }
        for ((kind, text), at) in runs.into_iter().chain(answers).zip(0..) {
            let at = (message.step, at);
            let known = self.items.iter().position(|item| item.at == at && item.kind == kind);
            let index = known.unwrap_or_else(|| self.open(at, kind));
            self.fill(index, text);
        }
        self.close();
    }

    /// Shows what is missing of the text of a step that was cut off: it is all of its texts, without its reasoning.
    fn cut(&mut self, step: u32, text: &str) {
        let texts = self.items.iter().filter(|item| item.at.0 == step && item.kind == Kind::Message);
        let shown: String = texts.map(|item| item.text.as_str()).collect();
        let Some(rest) = text.strip_prefix(&shown).filter(|rest| !rest.is_empty()) else { return };
        let index = self.run(step, Kind::Message);
        let text = format!("{}{rest}", self.items[index].text);
        self.fill(index, text);
    }

    /// Makes an item whole: what is missing of its text follows what was shown.
    fn fill(&mut self, index: usize, text: String) {
        let item = &mut self.items[index];
        match text.strip_prefix(item.text.as_str()) {
            Some("") | None => {}
            Some(rest) => self.pieces.push(Piece::More(index, rest.to_owned())),
        }
        item.text = text;
    }

    fn open(&mut self, at: (u32, usize), kind: Kind) -> usize {
        self.items.push(Item { at, kind, text: String::new(), is_done: false });
        self.pieces.push(Piece::Opened(self.items.len() - 1));
        self.items.len() - 1
    }

    /// Closes all items. They are closed together, so that a later read has its pieces in the same order.
    fn close(&mut self) {
        for (index, item) in self.items.iter_mut().enumerate().filter(|(_, item)| !item.is_done) {
            item.is_done = true;
            self.pieces.push(Piece::Closed(index));
        }
    }
}

fn inline(body: Body) -> String {
    match body {
        Body::Inline(text) => text,
        // They were read before.
        Body::Blob(blob) => blob.head,
    }
}

#[cfg(test)]
mod tests;
