//! Cost of a call over the pool, beside one over the bare library, in one interleaved run.

use std::{process::Stdio, time::Instant};

use meerkat_service::tool::ToolSource as _;
use rmcp::{ServiceExt as _, model::CallToolRequestParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    server::MARK,
    support::{call_as, config, pool, session, tool},
};

crate::tests!(a_call_costs_little_more_than_a_bare_one);

/// Rounds, each with calls of both kinds.
const ROUNDS: usize = 20;
/// Calls of one kind in a round.
const CALLS: u32 = 50;
/// Times that a call may take, of a bare one: the goal is 1.2, and the machine of a test is busy.
const RATIO_MAX: f64 = 3.0;

#[expect(clippy::disallowed_methods, reason = "the promise is a time")]
async fn a_call_costs_little_more_than_a_bare_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = tokio::process::Command::new(std::env::current_exe().unwrap());
    process.args([MARK]).arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = process.spawn().unwrap();
    let bare = ().serve((process.stdout.take().unwrap(), process.stdin.take().unwrap())).await.unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    let (echo, session, cancel) = (tool(&pool, "echo").await, session(), CancellationToken::new());
    let arguments = json!({ "text": "some text of ordinary length" });
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..CALLS {
            let call = CallToolRequestParams::new("echo").with_arguments(arguments.as_object().unwrap().clone());
            bare.call_tool(call).await.unwrap();
        }
        times[0].push(begun.elapsed() / CALLS);
        let begun = Instant::now();
        for _ in 0..CALLS {
            call_as(&*echo, session, arguments.clone(), &cancel).await.text();
        }
        times[1].push(begun.elapsed() / CALLS);
    }
    let median = times.map(|mut times| {
        times.sort_unstable();
        times[ROUNDS / 2]
    });
    let ratio = median[1].as_secs_f64() / median[0].as_secs_f64();
    eprintln!("a bare call {:?}, over the pool {:?}: {ratio:.2} times", median[0], median[1]);
    assert!(ratio < RATIO_MAX, "a call takes {ratio:.2} times as long as a bare one");
    bare.cancel().await.unwrap();
    pool.shut_down().await;
    process.wait().await.unwrap();
}
