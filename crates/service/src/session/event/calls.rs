//! Events about tools that the session's caller runs.

use meerkat_words::calls::{CallOutcome, ClientTool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{clock::Timestamp, ids::Seq, session::message::RawJson, tool::Effect};

/// The session has other tools that its caller runs, or a turn in its queue brings them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientToolsChanged {
    /// Hash of the tools.
    pub hash: String,
    /// The tools; `null` if an earlier event has them (see `defined`).
    pub tools: Option<Vec<ClientTool>>,
    /// The seq of the earlier `client_tools_changed` that has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defined: Option<Seq>,
    /// True if the turn that brings them is in the queue: with its start they become the session's, by another event.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub queued: bool,
}

/// A call waits for its caller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallRequested {
    /// The call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub arguments: RawJson,
    /// Effect of running it again.
    pub effect: Effect,
    /// Time until which it is answered.
    pub deadline: Timestamp,
}

/// A caller answered a call. The `tool_finished` that follows at once has the content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallAnswered {
    /// The call.
    pub call_id: String,
    /// How it went at its caller.
    pub outcome: CallOutcome,
    /// SHA-256 of outcome and content, in hexadecimal digits: the same answer again changes nothing.
    pub answer_hash: String,
    /// The seq of the turn's `turn_started`.
    pub started: Seq,
}
