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
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{SessionService, wire::Answers};
use meerkat_surface_mcp::{
    HttpOptions, McpHttpService,
    tools::{Offer, Toolset},
};
use meerkat_surface_rest::{RestOptions, RestService};
use meerkat_surface_rpc::{RpcOptions, RpcService};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tower_http::{
    cors::{AllowHeaders, CorsLayer},
    timeout::TimeoutBody,
};
use tracing::Instrument as _;

use self::{
    guard::{Guard, Host, Token, is_open},
    listen::{ListenOptions, Stranger, base_url, listen, refusal},
    streams::Streams,
};
use crate::{
    App,
    args::{McpArgs, ServeArgs, Tools},
    config::refused,
    ends::Ends,
    error::CliError,
    output::Surroundings,
};

/// The variable that holds the token, in place of the file.
const TOKEN_VARIABLE: &str = "MEERKAT_TOKEN";

/// Descriptors that the store and the rest of a server have for themselves, at least; else a quarter of all.
const OTHER_DESCRIPTORS: u64 = 128;

/// Connections that a server takes however few descriptors it has.
const CONNECTIONS_MIN: u64 = 16;

/// How long a client that was refused for now is asked to wait, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// What scripts of listed origins may read of an answer.
const EXPOSED: [&str; 7] = [
    "location",
    "mcp-session-id",
    "next-offset",
    "preference-applied",
    "retry-after",
    "www-authenticate",
    "x-request-id",
];

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
    /// What web pages of listed origins are answered.
    cors: CorsLayer,
    /// The calls over MCP.
    calls: TaskTracker,
    surfaces: Surfaces,
    /// How long a body may pause.
    body_pause: Duration,
    requests: AtomicU64,
}

/// Serves until the process is told to end.
pub(crate) async fn serve(app: &App, around: &Surroundings, args: &ServeArgs, ends: &mut Ends) -> Result<u8, CliError> {
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
    if !address.ip().is_loopback() && app.default_model.as_ref().is_some_and(|model| model.is_stand_in) {
        let message = "name the model that answers: others can reach this address";
        return Err(refused("model.name", message, "serve.listen").into());
    }
    let (token, token_file) = match args.no_auth {
        true => (None, None),
        false => find_token(app, around)?,
    };
    let public = values.public_url.as_deref().map(public_url).transpose()?;
    if !address.ip().is_loopback() && !public.as_ref().is_some_and(|public| public.url.starts_with("https:")) {
        app.out.note(
            "Warning: others on the network can read the token and everything else. Listen on loopback behind a proxy \
             with HTTPS, and name its address in serve.public_url.",
        );
    }
    let connections_max = connections(values.max_connections);
    let listener = TcpListener::bind(address).await.map_err(|error| {
        refused(
            "serve.listen",
            &format!("{address} cannot be listened on: {error}; choose another port, or 0"),
            "serve",
        )
    })?;
    let port = listener.local_addr()?.port();
    let listed = origins(&values.allowed_origins)?;
    let guard = Guard {
        hosts: hosts(address, port, &values.allowed_hosts, public.as_ref())?,
        origins: listed.iter().cloned().chain(public.iter().map(|public| public.origin.clone())).collect(),
        token,
        body_bytes_max: values.max_body_bytes,
        bundle_bytes_max: app.config.values.limits.bundle_bytes,
    };
    let listed: Vec<HeaderValue> = listed.iter().filter_map(|origin| origin.parse().ok()).collect();
    let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let cors = CorsLayer::new().allow_origin(listed).allow_methods(methods);
    let cors = cors.allow_headers(AllowHeaders::mirror_request()).expose_headers(EXPOSED.map(HeaderName::from_static));

    let (ending, stop) = (Ending::default(), CancellationToken::new());
    let header_timeout = Duration::from_millis(values.header_timeout_ms);
    let front = Arc::new(Front {
        guard,
        streams: Streams::new(values.max_streams),
        cors: cors.max_age(Duration::from_secs(600)),
        calls: TaskTracker::new(),
        surfaces: surfaces(app, args, &ending, public.map(|public| public.url)),
        body_pause: header_timeout,
        requests: AtomicU64::new(0),
    });
    let names: Vec<&str> = [("rest", args.rest), ("rpc", args.rpc), ("mcp", args.mcp)]
        .into_iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(name, _)| name)
        .collect();
    tell(app, &base_url(&listener)?, values.public_url.as_deref(), token_file.as_deref(), &names)?;

    let options = ListenOptions {
        connections_max,
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
    let ended = async {
        app.service.shut_down(values.drain_ms).await;
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
    };
    tokio::select! {
        () = ended => {}
        _ = ends.next() => {}
    }
    Ok(0)
}

