//! Questions about a turn's calls, as elicitations of a client that has them: its person decides, and not its model.
//!
//! A client that gives no answer leaves a call waiting, and any surface may decide it meanwhile. Then the question is
//! withdrawn.

use std::{collections::HashMap, convert::Infallible, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, pending},
    stream::FuturesUnordered,
};
use meerkat_service::{
    SessionId, SessionService,
    service::{DecideApproval, Decision, Scope},
    session::{
        event::{ApprovalRequested, Event},
        message::RawJson,
    },
    wire,
};
use rmcp::{
    RoleServer,
    model::{
        ClientCapabilities, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
        ServerRequest,
    },
    service::{Peer, PeerRequestOptions},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Longest time for withdrawing the questions of a turn that has ended.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// Questions of one turn.
pub(crate) struct Questions<'a> {
    service: &'a dyn SessionService,
    peer: Peer<RoleServer>,
    session_id: SessionId,
    asked: FuturesUnordered<BoxFuture<'a, ()>>,
    /// Withdraws the question about a call, or of a call that runs, which ends with that one.
    settled: HashMap<String, (Option<String>, CancellationToken)>,
}

impl<'a> Questions<'a> {
    /// Makes the questions of a turn; `None` if its client shows no forms.
    pub(crate) fn new(service: &'a dyn SessionService, peer: &Peer<RoleServer>, session_id: SessionId) -> Option<Self> {
        let has_forms = has_forms(&peer.peer_info()?.capabilities);
        let (asked, settled) = (FuturesUnordered::new(), HashMap::new());
        has_forms.then(|| Self { service, peer: peer.clone(), session_id, asked, settled })
    }

    /// Takes an event of the turn: asks about a call that waits, and withdraws the question about one that does not.
    pub(crate) fn see(&mut self, line: &[u8]) {
        // Live events are never about a call.
        let Some(record) = std::str::from_utf8(line).ok().and_then(|line| wire::decode_event(line).ok()) else {
            return;
        };
        match record.event {
            Event::ApprovalRequested(call) => self.ask(call),
            Event::ApprovalDecided(decided) => self.settle(&decided.call_id),
            Event::ToolFinished(finished) => self.settle(&finished.call_id),
            _ => {}
        }
    }

    /// Asks about a call, unless it was asked about already.
    pub(crate) fn ask(&mut self, call: ApprovalRequested) {
        if self.settled.contains_key(&call.call_id) {
            return;
        }
        let settled = CancellationToken::new();
        let of = call.form.as_ref().map(|form| form.call_id.clone());
        self.settled.insert(call.call_id.clone(), (of, settled.clone()));
        self.asked.push(ask(self.service, self.peer.clone(), self.session_id, call, settled).boxed());
    }

    fn settle(&mut self, call_id: &str) {
        let ends = |id: &String, of: &Option<String>| id == call_id || of.as_deref() == Some(call_id);
        self.settled.extract_if(|id, (of, _)| ends(id, of)).for_each(|(_, (_, settled))| settled.cancel());
    }

    /// Withdraws all questions.
    pub(crate) async fn withdraw(mut self) {
        self.settled.values().for_each(|(_, settled)| settled.cancel());
        let withdrawn = async { while self.asked.next().await.is_some() {} };
        // A client that reads nothing keeps its questions.
        let _ = tokio::time::timeout(WITHDRAWAL, withdrawn).await;
    }
}

/// Carries the questions on. It never ends.
pub(crate) async fn carry_on(questions: &mut Option<Questions<'_>>) -> Infallible {
    if let Some(questions) = questions {
        while questions.asked.next().await.is_some() {}
    }
    pending().await
}

/// Asks the client's person about a call, and decides it by the answer.
async fn ask(
    service: &dyn SessionService,
    peer: Peer<RoleServer>,
    session_id: SessionId,
    call: ApprovalRequested,
    settled: CancellationToken,
) {
    let Some(form) = form_of(&call) else { return };
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(form));
    let sent = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
    let mut handle = match sent {
        Ok(handle) => handle,
        Err(error) => return tracing::debug!(%error, "a client cannot be asked"),
    };
    let answer = tokio::select! {
        biased;
        answer = &mut handle.rx => answer,
        () = settled.cancelled() => {
            if let Err(error) = handle.cancel(Some("it was decided elsewhere".to_owned())).await {
                tracing::debug!(%error, "a question cannot be withdrawn");
            }
            return;
        }
    };
    let Ok(Ok(ClientResult::ElicitResult(answer))) = answer else {
        return tracing::debug!("a client gave no answer to a question");
    };
    let Some(decided) = decided(session_id, call.call_id, call.form.is_some(), answer) else { return };
    if let Err(error) = service.decide_approval(decided).await {
        tracing::info!(%error, "a call had been decided before the answer came");
    }
}

/// Whether a client shows forms.
pub(crate) fn has_forms(client: &ClientCapabilities) -> bool {
    // A client of an older revision names no kind and means forms.
    client.elicitation.as_ref().is_some_and(|kinds| kinds.form.is_some() || kinds.url.is_none())
}

