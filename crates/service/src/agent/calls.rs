//! Tools that the session's caller runs: which it has, the requests of their calls, and the answers. Which call is
//! requested, and when, is decided in `decide.rs`.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_words::calls::{CallContent, CallOutcome};
use tokio::sync::mpsc;

use super::{Ports, actor::Actor};
use crate::{
    SessionError,
    clock::Timestamp,
    service::{AnswerCall, StartTurn, TurnHandle, TurnResult},
    session::{
        event::{CallAnswered, CallRequested, ClientToolsChanged, Event, ToolFinished, ToolOutcome, TurnStarted},
        message::Body,
    },
    store::StoreError,
    tool::{ClientTools, Effect, MESSAGE_BYTES_MAX, OutputLimits, OutputSink, ToolError, prefix},
};

/// Longest time between two looks at the clock while calls wait: a machine that sleeps stops the timers, but not the time
/// of a deadline.
const LOOK: Duration = Duration::from_secs(60);

impl Actor {
    /// Returns the hash of the tools that a request brings, and the event that is recorded before its turn, if there is
    /// one to record.
    pub(super) fn tools_of_request(&self, request: &StartTurn, queued: bool) -> (Option<String>, Option<Event>) {
        let Some(tools) = &request.client_tools else { return (None, None) };
        let tools = ClientTools::clean(tools, &self.ports.secrets);
        let hash = ClientTools::hash_of(&tools);
        let changed = match self.session.client_tools_of(&hash) {
            None if self.session.has_client_tools(&hash) => None,
            None => Some((Some(tools), None)),
            Some(set) if !queued && !self.session.has_client_tools(&hash) => Some((None, Some(set.seq))),
            Some(_) => None,
        };
        let changed = changed.map(|(tools, defined)| {
            let hash = hash.clone();
            Event::ClientToolsChanged(ClientToolsChanged { hash, tools, defined, queued })
        });
        (Some(hash), changed)
    }

    /// Makes the event by which the tools of a turn from the queue become the session's, unless they are already.
    pub(super) fn queued_tools(&self, started: &TurnStarted) -> Option<Event> {
        let hash = started.client_tools.as_ref().filter(|hash| !self.session.has_client_tools(hash))?;
        let (tools, defined) = match self.session.client_tools_of(hash) {
            Some(set) => (None, Some(set.seq)),
            // A session that never had a tool has no event that defines none.
            None => (Some(Vec::new()).filter(|none| ClientTools::hash_of(none) == *hash), None),
        };
        let changed = ClientToolsChanged { hash: hash.clone(), tools, defined, queued: false };
        (changed.tools.is_some() || defined.is_some()).then_some(Event::ClientToolsChanged(changed))
    }

