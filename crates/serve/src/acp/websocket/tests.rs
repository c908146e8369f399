//! Messages of a WebSocket, with another library as its client.

use std::{pin::pin, time::Duration};

use futures::{SinkExt as _, StreamExt as _};
use meerkat_service::wire::Line;
use meerkat_testkit::PATIENCE;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use super::messages;

/// Bytes of a message in these tests.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Time without a byte in these tests.
const SILENCE: Duration = Duration::from_secs(30);

async fn client(stream: DuplexStream) -> WebSocketStream<DuplexStream> {
    WebSocketStream::from_raw_socket(stream, Role::Client, None).await
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("it never came")
}

#[tokio::test]
async fn messages_go_both_ways_and_one_that_is_too_long_is_told() {
    let (ours, its) = tokio::io::duplex(4096);
    let (messages, sink) = messages(its, MESSAGE_BYTES, SILENCE);
    let (mut messages, mut sink, mut client) = (pin!(messages), pin!(sink), client(ours).await);
    for (length, is_whole) in [(MESSAGE_BYTES, true), (MESSAGE_BYTES + 1, false), (2 * MESSAGE_BYTES, false), (1, true)]
    {
        let text = "x".repeat(length);
        let (sent, read) =
            soon(async { tokio::join!(client.send(Message::text(text.clone())), messages.next()) }).await;
        sent.unwrap();
        match read.unwrap().unwrap() {
            Line::Whole(line) => assert!(is_whole && line == text.as_bytes(), "{length}"),
            Line::TooLong => assert!(!is_whole, "{length}"),
        }
    }
    let text = "y".repeat(3 * MESSAGE_BYTES);
    let (sent, read) = soon(async { tokio::join!(sink.send(Some(text.clone())), client.next()) }).await;
    sent.unwrap();
    assert_eq!(read.unwrap().unwrap(), Message::text(text));
    // The end is said.
    let (ended, read) = soon(async { tokio::join!(sink.send(None), client.next()) }).await;
    ended.unwrap();
    assert!(matches!(read, Some(Ok(Message::Close(_)))), "{read:?}");
}

#[tokio::test]
async fn a_message_that_is_far_too_long_ends_the_connection() {
    let (ours, its) = tokio::io::duplex(4096);
    let (messages, _sink) = messages(its, MESSAGE_BYTES, SILENCE);
    let (mut messages, mut client) = (pin!(messages), client(ours).await);
    let text = Message::text("x".repeat(3 * MESSAGE_BYTES));
    tokio::select! {
        read = soon(messages.next()) => assert!(read.is_none()),
        sent = client.send(text) => panic!("it was taken: {sent:?}"),
    }
}

/// A client that says nothing is asked if it is there. One that answers stays, and one that does not is given up.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_gone_without_a_word_is_noticed() {
    let (ours, its) = tokio::io::duplex(4096);
    let (messages, _sink) = messages(its, MESSAGE_BYTES, SILENCE);
    let mut messages = pin!(messages);
    let mut client = client(ours).await;
    for _ in 0..5 {
        // Reading answers the ping.
        tokio::select! {
            message = messages.next() => panic!("{:?}", message.is_some()),
            asked = client.next() => assert!(matches!(asked, Some(Ok(Message::Ping(_)))), "{asked:?}"),
        }
    }
    // From here on it reads nothing.
    let ended = timeout(Duration::from_secs(600), messages.next()).await;
    assert!(ended.expect("it was noticed").is_none());
}

/// A message whose parts come slowly is no silence, so its client is not asked in the middle of it.
#[tokio::test(start_paused = true)]
async fn a_message_that_takes_long_is_read_whole() {
    let (ours, its) = tokio::io::duplex(4096);
    let (messages, _sink) = messages(its, MESSAGE_BYTES, SILENCE);
    let mut messages = pin!(messages);
    let (mut reader, mut writer) = tokio::io::split(ours);
    let sending = async move {
        // Two fragments of a text, each masked by zeros.
        for bytes in [&[0x01, 0x83, 0, 0, 0, 0, b'a', b'b', b'c'][..], &[0x80, 0x82, 0, 0, 0, 0, b'd', b'e']] {
            for byte in bytes {
                tokio::time::sleep(SILENCE * 9 / 10).await;
                writer.write_all(&[*byte]).await.unwrap();
            }
        }
    };
    let (read, ()) = tokio::join!(messages.next(), sending);
    assert!(matches!(read, Some(Ok(Line::Whole(line))) if line == b"abcde"));
    // It was not asked if it is there.
    assert!(timeout(Duration::ZERO, reader.read_u8()).await.is_err());
}
