//! What goes over the owner's socket: the first words of both sides, and the shapes of the owner's messages.
//!
//! Results and events stay text, so that they are handed on to the letter.

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{Capabilities, Seq};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::config::Setting;

/// The method of the first message.
pub(crate) const HELLO: &str = "owner/hello";

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Speaker {
    version: String,
    build: String,
    pid: u32,
}

impl Speaker {
    /// This process.
    pub(crate) fn own() -> Self {
        let view = Capabilities::compiled().view();
        Self { version: view.version, build: view.build, pid: std::process::id() }
    }

    /// Refuses two that may not understand each other.
    pub(crate) fn refuse(owner: &Self, attached: &Self) -> Option<ErrorBody> {
        let of = |speaker: &Self| (speaker.version.clone(), speaker.build.clone());
        (of(owner) != of(attached)).then(|| {
            let message = format!(
                "Process {} owns the data directory and is meerkat {} (build {}), this is meerkat {} (build {}); end it, \
                 or use the same one.",
                owner.pid, owner.version, owner.build, attached.version, attached.build
            );
            ErrorBody::with_message(ErrorCode::StoreLocked, message)
                .detail("pid", owner.pid)
                .detail("version", owner.version.clone())
                .detail("build", owner.build.clone())
        })
    }
}

/// What an attached command says first.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) speaker: Speaker,
    /// What it was told by flags and variables that is the owner's to decide.
    pub(crate) settings: Vec<Setting>,
}

/// Whether new work is taken, and why not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Readiness {
    pub(crate) is_ready: bool,
    pub(crate) trouble: Option<ErrorBody>,
}

/// What the owner answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) speaker: Speaker,
    pub(crate) refusal: Option<ErrorBody>,
    /// How it stands with the owner's service at this moment. Another version may not tell.
    #[serde(default)]
    pub(crate) readiness: Readiness,
}

/// The first message.
#[derive(Deserialize)]
pub(crate) struct First {
    pub(crate) method: String,
    pub(crate) params: Hello,
}

/// A message of the owner's: an answer or a notification.
#[derive(Deserialize)]
pub(super) struct Incoming<'a> {
    pub(super) id: Option<u64>,
    #[serde(borrow)]
    pub(super) result: Option<&'a RawValue>,
    pub(super) error: Option<Refusal>,
    #[serde(borrow)]
    pub(super) params: Option<Event<'a>>,
}

/// What a notification carries.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    pub(super) subscription: u64,
    #[serde(borrow)]
    pub(super) result: Option<&'a RawValue>,
    pub(super) error: Option<Refusal>,
}

/// An error of JSON-RPC, of which only the body counts.
#[derive(Deserialize)]
pub(super) struct Refusal {
    pub(super) data: ErrorBody,
}

/// What the cursor needs of an event's line.
#[derive(Deserialize)]
pub(super) struct Head<'a> {
    pub(super) seq: Option<Seq>,
    #[serde(rename = "type", borrow)]
    pub(super) kind: &'a RawValue,
    pub(super) to: Option<Seq>,
}
