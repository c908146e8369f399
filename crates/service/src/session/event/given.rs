//! The event of a message that was said elsewhere.

use meerkat_words::given::MESSAGES_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ids::TurnNumber,
    session::message::{Block, Message},
};

/// The session was given a message from elsewhere, from before its first turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryGiven {
    /// Exchange that it belongs to, from 0: each message of the user begins one.
    pub exchange: u32,
    /// The message.
    pub message: Message,
}

impl HistoryGiven {
    /// Role by which a history lists the message; `None` if no history that is given has such a message.
    pub(crate) const fn role(&self) -> Option<&'static str> {
        match self.message {
            Message::User { .. } => Some("user"),
            Message::Assistant { .. } | Message::BlockAssistant { .. } => Some("assistant"),
            Message::ToolResults { .. } => Some("tool_results"),
            Message::System { .. } | Message::SystemReminder { .. } | Message::Pin { .. } => None,
        }
    }

    /// Returns true if a request can give it: it has no image, no reasoning and nothing of a vendor.
    pub(crate) fn is_plain(&self) -> bool {
        let is_plain = |block: &Block| match block {
            Block::Text { .. } => true,
            Block::Reasoning { .. } => false,
            Block::ToolCall(call) => call.opaque.is_none(),
        };
        match &self.message {
            Message::User { blocks, .. } => blocks.is_empty(),
            Message::BlockAssistant { blocks, .. } => blocks.iter().all(is_plain),
            Message::ToolResults { results } => results.iter().all(|result| result.images.is_empty()),
            Message::Assistant { .. }
            | Message::System { .. }
            | Message::SystemReminder { .. }
            | Message::Pin { .. } => false,
        }
    }

    /// Returns the number that its exchange has among the turns of a context. Turns count from 0 and never get there.
    pub(crate) const fn span(&self) -> TurnNumber {
        TurnNumber::MAX.saturating_sub(self.exchange)
    }
}

/// Returns true if a number in a context is that of an exchange which was given, and of no turn.
pub(crate) const fn is_given(span: TurnNumber) -> bool {
    span > TurnNumber::MAX - MESSAGES_MAX as TurnNumber
}
