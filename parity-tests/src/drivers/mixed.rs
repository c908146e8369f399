//! Drives the network surfaces of one process together: a turn starts on one, is followed on a second and interrupted on a
//! third, and every page of events is read on all three, which must give the same bytes.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{mcp, rest::Rest, rpc, server::Server};
use crate::{
    driver::{Answer, Driver, Lines, Pending, Place},
    run::Page,
};

/// Three surfaces, by their purpose here: starting, following, and everything else.
pub(super) struct Mixed {
    surfaces: [Box<dyn Driver>; 3],
    /// Requests with a key so far. They may come from anywhere, so they go around.
    keyed: usize,
    server: Arc<Server>,
}

impl Mixed {
    /// The surfaces of a fresh server in an order of REST, JSON-RPC and MCP.
    pub(super) fn new(place: Place, order: [usize; 3]) -> Result<Self, String> {
        let server = Server::start(&place)?;
        let surface = |index| -> Result<Box<dyn Driver>, String> {
            Ok(match index {
                0 => Box::new(Rest::new(server.clone())),
                1 => Box::new(rpc::OverWebSocket::new(server.clone())?),
                _ => Box::new(mcp::OverHttp::new(server.clone(), false)?),
            })
        };
        let [first, second, third] = order;
        Ok(Self { surfaces: [surface(first)?, surface(second)?, surface(third)?], keyed: 0, server })
    }

    /// Reads a page of events on every surface. All must give the same bytes.
    fn page(&mut self, params: &Map<String, Value>) -> Result<Answer, String> {
        let [starter, follower, other] = &mut self.surfaces;
        let page = follower.send("events", params)?.wait()?;
        let mut params = params.clone();
        match page.as_deref().map(Page::read) {
            // More may have happened since.
            Ok(page) if !page.as_ref()?.items.is_empty() => {
                drop(params.insert("limit".to_owned(), page?.items.len().into()))
            }
            Ok(_) => return Ok(page),
            Err(_) => {}
        }
        for surface in [starter, other] {
            let same = surface.send("events", &params)?.wait()?;
            if let Some((this, that)) = differing(&same, &page) {
                return Err(format!("surfaces differ about an event:\n  {this}\nand to the follower\n  {that}"));
            }
        }
        Ok(page)
    }
}

/// The first difference of two pages: a line of each, or both pages.
fn differing(one: &Answer, other: &Answer) -> Option<(String, String)> {
    let lines = |page: &Answer| Page::read(page.as_deref().ok()?).ok().map(|page| page.lines().join("\n"));
    let (one_lines, other_lines) = (lines(one).unwrap_or_default(), lines(other).unwrap_or_default());
    let differ = one_lines.lines().zip(other_lines.lines()).find(|(one, other)| one != other);
    let differ = differ.map(|(one, other)| (one.to_owned(), other.to_owned()));
    differ.or_else(|| (one != other).then(|| (format!("{one:?}"), format!("{other:?}"))))
}

impl Driver for Mixed {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        let waits = params.get("wait_ms").is_some();
        let index = match operation {
            "events" if !waits => return Ok(Pending::ready(self.page(params)?)),
            "events" => 1,
            _ if params.contains_key("idempotency_key") => {
                self.keyed += 1;
                self.keyed % 3
            }
            "create_session" | "start_turn" | "run" => 0,
            _ => 2,
        };
        // One of the surfaces lacks the operators' operations.
        let index = if self.surfaces[index].passes_over(operation).is_some() { (index + 1) % 3 } else { index };
        self.surfaces[index].send(operation, params)
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        self.surfaces[1].follow(session_id, since_seq, until)
    }

    fn stream(&mut self, params: &Map<String, Value>, until: &str) -> Result<Lines, String> {
        self.surfaces[0].stream(params, until)
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        let Self { surfaces, server, .. } = *self;
        drop(surfaces);
        server.end()
    }
}
