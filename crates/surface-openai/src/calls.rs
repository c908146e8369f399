//! Calls that wait: the terms of their turn, and the outputs that they get.

use std::{collections::BTreeMap, sync::Arc};

use meerkat_service::{
    ErrorCode, Seq, SessionError, SessionId, SessionService, TurnNumber,
    follow::turn::answered,
    service::{AnswerCall, ClientTool, TurnAccepted},
    session::{
        event::{AssistantMessage, Event, TurnStarted},
        message::Block,
    },
};

use crate::{App, passing::Passing, unfold::Records};

/// The terms of the turn that made a call, and its tools.
pub(crate) async fn terms(
    service: &dyn SessionService,
    session_id: SessionId,
    call_id: &str,
) -> Result<Option<(TurnStarted, Vec<ClientTool>)>, SessionError> {
    let (mut sets, mut started) = (BTreeMap::new(), BTreeMap::<TurnNumber, TurnStarted>::new());
    let mut records = Records::after(service, session_id, 0);
    while let Some(record) = records.next().await? {
        match (record.event, record.turn) {
            (Event::ClientToolsChanged(changed), _) => sets.extend(changed.tools.map(|tools| (changed.hash, tools))),
            (Event::TurnStarted(begun), Some(turn)) => drop(started.insert(turn, begun)),
            (Event::AssistantMessage(message), Some(turn)) if makes(&message, call_id) => {
                let Some(started) = started.remove(&turn) else { break };
                let tools = started.client_tools.as_ref().and_then(|hash| sets.remove(hash)).unwrap_or_default();
                return Ok(Some((started, tools)));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn makes(message: &AssistantMessage, call_id: &str) -> bool {
    message.blocks.iter().any(|block| matches!(block, Block::ToolCall(call) if call.call_id == call_id))
}

/// Answers the calls of a message, all or none. The same outputs again are taken to the end, or change nothing.
pub(crate) async fn take(
    app: Arc<App>,
    service: Arc<dyn SessionService>,
    session_id: SessionId,
    mut outputs: BTreeMap<String, String>,
    is_stored: bool,
) -> Result<(Seq, TurnAccepted, Option<Passing>), SessionError> {
    // Of two that answer at once, the second one sees no open call.
    let _one_at_a_time = app.turn_of(session_id).await;
    let others = || SessionError::invalid("input", "send the outputs of all calls that wait, and of no others");
    let calls = service.calls(&session_id).await?.items;
    let open: Vec<_> = calls.iter().filter_map(|call| outputs.remove_entry(&call.call_id)).collect();
    if !open.is_empty() && open.len() < calls.len() {
        return Err(others());
    }
    let mut accepted = Vec::new();
    let answer = async |(call_id, text)| answered(service.as_ref(), AnswerCall::text(session_id, call_id, text)).await;
    // What was answered before is compared, which changes nothing.
    for output in outputs {
        let again = answer(output).await;
        accepted.push(again.map_err(|error| match error.code() {
            ErrorCode::ItemNotFound if !open.is_empty() => others(),
            _ => error,
        })?);
    }
    if let (Some(first), false) = (accepted.iter().map(|accepted| accepted.seq).min(), open.is_empty()) {
        // They belong to the same message only if none came after them.
        let mut records = Records::after(service.as_ref(), session_id, first);
        while let Some(record) = records.next().await? {
            if matches!(record.event, Event::AssistantMessage(_)) {
                return Err(others());
            }
        }
    }
    for output in open {
        accepted.push(answer(output).await?);
    }
    let seq = accepted.iter().map(|accepted| accepted.seq).min().unwrap_or_default();
    let last = accepted.into_iter().max_by_key(|accepted| accepted.seq);
    let last = last.ok_or(SessionError::ItemNotFound("call"))?;
    let passing = (!is_stored).then(|| Passing::new(&app, &last));
    Ok((seq, last, passing))
}
