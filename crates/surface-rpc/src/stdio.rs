//! Newline-delimited messages: a line goes to the library's module, and its answer is a line. The notifications of a
//! subscription are lines of the same output.
//!
//! One task reads, one task writes, and each request is answered by its own task, so nothing waits for a turn to end.

use std::{borrow::Cow, io, sync::Arc, time::Duration};

use jsonrpsee::{
    core::middleware::{Notification, Request},
    server::{MethodCallback, MethodResponse, Methods, prepare_error},
    types::Id,
};
use meerkat_service::wire::{Line, read_line};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{OwnedSemaphorePermit, mpsc},
    task::JoinSet,
    time::timeout,
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker, task_tracker::TaskTrackerToken};

use crate::{
    error::{Failure, too_large},
    handlers::{Connection, Rpc},
    http::{callback, request_of},
    owner::BYE,
};

/// Lines that wait for the writer. More would only cost memory: a subscription waits with its cursor.
const QUEUE: usize = 4;

/// Answers lines until the input ends, and then waits for the answers; or until the surface stops, and then also for the
/// last messages of subscriptions.
pub(crate) async fn serve(
    rpc: &Rpc,
    mut methods: Methods,
    reader: impl AsyncRead + Send + Unpin,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    search_path: Option<String>,
) -> io::Result<()> {
    let connection = Connection::new(&rpc.options, search_path);
    let room = connection.requests.clone();
    methods.extensions_mut().insert(connection.clone());
    let (out, queue) = mpsc::channel(QUEUE);
    let writing = AbortOnDropHandle::new(tokio::spawn(write(queue, writer, rpc.options.stall() * 2)));
    let (answering, mut requests) = (TaskTracker::new(), JoinSet::new());
    let mut reader = BufReader::new(reader);
    let is_stopped = loop {
        while requests.try_join_next().is_some() {}
        let next = async {
            let place = room.clone().acquire_owned().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((read_line(&mut reader, rpc.options.message_bytes).await?, place))
        };
        let (line, place) = tokio::select! {
            biased;
            () = rpc.stop.cancelled() => break true,
            () = out.closed() => break false,
            next = next => next?,
        };
        let Some(line) = line else { break false };
        let held = (place, answering.token(), connection.clone());
        let line = match line {
            Line::Whole(line) => Ok(line),
            Line::TooLong => Err(too_large(rpc.options.message_bytes).into()),
        };
        requests.spawn(answer(methods.clone(), line, out.clone(), held));
    };
    answering.close();
    let answered = async {
        answering.wait().await;
        if is_stopped {
            while requests.join_next().await.is_some() {}
            if rpc.options.is_for_commands {
                // The command may have left.
                out.send(RawValue::from_string(BYE.to_owned())?).await.ok();
            }
        }
        io::Result::Ok(())
    };
    tokio::select! {
        answered = answered => answered?,
        () = out.closed() => {}
    }
    requests.shutdown().await;
    drop(out);
    writing.await.map_err(io::Error::other)?
}

/// Answers a line, and then writes the events of the subscription that it may have begun.
async fn answer(
    methods: Methods,
    line: Result<Vec<u8>, Failure>,
    out: mpsc::Sender<Box<RawValue>>,
    held: (OwnedSemaphorePermit, TaskTrackerToken, Arc<Connection>),
) {
    let asked = match &line {
        Ok(line) => read(&methods, line),
        Err(failure) => Err(MethodResponse::error(Id::Null, failure.clone())),
    };
    let (_, _, connection) = &held;
    let bytes = line.as_ref().map_or(0, Vec::len);
    let asked = asked.and_then(|(request, text)| match connection.hold(bytes) {
        Ok(bytes) => Ok((request, text, bytes)),
        Err(body) => Err(MethodResponse::error(request.id, Failure::from(body))),
    });
    let (request, text, bytes) = match asked {
        Ok(asked) => asked,
        Err(refusal) => {
            let refusal = refusal.into_json();
            drop(line);
            // The client may have left.
            out.send(refusal).await.ok();
            return;
        }
    };
    let place = connection.read(&request.method, request.params.as_deref()).await;
    // A subscription has one place in its own queue before that of the connection.
    let Ok((answer, mut events)) = methods.raw_json_request(&text, 1).await else { return };
    let is_notification = matches!(text, Cow::Owned(_));
    if is_notification || out.send(answer).await.is_err() {
        return;
    }
    drop((request, text, bytes, place, held));
    drop(line);
    while let Some(event) = events.recv().await
        && out.send(event).await.is_ok()
    {}
}

/// Reads a request, and its text for the library: borrowed, or owned if it is made of a notification, which is never
/// answered.
fn read<'a>(methods: &Methods, line: &'a [u8]) -> Result<(Request<'a>, Cow<'a, str>), MethodResponse> {
    #[derive(Deserialize)]
    struct Members {
        id: Option<IgnoredAny>,
    }

    let refused = |id: Id<'_>, failure: Failure| Err(MethodResponse::error(id, failure));
    let text = match std::str::from_utf8(line) {
        Ok(text) => text.trim_matches([' ', '\t', '\r']),
        Err(error) => return refused(Id::Null, Failure::not_json(format!("invalid UTF-8: {error}"))),
    };
    if !text.starts_with('{') {
        return match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => refused(Id::Null, Failure::no_request("a line is one request, which is an object")),
            Err(error) => refused(Id::Null, Failure::not_json(format!("invalid JSON: {error}"))),
        };
    }
    if let Ok(request) = serde_json::from_str::<Request<'_>>(text) {
        return match callback(methods, &request.method) {
            Ok(_) => Ok((request, text.into())),
            Err(error) => refused(request.id, error.into()),
        };
    }
    let has_no_id = serde_json::from_str::<Members>(text).is_ok_and(|members| members.id.is_none());
    if has_no_id && let Ok(notification) = serde_json::from_str::<Notification<'_>>(text) {
        // A subscription would be of no use: nobody hears its number.
        let is_performed = matches!(callback(methods, &notification.method), Ok(MethodCallback::Async(_)));
        let request = request_of(notification);
        let text = is_performed.then(|| serde_json::to_string(&request).ok()).flatten().unwrap_or_default();
        return Ok((request, Cow::Owned(text)));
    }
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => {
            let message = "a request has `jsonrpc`: \"2.0\", `id`: a whole number from 0, a string or null, `method`: a \
                           string, and `params`: an object";
            refused(prepare_error(text.as_bytes()).0, Failure::no_request(message))
        }
        Err(error) => refused(Id::Null, Failure::not_json(format!("invalid JSON: {error}"))),
    }
}

/// The one task that writes. It ends when all senders are dropped, or the client takes no message for too long.
async fn write(
    mut queue: mpsc::Receiver<Box<RawValue>>,
    mut writer: impl AsyncWrite + Send + Unpin,
    patience: Duration,
) -> io::Result<()> {
    while let Some(message) = queue.recv().await {
        let line = [message.get().as_bytes(), b"\n"].concat();
        let written = async {
            writer.write_all(&line).await?;
            writer.flush().await
        };
        timeout(patience, written).await??;
    }
    writer.shutdown().await
}
