//! System reminders: typed texts that stay with a session, one of each type, the newest wins.
//!
//! The type is a field that text cannot forge. A reminder is a message of the live context and never a turn: no
//! compaction discards it.
//!
//! A session's own reminders change by events, which `remind` and `clear_reminder` of the service record. The functions
//! here are what applies them, what makes messages of them, and what you may use for lists of your own.

use std::borrow::Cow;

pub use meerkat_words::reminder::{Pin, Reminder, SystemReminderType};

use super::message::{Attached, AttachedFile, BlobRef, Body, Image, Message, ToolResult};
use crate::{compaction::summary_of, tool::RECALL_TOOL};

/// What may be a reminder: a message, or a session's own reminder.
pub trait MaybeReminder {
    /// Returns its type; `None` if it is no reminder.
    fn reminder_type(&self) -> Option<&SystemReminderType>;

    /// Returns true if new reminders come behind it, and before what was said.
    fn is_before_what_was_said(&self) -> bool;
}

impl MaybeReminder for Message {
    fn reminder_type(&self) -> Option<&SystemReminderType> {
        match self {
            Self::SystemReminder { kind, .. } => Some(kind),
            Self::System { .. }
            | Self::Pin { .. }
            | Self::User { .. }
            | Self::Assistant { .. }
            | Self::BlockAssistant { .. }
            | Self::ToolResults { .. } => None,
        }
    }

    fn is_before_what_was_said(&self) -> bool {
        match self {
            Self::System { .. } | Self::SystemReminder { .. } | Self::Pin { .. } => true,
            Self::User { .. } => summary_of(self).is_some(),
            Self::Assistant { .. } | Self::BlockAssistant { .. } | Self::ToolResults { .. } => false,
        }
    }
}

impl MaybeReminder for Reminder {
    fn reminder_type(&self) -> Option<&SystemReminderType> {
        Some(&self.kind)
    }

    fn is_before_what_was_said(&self) -> bool {
        true
    }
}

/// Adds a reminder behind the others, and removes the former one of its type. The first reminder comes before all
/// messages of the conversation.
///
/// ```
/// use meerkat_service::session::{message::Message, reminder::*};
///
/// let prompt = Message::user("Go on.");
/// let mut messages = vec![Message::System { content: "You are a careful engineer.".into() }, prompt.clone()];
/// add_system_reminder(&mut messages, SystemReminderType::ClaudeMd, "No `unwrap`.");
/// add_system_reminder(&mut messages, SystemReminderType::GitStatus, "On main, clean.");
/// add_system_reminder(&mut messages, SystemReminderType::ClaudeMd, "No `unwrap`, no `expect`.");
///
/// let reminders: Vec<String> = messages.iter().filter(|it| is_system_reminder(it)).map(Message::text).collect();
/// assert_eq!(reminders, ["On main, clean.", "No `unwrap`, no `expect`."]);
/// assert_eq!(messages.last(), Some(&prompt));
/// ```
pub fn add_system_reminder(messages: &mut Vec<Message>, kind: SystemReminderType, text: impl Into<Body>) {
    add(messages, Message::SystemReminder { kind, content: text.into() });
}

/// Adds a reminder in the place of the former one of its type.
pub(super) fn add<M: MaybeReminder>(messages: &mut Vec<M>, reminder: M) {
    if let Some(kind) = reminder.reminder_type() {
        remove_system_reminders_by_type(messages, kind);
    }
    let at = messages.iter().take_while(|message| message.is_before_what_was_said()).count();
    messages.insert(at, reminder);
}

/// Returns true if a message is a reminder. A user's text that looks like one is not.
#[must_use]
pub const fn is_system_reminder(message: &Message) -> bool {
    matches!(message, Message::SystemReminder { .. })
}

/// Returns true if a message is a reminder of this type.
#[must_use]
pub fn is_system_reminder_of_type(message: &impl MaybeReminder, kind: &SystemReminderType) -> bool {
    message.reminder_type() == Some(kind)
}

/// Counts the reminders of this type.
#[must_use]
pub fn count_system_reminders_by_type(messages: &[impl MaybeReminder], kind: &SystemReminderType) -> usize {
    messages.iter().filter(|message| is_system_reminder_of_type(*message, kind)).count()
}

/// Takes the reminders of this type out.
pub fn remove_system_reminders_by_type(messages: &mut Vec<impl MaybeReminder>, kind: &SystemReminderType) {
    messages.retain(|message| !is_system_reminder_of_type(message, kind));
}

/// Writes a reminder as a request carries it. No text in it can end it, nor begin another; what no type's name has is
/// written as `_`.
///
/// ```
/// use meerkat_service::session::reminder::*;
///
/// let content = create_system_reminder_content(&SystemReminderType::GitStatus, "On main, clean.");
/// assert_eq!(content, "<system-reminder kind=\"git_status\">\nOn main, clean.\n</system-reminder>");
/// assert_eq!(extract_type_from_content(&content), Some(SystemReminderType::GitStatus));
/// ```
#[must_use]
pub fn create_system_reminder_content(kind: &SystemReminderType, content: &str) -> String {
    format!("{OPENING}{}{OPENED}{}{CLOSING}", kind.tame(), without_tags(content))
}

