//! Tools that come and go: sources, and the sets that they offer.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use meerkat_words::{
    output::ANSWER_TOOL,
    tool::{NAME_BYTES_MAX, is_name_char},
};

use super::{Tool, ToolServerView, schema::ArgumentSchema};
use crate::{ids::SessionId, redact::Secrets};

/// Origin of the tools that the program itself brings.
pub(super) const PROGRAM: &str = "program";

/// Names of vendors' own tools, which vendors would run without approval.
const NAMES_OF_VENDORS: &[&str] = &["web_search", "web_search_preview", "google_search"];

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

/// Checks that every vendor takes a tool's name.
///
/// # Errors
/// Says why not.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(is_name_char) {
        return Err(format!("{name:?} is not a tool's name: it needs 1 to 64 letters, digits, '_' or '-'"));
    }
    if NAMES_OF_VENDORS.contains(&name) {
        return Err(format!("{name} is a vendor's own tool; give yours another name"));
    }
    if name == ANSWER_TOOL {
        return Err(format!("by {ANSWER_TOOL} a model ends a turn with a schema; give your tool another name"));
    }
    Ok(())
}

/// Tool that may be offered, with its compiled schema.
#[derive(Clone)]
pub(super) struct Registered {
    pub(super) tool: Arc<dyn Tool>,
    pub(super) schema: Arc<ArgumentSchema>,
    /// True if the session's caller runs it.
    pub(super) is_of_client: bool,
}

impl Registered {
    /// Checks a tool's name and schema.
    ///
    /// # Errors
    /// Says why it cannot be offered.
    pub(super) fn check(tool: Arc<dyn Tool>) -> Result<Self, String> {
        let spec = tool.spec();
        check_name(&spec.name)?;
        let schema = match tool.has_checked_schema() {
            true => ArgumentSchema::checked(&spec.schema),
            false => ArgumentSchema::compile(&spec.schema).map_err(|why| format!("tool {}: {why}", spec.name))?,
        };
        Ok(Self { tool, schema: Arc::new(schema), is_of_client: false })
    }

    pub(super) fn name(&self) -> &str {
        &self.tool.spec().name
    }
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

    /// Marks its tools as those of a session's caller.
    pub(super) fn of_client(self) -> Self {
        let Checked { tools, left_out } = &*self.0;
        let tools = tools.iter().map(|tool| Registered { is_of_client: true, ..tool.clone() }).collect();
        Self(Arc::new(Checked { tools, left_out: left_out.clone() }))
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
}

impl Default for ToolSet {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}
