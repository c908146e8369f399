//! The server of a trial: `meerkat serve` with all of its surfaces, on a port of its own.

use std::sync::Arc;

use serde_json::Value;

use super::{
    http::Client,
    process::{Process, meerkat},
};
use crate::driver::Place;

/// What callers show. It is long enough for the server to take it.
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
        command
            .args(["serve", "--rest", "--rpc", "--mcp", "--approve", "--listen", "127.0.0.1:0"])
            .env("MEERKAT_TOKEN", TOKEN);
        let (process, ready) = Process::start(command, place, |line| Ok(Some((0, Ok(line.to_owned())))))?;
        let line = ready.wait()?.map_err(|body| body.to_string())?;
        let ready: Value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        let base = ready["listening"].as_str().and_then(|base| base.strip_prefix("http://"));
        let address = base.ok_or_else(|| format!("{line} does not say where it listens"))?.trim_end_matches('/');
        let client = Client { address: address.to_owned(), authorization: format!("Bearer {TOKEN}") };
        Ok(Arc::new(Self { process, client }))
    }

    /// Ends the server in an orderly way, once nobody else holds it.
    pub(super) fn end(self: Arc<Self>) -> Result<(), String> {
        Arc::into_inner(self).ok_or("somebody still holds the server")?.process.end(false)
    }
}
