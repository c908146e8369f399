//! The engine: a pure function decides, `perform` acts, and an actor records.
//!
//! A session is an actor: one task owns its `Session`, so nothing here locks it. The engine never reads bytes, knows no
//! surface, and gets time and ids from its ports.

pub(crate) mod decide;
pub(crate) mod loop_guard;

pub(crate) mod actor;
pub(crate) mod command;
pub(crate) mod perform;
pub(crate) mod registry;
pub(crate) mod render;
pub(crate) mod shared;

mod accept;
mod act;
mod approvals;
mod attach;
mod bill;
mod calls;
mod children;
mod compact;
mod compactions;
pub(crate) mod delegate;
mod handle;
mod images;
mod notes;
mod observer;
pub(crate) mod record;
pub(crate) mod supervise;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use delegate::Attend;
pub(crate) use observer::Observer;
use render::tool_bytes;

use crate::{
    SessionError,
    capability::{Capabilities, Capability, Presence},
    clock::World,
    compaction::{CompactionConfig, SUMMARY_TOKENS_MAX, SharedCompactor, default_compactor},
    ids::{Seq, SessionId},
    model::ModelResolver,
    options::EngineOptions,
    redact::Secrets,
    service::TurnResult,
    session::{Session, TurnEnd, event::Event, message::Body},
    store::{
        BlobStore, EventStore, Inbox, MemoryUse, ReadLimit, SessionStore, StoreError,
        restore::{self, decode},
    },
    tool::{RuleKeeper, ToolRegistry, ToolScope, Toolbox, WorkspaceNotes},
};

/// Dependencies that all actors of a service share. None of them changes.
pub(crate) struct Ports {
    pub(crate) world: World,
    pub(crate) options: EngineOptions,
    pub(crate) models: Arc<dyn ModelResolver>,
    pub(crate) tools: Toolbox,
    pub(crate) secrets: Secrets,
    /// Writes notes about workspaces.
    pub(crate) notes: Option<Arc<dyn WorkspaceNotes>>,
    pub(crate) events: Arc<dyn EventStore>,
    pub(crate) blobs: Arc<dyn BlobStore>,
    pub(crate) snapshots: Arc<dyn SessionStore>,
    /// Keeps copies of sessions up to date.
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) capabilities: Capabilities,
    /// Bytes that the service holds in memory, and their limit.
    pub(crate) held: Arc<MemoryUse>,
    /// Letters between the nodes that share the store.
    pub(crate) inbox: Option<Arc<dyn Inbox>>,
    /// True if the service takes no new work.
    pub(crate) is_shutting_down: AtomicBool,
    /// Config of sessions that have none of their own.
    pub(crate) compaction: Option<CompactionConfig>,
    /// Compactor of all sessions, instead of their configs.
    pub(crate) compactor: Option<SharedCompactor>,
    /// Keeps the rules that are allowed for always.
    pub(crate) rule_keeper: Option<Arc<dyn RuleKeeper>>,
    /// Has sub-agents work. The service, which is made of its ports and so comes later, sets it.
    pub(crate) attend: OnceLock<Attend>,
}

impl Ports {
    /// Returns the keeper of rules that are allowed for always, if every surface may allow so.
    pub(crate) fn keeper_of_rules(&self) -> Option<&Arc<dyn RuleKeeper>> {
        self.rule_keeper.as_ref().filter(|_| self.options.tools.remember)
    }

    /// Returns true if sessions outlive their process; otherwise each ends when it is not needed.
    pub(crate) fn is_stored(&self) -> bool {
        self.capabilities.presence(Capability::SessionStore) == Presence::Present
    }

    /// Returns true if the configuration compacts sessions that say nothing else.
    pub(crate) fn is_compaction_configured(&self) -> bool {
        self.compactor.is_some() || self.compaction.is_some_and(|config| config.enabled)
    }

    /// Returns true if the session is compacted before it grows too long. Called before each model call, ahead of more
    /// expensive checks.
    pub(crate) fn compacts(&self, session: &Session) -> bool {
        let config = session.compaction().or(self.compaction);
        self.compactor.is_some() || config.is_some_and(|config| config.enabled)
    }

    /// Refuses settings of a request that the service's own compactor would ignore.
    pub(crate) fn check_settings(&self, are_asked: bool) -> Result<(), SessionError> {
        if are_asked && self.compactor.is_some() {
            let why = "this service has a compactor of its own, which takes no settings; leave them out";
            return Err(SessionError::invalid("compaction", why));
        }
        Ok(())
    }

