//! Follow a session's events from a cursor while a turn runs. `cargo run -p meerkat-service --example follow`
//!
//! Each line is the one encoding of its event, the same on every surface.

#![allow(clippy::print_stdout, reason = "an example prints")]

use meerkat_service::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), SessionError> {
    let agent = AgentBuildConfig::new().build()?;
    let session = agent.create_session().await?;
    let mut follower = agent.service().follow(&session.session_id, 0).await?;
    agent.service().accept_turn(StartTurn::new(session.session_id, "@say Good morning.")).await?;
    while let Some(line) = follower.next().await? {
        let text = String::from_utf8_lossy(&line.line);
        println!("{text}");
        // A live event has no seq: it is shown in passing. The cursor goes on with the durable ones.
        if line.seq.is_some() && text.contains(r#""type":"turn_completed""#) {
            break;
        }
    }
    println!("go on from seq {}", follower.cursor());
    Ok(())
}
