//! Checks of the messages that a compactor made, whoever wrote it.

use std::collections::BTreeSet;

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_words::answers::TurnStatus;

use crate::{
    compaction::{
        CompactionResult, SUMMARY_BYTES_MAX, is_state, json_bytes, message_bytes, summary_message, summary_of,
    },
    session::{ContextEntry, Session, message::Message},
};

/// A session's context divided into retained messages and a summary of the rest.
pub(super) struct Partition {
    pub(super) summary: String,
    /// Retained messages, by their indexes among the context's entries.
    pub(super) kept: Vec<usize>,
    /// Number of messages that leave.
    pub(super) discarded: usize,
    pub(super) bytes_before: u64,
    pub(super) bytes_after: u64,
}

impl Partition {
    /// Divides the session's messages as the compactor did.
    ///
    /// # Errors
    /// If the compactor's messages are not a context of this session.
    pub(super) fn of(session: &Session, source: &[Message], result: &CompactionResult) -> Result<Self, ErrorBody> {
        let entries = session.context.entries();
        let begin = source.len() - entries.len();
        let system = usize::from(session.system_prompt.is_some());
        let former = usize::from(session.context.summary().is_some());
        let state: Vec<&Message> = source[system + former..begin].iter().collect();
        // The session keeps its state itself: a compactor may put it among the messages that leave, but loses none.
        let [here, gone] = [&result.messages, &result.discarded].map(|of| of.iter().filter(|it| is_state(it)));
        let (here, gone): (Vec<&Message>, Vec<&Message>) = (here.collect(), gone.collect());
        let is_in_order = places(&state, &here).is_some() && places(&state, &gone).is_some();
        if !is_in_order || sorted(&[here, gone].concat()) != sorted(&state) {
            let message = "The compacted context does not have the session's reminders and pins in their order.";
            return Err(ErrorBody::with_message(ErrorCode::CompactionPinLost, message));
        }
        let is_system = |message: &&Message| matches!(message, Message::System { .. });
        let is_verbatim = result.messages.starts_with(&source[..system]);
        if !is_verbatim || result.messages.iter().filter(is_system).count() != system {
            return Err(refusal(
                "The compacted context does not begin with the unchanged system prompt, or repeats it.",
            ));
        }
        let Some(summary) = result.messages.get(system).and_then(summary_of) else {
            return Err(refusal("The message after the system prompt is not a user message with the summary."));
        };
        // The context has it in the engine's form, however the compactor wrote it.
        let message = summary_message(summary);
        if json_bytes(&message) > SUMMARY_BYTES_MAX {
            return Err(refusal(&format!("The summary is longer than {SUMMARY_BYTES_MAX} bytes.")));
        }
        let stays: Vec<&Message> = result.messages[system + 1..].iter().filter(|message| !is_state(message)).collect();
        let said: Vec<&Message> = entries.iter().map(|entry| &*entry.message).collect();
        let kept = places(&said, &stays)
            .ok_or_else(|| refusal("A retained message is not in the context, or is out of order."))?;
        check_discarded(&source[system..system + former], &said, &kept, &result.discarded)?;
        Self::checked(session, source, summary.to_owned(), kept)
    }

    /// Divides the session's messages as a compactor plans to, beside a summary whose message has `summary_bytes`.
    ///
    /// # Errors
    /// If what is left would be no context of this session.
    pub(super) fn planned(
        session: &Session,
        source: &[Message],
        retained: &[usize],
        summary_bytes: u64,
    ) -> Result<Self, ErrorBody> {
        let begin = source.len() - session.context.entries().len();
        let mut kept: Vec<usize> = retained.iter().filter_map(|at| at.checked_sub(begin)).collect();
        kept.retain(|at| begin + at < source.len());
        kept.sort_unstable();
        kept.dedup();
        let partition = Self::checked(session, source, String::new(), kept)?;
        let bytes_after = partition.bytes_after - message_bytes(&summary_message("")) + summary_bytes;
        Ok(Self { bytes_after, ..partition })
    }

    /// Checks that the retained messages are a context, and counts its bytes.
    fn checked(session: &Session, source: &[Message], summary: String, kept: Vec<usize>) -> Result<Self, ErrorBody> {
        let entries = session.context.entries();
        let said: Vec<&Message> = entries.iter().map(|entry| &*entry.message).collect();
        check_pairs(&said, &kept)?;
        check_last_turn(session, &kept)?;
        let is_fixed = |message: &&Message| is_state(message) || matches!(message, Message::System { .. });
        let fixed = source.iter().filter(is_fixed).map(message_bytes).sum::<u64>();
        let stays = kept.iter().map(|at| message_bytes(said[*at])).sum::<u64>();
        Ok(Self {
            discarded: entries.len() - kept.len(),
            bytes_before: source.iter().map(message_bytes).sum(),
            bytes_after: fixed + message_bytes(&summary_message(&summary)) + stays,
            summary,
            kept,
        })
    }

