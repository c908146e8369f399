//! Relay between genai and a vendor: no byte of an answer reaches genai's parsers without a bound.
//!
//! genai reads a refusal's body whole, joins the pieces of an event in time that grows with their square, and makes as
//! many tool calls as an index says. The only place to stand in between is its HTTP client, so that one is led to a
//! socket of this process. The relay sends the request on, passes whole events of a bounded size, and ends the answer at
//! the first that breaks a bound. It never reads what an answer says.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{Stream, stream};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use meerkat_errors::ErrorCode;
use serde_json::Value;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::OnceCell,
    task::JoinHandle,
};

use super::{Api, failure::Failures};
use crate::ModelError;

/// Most bytes of one event: the last one of OpenAI's responses has the whole answer and the request's tools.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most bytes of one answer with all its events. The text may have 8 MiB, in pieces that each bring their own fields.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Most bytes that are read of a refusal. A vendor's own have some hundred.
const REFUSAL_BYTES_MAX: usize = 256 * 1024;

/// Most calls of one answer.
pub(super) const CALLS_MAX: usize = 256;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Way to the vendors, opened by the first call.
pub(super) struct Relay {
    vendor: reqwest::Client,
    open: OnceCell<Open>,
}

struct Open {
    genai: genai::Client,
    calls: Arc<Calls>,
    accepting: JoinHandle<()>,
    #[cfg(not(target_os = "linux"))]
    _folder: tempfile::TempDir,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

struct Calls {
    vendor: reqwest::Client,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Call>>>,
}

struct Call {
    api: Api,
    base_url: String,
    ended_by: Mutex<Option<Trouble>>,
}

/// Reason why an answer ended before its end.
enum Trouble {
    Connection(reqwest::Error),
    TooLarge(String),
}

/// Call's way through the relay, closed when it is dropped.
pub(super) struct Link {
    pub(super) genai: genai::Client,
    /// Base URL for genai.
    pub(super) base_url: String,
    id: u64,
    calls: Arc<Calls>,
    call: Arc<Call>,
}

impl Relay {
    pub(super) fn new(vendor: reqwest::Client) -> Self {
        Self { vendor, open: OnceCell::new() }
    }

