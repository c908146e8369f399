//! Sub-agents at work: their sessions and turns, found again by id and key, and the reports of their ends. Everything here
//! may be done twice; what it does is known from the journals alone.

use std::{
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

use futures::FutureExt as _;
use meerkat_words::{agents::Delegated, calls::CallOutcome};
use tokio_util::task::AbortOnDropHandle;

use super::sessions::{Inner, Sessions};
use crate::{
    SessionError,
    agent::{
        command::Command,
        decide::PROCESS_ENDED,
        delegate::{Agents, ChildEnded, Order},
    },
    cost::Cost,
    ids::SessionId,
    options::{Budget, Budgets},
    service::{DeleteSession, InterruptTurn, ResumeTurn, SessionService as _, TurnHandle, TurnResult, TurnStatus},
};

/// First and longest pause after a failure of the store.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl Sessions {
    /// Has sub-agents work when an actor asks for it.
    pub(super) fn serve_children(&self) {
        let inner = Arc::downgrade(&self.inner);
        let attend = move |order: Order| {
            let Some(service) = inner.upgrade() else { return };
            let (child, work) = (order.child, Work { inner: inner.clone(), order });
            let task = AbortOnDropHandle::new(tokio::spawn(async move { work.attend().await }));
            let mut working = service.children.lock().unwrap_or_else(PoisonError::into_inner);
            working.retain(|_, task| !task.is_finished());
            // An actor that was lost has a successor, which asks again: one task works for each sub-agent.
            working.insert(child, task);
        };
        let (listed, deleted) = (Arc::downgrade(&self.inner), Arc::downgrade(&self.inner));
        let of = |inner: &Weak<Inner>| inner.upgrade().map(Self::of).ok_or(SessionError::ShuttingDown);
        let below = move |session_id| {
            let service = of(&listed);
            async move { service?.below(session_id).await }.boxed()
        };
        let delete = move |session_id| {
            let service = of(&deleted);
            let request = DeleteSession { session_id, force: true };
            async move { service?.delete_alone(request).await.map(drop) }.boxed()
        };
        let agents = Agents { attend: Box::new(attend), below: Box::new(below), delete: Box::new(delete) };
        drop(self.engine().agents.set(agents));
    }
}

/// Work of one sub-agent.
struct Work {
    /// Weak: no sub-agent keeps the service alive.
    inner: Weak<Inner>,
    order: Order,
}

impl Work {
    fn service(&self) -> Result<Sessions, SessionError> {
        self.inner.upgrade().map(Sessions::of).ok_or(SessionError::ShuttingDown)
    }

    /// Has the sub-agent work and reports its end, unless the next start does.
    async fn attend(self) {
        let parent = &self.order.descent.parent;
        let (mut pause, mut has_begun) = (PAUSE, false);
        let Report { outcome, text, used } = loop {
            match self.work(&mut has_begun).await {
                Ok(ended) => break ended,
                Err(SessionError::ShuttingDown) => return,
                Err(error) if is_for_good(&error) => break Report::refused(&error, has_begun),
                Err(error) => tracing::warn!(%error, child = %self.order.child, "a sub-agent is asked again"),
            }
            self.pause(&mut pause).await;
        };
        let (call_id, child) = (parent.call_id.clone(), self.order.child);
        let ended = Arc::new(ChildEnded { call_id, child, outcome, text, used });
        loop {
            let Ok(service) = self.service() else { return };
            match service.ask(parent.session_id, |reply| Command::ChildEnded { ended: ended.clone(), reply }).await {
                // Another node has the session that called, and attends to it.
                Ok(()) | Err(SessionError::ShuttingDown | SessionError::HeldBy { .. }) => return,
                Err(error) if is_for_good(&error) => return,
                Err(error) => tracing::warn!(%error, %child, "the end of a sub-agent is reported again"),
            }
            drop(service);
            self.pause(&mut pause).await;
        }
    }

    async fn pause(&self, pause: &mut Duration) {
        let Ok(clock) = self.service().map(|service| service.engine().world.clock.clone()) else { return };
        clock.sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
    }

    /// Makes the session and its turn, or finds them, and waits for the end. A turn that was cut off with its process goes
    /// on once.
    async fn work(&self, has_begun: &mut bool) -> Result<Report, SessionError> {
        let Order { child, descent, reserved, create, start, .. } = &self.order;
        let service = self.service()?;
        if service.engine().events.tail(*child).await?.is_none() {
            // Its session may be going: nothing is made below it any more.
            if self.order.end.is_cancelled() {
                return Err(SessionError::Interrupted { turn: descent.parent.turn });
            }
            service.create_as(create.clone(), Some((*child, descent.clone()))).await?;
        }
        let begun = service.begin_turn(start.clone()).await?;
        *has_begun = true;
        drop(service);
        let first = self.until_end(begun).await?;
        let Some(budgets) = rest(*reserved, &first) else { return Ok(Report::of(*child, &first, None)) };
        let again = ResumeTurn {
            budgets,
            attended: start.attended,
            allow: start.allow.clone(),
            access: start.access,
            search_path: start.search_path.clone(),
            wait: false,
            idempotency_key: start.idempotency_key.as_ref().map(|key| format!("{key}:2")),
            ..ResumeTurn::default()
        };
        let begun = self.service()?.begin_resume(child, again).await;
        match begun {
            Ok(begun) => {
                let second = self.until_end(begun).await?;
                Ok(Report::of(*child, &second, Some(&first)))
            }
            // Somebody else has gone on with it meanwhile.
            Err(SessionError::NothingToResume | SessionError::Busy { .. }) => Ok(Report::of(*child, &first, None)),
            Err(error) => Err(error),
        }
    }

