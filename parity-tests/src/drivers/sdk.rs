//! Drives the Rust SDK: a small program over it, made with the same features as the other surfaces.

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    process::{Process, Read, command},
    run_in_two,
};
use crate::driver::{Driver, Lines, Pending, Place};

/// The SDK.
pub(super) struct Sdk(Process);

impl Sdk {
    pub(super) fn new(place: Place) -> Result<Self, String> {
        let mut options = place.config.clone();
        // The data directory of the trial, as the other surfaces have it in a variable.
        let store = options.entry("store").or_insert_with(|| json!({}));
        store["data_dir"] = json!(place.data_dir());
        if let Some(database) = &place.database {
            store["database"] = Value::Object(database.keys());
        }
        let mut command = command(&place, "sdk-driver");
        command.arg(Value::Object(options).to_string());
        Process::start(command, &place, read).map(|(process, _)| Self(process))
    }
}

/// Reads an answer, and checks that the error's code in Rust is the one in its body.
fn read(line: &str) -> Read {
    #[derive(Deserialize)]
    struct Line<'a> {
        id: u64,
        #[serde(borrow)]
        ok: Option<&'a RawValue>,
        error: Option<Value>,
        code: Option<String>,
    }

    let Line { id, ok, error, code } = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
    match (ok, error) {
        (Some(answer), None) => Ok(Some((id, Ok(answer.get().to_owned())))),
        (None, Some(body)) if body["code"].as_str() == code.as_deref() => Ok(Some((id, Err(body)))),
        _ => Err(format!("{line} is neither an answer nor a refusal whose code is that of its body")),
    }
}

impl Driver for Sdk {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        if operation == "run" {
            return run_in_two(self, params);
        }
        self.0.ask(|id| json!({ "id": id, "operation": operation, "params": params }).to_string())
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        let params = json!({ "session_id": session_id, "since_seq": since_seq, "until": until });
        let asked = self.0.ask(|id| json!({ "id": id, "operation": "follow", "params": params }).to_string())?;
        let Ok(lines) = asked.wait()? else { return Err("the follower is refused".to_owned()) };
        let lines: Vec<&RawValue> = serde_json::from_str(&lines).map_err(|error| format!("{lines}: {error}"))?;
        Ok(Ok(lines.iter().map(|line| line.get().to_owned()).collect()))
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.0.end(true)
    }
}
