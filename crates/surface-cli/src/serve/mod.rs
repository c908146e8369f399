//! `serve`, `rpc` and `mcp`: the only place that composes surfaces. One listener, one guard, one service.
//!
//! It routes by the first part of the path and decides nothing about sessions: what a request means is its
//! surface's business, and what it may do the service's.

mod guard;
mod listen;
pub(crate) mod owner;
mod socket;
mod streams;
mod token;

pub(crate) use token::random_digits;

mod error;

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::SessionService;
use meerkat_surface_mcp::{
    HttpOptions, McpHttpService,
    tools::{Offer, Toolset},
};
use meerkat_surface_rest::{RestOptions, RestService};
use meerkat_surface_rpc::{RpcOptions, RpcService};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Service, ServiceExt as _};
use tower_http::timeout::TimeoutBody;
use tracing::Instrument as _;

use self::{
    guard::{Guard, Token},
    listen::{ListenOptions, base_url, listen, refusal},
    streams::Streams,
};
use crate::{
    App,
    args::{McpArgs, ServeArgs, Tools},
    config::refused,
    error::CliError,
    output::Surroundings,
};

/// The variable that holds the token, in place of the file.
const TOKEN_VARIABLE: &str = "MEERKAT_TOKEN";

/// Descriptors that a server needs besides those of its connections.
const OTHER_DESCRIPTORS: u64 = 128;

/// How long open answers are waited for at the end.
const LINGER: Duration = Duration::from_secs(5);

/// The surfaces that are served.
struct Surfaces {
    rest: RestService,
    has_rest: bool,
    rpc: Option<RpcService>,
    mcp: Option<McpHttpService>,
}

/// The steps in which a server ends.
#[derive(Default)]
struct Ending {
    /// Nothing new is taken in.
    draining: CancellationToken,
    /// The last turn has ended, so that nothing more is to be followed.
    closing: CancellationToken,
    /// The calls over MCP have their answers. Its surface drops those that have none when it is told to end.
    answered: CancellationToken,
}

/// What every request meets.
struct Front {
    guard: Guard,
    streams: Streams,
    /// The calls over MCP.
    calls: TaskTracker,
    surfaces: Surfaces,
    /// How long a body may pause.
    body_pause: Duration,
    requests: AtomicU64,
}

/// Serves until the process is told to end.
pub(crate) async fn serve(app: &App, around: &Surroundings, args: &ServeArgs) -> Result<u8, CliError> {
    let values = &app.config.values.serve;
    if !(args.rest || args.rpc || args.mcp) {
        let message = "say what to serve: any of --rest, --rpc and --mcp";
        return Err(meerkat_service::SessionError::invalid("serve", message).into());
    }
    let address = args.listen.as_deref().unwrap_or(&values.listen);
    let address: SocketAddr = address
        .parse()
        .map_err(|_| refused("serve.listen", "it must be an address and a port, such as 127.0.0.1:7670", address))?;
    if !address.ip().is_loopback() {
        if args.no_auth {
            return Err(refused(
                "serve.listen",
                "without authentication only a loopback address may be listened on",
                "--no-auth",
            )
            .into());
        }
        if app.config.engine().tools.test_dir.is_some() {
            return Err(
                refused("tools.test_dir", "the test tools are for loopback addresses alone", "serve.listen").into()
            );
        }
    }
    if !address.ip().is_loopback() && app.config.values.model.name.is_none() {
        let message = "name the model that answers: others can reach this address";
        return Err(refused("model.name", message, "serve.listen").into());
    }
    let (token, token_file) = match args.no_auth {
        true => (None, None),
        false => find_token(app, around)?,
    };
    raise_descriptors(values.max_connections);
    let listener = TcpListener::bind(address).await.map_err(|error| {
        refused(
            "serve.listen",
            &format!("{address} cannot be listened on: {error}; choose another port, or 0"),
            "serve",
        )
    })?;
    let port = listener.local_addr()?.port();
    let mut hosts = ["127.0.0.1", "localhost", "[::1]"].map(str::to_owned).to_vec();
    hosts.push(match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    });
    hosts.extend(values.allowed_hosts.iter().cloned());
    let guard = Guard {
        hosts,
        origins: values.allowed_origins.clone(),
        port,
        token,
        body_bytes_max: values.max_body_bytes,
        bundle_bytes_max: app.config.values.limits.bundle_bytes,
    };

    let (ending, stop) = (Ending::default(), CancellationToken::new());
    let header_timeout = Duration::from_millis(values.header_timeout_ms);
    let front = Arc::new(Front {
        guard,
        streams: Streams::new(values.max_streams),
        calls: TaskTracker::new(),
        surfaces: surfaces(app, args, &ending),
        body_pause: header_timeout,
        requests: AtomicU64::new(0),
    });
    let names: Vec<&str> = [("rest", args.rest), ("rpc", args.rpc), ("mcp", args.mcp)]
        .into_iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(name, _)| name)
        .collect();
    // Whoever is told that it is ready may end it at once.
    let mut ends = Ends::new()?;
    tell(app, &base_url(&listener)?, token_file.as_deref(), &names)?;

    let options = ListenOptions {
        connections_max: values.max_connections,
        header_timeout,
        // A surface ends its own stalled streams first, with a word; this closes what no longer listens to one.
        stall_limit: Duration::from_millis(values.stall_ms.saturating_mul(2)),
        linger: LINGER,
    };
    let answer = {
        let front = front.clone();
        move |request| answer(front.clone(), request)
    };
    let listening = tokio::spawn(listen(listener, options, answer, stop.clone()));
    ends.next().await;
    ending.draining.cancel();
    app.out.note("Ending: running turns may finish; a second signal ends at once.");
    tokio::select! {
        () = app.service.shut_down(values.drain_ms) => {}
        () = ends.next() => {}
    }
    ending.closing.cancel();
    if let Some(rpc) = &front.surfaces.rpc {
        rpc.stop().await;
    }
    front.calls.close();
    if tokio::time::timeout(LINGER, front.calls.wait()).await.is_err() {
        tracing::warn!("calls over MCP were not answered at the end");
    }
    ending.answered.cancel();
    stop.cancel();
    if let Err(error) = listening.await {
        tracing::error!(%error, "the listener ended badly");
    }
    Ok(0)
}