    /// Waits for the end of the turn, and interrupts it if the turn that called ends.
    async fn until_end(&self, begun: TurnHandle) -> Result<TurnResult, SessionError> {
        let TurnHandle { accepted, mut result, .. } = begun;
        tokio::select! {
            biased;
            ended = &mut result => return ended,
            () = self.order.end.cancelled() => {}
        }
        let interrupt = InterruptTurn { session_id: accepted.session_id, turn: Some(accepted.turn) };
        let interrupted = self.service()?.interrupt(interrupt).await;
        match interrupted {
            Ok(_) | Err(SessionError::NotRunning { .. }) => result.await,
            Err(error) => Err(error),
        }
    }
}

/// Returns what is left for a turn that was cut off with its process; `None` if it ended otherwise, or nothing is left.
fn rest(reserved: Budgets, first: &TurnResult) -> Option<Budgets> {
    let reason = first.error.as_ref().and_then(|error| error.details.get("reason")?.as_str());
    if first.status != TurnStatus::Interrupted || !matches!(reason, Some(PROCESS_ENDED | "shutting_down")) {
        return None;
    }
    let used = used(first);
    let used = |budget| match budget {
        Budget::Tokens => used.tokens,
        Budget::Steps => used.steps,
        Budget::ToolCalls => used.tool_calls,
        Budget::Cost => used.cost.map_or(u64::MAX, Cost::micros),
        Budget::Agents => used.agents,
        Budget::WallMs => 0,
    };
    let rest = Budgets::of(|budget| Some(reserved.limit(budget)?.units().saturating_sub(used(budget))));
    rest.check().is_ok().then_some(rest)
}

/// Adds up what a turn and its sub-agents used.
fn used(result: &TurnResult) -> Delegated {
    let own = Delegated {
        agents: 0,
        steps: result.steps.into(),
        tool_calls: result.tool_calls.into(),
        tokens: result.usage.total(),
        cost: result.cost,
    };
    own.and(result.delegated.unwrap_or(Delegated::NOTHING))
}

/// What the model reads of a sub-agent's end, and what it used.
struct Report {
    outcome: CallOutcome,
    text: String,
    /// `None` if it is not known.
    used: Option<Delegated>,
}

impl Report {
    fn of(child: SessionId, last: &TurnResult, first: Option<&TurnResult>) -> Self {
        let itself = Delegated { agents: 1, ..Delegated::NOTHING };
        let used = itself.and(used(last)).and(first.map_or(Delegated::NOTHING, used));
        let said = last.output.as_ref().map_or(last.text.as_str(), |output| output.as_str());
        let why = last.error.as_ref().map_or("it gave no answer", |error| error.message.as_str());
        let (outcome, text) = match last.status {
            TurnStatus::Completed if said.is_empty() => {
                (CallOutcome::Succeeded, "The sub-agent gave no answer.".to_owned())
            }
            TurnStatus::Completed => (CallOutcome::Succeeded, said.to_owned()),
            TurnStatus::Interrupted | TurnStatus::Failed | TurnStatus::Waiting if said.is_empty() => {
                (CallOutcome::Failed, format!("The sub-agent did not finish: {why}"))
            }
            TurnStatus::Interrupted | TurnStatus::Failed | TurnStatus::Waiting => {
                (CallOutcome::Failed, format!("The sub-agent did not finish: {why}\nBefore that it said: {said}"))
            }
        };
        Self { outcome, text: format!("{text}\n[sub-agent {child}]"), used: Some(used) }
    }

    /// A sub-agent that could not work, or was lost.
    fn refused(error: &SessionError, has_begun: bool) -> Self {
        let text = format!("The sub-agent could not work: {}", error.body().message);
        let used = (!has_begun).then_some(Delegated { agents: 1, ..Delegated::NOTHING });
        Self { outcome: CallOutcome::Failed, text, used }
    }
}

/// Returns true if asking again would fail again.
fn is_for_good(error: &SessionError) -> bool {
    let may_pass = matches!(error, SessionError::HeldBy { .. } | SessionError::TakenOver(_));
    !may_pass && !error.body().retryable
}