    /// Returns the compactor of a session whose model has a window of `window_tokens`; a requested compaction may have
    /// a config of its own.
    pub(crate) fn compactor(
        &self,
        asked: Option<CompactionConfig>,
        session: &Session,
        window_tokens: u64,
    ) -> Result<SharedCompactor, SessionError> {
        self.capabilities.require(Capability::SessionCompaction)?;
        if let Some(compactor) = &self.compactor {
            return Ok(compactor.clone());
        }
        let config = asked.or(session.compaction()).or(self.compaction);
        let config = fitting(config.unwrap_or_default(), window_tokens);
        default_compactor(config, self.room_tokens(session, window_tokens))
    }

    /// Tokens that a context may have, because the tools take theirs; of a window that is unknown, 0.
    fn room_tokens(&self, session: &Session, window_tokens: u64) -> u64 {
        let tools = tool_bytes(session, &self.tools_of(session)) / 4;
        if window_tokens == 0 { 0 } else { window_tokens.saturating_sub(tools).max(1) }
    }

    /// Returns the tools of a session's next step.
    pub(crate) fn tools_of(&self, session: &Session) -> ToolRegistry {
        let model = session.open_turn().map_or(&session.model, |open| &open.terms.model);
        // A model that cannot be found answers no step.
        let window_tokens = self.models.resolve(model).map_or(0, |model| model.window_tokens);
        let scope = ToolScope { session_id: session.id, workspace: session.workspace() };
        self.tools.of(&scope, session.client_tools.as_deref()).within(window_tokens)
    }

    /// How long an actor stays in memory without requests.
    pub(crate) fn idle(&self) -> Duration {
        let options = &self.options;
        Duration::from_millis(if self.is_stored() { options.store.idle_ms } else { options.ephemeral.idle_ms })
    }

    /// Restores a session from its journal; `None` if there is none. Nothing is leased or written.
    pub(crate) async fn restore(&self, session_id: SessionId) -> Result<Option<Session>, StoreError> {
        restore::restore(self.events.as_ref(), self.snapshots.as_ref(), session_id).await
    }

    /// Restores a session without its message texts, and whether its context is there by reference; `None` if the store
    /// cannot show its journal.
    pub(crate) async fn outline(&self, session_id: SessionId) -> Option<(Session, bool)> {
        restore::outline(self.events.as_ref(), self.snapshots.as_ref(), session_id).await
    }

    /// The session's last durable seq, if the store can say it.
    pub(crate) async fn durable(&self, session_id: SessionId) -> Option<Seq> {
        self.events.tail(session_id).await.ok().flatten()
    }

    /// A body's whole text.
    pub(crate) async fn load(&self, session_id: SessionId, body: &Body) -> Result<String, StoreError> {
        let blob = match body {
            Body::Inline(text) => return Ok(text.clone()),
            Body::Blob(blob) => blob,
        };
        let bytes = usize::try_from(blob.bytes).unwrap_or(usize::MAX);
        let read = self.blobs.read(session_id, &blob.blob, 0, bytes).await?;
        let read = read.ok_or_else(|| StoreError::Failed(format!("blob {} is gone", blob.blob)))?;
        String::from_utf8(read.to_vec()).map_err(|error| StoreError::Failed(error.to_string()))
    }

    /// Returns the answer of a turn whose text may be only in the journal.
    pub(crate) async fn kept_result(
        &self,
        session_id: SessionId,
        mut end: TurnEnd,
    ) -> Result<TurnResult, SessionError> {
        if let Some(seq) = end.text_seq {
            let page = self
                .events
                .read(session_id, seq - 1, ReadLimit::frames(1))
                .await?
                .ok_or(SessionError::NotFound(session_id))?;
            let frame = page.frames.first().filter(|frame| frame.seq == seq).ok_or(SessionError::HistoryPruned)?;
            if let Event::AssistantMessage(answer) = decode(frame)?.event {
                end.text = answer.text();
            }
        }
        self.result(session_id, &end).await
    }

    /// The answer of a turn that has ended, with its text whole.
    pub(crate) async fn result(&self, session_id: SessionId, end: &TurnEnd) -> Result<TurnResult, SessionError> {
        let (mut text, mut last_at) = (String::new(), 0);
        for body in end.text.iter() {
            let part = self.load(session_id, body).await;
            last_at = text.len();
            text.push_str(
                &part.map_err(|error| SessionError::Internal(format!("an answer could not be read: {error}")))?,
            );
        }
        Ok(end.result(session_id, text, last_at))
    }
}

/// Limits a config's summaries to a quarter of the window; a window of 0 is unknown.
fn fitting(config: CompactionConfig, window_tokens: u64) -> CompactionConfig {
    let quarter = if window_tokens == 0 { u64::MAX } else { (window_tokens / 4).max(1) };
    let most = u32::try_from(quarter).unwrap_or(u32::MAX).min(SUMMARY_TOKENS_MAX);
    CompactionConfig { max_summary_tokens: config.max_summary_tokens.min(most), ..config }
}
