//! A session in a dozen lines: no key, no set-up. `cargo run -p meerkat-service --example hello`

#![allow(clippy::print_stdout, reason = "an example prints")]

use meerkat_service::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), SessionError> {
    let agent = AgentBuildConfig::new().build()?;
    let session = agent.create_session().await?;
    let result = agent.turn(&session, "hello").await?;
    println!("{} said: {}", result.model, result.text);
    Ok(())
}
