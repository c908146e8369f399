//! A response made of a session's events: its items, and the pieces in which they came. Streams, answers and later reads
//! go through it, so that they cannot differ.
//!
//! It decides nothing: what it is given was recorded, or is shown live and recorded later.

use std::collections::BTreeSet;

use meerkat_service::{
    ErrorBody, Seq, SessionError, SessionId, SessionService, TurnNumber,
    follow::turn::{record_at, whole},
    model::{StopReason, Usage},
    output::ANSWER_TOOL,
    service::{ReadEvents, TurnResult, TurnStatus},
    session::{
        event::{AssistantMessage, Event, LiveEvent, Record, TurnStarted},
        message::{Block, Body},
    },
    wire::decode_event,
};

use crate::{ids::ResponseId, said::call_id_of};

/// What an item is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Text of the model.
    Message,
    /// Reasoning of the model.
    Reasoning,
    /// A call of a tool: its id for clients, and the tool.
    Call { call_id: String, name: String },
}

/// Item of a response's output.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Its place: the step and the block.
    pub(crate) at: (u32, u32),
    pub(crate) kind: Kind,
    /// Text, reasoning or arguments.
    pub(crate) text: String,
    pub(crate) is_done: bool,
}

/// Piece of the output as it comes; each names its item.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece {
    Opened(usize),
    /// More of its text.
    More(usize, String),
    Closed(usize),
}

/// How a response ended.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Completed(StopReason),
    /// All open calls wait for the caller.
    Waiting,
    Interrupted,
    Failed(Box<ErrorBody>),
}

/// A response, as far as it has come.
pub(crate) struct Unfold {
    pub(crate) id: ResponseId,
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
    /// An answer by a schema that may still be refused.
    held: Option<AssistantMessage>,
    has_answered: bool,
}

/// A later request that a session accepted: its key, if it had one.
pub(crate) struct Later(pub(crate) Option<String>);

impl Unfold {
    /// Begins a response by the record that its id names.
    pub(crate) async fn begin(service: &dyn SessionService, id: ResponseId) -> Result<Self, SessionError> {
        let unknown = || SessionError::ItemNotFound("response");
        let record = record_at(service, id.session_id, id.seq).await?.ok_or_else(unknown)?;
        let turn = record.turn.ok_or_else(unknown)?;
        let terms = match &record.event {
            Event::TurnStarted(_) | Event::TurnQueued(_) | Event::TurnSteered(_) => None,
            Event::CallAnswered(answered) => {
                match record_at(service, id.session_id, answered.started).await?.map(|record| record.event) {
                    Some(Event::TurnStarted(started)) => Some(Box::new(started)),
                    _ => None,
                }
            }
            _ => return Err(unknown()),
        };
        Ok(Self {
            id,
            turn,
            terms,
            begun_at: record.time.as_millis(),
            ended_at: None,
            items: Vec::new(),
            usage: Usage::default(),
            ending: None,
            open_calls: BTreeSet::new(),
            requested: BTreeSet::new(),
            held: None,
            has_answered: false,
        })
    }

