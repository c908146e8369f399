//! meerkat over OpenAI's protocols: `/v1/responses`, `/v1/chat/completions` and `/v1/models`, for programs that speak them
//! already. No engine type knows them.
//!
//! In reading order: `routes` is the table, [`router`] is made of it, `handlers` performs a row of it; `wire` takes the
//! fields of a request, `responses` and `chat` decode and encode one protocol each, `said` sorts what was said into
//! history and prompt, `asked` begins the turn; `unfold` makes a response of a session's events, `stream` sends it as it
//! comes, `error` is where a failure becomes an HTTP status.
//!
//! # What becomes what
//!
//! | theirs | ours |
//! |---|---|
//! | a response | a turn, or a part of one: it ends with the turn, or when all open calls wait for the client |
//! | its id | `resp_`, the session, `_`, the seq of the `turn_started`, `turn_queued` or first `call_answered` that began it |
//! | the id of a call | `call_`, the session, `_`, and the rest of ours: an output finds its call, also without an id of a response |
//! | the id of an item | `msg_`, `rs_` or `fc_`, the session, the turn, the step, the block |
//! | `model` | the model of session and turn |
//! | `input`, `messages` | the last messages of the user are the prompt, everything before is `CreateSession.history` |
//! | instructions: `instructions`, `system` and `developer` messages at the beginning | `system_prompt` |
//! | `function_call_output`, `tool` messages at the end | `answer_call` |
//! | `previous_response_id` | the next turn of its session; if something was accepted after it there, of a fork |
//! | a conversation | `conv_` and the session; `items` are `CreateSession.history`, `conversation` is the next turn |
//! | `tools` of the type `function` | `client_tools`; the session has no other tools |
//! | `text.format`, `response_format` | `output` |
//! | `temperature`, `top_p`, `max_output_tokens`, `max_completion_tokens`, `max_tokens`, `stop`, `seed`, `reasoning.effort`, `reasoning_effort` | `options` |
//! | `metadata`, `user` | labels; `user` is the one that `memory.scope_label` names |
//! | `background` | a turn that is not waited for |
//! | `store: false`, chats | a session in memory, which is dropped with its answer |
//! | the header `Idempotency-Key` | `idempotency_key` of session and turn |
//! | `cancel` | `interrupt`, or `cancel_queued` |
//!
//! Hints that change no answer are accepted: `safety_identifier`, `prompt_cache_key`, `truncation`, `service_tier` with
//! `auto` or `default`, `stream_options.include_obfuscation`, `reasoning.summary`. Every other field, value, part and item
//! is refused with its name as `param`.
//!
//! | our event | theirs |
//! |---|---|
//! | acceptance | `response.created`, `response.in_progress` |
//! | the first `text_delta` of a block | `response.output_item.added`, `response.content_part.added` |
//! | `text_delta` | `response.output_text.delta` |
//! | `reasoning_delta` | `response.reasoning_summary_text.delta`, in an item and a part of its own |
//! | `assistant_message` | what is missing of each block, then `….done` for its text, its part and its item; its calls with `response.function_call_arguments.delta` and `.done` |
//! | `call_requested`, when every open call waits | `response.completed` |
//! | `turn_completed` | `response.completed`, or `response.incomplete` if the limit of tokens or a filter ended it |
//! | `turn_failed` | `response.failed` |
//! | `turn_interrupted`, `turn_dequeued` | `response.cancelled` |
//!
//! An answer by a schema is shown when it is known to fit. It never checks who is calling: the listener does that first.

mod routes;

mod asked;
mod chat;
mod error;
mod handlers;
mod ids;
mod responses;
mod said;
mod stream;
mod unfold;
mod wire;

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
};

use axum::{
    Router,
    extract::{Request, State},
    routing::{MethodFilter, on},
};
use meerkat_errors::ErrorBody;
use meerkat_service::{SessionId, SessionService};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

pub use error::refusal;
pub use routes::{Operation, Route, owns, table};

/// Locks that sessions share, each by its id: most sessions are continued without waiting for another one.
const LOCKS: usize = 64;

/// Takes a place for an event stream; the stream holds it. An error if there is none.
pub type Places = Arc<dyn Fn() -> Result<Option<Box<dyn Send>>, ErrorBody> + Send + Sync>;

/// Options of the routes.
#[derive(Clone)]
pub struct OpenAiOptions {
    /// Service for chats and responses that are not stored. It drops its sessions soon after their last turn.
    pub passing: Arc<dyn SessionService>,
    /// Names of the models.
    pub models: Vec<String>,
    /// Label for the user of a request, which parts the project's memory.
    pub scope_label: String,
    /// Bytes of a request's body.
    pub body_bytes_max: u64,
    /// Places for streams.
    pub places: Places,
}

impl fmt::Debug for OpenAiOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiOptions").field("models", &self.models).finish_non_exhaustive()
    }
}

/// State that all requests share.
pub(crate) struct App {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) options: OpenAiOptions,
    locks: [Mutex<()>; LOCKS],
    hasher: RandomState,
}

impl App {
    /// The models as the protocol lists them.
    pub(crate) fn models(&self) -> impl Iterator<Item = Value> {
        let model = |name: &String| json!({ "id": name, "object": "model", "created": 0, "owned_by": "meerkat" });
        self.options.models.iter().map(model)
    }

    /// Waits until no other request continues a session.
    pub(crate) async fn turn_of(&self, session_id: SessionId) -> MutexGuard<'_, ()> {
        let at = self.hasher.hash_one(session_id) % LOCKS as u64;
        let at = usize::try_from(at).unwrap_or_default();
        self.locks[at].lock().await
    }
}

/// The service over OpenAI's protocols.
pub fn router(service: Arc<dyn SessionService>, options: OpenAiOptions) -> Router {
    let locks = [const { Mutex::const_new(()) }; LOCKS];
    let app = Arc::new(App { service, options, locks, hasher: RandomState::new() });
    let router = table().iter().fold(Router::new(), |router, route| {
        let operate =
            move |State(app): State<Arc<App>>, request: Request| handlers::operate(app, route.operation, request);
        let method = MethodFilter::try_from(route.method.clone()).unwrap_or(MethodFilter::GET);
        router.route(route.path, on(method, operate))
    });
    router.fallback(handlers::unknown).method_not_allowed_fallback(handlers::other_method).with_state(app)
}
