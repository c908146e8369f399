//! Connection to a server: its start, its list of tools, one call.
//!
//! It never sends a call twice, and says of each failed one if the server may have seen it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ::http::{HeaderName, HeaderValue};
use futures::{StreamExt as _, stream::FuturesUnordered};
use meerkat_service::{
    clock::Clock,
    redact::Secrets,
    tool::{Asking, OutputSink},
};
use rmcp::{
    ClientHandler, ErrorData, RoleClient, ServiceError, ServiceExt as _,
    model::{
        CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, ElicitRequestParams,
        ElicitResult, ElicitationAction, ElicitationCapability, FormElicitationCapability, Implementation, JsonObject,
        ListToolsRequest, PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ProtocolVersion,
        ServerResult, SubscriptionFilter,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, NotificationContext, Peer,
        PeerRequestOptions, RequestContext, RunningService,
    },
    transport::{
        DynamicTransportError, StreamableHttpClientTransport,
        auth::AuthError,
        common::client_side_sse::SseRetryPolicy,
        streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError},
    },
};
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    answer::{self, CallEnd},
    auth::{Account, Authorized},
    cache::LIST_BYTES_MAX,
    http::Bounded,
    listing::TOOLS_MAX,
    process::{self, Context, LastWords, Program},
    questions::{self, Askers},
    transport::{Lines, MESSAGE_BYTES_MAX, Marking, Taken, Why},
};

/// Pages of a list of tools.
const PAGES_MAX: usize = 64;
/// Messages about progress that may wait for one call, and for calls that are not known yet; more are dropped.
const PROGRESS_MAX: usize = 16;
/// Bytes of one; more is cut.
const PROGRESS_BYTES_MAX: usize = 4 * 1024;
/// Milliseconds before each try to read on from an answer that was cut.
const RECONNECTS: [u64; 3] = [0, 300, 1_500];
/// Wait before listening again for changed tools.
const LISTEN_PAUSE: Duration = Duration::from_secs(5);
/// Requests of one call, of which all but the last were answered by questions.
const ROUNDS_MAX: u32 = 16;
/// Wait before the second request, if the server wanted nothing but that; as much longer before each further one.
const ROUND_PAUSE: Duration = Duration::from_millis(250);
/// Longest time for telling a server that a call is cancelled.
const CANCEL: Duration = Duration::from_secs(1);
/// Time for which a stopped call counts as running: its server may go on with it, and ask.
const STOPPED: Duration = Duration::from_secs(30);

/// Way to a server, with its variables replaced.
#[derive(Clone)]
pub(super) enum Target {
    /// A program.
    Program(Program),
    /// An address, with the headers of each request, and the login there unless a header replaces it.
    Address(String, HashMap<HeaderName, HeaderValue>, Option<Arc<Account>>),
}

/// Tries to read on from an answer over HTTP that was cut: a server may keep it, and the library would never give up.
#[derive(Debug)]
struct Reconnects;

impl SseRetryPolicy for Reconnects {
    fn retry(&self, failed: usize) -> Option<Duration> {
        RECONNECTS.get(failed).copied().map(Duration::from_millis)
    }
}

/// What a server tells us unasked.
#[derive(Default)]
struct Notices {
    progress: Mutex<Progress>,
    list_changed: Notify,
    askers: Askers,
}

/// Messages about progress, for the calls that hear of them.
#[derive(Default)]
struct Progress {
    calls: HashMap<ProgressToken, mpsc::Sender<String>>,
    /// The newest ones of no known call: a server may answer before its call's token is known here.
    early: VecDeque<(ProgressToken, String)>,
}

impl Progress {
    fn say(&mut self, token: ProgressToken, text: String) {
        match self.calls.get(&token) {
            Some(call) => drop(call.try_send(text)),
            None => {
                if self.early.len() == PROGRESS_MAX {
                    self.early.pop_front();
                }
                self.early.push_back((token, text));
            }
        }
    }

    fn register(&mut self, token: &ProgressToken, said: mpsc::Sender<String>) {
        let (its, others) = self.early.drain(..).partition(|(of, _)| of == token);
        self.early = others;
        let its: VecDeque<_> = its;
        its.into_iter().for_each(|(_, text)| drop(said.try_send(text)));
        self.calls.insert(token.clone(), said);
    }
}

#[derive(Clone)]
struct Handler {
    server: String,
    notices: Arc<Notices>,
}

