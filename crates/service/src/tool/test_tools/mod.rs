//! Tools for tests and demonstrations: one for each behaviour of a tool.
//!
//! They exist only if a folder is configured for them, and they write only below it.

mod files;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    clock::Clock,
    model::ToolSpec,
    session::message::RawJson,
    tool::{Answer, Invocation, OutputSink, Plan, Question, Tool, ToolError},
};
use meerkat_models::scripted::filler;

/// Bytes that `test_huge` writes at once.
const PIECE_BYTES: usize = 8 * 1024;

/// Makes all test tools. They write below `dir` and sleep by `clock`.
#[must_use]
pub fn test_tools(dir: PathBuf, clock: Arc<dyn Clock>) -> Vec<Arc<dyn Tool>> {
    let env = Arc::new(Environment { dir, clock });
    let tool = |kind: Kind| -> Arc<dyn Tool> { Arc::new(TestTool { kind, spec: kind.spec(), env: env.clone() }) };
    Kind::ALL.map(tool).to_vec()
}

/// Environment of the test tools.
struct Environment {
    dir: PathBuf,
    clock: Arc<dyn Clock>,
}

struct TestTool {
    kind: Kind,
    spec: ToolSpec,
    env: Arc<Environment>,
}

/// Names of the test tools.
pub(crate) const TEST_TOOLS: [&str; 9] = [
    "test_echo",
    "test_set",
    "test_append",
    "test_ask",
    "test_form",
    "test_sleep",
    "test_fail",
    "test_huge",
    "test_panic",
];

