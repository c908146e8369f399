//! The program over the Rust SDK that the parity trials drive: requests in lines of JSON, answers in lines of JSON.
//!
//! `{"id", "operation", "params"}` is answered by `{"id", "ok"}` or `{"id", "error", "code"}`, in whatever order
//! the answers come. Beside the operations there is `follow`, which answers with the events up to the first one of a type.
//! The one argument is the scenario's options. It holds no expectation and no knowledge of any operation.

mod database;

use std::{borrow::Cow, collections::BTreeMap, io::Write as _, path::PathBuf, sync::Arc};

use meerkat_errors::ErrorBody;
use meerkat_service::wire::decode_params;
use meerkat_service::{
    Agent, AgentBuildConfig, Operation, SessionError, SessionId, SessionService,
    capability::{Capabilities, Capability},
    clock::World,
    cost::Price,
    memory::MemoryOptions,
    model::{
        scripted::ScriptedModel,
        vendors::{VendorModels, VendorOptions},
    },
    wire::call,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use self::database::Database;

/// The environment variable that stops the clock and makes ids by a seed, as in the binary.
const SEED: &str = "MEERKAT_TEST_SEED";

type Failure = Box<dyn std::error::Error>;

#[derive(Deserialize)]
struct Request {
    id: u64,
    operation: String,
    params: Box<RawValue>,
}

#[derive(Serialize)]
struct Response {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ok: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Follow {
    session_id: SessionId,
    since_seq: u64,
    until: String,
}

/// The section of the models.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    #[serde(default)]
    prices: Vec<Price>,
}

/// The section of the durable store.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Store {
    #[serde(default = "yes")]
    enabled: bool,
    data_dir: PathBuf,
    /// The database in place of the directory.
    database: Option<Database>,
}

const fn yes() -> bool {
    true
}

/// Answers the requests of the standard input until it ends.
///
/// # Errors
///
/// If the argument or a line is none of these, or the service cannot be made.
// One thread, so that requests are taken in the order in which they were sent.
#[tokio::main(flavor = "current_thread")]
pub async fn run() -> Result<(), Failure> {
    let agent = build().await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let request: Request = serde_json::from_str(&line)?;
        let service = agent.service().clone();
        tokio::spawn(async move {
            let response = match answer(service.as_ref(), &request).await {
                Ok(ok) => Response { id: request.id, ok: Some(ok), error: None, code: None },
                Err(error) => {
                    Response { id: request.id, ok: None, error: Some(error.body()), code: Some(error.code().as_str()) }
                }
            };
            write(&response)
        });
    }
    // Nobody waits for a turn any more.
    agent.service().shut_down(0).await;
    Ok(())
}

/// The agent that the options ask for.
async fn build() -> Result<Agent, Failure> {
    let argument = std::env::args().nth(1).ok_or("the options are missing")?;
    let mut sections: BTreeMap<String, Value> = serde_json::from_str(&argument)?;
    let world = match std::env::var(SEED) {
        Ok(seed) => World::seeded(seed.parse()?, 0),
        Err(_) => World::system(),
    };
    let model: Model = serde_json::from_value(sections.remove("model").unwrap_or_else(|| serde_json::json!({})))?;
    let vendors = VendorOptions { prices: model.prices, ..VendorOptions::default() };
    let models = VendorModels::new(&vendors, Arc::new(ScriptedModel))?;
    let mut config = AgentBuildConfig::new().world(world).models(Arc::new(models));
    // Like the binary: it compacts if it can, and is refused if it is configured and cannot.
    let compaction = sections.remove("compaction");
    if compaction.is_some() || Capabilities::compiled().require(Capability::SessionCompaction).is_ok() {
        config = config.compaction(compaction.map(serde_json::from_value).transpose()?.unwrap_or_default());
    }
    // A program need not set a store or a memory, though its build has them.
    let unset = sections.remove("unset").map(serde_json::from_value::<Vec<String>>).transpose()?.unwrap_or_default();
    let is_set = |capability: &str| !unset.iter().any(|name| name == capability);
    let store: Store = serde_json::from_value(sections.remove("store").ok_or("the data directory is missing")?)?;
    if is_set("memory_store") {
        config = config.memory(store.enabled.then(|| store.data_dir.clone()), MemoryOptions::default());
    }
    if !store.enabled {
        config = config.ephemeral();
    } else if is_set("session_store") && Capabilities::compiled().require(Capability::SessionStore).is_ok() {
        config = match &store.database {
            Some(database) => database.open(&store.data_dir, config).await?,
            None => config.store(store.data_dir),
        };
    }
    let options = serde_json::to_value(sections)?;
    Ok(config.options(serde_json::from_value(options)?).build()?)
}

async fn answer(service: &dyn SessionService, request: &Request) -> Result<Box<RawValue>, SessionError> {
    let params = request.params.get();
    if request.operation == "follow" {
        return follow(service, decode_params(params)?).await;
    }
    let operation = Operation::from_name(&request.operation)
        .ok_or_else(|| SessionError::UnknownOperation(request.operation.clone()))?;
    raw(call(service, operation, params).await?)
}

/// Follows a session until a line of the type comes, and answers with all lines up to it.
async fn follow(service: &dyn SessionService, params: Follow) -> Result<Box<RawValue>, SessionError> {
    let mut follower = service.follow(&params.session_id, params.since_seq).await?;
    let mut lines = Vec::new();
    while let Some(followed) = follower.next().await? {
        lines.push(raw(followed.line.to_vec())?);
        if lines.last().is_some_and(|line| is_of(line, &params.until)) {
            return raw(serde_json::to_vec(&lines).map_err(|error| SessionError::Internal(error.to_string()))?);
        }
    }
    Err(SessionError::NotFound(params.session_id))
}

/// Returns true if an event's line is of this type.
fn is_of(line: &RawValue, kind: &str) -> bool {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "type")]
        kind: Cow<'a, str>,
    }

    serde_json::from_str(line.get()).is_ok_and(|event: Event<'_>| event.kind == kind)
}

fn raw(json: Vec<u8>) -> Result<Box<RawValue>, SessionError> {
    let text = String::from_utf8(json).map_err(|error| SessionError::Internal(error.to_string()))?;
    RawValue::from_string(text).map_err(|error| SessionError::Internal(error.to_string()))
}

fn write(response: &Response) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    output.write_all(&line)?;
    output.flush()
}