/// JSON-RPC on standard input and output.
pub(crate) async fn rpc(app: &App) -> Result<u8, CliError> {
    let service = meerkat_surface_rpc::service(app.service.clone(), RpcOptions::default());
    service.serve_stdio(tokio::io::stdin(), tokio::io::stdout()).await?;
    Ok(0)
}

/// The Model Context Protocol on standard input and output.
pub(crate) async fn mcp(app: &App, args: &McpArgs) -> Result<u8, CliError> {
    let limit = meerkat_surface_mcp::MESSAGE_BYTES_MAX;
    meerkat_surface_mcp::serve_stdio(
        app.service.clone(),
        offer(args.tools.unwrap_or(Tools::Core), args.approve),
        limit,
        CancellationToken::new(),
    )
    .await?;
    Ok(0)
}

/// The tools that MCP clients are offered.
const fn offer(tools: Tools, approve: bool) -> Offer {
    let set = match tools {
        Tools::Core => Toolset::Core,
        Tools::All => Toolset::All,
    };
    Offer { set, approve }
}

fn surfaces(app: &App, args: &ServeArgs, ending: &Ending) -> Surfaces {
    let values = &app.config.values.serve;
    let service = || -> Arc<dyn SessionService> { app.service.clone() };
    let bytes = usize::try_from(values.max_body_bytes).unwrap_or(usize::MAX);
    let rest = RestOptions {
        body_bytes_max: values.max_body_bytes,
        bundle_bytes_max: app.config.values.limits.bundle_bytes,
        stall_limit: Duration::from_millis(values.stall_ms),
        draining: ending.draining.clone(),
        closing: ending.closing.clone(),
        ..RestOptions::default()
    };
    let rpc = RpcOptions { message_bytes: bytes, stall_ms: values.stall_ms, ..RpcOptions::default() };
    let mcp = HttpOptions {
        offer: offer(args.tools.unwrap_or(Tools::All), args.approve),
        max_message_bytes: bytes,
        shutdown: ending.answered.clone(),
        ..HttpOptions::default()
    };
    Surfaces {
        rest: RestService::new(service(), rest),
        has_rest: args.rest,
        rpc: args.rpc.then(|| meerkat_surface_rpc::service(service(), rpc)),
        mcp: args.mcp.then(|| McpHttpService::new(service(), mcp)),
    }
}

