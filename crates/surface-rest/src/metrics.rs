//! Counts for operators: events, requests, open streams, and the node that counts. They contain nothing of a session.

use std::fmt;

use meerkat_errors::ErrorCode;
use meerkat_service::{Operation, wire::events_encoded};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text},
    metrics::{
        TypedMetric,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::Gauge,
        info::Info,
    },
    registry::Registry,
};

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Label = (&'static str, &'static str);

/// The code of a success.
const OK: &str = "OK";

const fn labels(operation: Operation, code: &'static str) -> [Label; 2] {
    [("operation", operation.name()), ("code", code)]
}

/// The counts of one router.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<[Label; 2], Counter>,
    /// The counters with code OK, by operation. A success needs no look-up.
    answered: Vec<Counter>,
    streams: Gauge,
}

/// An event stream that is open until this is dropped.
pub(crate) struct OpenStream(Gauge);

impl Metrics {
    /// Makes the counts of a node, if its store has several.
    pub(crate) fn new(node: Option<&str>) -> Self {
        let mut registry = Registry::with_prefix("meerkat");
        let (requests, streams) = (Family::<[Label; 2], Counter>::default(), Gauge::default());
        let answered = |operation: &Operation| requests.get_or_create_owned(&labels(*operation, OK));
        let answered = Operation::ALL.iter().map(answered).collect();
        registry.register(
            "rest_requests",
            "Requests by operation and by code, OK where there is none",
            requests.clone(),
        );
        registry.register("rest_streams_open", "Event streams that are open", streams.clone());
        registry.register_collector(Box::new(EventsEncoded));
        if let Some(node) = node {
            registry.register("node", "Name of this node", Info::new([("node", node.to_owned())]));
        }
        Self { registry, requests, answered, streams }
    }

    pub(crate) fn count(&self, operation: Operation, refusal: Option<ErrorCode>) {
        match (refusal, self.answered.get(operation as usize)) {
            (None, Some(answered)) => answered.inc(),
            (code, _) => self.requests.get_or_create(&labels(operation, code.map_or(OK, ErrorCode::as_str))).inc(),
        };
    }

    pub(crate) fn open_stream(&self) -> OpenStream {
        self.streams.inc();
        OpenStream(self.streams.clone())
    }

    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The encoded events, which the process counts.
#[derive(Debug)]
struct EventsEncoded;

impl Collector for EventsEncoded {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let count = ConstCounter::new(events_encoded());
        let help = "Durable events that were encoded, each of them once";
        count.encode(encoder.encode_descriptor("events_encoded", help, None, ConstCounter::<u64>::TYPE)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_several_says_its_name() {
        let text = |node| Metrics::new(node).text().unwrap();
        assert!(text(Some("a")).contains("meerkat_node_info{node=\"a\"} 1\n"), "{}", text(Some("a")));
        assert!(!text(None).contains("meerkat_node_info"));
    }
}
