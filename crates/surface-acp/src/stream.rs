//! A turn, shown as it comes up to its end: its updates, and questions about its calls.

use std::{convert::Infallible, future::pending};

use agent_client_protocol_schema::v1;
use meerkat_errors::ErrorCode;
use meerkat_service::{
    SessionError, SessionId,
    follow::{
        Follower,
        below::{Below, SubAgent},
        turn::{FollowedTurn, TurnStep, stop},
    },
    model::StopReason as Stopped,
    service::{PendingApproval, TurnHandle, TurnResult, TurnStatus},
    session::event::{ApprovalRequested, Event, Record},
    tool::Form,
};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::Agent,
    permissions::Permissions,
    updates::{Updates, ended_below, progress_below, said},
};

/// The client of a turn.
pub(crate) struct Watcher<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) session_id: SessionId,
    /// Cancelled when the client cancels the turn.
    pub(crate) cancelled: &'a CancellationToken,
    /// Cancelled when the client is gone or watches the turn no more, which cancels no turn.
    pub(crate) gone: &'a CancellationToken,
}

impl Watcher<'_> {
    /// Shows a turn up to its end, and asks about its calls, first about those that waited before.
    pub(crate) async fn watch(
        &self,
        handle: TurnHandle,
        follower: Option<Follower>,
        mut updates: Updates,
        waiting: Vec<PendingApproval>,
    ) -> Result<v1::StopReason, SessionError> {
        let accepted = handle.accepted.clone();
        // Each turn has its own watcher, so that nothing is shown twice.
        updates.only = Some(accepted.turn);
        let stopped = async {
            self.cancelled.cancelled().await;
            stop(self.agent.service.as_ref(), &accepted).await;
            pending::<Infallible>().await
        };
        let mut permissions = Permissions::new(self.agent, self.session_id, self.cancelled);
        let ended = tokio::select! {
            biased;
            () = self.gone.cancelled() => Ok(v1::StopReason::Cancelled),
            never = stopped => match never {},
            ended = self.follow(FollowedTurn::new(handle, follower), updates, waiting, &mut permissions) => ended,
        };
        permissions.withdraw().await;
        ended
    }

    async fn follow(
        &self,
        mut turn: FollowedTurn,
        mut updates: Updates,
        waiting: Vec<PendingApproval>,
        permissions: &mut Permissions<'_>,
    ) -> Result<v1::StopReason, SessionError> {
        for call in waiting.into_iter().filter(|call| Some(call.turn) == updates.only) {
            let PendingApproval { call_id, name, arguments, preview, rule, form, .. } = call;
            let call = ApprovalRequested { call_id, name, arguments, preview, rule, form };
            self.ask(permissions, &updates, &call).await;
        }
        let mut below = Below::new(self.agent.service.clone());
        loop {
            let step = tokio::select! {
                biased;
                never = permissions.carry_on() => match never {},
                step = turn.next() => step,
                (sub_agent, record) = below.next() => {
                    let shown = self.see_below(permissions, &updates, &sub_agent, &record).await;
                    self.agent.show(self.session_id, shown).await;
                    continue;
                }
            };
            let seen = match step {
                TurnStep::Line(line) => updates.see(&line).await,
                TurnStep::Lost(error) => Err(error),
                TurnStep::End(Ok(result)) => return self.end(&result).await,
                // It was cancelled while it waited for its place.
                TurnStep::End(Err(SessionError::Interrupted { .. })) => return Ok(v1::StopReason::Cancelled),
                TurnStep::End(Err(error)) => return Err(error),
            };
            let (shown, record) = match seen {
                Ok(seen) => seen,
                // The turn's end still comes.
                Err(error) => {
                    tracing::warn!(%error, "the turn's events can be shown no further");
                    turn.stop_lines();
                    let words = format!("What follows cannot be shown: {error}");
                    (self.agent.shows().notice(v1::NoticeSeverity::Error, &words).into_iter().collect(), None)
                }
            };
            if !self.agent.show(self.session_id, shown).await {
                return Ok(v1::StopReason::Cancelled);
            }
            let Some(record) = record.filter(|record| record.turn == updates.only) else { continue };
            below.take(&record);
            match record.event {
                Event::ApprovalRequested(call) => self.ask(permissions, &updates, &call).await,
                Event::ApprovalDecided(decided) => permissions.settle(self.session_id, &decided.call_id),
                Event::ToolFinished(finished) => permissions.settle(self.session_id, &finished.call_id),
                _ => {}
            }
        }
    }

    /// Makes the updates of what a sub-agent does: the newest is the progress of the call that it works for. What it asks
    /// is asked here, about a call of its own.
    async fn see_below(
        &self,
        permissions: &mut Permissions<'_>,
        updates: &Updates,
        sub_agent: &SubAgent,
        record: &Record,
    ) -> Vec<v1::SessionUpdate> {
        let session_id = sub_agent.session_id;
        match &record.event {
            Event::ApprovalRequested(call) => {
                match &call.form {
                    Some(form) if !self.agent.shows().forms => self.note_form(session_id, form).await,
                    _ => permissions.ask(session_id, call, updates.asked_below(sub_agent, call)),
                }
                Vec::new()
            }
            Event::ApprovalDecided(decided) => {
                permissions.settle(session_id, &decided.call_id);
                Vec::new()
            }
            Event::ToolFinished(finished) => {
                let was_asked = permissions.knows(session_id, &finished.call_id);
                permissions.settle(session_id, &finished.call_id);
                was_asked.then(|| ended_below(session_id, finished)).into_iter().collect()
            }
            Event::AssistantMessage(_) | Event::ToolStarted(_) => vec![progress_below(sub_agent, &record.event)],
            _ => Vec::new(),
        }
    }

    /// Asks about a call, or what a server asks. A client that shows no forms hears where to answer.
    async fn ask(&self, permissions: &mut Permissions<'_>, updates: &Updates, call: &ApprovalRequested) {
        match &call.form {
            Some(form) if !self.agent.shows().forms => self.note_form(self.session_id, form).await,
            _ => {
                let shown = updates.asked(&call.call_id, &call.name, call.preview.as_deref());
                permissions.ask(self.session_id, call, shown);
            }
        }
    }

    async fn note_form(&self, session_id: SessionId, form: &Form) {
        let words = format!(
            "The tool server {} asks: {} Answer it in `meerkat chat {session_id}` or in the console.",
            form.server, form.message
        );
        // Otherwise its user would see a call that hangs.
        let notice = self.agent.shows().notice(v1::NoticeSeverity::Warning, &words);
        self.agent.show(self.session_id, [notice.unwrap_or_else(|| said(&words))]).await;
    }

    /// Says how a turn ended.
    async fn end(&self, result: &TurnResult) -> Result<v1::StopReason, SessionError> {
        match (result.status, &result.error) {
            (TurnStatus::Interrupted, _) => Ok(v1::StopReason::Cancelled),
            (TurnStatus::Failed, Some(error)) if error.code == ErrorCode::BudgetExhausted => {
                Ok(v1::StopReason::MaxTurnRequests)
            }
            (TurnStatus::Failed, Some(error)) => Err(SessionError::Failed(Box::new(error.clone()))),
            (TurnStatus::Failed, None) => Err(SessionError::Internal("a turn failed without why".to_owned())),
            (TurnStatus::Waiting, _) => {
                let words = "The turn waits for the program whose tools it calls.";
                self.agent.show(self.session_id, self.agent.shows().notice(v1::NoticeSeverity::Warning, words)).await;
                Ok(v1::StopReason::EndTurn)
            }
            (TurnStatus::Completed, _) => Ok(match result.stop_reason {
                Some(Stopped::MaxTokens) => v1::StopReason::MaxTokens,
                Some(Stopped::Refusal | Stopped::ContentFilter) => v1::StopReason::Refusal,
                Some(Stopped::EndTurn | Stopped::ToolUse | Stopped::Empty) | None => v1::StopReason::EndTurn,
            }),
        }
    }
}
