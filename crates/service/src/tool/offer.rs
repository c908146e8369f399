//! Tools of a session's requests: all that it may use and has a use for, or fewer where servers have too many.

use std::sync::Arc;

use super::{
    ClientTools, DELEGATE, RECALL_TOOL, ToolRegistry,
    search::{SEARCH_TOOLS, definition, is_of_server},
};
use crate::{model::ToolSpec, service::MemoryScope, session::Session};

/// Part of a model's window that the definitions of all tools may take, as its divisor.
const SHARE: u64 = 10;

/// State of a session that decides which tools its requests show.
#[derive(Clone, Copy, Default)]
pub(crate) struct Offer<'a> {
    /// The tools that it may use; `None` for all.
    pub(crate) named: Option<&'a [String]>,
    /// True if its model does not search memory.
    pub(crate) is_without_memory: bool,
    /// True if its running turn may start no sub-agents.
    pub(crate) is_without_agents: bool,
    /// True if its context names a blob.
    pub(crate) has_blobs: bool,
    /// Servers' tools that it found or called, the newest last.
    pub(crate) found: &'a [String],
    /// Tools that its caller runs, which the named ones do not limit.
    pub(crate) client: Option<&'a ClientTools>,
}

impl<'a> Offer<'a> {
    /// Returns that of a session.
    pub(crate) fn of(session: &'a Session) -> Self {
        let (named, has_blobs) = (session.tools.as_deref(), session.context.has_blobs());
        let is_without_memory = session.memory.scope == MemoryScope::None;
        let client = session.client_tools.as_deref();
        let is_without_agents = session.open_turn().is_some() && !session.may_delegate();
        Self { named, is_without_memory, is_without_agents, has_blobs, found: &session.found_tools, client }
    }

    /// The definitions of a request. If they took too much of the window, those of servers that the session has not found
    /// are hidden: its own, the search, and the found ones are left, in the order in which they were found, so that a
    /// prompt changes only behind a search. The newest come first where not all have room.
    pub(crate) fn shown(&self, tools: &ToolRegistry) -> Arc<[ToolSpec]> {
        let all = self.allowed(tools);
        let Some(search) = self.search(tools, &all) else { return all };
        let mut room_bytes = tools.window_tokens() / SHARE * 4;
        let mut found = Vec::new();
        for name in self.found.iter().rev() {
            let Some(spec) = all.iter().find(|spec| spec.name == *name) else { continue };
            if let Some(left) = room_bytes.checked_sub(spec.bytes()) {
                room_bytes = left;
                found.push(spec.clone());
            }
        }
        let own = all.iter().filter(|spec| !is_of_server(&spec.name)).cloned();
        own.chain([definition(search, &all)]).chain(found.into_iter().rev()).collect()
    }

    /// Lists the tools that the session may use and that its requests do not show.
    pub(crate) fn hidden(&self, tools: &ToolRegistry) -> Vec<ToolSpec> {
        let shown = self.shown(tools);
        let is_hidden =
            |spec: &&ToolSpec| is_of_server(&spec.name) && !shown.iter().any(|shown| shown.name == spec.name);
        self.allowed(tools).iter().filter(is_hidden).cloned().collect()
    }

    /// Returns true if the session may use a tool.
    pub(crate) fn may_use(&self, name: &str) -> bool {
        let is_client = || self.client.is_some_and(|client| client.get(name).is_some());
        (self.named.is_none_or(|named| named.iter().any(|allowed| allowed == name)) || is_client())
            && !(self.is_without_memory && name == RECALL_TOOL)
            && !(self.is_without_agents && name == DELEGATE)
    }

    /// The definition of the search, if it is needed and can be used.
    fn search<'t>(&self, tools: &'t ToolRegistry, all: &[ToolSpec]) -> Option<&'t ToolSpec> {
        let window_tokens = tools.window_tokens();
        let is_needed = window_tokens > 0
            && all.iter().map(ToolSpec::bytes).sum::<u64>() / 4 > window_tokens / SHARE
            && all.iter().any(|spec| is_of_server(&spec.name));
        let may_search = || self.may_use(SEARCH_TOOLS) && !tools.approval().deny_all(SEARCH_TOOLS);
        tools.get(SEARCH_TOOLS).filter(|_| is_needed && may_search()).map(|tool| tool.spec())
    }

    /// The tools that the session may use and has a use for.
    fn allowed(&self, tools: &ToolRegistry) -> Arc<[ToolSpec]> {
        let specs = tools.offered(self.has_blobs);
        if specs.iter().all(|spec| self.may_use(&spec.name)) {
            specs.clone()
        } else {
            specs.iter().filter(|spec| self.may_use(&spec.name)).cloned().collect()
        }
    }
}
