//! Event streams: a session's lines as server-sent events, each in a frame around the bytes that all surfaces send.
//!
//! A subscriber is a cursor, never a queue: a body reads its next line when the connection asks for one. A frame consists of
//! a head, the shared line and an end, so no line is copied. `axum::response::sse` would copy it for
//! each subscriber, and hand it out whole, so that a slow reader of a long line would look like one that reads nothing.

use std::{
    convert::Infallible,
    fmt::Write as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Body, http::HeaderValue, response::Response};
use bytes::{Bytes, BytesMut};
use futures::{
    Stream,
    stream::{self, BoxStream, StreamExt as _},
};
use http_body::Frame;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    Operation, Seq, SessionError, SessionId,
    follow::{
        FollowedLine, Follower,
        turn::{FollowedTurn, TurnStep, from_acceptance},
    },
    service::{FollowSessions, ReadEvents, SessionQuery, TurnHandle, TurnResult},
    wire,
};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use crate::{App, error, metrics::OpenStream, wire::typed};

/// Bytes of a line that are handed out at a time, so that a slow reader of a long line is seen to read.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// Milliseconds to wait for changes of the list before it is asked again. Clients do not notice it.
const LIST_WAIT_MS: u64 = 30_000;
/// Bytes of the longest head of a frame, and of a buffer for some heads, which is reused when they are sent.
const HEAD_BYTES_MAX: usize = 31;
const HEADS_BYTES: usize = 4 * HEAD_BYTES_MAX;

const DATA: Bytes = Bytes::from_static(b"data: ");
const END: Bytes = Bytes::from_static(b"\n\n");
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");
const RESULT: Bytes = Bytes::from_static(b"event: result\ndata: ");
const FAILURE: Bytes = Bytes::from_static(b"event: failure\ndata: ");

/// Follows a session.
pub(crate) async fn events(app: &Arc<App>, params: &str) -> Result<Response, SessionError> {
    let request: ReadEvents = wire::decode_params(params)?;
    let session_id = request.session_id;
    let follower = app.service.follow_events(request).await?;
    let items = followed(session_id, follower, app.options.closing.clone());
    Ok(response(app, items.fuse().boxed()))
}

/// Follows the list of sessions, as `changes` does or from the address of the list. Each frame is a page of changes.
pub(crate) async fn changes(app: &Arc<App>, operation: Operation, params: &str) -> Result<Response, SessionError> {
    let request = match operation {
        Operation::List => {
            let query: SessionQuery = wire::decode_params(params)?;
            if (SessionQuery { cursor: None, ..query.clone() }) != SessionQuery::default() {
                let message = "a stream has every session: leave out the filters and the limit, and choose yourself";
                return Err(SessionError::invalid("query", message));
            }
            FollowSessions { cursor: query.cursor, ..FollowSessions::default() }
        }
        _ => wire::decode_params(params)?,
    };
    // A wrong cursor is refused before the stream begins.
    let first = app.service.changes(FollowSessions { wait_ms: 0, ..request.clone() }).await?;
    let state = Some((app.service.clone(), app.options.closing.clone(), request, Some(first)));
    let items = stream::unfold(state, |state| async move {
        let (service, closing, mut request, mut first) = state?;
        loop {
            let page = match first.take() {
                Some(first) => Ok(first),
                None => tokio::select! {
                    biased;
                    () = closing.cancelled() => Err(SessionError::ShuttingDown),
                    page = service.changes(request.clone()) => page,
                },
            };
            request.wait_ms = LIST_WAIT_MS;
            match page.and_then(|page| Ok((wire::encode(&page)?, page))) {
                Ok((bytes, page)) => {
                    request.cursor = Some(page.next_cursor);
                    if page.items.is_empty() && !page.restarts {
                        continue;
                    }
                    let head = format!("id: {}\ndata: ", request.cursor.as_deref().unwrap_or_default());
                    return Some((Item::Whole(head.into(), bytes.into()), Some((service, closing, request, None))));
                }
                Err(error) => return Some((Item::failure(&error.body()), None)),
            }
        }
    });
    Ok(response(app, items.fuse().boxed()))
}

/// Follows a turn from its acceptance to its end; its result comes last.
pub(crate) async fn turn(app: &Arc<App>, turn: TurnHandle) -> Result<Response, SessionError> {
    let follower = from_acceptance(app.service.as_ref(), &turn.accepted).await?;
    let items = stream::unfold(Some(FollowedTurn::new(turn, Some(follower))), |turn| async {
        let mut turn = turn?;
        loop {
            match turn.next().await {
                TurnStep::Line(line) => return Some((Item::Line(line), Some(turn))),
                TurnStep::Lost(_) => {}
                TurnStep::End(end) => return Some((last(end), None)),
            }
        }
    });
    Ok(response(app, items.fuse().boxed()))
}