/// Asks for as many descriptors as the connections need: a process often has fewer than it may have.
fn raise_descriptors(connections_max: usize) {
    let needed = u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(OTHER_DESCRIPTORS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return;
    }
    let granted = maximum.map_or(needed, |maximum| maximum.min(needed));
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(granted), maximum }) {
        tracing::warn!(%error, needed, "the limit on open files could not be raised");
    } else if granted < needed {
        tracing::warn!(granted, needed, "fewer files may be open than serve.max_connections needs");
    }
}

/// The token: of the variable, or of its file in the data directory, made at the first start.
fn find_token(app: &App, around: &Surroundings) -> Result<(Option<Token>, Option<PathBuf>), CliError> {
    if let Some(token) = around.variable(TOKEN_VARIABLE) {
        if token.len() < 16 {
            return Err(
                refused("token", "it must have at least 16 characters", &format!("variable {TOKEN_VARIABLE}")).into()
            );
        }
        return Ok((Some(Token(token)), None));
    }
    let data_dir = app.config.data_dir(around)?;
    let (token, path) = token::load_or_make(&data_dir).map_err(|error| {
        let message = format!("the token in {} cannot be read or made: {error}", data_dir.display());
        CliError::Refused(Box::new(ErrorBody::with_message(ErrorCode::StoreNotWritable, message)))
    })?;
    Ok((Some(token), Some(path)))
}

/// Says that the server is ready, where, and where its token stands.
fn tell(app: &App, base: &str, token_file: Option<&std::path::Path>, surfaces: &[&str]) -> Result<(), CliError> {
    let token_file = token_file.map(|path| path.display().to_string());
    if app.out.is_json {
        let model = app.default_model.as_ref().map(|model| &model.told);
        let document = json!({ "listening": base, "token_file": token_file, "surfaces": surfaces, "model": model });
        return Ok(app.out.document(document.to_string().as_bytes())?);
    }
    if let Some(model) = &app.default_model {
        app.out.note(&format!("Sessions that name no model: {}.", model.told.trim_end_matches('.')));
    }
    let token = token_file.map_or_else(|| "no token file".to_owned(), |path| format!("token in {path}"));
    Ok(app.out.text(&format!("listening on {base} for {} ({token})\n", surfaces.join(", ")))?)
}

/// The signals that end the server. From when this is made none of them kills the process.
struct Ends {
    interrupt: Signal,
    terminate: Signal,
}

impl Ends {
    fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for SIGINT or SIGTERM.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Answers one request: the guard first, then the surface that its path names.
async fn answer(front: Arc<Front>, request: Request<Incoming>) -> Response<Body> {
    let request_id = format!("req-{}", front.requests.fetch_add(1, Ordering::Relaxed));
    let (method, path) = (request.method(), request.uri().path());
    let span = tracing::info_span!("http", request_id, %method, path, status = tracing::field::Empty);
    let checked = front.guard.check(request.uri(), request.headers()).and_then(|()| front.streams.take(&request));
    let mut response = match checked {
        Err(body) => refusal(&body),
        Ok(place) => {
            let request = request.map(|body| TimeoutBody::new(front.body_pause, body));
            let call = streams::is_call(&request).then(|| front.calls.token());
            let response = route(&front.surfaces, request).instrument(span.clone()).await;
            streams::hold(response, (place, call))
        }
    };
    if let Ok(value) = HeaderValue::try_from(request_id) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), value);
    }
    span.record("status", response.status().as_u16());
    span.in_scope(|| tracing::info!("answered"));
    response
}

async fn route(surfaces: &Surfaces, request: Request<TimeoutBody<Incoming>>) -> Response<Body> {
    let path = request.uri().path();
    let is_system = matches!(path, "/healthz" | "/readyz" | "/metrics");
    match (path, &surfaces.rpc, &surfaces.mcp) {
        ("/rpc", Some(rpc), _) => hand_over(rpc.clone(), request).await,
        ("/mcp", _, Some(mcp)) => hand_over(mcp.clone(), request).await,
        _ if surfaces.has_rest || is_system => hand_over(surfaces.rest.clone(), request.map(whole)).await,
        _ => refusal(&ErrorBody::with_message(ErrorCode::UnknownOperation, format!("Nothing is served at {path}."))),
    }
}

/// A body as REST takes it. Most requests have none, and nothing is to be waited for then.
fn whole(body: TimeoutBody<Incoming>) -> Body {
    if http_body::Body::is_end_stream(&body) { Body::empty() } else { Body::new(body) }
}

async fn hand_over<S, B, R>(surface: S, request: Request<B>) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<axum::BoxError>,
{
    match surface.oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}
