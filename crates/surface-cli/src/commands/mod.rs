//! What each command does: one request, one call, one print. What needs no service stands in [`local`].

pub(crate) mod compact;
pub(crate) mod completions;
pub(crate) mod doctor;
mod fill;
pub(crate) mod local;
pub(crate) mod memory;
pub(crate) mod operators;
mod questions;
mod run;
pub(crate) mod sessions;

use std::{sync::Arc, time::Duration};

use meerkat_service::{
    Operation, SessionError, SessionId, SessionService,
    clock::{Clock as _, SystemClock},
    wire::call,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) use questions::Questions;
pub(crate) use run::{resume, run};

use self::run::NO_SESSION;
use crate::{App, args::EventsArgs, error::CliError, people, stream, wire};

/// Between two asks for what is waited for, where the service itself does not wait.
const ASK_PAUSE: Duration = Duration::from_millis(100);

/// Performs an operation and prints its answer.
pub(crate) async fn print(app: &App, request: wire::Request) -> Result<u8, CliError> {
    let operation = request.0;
    let answer = perform(&app.service, request).await?;
    show(app, operation, &answer)?;
    Ok(0)
}

/// Prints an answer: to the letter with `--json`, else for people.
pub(crate) fn show(app: &App, operation: Operation, answer: &[u8]) -> Result<(), CliError> {
    if app.out.is_json {
        return Ok(app.out.document(answer)?);
    }
    if let Some((text, next_cursor)) = people::render(operation, answer, app.out.width, SystemClock::new().now())? {
        app.out.readable(&text)?;
        if let Some(cursor) = next_cursor {
            app.out.note(&format!("There is more: --cursor {cursor}"));
        }
        return Ok(());
    }
    let mut answer: Value = read(answer)?;
    for item in answer.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        match operation {
            Operation::Events => *item = stream::described(&item.to_string()).into(),
            Operation::FetchReader => {
                let session = item["event"]["session_id"].as_str().unwrap_or_default();
                *item = format!("{session}{}", stream::described(&item["event"].to_string())).into();
            }
            _ => break,
        }
    }
    Ok(app.out.answer(&answer)?)
}

/// What people are told in the answer's place, where that takes more asking; `undo` is how a compaction is taken back.
pub(crate) async fn told(
    app: &App,
    operation: Operation,
    answer: &[u8],
    undo: &str,
) -> Result<Option<String>, SessionError> {
    if app.out.is_json {
        return Ok(None);
    }
    Ok(match operation {
        Operation::Compact | Operation::PreviewCompaction | Operation::UndoCompaction => {
            Some(compact::explained(app, operation, answer, undo).await?)
        }
        Operation::Read => {
            let view = read(answer)?;
            let chart = fill::drawn(app.service.as_ref(), &view, &app.out).await.unwrap_or_else(|error| {
                app.out.note(&format!("How full the context was cannot be shown: {error}"));
                String::new()
            });
            Some(people::session(&view) + &chart)
        }
        _ => None,
    })
}

/// Prints what people are told, where there is such a text, else the answer.
pub(crate) fn print_told(app: &App, operation: Operation, answer: &[u8], text: Option<&str>) -> Result<(), CliError> {
    match text {
        Some(text) => Ok(app.out.readable(text)?),
        None => show(app, operation, answer),
    }
}

/// Reads an answer.
pub(crate) fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, SessionError> {
    serde_json::from_slice(answer).map_err(|error| unreadable(&error))
}

pub(crate) fn unreadable(error: &serde_json::Error) -> SessionError {
    SessionError::Internal(format!("an answer could not be read: {error}"))
}

/// Performs an operation whose session may be written short, and which is asked again until its wait is over.
pub(crate) async fn perform(
    service: &Arc<dyn SessionService>,
    (operation, mut params): wire::Request,
) -> Result<Vec<u8>, SessionError> {
    if let Some(name) = params["session_id"].as_str() {
        params["session_id"] = json!(resolve(service, name).await?);
    }
    let wait = Duration::from_millis(params["wait_ms"].as_u64().unwrap_or(0));
    let (began, mut asks) = (Instant::now(), tokio::time::interval(ASK_PAUSE));
    loop {
        asks.tick().await;
        let answer = call(service.as_ref(), operation, &params.to_string()).await?;
        let left = wait.saturating_sub(began.elapsed());
        if left.is_zero() || has_come(operation, &params, &answer)? {
            return Ok(answer);
        }
        params["wait_ms"] = json!(left.as_millis() as u64);
    }
}

