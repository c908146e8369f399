//! Events with a turn's terms: what it was asked for.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Key;
use crate::{
    compaction::CompactionConfig,
    ids::{Seq, TurnNumber},
    options::{Budgets, ModelOptions, Policy},
    output::{OutputError, OutputSpec},
    session::message::{Attached, Body, Message},
    tool::TurnAccess,
};

/// Declares both events. They share these terms, so a new one is written once.
macro_rules! turn_events {
    ($( $( #[$attribute:meta] )+ $term:ident: $type:ty, )+) => {
        /// A turn was accepted and waits.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct TurnQueued {
            /// The user's message.
            pub prompt: Body,
            /// The model, if the turn names one.
            pub model: Option<String>,
            /// The budgets.
            pub budgets: Budgets,
            /// The turn's own compaction config.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub compaction: Option<CompactionConfig>,
            /// Policy that it was accepted with: `interrupt` goes to the head.
            pub policy: Policy,
            $( $( #[$attribute] )+ pub $term: $type, )+
            /// The idempotency key.
            pub key: Option<Key>,
        }

        /// A turn started.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct TurnStarted {
            /// The user's message; `null` if the turn was queued (see `queued`) or continues another (see `continues`).
            pub prompt: Option<Body>,
            /// The model that answers.
            pub model: String,
            /// The budgets.
            pub budgets: Budgets,
            /// The seq of the `turn_queued` that holds the prompt, or of the last `turn_edited` with one.
            pub queued: Option<Seq>,
            /// The interrupted turn that this one takes over.
            pub continues: Option<TurnNumber>,
            /// The turn's own compaction config.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub compaction: Option<CompactionConfig>,
            $( $( #[$attribute] )+ pub $term: $type, )+
            /// The idempotency key.
            pub key: Option<Key>,
        }

        impl TurnQueued {
            /// Makes the start of this turn, by a model and with all budgets.
            pub(crate) fn start(self, model: String, budgets: Budgets) -> TurnStarted {
                let Self { prompt, compaction, $( $term, )+ key, .. } = self;
                let (prompt, queued, continues) = (Some(prompt), None, None);
                TurnStarted { prompt, model, budgets, queued, continues, compaction, $( $term, )+ key }
            }
        }
    };
}

/// A waiting turn has another prompt or another place in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnEdited {
    /// The user's message in place of the former one; `null` if the prompt stays.
    pub prompt: Option<Body>,
    /// The new prompt's images and files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Attached>,
    /// The turn's place in the queue, from 0; `null` if it stays.
    pub position: Option<usize>,
}

/// The running turn got another text of the user. It waits until the model has answered and its calls have results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnSteered {
    /// The user's message.
    pub prompt: Body,
    /// Its images and files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<Attached>,
    /// The seq of the turn's `turn_started`.
    pub started: Seq,
    /// The idempotency key.
    pub key: Option<Key>,
}

impl TurnSteered {
    /// Makes the user's message.
    pub(crate) fn message(&self) -> Message {
        Message::User { content: self.prompt.clone(), blocks: self.blocks.clone() }
    }
}

/// A steered text is in the context from here on, as the user's message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SteeringEntered {
    /// The seq of the `turn_steered` that holds the text.
    pub steered: Seq,
}

/// The last answer does not fit the turn's schema, and goes back to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutputRefused {
    /// What is wrong with it, at most 16 places.
    pub errors: Vec<OutputError>,
}

impl OutputRefused {
    /// Lists what is wrong with the answer, on one line.
    pub(crate) fn listed(&self) -> String {
        self.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

turn_events! {
    /// Images and files of the prompt; none where that is `null`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<Attached>,
    /// How the model is asked.
    #[serde(default, skip_serializing_if = "ModelOptions::is_default")]
    options: ModelOptions,
    /// Schema that its answer must fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<Arc<OutputSpec>>,
    /// An approver is present.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    attended: bool,
    /// Hash of the tools that its caller runs, if its request had any; a `client_tools_changed` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_tools: Option<String>,
    /// Rules that allow calls of this turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    /// What its calls may do, if that is less than the configuration allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<TurnAccess>,
    /// Folders in which its commands look for programs, as in `PATH`; those of the process if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    search_path: Option<String>,
}
