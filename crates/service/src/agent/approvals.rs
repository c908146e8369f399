//! Approvals: the questions about calls, and their decisions. Which call asks is decided in `decide.rs`. A running call
//! may ask too, with a form; that question ends with the call.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::actor::Actor;
use crate::{
    SessionError,
    ids::TurnNumber,
    options::Unattended,
    service::{Changed, DecideApproval},
    session::{
        RULES_MAX,
        event::{ApprovalDecided, ApprovalRequested, Decision, Event, Scope, ToolAllowed},
        message::RawJson,
    },
    store::StoreError,
    tool::{Answer, Form, Question, RuleKeeper, complete},
};

/// Rule to keep for always, and its keeper.
type ToKeep = (Arc<dyn RuleKeeper>, String);

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
                Event::ApprovalRequested(ApprovalRequested { call_id, name, arguments, preview, rule, form: None })
            })
            .collect();
        self.running.asked_at = self.ports.world.clock.elapsed();
        self.record_durably(Some(turn), events).await.map(drop)
    }

    /// Denies calls for which no decision came in time.
    pub(super) async fn expire_approvals(&mut self, calls: Vec<String>) -> Result<(), StoreError> {
        let turn = self.session.open_turn().map(|open| open.turn);
        let decided = |call_id| {
            let (decision, scope, reason) = (Decision::Deny, Scope::Once, Some("no decision came in time".to_owned()));
            Event::ApprovalDecided(ApprovalDecided { call_id, decision, scope, reason, answer: None })
        };
        self.record_durably(turn, calls.into_iter().map(decided).collect()).await.map(drop)
    }

    /// Asks a person what a running call asks; without one it is declined at once.
    pub(super) async fn ask_form(
        &mut self,
        call_id: String,
        question: Question,
        reply: oneshot::Sender<Answer>,
    ) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let its = open.calls.iter().find(|call| call.call.call_id == call_id);
        let Some(name) = its.map(|call| call.call.name.clone()) else { return Ok(()) };
        let turn = open.turn;
        let number = open.forms.iter().filter(|form| form.form.call_id == call_id).count() + 1;
        // The call's own id would make a call that runs one that waits, and it could run again after a restart.
        let form_id = format!("{call_id}_form_{number}");
        let (Question { server, message, schema }, secrets) = (question, &self.ports.secrets);
        let (message, shown) = (secrets.replace(&message).into_owned(), secrets.replace_json(&schema));
        let form = Some(Form { call_id, server, message, schema: shown });
        let is_attended = open.terms.attended || self.ports.options.approval.unattended == Unattended::Wait;
        let (arguments, id) = (String::new(), form_id.clone());
        let asked = ApprovalRequested { call_id: id, name, arguments, preview: None, rule: None, form };
        let declined = (!is_attended).then(|| declined(form_id.clone(), "no person attends the turn"));
        let events = std::iter::once(Event::ApprovalRequested(asked)).chain(declined).collect();
        self.record_durably(Some(turn), events).await?;
        if is_attended {
            self.running.forms.insert(form_id, (schema, reply));
        } else {
            drop(reply.send(Answer::Declined));
        }
        Ok(())
    }

    /// Ends the open question of a call, which waits for no answer any more.
    pub(super) async fn unask_form(&mut self, call_id: &str, reason: &str) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let Some(asked) = open.open_forms().find(|form| form.form.call_id == call_id) else { return Ok(()) };
        let (turn, form_id) = (open.turn, asked.id.clone());
        let asked = self.running.forms.remove(&form_id);
        self.record_durably(Some(turn), vec![declined(form_id, reason)]).await?;
        if let Some((_, reply)) = asked {
            drop(reply.send(Answer::Declined));
        }
        Ok(())
    }

    /// Answers the open question of a call, or declines it.
    async fn decide_form(&mut self, turn: TurnNumber, request: DecideApproval) -> Result<Changed, SessionError> {
        let DecideApproval { session_id, call_id, decision, scope, reason, answer } = request;
        if !scope.is_once() {
            return Err(SessionError::invalid("scope", "a scope is not allowed when a form is answered"));
        }
        let Some((schema, _)) = self.running.forms.get(&call_id) else {
            return Err(SessionError::ItemNotFound("call"));
        };
        let given = match decision {
            // By the schema as the server gave it: in the one that is recorded secrets are replaced.
            Decision::Approve => Some(complete(schema, answer.as_ref())?),
            Decision::Deny => None,
        };
        let secrets = &self.ports.secrets;
        let reason = reason.map(|reason| secrets.replace(&reason).into_owned());
        let answer = given.as_ref().map(|given| secrets.replace_json(given));
        let Some((_, reply)) = self.running.forms.remove(&call_id) else {
            return Err(SessionError::ItemNotFound("call"));
        };
        let seq = self.session.last_seq + 1;
        let decided = Event::ApprovalDecided(ApprovalDecided { call_id, decision, scope, reason, answer });
        self.record_durably(Some(turn), vec![decided]).await.map_err(|error| self.discard(&error))?;
        // The call may have ended meanwhile.
        drop(reply.send(given.map_or(Answer::Declined, Answer::Accepted)));
        Ok(Changed { session_id, seq })
    }

    /// Decides a call that waits. Other calls go on waiting, even those that a newly allowed rule matches: somebody may
    /// be reading them.
    pub(super) async fn decide_approval(&mut self, request: DecideApproval) -> Result<Changed, SessionError> {
        self.shared.check_writable()?;
        let open = self.session.open_turn();
        let asked = open.filter(|open| open.open_forms().any(|form| form.id == request.call_id));
        if let Some(turn) = asked.map(|open| open.turn) {
            return self.decide_form(turn, request).await;
        }
        let DecideApproval { session_id, call_id, decision, scope, reason, answer } = request;
        if let Some(decided) = self.session.decision(&call_id).cloned() {
            // An answer was recorded with its defaults, so any part of it is the same one.
            if (decided.decision, decided.scope) != (decision, scope)
                || !self.is_part(answer.as_ref(), decided.answer.as_ref())
            {
                return Err(SessionError::AlreadyDecided { call_id, decision: decided.decision });
            }
            let kept = self.to_keep(scope, decided.rule.as_ref())?;
            self.release_held();
            // It may not have been kept the first time; a rule that is kept twice is there once.
            keep(kept).await?;
            return Ok(Changed { session_id, seq: decided.seq });
        }
        let asked = self.session.open_turn().and_then(|open| Some((open.turn, open.asked(&call_id)?)));
        let Some((turn, asked)) = asked else { return Err(SessionError::ItemNotFound("call")) };
        if answer.is_some() {
            return Err(SessionError::invalid("answer", "this call asks no question: leave the answer out"));
        }
        let rule = match scope {
            Scope::Once => None,
            Scope::Session | Scope::Always => Some(asked.rule.clone().ok_or_else(|| {
                let message = "this call proposes no rule, so it can be allowed once only: approve it without a scope";
                SessionError::invalid("scope", message)
            })?),
        };
        let known = &self.session.allowed_rules;
        let is_new = rule.as_ref().is_some_and(|rule| !known.contains(rule));
        if is_new && known.len() >= RULES_MAX {
            return Err(SessionError::QueueFull { what: "allowed rules", limit: RULES_MAX });
        }
        let kept = self.to_keep(scope, rule.as_ref())?;
        let allowed = rule.filter(|_| is_new);
        let allowed = allowed.map(|rule| Event::ToolAllowed(ToolAllowed { rule, call_id: call_id.clone() }));
        let reason = reason.map(|reason| self.ports.secrets.replace(&reason).into_owned());
        let call = call_id.clone();
        let decided = Event::ApprovalDecided(ApprovalDecided { call_id, decision, scope, reason, answer: None });
        let seq = self.session.last_seq + 1;
        let events = std::iter::once(decided).chain(allowed).collect();
        self.record_durably(Some(turn), events).await.map_err(|error| self.discard(&error))?;
        self.release_held();
        // The call is planned again before it runs.
        self.control.plans.remove(&call);
        // The decision comes first: a crash between the two allows less than was decided, never more.
        keep(kept).await?;
        Ok(Changed { session_id, seq })
    }

    /// Returns true if an answer says nothing else than the recorded one, which has the defaults too.
    fn is_part(&self, given: Option<&RawJson>, recorded: Option<&RawJson>) -> bool {
        let Some(given) = given else { return true };
        let fields = |answer: &RawJson| answer.decode::<Map<String, Value>>().ok();
        let recorded = recorded.and_then(fields);
        let is_same = |(given, recorded): (Map<_, _>, Map<_, _>)| {
            given.iter().all(|(name, value)| recorded.get(name) == Some(value))
        };
        fields(&self.ports.secrets.replace_json(given)).zip(recorded).is_some_and(is_same)
    }

    /// Returns the rule to keep for always, if the scope says so, and its keeper.
    fn to_keep(&self, scope: Scope, rule: Option<&String>) -> Result<Option<ToKeep>, SessionError> {
        if scope != Scope::Always {
            return Ok(None);
        }
        let rule = rule.cloned().ok_or(SessionError::ItemNotFound("rule"))?;
        let keeper = self.ports.keeper_of_rules().cloned().ok_or_else(|| {
            let message = "rules are kept for always only from a terminal of their owner (`meerkat sessions approve \
                           --always`), or if tools.remember is true: use the scope `session`";
            SessionError::invalid("scope", message)
        })?;
        Ok(Some((keeper, rule)))
    }
}

/// Makes the decision on a question that no person answered.
fn declined(call_id: String, reason: &str) -> Event {
    let (decision, scope, reason) = (Decision::Deny, Scope::Once, Some(reason.to_owned()));
    Event::ApprovalDecided(ApprovalDecided { call_id, decision, scope, reason, answer: None })
}

/// Has the keeper keep the rule of a recorded decision for all sessions, if there is one.
async fn keep(kept: Option<ToKeep>) -> Result<(), SessionError> {
    let Some((keeper, rule)) = kept else { return Ok(()) };
    let kept = tokio::task::spawn_blocking(move || keeper.remember(&rule)).await;
    let kept = kept.unwrap_or_else(|_| Err(SessionError::Internal("the keeper of rules panicked".to_owned())));
    kept.map_err(|error| SessionError::ConfigInvalid {
        key: "tools.approval".to_owned(),
        message: format!(
            "the call is approved, and its rule holds in this session, but the rule is not kept for always: {error}"
        ),
    })
}
