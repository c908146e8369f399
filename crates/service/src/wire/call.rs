//! From an operation and its parameters to the answer's bytes: decode, call one method, encode.
//!
//! Surfaces that speak JSON use this, so that one request gets one answer whatever it came in by.

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    SessionError,
    operation::Operation,
    service::{
        AcknowledgeReader, BegunTurn, CancelQueued, ClearReminder, CompactJournal, CompactSession, CreateSession,
        DecideApproval, DeleteSession, ErrorList, EventPage, ExportSession, FetchReader, ForgetMemory, ForkSession,
        ImportBundle, InterruptTurn, NamedReader, Nothing, OneSession, PinFact, ReadBlob, ReadEvents, ReadHistory,
        RecordPage, Remind, ResumeTurn, Retain, SearchMemory, SessionQuery, SessionService, StartTurn, UndoCompaction,
        Unpin, UpdateSession, WaitReader,
    },
    service::{object, object_or_null},
    session::message::{RawJson, string_bytes},
};

/// Decodes parameters; what is missing, unknown or of the wrong type is `INVALID_REQUEST`.
///
/// # Errors
/// `INVALID_REQUEST` that names the place.
pub fn decode_params<T: DeserializeOwned>(params: &str) -> Result<T, SessionError> {
    let text = if params.trim().is_empty() { "{}" } else { params };
    let compact = RawJson::bounded(text)?;
    serde_json::from_str(&compact).or_else(|error| {
        // What is no JSON at all is refused as that.
        let at = |error| SessionError::invalid("json", format!("not valid JSON: {error}"));
        let syntax = |refusal| serde_json::from_str::<serde::de::IgnoredAny>(text).map_or_else(at, |_| refusal);
        let whole = RawJson::parse(&compact).map_err(syntax)?;
        let decoded = serde_json::from_str(&digits(whole.as_str()));
        // The caller counts lines and columns in what was sent.
        let error = serde_json::from_str::<T>(text).err().unwrap_or(error);
        decoded.map_err(|_| SessionError::invalid("params", error.to_string()))
    })
}

/// Writes whole numbers in digits: to JSON `2.0` and `2e0` are the 2 that they are to a caller, and no parameter has
/// a fraction.
fn digits(json: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(json.len()), json);
    while let Some(first) = rest.chars().next() {
        let (token, after) = rest.split_at(match first {
            '"' => string_bytes(rest),
            '-' | '0'..='9' => {
                rest.find(|next: char| !next.is_ascii_digit() && !"+-.eE".contains(next)).unwrap_or(rest.len())
            }
            other => other.len_utf8(),
        });
        match token.parse::<f64>() {
            Ok(number)
                if number.fract() == 0.0
                    && (0.0..u64::MAX as f64).contains(&number)
                    && token.parse::<u64>().is_err() =>
            {
                out.push_str(&(number as u64).to_string());
            }
            _ => out.push_str(token),
        }
        rest = after;
    }
    out
}

