//! Sessions that compact: before a model call, on request, and back again.
//!
//! The model answers like the scripted one, writes its summaries as a test says, keeps every request, and refuses like
//! a strict vendor.

mod asked;
mod automatic;
mod faults;
mod literal;
mod lives;
mod summaries;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _, stream};
use serde_json::Value;
use tokio::sync::Notify;

use super::{
    Rig, Subject, check_journal,
    fakes::{Does, does},
};
use crate::{
    ErrorCode,
    compaction::CompactionConfig,
    ids::SessionId,
    model::{
        AnswerBlock, ModelAnswer, ModelClient, ModelError, ModelPart, ModelRequest, ModelStream, StaticModels,
        StopReason, ToolSpec, Usage, scripted::ScriptedModel,
    },
    options::ModelOptions,
    service::{CompactSession, CompactionReceipt, SessionService as _, TurnResult, TurnStatus, UndoCompaction},
    session::message::{Message, RawJson, ToolCall},
    tool::{Effect, Tool, ToolError},
};

/// Summary of a model without other instructions.
const SUMMARY: &str = "This was done so far.";
/// Cost of every summary.
const COST: Usage =
    Usage { input_tokens: 50, output_tokens: 7, cached_tokens: 0, cache_write_tokens: 0, reasoning_tokens: 0 };
/// Window of the model, unless a test names another.
const WINDOW: u64 = 100_000;

/// Behaviour of the model when it is asked for a summary.
#[derive(Clone)]
enum Write {
    Text(&'static str),
    /// A text with this bill.
    Billed(&'static str, Usage),
    Call,
    Failure(ErrorCode),
    /// The words of its request that begin with `FACT-`.
    Facts,
    /// Writes it after a notification, if there is one.
    Late(Arc<Notify>),
    /// Never writes it, while the server sends pings.
    Pings,
}

/// Answers as the prompt says, and keeps its requests.
#[derive(Default)]
struct Strict {
    requests: Mutex<Vec<ModelRequest>>,
    /// Behaviour for each summary, in order.
    writes: Mutex<VecDeque<Write>>,
    /// Number of other requests that are refused as too long.
    exceeded: Mutex<u32>,
}

impl Strict {
    fn is_exceeded(&self) -> bool {
        let mut exceeded = self.exceeded.lock().unwrap();
        let is_exceeded = *exceeded > 0;
        *exceeded = exceeded.saturating_sub(1);
        is_exceeded
    }
}

#[async_trait]
impl ModelClient for Strict {
    fn vendor(&self) -> &str {
        "strict"
    }

    fn lacks(&self, _: &str, _: &ModelOptions) -> Option<&'static str> {
        None
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        check_pairs(&request.messages);
        self.requests.lock().unwrap().push(request.clone());
        if !request.forbids_tools {
            if self.is_exceeded() {
                return Err(ModelError::new(ErrorCode::ModelContextExceeded, "too long"));
            }
            return ScriptedModel.stream_response(request).await;
        }
        let write = self.writes.lock().unwrap().pop_front().unwrap_or(Write::Text(SUMMARY));
        let usage = if let Write::Billed(_, usage) = write { usage } else { COST };
        let block = match write {
            Write::Text(text) | Write::Billed(text, _) => AnswerBlock::Text(text.to_owned()),
            Write::Facts => {
                let texts: Vec<String> = request.messages.iter().map(|message| message.text()).collect();
                let words = texts.iter().flat_map(|text| text.split_whitespace());
                let facts: Vec<&str> =
                    words.filter(|word| word.starts_with("FACT-")).map(|word| word.trim_matches('.')).collect();
                AnswerBlock::Text(format!("Facts: {}.", facts.join(" ")))
            }
            Write::Pings => {
                let ping = async |mut every: tokio::time::Interval| {
                    every.tick().await;
                    Some((Ok(ModelPart::Hidden(16)), every))
                };
                return Ok(stream::unfold(tokio::time::interval(Duration::from_secs(15)), ping).boxed());
            }
            Write::Failure(code) => return Err(ModelError::new(code, "no")),
            Write::Late(said) => {
                said.notified().await;
                AnswerBlock::Text(SUMMARY.to_owned())
            }
            Write::Call => AnswerBlock::ToolCall(ToolCall {
                call_id: String::new(),
                name: "fill".to_owned(),
                arguments: RawJson::empty_object(),
                opaque: None,
            }),
        };
        let answer = ModelAnswer { blocks: vec![block], stop_reason: StopReason::EndTurn, usage };
        let parts = [Ok(ModelPart::Text("never shown".to_owned())), Ok(ModelPart::End(answer))];
        Ok(stream::iter(parts).boxed())
    }
}

/// Each call has its result right behind it, and each result its call right before.
fn check_pairs(messages: &[Arc<Message>]) {
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        let results: Vec<&str> = match &**message {
            Message::ToolResults { results } => results.iter().map(|result| result.call_id.as_str()).collect(),
            _ => Vec::new(),
        };
        assert_eq!(results, open, "calls and results are whole pairs: {messages:#?}");
        open = message.tool_calls().map(|call| call.call_id.as_str()).collect();
    }
    assert_eq!(open, Vec::<&str>::new());
}

