//! meerkat over OpenAI's protocols: `/v1/responses`, `/v1/chat/completions` and `/v1/models`, for programs that speak
//! them already. No engine type knows them.
//!
//! In reading order: `handlers` has the table, and performs a row of it; `wire` takes the fields of a request, `said`
//! sorts what was said into history and prompt, `asked` decodes it all, and begins the turn in a session that `own`
//! knows as made here; `unfold` makes a response of a session's events, `responses` writes it as JSON and `chat` makes
//! a chat of that, `stream` sends it as it comes, `error` is where a failure becomes an HTTP status.
//!
//! docs/openai.md has what becomes what. A field, a value, a part or an item that is not named there is refused with its
//! name as `param`. Nothing here checks who is calling: the listener does that first.

mod asked;
mod calls;
mod chat;
mod error;
mod handlers;
mod ids;
mod own;
mod passing;
mod past;
mod responses;
mod said;
mod stream;
mod unfold;
mod wire;

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    routing::{MethodFilter, on},
};
use meerkat_errors::ErrorBody;
use meerkat_service::{SessionId, SessionService};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

pub use error::refusal;
pub use handlers::{Route, TABLE};

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
    /// How long calls of a session that is not stored wait for their outputs.
    pub call_time: Duration,
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
    waiting: passing::Waiting,
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

/// Returns true for a path of these protocols, whether there is a route or not.
#[must_use]
pub fn owns(path: &str) -> bool {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    let bases = ["/v1/models", "/v1/responses", "/v1/chat", "/v1/conversations"];
    bases.iter().any(|base| path.strip_prefix(base).is_some_and(is_below))
}

/// The service over OpenAI's protocols.
pub fn router(service: Arc<dyn SessionService>, options: OpenAiOptions) -> Router {
    let limit = usize::try_from(options.body_bytes_max).unwrap_or(usize::MAX);
    let locks = [const { Mutex::const_new(()) }; LOCKS];
    let app = Arc::new(App { service, options, waiting: Default::default(), locks, hasher: RandomState::new() });
    let router = TABLE.iter().fold(Router::new(), |router, route| {
        let operate = move |State(app): State<Arc<App>>, request: Request| handlers::operate(app, route, request);
        router.route(route.path, on(MethodFilter::try_from(route.method.clone()).unwrap_or(MethodFilter::GET), operate))
    });
    let router = router.fallback(handlers::unknown).method_not_allowed_fallback(handlers::other_method);
    router.layer(DefaultBodyLimit::max(limit)).with_state(app)
}