    /// Requests calls from the session's caller, all at once.
    pub(super) async fn request_calls(&mut self, calls: &[String]) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, now) = (open.turn, self.ports.world.clock.now());
        let wanted = open.calls.iter().map(|call| &call.call).filter(|call| calls.contains(&call.call_id));
        let events = wanted.map(|call| {
            let tool = self.session.client_tools.as_ref().and_then(|tools| tools.get(&call.name));
            let timeout_ms =
                tool.and_then(|tool| tool.timeout_ms).unwrap_or(self.ports.options.tools.client_timeout_ms);
            let deadline = Timestamp::from_millis(now.as_millis().saturating_add_unsigned(timeout_ms));
            let effect = tool.map_or(Effect::Once, |tool| tool.effect);
            let (call_id, name, arguments) = (call.call_id.clone(), call.name.clone(), call.arguments.clone());
            Event::CallRequested(CallRequested { call_id, name, arguments, effect, deadline })
        });
        let events = events.collect();
        self.record_durably(Some(turn), events).await.map(drop)
    }

    /// Waits until a caller answers a call, or until one has waited too long. That time does not count for the turn's budget,
    /// unless it waits for sub-agents, which use it.
    pub(super) async fn await_callers(&mut self) {
        if self.session.open_turn().is_some_and(|open| open.delegating().next().is_some()) {
            self.attend_children();
            let command = self.next_command(Duration::from_millis(self.wall_left_ms())).await;
            return self.heed(command).await;
        }
        self.notify_callers().await;
        let since = self.ports.world.clock.elapsed();
        // Add 1 because both clocks round down.
        let left = self.call_left_ms().min(self.drain_left_ms()).saturating_add(1);
        let command = self.next_command(Duration::from_millis(left).min(LOOK)).await;
        self.running.turn_started += self.ports.world.clock.elapsed().saturating_sub(since);
        self.heed(command).await;
    }

    /// Milliseconds until the first deadline of a call that waits.
    fn call_left_ms(&self) -> u64 {
        let requested = self.session.open_turn().into_iter().flat_map(|open| open.requested());
        let first = requested.map(|requested| requested.call.deadline).min();
        let now = self.ports.world.clock.now().as_millis();
        first.map_or(u64::MAX, |first| u64::try_from(first.as_millis().saturating_sub(now)).unwrap_or(0))
    }

    /// Notifies those who wait for the turn, and for calls of it.
    async fn notify_callers(&mut self) {
        let Some(open) = self.session.open_turn() else { return };
        let Some(waiters) = self.waiting.waiters.get_mut(&open.turn) else { return };
        let (callers, others): (Vec<_>, Vec<_>) = std::mem::take(waiters).into_iter().partition(|it| it.answers_calls);
        *waiters = others;
        if callers.is_empty() {
            return;
        }
        let calls: Vec<_> = open.requested().map(|requested| (*requested.call).clone()).collect();
        let result = self.ports.result(self.session.id, &open.waiting(&calls)).await;
        let result = result.map(|result| TurnResult { calls, ..result });
        callers.into_iter().for_each(|caller| caller.send(result.clone()));
    }

    /// Milliseconds for which a call has waited.
    pub(super) fn waited_ms(&self, since: Timestamp) -> u64 {
        let waited = self.ports.world.clock.now().as_millis().saturating_sub(since.as_millis());
        if self.ports.world.is_frozen { 0 } else { u64::try_from(waited).unwrap_or(0) }
    }

    /// Takes the answer to a call. The same answer again gets what the first one got.
    pub(super) async fn answer_call(&mut self, request: &AnswerCall, hash: &str) -> Result<TurnHandle, SessionError> {
        self.shared.check_writable()?;
        let now = self.ports.world.clock.now();
        let open = self.session.open_turn();
        let requested = open.and_then(|open| {
            let mut requested = open.requested().filter(|requested| requested.call.deadline > now);
            let requested = requested.find(|requested| requested.call.call_id == request.call_id)?;
            Some((open.turn, open.seq, requested.call.name.clone(), requested.time))
        });
        let Some((turn, started, name, since)) = requested else {
            return match self.session.answer(&request.call_id).cloned() {
                Some(used) if used.request == hash => Ok(self.again(used, request.wait).await),
                Some(_) => Err(SessionError::AlreadyAnswered { call_id: request.call_id.clone() }),
                None => Err(SessionError::ItemNotFound("call")),
            };
        };
        let mut finished = content(&self.ports, request, name).await?;
        finished.duration_ms = self.waited_ms(since);
        let (call_id, answer_hash) = (request.call_id.clone(), hash.to_owned());
        let answered = CallAnswered { call_id, outcome: request.outcome, answer_hash, started };
        let seq = self.session.last_seq + 1;
        let events = vec![Event::CallAnswered(answered), Event::ToolFinished(finished)];
        self.record_durably(Some(turn), events).await.map_err(|error| self.discard(&error))?;
        self.release_held();
        Ok(self.accepted(turn, seq, request.wait))
    }
}

/// Makes the result of an answered call, with the bounds that the output of every tool has.
pub(super) async fn content(ports: &Ports, request: &AnswerCall, name: String) -> Result<ToolFinished, SessionError> {
    let options = &ports.options.tools;
    let limits = OutputLimits {
        inline_bytes: options.inline_bytes,
        hard_cap_bytes: options.max_output_bytes,
        ..OutputLimits::default()
    };
    let (secrets, blobs) = (&ports.secrets, ports.blobs.clone());
    let sink = OutputSink::new(limits, blobs, request.session_id, secrets.stream(), mpsc::channel(1).0);
    let refused = |error: ToolError| match error {
        ToolError::OutputTooLarge { limit } => {
            SessionError::PayloadTooLarge { what: "answer", bytes: limit.saturating_add(1), limit }
        }
        error => {
            tracing::error!(%error, "an answer to a call could not be stored");
            SessionError::StoreFailed
        }
    };
    for (at, part) in request.content.iter().enumerate() {
        if at > 0 {
            sink.write("\n").await.map_err(refused)?;
        }
        match part {
            CallContent::Text(text) => sink.write(text).await,
            CallContent::Json(value) => sink.write(secrets.replace_json(value).as_str()).await,
            CallContent::Image { data, .. } => sink.image(&BASE64_STANDARD.decode(data).unwrap_or_default()).await,
        }
        .map_err(refused)?;
    }
    let output = sink.finish().await.map_err(refused)?;
    if sink.is_full().await {
        return Err(refused(ToolError::OutputTooLarge { limit: limits.hard_cap_bytes }));
    }
    let (outcome, error) = match request.outcome {
        CallOutcome::Succeeded => (ToolOutcome::Succeeded, None),
        CallOutcome::Failed => (ToolOutcome::Failed, Some(failure(&output))),
    };
    let images = sink.take_images().await;
    let call_id = request.call_id.clone();
    Ok(ToolFinished { error, images, ..ToolFinished::new(call_id, name, outcome, output) })
}

/// The error of a call that failed at its caller, which says why in the output.
fn failure(output: &Body) -> ErrorBody {
    match prefix(&output.excerpt(), MESSAGE_BYTES_MAX).trim() {
        "" => ErrorBody::new(ErrorCode::ToolFailed),
        why => ErrorBody::with_message(ErrorCode::ToolFailed, why),
    }
}
