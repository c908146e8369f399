//! A turn, shown as it comes up to its end: its updates, and questions about its calls.

use std::{pin::pin, sync::Arc};

use agent_client_protocol_schema::v1;
use meerkat_errors::ErrorCode;
use meerkat_service::{
    SessionError, SessionId, SessionService,
    follow::{
        Follower,
        turn::{FollowedTurn, TurnStep},
    },
    model::StopReason as Stopped,
    service::{CancelQueued, InterruptTurn, PendingApproval, TurnAccepted, TurnHandle, TurnResult, TurnStatus},
    session::event::{ApprovalRequested, Event},
};
use tokio_util::sync::CancellationToken;

use crate::{
    permissions::Permissions,
    updates::{Shows, Updates},
    wire::Peer,
};

/// The client of a turn.
pub(crate) struct Watcher<'a> {
    pub(crate) service: &'a Arc<dyn SessionService>,
    pub(crate) peer: &'a Peer,
    pub(crate) session_id: SessionId,
    pub(crate) shows: Shows,
    /// Cancelled when the client cancels the turn.
    pub(crate) cancelled: &'a CancellationToken,
    /// Cancelled when the client is gone or watches the turn no more, which cancels no turn.
    pub(crate) gone: &'a CancellationToken,
}

/// Sends updates of a session; returns `false` if the client is gone.
pub(crate) async fn show(peer: &Peer, session_id: SessionId, updates: Vec<v1::SessionUpdate>) -> bool {
    for update in updates {
        let notification = v1::SessionNotification::new(session_id.to_string(), update);
        if !peer.notify("session/update", &notification).await {
            return false;
        }
    }
    true
}

impl Watcher<'_> {
    /// Sends updates; returns `false` if the client is gone.
    async fn send(&self, updates: Vec<v1::SessionUpdate>) -> bool {
        show(self.peer, self.session_id, updates).await
    }

    /// Shows a turn up to its end, and asks about its calls, first about those that waited before.
    pub(crate) async fn watch(
        &self,
        handle: TurnHandle,
        follower: Option<Follower>,
        mut updates: Updates,
        waiting: Vec<PendingApproval>,
    ) -> Result<v1::StopReason, SessionError> {
        let (service, accepted) = (self.service.as_ref(), handle.accepted.clone());
        let mut permissions = Permissions::new(service, self.peer, self.session_id);
        for call in waiting.into_iter().filter(|call| call.turn == accepted.turn) {
            let PendingApproval { call_id, name, arguments, preview, rule, form, .. } = call;
            let call = ApprovalRequested { call_id, name, arguments, preview, rule, form };
            self.ask(&mut permissions, &updates, &call).await;
        }
        // Each turn has its own watcher, so that nothing is shown twice.
        updates.only = Some(accepted.turn);
        let mut turn = FollowedTurn::new(handle, follower);
        let mut is_cancelled = false;
        loop {
            let step = tokio::select! {
                biased;
                () = self.gone.cancelled() => {
                    permissions.withdraw().await;
                    return Ok(v1::StopReason::Cancelled);
                }
                () = self.cancelled.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    permissions.cancelled();
                    stop(service, &accepted).await;
                    continue;
                }
                never = permissions.carry_on() => match never {},
                step = turn.next() => step,
            };
            match step {
                TurnStep::Line(line) => match updates.see(&line).await {
                    Ok((shown, record)) => {
                        let mut sending = pin!(self.send(shown));
                        let is_sent = loop {
                            tokio::select! {
                                biased;
                                () = self.cancelled.cancelled(), if !is_cancelled => {
                                    is_cancelled = true;
                                    permissions.cancelled();
                                    stop(service, &accepted).await;
                                }
                                is_sent = &mut sending => break is_sent,
                            }
                        };
                        if !is_sent {
                            return Ok(v1::StopReason::Cancelled);
                        }
                        match record.filter(|record| record.turn == Some(accepted.turn)).map(|record| record.event) {
                            Some(Event::ApprovalRequested(call)) => self.ask(&mut permissions, &updates, &call).await,
                            Some(Event::ApprovalDecided(decided)) => permissions.settle(&decided.call_id),
                            Some(Event::ToolFinished(finished)) => permissions.settle(&finished.call_id),
                            _ => {}
                        }
                    }
                    Err(error) => self.lose(&mut turn, &error).await,
                },
                TurnStep::Lost(error) => self.lose(&mut turn, &error).await,
                TurnStep::End(ended) => {
                    permissions.withdraw().await;
                    return match ended {
                        Ok(result) => self.end(&result).await,
                        // It was cancelled while it waited for its place.
                        Err(SessionError::Interrupted { .. }) => Ok(v1::StopReason::Cancelled),
                        Err(error) => Err(error),
                    };
                }
            }
        }
    }

    /// Asks about a call. A question of a server is for another surface, which the client hears.
    async fn ask(&self, permissions: &mut Permissions<'_>, updates: &Updates, call: &ApprovalRequested) {
        let Some(form) = &call.form else {
            let shown = updates.asked(&call.call_id, &call.name, call.preview.as_deref());
            return permissions.ask(&call.call_id, shown, call.rule.as_deref());
        };
        let words = format!(
            "The tool server {} asks: {} Answer it in `meerkat chat {}` or in the console.",
            form.server, form.message, self.session_id
        );
        self.send(self.shows.notice(v1::NoticeSeverity::Warning, &words).into_iter().collect()).await;
    }

    /// Shows no further event. The turn's end still comes.
    async fn lose(&self, turn: &mut FollowedTurn, error: &SessionError) {
        tracing::warn!(%error, "the turn's events can be shown no further");
        turn.stop_lines();
        let words = format!("What follows cannot be shown: {error}");
        self.send(self.shows.notice(v1::NoticeSeverity::Error, &words).into_iter().collect()).await;
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
                self.send(self.shows.notice(v1::NoticeSeverity::Warning, words).into_iter().collect()).await;
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

/// Ends a turn: a queued one leaves the queue, a running one is interrupted.
async fn stop(service: &dyn SessionService, turn: &TurnAccepted) {
    let TurnAccepted { session_id, turn, .. } = *turn;
    if service.cancel_queued(CancelQueued { session_id, turn }).await.is_ok() {
        return;
    }
    if let Err(error) = service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await {
        tracing::debug!(%error, "a turn had ended before it was cancelled");
    }
}