/// Parses the type in what [`create_system_reminder_content`] wrote, and in nothing else. It says nothing about who wrote
/// it: anybody can. Whether a message is a reminder, and of which type, [`is_system_reminder_of_type`] says, which looks at
/// no text.
#[must_use]
pub fn extract_type_from_content(content: &str) -> Option<SystemReminderType> {
    let (kind, rest) = content.strip_prefix(OPENING)?.split_once(OPENED)?;
    let text = rest.strip_suffix(CLOSING)?;
    // A second reminder in it, or one's end, is not what was written.
    matches!(without_tags(text), Cow::Borrowed(_)).then(|| kind.parse().ok()).flatten()
}

/// What a request has around the type and the text of a reminder.
const OPENING: &str = "<system-reminder kind=\"";
const OPENED: &str = "\">\n";
const CLOSING: &str = "\n</system-reminder>";

/// Tags around reminders, pins and recalled texts in a request.
const TAGS: [&str; 3] = ["system-reminder", "pin", RECALLED_TAG];
/// Tag that the search tool itself puts around texts, which contain none.
const RECALLED_TAG: &str = "recalled";

/// A reminder or a pin as a request carries it; `None` of any other message. No text in it can end it, nor begin
/// another.
pub(super) fn tagged(message: &Message) -> Option<String> {
    match message {
        Message::SystemReminder { kind, content } => Some(create_system_reminder_content(kind, &content.excerpt())),
        Message::Pin { n, content } => Some(format!("<pin n=\"{n}\">\n{}\n</pin>", without_tags(&content.excerpt()))),
        Message::System { .. }
        | Message::User { .. }
        | Message::Assistant { .. }
        | Message::BlockAssistant { .. }
        | Message::ToolResults { .. } => None,
    }
}

/// A text with `&lt;` in place of the bracket of each of our tags, opening or closing.
pub(crate) fn without_tags(text: &str) -> Cow<'_, str> {
    escaped(text, |_| true)
}

/// Escapes our tags in a prompt or in results. The outcome depends on the message alone, so that a vendor's cache of it
/// stays valid.
pub(crate) fn without_forged_tags(message: Message) -> Message {
    cleaned(&message).unwrap_or(message)
}

/// It, if something had to be changed.
fn cleaned(message: &Message) -> Option<Message> {
    let clean = |content: &Body, is_refused: fn(&str) -> bool| match content {
        Body::Inline(text) => match escaped(text, is_refused) {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(Body::Inline(text)),
        },
        Body::Blob(blob) => match (escaped(&blob.head, is_refused), escaped(&blob.tail, is_refused)) {
            (Cow::Borrowed(_), Cow::Borrowed(_)) => None,
            (head, tail) => {
                Some(Body::Blob(BlobRef { head: head.into_owned(), tail: tail.into_owned(), ..blob.clone() }))
            }
        },
    };
    match message {
        Message::User { content, blocks } => {
            // Of an imported prompt the type may be any text, too.
            let named = |block: &Attached| match block {
                Attached::File(file) => {
                    let [name, media_type] = [&file.name, &file.media_type].map(|text| without_tags(text).into_owned());
                    Attached::File(AttachedFile { name, media_type, ..file.clone() })
                }
                Attached::Image(image) => {
                    let media_type = without_tags(&image.media_type).into_owned();
                    Attached::Image(Image { media_type, ..image.clone() })
                }
            };
            let cleaned = clean(content, |_| true);
            // Compared first: most prompts have none.
            let renamed = Some(blocks.iter().map(named).collect()).filter(|renamed: &Vec<Attached>| renamed != blocks);
            (cleaned.is_some() || renamed.is_some()).then(|| Message::User {
                content: cleaned.unwrap_or_else(|| content.clone()),
                blocks: renamed.unwrap_or_else(|| blocks.clone()),
            })
        }
        Message::ToolResults { results } => {
            let of = |result: &ToolResult| {
                clean(&result.content, if result.name == RECALL_TOOL { |tag| tag != RECALLED_TAG } else { |_| true })
            };
            let cleaned: Vec<Option<Body>> = results.iter().map(of).collect();
            cleaned.iter().any(Option::is_some).then(|| {
                let pairs = results.iter().zip(cleaned);
                let with = |(result, content): (&ToolResult, Option<Body>)| {
                    let content = content.unwrap_or_else(|| result.content.clone());
                    ToolResult { content, ..result.clone() }
                };
                Message::ToolResults { results: pairs.map(with).collect() }
            })
        }
        Message::System { .. }
        | Message::SystemReminder { .. }
        | Message::Pin { .. }
        | Message::Assistant { .. }
        | Message::BlockAssistant { .. } => None,
    }
}

/// A text with `&lt;` in place of the bracket of each of those of our tags that are refused.
fn escaped(text: &str, is_refused: impl Fn(&str) -> bool) -> Cow<'_, str> {
    let is_tag = |rest: &str| {
        let name = rest.trim_start_matches(|c: char| c == '/' || c.is_whitespace());
        let is_named = |tag: &str| name.get(..tag.len()).is_some_and(|name| name.eq_ignore_ascii_case(tag));
        TAGS.into_iter().any(|tag| is_named(tag) && is_refused(tag))
    };
    if !text.split('<').skip(1).any(is_tag) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split('<');
    let mut safe = parts.next().unwrap_or_default().to_owned();
    for rest in parts {
        safe.push_str(if is_tag(rest) { "&lt;" } else { "<" });
        safe.push_str(rest);
    }
    Cow::Owned(safe)
}
