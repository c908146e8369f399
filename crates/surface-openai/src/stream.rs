//! Answers of both protocols, whole or as event streams: the lines of a session's turn, unfolded into pieces as they come.
//!
//! `sequence_number` counts what was sent, a text by its bytes: so a stream that is read later, in which a text comes in
//! other pieces, counts alike, and goes on where another one stopped.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::header,
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
use serde_json::{Value, json};

use crate::{
    chat::{Chunks, completion},
    error,
    passing::Passing,
    past::{Records, decode, live},
    responses::{Echo, events, failure, response, status},
    unfold::{Piece, Unfold},
};

/// Silence after which a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What an answer is sent as: a response, or the chunks of a chat.
pub(crate) struct Sending {
    pub(crate) echo: Echo,
    /// The chunks, if it is a chat.
    pub(crate) chat: Option<Chunks>,
    /// Nothing up to this number is sent again.
    pub(crate) after: Option<u64>,
    /// The count of what was sent.
    pub(crate) count: u64,
}

impl Sending {
    pub(crate) fn answer(&self, unfold: &Unfold) -> Response {
        let response = response(unfold, &self.echo);
        match (&self.chat, failure(unfold)) {
            (Some(_), Some(failure)) => error::refusal(&failure),
            (Some(_), None) => json_answer(&completion(&response)),
            (None, _) => json_answer(&response),
        }
    }

    fn whole(&mut self, kind: &str, unfold: &Unfold) -> Vec<Bytes> {
        self.frames(json!({ "type": format!("response.{kind}"), "response": response(unfold, &self.echo) }))
    }

    fn frames(&mut self, event: Value) -> Vec<Bytes> {
        match &mut self.chat {
            Some(chunks) => chunks.of(&event).iter().map(data).collect(),
            None => self.numbered(event).into_iter().collect(),
        }
    }

    /// A frame with its number; `None` if it was sent before.
    fn numbered(&mut self, mut event: Value) -> Option<Bytes> {
        let weight = event["delta"].as_str().map_or(1, |text| text.len() as u64);
        let (first, number) = (self.count, self.count + weight - 1);
        self.count += weight;
        if let Some(after) = self.after {
            if number <= after {
                return None;
            }
            // The beginning of this text was sent before; a character is sent whole.
            let sent = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
            if let Some(Value::String(text)) = event.get_mut("delta") {
                text.drain(..text.floor_char_boundary(sent));
            }
        }
        event["sequence_number"] = number.into();
        Some(format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default()).into())
    }

    fn pieces(&mut self, unfold: &Unfold, pieces: &[Piece]) -> Vec<Bytes> {
        pieces.iter().flat_map(|piece| events(unfold, piece)).flat_map(|event| self.frames(event)).collect()
    }

    fn end(&mut self, unfold: &Unfold) -> Vec<Bytes> {
        match (&self.chat, failure(unfold)) {
            (Some(_), Some(failure)) => vec![data(&json!({ "error": error::error(&failure) }))],
            (Some(_), None) => {
                let mut frames = self.whole(status(unfold), unfold);
                frames.push(Bytes::from_static(b"data: [DONE]\n\n"));
                frames
            }
            (None, _) => self.whole(status(unfold), unfold),
        }
    }
}

fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

pub(crate) fn json_answer(value: &Value) -> Response {
    typed("application/json", value.to_string().into())
}

/// A response of a type, which no cache keeps.
fn typed(content_type: &'static str, body: Body) -> Response {
    let kept = [(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    ([(header::CONTENT_TYPE, content_type)], kept, body).into_response()
}

pub(crate) struct Making {
    service: Arc<dyn SessionService>,
    turn: FollowedTurn,
    seq: Seq,
    unfold: Unfold,
    sending: Sending,
    /// Ends a turn that is not stored if its reader leaves.
    passing: Option<Passing>,
}

impl Making {
    /// Follows a turn from what began the response.
    pub(crate) async fn begin(
        service: Arc<dyn SessionService>,
        turn: TurnHandle,
        unfold: Unfold,
        (sending, passing): (Sending, Option<Passing>),
    ) -> Result<Self, SessionError> {
        let mut begun = turn.accepted.clone();
        begun.seq = unfold.id.seq;
        let follower = from_acceptance(service.as_ref(), &begun).await?;
        let turn = FollowedTurn::new(turn, Some(follower));
        Ok(Self { service, turn, seq: begun.seq - 1, unfold, sending, passing })
    }

    /// Waits for the end, and answers.
    pub(crate) async fn whole(mut self) -> Response {
        while self.unfold.ending.is_none() {
            let step = self.turn.next().await;
            self.take(step).await;
        }
        self.sending.answer(&self.unfold)
    }

    /// Answers with a stream, which holds its place among all of the listener.
    pub(crate) fn stream(mut self, place: Option<Box<dyn Send>>) -> Response {
        let begun = ["created", "in_progress"].map(|kind| self.sending.whole(kind, &self.unfold));
        let ready = VecDeque::from(begun.concat());
        let frames = unfold((self, ready, place), |(mut making, mut ready, place)| async move {
            let frame = making.next(&mut ready).await?;
            Some((Ok::<_, Infallible>(frame), (making, ready, place)))
        });
        typed("text/event-stream", Body::from_stream(frames))
    }

    async fn next(&mut self, ready: &mut VecDeque<Bytes>) -> Option<Bytes> {
        while ready.is_empty() && self.unfold.ending.is_none() {
            // Only waiting is cut off: a line that came is taken whole.
            let Ok(step) = tokio::time::timeout(KEEP_ALIVE, self.turn.next()).await else {
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            };
            let pieces = self.take(step).await;
            ready.extend(self.sending.pieces(&self.unfold, &pieces));
            if self.unfold.ending.is_some() {
                ready.extend(self.sending.end(&self.unfold));
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
            pieces.extend(self.unfold.ended(Err(error)));
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
                pieces.extend(unfold.ended(Ok(end)));
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
    use crate::ids::ResponseId;

    #[tokio::test]
    async fn lines_that_were_lost_are_read() {
        let agent = AgentBuildConfig::new().build().unwrap();
        let session_id = agent.create_session().await.unwrap().session_id;
        let service = agent.service().clone();
        let ended = service.start_turn(StartTurn::new(session_id, "@think Hm. @say One.")).await.unwrap();
        let accepted = TurnAccepted { session_id, turn: ended.turn, seq: 2 };
        let id = ResponseId { session_id, seq: 2 };
        let mut unfold = Unfold::default();
        (unfold.id, unfold.turn) = (id, ended.turn);
        let turn = TurnHandle { accepted, wait: true, result: ready(Ok(ended)).boxed() };
        let sending = Sending { echo: Echo::default(), chat: None, after: None, count: 0 };
        let turn = FollowedTurn::new(turn, None);
        let mut making = Making { service, turn, seq: 1, unfold, sending, passing: None };
        while making.unfold.ending.is_none() {
            let step = making.turn.next().await;
            making.take(step).await;
        }
        let texts: Vec<&str> = making.unfold.items.iter().map(|item| item.text.as_str()).collect();
        assert_eq!(texts, ["Hm.", "One."]);
    }
}
