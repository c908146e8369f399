//! Drives the command line beside a server that owns the data directory, so every command attaches to it. If the build has
//! no data directory, the server is idle and the commands are as always.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{cli::Cli, server::Server};
use crate::driver::{Driver, Lines, Pending, Place};

/// The command line, attached.
pub(super) struct Attached {
    /// Ends before the server: it would take its place.
    cli: Cli,
    server: Arc<Server>,
}

impl Attached {
    pub(super) fn new(place: Place) -> Result<Self, String> {
        let server = Server::start(&place)?;
        Ok(Self { cli: Cli::new(place), server })
    }
}

impl Driver for Attached {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        self.cli.send(operation, params)
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        self.cli.follow(session_id, since_seq, until)
    }

    fn stream(&mut self, params: &Map<String, Value>, until: &str) -> Result<Lines, String> {
        self.cli.stream(params, until)
    }

    fn streams_apart(&self) -> bool {
        self.cli.streams_apart()
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        let Self { cli, server } = *self;
        Box::new(cli).end()?;
        server.end()
    }
}