impl ClientHandler for Handler {
    async fn on_progress(&self, said: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let amount =
            said.total.map_or_else(|| said.progress.to_string(), |total| format!("{} of {total}", said.progress));
        let text = said.message.map_or_else(|| amount.clone(), |message| format!("{message} ({amount})"));
        let text = format!("{}\n", &text[..text.floor_char_boundary(PROGRESS_BYTES_MAX)]);
        self.notices.progress.lock().unwrap_or_else(PoisonError::into_inner).say(said.progress_token, text);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.notices.list_changed.notify_one();
    }

    async fn create_elicitation(
        &self,
        asked: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        tokio::select! {
            biased;
            () = context.ct.cancelled() => Ok(ElicitResult::new(ElicitationAction::Cancel)),
            answer = self.notices.askers.answer(&self.server, asked) => Ok(answer),
        }
    }

    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(ElicitationCapability::new().with_form(FormElicitationCapability::new()));
        ClientConfig::new(capabilities, Implementation::new("meerkat", env!("CARGO_PKG_VERSION")))
    }
}

/// Open connection to a server.
pub(super) struct Link {
    server: String,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    peer: Peer<RoleClient>,
    notices: Arc<Notices>,
    last_words: LastWords,
    why: Why,
    account: Option<Arc<Account>>,
    /// Asks the connection to end.
    close: CancellationToken,
    /// Fires once it has ended.
    ended: CancellationToken,
    calls: AtomicUsize,
    /// Milliseconds of the clock when it was last used.
    used_ms: AtomicU64,
}