/// JSON-RPC on standard input and output.
pub(crate) async fn rpc(app: &App) -> Result<u8, CliError> {
    let options = RpcOptions { message_bytes: message_bytes(app), ..RpcOptions::default() };
    let service = meerkat_surface_rpc::service(app.service.clone(), options);
    let serving = service.serve_stdio(tokio::io::stdin(), tokio::io::stdout());
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => served?,
        () = app.closing.cancelled() => {
            service.stop().await;
            serving.await?;
        }
    }
    Ok(0)
}

/// The Model Context Protocol on standard input and output.
pub(crate) async fn mcp(app: &App, args: &McpArgs) -> Result<u8, CliError> {
    meerkat_surface_mcp::serve_stdio(
        app.service.clone(),
        offer(args.tools.unwrap_or(Tools::Core), args.approve),
        message_bytes(app),
        app.closing.clone(),
    )
    .await?;
    Ok(0)
}

/// Bytes that one message may have.
fn message_bytes(app: &App) -> usize {
    usize::try_from(app.config.values.serve.max_body_bytes).unwrap_or(usize::MAX)
}

/// The tools that MCP clients are offered.
const fn offer(tools: Tools, approve: bool) -> Offer {
    let set = match tools {
        Tools::Core => Toolset::Core,
        Tools::All => Toolset::All,
    };
    Offer { set, approve }
}

fn surfaces(app: &App, args: &ServeArgs, ending: &Ending, public_url: Option<String>) -> Surfaces {
    let values = &app.config.values.serve;
    let service = || -> Arc<dyn SessionService> { app.service.clone() };
    let (bytes, answers) = (message_bytes(app), Answers::default());
    let rest = RestOptions {
        body_bytes_max: values.max_body_bytes,
        bundle_bytes_max: app.config.values.limits.bundle_bytes,
        answers: answers.clone(),
        public_url,
        stall_limit: Duration::from_millis(values.stall_ms),
        draining: ending.draining.clone(),
        closing: ending.closing.clone(),
        ..RestOptions::default()
    };
    let rpc = RpcOptions {
        message_bytes: bytes,
        stall_ms: values.stall_ms,
        answers: answers.clone(),
        ..RpcOptions::default()
    };
    let mcp = HttpOptions {
        offer: offer(args.tools.unwrap_or(Tools::All), args.approve),
        max_message_bytes: bytes,
        answers,
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

/// Raises the limit on descriptors as far as it goes, because a process often has fewer than it may have; then the
/// connections that leave enough of them to the store.
fn connections(wanted: usize) -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files could not be raised");
    }
    let granted = if raised.is_ok() { maximum } else { current };
    let Some(granted) = granted else { return wanted };
    let free = granted.saturating_sub(OTHER_DESCRIPTORS.max(granted / 4)).max(CONNECTIONS_MIN);
    let taken = usize::try_from(free).unwrap_or(usize::MAX).min(wanted);
    if taken < wanted {
        tracing::warn!(granted, taken, wanted, "fewer files may be open than serve.max_connections needs");
    }
    taken
}

/// An address, as it is configured.
struct Public {
    /// Without a slash at the end.
    url: String,
    /// As browsers write it.
    origin: String,
    host: Host,
}

impl Public {
    fn read(url: &str) -> Option<Self> {
        let uri: http::Uri = url.parse().ok()?;
        let (scheme, authority) = (uri.scheme_str()?, uri.authority()?.as_str().to_ascii_lowercase());
        let default = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let host = Host::parse(&authority).filter(|_| uri.query().is_none())?;
        let (host, authority) = match (default, uri.port_u16()) {
            (Some(default), port) if port.is_none_or(|port| port == default) => {
                let name = authority.strip_suffix(&format!(":{default}")).unwrap_or(&authority).to_owned();
                (Host::on(&name, default), name)
            }
            _ => (host, authority),
        };
        Some(Self { url: url.trim_end_matches('/').to_owned(), origin: format!("{scheme}://{authority}"), host })
    }
}

