//! Events as lines for people.

use meerkat_service::{
    session::event::{LiveEvent, Retrying},
    wire::{decode_event, decode_live},
};
use serde_json::Value;

/// Returns the type of an event.
pub(crate) fn type_name(line: &str) -> Option<String> {
    serde_json::from_str::<Value>(line).ok()?["type"].as_str().map(str::to_owned)
}

/// Renders what happened, without its place. Of the live events only a retry has such a line.
pub(crate) fn human_line(line: &str) -> Option<String> {
    match decode_event(line) {
        Ok(record) => Some(record.event.human_line()),
        Err(_) => Some(LiveEvent::Retrying(serde_json::from_str::<Retrying>(line).ok()?).human_line()),
    }
}

/// Renders an event for a list: its seq, its turn, and what happened.
pub(crate) fn described(line: &str) -> String {
    let event: Value = serde_json::from_str(line).unwrap_or_default();
    let (seq, turn) = (&event["seq"], &event["turn"]);
    let live = || decode_live(line).ok()?.map(|live| live.event.human_line());
    let text = decode_event(line).map(|record| record.event.human_line()).ok().or_else(live);
    let text = text.unwrap_or_else(|| event["type"].as_str().unwrap_or("event").to_owned());
    let seq = if seq.is_null() { "live".to_owned() } else { seq.to_string() };
    let turn = if turn.is_null() { String::new() } else { format!("turn {turn}: ") };
    format!("{seq:>5}  {turn}{text}")
}
