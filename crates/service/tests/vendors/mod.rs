//! The vendors' clients against servers that answer and refuse as the vendors do.
//!
//! Nothing here leaves the machine: every base URL is a listener on loopback.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests stop at an impossible value, as tests do"
)]

mod answers;
mod asked;
mod bills;
mod bounds;
mod failures;
mod mutations;
mod names;
mod prompts;
mod replay;
mod returned;
mod schemas;
mod signs;
mod strict;
mod wire;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use futures::StreamExt;
use meerkat_service::{
    SessionError,
    model::{
        AnswerBlock, ModelAnswer, ModelClient, ModelError, ModelPart, ModelRequest, ModelResolver, ModelStream,
        vendors::{CompatibleEndpoint, VendorAccess, VendorModels, VendorOptions},
    },
    session::message::Message,
};
use serde_json::Value;

use crate::vendors::replay::{Reply, Request, Server};

/// Key of every vendor. It may appear in a request's header only.
pub(crate) const KEY: &str = "sk-planted-0123456789abcdef";

/// Vendor with its wire format.
#[derive(Clone, Copy)]
pub(crate) struct Wire {
    /// Name of a model.
    model: &'static str,
    options: fn(String) -> VendorOptions,
    accepts: fn(&Request) -> Result<(), String>,
    text: &'static str,
    calls: &'static str,
}

pub(crate) static ANTHROPIC: Wire = Wire {
    model: "claude-sonnet-5-5",
    options: |url| VendorOptions { anthropic: access(url), ..VendorOptions::default() },
    accepts: strict::anthropic,
    text: wire::ANTHROPIC_TEXT,
    calls: wire::ANTHROPIC_CALLS,
};

pub(crate) static CHAT: Wire = Wire {
    model: "gpt-4.1",
    options: |url| VendorOptions { openai: access(url), ..VendorOptions::default() },
    accepts: strict::chat,
    text: wire::CHAT_TEXT,
    calls: wire::CHAT_CALLS,
};

pub(crate) static RESPONSES: Wire = Wire {
    model: "gpt-5.6-terra",
    options: |url| VendorOptions { openai: access(url), ..VendorOptions::default() },
    accepts: strict::responses,
    text: wire::RESPONSES_TEXT,
    calls: wire::RESPONSES_CALLS,
};

pub(crate) static GEMINI: Wire = Wire {
    model: "gemini/gemini-3.8-flash",
    options: |url| VendorOptions { gemini: access(url), ..VendorOptions::default() },
    accepts: strict::gemini,
    text: wire::GEMINI_TEXT,
    calls: wire::GEMINI_CALLS,
};

/// A server without a key, and a model's name that ends like an effort.
pub(crate) static COMPATIBLE: Wire = Wire {
    model: "local/qwen/qwen-max",
    options: |base_url| VendorOptions {
        compatible: vec![CompatibleEndpoint {
            name: "local".to_owned(),
            base_url,
            window_tokens: Some(32_768),
            ..Default::default()
        }],
        ..VendorOptions::default()
    },
    accepts: strict::chat_without_key,
    text: wire::CHAT_TEXT,
    calls: wire::CHAT_CALLS,
};

pub(crate) static WIRES: [&Wire; 5] = [&ANTHROPIC, &CHAT, &RESPONSES, &GEMINI, &COMPATIBLE];

fn access(url: String) -> VendorAccess {
    VendorAccess { key: Some(KEY.into()), base_url: Some(url) }
}

/// Scripted model, which no test here calls.
pub(crate) struct NoScript;

#[async_trait]
impl ModelClient for NoScript {
    fn vendor(&self) -> &str {
        "scripted"
    }

    async fn stream_response(&self, _: ModelRequest) -> Result<ModelStream, ModelError> {
        unreachable!("only vendors are asked")
    }
}

pub(crate) fn models(options: &VendorOptions) -> Result<VendorModels, SessionError> {
    VendorModels::new(options, Arc::new(NoScript))
}

/// Vendor's server and its client.
pub(crate) struct Call {
    pub(crate) server: Server,
    client: Arc<dyn ModelClient>,
    model: String,
    /// Bodies of the accepted requests.
    pub(crate) bodies: Arc<Mutex<Vec<Value>>>,
}