/// Running use of a connection, which keeps it open.
pub(super) struct Use(pub(super) Arc<Link>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.touch();
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Link {
    /// Connects to a server. One that `wants_session` keeps state for it, if the server can.
    ///
    /// # Errors
    /// Returns the cause, for people and the model.
    pub(super) async fn open(
        server: &str,
        target: &Target,
        wants_session: bool,
        clock: Arc<dyn Clock>,
        secrets: Secrets,
        tasks: &TaskTracker,
    ) -> Result<Self, String> {
        let notices = Arc::new(Notices::default());
        let (close, why) = (CancellationToken::new(), Why::default());
        // A start that fails or is given up ends the process.
        let unopened = close.clone().drop_guard();
        let handler = Handler { server: server.to_owned(), notices: notices.clone() };
        let (running, last_words, process) = match target {
            Target::Program(program) => {
                let context =
                    Context { server: server.to_owned(), clock: clock.clone(), secrets, tasks: tasks.clone() };
                let started = process::start(program, context, close.clone())?;
                let lines = Lines::new(server.to_owned(), started.output, started.input, why.clone());
                let opened = handler.serve(Marking::new(server, lines, why.clone())).await;
                if opened.is_err() {
                    // What it said before its end explains the failure. It ends at once, as its input is closed.
                    started.ended.cancelled().await;
                }
                let running = opened.map_err(|error| format!("{error}{}", started.last_words.quote()))?;
                (running, started.last_words, Some(started.ended))
            }
            Target::Address(url, headers, account) => {
                let http =
                    meerkat_service::model::vendors::network::http(None, None).map_err(|error| error.to_string())?;
                let client = Authorized { http: Bounded::new(http, clock.clone()), account: account.clone() };
                // No other request of this connection is on its way, so the last refusal is that of the failed one.
                let refused = || account.as_deref().and_then(Account::refused);
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
                    .custom_headers(headers.clone())
                    .max_sse_event_size(MESSAGE_BYTES_MAX)
                    // It is for us to say which call may be sent again.
                    .reinit_on_expired_session(false);
                config.retry_config = Arc::new(Reconnects);
                let open = |lifecycle| {
                    let transport = StreamableHttpClientTransport::with_client(client.clone(), config.clone());
                    let marking = Marking::new(server, transport, why.clone());
                    handler.clone().serve_with_lifecycle(marking, lifecycle)
                };
                let running = match wants_session {
                    true => open(ClientLifecycleMode::Initialize).await,
                    // The newest revision has no sessions, and wants to be asked for first.
                    false => {
                        let preferred_versions = vec![ProtocolVersion::LATEST];
                        match open(ClientLifecycleMode::Auto { preferred_versions, legacy_version: None }).await {
                            Err(error) if may_know_another(&error) => open(ClientLifecycleMode::Initialize).await,
                            opened => opened,
                        }
                    }
                };
                let running = running.map_err(|error| refused().unwrap_or_else(|| error.to_string()))?;
                (running, LastWords::default(), None)
            }
        };
        let account = match target {
            Target::Program(_) => None,
            Target::Address(_, _, account) => account.clone(),
        };
        let (peer, ended) = (running.peer().clone(), CancellationToken::new());
        if peer.peer_info().is_some_and(|info| {
            let tools = info.capabilities.tools.as_ref();
            !info.protocol_version.has_initialize() && tools.is_some_and(|tools| tools.list_changed == Some(true))
        }) {
            let (closed, listening) = (close.clone(), listen(peer.clone(), notices.clone(), clock.clone()));
            tasks.spawn(async move { closed.run_until_cancelled(listening).await });
        }
        tasks.spawn(keep(running, close.clone(), process, ended.clone()));
        unopened.disarm();
        Ok(Self {
            server: server.to_owned(),
            used_ms: AtomicU64::new(0),
            calls: AtomicUsize::new(0),
            clock,
            tasks: tasks.clone(),
            peer,
            notices,
            last_words,
            why,
            account,
            close,
            ended,
        })
    }

    /// Lists the tools as the server wrote them.
    pub(super) async fn list(&self) -> Result<Vec<Value>, String> {
        let (mut tools, mut cursor, mut bytes) = (Vec::new(), None, 0);
        for _ in 0..PAGES_MAX {
            let request = ListToolsRequest::with_param(PaginatedRequestParams::default().with_cursor(cursor));
            let answer = self.peer.send_request(ClientRequest::ListToolsRequest(request)).await;
            // A page with a tool of another shape is no list to the library; the good ones of it are to us.
            let failed = |error| {
                match &error {
                    ServiceError::TransportSend(sent) => wanted(self.account.as_deref(), sent),
                    _ => None,
                }
                .unwrap_or_else(|| format!("it does not list its tools: {error}"))
            };
            let page = match answer.map_err(failed)? {
                ServerResult::ListToolsResult(page) => serde_json::to_value(page).unwrap_or_default(),
                ServerResult::CustomResult(page) => page.0,
                _ => return Err("it does not list its tools".to_owned()),
            };
            let Value::Array(listed) = &page["tools"] else { return Err("it does not list its tools".to_owned()) };
            bytes += listed.iter().map(|tool| tool.to_string().len()).sum::<usize>();
            if bytes > LIST_BYTES_MAX {
                return Err(format!("its list of tools has more than {LIST_BYTES_MAX} bytes"));
            }
            tools.extend(listed.iter().take(TOOLS_MAX - tools.len()).cloned());
            cursor = page["nextCursor"].as_str().map(str::to_owned);
            if cursor.is_none() || tools.len() == TOOLS_MAX {
                break;
            }
        }
        Ok(tools)
    }

    /// Calls a tool once. Its output goes to `output`. A server of a revision without sessions asks by an answer that wants
    /// more; then the call goes on with a further request.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: JsonObject,
        cancel: &CancellationToken,
        output: &OutputSink,
    ) -> Result<(), CallEnd> {
        let taken = Taken::default();
        let mut request = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        for round in 1..=ROUNDS_MAX {
            let answer = self.request(request.clone(), &taken, cancel, output).await.map_err(|end| match end {
                // The server has begun the call in an earlier round.
                CallEnd::NotSent if round > 1 => self.unknown("it has ended amid the call"),
                end => end,
            })?;
            let wanted = match answer {
                ServerResult::CallToolResult(result) => return answer::write(&self.server, result, output).await,
                ServerResult::InputRequiredResult(wanted) => wanted,
                _ => return Err(self.failed("gave no tool's result as its answer")),
            };
            request.request_state = wanted.request_state;
            let asked = wanted.input_requests.unwrap_or_default();
            request.input_responses = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(CallEnd::Stopped(true)),
                // It only wants to be asked again later.
                () = self.clock.sleep(ROUND_PAUSE * round), if asked.is_empty() => None,
                answers = questions::answer_all(&self.server, asked, output), if !asked.is_empty() => Some(answers?),
            };
        }
        Err(self.failed(&format!("wanted more after {ROUNDS_MAX} answers")))
    }

    /// Sends a request of a call, and waits for its answer.
    async fn request(
        &self,
        request: CallToolRequestParams,
        taken: &Taken,
        cancel: &CancellationToken,
        output: &OutputSink,
    ) -> Result<ServerResult, CallEnd> {
        let mut request = CallToolRequest::new(request);
        request.extensions.insert(taken.clone());
        let request = ClientRequest::CallToolRequest(request);
        // The server may ask before we know that it has the call.
        let (questions, mut asked) = mpsc::channel(1);
        let place = self.notices.askers.begin(questions);
        let mut handle = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(CallEnd::Stopped(taken.is_set())),
            handle = self.peer.send_cancellable_request(request, PeerRequestOptions::no_options()) => {
                handle.map_err(|_| CallEnd::NotSent)?
            }
        };
        let (said, mut progress) = mpsc::channel(PROGRESS_MAX);
        let _registered = Registered::new(&self.notices, handle.progress_token.clone(), said);
        let mut asking = FuturesUnordered::new();
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut handle.rx => break answer,
                Some(()) = asking.next() => {}
                Some(Asking { question, mut reply }) = asked.recv(), if asking.is_empty() => asking.push(async move {
                    tokio::select! {
                        biased;
                        () = reply.closed() => {}
                        answer = output.ask(question) => drop(reply.send(answer)),
                    }
                }),
                () = cancel.cancelled() => {
                    tokio::select! {
                        sent = handle.cancel(Some("stopped on request".to_owned())) => drop(sent),
                        () = self.clock.sleep(CANCEL) => {}
                    }
                    let (closed, rest) = (self.close.clone(), self.clock.sleep(STOPPED));
                    self.tasks.spawn(async move {
                        closed.run_until_cancelled(rest).await;
                        drop(place);
                    });
                    return Err(CallEnd::Stopped(taken.is_set()));
                }
                Some(text) = progress.recv() => output.progress(text),
            }
        };
        while let Ok(text) = progress.try_recv() {
            output.progress(text);
        }
        answer.unwrap_or(Err(ServiceError::TransportClosed)).map_err(|error| self.lost(error, taken.is_set()))
    }

    /// Tells what became of a call that failed on its way.
    fn lost(&self, error: ServiceError, is_taken: bool) -> CallEnd {
        let server = &self.server;
        match error {
            ServiceError::McpError(error) => {
                CallEnd::Failed(format!("{} (error {} of the server {server})", error.message, error.code.0))
            }
            ServiceError::TransportClosed | ServiceError::TransportSend(_) if !is_taken => CallEnd::NotSent,
            ServiceError::TransportSend(error) => {
                self.close();
                match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
                    // The server no longer knows the session, so it has run nothing of it.
                    Some(StreamableHttpError::SessionExpired) => CallEnd::NotSent,
                    Some(StreamableHttpError::Client(error)) if error.is_connect() => CallEnd::NotSent,
                    Some(StreamableHttpError::AuthRequired(_) | StreamableHttpError::InsufficientScope(_)) => {
                        let headers = || format!("it refuses our headers; check servers.{server}.headers");
                        let why = wanted(self.account.as_deref(), &error).unwrap_or_else(headers);
                        self.failed(&format!("did not run the call: {why}"))
                    }
                    // Without a token nothing was sent; or the server forbids it, and asks for no login.
                    Some(StreamableHttpError::Auth(
                        AuthError::TokenRefreshFailed(why) | AuthError::AuthorizationFailed(why),
                    )) => self.failed(&format!("did not run the call: {why}")),
                    _ => self.unknown(&error.error.to_string()),
                }
            }
            ServiceError::TransportClosed => match self.why.get() {
                Some(why) => self.unknown(why),
                None => self.unknown(&format!("it ended{}", self.last_words.quote())),
            },
            other => self.unknown(&other.to_string()),
        }
    }

    fn failed(&self, what: &str) -> CallEnd {
        CallEnd::Failed(format!("The server {} {what}.", self.server))
    }

    fn unknown(&self, why: &str) -> CallEnd {
        CallEnd::Unknown(format!("The connection to the server {} was lost: {why}.", self.server))
    }

    /// Waits until the server says that its tools have changed.
    pub(super) async fn list_changed(&self) {
        self.notices.list_changed.notified().await;
    }

    /// Begins a use.
    pub(super) fn begin(self: &Arc<Self>) -> Use {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.touch();
        Use(self.clone())
    }

    fn touch(&self) {
        self.used_ms.store(millis(self.clock.elapsed()), Ordering::SeqCst);
    }

    /// Returns for how long nothing has used it.
    pub(super) fn idle(&self) -> Duration {
        if self.calls.load(Ordering::SeqCst) > 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(millis(self.clock.elapsed()).saturating_sub(self.used_ms.load(Ordering::SeqCst)))
    }

    /// Returns true if it can no longer be used.
    pub(super) fn is_closed(&self) -> bool {
        self.close.is_cancelled() || self.ended.is_cancelled() || self.peer.is_transport_closed()
    }

    /// Begins to end it. Running calls end with it, except that HTTP answers already on their way may come.
    pub(super) fn close(&self) {
        self.close.cancel();
    }

    /// Waits until it has ended.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close.cancel();
    }
}

