//! Drives one surface of two nodes over one database: each step goes to the node that did not get the one before.
//!
//! Only live events depend on the node: they are shown where their turn runs.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::driver::{Driver, Lines, Pending, Place};

/// Two nodes.
pub(super) struct TwoNodes {
    nodes: [Box<dyn Driver>; 2],
    steps: usize,
    /// The node that was last asked for changes of the list.
    listed: usize,
    /// The node that got a session's last prompt.
    prompted: HashMap<String, usize>,
}

impl TwoNodes {
    /// Starts both nodes, each by `make` at a place of its own.
    pub(super) fn boxed(
        mut place: Place,
        make: &dyn Fn(Place) -> Result<Box<dyn Driver>, String>,
    ) -> Result<Box<dyn Driver>, String> {
        let first = make(place.clone())?;
        place.database.as_mut().ok_or("two nodes need a database")?.node = 1;
        let mut nodes = [first, make(place)?];
        for node in &mut nodes {
            // A list waits until the node has settled what its former process left.
            node.send("list", &Map::new())?.wait()?.map_err(|body| body.to_string())?;
        }
        Ok(Box::new(Self { nodes, steps: 0, listed: 0, prompted: HashMap::new() }))
    }

    fn next(&mut self) -> usize {
        self.steps += 1;
        (self.steps - 1) % 2
    }
}

impl Driver for TwoNodes {
    fn passes_over(&self, operation: &str) -> Option<&'static str> {
        self.nodes[0].passes_over(operation)
    }

    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        let node = match params.get("cursor") {
            // A cursor of the list's changes is of one process.
            Some(_) if operation == "changes" => self.listed,
            _ => self.next(),
        };
        if operation == "changes" {
            self.listed = node;
        }
        if let ("start_turn" | "resume", Some(session)) = (operation, params.get("session_id").and_then(Value::as_str))
        {
            self.prompted.insert(session.to_owned(), node);
        }
        self.nodes[node].send(operation, params)
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        let node = self.prompted.get(session_id).copied().unwrap_or_default();
        self.nodes[node].follow(session_id, since_seq, until)
    }

    fn stream(&mut self, params: &Map<String, Value>, until: &str) -> Result<Lines, String> {
        let node = self.next();
        self.nodes[node].stream(params, until)
    }

    fn streams_apart(&self) -> bool {
        self.nodes[0].streams_apart()
    }

    fn take_turn_back(&mut self) -> Result<(), String> {
        Err("a turn is taken back where it was sent".to_owned())
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        let [first, second] = self.nodes;
        first.end()?;
        second.end()
    }
}