    /// Retains everything.
    pub(super) fn unchanged(session: &Session, source: &[Message]) -> Self {
        let bytes: u64 = source.iter().map(message_bytes).sum();
        let kept = (0..session.context.entries().len()).collect();
        Self { summary: String::new(), kept, discarded: 0, bytes_before: bytes, bytes_after: bytes }
    }

    /// Explains why a compaction with this partition would be useless.
    pub(super) fn lack_of_progress(&self) -> Option<String> {
        let (before, after) = (self.bytes_before, self.bytes_after);
        if self.discarded == 0 {
            return Some("No message would leave the context.".to_owned());
        }
        (after >= before).then(|| format!("The compacted context would have {after} bytes, and it has {before}."))
    }
}

fn refusal(why: &str) -> ErrorBody {
    ErrorBody::with_message(ErrorCode::CompactionNoProgress, why)
}

/// Finds these messages among the context's, each as late as possible.
fn places(said: &[&Message], stays: &[&Message]) -> Option<Vec<usize>> {
    let mut end = said.len();
    let mut places = Vec::with_capacity(stays.len());
    for message in stays.iter().rev() {
        end = said[..end].iter().rposition(|known| known == message)?;
        places.push(end);
    }
    places.reverse();
    Some(places)
}

/// Checks that the discarded messages are exactly those not retained, in order.
fn check_discarded(
    former: &[Message],
    said: &[&Message],
    kept: &[usize],
    discarded: &[Message],
) -> Result<(), ErrorBody> {
    let leaves = said.iter().enumerate().filter(|(at, _)| kept.binary_search(at).is_err()).map(|(_, message)| *message);
    let leaves: Vec<&Message> = former.iter().chain(leaves).collect();
    let discarded: Vec<&Message> = discarded.iter().filter(|message| !is_state(message)).collect();
    if discarded == leaves {
        return Ok(());
    }
    // Equal messages may be exchanged: another one may have been retained.
    let all: Vec<&Message> = former.iter().chain(said.iter().copied()).collect();
    if places(&all, &discarded).is_some() && sorted(&leaves) == sorted(&discarded) {
        return Ok(());
    }
    Err(refusal("The retained and the discarded messages together are not the former context."))
}

fn sorted(messages: &[&Message]) -> Vec<String> {
    let mut written: Vec<String> =
        messages.iter().map(|message| serde_json::to_string(message).unwrap_or_default()).collect();
    written.sort_unstable();
    written
}

/// Calls stay with their results, and results with their calls.
fn check_pairs(said: &[&Message], kept: &[usize]) -> Result<(), ErrorBody> {
    let stays = |at: usize| kept.binary_search(&at).is_ok();
    let is_pair =
        |at: &usize| matches!(said[*at], Message::ToolResults { .. }) && said[*at - 1].tool_calls().next().is_some();
    match (1..said.len()).filter(is_pair).find(|&at| stays(at) != stays(at - 1)) {
        Some(_) => Err(refusal("Tool calls are separated from their results.")),
        None => Ok(()),
    }
}

/// Checks that the model can continue the running turn, or the one that was interrupted last.
fn check_last_turn(session: &Session, kept: &[usize]) -> Result<(), ErrorBody> {
    match must_stay(session).into_iter().find(|at| kept.binary_search(at).is_err()) {
        Some(_) => Err(refusal("The prompt or the newest message of the running or resumable turn was discarded.")),
        None => Ok(()),
    }
}

/// Finds the messages that stay whatever a compactor wants: of the running turn, or the one that was interrupted last,
/// the prompt and the newest message, with the calls whose results it has.
pub(super) fn must_stay(session: &Session) -> BTreeSet<usize> {
    let interrupted = session.last_end().filter(|end| end.status == TurnStatus::Interrupted).map(|end| end.turn);
    let Some(turn) = session.open_turn().map(|open| open.turn).or(interrupted) else { return BTreeSet::new() };
    let entries = session.context.entries();
    let is_of_turn = |entry: &ContextEntry| entry.turn == turn;
    let begin = entries.iter().rposition(|entry| !is_of_turn(entry)).map_or(0, |before| before + 1);
    let is_prompt = |entry: &ContextEntry| matches!(*entry.message, Message::User { .. });
    // Of several, the newest was steered in, and is what the model is to answer.
    let prompt = entries[begin..].iter().rposition(is_prompt).map(|at| begin + at);
    let newest = (begin < entries.len()).then(|| entries.len() - 1);
    let is_answered = |at: &usize| {
        let is_result = matches!(*entries[*at].message, Message::ToolResults { .. });
        is_result && *at > begin && entries[*at - 1].message.tool_calls().next().is_some()
    };
    let calls = newest.filter(is_answered).map(|at| at - 1);
    [prompt, calls, newest].into_iter().flatten().collect()
}
