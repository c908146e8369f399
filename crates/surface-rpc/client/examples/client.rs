//! A turn on a running server, followed as it comes.
//! `cargo run -p meerkat-client --example client -- http://127.0.0.1:7670 "$MEERKAT_TOKEN" "Hello."`

#![allow(clippy::print_stdout, reason = "an example prints")]

use meerkat_client::Client;
use meerkat_service::{
    SessionError, SessionService as _,
    service::{CreateSession, StartTurn},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), SessionError> {
    let mut arguments = std::env::args().skip(1);
    let [url, token, prompt] = std::array::from_fn(|_| arguments.next().unwrap_or_default());
    let client = Client::connect(&url, &token).await?;
    let session_id = client.create_session(CreateSession::default()).await?.session_id;
    let mut follower = client.follow(&session_id, 0).await?;
    let result = client.start_turn(StartTurn::new(session_id, &prompt)).await?;
    while follower.cursor() < result.seq {
        let Some(line) = follower.next().await? else { break };
        println!("{}", String::from_utf8_lossy(&line.line));
    }
    println!("{}", result.text);
    Ok(())
}
