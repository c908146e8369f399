//! Sessions that were made here, and their labels. Only these are responses and conversations: a session of another
//! surface may have tools and memory that a client of these protocols must not reach.

use std::collections::BTreeMap;

use meerkat_service::{
    ErrorCode, Seq, SessionError, SessionId, SessionService,
    clock::Timestamp,
    follow::turn::record_at,
    service::{ForkSession, SessionQuery, SessionView, UpdateSession},
    session::event::Event,
};
use sha2::{Digest as _, Sha256};

use crate::App;

/// Label of each session that was made here, and of its forks; its value is what it was made as.
const MADE: &str = "openai";
/// Label of a fork that a key made, so that the same request finds it again.
const KEY: &str = "openai.key";

/// What a session was made as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Response,
    Conversation,
}

/// Session that was made here.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) model: String,
    pub(crate) created_at: Timestamp,
    labels: BTreeMap<String, String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) user: Option<String>,
    pub(crate) made: Made,
}

impl Own {
    #[cfg(test)]
    pub(crate) fn some() -> Self {
        let (labels, metadata) = Default::default();
        let (model, created_at) = ("scripted".to_owned(), Timestamp::from_millis(0));
        Self { model, created_at, labels, metadata, user: None, made: Made::Response }
    }

    pub(crate) fn is_conversation(&self) -> bool {
        self.made == Made::Conversation
    }
}

/// Reads a session that was made here; another one is unknown.
pub(crate) async fn own(app: &App, service: &dyn SessionService, session_id: SessionId) -> Result<Own, SessionError> {
    let (model, created_at, labels) = match service.read(&session_id).await {
        Ok(SessionView { model, created_at, labels, .. }) => (model, created_at, labels),
        // What is stored nowhere keeps its labels.
        Err(error) if error.code() == ErrorCode::SessionPersistenceDisabled => {
            let first = record_at(service, session_id, Seq::from(1_u8)).await?;
            match first.map(|record| (record.time, record.event)) {
                Some((time, Event::SessionCreated(created))) => (created.model, time, created.labels),
                _ => return Err(SessionError::NotFound(session_id)),
            }
        }
        Err(error) => return Err(error),
    };
    let made = match labels.get(MADE).map(String::as_str) {
        Some("response") => Made::Response,
        Some("conversation") => Made::Conversation,
        _ => return Err(SessionError::NotFound(session_id)),
    };
    let user = labels.get(&app.options.scope_label).cloned();
    let mut metadata = labels.clone();
    metadata.retain(|name, _| !decides(app, name));
    Ok(Own { model, created_at, labels, metadata, user, made })
}

/// Reads a session that was made as a conversation.
pub(crate) async fn own_conversation(app: &App, session_id: SessionId) -> Result<Own, SessionError> {
    let own = own(app, app.service.as_ref(), session_id).await?;
    if own.is_conversation() { Ok(own) } else { Err(SessionError::NotFound(session_id)) }
}

/// Returns true for a label that decides something, so that no client may set it.
fn decides(app: &App, name: &str) -> bool {
    name == app.options.scope_label || [MADE, KEY].contains(&name)
}

/// Refuses metadata that would be a label which decides something.
pub(crate) fn check_metadata(app: &App, metadata: &BTreeMap<String, String>) -> Result<(), SessionError> {
    match metadata.keys().find(|name| decides(app, name)) {
        Some(name) => {
            Err(SessionError::invalid(format!("metadata.{name}"), "choose another name: this one is used here"))
        }
        None => Ok(()),
    }
}

/// Makes the labels of a new session, from metadata that was checked.
pub(crate) fn labels(
    app: &App,
    made: Made,
    metadata: &BTreeMap<String, String>,
    user: Option<&str>,
) -> BTreeMap<String, String> {
    let mut labels = metadata.clone();
    let made = if made == Made::Conversation { "conversation" } else { "response" };
    labels.insert(MADE.to_owned(), made.to_owned());
    labels.extend(user.map(|user| (app.options.scope_label.clone(), user.to_owned())));
    labels
}

/// Gives a conversation other metadata; the labels that decide stay.
pub(crate) async fn update(
    app: &App,
    session_id: SessionId,
    metadata: BTreeMap<String, String>,
) -> Result<(), SessionError> {
    check_metadata(app, &metadata)?;
    let mut labels = own_conversation(app, session_id).await?.labels;
    labels.retain(|name, _| decides(app, name));
    labels.extend(metadata);
    app.service.update(UpdateSession { session_id, title: None, labels: Some(labels) }).await.map(drop)
}

/// Forks a session after a turn. The fork of a key is found again by the same key.
pub(crate) async fn fork(
    service: &dyn SessionService,
    session_id: SessionId,
    turn: u32,
    key: Option<&str>,
) -> Result<SessionId, SessionError> {
    // A digest fits into a label however long the key is.
    let label = key.map(|key| format!("{session_id} {turn} {:x}", Sha256::digest(key)));
    if let Some(label) = &label {
        let labels = BTreeMap::from([(KEY.to_owned(), label.clone())]);
        let query = SessionQuery { labels, limit: Some(1), ..SessionQuery::default() };
        if let Some(made) = service.list(query).await?.items.first() {
            return Ok(made.session_id);
        }
    }
    let session_id = service.fork(ForkSession { session_id, turn: Some(turn) }).await?.session_id;
    let kept = service.read(&session_id).await?.labels;
    // The label of a session that is a fork itself is about that one.
    let mut labels = kept.clone();
    labels.remove(KEY);
    labels.extend(label.map(|label| (KEY.to_owned(), label)));
    if labels != kept {
        service.update(UpdateSession { session_id, title: None, labels: Some(labels) }).await?;
    }
    Ok(session_id)
}
