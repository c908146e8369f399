//! A WebSocket that is asked in messages and answers in messages, in any order.

use std::thread;

use futures::{SinkExt as _, StreamExt as _};
use tokio::{
    net::TcpStream,
    runtime::Builder,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};
use tokio_tungstenite::{
    client_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use super::{
    http::Client,
    process::{Read, Waiting},
};
use crate::driver::{Answer, Pending};

/// A connection. It closes when it is dropped.
pub(super) struct WebSocket {
    messages: UnboundedSender<String>,
    waiting: Waiting,
    next: u64,
}

impl WebSocket {
    /// Opens a connection to a path.
    pub(super) fn open(
        client: &Client,
        path: &'static str,
        read: impl Fn(&str) -> Read + Send + 'static,
    ) -> Result<Self, String> {
        let (messages, queue) = unbounded_channel();
        let waiting = Waiting::default();
        let is_open = waiting.expect(0);
        let (client, answers) = (client.clone(), waiting.clone());
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string());
            let ended = runtime.and_then(|runtime| runtime.block_on(serve(&client, path, queue, &answers, read)));
            if let Err(why) = ended {
                answers.deliver(Err(format!("the WebSocket: {why}")));
            }
            answers.end();
        });
        is_open.wait()?.map_err(|body| body.to_string())?;
        Ok(Self { messages, waiting, next: 0 })
    }

    /// Sends the message that `message` makes of the request's number.
    pub(super) fn ask(&mut self, message: impl FnOnce(u64) -> String) -> Result<Pending, String> {
        self.next += 1;
        let pending = self.waiting.expect(self.next);
        self.messages.send(message(self.next)).map_err(|_| "the WebSocket is closed")?;
        Ok(pending)
    }
}

async fn serve(
    client: &Client,
    path: &str,
    mut queue: UnboundedReceiver<String>,
    answers: &Waiting,
    read: impl Fn(&str) -> Read,
) -> Result<(), String> {
    let why = |error: tokio_tungstenite::tungstenite::Error| error.to_string();
    let mut request = format!("ws://{}{path}", client.address).into_client_request().map_err(why)?;
    let token = client.authorization.parse().map_err(|_| "the token fits no header")?;
    request.headers_mut().insert("authorization", token);
    let stream = TcpStream::connect(&client.address).await.map_err(|error| error.to_string())?;
    let (mut socket, _) = client_async(request, stream).await.map_err(why)?;
    answers.deliver(Ok(Some((0, Answer::Ok(String::new())))));
    loop {
        tokio::select! {
            message = queue.recv() => match message {
                Some(message) => socket.send(Message::text(message)).await.map_err(why)?,
                None => return socket.close(None).await.map_err(why),
            },
            message = socket.next() => match message.transpose().map_err(why)? {
                Some(Message::Text(text)) => answers.deliver(read(text.as_str())),
                Some(Message::Close(_)) | None => return Ok(()),
                Some(_) => {}
            },
        }
    }
}