/// Whether an answer has what was waited for. The service may answer earlier than it was to.
fn has_come(operation: Operation, params: &Value, answer: &[u8]) -> Result<bool, SessionError> {
    let answer: Value = read(answer)?;
    Ok(match operation {
        Operation::WaitReader => answer["seq"].as_u64() >= params["seq"].as_u64(),
        _ => answer["items"] != json!([]),
    })
}

/// The session that a name means: an id, `last`, or the end of an id. `last` is the first in the list, and
/// the end of an id is looked for in all of it.
pub(crate) async fn resolve(service: &Arc<dyn SessionService>, name: &str) -> Result<SessionId, SessionError> {
    // The end of an id is what makes an id of any beginning.
    let beginning = NO_SESSION.len().checked_sub(name.len()).and_then(|length| NO_SESSION.get(..length));
    let is_end =
        name.len() >= 6 && beginning.is_some_and(|beginning| format!("{beginning}{name}").parse::<SessionId>().is_ok());
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    if name != "last" && !is_end {
        return Err(SessionError::invalid(
            "session",
            format!("{name:?} is no session: give its id, `last`, or at least six digits that its id ends with"),
        ));
    }
    if name == "last" {
        let newest = sessions::first(service).await?;
        return newest
            .ok_or_else(|| SessionError::invalid("session", "there is no session yet; `meerkat run` makes one"));
    }
    let sessions: Vec<_> = sessions::all(service).await?.into_iter().map(|session| session.session_id).collect();
    pick(&sessions, name)
}

/// The one session whose id ends like this.
fn pick(sessions: &[SessionId], name: &str) -> Result<SessionId, SessionError> {
    let end = name.to_ascii_lowercase();
    let found: Vec<&SessionId> = sessions.iter().filter(|id| id.to_string().ends_with(&end)).collect();
    match found.as_slice() {
        [id] => Ok(**id),
        [] => Err(SessionError::invalid("session", format!("{name:?} is the end of no session's id"))),
        _ => Err(SessionError::invalid("session", format!("{name:?} is the end of several ids; give more of it"))),
    }
}

/// `events`: a page of them, or all that come.
pub(crate) async fn events(app: &App, args: &EventsArgs) -> Result<u8, CliError> {
    let name = args.target.session.as_deref().unwrap_or_default();
    if !args.follow && args.until.is_none() {
        return print(app, wire::events(args, name)).await;
    }
    let id = resolve(&app.service, name).await?;
    let mut follower = app.service.follow(&id, args.since.or(args.after).unwrap_or(0)).await?;
    while let Some(followed) = follower.next().await? {
        let line = String::from_utf8_lossy(&followed.line);
        if app.out.is_json {
            app.out.document(&followed.line)?;
        } else {
            app.out.answer(&stream::described(&line).into())?;
        }
        if args.until.is_some() && stream::type_name(&line) == args.until {
            break;
        }
    }
    Ok(0)
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
    fn what_was_waited_for_has_come() {
        let come = |operation, answer: &str| has_come(operation, &json!({ "seq": 3 }), answer.as_bytes()).unwrap();
        for (operation, early, late) in [
            (Operation::WaitReader, r#"{"seq":2}"#, r#"{"seq":3}"#),
            (Operation::FetchReader, r#"{"items":[]}"#, r#"{"items":[{}]}"#),
        ] {
            assert_eq!((come(operation, early), come(operation, late)), (false, true));
        }
    }

    #[test]
    fn a_short_name_means_one_session_or_none() {
        let id = |text: &str| text.parse::<SessionId>().unwrap();
        let (a, b) = (id("01900000-0000-7000-8000-00000012abcd"), id("01900000-0000-7000-8000-00000022abcd"));
        let sessions = [a, b];
        assert_eq!(pick(&sessions, "22ABCD").unwrap(), b);
        assert!(pick(&sessions, "2abcd").is_err());
        assert!(pick(&sessions, "999999").is_err());
    }

    /// However many there are, one row is asked for; a command does not page through them all.
    #[tokio::test]
    async fn the_last_session_is_the_first_row_of_the_list() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = EngineOptions::default();
        options.limits.page_items = 1;
        let agent = AgentBuildConfig::new().options(options).store(folder.path().join("data")).build().unwrap();
        assert!(resolve(agent.service(), "last").await.is_err());
        let ids = [agent.create_session().await.unwrap().session_id, agent.create_session().await.unwrap().session_id];
        assert_eq!(resolve(agent.service(), "last").await.unwrap(), ids[1]);
        agent.service().pin(PinFact { session_id: ids[0], text: "x".to_owned() }).await.unwrap();
        assert_eq!(resolve(agent.service(), "last").await.unwrap(), ids[0]);
    }
}
