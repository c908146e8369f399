//! A program that serves a tool of its own. `cargo run -p meerkat-serve --example serve`
//!
//! It says where it listens and with which token, and serves until its standard input ends.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::{error::Error, sync::Arc};

use async_trait::async_trait;
use meerkat_serve::{Offer, ServeOptions, Server, Token, Toolset};
use meerkat_service::{
    AgentBuildConfig,
    model::ToolSpec,
    session::message::RawJson,
    tool::{Invocation, OutputSink, Plan, Tool, ToolError},
};
use tokio::io::AsyncReadExt as _;

struct Clock(ToolSpec);

#[async_trait]
impl Tool for Clock {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::read_only())
    }

    async fn call(&self, _: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        output.write("It is noon.").await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (name, description) = ("clock".to_owned(), "Says what time it is.".to_owned());
    let clock = Clock(ToolSpec { name, description, schema: RawJson::parse(r#"{"type":"object"}"#)? });
    let agent = AgentBuildConfig::new().tool(Arc::new(clock)).build()?;
    let token = Token::random()?;
    let secret = token.text().to_owned();
    let options = ServeOptions {
        has_rest: true,
        has_rpc: true,
        mcp: Some(Offer { set: Toolset::Core, approve: false }),
        ..ServeOptions::new("127.0.0.1:0".parse()?, Some(token))
    };
    let server = Server::listen(agent.service().clone(), options).await?;
    println!("{} {secret}", server.url());
    // Its end is the end of the program: an error of reading ends it too.
    server.serve_until(async { drop(tokio::io::stdin().read_to_end(&mut Vec::new()).await) }).await;
    Ok(())
}