/// Listens for changed tools on a server without sessions, and again whenever that ends, unless the server refuses it.
async fn listen(peer: Peer<RoleClient>, notices: Arc<Notices>, clock: Arc<dyn Clock>) {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    loop {
        match peer.listen(filter.clone()).await {
            Ok(mut heard) => {
                // What changed before was not announced.
                notices.list_changed.notify_one();
                while let Ok(Some(_)) = heard.next().await {
                    notices.list_changed.notify_one();
                }
            }
            Err(ServiceError::McpError(_)) => return,
            Err(_) => {}
        }
        clock.sleep(LISTEN_PAUSE).await;
    }
}

/// Says what a server wants that refused a request. It reads this request's own error: the account knows the last one's.
fn wanted(account: Option<&Account>, error: &DynamicTransportError) -> Option<String> {
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>()? {
        StreamableHttpError::AuthRequired(_) => Some(account?.wanted(None)),
        StreamableHttpError::InsufficientScope(error) => Some(account?.wanted(error.get_required_scope())),
        _ => None,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Keeps a connection until it is closed from either side, then waits for the end of its process.
async fn keep(
    running: RunningService<RoleClient, Handler>,
    close: CancellationToken,
    process: Option<CancellationToken>,
    ended: CancellationToken,
) {
    let _ended = ended.drop_guard();
    let stop = running.cancellation_token();
    let mut waiting = std::pin::pin!(running.waiting());
    tokio::select! {
        over = &mut waiting => drop(over),
        () = close.cancelled() => {
            stop.cancel();
            drop(waiting.await);
        }
    }
    close.cancel();
    if let Some(process) = process {
        process.cancelled().await;
    }
}

/// Place of a call among those that hear of progress.
struct Registered<'a>(&'a Notices, ProgressToken);

impl<'a> Registered<'a> {
    fn new(notices: &'a Notices, token: ProgressToken, said: mpsc::Sender<String>) -> Self {
        notices.progress.lock().unwrap_or_else(PoisonError::into_inner).register(&token, said);
        Self(notices, token)
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner).calls.remove(&self.1);
    }
}