/// Where the server is reached from outside.
fn public_url(url: &str) -> Result<Public, CliError> {
    let is_web = |public: &Public| public.origin.starts_with("http:") || public.origin.starts_with("https:");
    let what = "it must be the address of a proxy, such as https://desk.example/meerkat";
    Public::read(url).filter(is_web).ok_or_else(|| refused("serve.public_url", what, url).into())
}

/// What a Host may be: loopback's names and the address on the port that is listened on, and what is configured.
fn hosts(address: SocketAddr, port: u16, allowed: &[String], public: Option<&Public>) -> Result<Vec<Host>, CliError> {
    let own = match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    };
    let own = ["127.0.0.1", "localhost", "[::1]", &own].map(|name| Host::on(name, port));
    let mut hosts: Vec<Host> = own.into_iter().chain(public.map(|public| public.host.clone())).collect();
    for host in allowed {
        let refusal = || refused("serve.allowed_hosts", "each is a name or an address, perhaps with :port", host);
        hosts.push(Host::parse(host).ok_or_else(refusal)?);
    }
    Ok(hosts)
}

/// The origins that may come in besides the listener's own, as browsers write them. All of them is no list.
fn origins(allowed: &[String]) -> Result<Vec<String>, CliError> {
    let read = |origin: &String| {
        let place = Public::read(origin).filter(|place| place.url.matches('/').count() == 2);
        let refusal = || refused("serve.allowed_origins", "each is one origin, such as https://desk.example", origin);
        place.map(|place| place.origin).ok_or_else(|| refusal().into())
    };
    allowed.iter().map(read).collect()
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
fn tell(
    app: &App,
    base: &str,
    public: Option<&str>,
    token_file: Option<&std::path::Path>,
    surfaces: &[&str],
) -> Result<(), CliError> {
    let token_file = token_file.map(|path| path.display().to_string());
    if app.out.is_json {
        let model = app.default_model.as_ref().map(|model| &model.told);
        let mut document = json!({ "listening": base, "token_file": token_file, "surfaces": surfaces, "model": model });
        if let Some(public) = public {
            document["public_url"] = public.into();
        }
        return Ok(app.out.document(document.to_string().as_bytes())?);
    }
    if let Some(model) = &app.default_model {
        app.out.note(&format!("Sessions that name no model: {}.", model.told.trim_end_matches('.')));
    }
    let token = token_file.map_or_else(|| "no token file".to_owned(), |path| format!("token in {path}"));
    let public = public.map_or_else(String::new, |public| format!(", reached at {public}"));
    Ok(app.out.text(&format!("listening on {base} for {} ({token}){public}\n", surfaces.join(", ")))?)
}

/// Answers one request; a web page of a listed origin is told that it may ask, before it shows the token.
async fn answer(front: Arc<Front>, request: Request<Incoming>) -> Response<Body> {
    let is_listed = front.guard.is_listed(request.uri(), request.headers());
    let cors = is_listed.then(|| front.cors.clone());
    let mut response = match cors {
        None => let_in(front, request).await,
        Some(cors) => {
            let inner = service_fn(|request| async { Ok::<_, Infallible>(let_in(front.clone(), request).await) });
            let Ok(response) = cors.layer(inner).oneshot(request).await;
            response
        }
    };
    if matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().entry(header::RETRY_AFTER).or_insert(RETRY_AFTER);
    }
    response
}

/// Answers one request: the guard first, then the surface that its path names.
async fn let_in(front: Arc<Front>, request: Request<Incoming>) -> Response<Body> {
    let request_id = format!("req-{}", front.requests.fetch_add(1, Ordering::Relaxed));
    let (method, path) = (request.method(), request.uri().path());
    let span = tracing::info_span!("http", request_id, %method, path, status = tracing::field::Empty);
    let checked = front.guard.check(request.uri(), request.headers()).and_then(|()| front.streams.take(&request));
    let mut response = match checked {
        Err(body) => refusal(&body),
        Ok(place) => {
            if !is_open(request.uri())
                && let Some(stranger) = request.extensions().get::<Stranger>()
            {
                stranger.is_known();
            }
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
