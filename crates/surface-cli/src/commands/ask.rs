//! Calls of the service: short names are resolved, and waits last as long as asked.

use std::{sync::Arc, time::Duration};

use meerkat_service::{
    Capability, Operation, SessionError, SessionId, SessionService,
    wire::{call, decode_create, decode_params, encode},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::names::resolve;
use crate::{
    app::App,
    args::{CompactFlags, TurnFlags},
    wire::{Request, read},
};

/// Pause between two requests for something that the service itself does not wait for.
const ASK_PAUSE: Duration = Duration::from_millis(100);

/// Refuses an operation whose capability the service lacks. A command asks before it looks at names, files or standard
/// input.
pub(super) fn require(app: &App, operation: Operation) -> Result<(), SessionError> {
    app.service.capabilities().admit(operation)
}

/// Refuses a name that has to be looked up in a list, if the service lacks the capability for that.
pub(super) fn require_name(app: &App, name: &str) -> Result<(), SessionError> {
    if name.parse::<SessionId>().is_ok() { Ok(()) } else { require(app, Operation::List) }
}

/// Refuses an operation, or the compaction that its flags or the configuration ask for, if the service lacks the
/// capability.
pub(crate) fn require_for(app: &App, operation: Operation, flags: &TurnFlags) -> Result<(), SessionError> {
    require(app, operation)?;
    // What another process runs, it compacts as its own configuration says.
    let is_configured = !app.is_attached && app.config.asks_for_compaction();
    let asks_to_compact = is_configured || flags.compact != CompactFlags::default();
    if asks_to_compact { app.service.capabilities().require(Capability::SessionCompaction) } else { Ok(()) }
}

/// Performs an operation whose session may have a short name, again and again until its wait is over.
pub(super) async fn perform(
    service: &Arc<dyn SessionService>,
    (operation, mut params): Request,
) -> Result<Vec<u8>, SessionError> {
    service.capabilities().admit(operation)?;
    if let Some(name) = params["session_id"].as_str() {
        params["session_id"] = json!(resolve(service, name).await?);
    }
    let wait = Duration::from_millis(params["wait_ms"].as_u64().unwrap_or(0));
    let (began, mut asks) = (Instant::now(), tokio::time::interval(ASK_PAUSE));
    loop {
        asks.tick().await;
        let params_text = params.to_string();
        let answer = match operation {
            // Unlike a client's request, a command's may name the folder that its user stands in.
            Operation::CreateSession => encode(&service.create_session(decode_create(&params_text)?).await?)?,
            // And it may read copies of files.
            Operation::Blob => encode(&service.answer_blob(decode_params(&params_text)?).await?)?,
            operation => call(service.as_ref(), operation, &params_text).await?,
        };
        let left = wait.saturating_sub(began.elapsed());
        if left.is_zero() || is_awaited(operation, &params, &answer)? {
            return Ok(answer);
        }
        params["wait_ms"] = json!(left.as_millis() as u64);
    }
}

/// Returns true if an answer has what the request waits for. The service may answer before its wait is over.
fn is_awaited(operation: Operation, params: &Value, answer: &[u8]) -> Result<bool, SessionError> {
    let answer: Value = read(answer)?;
    Ok(match operation {
        Operation::WaitReader => answer["seq"].as_u64() >= params["seq"].as_u64(),
        _ => answer["items"] != json!([]),
    })
}

#[cfg(test)]
mod tests {
    use meerkat_service::{AgentBuildConfig, options::EngineOptions, service::PinFact};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_lasts_as_long_as_is_asked_however_early_the_service_answers() {
        let mut options = EngineOptions::default();
        for wait_ms in [0, 700, 60_000] {
            options.limits.wait_ms = wait_ms;
            let agent = AgentBuildConfig::new().options(options.clone()).build().unwrap();
            let session_id = agent.create_session().await.unwrap().session_id;
            let events = || {
                let params = json!({ "session_id": session_id, "since_seq": 1, "wait_ms": 2_000 });
                perform(agent.service(), (Operation::Events, params))
            };
            let began = Instant::now();
            assert_eq!(events().await.unwrap(), br#"{"items":[],"next_seq":1}"#);
            assert_eq!(began.elapsed(), Duration::from_secs(2), "limits.wait_ms = {wait_ms}");
            let pin = async {
                tokio::time::sleep(Duration::from_millis(1_500)).await;
                agent.service().pin(PinFact { session_id, text: "x".to_owned() }).await.unwrap();
            };
            let (page, ()) = tokio::join!(events(), pin);
            let page: Value = serde_json::from_slice(&page.unwrap()).unwrap();
            assert_eq!(page["items"][0]["type"], "pinned");
        }
    }

    #[test]
    fn a_reader_that_is_waited_for_has_come_that_far() {
        let come = |operation, answer: &str| is_awaited(operation, &json!({ "seq": 3 }), answer.as_bytes()).unwrap();
        for (operation, early, late) in [
            (Operation::WaitReader, r#"{"seq":2}"#, r#"{"seq":3}"#),
            (Operation::FetchReader, r#"{"items":[]}"#, r#"{"items":[{}]}"#),
        ] {
            assert_eq!((come(operation, early), come(operation, late)), (false, true));
        }
    }
}