    /// Opens the way of one call.
    ///
    /// # Errors
    /// Returns a failure if this process cannot open a socket.
    pub(super) async fn link(&self, api: Api, base_url: &str, failures: &Failures) -> Result<Link, ModelError> {
        let opened = self.open.get_or_try_init(|| async { Open::new(self.vendor.clone()) }).await;
        let open = opened.map_err(|error| {
            failures.failure(ErrorCode::ModelOverloaded, &format!("no socket to its client could be opened: {error}"))
        })?;
        let call = Arc::new(Call { api, base_url: base_url.to_owned(), ended_by: Mutex::default() });
        let id = open.calls.next.fetch_add(1, Ordering::Relaxed);
        open.calls.open().insert(id, call.clone());
        let base_url = format!("http://relay.invalid/{id}/");
        Ok(Link { genai: open.genai.clone(), base_url, id, calls: open.calls.clone(), call })
    }
}

impl Link {
    /// Returns the failure for which the relay ended the answer, if it did.
    pub(super) fn failure(&self, failures: &Failures) -> Option<ModelError> {
        Some(match self.call.ended_by().as_ref()? {
            Trouble::Connection(error) => failures.broken(error),
            Trouble::TooLarge(what) => failures.failure(ErrorCode::ModelRejected, what),
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.calls.open().remove(&self.id);
    }
}

impl Open {
    fn new(vendor: reqwest::Client) -> io::Result<Self> {
        // An abstract name leaves no file, whatever ends this process.
        #[cfg(target_os = "linux")]
        let path = {
            static SOCKETS: AtomicU64 = AtomicU64::new(0);
            let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
            std::path::PathBuf::from(format!("\0meerkat-vendors-{}-{number}", std::process::id()))
        };
        #[cfg(not(target_os = "linux"))]
        let folder = tempfile::tempdir()?;
        #[cfg(not(target_os = "linux"))]
        let path = folder.path().join("vendors");
        let listener = UnixListener::bind(&path)?;
        let http = reqwest::Client::builder()
            .unix_socket(path)
            .no_proxy()
            .no_gzip()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(io::Error::other)?;
        let genai = genai::Client::builder().with_reqwest(http).build().map_err(io::Error::other)?;
        let calls = Arc::new(Calls { vendor, next: AtomicU64::new(1), open: Mutex::default() });
        let accepting = tokio::spawn(accept(listener, calls.clone()));
        Ok(Self {
            genai,
            calls,
            accepting,
            #[cfg(not(target_os = "linux"))]
            _folder: folder,
        })
    }
}

impl Calls {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Call>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call {
    fn ended_by(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.ended_by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, trouble: Trouble) {
        self.ended_by().get_or_insert(trouble);
    }
}

/// Returns true if this process itself is at the other end: nobody else may send requests from here.
fn is_own(stream: &UnixStream) -> bool {
    let own = i32::try_from(std::process::id()).ok();
    stream.peer_cred().is_ok_and(|peer| peer.pid().is_none_or(|pid| Some(pid) == own))
}

async fn accept(listener: UnixListener, calls: Arc<Calls>) {
    while let Ok((stream, _)) = listener.accept().await {
        if !is_own(&stream) {
            continue;
        }
        let calls = calls.clone();
        tokio::spawn(async move {
            let pass = service_fn(|request| {
                let calls = calls.clone();
                async move { Ok::<_, Infallible>(pass(&calls, request).await) }
            });
            // It fails if genai leaves in the middle of an answer, which is how a call is cancelled.
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), pass).await);
        });
    }
}

/// Sends a request on to its vendor, and passes the answer within its bounds.
async fn pass(calls: &Calls, request: Request<Incoming>) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    let rest = head.uri.path_and_query().map_or("", |whole| whole.as_str()).trim_start_matches('/');
    let named = rest.split_once('/').and_then(|(id, rest)| Some((calls.open().get(&id.parse().ok()?)?.clone(), rest)));
    let Some((call, rest)) = named else { return empty(StatusCode::NOT_FOUND) };
    // genai closed the connection.
    let Ok(body) = body.collect().await else { return empty(StatusCode::BAD_REQUEST) };
    for name in [HOST, CONTENT_LENGTH, CONNECTION, TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    let url = format!("{}{rest}", call.base_url);
    let sent = calls.vendor.request(head.method, url).headers(head.headers).body(body.to_bytes()).send().await;
    let answer = match sent {
        Ok(answer) => answer,
        Err(error) => {
            call.end(Trouble::Connection(error));
            return empty(StatusCode::BAD_GATEWAY);
        }
    };
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    for name in [CONTENT_LENGTH, CONNECTION, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let body = match status.is_success() {
        true => StreamBody::new(events(answer, call)).boxed_unsync(),
        false => Full::new(refusal(answer).await).boxed_unsync(),
    };
    let mut passed = Response::new(body);
    (*passed.status_mut(), *passed.headers_mut()) = (status, headers);
    passed
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Full::default().boxed_unsync());
    *response.status_mut() = status;
    response
}

/// Reads the first bytes of a refusal, as far as they come.
async fn refusal(mut answer: reqwest::Response) -> Bytes {
    let mut read = Vec::new();
    while let Ok(Some(piece)) = answer.chunk().await {
        read.extend_from_slice(&piece[..piece.len().min(REFUSAL_BYTES_MAX - read.len())]);
        if read.len() == REFUSAL_BYTES_MAX {
            break;
        }
    }
    read.into()
}

/// Passes an answer's events up to its end, or to the first that breaks a bound.
fn events(answer: reqwest::Response, call: Arc<Call>) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let begun = Some((answer, call, Splitter::default(), 0_usize));
    stream::unfold(begun, |state| async move {
        let (mut answer, call, mut splitter, mut bytes) = state?;
        loop {
            let piece = match answer.chunk().await {
                Ok(Some(piece)) => piece,
                // What follows the last whole event is passed on, so that genai sees an answer that was cut.
                Ok(None) => return Some((Ok(Frame::data(splitter.rest())), None)),
                Err(error) => {
                    call.end(Trouble::Connection(error));
                    return None;
                }
            };
            bytes = bytes.saturating_add(piece.len());
            let whole = splitter.push(&piece);
            if bytes > ANSWER_BYTES_MAX || splitter.pending.len() > EVENT_BYTES_MAX {
                let limit = if bytes > ANSWER_BYTES_MAX { ANSWER_BYTES_MAX } else { EVENT_BYTES_MAX };
                call.end(Trouble::TooLarge(format!("the answer, or an event of it, passed {limit} bytes")));
                return None;
            }
            if whole.is_empty() {
                continue;
            }
            if call.api.streams_chat() && call_index_max(&whole).is_some_and(|index| index >= CALLS_MAX as u64) {
                call.end(Trouble::TooLarge(format!("the answer numbers its calls past {CALLS_MAX}")));
                return None;
            }
            return Some((Ok(Frame::data(whole.into())), Some((answer, call, splitter, bytes))));
        }
    })
}

