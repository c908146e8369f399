//! A tool of your own that asks before it runs. `cargo run -p meerkat-service --example tool`
//!
//! The scripted model calls it as a real one would; with a vendor's model only `.model(…)` changes.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::prelude::*;

struct Deploy {
    spec: ToolSpec,
}

#[derive(serde::Deserialize)]
struct Arguments {
    target: String,
}

#[async_trait]
impl Tool for Deploy {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        // It must not happen twice: its intent is recorded before it runs, and it runs alone.
        Ok(Plan::once().ask())
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let Arguments { target } = ToolError::decode(&invocation.arguments)?;
        output.write(&format!("deployed to {target}")).await
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), SessionError> {
    let spec = ToolSpec {
        name: "deploy".to_owned(),
        description: "Deploys the service.".to_owned(),
        schema: RawJson::parse(r#"{"type":"object","properties":{"target":{"type":"string"}},"required":["target"]}"#)?,
    };
    let agent = AgentBuildConfig::new().tool(Arc::new(Deploy { spec })).build()?;
    let session = agent.create_session().await?;
    let session_id = session.session_id;
    let service = agent.service().clone();

    let prompt = r#"@call deploy {"target":"staging"} @echo last_result"#;
    let turn = tokio::spawn({
        let service = service.clone();
        async move { service.start_turn(StartTurn { attended: true, ..StartTurn::new(session_id, prompt) }).await }
    });

    // The turn waits for a decision. Whoever follows the session sees the question and answers it.
    let mut since_seq = 0;
    let call_id = loop {
        let page = service.events(ReadEvents { wait_ms: 1_000, ..ReadEvents::new(session_id, since_seq) }).await?;
        since_seq = page.next_seq;
        let asked = page.items.iter().find_map(|line| {
            let event: serde_json::Value = serde_json::from_slice(line).ok()?;
            (event["type"] == "approval_requested").then(|| event["call_id"].as_str().map(str::to_owned))?
        });
        if let Some(call_id) = asked {
            break call_id;
        }
    };
    println!("approving {call_id}");
    service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await?;

    let result = turn.await.map_err(|error| SessionError::Internal(error.to_string()))??;
    println!("{}", result.text);
    Ok(())
}
