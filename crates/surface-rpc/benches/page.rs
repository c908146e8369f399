//! A page of events and a `read` over JSON-RPC with all guards on, by HTTP and on a WebSocket, against a bare jsonrpsee
//! server that answers with the same bytes.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

#[path = "../../surface-cli/benches/side_by_side/mod.rs"]
mod side_by_side;

use std::sync::Arc;

use jsonrpsee::{
    server::{RpcModule, Server},
    types::ErrorObjectOwned,
};
use serde_json::{Value, value::RawValue};
use side_by_side::{Client, compare, floor, is_floor, meerkat, runtime, session};

/// Serves with jsonrpsee as it comes.
fn serve(page: Vec<u8>) {
    runtime().block_on(async {
        let page: Arc<RawValue> = serde_json::from_slice::<Box<RawValue>>(&page).unwrap().into();
        let mut module = RpcModule::new(page);
        let answer = |_: jsonrpsee::types::Params<'_>, page: &Arc<RawValue>, _: &jsonrpsee::Extensions| {
            Ok::<_, ErrorObjectOwned>(page.clone())
        };
        for name in ["session/events", "session/read"] {
            module.register_method(name, answer).unwrap();
        }
        let server = Server::builder().build("127.0.0.1:0").await.unwrap();
        println!("{}", server.local_addr().unwrap().port());
        server.start(module).stopped().await;
    });
}

fn main() {
    if let Some((_, page)) = is_floor() {
        return serve(page);
    }
    let server = meerkat(&[]);
    let id = session(server.port);
    measure(&server, "a page", "session/events", &format!(r#"{{"session_id":"{id}","limit":49}}"#));
    measure(&server, "a read", "session/read", &format!(r#"{{"session_id":"{id}"}}"#));
}

fn measure(server: &side_by_side::Server, what: &str, method: &str, params: &str) {
    let message = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let http = |port| Client::http(port, "POST /rpc", "content-type: application/json\r\n", &message);
    let websocket = |port| Client::websocket(port, "/rpc", &message);
    let result = |answer: &[u8]| serde_json::from_slice::<Value>(answer).unwrap()["result"].take();

    let whole = http(server.port).ask().body;
    let (_, page) = std::str::from_utf8(&whole).unwrap().split_once(r#","result":"#).unwrap();
    let bare = floor("bare", page.strip_suffix('}').unwrap().as_bytes());
    for answer in [http(bare.port).ask().body, websocket(bare.port).ask().body, websocket(server.port).ask().body] {
        assert_eq!((answer.len(), result(&answer)), (whole.len(), result(&whole)));
    }
    let over = |transport: &str| format!("{what} over JSON-RPC {transport}");
    compare(&over("by HTTP"), || http(server.port), "bare jsonrpsee", || http(bare.port));
    compare(&over("on a WebSocket"), || websocket(server.port), "bare jsonrpsee", || websocket(bare.port));
    drop(bare);
}
