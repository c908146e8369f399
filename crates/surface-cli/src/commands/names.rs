//! Short names of sessions.

use std::sync::Arc;

use meerkat_service::{SessionError, SessionId, SessionService};

use super::list::{all, first};

/// Least digits of an id's end that name a session.
const DIGITS_MIN: usize = 6;

/// An id that no session has: a turn on it is refused for its values, or else because there is no such session.
pub(super) const NO_SESSION: &str = "00000000-0000-7000-8000-000000000000";

/// Finds the session that a name means: an id, the end of one, or `last`.
pub(crate) async fn resolve(service: &Arc<dyn SessionService>, name: &str) -> Result<SessionId, SessionError> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    if name == "last" {
        let newest = first(service).await?;
        let message = "this project has no session yet; `meerkat run` makes one, and `meerkat sessions list \
                       --all-projects` lists those of other folders, and of this one before it was moved";
        return newest.ok_or_else(|| SessionError::invalid("session", message));
    }
    // With the beginning of another id, the end of an id is an id.
    let beginning = NO_SESSION.len().checked_sub(name.len()).and_then(|length| NO_SESSION.get(..length));
    let is_end =
        |beginning: &str| name.len() >= DIGITS_MIN && format!("{beginning}{name}").parse::<SessionId>().is_ok();
    if !beginning.is_some_and(is_end) {
        return Err(SessionError::invalid(
            "session",
            format!("{name:?} is not a session: give its id, at least the last six characters of its id, or `last`"),
        ));
    }
    let sessions: Vec<_> = all(service).await?.into_iter().map(|session| session.session_id).collect();
    pick(&sessions, name)
}

/// Finds the one session whose id ends like this.
fn pick(sessions: &[SessionId], name: &str) -> Result<SessionId, SessionError> {
    let end = name.to_ascii_lowercase();
    let found: Vec<&SessionId> = sessions.iter().filter(|id| id.to_string().ends_with(&end)).collect();
    match found.as_slice() {
        [id] => Ok(**id),
        [] => Err(SessionError::invalid("session", format!("no session's id ends with {name:?}"))),
        _ => Err(SessionError::invalid("session", format!("several ids end with {name:?}; give more characters"))),
    }
}

#[cfg(test)]
mod tests {
    use meerkat_service::{AgentBuildConfig, options::EngineOptions, service::PinFact};

    use super::*;

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
