//! The surfaces and their drivers.

mod cli;
mod http;
mod mcp;
mod process;
mod rest;
mod rpc;
mod sdk;
mod server;
mod websocket;

use meerkat_errors::ErrorCode;
use serde_json::{Map, Value};

use crate::driver::{Driver, Pending, Place};

/// Makes a driver at a place.
pub type Make = fn(Place) -> Result<Box<dyn Driver>, String>;

/// Every surface that is driven. Each runs every scenario in every build.
pub const SURFACES: [(&str, Make); 5] = [
    ("sdk", |place| Ok(Box::new(sdk::Sdk::new(place)?))),
    ("cli", |place| Ok(Box::new(cli::Cli::new(place)))),
    ("rest", |place| Ok(Box::new(rest::Rest::new(place)?))),
    ("rpc", |place| Ok(Box::new(rpc::OverWebSocket::new(place)?))),
    ("mcp", |place| Ok(Box::new(mcp::OverHttp::new(place)?))),
];

/// Other ways to speak to some of these surfaces. Each runs every scenario in every build, and counts apart.
pub const TRANSPORTS: [(&str, Make); 3] = [
    ("rpc-stdio", |place| Ok(Box::new(rpc::OverStdio::new(place)?))),
    ("rpc-http", |place| Ok(Box::new(rpc::OverHttp::new(place)?))),
    ("mcp-stdio", |place| Ok(Box::new(mcp::OverStdio::new(place)?))),
];

/// The two calls that the command line's `run` is made of, for surfaces that have no such word.
fn run_in_two(driver: &mut dyn Driver, params: &Map<String, Value>) -> Result<Pending, String> {
    let mut create = params.clone();
    let mut turn = Map::from_iter(create.remove_entry("prompt"));
    let created = match driver.send("create_session", &create)?.wait()? {
        Ok(created) => created,
        refused => return Ok(Pending::ready(refused)),
    };
    let created: Value = serde_json::from_str(&created).map_err(|error| format!("{created}: {error}"))?;
    turn.insert("session_id".to_owned(), created["session_id"].clone());
    driver.send("start_turn", &turn)
}

/// The code of a body, which must be in the table.
fn code_of(body: &Value) -> Result<ErrorCode, String> {
    let code = body["code"].as_str().and_then(ErrorCode::from_wire);
    code.ok_or_else(|| format!("its body has no code of the table: {body}"))
}
