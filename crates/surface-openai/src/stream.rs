//! Answers of both protocols, whole or as event streams: the lines of a session's turn, unfolded into pieces as they come.
//!
//! `sequence_number` counts what was sent, a text by its bytes: so a stream that is read later, in which a text comes in
//! other pieces, counts alike, and goes on where another one stopped.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::HeaderValue,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::stream::unfold;
use meerkat_service::{
    Seq, SessionError, SessionService,
    follow::{
        FollowedLine,
        turn::{FollowedTurn, TurnStep, from_acceptance},
    },
    service::TurnHandle,
};
use serde_json::{Map, Value, json};

use crate::{
    chat::{Chunks, completion},
    error,
    handlers::{json_answer, typed},
    passing::Passing,
    responses::{Echo, events, response, status},
    unfold::{Piece, Records, Unfold, decode, live},
};

/// Silence after which a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Which protocol an answer speaks.
pub(crate) enum Protocol {
    Responses {
        echo: Box<Echo>,
        /// The count of what was sent.
        count: u64,
        /// Nothing up to this number is sent again.
        after: Option<u64>,
    },
    Chat(Chunks),
}

impl Protocol {
    pub(crate) fn responses(echo: Echo, after: Option<u64>) -> Self {
        Self::Responses { echo: Box::new(echo), count: 0, after }
    }

    /// The whole answer.
    pub(crate) fn answer(&self, unfold: &Unfold) -> Response {
        match self {
            Self::Responses { echo, .. } => json_answer(&response(unfold, echo)),
            Self::Chat(_) => completion(unfold).map_or_else(|body| error::refusal(&body), |it| json_answer(&it)),
        }
    }

    /// Frames before everything else.
    fn begin(&mut self, unfold: &Unfold) -> Vec<Bytes> {
        match self {
            Self::Responses { .. } => ["response.created", "response.in_progress"]
                .into_iter()
                .filter_map(|kind| self.whole(kind, unfold))
                .collect(),
            Self::Chat(chunks) => vec![data(&chunks.first(unfold))],
        }
    }

    /// A frame with the whole response.
    fn whole(&mut self, kind: &str, unfold: &Unfold) -> Option<Bytes> {
        let Self::Responses { echo, .. } = self else { return None };
        let fields = Map::from_iter([("response".to_owned(), response(unfold, echo))]);
        self.event(kind, fields)
    }

    /// A frame with its number; `None` if it was sent before.
    fn event(&mut self, kind: &str, mut fields: Map<String, Value>) -> Option<Bytes> {
        let Self::Responses { count, after, .. } = self else { return None };
        let weight = fields.get("delta").and_then(Value::as_str).map_or(1, |text| text.len() as u64);
        let (first, number) = (*count, *count + weight - 1);
        *count += weight;
        if let Some(after) = *after {
            if number <= after {
                return None;
            }
            // The beginning of this text was sent before; a character is sent whole.
            let sent = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
            if let Some(Value::String(text)) = fields.get_mut("delta") {
                text.drain(..text.floor_char_boundary(sent));
            }
        }
        fields.insert("type".to_owned(), kind.into());
        fields.insert("sequence_number".to_owned(), number.into());
        Some(format!("event: {kind}\ndata: {}\n\n", Value::Object(fields)).into())
    }

    fn pieces(&mut self, unfold: &Unfold, pieces: &[Piece]) -> Vec<Bytes> {
        let mut frames = Vec::new();
        for piece in pieces {
            match self {
                Self::Responses { .. } => {
                    for (kind, fields) in events(unfold, piece) {
                        frames.extend(self.event(&kind, fields));
                    }
                }
                Self::Chat(chunks) => frames.extend(chunks.piece(unfold, piece).map(|chunk| data(&chunk))),
            }
        }
        frames
    }

    /// Frames after everything else.
    fn end(&mut self, unfold: &Unfold) -> Vec<Bytes> {
        match self {
            Self::Responses { .. } => self.whole(&format!("response.{}", status(unfold)), unfold).into_iter().collect(),
            Self::Chat(chunks) => match chunks.last(unfold) {
                Ok(last) => last.iter().map(data).chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect(),
                Err(body) => vec![data(&json!({ "error": error::error(&body) }))],
            },
        }
    }
}

fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

/// A response as it is made.
pub(crate) struct Making {
    service: Arc<dyn SessionService>,
    turn: FollowedTurn,
    /// The last record that was taken.
    seq: Seq,
    unfold: Unfold,
    protocol: Protocol,
    /// Ends a turn that is not stored if its reader leaves.
    passing: Option<Passing>,
}

