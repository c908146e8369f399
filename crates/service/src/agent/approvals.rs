//! Approvals: the questions about calls, and their decisions. Which call asks is decided in `decide.rs`.

use std::sync::Arc;

use super::actor::Actor;
use crate::{
    SessionError,
    service::{Changed, DecideApproval},
    session::{
        Asked, CallProgress, OpenTurn, RULES_MAX,
        event::{ApprovalDecided, ApprovalRequested, Decision, Event, Scope, ToolAllowed},
    },
    store::StoreError,
    tool::RuleKeeper,
};

impl Actor {
    /// Asks for approval of these calls.
    pub(super) async fn request_approvals(&mut self, calls: Vec<String>) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let turn = open.turn;
        let wanted = open.calls.iter().map(|call| &call.call).filter(|call| calls.contains(&call.call_id));
        let events = wanted
            .map(|call| {
                let (call_id, name, arguments) = (call.call_id.clone(), call.name.clone(), call.shown_arguments());
                let plan = self.control.plans.get(&call_id).and_then(|plan| plan.as_ref().ok());
                let preview = plan.and_then(|plan| plan.preview.clone());
                // A tool may have made it of what a model wrote.
                let is_plain = |rule: &String| !rule.chars().any(char::is_control);
                let rule = plan.and_then(|plan| plan.rule.clone()).filter(is_plain);
                Event::ApprovalRequested(ApprovalRequested { call_id, name, arguments, preview, rule })
            })
            .collect();
        self.running.asked_at = self.ports.world.clock.elapsed();
        self.record_durably(Some(turn), events).await.map(drop)
    }

    /// Denies calls that nobody decided in time.
    pub(super) async fn expire_approvals(&mut self, calls: Vec<String>) -> Result<(), StoreError> {
        let turn = self.session.open_turn().map(|open| open.turn);
        let decided = |call_id| {
            let (decision, scope, reason) = (Decision::Deny, Scope::Once, Some("nobody decided in time".to_owned()));
            Event::ApprovalDecided(ApprovalDecided { call_id, decision, scope, reason })
        };
        self.record_durably(turn, calls.into_iter().map(decided).collect()).await.map(drop)
    }

    /// Decides a call that waits. Other calls go on waiting, even those that a newly allowed rule matches: somebody may
    /// be reading them.
    pub(super) async fn decide_approval(&mut self, request: DecideApproval) -> Result<Changed, SessionError> {
        let DecideApproval { session_id, call_id, decision, scope, reason } = request;
        self.shared.check_writable()?;
        if let Some(decided) = self.session.decision(&call_id) {
            return if (decided.decision, decided.scope) == (decision, scope) {
                Ok(Changed { session_id, seq: decided.seq })
            } else {
                Err(SessionError::AlreadyDecided { call_id, decision: decided.decision })
            };
        }
        let asked = self.session.open_turn().and_then(|open| Some((open.turn, asked(open, &call_id)?)));
        let Some((turn, asked)) = asked else { return Err(SessionError::ItemNotFound("call")) };
        let rule = match scope {
            Scope::Once => None,
            Scope::Session | Scope::Always => Some(asked.rule.clone().ok_or_else(|| {
                let message = "this call proposes no rule, so it can be allowed once only: approve it without a scope";
                SessionError::invalid("scope", message)
            })?),
        };
        let known = self.session.allowed_rules();
        let is_new = rule.as_ref().is_some_and(|rule| !known.contains(rule));
        if is_new && known.len() >= RULES_MAX {
            return Err(SessionError::QueueFull { what: "allowed rules", limit: RULES_MAX });
        }
        if let (Scope::Always, Some(rule)) = (scope, &rule) {
            let keeper = self.ports.rule_keeper.clone().filter(|_| self.ports.options.tools.remember);
            keep(keeper, rule.clone()).await?;
        }
        let allowed = rule.filter(|_| is_new);
        let allowed = allowed.map(|rule| Event::ToolAllowed(ToolAllowed { rule, call_id: call_id.clone() }));
        let reason = reason.map(|reason| self.ports.secrets.replace(&reason).into_owned());
        let decided = Event::ApprovalDecided(ApprovalDecided { call_id, decision, scope, reason });
        let seq = self.session.last_seq() + 1;
        let events = std::iter::once(decided).chain(allowed).collect();
        self.record_durably(Some(turn), events).await.map_err(|error| self.discard(&error))?;
        Ok(Changed { session_id, seq })
    }
}

/// Has the keeper keep a rule for all sessions.
async fn keep(keeper: Option<Arc<dyn RuleKeeper>>, rule: String) -> Result<(), SessionError> {
    let Some(keeper) = keeper else {
        let message = "rules are kept for always only from a terminal of their owner (`meerkat sessions approve \
                       --always`), or if tools.remember is true: use the scope `session`";
        return Err(SessionError::invalid("scope", message));
    };
    let kept = tokio::task::spawn_blocking(move || keeper.remember(&rule)).await;
    kept.unwrap_or_else(|_| Err(SessionError::Internal("the keeper of rules panicked".to_owned())))
}

fn asked<'a>(open: &'a OpenTurn, call_id: &str) -> Option<&'a Asked> {
    let call = open.calls.iter().find(|call| call.call.call_id == call_id)?;
    match &call.progress {
        CallProgress::Waiting(asked) => Some(asked),
        CallProgress::Proposed | CallProgress::Decided(..) | CallProgress::Started | CallProgress::Finished(_) => None,
    }
}