fn response(app: &Arc<App>, items: BoxStream<'static, Item>) -> Response {
    let body = EventBody::new(items, app.options.keep_alive, app.options.stall_limit, app.metrics.open_stream());
    typed(HeaderValue::from_static("text/event-stream"), Body::new(body))
}

/// A frame of a stream.
enum Item {
    /// A line of the session.
    Line(FollowedLine),
    /// Head and data of another frame.
    Whole(Bytes, Bytes),
}

impl Item {
    fn failure(body: &ErrorBody) -> Self {
        Self::Whole(FAILURE, error::encode(body).into())
    }
}

fn followed(session_id: SessionId, follower: Follower, closing: CancellationToken) -> impl Stream<Item = Item> + Send {
    stream::unfold(Some((follower, closing)), move |state| async move {
        let (mut follower, closing) = state?;
        let line = tokio::select! {
            biased;
            line = follower.next() => line,
            () = closing.cancelled() => Err(SessionError::ShuttingDown),
        };
        match line.and_then(|line| line.ok_or(SessionError::NotFound(session_id))) {
            Ok(line) => Some((Item::Line(line), Some((follower, closing)))),
            Err(error) => Some((Item::failure(&error.body()), None)),
        }
    })
}

fn last(end: Result<TurnResult, SessionError>) -> Item {
    match end.and_then(|result| wire::encode(&result)) {
        Ok(bytes) => Item::Whole(RESULT, bytes.into()),
        Err(error) => Item::failure(&error.body()),
    }
}

/// The body of an event stream. The connection asks for a piece whenever it has room for one.
struct EventBody {
    items: BoxStream<'static, Item>,
    /// The rest of the frame that is being sent.
    head: Bytes,
    line: Bytes,
    is_end_due: bool,
    heads: BytesMut,
    silence: Pin<Box<Sleep>>,
    keep_alive: Duration,
    stall_limit: Duration,
    /// Time of the newest piece; `None` once the connection has asked for more than there is.
    handed_out: Option<Instant>,
    _open: OpenStream,
}

impl EventBody {
    fn new(items: BoxStream<'static, Item>, keep_alive: Duration, stall_limit: Duration, open: OpenStream) -> Self {
        Self {
            items,
            head: Bytes::new(),
            line: Bytes::new(),
            is_end_due: false,
            heads: BytesMut::new(),
            silence: Box::pin(tokio::time::sleep(keep_alive)),
            keep_alive,
            stall_limit,
            handed_out: None,
            _open: open,
        }
    }

    fn begin(&mut self, item: Item) {
        (self.head, self.line) = match item {
            // An ordinary `EventSource` gets every line as a `message`; only a durable one moves its cursor.
            Item::Line(FollowedLine { seq: Some(seq), line }) => (self.durable_head(seq), line),
            Item::Line(FollowedLine { seq: None, line }) => (DATA, line),
            Item::Whole(head, line) => (head, line),
        };
        self.is_end_due = true;
    }

    fn durable_head(&mut self, seq: Seq) -> Bytes {
        if self.heads.capacity() < HEAD_BYTES_MAX {
            self.heads.reserve(HEADS_BYTES);
        }
        // Writing to a buffer that grows cannot fail.
        let _ = write!(self.heads, "id: {seq}\ndata: ");
        self.heads.split().freeze()
    }

    fn next_piece(&mut self) -> Option<Bytes> {
        if !self.head.is_empty() {
            Some(std::mem::take(&mut self.head))
        } else if !self.line.is_empty() {
            Some(self.line.split_to(self.line.len().min(PIECE_BYTES_MAX)))
        } else {
            std::mem::take(&mut self.is_end_due).then_some(END)
        }
    }
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.handed_out.is_some_and(|at| at.elapsed() >= this.stall_limit) {
            // The current frame is sent whole before the stream ends, and its id resumes after it.
            let lagged = Item::failure(&ErrorBody::new(ErrorCode::SubscriberLagged));
            this.items = stream::once(std::future::ready(lagged)).boxed();
        }
        let piece = loop {
            if let Some(piece) = this.next_piece() {
                break piece;
            }
            match this.items.poll_next_unpin(context) {
                Poll::Ready(Some(item)) => this.begin(item),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    if let Some(at) = this.handed_out.take() {
                        this.silence.as_mut().reset(at + this.keep_alive);
                    }
                    ready!(this.silence.as_mut().poll(context));
                    break KEEP_ALIVE;
                }
            }
        };
        this.handed_out = Some(Instant::now());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}
