//! The surfaces and their drivers.

mod attached;
mod bundle;
mod cli;
mod http;
mod mcp;
mod mixed;
mod process;
mod rest;
mod rpc;
mod sdk;
mod server;
mod two_nodes;
mod websocket;

use serde_json::{Map, Value};

use self::{server::Server, two_nodes::TwoNodes};
use crate::{
    contract::{Numbers, contract},
    driver::{Driver, Pending, Place, open},
};

pub use self::process::{meerkat_for_people, output, output_of_open};

/// Makes a driver at a place.
pub type Make = fn(Place) -> Result<Box<dyn Driver>, String>;

/// Every surface that is driven. Each runs every scenario; in which builds, [`crate::plan`] says.
pub const SURFACES: [(&str, Make); 5] = [
    ("sdk", |place| Ok(Box::new(sdk::Sdk::new(place)?))),
    ("cli", |place| Ok(Box::new(cli::Cli::new(place)))),
    ("rest", |place| Ok(Box::new(rest::Rest::new(Server::start(&place)?)))),
    ("rpc", |place| Ok(Box::new(rpc::OverWebSocket::new(Server::start(&place)?)?))),
    ("mcp", |place| Ok(Box::new(mcp::OverHttp::new(Server::start(&place)?, false)?))),
];

/// Other ways to speak to some of these surfaces. Each runs every scenario, and counts apart.
pub const TRANSPORTS: [(&str, Make); 6] = [
    ("cli-attached", |place| Ok(Box::new(attached::Attached::new(place)?))),
    ("rpc-stdio", |place| Ok(Box::new(rpc::OverStdio::new(place)?))),
    ("rpc-http", |place| Ok(Box::new(rpc::OverHttp { server: Server::start(&place)?, is_in_batch: false }))),
    ("rpc-batch", |place| Ok(Box::new(rpc::OverHttp { server: Server::start(&place)?, is_in_batch: true }))),
    ("mcp-stdio", |place| Ok(Box::new(mcp::OverStdio::new(place)?))),
    ("mcp-resource", |place| Ok(Box::new(mcp::OverHttp::new(Server::start(&place)?, true)?))),
];

/// Every surface over two nodes of one database: each step is sent to the other one. The command line attaches to the nodes.
pub const TWO_NODES: [(&str, Make); 5] = [
    ("sdk", |place| TwoNodes::boxed(place, &|place| Ok(Box::new(sdk::Sdk::new(place)?)))),
    ("cli", |place| TwoNodes::boxed(place, &|place| Ok(Box::new(attached::Attached::new(place)?)))),
    ("rest", |place| TwoNodes::boxed(place, &|place| Ok(Box::new(rest::Rest::new(Server::start(&place)?))))),
    ("rpc", |place| TwoNodes::boxed(place, &|place| Ok(Box::new(rpc::OverWebSocket::new(Server::start(&place)?)?)))),
    ("mcp", |place| TwoNodes::boxed(place, &|place| Ok(Box::new(mcp::OverHttp::new(Server::start(&place)?, false)?)))),
];

/// Each surface but the command line, as a plain place starts it.
pub const PLAIN: [(&str, Make); 4] = [
    ("sdk", |place| Ok(Box::new(sdk::Sdk::new(place)?))),
    ("rest", |place| Ok(Box::new(rest::Rest::new(Server::start(&place)?)))),
    ("rpc", |place| Ok(Box::new(rpc::OverStdio::new(place)?))),
    ("mcp", |place| Ok(Box::new(mcp::OverStdio::new(place)?))),
];

/// The network surfaces of one process in every order: the surface on which a session starts, is followed, and is
/// interrupted. They run the scenarios with concurrent steps, and count apart.
pub const MIXED: [(&str, Make); 6] = [
    ("rest-rpc-mcp", |place| Ok(Box::new(mixed::Mixed::new(place, [0, 1, 2])?))),
    ("rest-mcp-rpc", |place| Ok(Box::new(mixed::Mixed::new(place, [0, 2, 1])?))),
    ("rpc-rest-mcp", |place| Ok(Box::new(mixed::Mixed::new(place, [1, 0, 2])?))),
    ("rpc-mcp-rest", |place| Ok(Box::new(mixed::Mixed::new(place, [1, 2, 0])?))),
    ("mcp-rest-rpc", |place| Ok(Box::new(mixed::Mixed::new(place, [2, 0, 1])?))),
    ("mcp-rpc-rest", |place| Ok(Box::new(mixed::Mixed::new(place, [2, 1, 0])?))),
];

/// The two calls that the command line's `run` is made of, for surfaces that have no such word.
fn run_in_two(driver: &mut dyn Driver, params: &Map<String, Value>) -> Result<Pending, String> {
    match open(driver, params)? {
        Ok(turn) => driver.send("start_turn", &turn),
        Err(body) => Ok(Pending::ready(Err(body))),
    }
}

/// The numbers of a body's code, which must be in the contract.
fn numbers_of(body: &Value) -> Result<Numbers, String> {
    let numbers = body["code"].as_str().and_then(|code| contract().errors.get(code));
    numbers.copied().ok_or_else(|| format!("its body has no code of the contract: {body}"))
}
