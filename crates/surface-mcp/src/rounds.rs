//! Questions about a turn's calls as the answer to the call that runs it, for revisions in which a server sends no
//! requests: the client's program asks its person, and sends the call again with the responses and the state.
//!
//! Nothing is kept between two rounds. The state says which turn goes on and up to where it was shown; the session's
//! events say what waits. It must never believe a state that was not sealed with its key for the same tool and arguments.

use std::sync::Arc;

use meerkat_service::{
    Seq, SessionError, SessionService,
    clock::{IdSource as _, RandomIds, Timestamp},
    service::{ReadEvents, TurnAccepted},
    session::event::{ApprovalRequested, Event, Record},
    wire,
};
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequestParams, ElicitRequest, ElicitResult, ElicitationAction, InputRequest, InputRequests,
        InputRequiredResult, InputResponses, RequestStateCodec, SealOptions,
    },
    service::RequestContext,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{error, questions};

/// The key that signs the states of calls that ask.
#[derive(Clone, Debug)]
pub struct StateKey(Arc<RequestStateCodec>);

impl StateKey {
    /// Makes the key of a secret, such as a server's token.
    #[must_use]
    pub fn of(secret: &str) -> Self {
        let key = format!("states of calls over the Model Context Protocol: {secret}");
        Self(Arc::new(RequestStateCodec::new_unchecked(key)))
    }
}

impl Default for StateKey {
    /// Makes a random key, so that a state ends with its process.
    fn default() -> Self {
        let random = || RandomIds::new().next_session_id(Timestamp::from_millis(0)).to_string();
        Self::of(&(0..4).map(|_| random()).collect::<String>())
    }
}

/// A state's content.
#[derive(Serialize, Deserialize)]
pub(crate) struct CallState {
    /// The turn that goes on.
    pub(crate) accepted: TurnAccepted,
    /// The last event that was shown.
    pub(crate) seen: Seq,
    /// The last event before the first question that may wait.
    pub(crate) before: Seq,
}

/// The rounds of a call whose client shows forms, or has answered some.
pub(crate) struct Rounds {
    key: StateKey,
    /// The tool and its arguments.
    call: String,
    /// The client may be asked.
    is_asked: bool,
    /// Where the call goes on, if it was sent again.
    pub(crate) resumed: Option<CallState>,
    responses: InputResponses,
}

impl Rounds {
    /// The rounds of this call; `None` if its client cannot be asked, and has not been.
    pub(crate) fn of(
        key: &StateKey,
        request: &mut CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<Self>, ErrorData> {
        let (state, responses) = (request.request_state.take(), request.input_responses.take());
        let is_again = state.is_some() || responses.is_some();
        let is_asked = is_newest(context) && context.client_capabilities().is_some_and(|it| questions::has_forms(&it));
        if !is_again && !is_asked {
            return Ok(None);
        }
        let mut arguments = json!(request.arguments);
        // A client may write their members in another order.
        arguments.sort_all_objects();
        let call = format!("{} {arguments}", request.name);
        let open = |state: String| key.0.open_json_with::<CallState>(&state, call.as_bytes()).ok();
        let place = state.and_then(open);
        if is_again && place.is_none() {
            return Err(error::unknown_state());
        }
        Ok(Some(Self { key: key.clone(), call, is_asked, resumed: place, responses: responses.unwrap_or_default() }))
    }

    /// Decides what still waits by the client's responses. A call whose answer is missing or does not fit goes on waiting.
    pub(crate) async fn decide(&mut self, service: &dyn SessionService) -> Result<(), SessionError> {
        let Some(place) = self.resumed.as_ref().filter(|_| !self.responses.is_empty()) else { return Ok(()) };
        let accepted = &place.accepted;
        for call in waiting(service, accepted, place.before).await? {
            let response = self.responses.remove(&call.call_id).and_then(|it| serde_json::from_value(it).ok());
            let Some(mut answer): Option<ElicitResult> = response else { continue };
            if answer.action == ElicitationAction::Cancel {
                // The question is closed, and no other is open meanwhile: leaving it would hold the turn up.
                answer.action = ElicitationAction::Decline;
            }
            let decided = questions::decided(accepted.session_id, call.call_id, call.form.is_some(), answer);
            let Some(decided) = decided else { continue };
            if let Err(error) = service.decide_approval(decided).await {
                tracing::info!(%error, "a response decided nothing");
            }
        }
        Ok(())
    }

    /// The answer that asks about what waits, if anything does.
    pub(crate) async fn ask(
        &self,
        service: &dyn SessionService,
        place: CallState,
    ) -> Result<Option<InputRequiredResult>, SessionError> {
        if !self.is_asked {
            return Ok(None);
        }
        let mut requests = InputRequests::new();
        for call in waiting(service, &place.accepted, place.before).await? {
            if let Some(form) = questions::form_of(&call) {
                requests.insert(call.call_id, InputRequest::Elicitation(ElicitRequest::new(form)));
            }
        }
        if requests.is_empty() {
            return Ok(None);
        }
        let options = SealOptions::new().associated_data(self.call.as_bytes());
        let state = self.key.0.seal_json_with(&place, &options);
        let state =
            state.map_err(|error| SessionError::Internal(format!("a state cannot be encoded as JSON: {error}")))?;
        Ok(Some(InputRequiredResult::new(Some(requests), Some(state))))
    }
}

/// Whether a request is of a revision in which a server sends none of its own.
pub(crate) fn is_newest(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| !version.has_initialize())
}

/// The last event before the questions that a line says to look for: a call of the turn waits, or the request steered a
/// turn that may wait already.
pub(crate) fn asked_since(accepted: &TurnAccepted, line: &[u8]) -> Option<Seq> {
    let record = record(accepted, line)?;
    match record.event {
        Event::ApprovalRequested(_) => Some(record.seq - 1),
        Event::TurnSteered(steered) if record.seq == accepted.seq => Some(steered.started),
        _ => None,
    }
}

/// The record of a line of this turn. A live event has none.
fn record(accepted: &TurnAccepted, line: &[u8]) -> Option<Record> {
    let record = wire::decode_event(std::str::from_utf8(line).ok()?).ok()?;
    (record.turn == Some(accepted.turn)).then_some(record)
}

/// The questions of a turn after an event that wait now. Every build has the events.
pub(crate) async fn waiting(
    service: &dyn SessionService,
    accepted: &TurnAccepted,
    before: Seq,
) -> Result<Vec<ApprovalRequested>, SessionError> {
    let (mut waiting, mut since) = (Vec::<ApprovalRequested>::new(), before);
    loop {
        let page = service.events(ReadEvents::new(accepted.session_id, since)).await?;
        if page.items.is_empty() {
            return Ok(waiting);
        }
        since = page.next_seq;
        for record in page.items.iter().filter_map(|line| record(accepted, line)) {
            match record.event {
                Event::ApprovalRequested(call) => waiting.push(call),
                Event::ApprovalDecided(decided) => waiting.retain(|call| call.call_id != decided.call_id),
                Event::ToolFinished(done) => waiting.retain(|call| !is_of(call, &done.call_id)),
                Event::TurnCompleted(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_) => waiting.clear(),
                _ => {}
            }
        }
    }
}

/// Whether a question is about this call, or of its server while it runs.
fn is_of(question: &ApprovalRequested, call_id: &str) -> bool {
    question.call_id == call_id || question.form.as_ref().is_some_and(|form| form.call_id == call_id)
}