/// Returns true if a server that knows another revision may answer its first request like this.
fn may_know_another(error: &ClientInitializeError) -> bool {
    match error {
        ClientInitializeError::TransportError { error, .. } => {
            let error = error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>();
            matches!(
                error,
                Some(StreamableHttpError::UnexpectedServerResponse(_) | StreamableHttpError::UnexpectedContentType(_))
            )
        }
        // It was asked for both.
        ClientInitializeError::LegacyFallbackFailed { .. } => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use meerkat_service::clock::SystemClock;
    use rmcp::{model::NumberOrString, transport::streamable_http_client::InsufficientScopeError};

    use super::*;

    /// Broken once: a later request, which the server took, hid what it had said to the call.
    #[test]
    fn a_refused_request_says_what_its_own_answer_wants() {
        let clock = Arc::new(SystemClock::new());
        let headers = HashMap::new();
        let account = Account::new("t", "http://127.0.0.1/mcp", headers, "logins".into(), clock, TaskTracker::new());
        let refusal = InsufficientScopeError::new("Bearer".to_owned(), Some("tools admin".to_owned()));
        let refusal = StreamableHttpError::<reqwest::Error>::InsufficientScope(refusal);
        let sent = DynamicTransportError::from_parts("http", TypeId::of::<()>(), Box::new(refusal));
        let why = wanted(Some(&account), &sent).unwrap();
        assert!(why.contains("run `meerkat servers login t --scope 'tools admin'`"), "{why}");
        assert_eq!((account.refused(), wanted(None, &sent)), (None, None));
    }

    /// Broken once: what a server said before its call was registered was lost.
    #[test]
    fn progress_waits_for_its_call() {
        let notices = Notices::default();
        let token = |number| ProgressToken(NumberOrString::Number(number));
        let say = |number, text: &str| notices.progress.lock().unwrap().say(token(number), text.to_owned());
        say(1, "early");
        (0..PROGRESS_MAX as i64 - 1).for_each(|_| say(2, "of another"));
        let (said, mut heard) = mpsc::channel(PROGRESS_MAX);
        let registered = Registered::new(&notices, token(1), said);
        say(1, "later");
        assert_eq!((heard.try_recv().unwrap(), heard.try_recv().unwrap()), ("early".to_owned(), "later".to_owned()));
        drop(registered);
        assert!(heard.try_recv().is_err());
        (0..100).for_each(|_| say(1, "late"));
        assert_eq!(notices.progress.lock().unwrap().early.len(), PROGRESS_MAX);
    }
}
