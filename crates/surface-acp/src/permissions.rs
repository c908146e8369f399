//! Questions about a turn's calls, as requests for permission, and those of servers during a call, as forms. A client
//! that is gone leaves a call waiting, and any surface may decide it meanwhile; then the question is withdrawn.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    convert::Infallible,
    future::pending,
    time::Duration,
};

use agent_client_protocol_schema::v1;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use meerkat_service::{
    SessionId,
    service::{DecideApproval, Decision, Scope},
    session::{event::ApprovalRequested, message::RawJson},
    tool::visible,
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;

/// Longest time for withdrawing the questions of a turn that has ended.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// Questions of one turn.
pub(crate) struct Permissions<'a> {
    agent: &'a Agent,
    session_id: SessionId,
    asked: FuturesUnordered<BoxFuture<'a, ()>>,
    /// Withdraws a question. That of a server has the id of the call during which it is asked, too.
    settled: HashMap<(SessionId, String), (Option<String>, CancellationToken)>,
    /// Calls of sub-agents that were asked about: the client knows them.
    was_asked: HashSet<(SessionId, String)>,
    /// Cancelled when the client has cancelled the turn; then it answers its questions itself, and none is withdrawn.
    cancelled: &'a CancellationToken,
}

impl<'a> Permissions<'a> {
    pub(crate) fn new(agent: &'a Agent, session_id: SessionId, cancelled: &'a CancellationToken) -> Self {
        let (settled, was_asked) = Default::default();
        Self { agent, session_id, asked: FuturesUnordered::new(), settled, was_asked, cancelled }
    }

    /// Asks about a call of the session or of a sub-agent, or what a server asks, unless it was asked already.
    pub(crate) fn ask(&mut self, of: SessionId, call: &ApprovalRequested, shown: v1::ToolCallUpdate) {
        let Entry::Vacant(entry) = self.settled.entry((of, call.call_id.clone())) else { return };
        if of != self.session_id {
            self.was_asked.insert((of, call.call_id.clone()));
        }
        let settled = CancellationToken::new();
        entry.insert((call.form.as_ref().map(|form| form.call_id.clone()), settled.clone()));
        let (session_id, offered) = (self.session_id.to_string(), self.options(call.rule.as_deref()));
        let (method, request) = match &call.form {
            Some(form) => {
                let message = format!("{} asks, and gets the answer: {}", form.server, form.message);
                let request = json!({
                    "sessionId": session_id,
                    "toolCallId": if of == self.session_id { form.call_id.clone() } else { below_id(of, &form.call_id) },
                    "mode": "form",
                    "message": message,
                    "requestedSchema": form.schema,
                });
                ("elicitation/create", request)
            }
            None => {
                let request = v1::RequestPermissionRequest::new(session_id, shown, offered.clone());
                ("session/request_permission", json!(request))
            }
        };
        let decided = DecideApproval::new(of, call.call_id.clone(), Decision::Deny);
        let offered = call.form.is_none().then_some(offered);
        self.asked.push(ask(self.agent, (method, request, offered), decided, settled).boxed());
    }

    /// Answers that the client's user may give about a call; without a rule it can be allowed once only.
    fn options(&self, rule: Option<&str>) -> Vec<v1::PermissionOption> {
        let (once, always) = (v1::PermissionOptionKind::AllowOnce, v1::PermissionOptionKind::AllowAlways);
        let mut options = vec![v1::PermissionOption::new("once", "Allow once", once)];
        if let Some(rule) = rule.map(visible) {
            options.push(v1::PermissionOption::new("session", format!("Allow `{rule}` in this session"), always));
            if self.agent.service.capabilities().view().keeps_rules {
                let words = format!("Always allow `{rule}`, in every folder");
                options.push(v1::PermissionOption::new("always", words, always));
            }
        }
        options.push(v1::PermissionOption::new("reject", "Reject", v1::PermissionOptionKind::RejectOnce));
        options
    }

    /// Returns true if a call is asked about, or was.
    pub(crate) fn knows(&self, session_id: SessionId, call_id: &str) -> bool {
        self.was_asked.contains(&(session_id, call_id.to_owned()))
    }

