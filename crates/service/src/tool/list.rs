//! Lists of tools for people: where each comes from, what it costs, and why one is left out.

use meerkat_words::answers::ToolView;

use super::{
    ClientTools, Offer, PIN_FACT, READ_BLOB, RECALL_TOOL, SEARCH_TOOLS, ToolRegistry, ToolScope, ToolServerView,
    Toolbox, source::PROGRAM, test_tools::TEST_TOOLS,
};
use crate::{model::ToolSpec, redact::Secrets};

/// Origin of the engine's own tools.
pub(crate) const ENGINE: &str = "engine";

/// Origin of the tools that the caller runs.
const CLIENT: &str = "client";

/// Session whose tools are listed.
pub(crate) struct ListedSession<'a> {
    pub(crate) scope: ToolScope<'a>,
    pub(crate) offer: Offer<'a>,
    /// Tools that its caller runs.
    pub(crate) client: Option<&'a ClientTools>,
    /// Window of its model; 0 if it is unknown.
    pub(crate) window_tokens: u64,
    /// Rules that it allows.
    pub(crate) allowed_rules: &'a [String],
}

impl Toolbox {
    /// Lists a session's tools by name: those that its next step is offered, and those that are left out.
    pub(crate) fn list(&self, session: &ListedSession<'_>, secrets: &Secrets) -> Vec<ToolView> {
        let registry = self.of(&session.scope, session.client).within(session.window_tokens);
        let shown = session.offer.shown(&registry);
        let search = shown.iter().filter(|spec| spec.name == SEARCH_TOOLS);
        let mut items: Vec<ToolView> =
            registry.specs().iter().chain(search).map(|spec| self.view(spec, &registry, session, &shown)).collect();
        items.extend(registry.left_out().iter().map(|tool| ToolView {
            name: tool.name.clone(),
            description: None,
            source: match session.client.and_then(|client| client.get(&tool.name)) {
                Some(_) => CLIENT.to_owned(),
                None => self.origin(&tool.name, false),
            },
            tokens: 0,
            effect: None,
            approval: None,
            left_out: Some(tool.reason.clone()),
        }));
        items.sort_by(|a, b| a.name.cmp(&b.name));
        for text in items.iter_mut().flat_map(|item| item.description.iter_mut().chain(&mut item.left_out)) {
            *text = secrets.replace(text).into_owned();
        }
        items
    }

    /// Lists the servers of all sources by name.
    pub(crate) fn servers(&self, secrets: &Secrets) -> Vec<ToolServerView> {
        let mut items: Vec<ToolServerView> = self.sources.iter().flat_map(|source| source.servers()).collect();
        items.sort_by(|a, b| a.name.cmp(&b.name));
        for text in items.iter_mut().filter_map(|item| item.error.as_mut()) {
            *text = secrets.replace(text).into_owned();
        }
        items
    }

    fn view(
        &self,
        spec: &ToolSpec,
        registry: &ToolRegistry,
        session: &ListedSession<'_>,
        shown: &[ToolSpec],
    ) -> ToolView {
        let name = spec.name.as_str();
        let plan = registry.get(name).and_then(|tool| tool.usual_plan());
        let rules = || session.allowed_rules.iter().map(String::as_str);
        let left_out = if session.offer.is_without_memory && name == RECALL_TOOL {
            Some("the session was created without it: its memory.scope is none")
        } else if !session.offer.may_use(name) {
            Some("the session's own list of tools does not name it")
        } else if name == READ_BLOB && !session.offer.has_blobs {
            Some("it is offered when the context names a blob")
        } else if !shown.iter().any(|shown| shown.name == spec.name) {
            Some("it is found by search_tools")
        } else {
            None
        };
        ToolView {
            name: spec.name.clone(),
            description: Some(spec.description.clone()),
            source: match registry.is_of_client(name) {
                true => CLIENT.to_owned(),
                false => self.origin(name, self.own.get(name).is_some()),
            },
            tokens: spec.bytes().div_ceil(4),
            effect: plan.as_ref().map(|plan| plan.effect),
            approval: match &plan {
                Some(plan) => Some(registry.approval().decide(name, plan, rules())),
                None => registry.approval().deny_all(name).then_some(super::Approval::Deny),
            },
            left_out: left_out.map(str::to_owned),
        }
    }

    /// Names the origin of a tool: of the service's own, or of a source.
    fn origin(&self, name: &str, is_own: bool) -> String {
        if is_own {
            let is_engines =
                [READ_BLOB, RECALL_TOOL, PIN_FACT, SEARCH_TOOLS].contains(&name) || TEST_TOOLS.contains(&name);
            return if is_engines { ENGINE } else { PROGRAM }.to_owned();
        }
        let source = self.sources.iter().find(|source| source.may_offer(name));
        source.map_or_else(|| PROGRAM.to_owned(), |source| source.origin(name))
    }
}