impl Making {
    /// Follows a turn from what began the response.
    pub(crate) async fn begin(
        service: Arc<dyn SessionService>,
        turn: TurnHandle,
        unfold: Unfold,
        (protocol, passing): (Protocol, Option<Passing>),
    ) -> Result<Self, SessionError> {
        let mut begun = turn.accepted.clone();
        begun.seq = unfold.id.seq;
        let follower = from_acceptance(service.as_ref(), &begun).await?;
        let turn = FollowedTurn::new(turn, Some(follower));
        Ok(Self { service, turn, seq: begun.seq - 1, unfold, protocol, passing })
    }

    /// Waits for the end, and answers.
    pub(crate) async fn whole(mut self) -> Response {
        while self.unfold.ending.is_none() {
            let step = self.turn.next().await;
            self.take(step).await;
        }
        self.protocol.answer(&self.unfold)
    }

    /// Answers with a stream, which holds its place among all of the listener.
    pub(crate) fn stream(mut self, place: Option<Box<dyn Send>>) -> Response {
        let ready = VecDeque::from(self.protocol.begin(&self.unfold));
        let frames = unfold((self, ready, place), |(mut making, mut ready, place)| async move {
            let frame = making.next(&mut ready).await?;
            Some((Ok::<_, Infallible>(frame), (making, ready, place)))
        });
        typed(HeaderValue::from_static("text/event-stream"), Body::from_stream(frames)).into_response()
    }

    async fn next(&mut self, ready: &mut VecDeque<Bytes>) -> Option<Bytes> {
        while ready.is_empty() && self.unfold.ending.is_none() {
            // Only waiting is cut off: a line that came is taken whole.
            let Ok(step) = tokio::time::timeout(KEEP_ALIVE, self.turn.next()).await else {
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            };
            let pieces = self.take(step).await;
            ready.extend(self.protocol.pieces(&self.unfold, &pieces));
            if self.unfold.ending.is_some() {
                ready.extend(self.protocol.end(&self.unfold));
            }
        }
        ready.pop_front()
    }

    /// Takes what is known next of the turn.
    async fn take(&mut self, step: TurnStep) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if let Err(error) = self.taken(step, &mut pieces).await {
            // The turn may go on: if it is not stored, dropping this ends it.
            self.passing = None;
            pieces.extend(self.unfold.ended(&Err(error)));
        }
        if self.unfold.ending.is_some() {
            self.passing.take().into_iter().for_each(|passing| passing.answered(&self.unfold));
        }
        pieces
    }

    async fn taken(&mut self, step: TurnStep, pieces: &mut Vec<Piece>) -> Result<(), SessionError> {
        let (service, unfold) = (self.service.as_ref(), &mut self.unfold);
        match step {
            TurnStep::Line(FollowedLine { seq: Some(seq), line }) => {
                pieces.extend(unfold.durable(service, decode(&line)?).await?);
                self.seq = seq;
            }
            TurnStep::Line(line) => {
                pieces.extend(live(&line.line).map(|live| unfold.live(live.turn, &live.event)).unwrap_or_default());
            }
            TurnStep::Lost(error) => tracing::debug!(%error, "the lines of a turn were lost"),
            TurnStep::End(end) => {
                let end = end?;
                // If lines were lost, the records are read.
                let mut records = Records::after(service, unfold.id.session_id, self.seq);
                while self.seq < end.seq && unfold.ending.is_none() {
                    let Some(record) = records.next().await? else { break };
                    self.seq = record.seq;
                    pieces.extend(unfold.durable(service, record).await?);
                }
                pieces.extend(unfold.ended(&Ok(end)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::ready};
    use meerkat_service::{
        AgentBuildConfig,
        service::{StartTurn, TurnAccepted},
    };

    use super::*;
    use crate::{ids::ResponseId, own::Own};

    #[tokio::test]
    async fn lines_that_were_lost_are_read() {
        let agent = AgentBuildConfig::new().build().unwrap();
        let session_id = agent.create_session().await.unwrap().session_id;
        let service = agent.service().clone();
        let ended = service.start_turn(StartTurn::new(session_id, "@think Hm. @say One.")).await.unwrap();
        let accepted = TurnAccepted { session_id, turn: ended.turn, seq: 2 };
        let unfold = Unfold::new(ResponseId { session_id, seq: 2 }, Own::some(), ended.turn, 0);
        let turn = TurnHandle { accepted, wait: true, result: ready(Ok(ended)).boxed() };
        let protocol = Protocol::responses(Echo::default(), None);
        let turn = FollowedTurn::new(turn, None);
        let mut making = Making { service, turn, seq: 1, unfold, protocol, passing: None };
        while making.unfold.ending.is_none() {
            let step = making.turn.next().await;
            making.take(step).await;
        }
        let texts: Vec<&str> = making.unfold.items.iter().map(|item| item.text.as_str()).collect();
        assert_eq!(texts, ["Hm.", "One."]);
    }
}
