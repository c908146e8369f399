//! Event streams of both protocols: the lines of a session's turn, unfolded into pieces as they come.
//!
//! `sequence_number` counts what was sent, a text by its bytes: so a stream that is read later, in which a text comes in
//! other pieces, counts alike, and goes on where another one stopped.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{body::Body, http::HeaderValue, response::Response};
use bytes::Bytes;
use futures::stream::unfold;
use meerkat_service::{
    SessionError, SessionService,
    follow::turn::{FollowedTurn, TurnStep, from_acceptance},
    service::TurnHandle,
    wire::decode_live,
};
use serde_json::{Map, Value, json};

use crate::{
    chat::{Chunks, failure},
    error,
    handlers::{Passing, typed},
    responses::{Echo, events, response},
    unfold::{Piece, Unfold, decode},
};

/// Silence after which a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Which protocol a stream speaks.
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

    /// Frames before everything else.
    fn begin(&mut self, unfold: &Unfold) -> Vec<Bytes> {
        match self {
            Self::Responses { .. } => ["response.created", "response.in_progress"]
                .into_iter()
                .filter_map(|kind| self.whole(kind, unfold))
                .collect(),
            Self::Chat(chunks) => vec![data(&chunks.first(unfold).into())],
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
        let weight = fields.get("delta").and_then(Value::as_str).map_or(1, |text| text.len().max(1) as u64);
        let (first, number) = (*count, *count + weight - 1);
        *count += weight;
        if let Some(after) = *after {
            if number <= after {
                return None;
            }
            // The beginning of this text was sent before.
            let sent = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
            if let Some(Value::String(text)) = fields.get_mut("delta").filter(|_| sent > 0) {
                *text = text.get(sent..).unwrap_or_default().to_owned();
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
                Self::Chat(chunks) => frames.extend(chunks.piece(unfold, piece).map(|chunk| data(&chunk.into()))),
            }
        }
        frames
    }

    /// Frames behind everything else.
    fn end(&mut self, unfold: &Unfold) -> Vec<Bytes> {
        let Some(ending) = &unfold.ending else { return Vec::new() };
        match self {
            Self::Responses { echo, .. } => {
                let status = response(unfold, echo)["status"].as_str().unwrap_or_default().to_owned();
                self.whole(&format!("response.{status}"), unfold).into_iter().collect()
            }
            Self::Chat(chunks) => match chunks.last(unfold, ending) {
                Ok(last) => {
                    let last = last.into_iter().map(|chunk| data(&chunk.into()));
                    last.chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect()
                }
                Err(_) => vec![data(&json!({ "error": error::error(&failure(unfold, ending)) }))],
            },
        }
    }
}

fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

/// What a stream works on.
struct Streamed {
    service: Arc<dyn SessionService>,
    turn: FollowedTurn,
    unfold: Unfold,
    protocol: Protocol,
    ready: VecDeque<Bytes>,
    is_over: bool,
    /// Ends a turn that is not stored if its reader leaves.
    passing: Option<Passing>,
    /// The stream's place among all of the listener.
    _place: Option<Box<dyn Send>>,
}

/// Streams a turn from what began the response.
pub(crate) async fn stream(
    service: Arc<dyn SessionService>,
    turn: TurnHandle,
    unfold_: Unfold,
    mut protocol: Protocol,
    (passing, place): (Option<Passing>, Option<Box<dyn Send>>),
) -> Result<Response, SessionError> {
    let mut begun = turn.accepted.clone();
    begun.seq = unfold_.id.seq;
    let follower = from_acceptance(service.as_ref(), &begun).await?;
    let ready = protocol.begin(&unfold_).into();
    let turn = FollowedTurn::new(turn, Some(follower));
    let state = Streamed { service, turn, unfold: unfold_, protocol, ready, is_over: false, passing, _place: place };
    let frames = unfold(state, |mut state| async move {
        let frame = state.next().await?;
        Some((Ok::<_, std::convert::Infallible>(frame), state))
    });
    Ok(typed(HeaderValue::from_static("text/event-stream"), Body::from_stream(frames)))
}

impl Streamed {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            let Ok(step) = tokio::time::timeout(KEEP_ALIVE, self.turn.next()).await else {
                return Some(Bytes::from_static(b": keep-alive\n\n"));
            };
            let pieces = advance(self.service.as_ref(), &mut self.unfold, step).await;
            self.ready.extend(self.protocol.pieces(&self.unfold, &pieces));
            if self.unfold.ending.is_some() {
                self.is_over = true;
                self.ready.extend(self.protocol.end(&self.unfold));
                self.passing.take().into_iter().for_each(Passing::answered);
            }
        }
    }
}

/// Waits for the end of a response.
pub(crate) async fn run(
    service: Arc<dyn SessionService>,
    turn: TurnHandle,
    mut unfold: Unfold,
) -> Result<Unfold, SessionError> {
    let mut begun = turn.accepted.clone();
    begun.seq = unfold.id.seq;
    let follower = from_acceptance(service.as_ref(), &begun).await?;
    let mut turn = FollowedTurn::new(turn, Some(follower));
    while unfold.ending.is_none() {
        let step = turn.next().await;
        advance(service.as_ref(), &mut unfold, step).await;
    }
    Ok(unfold)
}

/// Takes the next thing that is known of a turn.
async fn advance(service: &dyn SessionService, unfold: &mut Unfold, step: TurnStep) -> Vec<Piece> {
    match step {
        TurnStep::Line(line) if line.seq.is_some() => {
            let taken = match decode(&line.line) {
                Ok(record) => unfold.durable(service, record).await,
                Err(error) => Err(error),
            };
            taken.unwrap_or_else(|error| unfold.ended(&Err(error)))
        }
        TurnStep::Line(line) => {
            let live = str::from_utf8(&line.line).ok().and_then(|line| decode_live(line).ok().flatten());
            live.map(|live| unfold.live(live.turn, &live.event)).unwrap_or_default()
        }
        TurnStep::Lost(error) => {
            tracing::debug!(%error, "the lines of a turn were lost");
            Vec::new()
        }
        TurnStep::End(end) => unfold.ended(&end),
    }
}
