//! A model and tools with scripted behaviour.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::{StreamExt as _, future::BoxFuture, stream};
use tokio::sync::Notify;

use super::Rig;
use crate::{
    ErrorCode,
    model::{
        AnswerBlock, ModelAnswer, ModelClient, ModelError, ModelPart, ModelRequest, ModelStream, StaticModels,
        StopReason, ToolSpec, Usage,
    },
    session::message::{Message, RawJson, ToolCall},
    tool::{Approval, Effect, Invocation, OutputSink, Plan, Tool, ToolError},
};

/// Answer of a [`Heard`] model.
pub(super) enum Answer {
    Blocks(Vec<AnswerBlock>),
    Fails(ErrorCode),
    Stalls,
    /// Says this and ends without an end.
    Cuts(&'static str),
    /// Says this and no more, and gives notice.
    Halts(&'static str, Arc<Notify>),
    /// Answers after this has ended.
    Late(BoxFuture<'static, ()>, Vec<AnswerBlock>),
}

pub(super) fn says(text: &str) -> Answer {
    Answer::Blocks(vec![AnswerBlock::Text(text.to_owned())])
}

/// Calls of one answer, each a tool with its arguments. The vendor gives them all one id.
pub(super) fn calls<T: Into<String>>(calls: impl IntoIterator<Item = (&'static str, T)>) -> Answer {
    let call = |(name, arguments): (&str, T)| {
        let arguments = RawJson::parse(&arguments.into()).unwrap();
        let (call_id, name) = ("call_3_1".to_owned(), name.to_owned());
        AnswerBlock::ToolCall(ToolCall { call_id, name, arguments, opaque: None })
    };
    Answer::Blocks(calls.into_iter().map(call).collect())
}

/// Gives one answer after another, and keeps its requests.
pub(super) struct Heard {
    pub(super) answers: Mutex<Vec<Answer>>,
    pub(super) requests: Mutex<Vec<ModelRequest>>,
}

impl Heard {
    pub(super) fn new(answers: impl IntoIterator<Item = Answer>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(answers.into_iter().collect()), requests: Mutex::default() })
    }

    /// The messages of the last request.
    pub(super) fn last(&self) -> Vec<Arc<Message>> {
        self.requests.lock().unwrap().last().unwrap().messages.clone()
    }
}

#[async_trait]
impl ModelClient for Heard {
    fn vendor(&self) -> &str {
        "heard"
    }

    fn asks_by_mode(&self, request: &ModelRequest) -> bool {
        request.output.is_some() && !request.answers_by_tool
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.requests.lock().unwrap().push(request);
        let answer = self.answers.lock().unwrap().remove(0);
        let blocks = match answer {
            Answer::Fails(code) => return Err(ModelError::new(code, "no")),
            Answer::Stalls => std::future::pending().await,
            Answer::Cuts(text) => return Ok(stream::iter(begun(text)).boxed()),
            Answer::Halts(text, notice) => {
                let end = stream::once(async move {
                    notice.notify_one();
                    std::future::pending().await
                });
                return Ok(stream::iter(begun(text)).chain(end).boxed());
            }
            Answer::Late(time, blocks) => {
                time.await;
                blocks
            }
            Answer::Blocks(blocks) => blocks,
        };
        let stop_reason = match blocks.last() {
            Some(AnswerBlock::ToolCall(_)) => StopReason::ToolUse,
            _ => StopReason::EndTurn,
        };
        let end = ModelPart::End(ModelAnswer { blocks, stop_reason, usage: Usage::default() });
        Ok(stream::iter([Ok(end)]).boxed())
    }
}

/// The beginning of an answer: a text, and a part of a call.
fn begun(text: &str) -> [Result<ModelPart, ModelError>; 2] {
    [Ok(ModelPart::Text(text.to_owned())), Ok(ModelPart::Hidden(20))]
}

/// A rig with this model, its window and a tool.
pub(super) fn rig(model: Arc<Heard>, window_tokens: u64, tool: Arc<dyn Tool>) -> Rig {
    let mut rig = Rig::new(vec![tool]);
    rig.models = Arc::new(StaticModels::new("heard", model, window_tokens));
    rig
}

/// A tool's work.
pub(super) type Act = for<'a> fn(Invocation, &'a OutputSink) -> BoxFuture<'a, Result<(), ToolError>>;

/// A tool that does this.
pub(super) struct Does {
    pub(super) spec: ToolSpec,
    pub(super) effect: Effect,
    pub(super) approval: Approval,
    pub(super) act: Act,
}

/// A tool that needs no approval.
pub(super) fn does(name: &str, effect: Effect, act: Act) -> Does {
    let spec = ToolSpec { name: name.to_owned(), description: "Works.".into(), schema: RawJson::empty_object() };
    Does { spec, effect, approval: Approval::Allow, act }
}

#[async_trait]
impl Tool for Does {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::new(self.effect, self.approval))
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::new(self.effect, self.approval))
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        (self.act)(invocation, output).await
    }
}
