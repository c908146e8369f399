//! Questions about a turn's calls, as requests for permission. A client that is gone leaves a call waiting, and any
//! surface may decide it meanwhile; then the question is withdrawn.

use std::{
    collections::{HashMap, hash_map::Entry},
    convert::Infallible,
    future::pending,
    time::Duration,
};

use agent_client_protocol_schema::v1::{
    PermissionOption, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, ToolCallUpdate,
};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use meerkat_service::{
    SessionId, SessionService,
    service::{DecideApproval, Decision, Scope},
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::wire::Peer;

/// Longest time for withdrawing the questions of a turn that has ended.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// Answers that a client's user may give: the option's id, its kind, and what it decides.
const ANSWERS: [(&str, PermissionOptionKind, Decision, Scope); 4] = [
    ("once", PermissionOptionKind::AllowOnce, Decision::Approve, Scope::Once),
    ("session", PermissionOptionKind::AllowAlways, Decision::Approve, Scope::Session),
    ("always", PermissionOptionKind::AllowAlways, Decision::Approve, Scope::Always),
    ("reject", PermissionOptionKind::RejectOnce, Decision::Deny, Scope::Once),
];

/// Questions of one turn.
pub(crate) struct Permissions<'a> {
    service: &'a dyn SessionService,
    peer: &'a Peer,
    session_id: SessionId,
    asked: FuturesUnordered<BoxFuture<'a, ()>>,
    /// Withdraws the question about a call.
    settled: HashMap<String, CancellationToken>,
    /// The client has cancelled the turn, and answers its questions itself.
    is_cancelled: bool,
}

impl<'a> Permissions<'a> {
    pub(crate) fn new(service: &'a dyn SessionService, peer: &'a Peer, session_id: SessionId) -> Self {
        Self { service, peer, session_id, asked: FuturesUnordered::new(), settled: HashMap::new(), is_cancelled: false }
    }

    /// Asks about a call, unless it was asked about already.
    pub(crate) fn ask(&mut self, call_id: &str, call: ToolCallUpdate, rule: Option<&str>) {
        let Entry::Vacant(entry) = self.settled.entry(call_id.to_owned()) else { return };
        let settled = entry.insert(CancellationToken::new()).clone();
        let request = RequestPermissionRequest::new(self.session_id.to_string(), call, self.options(rule));
        let (service, peer, session_id, call_id) = (self.service, self.peer, self.session_id, call_id.to_owned());
        self.asked.push(ask(service, peer, (session_id, call_id), request, settled).boxed());
    }

    fn options(&self, rule: Option<&str>) -> Vec<PermissionOption> {
        let keeps_rules = self.service.capabilities().view().keeps_rules;
        let options = ANSWERS.into_iter().filter_map(|(id, kind, _, scope)| {
            let name = match (id, scope, rule) {
                ("reject", ..) => "Reject".to_owned(),
                (_, Scope::Once, _) => "Allow once".to_owned(),
                (_, Scope::Session, Some(rule)) => format!("Allow `{rule}` in this session"),
                (_, Scope::Always, Some(rule)) if keeps_rules => format!("Always allow `{rule}`, in every folder"),
                (_, Scope::Session | Scope::Always, _) => return None,
            };
            Some(PermissionOption::new(id, name, kind))
        });
        options.collect()
    }

    /// Withdraws the question about a call that waits no more.
    pub(crate) fn settle(&mut self, call_id: &str) {
        if let Some(settled) = self.settled.remove(call_id).filter(|_| !self.is_cancelled) {
            settled.cancel();
        }
    }

    /// Withdraws no question from here on: a client that cancels a turn answers its questions itself.
    pub(crate) const fn cancelled(&mut self) {
        self.is_cancelled = true;
    }

    /// Withdraws all questions, of a turn that has ended.
    pub(crate) async fn withdraw(mut self) {
        if self.is_cancelled {
            return;
        }
        self.settled.values().for_each(CancellationToken::cancel);
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

/// Asks about a call, and decides it by the answer.
async fn ask(
    service: &dyn SessionService,
    peer: &Peer,
    (session_id, call_id): (SessionId, String),
    request: RequestPermissionRequest,
    settled: CancellationToken,
) {
    let offered: Vec<_> = request.options.iter().map(|option| option.option_id.clone()).collect();
    let Some(mut asked) = peer.ask("session/request_permission", &request).await else { return };
    let answer = tokio::select! {
        biased;
        answer = asked.answer() => answer,
        () = settled.cancelled() => return asked.withdraw().await,
    };
    let Some(answer) = answer else { return };
    let answer = answer.map(serde_json::from_value::<RequestPermissionResponse>);
    let (decision, scope, reason) = match answer {
        Ok(Ok(RequestPermissionResponse { outcome: RequestPermissionOutcome::Selected(chosen), .. })) => {
            let id = chosen.option_id.0;
            match ANSWERS.iter().find(|(known, ..)| **known == *id && offered.iter().any(|option| *option.0 == *id)) {
                Some((_, _, decision, scope)) => (*decision, *scope, None),
                None => (Decision::Deny, Scope::Once, Some(format!("the editor chose {id:?}, which was not offered"))),
            }
        }
        // After `session/cancel` its turn is ended, and the decision changes nothing.
        Ok(Ok(_)) => (Decision::Deny, Scope::Once, Some("the question was closed without an answer".to_owned())),
        Ok(Err(error)) => (Decision::Deny, Scope::Once, Some(format!("the editor's answer cannot be read: {error}"))),
        Err(error) => (Decision::Deny, Scope::Once, Some(format!("the editor cannot ask its user: {error}"))),
    };
    let decide = |decision, scope, reason| {
        let decided = DecideApproval::new(session_id, call_id.clone(), decision);
        service.decide_approval(DecideApproval { scope, reason, ..decided })
    };
    let Err(error) = decide(decision, scope, reason).await else { return };
    tracing::info!(%error, "a call was decided elsewhere, or its decision was refused");
    // A call that still waits must not wait for ever. One that was decided elsewhere keeps that decision.
    let reason = format!("the editor's answer could not be kept: {error}");
    if let Err(error) = decide(Decision::Deny, Scope::Once, Some(reason)).await {
        tracing::debug!(%error, "the call waits no more");
    }
}
