//! Drives the Rust SDK: a small program over it, made with the same features as the other surfaces.

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    process::{Process, Read, command},
    run_in_two,
};
use crate::driver::{Answer, Driver, Pending, Place};

/// The SDK.
pub(super) struct Sdk {
    place: Place,
    process: Process,
}

impl Sdk {
    pub(super) fn new(place: Place) -> Result<Self, String> {
        Ok(Self { process: start(&place)?, place })
    }
}

fn start(place: &Place) -> Result<Process, String> {
    let mut command = command(place, "sdk-driver");
    command.arg(Value::Object(place.config.clone()).to_string());
    Process::start(command, place, read).map(|(process, _)| process)
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
        self.process.ask(|id| json!({ "id": id, "operation": operation, "params": params }).to_string())
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Answer, String> {
        let params = json!({ "session_id": session_id, "since_seq": since_seq, "until": until });
        self.process.ask(|id| json!({ "id": id, "operation": "follow", "params": params }).to_string())?.wait()
    }

    fn restart(&mut self) -> Result<(), String> {
        self.process = start(&self.place)?;
        Ok(())
    }
}