/// Compacts from 1,000 tokens on, keeps one turn, and not twice within three turns.
fn config() -> CompactionConfig {
    CompactionConfig {
        auto_compact_threshold: 1_000,
        recent_turn_budget: 1,
        max_summary_tokens: 100,
        ..CompactionConfig::default()
    }
}

/// Never compacts by itself, unless the next request does not fit.
fn patient() -> CompactionConfig {
    CompactionConfig { auto_compact_threshold: 100_000, ..config() }
}

/// A tool that answers with as many bytes as it is asked for, and about which there is this to say.
fn fill(description: &str) -> Arc<dyn Tool> {
    let fill = does("fill", Effect::ReadOnly, |invocation, output| {
        async move {
            let arguments: Value = ToolError::decode(&invocation.arguments)?;
            output.write(&"x".repeat(arguments["bytes"].as_u64().unwrap_or(0) as usize)).await
        }
        .boxed()
    });
    Arc::new(Does { spec: ToolSpec { description: description.to_owned(), ..fill.spec }, ..fill })
}

/// A rig with this compaction, and its model.
fn rig(window_tokens: u64, config: CompactionConfig) -> (Rig, Arc<Strict>) {
    let model = Arc::<Strict>::default();
    let mut rig = Rig::new(vec![fill("Fills.")]);
    rig.models = Arc::new(StaticModels::new("strict", model.clone(), window_tokens));
    rig.compaction = Some(config);
    (rig, model)
}

/// A session that compacts so.
struct Bench {
    model: Arc<Strict>,
    subject: Subject,
}

impl Bench {
    async fn new(config: CompactionConfig) -> Self {
        Self::with(WINDOW, config).await
    }

    async fn with(window_tokens: u64, config: CompactionConfig) -> Self {
        let (rig, model) = rig(window_tokens, config);
        Self { model, subject: Subject::new(rig.service()).await }
    }

    /// A turn that completes.
    async fn turn(&self, prompt: &str) -> TurnResult {
        let result = self.subject.turn(prompt).await.unwrap();
        assert_eq!(result.status, TurnStatus::Completed, "{result:?}");
        result
    }

    /// Two turns that have some 1,200 tokens together.
    async fn fill(&self) {
        self.turn("@long 2400").await;
        self.turn("@long 2400").await;
    }

    fn writes(&self, writes: impl IntoIterator<Item = Write>) {
        self.model.writes.lock().unwrap().extend(writes);
    }

    /// The requests so far: those for summaries, or the others.
    fn requests(&self, for_summaries: bool) -> Vec<ModelRequest> {
        let requests = self.model.requests.lock().unwrap();
        requests.iter().filter(|request| request.forbids_tools == for_summaries).cloned().collect()
    }

    /// Outcome of each compaction: the turn, and the mode or the code.
    async fn outcomes(&self) -> Vec<(Value, String)> {
        outcomes(&self.subject.events().await)
    }

    fn compact(&self) -> impl Future<Output = Result<CompactionReceipt, crate::SessionError>> + 'static {
        let (service, session_id) = (self.subject.service.clone(), self.id());
        async move { service.compact(CompactSession { session_id, compaction: None }).await }
    }

    async fn undo(&self, compaction: Option<u64>) -> Result<u64, crate::SessionError> {
        let request = UndoCompaction { session_id: self.id(), compaction };
        Ok(self.subject.service.undo_compaction(request).await?.seq)
    }

    fn id(&self) -> SessionId {
        self.subject.session_id
    }
}

/// Outcome of each compaction in these events. Each has exactly one end.
fn outcomes(events: &[Value]) -> Vec<(Value, String)> {
    check_journal(events);
    let (mut outcomes, mut open, mut mode) = (Vec::new(), false, None);
    for event in events {
        match event["type"].as_str().unwrap() {
            "compaction_started" => assert!(!std::mem::replace(&mut open, true)),
            "context_rebuilt" => {
                mode = event["receipt"]["mode"].as_str().map(str::to_owned);
                assert_eq!(event["compaction"], event["seq"].as_u64().unwrap() + 1);
                assert_eq!(event["receipt"]["compaction"], event["compaction"]);
            }
            "compaction_completed" => {
                assert!(std::mem::take(&mut open));
                outcomes.push((event["turn"].clone(), mode.take().unwrap()));
            }
            "compaction_failed" => {
                assert!(std::mem::take(&mut open));
                outcomes.push((event["turn"].clone(), event["code"].as_str().unwrap().to_owned()));
            }
            _ => {}
        }
    }
    assert!(!open, "a compaction has no end: {events:#?}");
    outcomes
}

/// The texts of a request's messages.
fn texts(request: &ModelRequest) -> Vec<String> {
    request.messages.iter().map(|message| message.text()).collect()
}
