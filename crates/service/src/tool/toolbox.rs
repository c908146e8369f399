//! Tools of a service and of its sources, joined for each session's next step.

use std::sync::Arc;

use super::{Rule, ToolRegistry, ToolScope, ToolSet, ToolSource};

/// The service's own tools, and its sources.
pub(crate) struct Toolbox {
    pub(super) own: ToolRegistry,
    pub(super) sources: Vec<Arc<dyn ToolSource>>,
}

impl Toolbox {
    pub(crate) fn new(own: ToolRegistry, sources: Vec<Arc<dyn ToolSource>>) -> Self {
        Self { own, sources }
    }

    /// Returns the tools of a session's next step.
    pub(crate) fn of(&self, scope: &ToolScope<'_>) -> ToolRegistry {
        if self.sources.is_empty() {
            return self.own.clone();
        }
        let sets: Vec<ToolSet> = self.sources.iter().map(|source| source.tools(scope)).collect();
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
