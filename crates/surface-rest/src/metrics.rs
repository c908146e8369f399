//! Counts for operators: events, requests, open streams, and the node that counts. They contain nothing of a session.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use meerkat_errors::ErrorCode;
use meerkat_service::{Operation, wire::events_encoded};

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The code of a success.
const OK: &str = "OK";

/// The counts of one router.
pub(crate) struct Metrics {
    /// Successes in the order of the operations.
    successes: Vec<AtomicU64>,
    /// Refusals by the names of their operation and code.
    refusals: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    streams: Arc<AtomicU64>,
    node: Option<String>,
}

/// An event stream that is open until this is dropped.
pub(crate) struct OpenStream(Arc<AtomicU64>);

impl Metrics {
    /// Makes the counts of a node, if its store has several.
    pub(crate) fn new(node: Option<&str>) -> Self {
        Self {
            successes: Operation::ALL.iter().map(|_| AtomicU64::default()).collect(),
            refusals: Mutex::default(),
            streams: Arc::default(),
            node: node.map(str::to_owned),
        }
    }

    pub(crate) fn count(&self, operation: Operation, refusal: Option<ErrorCode>) {
        if let Some(code) = refusal {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            *refusals.entry((operation.name(), code.as_str())).or_default() += 1;
        } else if let Some(successes) = self.successes.get(operation as usize) {
            successes.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn open_stream(&self) -> OpenStream {
        self.streams.fetch_add(1, Relaxed);
        OpenStream(Arc::clone(&self.streams))
    }

    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        begin(&mut out, "rest_requests", "counter", "Requests by operation and by code, OK where there is none")?;
        let mut request = |operation: &str, code: &str, count: u64| {
            writeln!(out, "meerkat_rest_requests_total{{operation=\"{operation}\",code=\"{code}\"}} {count}")
        };
        for (operation, successes) in Operation::ALL.iter().zip(&self.successes) {
            request(operation.name(), OK, successes.load(Relaxed))?;
        }
        for ((operation, code), count) in &*self.refusals.lock().unwrap_or_else(PoisonError::into_inner) {
            request(operation, code, *count)?;
        }
        begin(&mut out, "rest_streams_open", "gauge", "Event streams that are open")?;
        writeln!(out, "meerkat_rest_streams_open {}", self.streams.load(Relaxed))?;
        begin(&mut out, "events_encoded", "counter", "Durable events that were encoded, each of them once")?;
        writeln!(out, "meerkat_events_encoded_total {}", events_encoded())?;
        if let Some(node) = &self.node {
            begin(&mut out, "node", "info", "Name of this node")?;
            let node = node.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
            writeln!(out, "meerkat_node_info{{node=\"{node}\"}} 1")?;
        }
        out.push_str("# EOF\n");
        Ok(out)
    }
}

/// Writes the lines before the values of a metric.
fn begin(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP meerkat_{name} {help}.\n# TYPE meerkat_{name} {kind}")
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_form_of_open_metrics() {
        let metrics = Metrics::new(Some("a\"b\\c"));
        metrics.count(Operation::ALL[0], None);
        metrics.count(Operation::ALL[0], Some(ErrorCode::SessionNotFound));
        let (open, closed) = (metrics.open_stream(), metrics.open_stream());
        drop(closed);
        let (text, name) = (metrics.text().unwrap(), Operation::ALL[0].name());
        let expected: [&str; 9] = [
            "# HELP meerkat_rest_requests Requests by operation and by code, OK where there is none.",
            "# TYPE meerkat_rest_requests counter",
            &format!("meerkat_rest_requests_total{{operation=\"{name}\",code=\"OK\"}} 1"),
            &format!("meerkat_rest_requests_total{{operation=\"{name}\",code=\"SESSION_NOT_FOUND\"}} 1"),
            "# TYPE meerkat_rest_streams_open gauge",
            "meerkat_rest_streams_open 1",
            "# TYPE meerkat_events_encoded counter",
            "# TYPE meerkat_node info",
            r#"meerkat_node_info{node="a\"b\\c"} 1"#,
        ];
        let mut rest = text.lines();
        for line in expected {
            assert!(rest.any(|found| found == line), "{line} is not there or not in its order: {text}");
        }
        assert_eq!(text.lines().filter(|line| line.contains("code=\"OK\"")).count(), Operation::ALL.len());
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        drop(open);
        assert!(!Metrics::new(None).text().unwrap().contains("meerkat_node_info"));
    }
}
