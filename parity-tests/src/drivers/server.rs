//! The server of a trial: `meerkat serve` with all of its surfaces, on a port of its own.

use std::sync::Arc;

use serde_json::Value;

use super::{
    http::Client,
    process::{Process, meerkat},
};
use crate::driver::Place;

/// The callers' token. The server accepts none that is shorter.
const TOKEN: &str = "the token of a parity trial";

/// A server that is ready. It ends when it is dropped.
pub(super) struct Server {
    process: Process,
    /// Speaks to it.
    pub(super) client: Client,
}

impl Server {
    pub(super) fn start(place: &Place) -> Result<Arc<Self>, String> {
        let mut command = meerkat(place);
        command.args(["serve", "--rest", "--listen", "127.0.0.1:0"]);
        if !place.is_plain {
            command.args(["--rpc", "--mcp", "--approve"]).env("MEERKAT_TOKEN", TOKEN);
        }
        let (process, ready) = Process::start(command, place, |line| Ok(Some((0, Ok(line.to_owned())))))?;
        let line = ready.wait()?.map_err(|body| body.to_string())?;
        let (base, token) = if place.is_plain { told(&line)? } else { (listening(&line)?, TOKEN.to_owned()) };
        let address = base.strip_prefix("http://").ok_or_else(|| format!("{line} does not say where it listens"))?;
        let address = address.trim_end_matches('/').to_owned();
        let client = Client { address, authorization: format!("Bearer {token}") };
        Ok(Arc::new(Self { process, client }))
    }

    /// Ends the server in order. Nobody else may hold it.
    pub(super) fn end(self: Arc<Self>) -> Result<(), String> {
        Arc::into_inner(self).ok_or("somebody still holds the server")?.process.end(false)
    }
}

/// The address in the line for programs.
fn listening(line: &str) -> Result<String, String> {
    let ready: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
    ready["listening"].as_str().map(str::to_owned).ok_or_else(|| format!("{line} does not say where it listens"))
}

/// The address in the line for people, and the token in the file that it names.
fn told(line: &str) -> Result<(String, String), String> {
    // A build has OpenAI's protocols, or not.
    let line = line.replace(" for rest, openai (", " for rest (");
    let words = line.strip_prefix("listening on ").and_then(|rest| rest.split_once(" for rest (token in "));
    let (base, file) = words.ok_or_else(|| format!("{line} does not say where it listens, and for whom"))?;
    let file = file.trim_end_matches(')');
    let token = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    Ok((base.to_owned(), token.trim_end().to_owned()))
}