/// Makes the form about a call, as the library knows it.
pub(crate) fn form_of(call: &ApprovalRequested) -> Option<ElicitRequestParams> {
    let form = serde_json::from_value(form(call));
    form.inspect_err(|error| tracing::warn!(%error, "a question cannot be asked")).ok()
}

/// Reads an answer about a call, or to a server's question; `None` if it decides nothing.
pub(crate) fn decided(
    session_id: SessionId,
    call_id: String,
    is_of_server: bool,
    answer: ElicitResult,
) -> Option<DecideApproval> {
    match is_of_server {
        false => decision(session_id, call_id, &answer),
        true => passed_on(session_id, call_id, answer),
    }
}

/// Makes the form about a call.
fn form(call: &ApprovalRequested) -> Value {
    let ApprovalRequested { name, arguments, preview, rule, form, .. } = call;
    if let Some(form) = form {
        let server = &form.server;
        let message = format!(
            "The tool server {server} asks this, and gets the answer (during a call of {name}). Give it no secrets.\n\n{}",
            form.message
        );
        return json!({ "mode": "form", "message": message, "requestedSchema": form.schema });
    }
    let shown = preview.as_ref().unwrap_or(arguments);
    let mut fields = json!({
        "decision": { "type": "string", "title": "Allow this call?", "enum": ["approve", "deny"] },
        "reason": { "type": "string", "title": "Reason, for the model" },
    });
    if let Some(rule) = rule {
        let title = format!("This call only, or every `{rule}` in this session");
        fields["scope"] = json!({ "type": "string", "title": title, "enum": ["once", "session"] });
    }
    let schema = json!({ "type": "object", "properties": fields, "required": ["decision"] });
    let message = format!("The tool {name} waits for approval:\n{shown}");
    json!({ "mode": "form", "message": message, "requestedSchema": schema })
}

/// Reads an answer; `None` if it decides nothing.
fn decision(session_id: SessionId, call_id: String, answer: &ElicitResult) -> Option<DecideApproval> {
    let content = answer.content.as_ref().unwrap_or(&Value::Null);
    let decision = match (&answer.action, content["decision"].as_str()) {
        (ElicitationAction::Accept, Some("approve")) => Decision::Approve,
        (ElicitationAction::Accept, Some("deny")) | (ElicitationAction::Decline, _) => Decision::Deny,
        // It was put aside, or does not answer the question. The library's enum may grow.
        _ => return None,
    };
    let is_wider = decision == Decision::Approve && content["scope"] == "session";
    let scope = if is_wider { Scope::Session } else { Scope::Once };
    let reason = content["reason"].as_str().filter(|reason| !reason.is_empty()).map(str::to_owned);
    Some(DecideApproval { session_id, call_id, decision, scope, reason, answer: None })
}

/// Reads the answer to a server's question; `None` if it was put aside.
fn passed_on(session_id: SessionId, call_id: String, answer: ElicitResult) -> Option<DecideApproval> {
    let decided = |decision| DecideApproval::new(session_id, call_id, decision);
    match answer.action {
        ElicitationAction::Accept => {
            let given = answer.content.and_then(|given| RawJson::parse(&given.to_string()).ok());
            Some(DecideApproval { answer: given, ..decided(Decision::Approve) })
        }
        ElicitationAction::Decline => Some(decided(Decision::Deny)),
        // The library's enum may grow.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule is allowed only by an approval, and only if the person chose it.
    #[test]
    fn a_scope_goes_with_an_approval() {
        let session_id: SessionId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
        let decided = |content: Value| {
            let answer = ElicitResult::new(ElicitationAction::Accept).with_content(content);
            decision(session_id, "c".to_owned(), &answer).map(|decided| (decided.decision, decided.scope))
        };
        let session = json!({ "decision": "approve", "scope": "session" });
        assert_eq!(decided(session), Some((Decision::Approve, Scope::Session)));
        assert_eq!(
            decided(json!({ "decision": "approve", "scope": "always" })),
            Some((Decision::Approve, Scope::Once))
        );
        assert_eq!(decided(json!({ "decision": "deny", "scope": "session" })), Some((Decision::Deny, Scope::Once)));
        assert_eq!(decided(json!({ "scope": "session" })), None);
    }

    #[test]
    fn the_form_is_one_of_the_protocol_and_shows_what_is_asked() {
        let (name, arguments, rule) = ("shell".to_owned(), "{}".to_owned(), Some("shell: cargo test *".to_owned()));
        let preview = Some("cargo test".to_owned());
        let form = form(&ApprovalRequested { call_id: "c".to_owned(), name, arguments, preview, rule, form: None });
        assert_eq!(form["message"], "The tool shell waits for approval:\ncargo test");
        let scope = &form["requestedSchema"]["properties"]["scope"];
        assert_eq!(scope["title"], "This call only, or every `shell: cargo test *` in this session");
        let read: ElicitRequestParams = serde_json::from_value(form.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap()["requestedSchema"], form["requestedSchema"]);
    }
}