/// Splits an answer into whole events, with LF as the end of each line: genai takes a CR at the end of one piece and an
/// LF at the beginning of the next for two ends.
#[derive(Default)]
struct Splitter {
    /// Bytes behind the last whole event.
    pending: Vec<u8>,
    /// True if the last byte was a CR, so that an LF ends no further line.
    was_cr: bool,
}

impl Splitter {
    /// Takes a piece of the answer, and returns the events that it completes.
    fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut whole = 0;
        for &byte in piece {
            let follows_cr = std::mem::replace(&mut self.was_cr, byte == b'\r');
            if byte == b'\n' && follows_cr {
                continue;
            }
            self.pending.push(if byte == b'\r' { b'\n' } else { byte });
            if self.pending.ends_with(b"\n\n") {
                whole = self.pending.len();
            }
        }
        if whole == 0 {
            return Vec::new();
        }
        let rest = self.pending.split_off(whole);
        std::mem::replace(&mut self.pending, rest)
    }

    fn rest(self) -> Bytes {
        self.pending.into()
    }
}

/// Finds the largest index of a call in frames of chat completions, reading them as genai does.
fn call_index_max(events: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(events);
    let indexes = text.split("\n\n").filter_map(|event| {
        let lines = event.lines().filter_map(|line| line.trim().strip_prefix("data:"));
        let data = lines.map(str::trim).collect::<Vec<_>>().join("\n");
        let frame: Value = serde_json::from_str(&data).ok()?;
        let calls = frame.pointer("/choices/0/delta/tool_calls")?.as_array()?;
        calls.iter().filter_map(|call| call["index"].as_u64()).max()
    });
    indexes.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds an answer in pieces of this size; returns what each completed, and the rest.
    fn split(answer: &str, size: usize) -> (Vec<String>, String) {
        let mut splitter = Splitter::default();
        let whole = answer.as_bytes().chunks(size).map(|piece| String::from_utf8(splitter.push(piece)).unwrap());
        let whole = whole.filter(|events| !events.is_empty()).collect();
        (whole, String::from_utf8(splitter.rest().to_vec()).unwrap())
    }

    #[test]
    fn events_are_whole_however_they_come() {
        for end in ["\n", "\r\n", "\r"] {
            let answer = ["event: a", "data: 1", "", ": ping", "", "data: 2", "data: 3"].join(end);
            for size in 1..=answer.len() {
                let (whole, rest) = split(&answer, size);
                assert_eq!(whole.concat(), "event: a\ndata: 1\n\n: ping\n\n", "{end:?} by {size}");
                assert!(whole.iter().all(|events| events.ends_with("\n\n")), "{end:?} by {size}");
                assert_eq!(rest, "data: 2\ndata: 3", "{end:?} by {size}");
            }
        }
    }

    #[test]
    fn an_index_is_found_where_genai_finds_it() {
        let frame = |calls: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":{calls}}}}}]}}\n\n");
        let largest = |text: &str| call_index_max(text.as_bytes());
        assert_eq!(largest(&frame(r#"[{"index":0},{"index":7}]"#)), Some(7));
        assert_eq!(largest(&(frame(r#"[{"index":2147483648}]"#) + "data: [DONE]\n\n")), Some(2_147_483_648));
        assert_eq!(largest(&frame(r#"[{"index":1,"index":9}]"#)), Some(9), "the last of two keys counts");
        assert_eq!(largest(&frame("[{\"index\":\ndata: 9}]")), Some(9), "data of several lines is joined");
        let escaped = frame(r#"[{"index":9}]"#).replace("tool_calls", r"tool\u005fcalls");
        assert_eq!(largest(&escaped), Some(9));
        assert_eq!(largest("data: {\"choices\":[]}\n\n"), None);
    }
}
