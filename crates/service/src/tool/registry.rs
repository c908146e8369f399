//! Tools of a service, by name.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest as _, Sha256};

use super::{
    Approval, ApprovalRules, DELEGATE, LeftOut, READ_BLOB, RECALL_TOOL, SEARCH_TOOLS, Tool, ToolError, ToolSet,
    ToolSource, source::Registered, test_tools::TEST_TOOLS,
};
use crate::{SessionError, model::ToolSpec, session::message::RawJson, store::hex};

/// Bytes of the hash of a set of tools.
const FINGERPRINT_BYTES: usize = 8;

/// Similarity of two names, of 1, at which one may be a misspelling of the other.
const LIKENESS_MIN: f64 = 0.8;

/// Tools that only some builds, configurations or sessions have: a rule may name an absent one.
const OPTIONAL_TOOLS: &[&str] = &[
    DELEGATE,
    RECALL_TOOL,
    // The hands in a workspace.
    "read",
    "edit",
    "write",
    "grep",
    "glob",
    "shell",
    "shell_output",
    "shell_stop",
];

/// Returns true if a rule may name the tool although it is absent. The tools of servers come and go.
pub(super) fn is_optional(name: &str) -> bool {
    name.starts_with("mcp__") || OPTIONAL_TOOLS.iter().chain(&TEST_TOOLS).any(|optional| *optional == name)
}

/// Tools that sessions may use at one time. A clone is cheap.
#[derive(Clone, Default)]
pub struct ToolRegistry {
    tools: Arc<BTreeMap<String, Registered>>,
    specs: Arc<[ToolSpec]>,
    /// Specs without the tools that are offered only if the context names a blob.
    specs_without_blobs: Arc<[ToolSpec]>,
    approval: Arc<ApprovalRules>,
    left_out: Arc<[LeftOut]>,
    /// True if some come from a source.
    is_joined: bool,
    /// Window of the model that is offered them; 0 if it is unknown.
    window_tokens: u64,
}

impl ToolRegistry {
    /// Registers tools; `approval` holds rules that override a tool's own.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if a name is taken or not allowed, or a schema cannot be used; `CONFIG_INVALID` for a rule of
    /// an unknown tool: a misspelt name would allow a call that the rule should deny.
    pub fn new(tools: Vec<Arc<dyn Tool>>, approval: BTreeMap<String, Approval>) -> Result<Self, SessionError> {
        Self::beside(tools, approval, &[])
    }

    /// Registers tools beside those that sources may offer.
    pub(crate) fn beside(
        tools: Vec<Arc<dyn Tool>>,
        approval: BTreeMap<String, Approval>,
        sources: &[Arc<dyn ToolSource>],
    ) -> Result<Self, SessionError> {
        let mut by_name: BTreeMap<String, Registered> = BTreeMap::new();
        for tool in tools {
            let registered = Registered::check(tool).map_err(|why| SessionError::invalid("tools", why))?;
            let name = registered.name().to_owned();
            if by_name.insert(name.clone(), registered).is_some() {
                return Err(SessionError::invalid("tools", format!("there are two tools named {name}")));
            }
        }
        let refused =
            |rule: &str, message| SessionError::ConfigInvalid { key: format!("tools.approval.{rule}"), message };
        let approval = ApprovalRules::parse(&approval).map_err(|(rule, message)| refused(&rule, message))?;
        let own = Self::over(by_name, Arc::new(approval), Vec::new());
        for name in own.approval.names() {
            own.check_name(name, sources).map_err(|message| refused(name, message))?;
        }
        Ok(own)
    }

    /// Checks that a tool is there, or may come from a source.
    ///
    /// # Errors
    /// Says that a rule for it would hold for nothing, and which name may be meant.
    pub(super) fn check_name(&self, name: &str, sources: &[Arc<dyn ToolSource>]) -> Result<(), String> {
        if self.get(name).is_some() || is_optional(name) || sources.iter().any(|source| source.may_offer(name)) {
            return Ok(());
        }
        let likeness = |other: &String| strsim::jaro_winkler(name, other);
        let optional = OPTIONAL_TOOLS.iter().chain(&TEST_TOOLS).map(|&name| name.to_owned());
        let nearest = self.tools.keys().cloned().chain(optional).filter(|other| likeness(other) >= LIKENESS_MIN);
        let nearest = nearest.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let hint = nearest.map_or_else(String::new, |nearest| format!(" (did you mean {nearest:?}?)"));
        Err(format!("there is no tool {name:?}, so its rule would hold for nothing{hint}"))
    }