#[derive(Clone, Copy)]
enum Kind {
    Echo,
    Set,
    Append,
    Ask,
    Form,
    Sleep,
    Fail,
    Huge,
    Panic,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EchoArguments {
    /// Text to answer with.
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetArguments {
    /// The file's name: letters, digits, `_` and `-`.
    name: String,
    /// The file's whole new content.
    value: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AppendArguments {
    /// The file's name: letters, digits, `_` and `-`.
    name: String,
    /// The line, without its end.
    line: String,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AskArguments {
    /// The file's name: letters, digits, `_` and `-`.
    name: String,
    /// The line, without its end.
    line: String,
    /// Show the line to the person who decides, and propose a rule for the file.
    #[serde(default)]
    lasting: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FormArguments {
    /// The question.
    message: String,
    /// Schema of the answer as JSON text; without it a name, and a number that is 3 if it is left out.
    #[serde(default)]
    schema: Option<String>,
}

/// Form of `test_form`.
const FORM: &str = r#"{"type":"object","properties":{"count":{"type":"integer","default":3},"name":{"type":"string"}},
    "required":["name"]}"#;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SleepArguments {
    /// Milliseconds to sleep.
    ms: u64,
    /// Go on sleeping when the call is cancelled.
    #[serde(default)]
    ignore_cancel: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FailArguments {
    /// Message to fail with.
    message: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HugeArguments {
    /// Bytes to write.
    bytes: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PanicArguments {}

impl Kind {
    const ALL: [Self; 9] =
        [Self::Echo, Self::Set, Self::Append, Self::Ask, Self::Form, Self::Sleep, Self::Fail, Self::Huge, Self::Panic];

    fn spec(self) -> ToolSpec {
        match self {
            Self::Echo => spec::<EchoArguments>("test_echo", "Answers with the text."),
            Self::Set => spec::<SetArguments>("test_set", "Writes the value to a file."),
            Self::Append => spec::<AppendArguments>("test_append", "Appends a line to a file."),
            Self::Ask => spec::<AskArguments>("test_ask", "Appends a line to a file, when a person allows it."),
            Self::Form => {
                spec::<FormArguments>("test_form", "Asks a person while it runs, and answers with the answer.")
            }
            Self::Sleep => spec::<SleepArguments>("test_sleep", "Sleeps."),
            Self::Fail => spec::<FailArguments>("test_fail", "Fails with the message."),
            Self::Huge => spec::<HugeArguments>("test_huge", "Writes that many bytes of output."),
            Self::Panic => spec::<PanicArguments>("test_panic", "Panics."),
        }
    }
}

#[expect(clippy::expect_used, reason = "a schema made by schemars is JSON of little depth")]
fn spec<Arguments: JsonSchema>(name: &str, description: &str) -> ToolSpec {
    let schema = schemars::schema_for!(Arguments).to_value().to_string();
    let schema = RawJson::parse(&schema).expect("a schema is valid JSON");
    ToolSpec { name: name.to_owned(), description: description.to_owned(), schema }
}

/// Plans a call that asks.
fn asking(AskArguments { name, line, lasting }: AskArguments) -> Plan {
    let plan = Plan::once().ask();
    match lasting {
        false => plan,
        true => {
            let rule = Some(format!("test_ask: {name}"));
            Plan { preview: Some(format!("+{line}")), subjects: vec![name], rule, ..plan }
        }
    }
}

#[async_trait]
impl Tool for TestTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(match self.kind {
            Kind::Set => Plan::idempotent(),
            Kind::Append => Plan::once(),
            Kind::Ask => return None,
            Kind::Form => Plan::once(),
            Kind::Echo | Kind::Sleep | Kind::Fail | Kind::Huge | Kind::Panic => Plan::read_only(),
        })
    }

    async fn plan(&self, invocation: &Invocation) -> Result<Plan, ToolError> {
        let asked = || asking(ToolError::decode(&invocation.arguments).unwrap_or_default());
        Ok(self.usual_plan().unwrap_or_else(asked))
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let arguments = &invocation.arguments;
        match self.kind {
            Kind::Echo => output.write(&ToolError::decode::<EchoArguments>(arguments)?.text).await,
            Kind::Set => {
                let SetArguments { name, value } = ToolError::decode(arguments)?;
                files::set(&self.env.dir, &name, &value)?;
                output.write(&format!("set {name}")).await
            }
            Kind::Append | Kind::Ask => {
                let (name, line) = match self.kind {
                    Kind::Ask => {
                        let AskArguments { name, line, .. } = ToolError::decode(arguments)?;
                        (name, line)
                    }
                    _ => {
                        let AppendArguments { name, line } = ToolError::decode(arguments)?;
                        (name, line)
                    }
                };
                files::append(&self.env.dir, &name, &line)?;
                output.write(&format!("appended to {name}")).await
            }
            Kind::Form => ask(ToolError::decode(arguments)?, output).await,
            Kind::Sleep => self.sleep(&invocation, output).await,
            Kind::Fail => Err(ToolError::Failed(ToolError::decode::<FailArguments>(arguments)?.message)),
            Kind::Huge => huge(&invocation, output).await,
            Kind::Panic => {
                let PanicArguments {} = ToolError::decode(arguments)?;
                give_up()
            }
        }
    }
}

impl TestTool {
    async fn sleep(&self, invocation: &Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let SleepArguments { ms, ignore_cancel } = ToolError::decode(&invocation.arguments)?;
        output.progress(format!("sleeping {ms} ms"));
        tokio::select! {
            biased;
            () = invocation.cancel.cancelled(), if !ignore_cancel => return Err(ToolError::Cancelled),
            () = self.env.clock.sleep(Duration::from_millis(ms)) => {}
        }
        output.write(&format!("slept {ms} ms")).await
    }
}

async fn ask(FormArguments { message, schema }: FormArguments, output: &OutputSink) -> Result<(), ToolError> {
    let schema = RawJson::parse(&schema.unwrap_or_else(|| FORM.to_owned()));
    let schema = schema.map_err(|error| ToolError::Failed(error.to_string()))?;
    let question = Question::new("test", &message, &schema).map_err(ToolError::Failed)?;
    let answer = match output.ask(question).await {
        Answer::Accepted(given) => format!("accepted {}", given.as_str()),
        Answer::Declined => "declined".to_owned(),
        Answer::Cancelled => return Err(ToolError::Cancelled),
    };
    output.write(&answer).await
}

async fn huge(invocation: &Invocation, output: &OutputSink) -> Result<(), ToolError> {
    let HugeArguments { bytes } = ToolError::decode(&invocation.arguments)?;
    let (piece, mut left) = (filler(PIECE_BYTES), bytes);
    while left > 0 {
        if invocation.cancel.is_cancelled() {
            return Err(ToolError::Cancelled);
        }
        let length = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        output.write(&piece[..length]).await?;
        left -= length as u64;
        tokio::task::yield_now().await;
    }
    Ok(())
}

#[expect(clippy::panic, reason = "this tool is there to panic")]
fn give_up() -> Result<(), ToolError> {
    panic!("test_panic panics")
}

#[cfg(test)]
mod tests;
