//! Tools of a service and of its sources, joined for each session's next step.

use std::sync::Arc;

use super::{ClientTools, Rule, ToolRegistry, ToolScope, ToolSet, ToolSource, client::RESERVED, registry::is_optional};

/// The service's own tools, and its sources.
pub(crate) struct Toolbox {
    pub(super) own: ToolRegistry,
    pub(super) sources: Vec<Arc<dyn ToolSource>>,
}

impl Toolbox {
    pub(crate) fn new(own: ToolRegistry, sources: Vec<Arc<dyn ToolSource>>) -> Self {
        Self { own, sources }
    }

    /// Returns the tools of a session's next step. Of two with one name the caller's is left out.
    pub(crate) fn of(&self, scope: &ToolScope<'_>, client: Option<&ClientTools>) -> ToolRegistry {
        let client = client.and_then(ClientTools::set);
        if self.sources.is_empty() && client.is_none() {
            return self.own.clone();
        }
        let sets: Vec<ToolSet> = self.sources.iter().map(|source| source.tools(scope)).chain(client.cloned()).collect();
        self.own.with(&sets)
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

    /// Returns true if no tool of a caller may have this name: it is that of another tool, now or later.
    pub(crate) fn is_taken(&self, name: &str) -> bool {
        RESERVED.contains(&name) || is_optional(name) || self.knows(name)
    }

    /// Checks a rule that a turn allows.
    ///
    /// # Errors
    /// Says why it is none, or holds for no tool.
    pub(crate) fn check_rule(&self, rule: &str) -> Result<(), String> {
        let rule = Rule::parse(rule)?;
        rule.names().map_or(Ok(()), |name| self.own.check_name(name, &self.sources))
    }

    /// Ends the sources.
    pub(crate) async fn shut_down(&self) {
        futures::future::join_all(self.sources.iter().map(|source| source.shut_down())).await;
    }
}
