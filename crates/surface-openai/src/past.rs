//! What a session's records say beside a response: the responses before and after it, and the tools of its turns.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use meerkat_service::{
    Seq, SessionError, SessionId, SessionService, TurnNumber,
    service::{ClientTool, ReadEvents},
    session::event::{Event, LiveRecord, Record, TurnStarted},
    wire::{decode_event, decode_live},
};

use crate::ids::ResponseId;

struct Known {
    id: ResponseId,
    turn: Option<TurnNumber>,
    /// The seq from which on it is answered.
    at: Seq,
    key: Option<String>,
}

#[derive(Default)]
pub(crate) struct Past {
    /// Terms of the last turn.
    pub(crate) started: TurnStarted,
    responses: Vec<Known>,
    tools: BTreeMap<String, Vec<ClientTool>>,
    has_answered: bool,
}

impl Past {
    pub(crate) fn take(&mut self, record: &Record) {
        let (turn, at) = (record.turn, record.seq);
        let key = match &record.event {
            Event::TurnQueued(queued) => &queued.key,
            Event::TurnStarted(started) => {
                self.started.clone_from(started);
                if let Some(queued) =
                    self.responses.iter_mut().find(|known| started.queued.is_some() && known.turn == turn)
                {
                    queued.at = at;
                    return;
                }
                &started.key
            }
            // The answers to one message's calls belong together.
            Event::CallAnswered(_) if std::mem::take(&mut self.has_answered) => &None,
            Event::AssistantMessage(_) => {
                self.has_answered = true;
                return;
            }
            Event::ClientToolsChanged(changed) => {
                self.tools.extend(changed.tools.clone().map(|tools| (changed.hash.clone(), tools)));
                return;
            }
            _ => return,
        };
        // The records that a fork copied name the session that they are from.
        let id = ResponseId { session_id: record.session_id, seq: at };
        self.responses.push(Known { id, turn, at, key: key.as_ref().map(|key| key.key.clone()) });
    }

    pub(crate) fn previous(&self, id: ResponseId) -> Option<ResponseId> {
        self.responses.iter().rev().map(|known| known.id).find(|known| known.seq < id.seq)
    }

    /// The key of the next response that is answered after one, if there is such a response.
    pub(crate) fn next(&self, id: ResponseId) -> Option<Option<&str>> {
        let own = self.responses.iter().find(|known| known.id.seq == id.seq).map_or(id.seq, |known| known.at);
        let next = self.responses.iter().filter(|known| known.at > own);
        next.min_by_key(|known| known.at).map(|known| known.key.as_deref())
    }

    pub(crate) fn tools(&self, started: &TurnStarted) -> Vec<ClientTool> {
        started.client_tools.as_ref().and_then(|hash| self.tools.get(hash)).cloned().unwrap_or_default()
    }
}

/// Records of a session, page by page.
pub(crate) struct Records<'a> {
    service: &'a dyn SessionService,
    session_id: SessionId,
    since: Seq,
    page: VecDeque<Bytes>,
}

impl<'a> Records<'a> {
    /// The records after a seq.
    pub(crate) const fn after(service: &'a dyn SessionService, session_id: SessionId, since: Seq) -> Self {
        Self { service, session_id, since, page: VecDeque::new() }
    }

    /// The next one, if there is one already.
    pub(crate) async fn next(&mut self) -> Result<Option<Record>, SessionError> {
        loop {
            if self.page.is_empty() {
                let page = self.service.events(ReadEvents::new(self.session_id, self.since)).await?;
                (self.since, self.page) = (page.next_seq, page.items.into());
            }
            match self.page.pop_front() {
                // Where records were dropped, a live line says so.
                Some(line) if live(&line).is_some() => {}
                line => return line.map(|line| decode(&line)).transpose(),
            }
        }
    }
}

/// Decodes a live line; `None` if it is one of the journal.
pub(crate) fn live(line: &[u8]) -> Option<LiveRecord> {
    str::from_utf8(line).ok().and_then(|line| decode_live(line).ok().flatten())
}

pub(crate) fn decode(line: &[u8]) -> Result<Record, SessionError> {
    let record = str::from_utf8(line).ok().and_then(|line| decode_event(line).ok());
    record.ok_or_else(|| SessionError::Internal("an event could not be read".to_owned()))
}
