//! Tools that come and go: sources, and the sets that they offer.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;

use super::{Tool, ToolRegistry, ToolServerView, registry::Registered};
use crate::{ids::SessionId, redact::Secrets};

/// Origin of the tools that the program itself brings.
pub(super) const PROGRAM: &str = "program";

/// Sets of tools that are kept joined with the service's own.
const JOINED_MAX: usize = 16;

/// Source of tools that may change while a service runs: servers, or the hands in a workspace.
#[async_trait]
pub trait ToolSource: Send + Sync {
    /// Returns the tools for a session's next step, at once. While nothing changes, it returns clones of one set. A step's
    /// calls are run by the set that the model was offered.
    fn tools(&self, scope: &ToolScope<'_>) -> ToolSet;

    /// Waits until the source knows its tools, or knows that it cannot get them. It is awaited when a turn begins, and
    /// before the calls of a turn that a former process left run; a source that is ready answers at once.
    async fn ready(&self, _scope: &ToolScope<'_>) {}

    /// Returns true if the source may offer a tool with this name, now or later: a rule or a session may then name it.
    fn may_offer(&self, _name: &str) -> bool {
        false
    }

    /// Names the origin of a tool in lists, such as `workspace` or `server:github`.
    fn origin(&self, _name: &str) -> String {
        PROGRAM.to_owned()
    }

    /// Lists the servers that the source has tools of, by name. Nothing in the list is a secret.
    fn servers(&self) -> Vec<ToolServerView> {
        Vec::new()
    }

    /// Takes the service's secrets. Those that the source learns of later, such as tokens, it adds to them.
    fn redact_with(&self, _secrets: &Secrets) {}

    /// Ends the source: nothing of it outlives the service. No step begins after it.
    async fn shut_down(&self) {}
}

/// Session that tools are offered to.
#[derive(Clone, Copy, Debug)]
pub struct ToolScope<'a> {
    /// The session.
    pub session_id: SessionId,
    /// Folder that it works in, if it has one.
    pub workspace: Option<&'a Path>,
}

/// Tools of a source at one time. A clone is the same set.
#[derive(Clone)]
pub struct ToolSet(Arc<Checked>);

struct Checked {
    tools: Vec<Registered>,
    left_out: Vec<LeftOut>,
}

/// Tool that cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// Reason, for people.
    pub reason: String,
}

impl ToolSet {
    /// Checks tools, with their schemas unless that was done before. A bad one is left out; the others are offered.
    #[must_use]
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        let mut set = Checked { tools: Vec::with_capacity(tools.len()), left_out: Vec::new() };
        for tool in tools {
            let name = tool.spec().name.clone();
            match Registered::check(tool) {
                Ok(registered) => set.tools.push(registered),
                Err(reason) => {
                    tracing::warn!(name, reason, "a tool cannot be offered");
                    set.left_out.push(LeftOut { name, reason });
                }
            }
        }
        Self(Arc::new(set))
    }

    /// Adds tools that cannot be offered, with the reasons.
    #[must_use]
    pub fn leaving_out(self, more: Vec<LeftOut>) -> Self {
        let Checked { tools, left_out } = &*self.0;
        let left_out = left_out.iter().cloned().chain(more).collect();
        Self(Arc::new(Checked { tools: tools.clone(), left_out }))
    }

    /// Lists the tools that cannot be offered.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOut] {
        &self.0.left_out
    }

    pub(super) fn registered(&self) -> &[Registered] {
        &self.0.tools
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Default for ToolSet {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// The service's own tools, and its sources.
pub(crate) struct Toolbox {
    pub(super) own: ToolRegistry,
    pub(super) sources: Vec<Arc<dyn ToolSource>>,
    /// Sets that were offered, joined with the own tools, the newest last.
    joined: Mutex<Vec<(Vec<ToolSet>, ToolRegistry)>>,
}

impl Toolbox {
    pub(crate) fn new(own: ToolRegistry, sources: Vec<Arc<dyn ToolSource>>) -> Self {
        Self { own, sources, joined: Mutex::default() }
    }

    /// Returns the tools of a session's next step.
    pub(crate) fn of(&self, scope: &ToolScope<'_>) -> ToolRegistry {
        if self.sources.is_empty() {
            return self.own.clone();
        }
        let sets: Vec<ToolSet> = self.sources.iter().map(|source| source.tools(scope)).collect();
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &Vec<ToolSet>| known.iter().zip(&sets).all(|(known, set)| known.is(set));
        if let Some(at) = joined.iter().position(|(known, _)| is_same(known)) {
            let found = joined.remove(at);
            let registry = found.1.clone();
            joined.push(found);
            return registry;
        }
        let registry = self.own.with(&sets);
        if joined.len() == JOINED_MAX {
            joined.remove(0);
        }
        joined.push((sets, registry.clone()));
        registry
    }

    /// Returns true if the tools come from the service alone.
    pub(crate) const fn has_no_sources(&self) -> bool {
        self.sources.is_empty()
    }

    /// Waits until the sources know their tools.
    pub(crate) async fn ready(&self, scope: &ToolScope<'_>) {
        futures::future::join_all(self.sources.iter().map(|source| source.ready(scope))).await;
    }

    /// Returns true if a session may name the tool: it is there, or may come.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.own.get(name).is_some() || self.sources.iter().any(|source| source.may_offer(name))
    }

    /// Ends the sources.
    pub(crate) async fn shut_down(&self) {
        futures::future::join_all(self.sources.iter().map(|source| source.shut_down())).await;
    }
}

/// Joins tools with those of sets; a tool whose name is taken is left out.
pub(super) fn join(
    own: &BTreeMap<String, Registered>,
    sets: &[ToolSet],
) -> (BTreeMap<String, Registered>, Vec<LeftOut>) {
    let (mut tools, mut left_out) = (own.clone(), Vec::new());
    for set in sets {
        left_out.extend_from_slice(set.left_out());
        for registered in set.registered() {
            let name = registered.name();
            if tools.contains_key(name) {
                let reason = "another tool has its name".to_owned();
                tracing::warn!(name, reason, "a tool cannot be offered");
                left_out.push(LeftOut { name: name.to_owned(), reason });
            } else {
                tools.insert(name.to_owned(), registered.clone());
            }
        }
    }
    (tools, left_out)
}
