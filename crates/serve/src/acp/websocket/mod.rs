//! Messages of a WebSocket, for a surface that takes a stream and a sink.

use std::{
    io,
    pin::{Pin, pin},
    sync::{Arc, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::{
    Sink, Stream,
    io::{BufReader, BufWriter},
    sink, stream,
};
use http::{Request, Response};
use meerkat_service::wire::Line;
use soketto::{
    Incoming,
    connection::{Builder, Mode},
    data::ByteSlice125,
    handshake::http::Server,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Mutex,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

#[cfg(test)]
mod tests;

/// A message that is longer than the limit by no more than this factor is read, so that its refusal is an answer. A longer
/// one ends the connection.
const OVERSIZE_READ: usize = 2;

/// When the last byte of a connection came: a long message, whose end takes its time, is no silence.
#[derive(Clone)]
struct Heard(Arc<std::sync::Mutex<Instant>>);

impl Heard {
    fn at(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connection that notes when bytes come.
struct Listened<S> {
    inner: S,
    heard: Heard,
}

impl<S: AsyncRead + Unpin> AsyncRead for Listened<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if polled.is_ready() {
            *self.heard.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        polled
    }
}

/// Answers the handshake of a WebSocket; `None` if the request is none.
pub(super) fn handshake<B>(request: &Request<B>) -> Option<Response<()>> {
    Server::new().receive_request(request).ok()
}

/// Splits a WebSocket whose handshake is done into what comes and what goes; `None` is the end of that. A client from
/// which no byte came for the time of `silence` is asked if it is still there, and given up after as long again.
pub(super) fn messages(
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    limit: usize,
    silence: Duration,
) -> (impl Stream<Item = io::Result<Line>>, impl Sink<Option<String>, Error = io::Error> + Send) {
    let heard = Heard(Arc::new(std::sync::Mutex::new(Instant::now())));
    let (reader, writer) = tokio::io::split(connection);
    let reader = Listened { inner: reader, heard: heard.clone() };
    let buffered = BufReader::new(BufWriter::new(tokio::io::join(reader, writer).compat()));
    let mut builder = Builder::new(buffered, Mode::Server);
    let read_max = limit.saturating_mul(OVERSIZE_READ);
    builder.set_max_message_size(read_max);
    builder.set_max_frame_size(read_max);
    let (sender, receiver) = builder.finish();
    let sender = Arc::new(Mutex::new(sender));
    let messages = stream::unfold((receiver, sender.clone()), move |(mut receiver, sender)| {
        let heard = heard.clone();
        async move {
            loop {
                let mut message = Vec::new();
                let received = {
                    let mut receiving = pin!(receiver.receive(&mut message));
                    let (mut from, mut is_asked) = (heard.at(), false);
                    loop {
                        if let Ok(received) = timeout_at(from + silence, &mut receiving).await {
                            break received;
                        }
                        let last = heard.at();
                        if last > from {
                            (from, is_asked) = (last, false);
                            continue;
                        }
                        if is_asked {
                            return None;
                        }
                        from = Instant::now();
                        // The writer that is at work finds out itself if the client is there.
                        let Ok(mut sender) = sender.try_lock() else { continue };
                        is_asked = true;
                        let asked = async {
                            sender.send_ping(ByteSlice125::try_from(&b""[..]).ok()?).await.ok()?;
                            sender.flush().await.ok()
                        };
                        timeout(silence, asked).await.ok()??;
                    }
                };
                let line = match received {
                    Ok(Incoming::Data(_)) if message.len() > limit => Line::TooLong,
                    Ok(Incoming::Data(_)) => Line::Whole(message),
                    Ok(Incoming::Pong(_)) => continue,
                    Ok(Incoming::Closed(_)) | Err(_) => return None,
                };
                return Some((Ok(line), (receiver, sender)));
            }
        }
    });
    let sink = sink::unfold(sender, |sender, message: Option<String>| async move {
        let sent = async {
            let mut sender = sender.lock().await;
            match message {
                Some(text) => {
                    sender.send_text_owned(text).await?;
                    sender.flush().await
                }
                None => sender.close().await,
            }
        };
        sent.await.map_err(io::Error::other)?;
        Ok(sender)
    });
    (messages, sink)
}