    /// Withdraws the questions about a call that waits no more.
    pub(crate) fn settle(&mut self, session_id: SessionId, call_id: &str) {
        let ended = self.settled.extract_if(|(session, id), (during, _)| {
            *session == session_id && (id == call_id || during.as_deref() == Some(call_id))
        });
        ended.filter(|_| !self.cancelled.is_cancelled()).for_each(|(_, (_, settled))| settled.cancel());
    }

    /// Withdraws all questions, of a turn that has ended.
    pub(crate) async fn withdraw(mut self) {
        if self.cancelled.is_cancelled() {
            return;
        }
        self.settled.values().for_each(|(_, settled)| settled.cancel());
        let withdrawn = async { while self.asked.next().await.is_some() {} };
        // A client that reads nothing keeps its questions.
        timeout(WITHDRAWAL, withdrawn).await.ok();
    }

    /// Carries the questions on. It never ends.
    pub(crate) async fn carry_on(&mut self) -> Infallible {
        while self.asked.next().await.is_some() {}
        pending().await
    }
}

/// The id that a client knows a sub-agent's call by: those of two sessions may be the same.
pub(crate) fn below_id(session_id: SessionId, call_id: &str) -> String {
    format!("{session_id}.{call_id}")
}

/// Asks, and decides by the answer.
async fn ask(
    agent: &Agent,
    (method, request, offered): (&str, Value, Option<Vec<v1::PermissionOption>>),
    denied: DecideApproval,
    settled: CancellationToken,
) {
    let Some(answer) = agent.peer.ask(method, request, &settled).await else { return };
    let answer = answer.map_err(|error| format!("the editor cannot ask its user: {error}"));
    let chosen = answer.and_then(|answer| match &offered {
        Some(offered) => chosen(answer, offered),
        None => filled(&answer),
    });
    let refused = |reason| DecideApproval { reason: Some(reason), ..denied.clone() };
    let decided = match chosen {
        Ok((decision, scope, answer)) => DecideApproval { decision, scope, answer, ..denied.clone() },
        Err(reason) => refused(reason),
    };
    let Err(error) = agent.service.decide_approval(decided).await else { return };
    tracing::info!(%error, "a call was decided elsewhere, or its decision was refused");
    // A call that still waits must not wait for ever. One that was decided elsewhere keeps that decision.
    let refusal = refused(format!("the editor's answer could not be kept: {error}"));
    if let Err(error) = agent.service.decide_approval(refusal).await {
        tracing::debug!(%error, "the call waits no more");
    }
}

/// A decision, or why there is none.
type Decided = Result<(Decision, Scope, Option<RawJson>), String>;

/// After `session/cancel` its turn is ended, and the decision changes nothing.
const CLOSED: &str = "the question was closed without an answer";

fn unreadable(why: impl std::fmt::Display) -> String {
    format!("the editor's answer cannot be read: {why}")
}

/// Reads what a person chose of what was `offered`.
fn chosen(answer: Value, offered: &[v1::PermissionOption]) -> Decided {
    let answer: v1::RequestPermissionResponse = serde_json::from_value(answer).map_err(unreadable)?;
    let v1::RequestPermissionOutcome::Selected(chosen) = answer.outcome else { return Err(CLOSED.to_owned()) };
    match &*chosen.option_id.0 {
        other if !offered.iter().any(|option| option.option_id == chosen.option_id) => {
            Err(format!("the editor chose {other:?}, which was not offered"))
        }
        "once" => Ok((Decision::Approve, Scope::Once, None)),
        "session" => Ok((Decision::Approve, Scope::Session, None)),
        "always" => Ok((Decision::Approve, Scope::Always, None)),
        _ => Ok((Decision::Deny, Scope::Once, None)),
    }
}

/// Reads what a person wrote in a form. The service checks it.
fn filled(answer: &Value) -> Decided {
    match answer["action"].as_str() {
        Some("accept") => {
            let given = match answer.get("content").filter(|content| !content.is_null()) {
                None => "{}".to_owned(),
                Some(content) if content.is_object() => content.to_string(),
                Some(_) => return Err(unreadable("its content must be an object")),
            };
            let given = RawJson::parse(&given).map_err(unreadable)?;
            Ok((Decision::Approve, Scope::Once, Some(given)))
        }
        Some("decline") => Ok((Decision::Deny, Scope::Once, None)),
        _ => Err(CLOSED.to_owned()),
    }
}
