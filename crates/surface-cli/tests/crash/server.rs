//! The program as a server that may be killed while it answers.

use std::io::Read as _;

use serde_json::{Value, json};

pub(crate) use crate::drive::server::Server;
use crate::{
    drive::{server::SERVE, signal},
    process::Stage,
    shim::Shim,
};

impl Stage {
    /// Starts a server with every surface.
    pub(crate) fn serve(&self, shim: Option<&Shim>) -> Server {
        let mut command = self.command(&SERVE);
        if let Some(shim) = shim {
            shim.attach(&mut command);
        }
        Server::run(command, &[], None)
    }
}

impl Server {
    /// Sends a request; `None` if the server has ended before it has answered.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = self.headers_with_token(&[("accept", "application/json"), ("connection", "close")]);
        let mut answer = String::new();
        self.try_open(method, path, &headers, &body).ok()?.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).ok()?))
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, &Value::Null).unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", path, body).unwrap()
    }

    /// Calls a method over RPC; returns its result, or its error's code.
    pub(crate) fn call(&self, method: &str, params: &Value) -> Option<Result<Value, String>> {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let (_, mut answer) = self.ask("POST", "/rpc", &call)?;
        Some(match answer["error"]["data"]["code"].as_str() {
            Some(code) => Err(code.to_owned()),
            None => Ok(answer["result"].take()),
        })
    }

    /// Ends it as a service manager does, and returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        signal(&self.child, "TERM");
        self.child.wait().unwrap().code()
    }
}
