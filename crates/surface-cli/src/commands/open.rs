//! `/open`: a session found by words of its title.

use meerkat_service::{SessionError, SessionId, service::SessionSummary};

use super::{list::all, resolve};
use crate::{app::App, render};

/// Finds the session that words mean: its id, `last`, or words of its title.
pub(crate) async fn find(app: &App, words: &[String]) -> Result<SessionId, SessionError> {
    if let [name] = words
        && let Ok(session_id) = resolve(&app.service, name).await
    {
        return Ok(session_id);
    }
    let sessions = all(&app.service).await?;
    match matching(&sessions, words).as_slice() {
        [one] => Ok(one.session_id),
        found => {
            let what = if found.is_empty() { "no session has" } else { "several sessions have" };
            let words = words.join(" ");
            Err(SessionError::invalid(
                "session",
                format!("{what} {words:?} in the title; `/call session/list` lists them"),
            ))
        }
    }
}

/// Returns the sessions that have every word in the title or the id, in any case of letters.
fn matching<'a>(sessions: &'a [SessionSummary], words: &[String]) -> Vec<&'a SessionSummary> {
    let has = |session: &&SessionSummary| {
        let text = format!("{} {}", render::title(session), session.session_id).to_lowercase();
        words.iter().all(|word| text.contains(&word.to_lowercase()))
    };
    sessions.iter().filter(has).collect()
}