/// `resume` on the wire: the session stands beside the rest.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResumeParams {
    session_id: crate::SessionId,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    policy: crate::options::Policy,
    #[serde(default, deserialize_with = "object")]
    budgets: crate::options::Budgets,
    #[serde(default, deserialize_with = "object_or_null")]
    compaction: Option<crate::compaction::CompactionConfig>,
    #[serde(default)]
    wait: Option<bool>,
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// Performs one operation and answers with its JSON.
///
/// # Errors
/// Whatever the operation is refused with.
pub async fn call(service: &dyn SessionService, operation: Operation, params: &str) -> Result<Vec<u8>, SessionError> {
    use decode_params as decode;
    match operation {
        Operation::CreateSession => {
            let created = service.create_session(decode::<CreateSession>(params)?).await?;
            tracing::Span::current().record("session_id", tracing::field::display(created.session_id));
            encode(&created)
        }
        Operation::StartTurn => begin_turn(service, params).await?.answer().await,
        Operation::Interrupt => encode(&service.interrupt(decode::<InterruptTurn>(params)?).await?),
        Operation::DecideApproval => encode(&service.decide_approval(decode::<DecideApproval>(params)?).await?),
        Operation::Queue => encode(&service.queue(&decode::<OneSession>(params)?.session_id).await?),
        Operation::CancelQueued => encode(&service.cancel_queued(decode::<CancelQueued>(params)?).await?),
        Operation::Events => Ok(encode_events(&service.events(decode::<ReadEvents>(params)?).await?)),
        Operation::Remind => encode(&service.remind(decode::<Remind>(params)?).await?),
        Operation::Reminders => encode(&service.reminders(&decode::<OneSession>(params)?.session_id).await?),
        Operation::ClearReminder => encode(&service.clear_reminder(decode::<ClearReminder>(params)?).await?),
        Operation::Pin => encode(&service.pin(decode::<PinFact>(params)?).await?),
        Operation::Pins => encode(&service.pins(&decode::<OneSession>(params)?.session_id).await?),
        Operation::Unpin => encode(&service.unpin(decode::<Unpin>(params)?).await?),
        Operation::Resume => begin_resume(service, params).await?.answer().await,
        Operation::Read => encode(&service.read(&decode::<OneSession>(params)?.session_id).await?),
        Operation::History => encode(&service.history(decode::<ReadHistory>(params)?).await?),
        Operation::Blob => encode(&service.blob(decode::<ReadBlob>(params)?).await?),
        Operation::List => encode(&service.list(decode::<SessionQuery>(params)?).await?),
        Operation::Update => encode(&service.update(decode::<UpdateSession>(params)?).await?),
        Operation::Archive => encode(&service.archive(&decode::<OneSession>(params)?.session_id).await?),
        Operation::Unarchive => encode(&service.unarchive(&decode::<OneSession>(params)?.session_id).await?),
        Operation::Delete => encode(&service.delete(decode::<DeleteSession>(params)?).await?),
        Operation::Fork => encode(&service.fork(decode::<ForkSession>(params)?).await?),
        Operation::ExportSession => encode(&service.export_session(decode::<ExportSession>(params)?).await?),
        Operation::ImportBundle => encode(&service.import_bundle(decode::<ImportBundle>(params)?).await?),
        Operation::CreateReader => encode(&service.create_reader(decode::<NamedReader>(params)?).await?),
        Operation::FetchReader => Ok(encode_records(&service.fetch_reader(decode::<FetchReader>(params)?).await?)),
        Operation::AcknowledgeReader => {
            encode(&service.acknowledge_reader(decode::<AcknowledgeReader>(params)?).await?)
        }
        Operation::WaitReader => encode(&service.wait_reader(decode::<WaitReader>(params)?).await?),
        Operation::DeleteReader => encode(&service.delete_reader(decode::<NamedReader>(params)?).await?),
        Operation::ListReaders => {
            let Nothing {} = decode(params)?;
            encode(&service.list_readers().await?)
        }
        Operation::CompactJournal => encode(&service.compact_journal(decode::<CompactJournal>(params)?).await?),
        Operation::RebuildProjection => {
            let Nothing {} = decode(params)?;
            encode(&service.rebuild_projection().await?)
        }
        Operation::Retain => encode(&service.retain(decode::<Retain>(params)?).await?),
        Operation::Compact => encode(&service.compact(decode::<CompactSession>(params)?).await?),
        Operation::PreviewCompaction => encode(&service.preview_compaction(decode::<CompactSession>(params)?).await?),
        Operation::UndoCompaction => encode(&service.undo_compaction(decode::<UndoCompaction>(params)?).await?),
        Operation::SearchMemory => encode(&service.search_memory(decode::<SearchMemory>(params)?).await?),
        Operation::ForgetMemory => encode(&service.forget_memory(decode::<ForgetMemory>(params)?).await?),
        Operation::ReindexMemory => {
            let Nothing {} = decode(params)?;
            encode(&service.reindex_memory().await?)
        }
        Operation::Capabilities => {
            let Nothing {} = decode(params)?;
            encode(&service.capabilities().view())
        }
        Operation::Errors => {
            let Nothing {} = decode(params)?;
            encode(&ErrorList::all())
        }
    }
}

/// A turn that was accepted, and what its caller waits for.
pub struct BegunCall {
    /// The turn.
    pub turn: BegunTurn,
    /// Whether the answer is the turn's result, or where it was accepted.
    pub wait: bool,
}

impl BegunCall {
    /// The answer's JSON.
    ///
    /// # Errors
    /// Where the turn left the queue unstarted.
    pub async fn answer(self) -> Result<Vec<u8>, SessionError> {
        if self.wait { encode(&self.turn.result.await?) } else { encode(&self.turn.accepted) }
    }
}

/// Begins the turn of a `start_turn`, for those who follow it or stop it before it answers.
///
/// # Errors
/// Whatever the turn is refused with.
pub async fn begin_turn(service: &dyn SessionService, params: &str) -> Result<BegunCall, SessionError> {
    let request: StartTurn = decode_params(params)?;
    let wait = request.wait;
    Ok(BegunCall { turn: service.begin_turn(request).await?, wait })
}

/// Begins the turn of a `resume`.
///
/// # Errors
/// Whatever the turn is refused with.
pub async fn begin_resume(service: &dyn SessionService, params: &str) -> Result<BegunCall, SessionError> {
    let params: ResumeParams = decode_params(params)?;
    let wait = params.wait.unwrap_or(true);
    let request = ResumeTurn {
        prompt: params.prompt,
        model: params.model,
        policy: params.policy,
        budgets: params.budgets,
        compaction: params.compaction,
        wait,
        idempotency_key: params.idempotency_key,
    };
    Ok(BegunCall { turn: service.begin_resume(&params.session_id, request).await?, wait })
}

/// An answer's JSON.
///
/// # Errors
/// Where it cannot be written.
pub fn encode<T: Serialize>(answer: &T) -> Result<Vec<u8>, SessionError> {
    serde_json::to_vec(answer)
        .map_err(|error| SessionError::Internal(format!("the answer could not be encoded: {error}")))
}

/// A page of events; the lines stand in it as they are.
#[must_use]
pub fn encode_events(page: &EventPage) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + page.items.iter().map(|line| line.len() + 1).sum::<usize>());
    out.extend_from_slice(br#"{"items":["#);
    for (index, line) in page.items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(line);
    }
    out.extend_from_slice(format!(r#"],"next_seq":{}}}"#, page.next_seq).as_bytes());
    out
}

/// A page of records; the lines stand in it as they are.
pub(super) fn encode_records(page: &RecordPage) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + page.items.iter().map(|record| record.line.len() + 100).sum::<usize>());
    out.extend_from_slice(br#"{"items":["#);
    for (index, record) in page.items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let key = record.idempotency_key();
        out.extend_from_slice(format!(r#"{{"idempotency_key":"{key}","event":"#).as_bytes());
        out.extend_from_slice(&record.line);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out
}
