//! The client for the official conformance suite of the protocol: the pool of servers as `meerkat` uses it.
//!
//! Its last argument is the address of a server. It lists the tools and calls each; if the server wants a login, it
//! does what a person would: it runs the login that the pool asks for, and agrees on the page; a form it answers with
//! its defaults. Where a scenario is about a document that describes the client, it names the suite's own, as a person
//! does with `--client-id`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the suite shows what a client says")]

use std::{collections::BTreeMap, error::Error, process::ExitCode, sync::Arc};

use meerkat_service::{
    clock::{IdSource as _, RandomIds, Timestamp},
    model::vendors::network,
    redact::Secrets,
    session::message::RawJson,
    store::MemoryBlobStore,
    tool::{Answer, Asking, Invocation, OutputLimits, OutputSink, Tool, ToolServerState, ToolSource as _, complete},
};
use meerkat_tools::servers::{LoginOptions, ServerConfig, Servers, ServersOptions, servers};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Logins for one request: a server may ask for permissions one by one.
const LOGINS_MAX: usize = 3;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().next_back().ok_or("give the address of a server")?;
    let context: Value = match std::env::var("MCP_CONFORMANCE_CONTEXT") {
        Ok(context) => serde_json::from_str(&context)?,
        Err(_) => Value::Null,
    };
    let folder = tempfile::tempdir()?;
    let config: ServerConfig = serde_json::from_value(json!({ "url": url, "approval": "allow" }))?;
    let pool = servers(ServersOptions {
        servers: BTreeMap::from([("t".to_owned(), config)]),
        logins_dir: Some(folder.path().join("logins")),
        ..ServersOptions::default()
    })?;
    let done = use_all(&pool, &context).await;
    pool.shut_down().await;
    done
}

async fn use_all(pool: &Servers, context: &Value) -> Result<(), Box<dyn Error>> {
    let mut status = pool.check("t").await?;
    for _ in 0..LOGINS_MAX {
        if status.state != ToolServerState::LoginNeeded {
            break;
        }
        log_in(pool, context, &status.last_error.unwrap_or_default()).await?;
        status = pool.check("t").await?;
    }
    if let Some(error) = status.last_error {
        return Err(error.into());
    }
    let calls = context["toolCalls"].as_array().cloned().unwrap_or_default();
    for tool in pool.offered().1 {
        let is_call = |call: &&Value| call["name"].as_str().is_some_and(|name| tool.spec().name.ends_with(name));
        let arguments = calls.iter().find(is_call).map_or_else(|| fill(&*tool), |call| call["arguments"].clone());
        let mut result = call(&*tool, &arguments).await;
        for _ in 0..LOGINS_MAX {
            match result {
                Err(error) if error.contains("meerkat servers login") => {
                    log_in(pool, context, &error).await?;
                    result = call(&*tool, &arguments).await;
                }
                _ => break,
            }
        }
        println!("{}: {result:?}", tool.spec().name);
    }
    Ok(())
}

/// Logs in with the permissions that the message names, and agrees on the page without a look.
async fn log_in(pool: &Servers, context: &Value, message: &str) -> Result<(), Box<dyn Error>> {
    println!("{message}");
    let scopes = message.split("--scope '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or_default();
    let text = |name: &str| context[name].as_str().map(str::to_owned);
    let options = LoginOptions {
        scopes: scopes.split_whitespace().map(str::to_owned).collect(),
        client_id: text("client_id").or_else(document),
        client_secret: text("client_secret").map(Into::into),
        ..LoginOptions::default()
    };
    let login = pool.login("t", options).await?;
    let page = network::http(None, None)?.get(login.page()).send().await?;
    let address = page.headers().get("location").ok_or("the page did not agree")?.to_str()?.to_owned();
    Ok(pool.paste_login("t", login, &address).await?)
}

/// Returns the URL of the suite's document about its clients, which all of them know, in the scenario about it.
fn document() -> Option<String> {
    let is_about_it = std::env::var("MCP_CONFORMANCE_SCENARIO").is_ok_and(|scenario| scenario == "auth/basic-cimd");
    is_about_it.then(|| "https://conformance-test.local/client-metadata.json".to_owned())
}

/// Makes arguments of the types that a tool's schema names.
fn fill(tool: &dyn Tool) -> Value {
    let schema: Value = serde_json::from_str(tool.spec().schema.as_str()).unwrap_or_default();
    let mut arguments = Map::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let value = match property["type"].as_str() {
            Some("integer" | "number") => json!(1),
            Some("boolean") => json!(true),
            Some("string") => json!("text"),
            _ => continue,
        };
        arguments.insert(name.clone(), value);
    }
    Value::Object(arguments)
}

async fn call(tool: &dyn Tool, arguments: &Value) -> Result<String, String> {
    let session_id = RandomIds::new().next_session_id(Timestamp::from_millis(0));
    let invocation = Invocation {
        session_id,
        turn: 1,
        call_id: "c".to_owned(),
        arguments: RawJson::parse(&arguments.to_string()).map_err(|error| error.to_string())?,
        workspace: None,
        is_approved: false,
        search_path: None,
        cancel: CancellationToken::new(),
    };
    let (sender, _progress) = mpsc::channel(16);
    let blobs = Arc::new(MemoryBlobStore::new(Arc::default()));
    let sink = OutputSink::new(OutputLimits::default(), blobs, session_id, Secrets::default().stream(), sender);
    let (questions, mut asked) = mpsc::channel(1);
    let sink = sink.with_questions(questions);
    // The person agrees to what a form proposes.
    let agree = async {
        while let Some(Asking { question, reply }) = asked.recv().await {
            drop(reply.send(complete(question.schema(), None).map_or(Answer::Declined, Answer::Accepted)));
        }
        std::future::pending().await
    };
    tokio::select! {
        called = tool.call(invocation, &sink) => called.map_err(|error| format!("{error:?}"))?,
        () = agree => {}
    }
    let output = sink.finish().await.map_err(|error| error.to_string())?;
    Ok(output.excerpt().into_owned())
}