impl Wire {
    /// Starts the vendor's server, which refuses what the vendor would refuse, and answers with `play`.
    pub(crate) async fn start(&self, play: impl Fn(Request) -> Reply + Send + Sync + 'static) -> Call {
        let (accepts, bodies) = (self.accepts, Arc::<Mutex<Vec<Value>>>::default());
        let seen = bodies.clone();
        let server = Server::start(move |request| match accepts(&request) {
            Ok(()) => {
                keep(&request);
                seen.lock().unwrap().push(request.body.clone());
                play(request)
            }
            Err(rule) => Reply::refusal(400, serde_json::json!({ "error": { "message": rule } }).to_string()),
        });
        let server = server.await;
        let resolved = models(&(self.options)(server.url.clone())).unwrap().resolve(self.model).unwrap();
        Call { server, client: resolved.client, model: resolved.vendor_model, bodies }
    }

    /// Returns the story's bytes: Gemini ends lines with CR and LF.
    pub(crate) fn on_wire(&self, story: &str) -> String {
        if self.model.contains("gemini") { story.replace('\n', "\r\n") } else { story.to_owned() }
    }

    /// Returns the story up to its first piece of text.
    pub(crate) fn begun(&self) -> String {
        let second = self.text.find("世界").unwrap();
        self.on_wire(&self.text[..self.text[..second].rfind("\n\n").unwrap() + 2])
    }

    /// Makes one call that is answered with `reply`.
    pub(crate) async fn hear(&self, reply: impl Fn() -> Reply + Send + Sync + 'static) -> Result<Heard, ModelError> {
        let call = self.start(move |_| reply()).await;
        call.ask(vec![user("Hello.")]).await
    }
}

/// Keeps an accepted request, if a folder for them is named: accepted.sh checks them by the vendors' own types.
fn keep(request: &Request) {
    let Some(folder) = std::env::var_os("MEERKAT_REQUESTS") else { return };
    let text = serde_json::json!({ "path": request.path, "body": request.body }).to_string();
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    std::fs::write(Path::new(&folder).join(format!("{:x}.json", hasher.finish())), text).unwrap();
}

/// Answer with its streamed parts.
pub(crate) struct Heard {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) answer: ModelAnswer,
}

impl Call {
    pub(crate) fn request(&self, messages: Vec<Message>) -> ModelRequest {
        ModelRequest {
            model: self.model.clone(),
            messages: messages.into_iter().map(Arc::new).collect(),
            ..ModelRequest::default()
        }
    }

    pub(crate) async fn ask(&self, messages: Vec<Message>) -> Result<Heard, ModelError> {
        self.send(self.request(messages)).await
    }

    pub(crate) async fn stream(&self, request: ModelRequest) -> ModelStream {
        self.client.stream_response(request).await.unwrap()
    }

    /// Reads the whole stream; checks that nothing follows its end or failure.
    pub(crate) async fn send(&self, request: ModelRequest) -> Result<Heard, ModelError> {
        let mut stream = self.client.stream_response(request).await?;
        let (mut text, mut reasoning) = (String::new(), String::new());
        let end = loop {
            match stream.next().await.expect("a stream ends with its end or a failure") {
                Ok(ModelPart::Text(more)) => text.push_str(&more),
                Ok(ModelPart::Reasoning(more)) => reasoning.push_str(&more),
                Ok(ModelPart::Hidden(_)) => {}
                Ok(ModelPart::End(answer)) => break Ok(answer),
                Err(error) => break Err(error),
            }
        };
        assert!(stream.next().await.is_none(), "nothing comes after the end");
        end.map(|answer| Heard { text, reasoning, answer })
    }
}

/// Sends a request that the vendor accepts; returns its body.
pub(crate) async fn sent(wire: &Wire, change: impl FnOnce(&mut ModelRequest), messages: Vec<Message>) -> Value {
    let story = wire.on_wire(wire.text);
    let call = wire.start(move |_| Reply::stream(story.clone())).await;
    let mut request = call.request(messages);
    change(&mut request);
    call.send(request).await.unwrap_or_else(|error| panic!("{}: {error}", wire.model));
    call.bodies.lock().unwrap().remove(0)
}

pub(crate) fn user(text: &str) -> Message {
    Message::user(text)
}

/// Formats the blocks, one line each.
pub(crate) fn lines(blocks: &[AnswerBlock]) -> Vec<String> {
    let line = |block: &AnswerBlock| match block {
        AnswerBlock::Text(text) => format!("text {text}"),
        AnswerBlock::Reasoning { text, opaque } => format!("reasoning {text:?} {opaque:?}"),
        AnswerBlock::ToolCall(call) => {
            format!("call {:?} {} {:?} {:?}", call.call_id, call.name, call.arguments, call.opaque)
        }
    };
    blocks.iter().map(line).collect()
}
