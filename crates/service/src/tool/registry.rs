//! Tools of a service, by name.

use std::{collections::BTreeMap, sync::Arc};

use meerkat_words::tool::{NAME_BYTES_MAX, is_name_char};

use super::{Approval, ApprovalRules, READ_BLOB, RECALL_TOOL, Tool, test_tools::TEST_TOOLS};
use crate::{SessionError, model::ToolSpec};

/// Names of vendors' own tools, which vendors would run without approval.
const NAMES_OF_VENDORS: &[&str] = &["web_search", "web_search_preview", "google_search"];

/// Similarity of two names, of 1, at which one may be a misspelling of the other.
const LIKENESS_MIN: f64 = 0.8;

/// Tools that only some builds, configurations or sessions have: a rule may name an absent one.
const OPTIONAL_TOOLS: &[&str] = &[
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
fn is_optional(name: &str) -> bool {
    name.starts_with("mcp__") || OPTIONAL_TOOLS.iter().chain(&TEST_TOOLS).any(|optional| *optional == name)
}

/// Tools that sessions may use.
#[derive(Clone, Default)]
pub struct ToolRegistry {
    tools: BTreeMap<String, Arc<dyn Tool>>,
    specs: Arc<[ToolSpec]>,
    /// Specs without the tools that are offered only if the context names a blob.
    specs_without_blobs: Arc<[ToolSpec]>,
    approval: ApprovalRules,
}

impl ToolRegistry {
    /// Registers tools; `approval` holds rules that override a tool's own.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if a name is taken or not allowed, or a schema is not a JSON object; `CONFIG_INVALID` for a
    /// rule of an unknown tool: a misspelt name would allow a call that the rule should deny.
    pub fn new(tools: Vec<Arc<dyn Tool>>, approval: BTreeMap<String, Approval>) -> Result<Self, SessionError> {
        let mut by_name: BTreeMap<String, Arc<dyn Tool>> = BTreeMap::new();
        for tool in tools {
            let spec = tool.spec();
            if !(1..=NAME_BYTES_MAX).contains(&spec.name.len()) || !spec.name.chars().all(is_name_char) {
                return Err(SessionError::invalid(
                    "tools",
                    format!("a tool's name has 1 to 64 letters, digits, '_' or '-'; {:?} has not", spec.name),
                ));
            }
            if NAMES_OF_VENDORS.contains(&spec.name.as_str()) {
                let message = format!("{} is a vendor's own tool; give yours another name", spec.name);
                return Err(SessionError::invalid("tools", message));
            }
            if !spec.schema.as_str().starts_with('{') {
                return Err(SessionError::invalid(
                    "tools",
                    format!("the schema of tool {} is no JSON object", spec.name),
                ));
            }
            let name = spec.name.clone();
            if by_name.insert(name.clone(), tool).is_some() {
                return Err(SessionError::invalid("tools", format!("there are two tools named {name}")));
            }
        }
        let approval = ApprovalRules::parse(&approval).map_err(|(rule, message)| SessionError::ConfigInvalid {
            key: format!("tools.approval.{rule}"),
            message,
        })?;
        if let Some(name) = approval.names().find(|name| !by_name.contains_key(*name) && !is_optional(name)) {
            let likeness = |other: &String| strsim::jaro_winkler(name, other);
            let names =
                by_name.keys().cloned().chain(OPTIONAL_TOOLS.iter().chain(&TEST_TOOLS).map(|&name| name.to_owned()));
            let nearest = names.filter(|other| likeness(other) >= LIKENESS_MIN);
            let nearest = nearest.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            let hint = nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest:?}?"));
            let message = format!("there is no tool {name:?}, so its rule would hold for nothing{hint}");
            return Err(SessionError::ConfigInvalid { key: format!("tools.approval.{name}"), message });
        }
        let specs: Arc<[ToolSpec]> = by_name.values().map(|tool| tool.spec().clone()).collect();
        let specs_without_blobs = specs.iter().filter(|spec| spec.name != READ_BLOB).cloned().collect();
        Ok(Self { tools: by_name, specs, specs_without_blobs, approval })
    }

    /// Finds the tool with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name)
    }

    /// Lists the specs of all tools by name.
    #[must_use]
    pub const fn specs(&self) -> &Arc<[ToolSpec]> {
        &self.specs
    }

    /// Lists the specs for a request; `has_blobs` is true if its context names a blob.
    pub(crate) const fn offered(&self, has_blobs: bool) -> &Arc<[ToolSpec]> {
        if has_blobs { &self.specs } else { &self.specs_without_blobs }
    }

    /// Returns the configuration's rules.
    #[must_use]
    pub const fn approval(&self) -> &ApprovalRules {
        &self.approval
    }
}
