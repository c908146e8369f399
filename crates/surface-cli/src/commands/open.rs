//! `sessions open`: a session found by words of its title, or picked from a list that gets shorter as words are typed.

use meerkat_service::{
    SessionError, SessionId,
    clock::{Clock as _, SystemClock},
    service::SessionSummary,
};

use super::{confirm::answers, list::all, resolve};
use crate::{
    app::{App, Streams},
    error::CliError,
    input::Line,
    render,
};

/// Most sessions of a list to pick from.
const SHOWN_MAX: usize = 15;

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
            Err(SessionError::invalid("session", format!("{what} {words:?} in the title; /sessions lists them")))
        }
    }
}

/// Lets a person pick a session; `None` if they leave.
pub(crate) async fn pick(app: &App, streams: &mut Streams, words: &[String]) -> Result<Option<SessionId>, CliError> {
    if !streams.has_editor || app.out.is_json {
        let message = "a session is picked in a terminal; `meerkat sessions list` has the ids, and `meerkat chat ID` \
                       opens one";
        return Err(SessionError::invalid("terminal", message).into());
    }
    if let ([_, ..], Ok(session_id)) = (words, find(app, words).await) {
        return Ok(Some(session_id));
    }
    let sessions = all(&app.service).await?;
    if sessions.is_empty() {
        return Err(SessionError::invalid("session", "there is no session yet; `meerkat chat` makes one").into());
    }
    let (mut lines, mut words) = (answers(streams), words.to_vec());
    loop {
        let found = matching(&sessions, &words);
        let shown = &found[..found.len().min(SHOWN_MAX)];
        match shown {
            [] => app.out.notice(&format!("No session has {:?} in its title.\n", words.join(" "))),
            shown => app.out.notice(&table(app, shown)),
        }
        let more = found.len() - shown.len();
        let more = if more > 0 { format!("{more} more. ") } else { String::new() };
        app.out.notice(&format!("{more}Words of the title, a number, or nothing to leave: "));
        lines.ask();
        let Line::Text(line) = lines.next().await else { return Ok(None) };
        words = line.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Ok(None);
        }
        let number = line.trim().parse::<usize>().ok().and_then(|number| shown.get(number.checked_sub(1)?));
        match (number, matching(&sessions, &words).as_slice()) {
            (Some(session), _) | (None, [session]) => return Ok(Some(session.session_id)),
            (None, _) => {}
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

/// Numbers the rows of the list.
fn table(app: &App, sessions: &[&SessionSummary]) -> String {
    let sessions: Vec<SessionSummary> = sessions.iter().map(|session| (*session).clone()).collect();
    let width = app.out.width.map(|width| width.saturating_sub(4));
    let rows = render::list(&sessions, width, SystemClock::new().now());
    let numbered = |(number, row): (usize, &str)| match number {
        0 => format!("    {row}\n"),
        number => format!("{number:>2}  {row}\n"),
    };
    rows.lines().enumerate().map(numbered).collect()
}