    fn over(tools: BTreeMap<String, Registered>, approval: Arc<ApprovalRules>, left_out: Vec<LeftOut>) -> Self {
        let shown = tools.values().filter(|registered| registered.name() != SEARCH_TOOLS);
        let specs: Arc<[ToolSpec]> = shown.map(|registered| registered.tool.spec().clone()).collect();
        let specs_without_blobs = specs.iter().filter(|spec| spec.name != READ_BLOB).cloned().collect();
        let left_out = left_out.into();
        let (tools, is_joined, window_tokens) = (Arc::new(tools), false, 0);
        Self { tools, specs, specs_without_blobs, approval, left_out, is_joined, window_tokens }
    }

    /// Joins the tools with those of sets.
    pub(super) fn with(&self, sets: &[ToolSet]) -> Self {
        let (tools, left_out) = join(&self.tools, sets);
        let is_joined = tools.len() > self.tools.len();
        Self { is_joined, ..Self::over(tools, self.approval.clone(), left_out) }
    }

    /// Returns the tools for a model with this window.
    pub(crate) fn within(self, window_tokens: u64) -> Self {
        Self { window_tokens, ..self }
    }

    /// Returns the window of the model that is offered them; 0 if it is unknown.
    pub(crate) const fn window_tokens(&self) -> u64 {
        self.window_tokens
    }

    /// Finds the tool with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name).map(|registered| &registered.tool)
    }

    /// Returns true if the session's caller runs the tool.
    pub(crate) fn is_of_client(&self, name: &str) -> bool {
        self.tools.get(name).is_some_and(|registered| registered.is_of_client)
    }

    /// Checks the arguments of a call by the tool's schema.
    ///
    /// # Errors
    /// [`ToolError::Arguments`] says what does not fit.
    pub fn check(&self, name: &str, arguments: &RawJson) -> Result<(), ToolError> {
        let check = |registered: &Registered| registered.schema.check(arguments);
        self.tools.get(name).map_or(Ok(()), check).map_err(ToolError::Arguments)
    }

    /// Lists the tools of sources that cannot be offered.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Lists the specs of all tools by name, without the one that searches them.
    #[must_use]
    pub const fn specs(&self) -> &Arc<[ToolSpec]> {
        &self.specs
    }

    /// Lists the specs for a request; `has_blobs` is true if its context names a blob.
    pub(crate) const fn offered(&self, has_blobs: bool) -> &Arc<[ToolSpec]> {
        if has_blobs { &self.specs } else { &self.specs_without_blobs }
    }

    /// Returns the hash of what a step is offered of these tools; `None` if none of them comes from a source.
    pub(crate) fn fingerprint(&self, offered: &[ToolSpec]) -> Option<String> {
        self.is_joined.then(|| hash(offered))
    }

    /// Returns the configuration's rules.
    #[must_use]
    pub fn approval(&self) -> &ApprovalRules {
        &self.approval
    }
}

/// Joins tools with those of sets; a tool whose name is taken is left out.
fn join(own: &BTreeMap<String, Registered>, sets: &[ToolSet]) -> (BTreeMap<String, Registered>, Vec<LeftOut>) {
    let (mut tools, mut left_out) = (own.clone(), Vec::new());
    for set in sets {
        left_out.extend_from_slice(set.left_out());
        for registered in set.registered() {
            let name = registered.name();
            if tools.contains_key(name) {
                let reason = "another tool has its name".to_owned();
                tracing::debug!(name, reason, "a tool cannot be offered");
                left_out.push(LeftOut { name: name.to_owned(), reason });
            } else {
                tools.insert(name.to_owned(), registered.clone());
            }
        }
    }
    (tools, left_out)
}

/// Hashes names, descriptions and schemas, in order.
fn hash(specs: &[ToolSpec]) -> String {
    let mut hasher = Sha256::new();
    for text in specs.iter().flat_map(|spec| [spec.name.as_str(), &spec.description, spec.schema.as_str()]) {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text);
    }
    hex(&hasher.finalize()[..FINGERPRINT_BYTES])
}
