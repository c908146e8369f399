//! The tools of a service, by name.

use std::{collections::BTreeMap, sync::Arc};

use super::{Approval, Tool};
use crate::{
    SessionError,
    memory::passages::RECALL_TOOL,
    model::{ToolSpec, scripted::tools::TEST_TOOLS},
    runtime::read_blob::READ_BLOB,
};

/// The longest name of a tool, which is what every vendor takes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Whether a tool's name may hold it: every vendor takes it.
pub(crate) const fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '-'
}

/// Names that vendors take as tools of their own, which they would run without asking anybody here.
const NAMES_OF_VENDORS: &[&str] = &["web_search", "web_search_preview", "google_search"];

/// How much two names are alike where one is taken for the other, of 1.
const NEAR: f64 = 0.8;

/// Tools that are there in some builds and configurations: a rule for one of them may wait for it.
fn known() -> impl Iterator<Item = &'static str> {
    std::iter::once(RECALL_TOOL).chain(TEST_TOOLS)
}

fn is_known(name: &str) -> bool {
    known().any(|known| known == name)
}

/// The tools that sessions may use.
#[derive(Clone, Default)]
pub struct ToolRegistry {
    tools: BTreeMap<String, Arc<dyn Tool>>,
    specs: Arc<[ToolSpec]>,
    /// The same without what is offered only where the context names a blob.
    specs_without_blobs: Arc<[ToolSpec]>,
    approval: BTreeMap<String, Approval>,
}

impl ToolRegistry {
    /// A registry of these tools; `approval` holds rules that win over a tool's own.
    ///
    /// # Errors
    /// `INVALID_REQUEST` where a name is taken or not allowed, or a schema is no JSON object; `CONFIG_INVALID` for a rule
    /// of a tool that does not exist: whoever misspells a name would run what they mean to deny.
    pub fn new(tools: Vec<Arc<dyn Tool>>, approval: BTreeMap<String, Approval>) -> Result<Self, SessionError> {
        let mut by_name: BTreeMap<String, Arc<dyn Tool>> = BTreeMap::new();
        for tool in tools {
            let spec = tool.spec();
            if !(1..=NAME_BYTES_MAX).contains(&spec.name.len()) || !spec.name.chars().all(is_of_name) {
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
        if let Some(name) = approval.keys().find(|name| !by_name.contains_key(*name) && !is_known(name)) {
            let likeness = |other: &String| strsim::jaro_winkler(name, other);
            let names = by_name.keys().cloned().chain(known().map(str::to_owned));
            let nearest = names.filter(|other| likeness(other) >= NEAR);
            let nearest = nearest.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            let hint = nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest:?}?"));
            let message = format!("there is no tool {name:?}, so its rule would hold for nothing{hint}");
            return Err(SessionError::ConfigInvalid { key: format!("tools.approval.{name}"), message });
        }
        let specs: Arc<[ToolSpec]> = by_name.values().map(|tool| tool.spec().clone()).collect();
        let specs_without_blobs = specs.iter().filter(|spec| spec.name != READ_BLOB).cloned().collect();
        Ok(Self { tools: by_name, specs, specs_without_blobs, approval })
    }

    /// The tool of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.tools.get(name)
    }

    /// Every tool as a model is told of it, in the order of their names.
    #[must_use]
    pub const fn specs(&self) -> &Arc<[ToolSpec]> {
        &self.specs
    }

    /// The tools that a request offers whose context names a blob, or does not.
    pub(crate) const fn offered(&self, has_blobs: bool) -> &Arc<[ToolSpec]> {
        if has_blobs { &self.specs } else { &self.specs_without_blobs }
    }

    /// The approval rule of a tool.
    #[must_use]
    pub fn approval(&self, tool: &dyn Tool) -> Approval {
        self.approval.get(&tool.spec().name).copied().unwrap_or_else(|| tool.approval())
    }
}
