//! Sub-agents go where the session goes that called them: into the archive, away, and into a bundle.

use std::{
    collections::{HashMap, HashSet},
    sync::PoisonError,
};

use meerkat_words::calls::CallOutcome;

use super::sessions::Sessions;
use crate::{
    SessionError,
    agent::{
        command::{Change, Command},
        delegate::ChildEnded,
    },
    ids::SessionId,
    service::{Changed, DeleteSession, InterruptTurn, SessionService as _, SessionState, SessionSummary},
};

/// Sub-agents by the sessions that called them.
pub(super) struct Family {
    children: HashMap<SessionId, Vec<SessionSummary>>,
    /// Sessions that none called, or none that is there.
    pub(super) tops: Vec<SessionSummary>,
}

impl Family {
    pub(super) fn of(sessions: Vec<SessionSummary>) -> Self {
        let known: HashSet<SessionId> = sessions.iter().map(|session| session.session_id).collect();
        let (mut children, mut tops) = (HashMap::<_, Vec<_>>::new(), Vec::new());
        for session in sessions {
            match session.parent.as_ref().map(|parent| parent.session_id).filter(|parent| known.contains(parent)) {
                Some(parent) => children.entry(parent).or_default().push(session),
                None => tops.push(session),
            }
        }
        Self { children, tops }
    }

    /// Takes out the sub-agents below a session, each after its own.
    pub(super) fn below(&mut self, session_id: SessionId) -> Vec<SessionSummary> {
        let mut below = self.children.remove(&session_id).unwrap_or_default();
        let mut at = 0;
        while let Some(next) = below.get(at).map(|next| next.session_id) {
            below.extend(self.children.remove(&next).unwrap_or_default());
            at += 1;
        }
        below.reverse();
        below
    }
}

impl Sessions {
    /// Lists the sub-agents below a session, each after its own.
    pub(super) async fn below(&self, session_id: SessionId) -> Result<Vec<SessionSummary>, SessionError> {
        Ok(Family::of(self.all_sessions().await?).below(session_id))
    }

    /// Finds the sub-agent whose section comes next in a session's bundle: each comes after the session that called it.
    pub(super) async fn exported_after(
        &self,
        top: SessionId,
        section: SessionId,
        skips_damage: bool,
    ) -> Result<Option<SessionId>, SessionError> {
        // A damaged one may have some, whatever can be read of it.
        if section == top && !skips_damage && self.look(top).await.is_ok_and(|view| !view.has_children) {
            return Ok(None);
        }
        let below = self.below(top).await?;
        let mut order = [top].into_iter().chain(below.iter().rev().map(|child| child.session_id));
        order.find(|known| *known == section);
        Ok(order.next())
    }

    /// Archives a session and the sub-agents below it, or brings them back. Done again, it goes on where it ended.
    pub(super) async fn archive_tree(&self, session_id: SessionId, is_archived: bool) -> Result<Changed, SessionError> {
        let below = match self.look(session_id).await?.has_children {
            true => self.below(session_id).await?,
            false => Vec::new(),
        };
        if let Some(child) = below.iter().find(|child| child.state != SessionState::Idle) {
            return Err(SessionError::ChildWorks { session_id: child.session_id });
        }
        let changed = self.record(session_id, Change::Archive(is_archived)).await?;
        for child in below {
            match self.record(child.session_id, Change::Archive(is_archived)).await {
                Ok(_) | Err(SessionError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(changed)
    }

    /// Deletes a session with its sub-agents.
    pub(super) async fn delete_session(&self, request: DeleteSession) -> Result<Changed, SessionError> {
        self.end_its_call(request.clone()).await?;
        self.delete_alone(request).await
    }

    /// Ends the call of a sub-agent that is to be deleted, if that is open: a later start would make the sub-agent again.
    async fn end_its_call(&self, DeleteSession { session_id, force }: DeleteSession) -> Result<(), SessionError> {
        let summary = match self.look(session_id).await {
            Ok(view) => view.summary,
            // What cannot be read is deleted all the same; its call has failed for that reason.
            Err(_) => return Ok(()),
        };
        let Some(parent) = &summary.parent else { return Ok(()) };
        let its = match self.look(parent.session_id).await {
            Err(SessionError::NotFound(_)) => return Ok(()),
            its => its?.summary,
        };
        if matches!(its.state, SessionState::Idle | SessionState::Queued) {
            return Ok(());
        }
        match summary.state {
            SessionState::Idle => {}
            // It is refused.
            _ if !force => return Ok(()),
            _ => match self.interrupt(InterruptTurn { session_id, turn: None }).await {
                Ok(_) | Err(SessionError::NotRunning { .. }) => {}
                Err(error) => return Err(error),
            },
        }
        // Whoever waits for it knows what it used.
        let waits = self.inner.children.lock().unwrap_or_else(PoisonError::into_inner).remove(&session_id);
        if let Some(waits) = waits
            && let Err(error) = waits.await
        {
            tracing::warn!(%session_id, %error, "the end of a sub-agent was not reported");
        }
        let ended = std::sync::Arc::new(ChildEnded {
            call_id: parent.call_id.clone(),
            child: session_id,
            outcome: CallOutcome::Failed,
            text: "The sub-agent was deleted.".to_owned(),
            used: None,
        });
        self.ask(parent.session_id, |reply| Command::ChildEnded { ended: ended.clone(), reply }).await
    }
}