    /// Reads a response as far as it was recorded, and whether the session accepted anything after it.
    pub(crate) async fn read(
        service: &dyn SessionService,
        id: ResponseId,
    ) -> Result<(Self, Option<Later>), SessionError> {
        let (mut read, mut later, mut since) = (Self::begin(service, id).await?, None, id.seq - 1);
        'pages: loop {
            let page = service.events(ReadEvents::new(id.session_id, since)).await?;
            for line in &page.items {
                let record = decode(line)?;
                later = later.or(read.later(&record));
                read.durable(service, record).await?;
                if read.ending.is_some() && later.is_some() {
                    break 'pages;
                }
            }
            if page.items.is_empty() || page.next_seq == since {
                break;
            }
            since = page.next_seq;
        }
        if read.ending.is_none() && read.waits() {
            read.end(Ending::Waiting, &mut Vec::new());
        }
        Ok((read, later))
    }

    /// The request that a record accepted, if it came after what began this response.
    fn later(&self, record: &Record) -> Option<Later> {
        let is_own = record.turn? == self.turn;
        let key = match &record.event {
            _ if record.seq <= self.id.seq => return None,
            Event::TurnStarted(_) if is_own => return None,
            // A turn of the queue was accepted before.
            Event::TurnStarted(started) => &started.key,
            Event::TurnQueued(queued) => &queued.key,
            Event::TurnSteered(steered) => &steered.key,
            // The answers to one message's calls belong together.
            Event::CallAnswered(_) if is_own && !self.has_answered => return None,
            Event::CallAnswered(_) => &None,
            _ => return None,
        };
        Some(Later(key.as_ref().map(|key| key.key.clone())))
    }

    /// Returns true if every open call waits for the caller.
    fn waits(&self) -> bool {
        !self.requested.is_empty() && self.open_calls.iter().all(|call| self.requested.contains(call))
    }

    /// The calls that wait for the caller.
    pub(crate) fn waiting(&self) -> &BTreeSet<String> {
        &self.requested
    }

    /// The model that answers.
    pub(crate) fn model(&self) -> &str {
        self.terms.as_ref().map_or("", |terms| terms.model.as_str())
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
        if turn != Some(self.turn) || self.terms.is_none() || self.has_schema() || self.ending.is_some() {
            return Vec::new();
        }
        let mut pieces = Vec::new();
        let index = self.open((step, block), kind, &mut pieces);
        if let Some(item) = self.items.get_mut(index)
            && !item.is_done
            && item.text.len() as u64 == offset
        {
            item.text.push_str(text);
            pieces.push(Piece::More(index, text.clone()));
        }
        pieces
    }

    /// Takes a record.
    pub(crate) async fn durable(
        &mut self,
        service: &dyn SessionService,
        record: Record,
    ) -> Result<Vec<Piece>, SessionError> {
        let mut pieces = Vec::new();
        if record.turn != Some(self.turn) || record.seq < self.id.seq || self.ending.is_some() {
            return Ok(pieces);
        }
        match record.event {
            Event::OutputRefused(_) => self.held = None,
            _ => {
                if let Some(held) = self.held.take() {
                    self.emit(held, &mut pieces);
                }
            }
        }
        let time = record.time.as_millis();
        match record.event {
            // The answers to the calls of its last message begin the next response.
            Event::CallAnswered(_) if self.has_answered => self.end(Ending::Waiting, &mut pieces),
            Event::TurnStarted(started) => self.terms = Some(Box::new(started)),
            Event::AssistantMessage(mut message) => {
                self.has_answered = true;
                self.usage.add(message.usage);
                for block in &mut message.blocks {
                    match block {
                        Block::Text { text } | Block::Reasoning { text, .. } => {
                            *text = Body::Inline(whole(service, self.id.session_id, text).await?);
                        }
                        Block::ToolCall(call) => drop(self.open_calls.insert(call.call_id.clone())),
                    }
                }
                match self.has_schema() {
                    true => self.held = Some(message),
                    false => self.emit(message, &mut pieces),
                }
            }
            Event::PartialText(partial) => {
                let text = whole(service, self.id.session_id, &partial.text).await?;
                let open = self.items.iter().rev().find(|item| item.at.0 == partial.step && item.kind == Kind::Message);
                let at = open.map_or((partial.step, 0), |item| item.at);
                self.fill(at, Kind::Message, &text, &mut pieces);
            }
            Event::CallRequested(request) => {
                self.requested.insert(request.call_id);
                self.ended_at = Some(time);
            }
            Event::ToolFinished(finished) => {
                self.open_calls.remove(&finished.call_id);
                self.requested.remove(&finished.call_id);
            }
            Event::TurnCompleted(ended) => self.end(Ending::Completed(ended.stop_reason), &mut pieces),
            Event::TurnFailed(ended) => self.end(Ending::Failed(Box::new(ended.error)), &mut pieces),
            Event::TurnInterrupted(_) | Event::TurnDequeued(_) => self.end(Ending::Interrupted, &mut pieces),
            _ => {}
        }
        if !matches!(self.ending, None | Some(Ending::Waiting)) {
            self.ended_at = Some(time);
        }
        Ok(pieces)
    }

    /// Takes the end of its turn, or that it waits, as its caller is answered.
    pub(crate) fn ended(&mut self, end: &Result<TurnResult, SessionError>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let ending = match end {
            Ok(TurnResult { status: TurnStatus::Waiting, .. }) => Ending::Waiting,
            Ok(TurnResult { status: TurnStatus::Interrupted, .. }) => Ending::Interrupted,
            Ok(TurnResult { status: TurnStatus::Completed, stop_reason, .. }) => {
                Ending::Completed(stop_reason.unwrap_or(StopReason::EndTurn))
            }
            Ok(TurnResult { status: TurnStatus::Failed, error, .. }) => {
                let unknown = || ErrorBody::new(meerkat_errors::ErrorCode::TurnFailed);
                Ending::Failed(Box::new(error.clone().unwrap_or_else(unknown)))
            }
            Err(error) => Ending::Failed(Box::new(error.body())),
        };
        if self.ending.is_none() {
            if let Some(held) = self.held.take() {
                self.emit(held, &mut pieces);
            }
            self.end(ending, &mut pieces);
        }
        pieces
    }

    fn end(&mut self, ending: Ending, pieces: &mut Vec<Piece>) {
        for index in 0..self.items.len() {
            self.close(index, pieces);
        }
        self.ending = Some(ending);
    }

    fn emit(&mut self, message: AssistantMessage, pieces: &mut Vec<Piece>) {
        let (step, has_schema) = (message.step, self.has_schema());
        for (block, at) in message.blocks.into_iter().zip(0..) {
            match block {
                Block::Text { text } => self.fill((step, at), Kind::Message, &inline(text), pieces),
                Block::Reasoning { text, .. } => self.fill((step, at), Kind::Reasoning, &inline(text), pieces),
                Block::ToolCall(call) if has_schema && call.name == ANSWER_TOOL => {
                    self.fill((step, at), Kind::Message, call.arguments.as_str(), pieces);
                }
                Block::ToolCall(call) => {
                    let call_id = call_id_of(self.id.session_id, &call.call_id);
                    let kind = Kind::Call { call_id, name: call.name };
                    self.fill((step, at), kind, call.arguments.as_str(), pieces);
                }
            }
        }
        for index in 0..self.items.len() {
            self.close(index, pieces);
        }
    }

    /// Makes an item whole: what is missing of its text follows what was shown.
    fn fill(&mut self, at: (u32, u32), kind: Kind, text: &str, pieces: &mut Vec<Piece>) {
        if text.is_empty() && !self.items.iter().any(|item| item.at == at) {
            return;
        }
        let index = self.open(at, kind, pieces);
        let Some(item) = self.items.get_mut(index) else { return };
        let rest = text.strip_prefix(item.text.as_str()).unwrap_or_default().to_owned();
        text.clone_into(&mut item.text);
        if !rest.is_empty() {
            pieces.push(Piece::More(index, rest));
        }
        self.close(index, pieces);
    }

    fn open(&mut self, at: (u32, u32), kind: Kind, pieces: &mut Vec<Piece>) -> usize {
        if let Some(index) = self.items.iter().position(|item| item.at == at) {
            return index;
        }
        let index = self.items.len();
        self.items.push(Item { at, kind, text: String::new(), is_done: false });
        pieces.push(Piece::Opened(index));
        index
    }

    fn close(&mut self, index: usize, pieces: &mut Vec<Piece>) {
        if let Some(item) = self.items.get_mut(index).filter(|item| !item.is_done) {
            item.is_done = true;
            pieces.push(Piece::Closed(index));
        }
    }
}

/// Decodes a line of the journal.
pub(crate) fn decode(line: &[u8]) -> Result<Record, SessionError> {
    let unreadable = |error: String| SessionError::Internal(format!("an event could not be read: {error}"));
    let text = str::from_utf8(line).map_err(|error| unreadable(error.to_string()))?;
    decode_event(text).map_err(|error| unreadable(error.to_string()))
}

fn inline(body: Body) -> String {
    match body {
        Body::Inline(text) => text,
        // They were read before.
        Body::Blob(blob) => blob.head,
    }
}

/// Reads the first record of a session, which says how it was made.
pub(crate) async fn first(
    service: &dyn SessionService,
    session_id: SessionId,
) -> Result<(Option<String>, std::collections::BTreeMap<String, String>), SessionError> {
    match record_at(service, session_id, Seq::from(1_u8)).await?.map(|record| record.event) {
        Some(Event::SessionCreated(created)) => {
            let system = match &created.system_prompt {
                Some(body) => Some(whole(service, session_id, body).await?),
                None => None,
            };
            Ok((system, created.labels))
        }
        _ => Ok((None, std::collections::BTreeMap::new())),
    }
}
