//! Sessions that were made here, and their labels. Only these are responses and conversations: a session of another
//! surface may have tools and memory that a client of these protocols must not reach.

use std::collections::BTreeMap;

use meerkat_service::{
    ErrorCode, Seq, SessionError, SessionId, SessionService,
    clock::Timestamp,
    follow::turn::{record_at, whole},
    service::{CreateSession, ForkSession, MemoryScope, SessionMemory, SessionQuery, SessionView, UpdateSession},
    session::event::{Event, Record},
};
use sha2::{Digest as _, Sha256};

use crate::App;

/// Label of each session that was made here, and of its forks; its value is what it was made as.
const MADE: &str = "openai";
const CONVERSATION: &str = "conversation";
/// Label of a fork that a key made, so that the same request finds it again.
const KEY: &str = "openai.key";

/// Session that was made here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    pub(crate) model: String,
    pub(crate) created_at: Timestamp,
    /// Its instructions; `None` if its first record was dropped, so that they are not known.
    pub(crate) system: Option<Option<String>>,
    labels: BTreeMap<String, String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) user: Option<String>,
    pub(crate) is_conversation: bool,
}

/// Reads a session that was made here; another one is unknown.
pub(crate) async fn own(app: &App, service: &dyn SessionService, session_id: SessionId) -> Result<Own, SessionError> {
    let read = match service.read(&session_id).await {
        Ok(SessionView { model, created_at, labels, .. }) => Some((model, created_at, labels)),
        // What is stored nowhere keeps its labels.
        Err(error) if error.code() == ErrorCode::SessionPersistenceDisabled => None,
        Err(error) => return Err(error),
    };
    let (first, mut system) = (record_at(service, session_id, Seq::from(1_u8)).await?, None);
    let mut begun = None;
    if let Some(Record { time, event: Event::SessionCreated(created), .. }) = first {
        system = Some(match &created.system_prompt {
            Some(body) => Some(whole(service, session_id, body).await?),
            None => None,
        });
        begun = Some((created.model, time, created.labels));
    }
    let unknown = || SessionError::NotFound(session_id);
    let (model, created_at, labels) = read.or(begun).ok_or_else(unknown)?;
    let is_conversation = labels.get(MADE).ok_or_else(unknown)? == CONVERSATION;
    let user = labels.get(&app.options.scope_label).cloned();
    let mut metadata = labels.clone();
    metadata.retain(|name, _| !decides(app, name));
    Ok(Own { model, created_at, system, labels, metadata, user, is_conversation })
}

pub(crate) async fn own_conversation(app: &App, session_id: SessionId) -> Result<Own, SessionError> {
    let own = own(app, app.service.as_ref(), session_id).await?;
    if own.is_conversation { Ok(own) } else { Err(SessionError::NotFound(session_id)) }
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

/// A new session with no tool of this machine: those of a request are run by its client. Memory takes in what a user
/// says in a stored session, and never a request without one, which every session would find.
pub(crate) fn new_session(
    app: &App,
    is_conversation: bool,
    metadata: &BTreeMap<String, String>,
    user: Option<(&str, bool)>,
) -> CreateSession {
    let mut labels = metadata.clone();
    labels.insert(MADE.to_owned(), if is_conversation { CONVERSATION } else { "response" }.to_owned());
    labels.extend(user.map(|(user, _)| (app.options.scope_label.clone(), user.to_owned())));
    let scope = if user.is_some() { MemoryScope::Project } else { MemoryScope::None };
    let memory = SessionMemory { scope, index: user.is_some_and(|(_, is_stored)| is_stored) };
    CreateSession { labels, tools: Some(Vec::new()), memory, ..CreateSession::default() }
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
