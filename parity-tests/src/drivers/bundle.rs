//! A bundle between a scenario, which has it in base64, and a surface that takes or gives its bytes.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

/// Place of the session's id in the first header of an archive.
const ID: std::ops::Range<usize> = 345..381;

/// The page that a whole bundle of one session is elsewhere.
pub(super) fn page(bytes: &[u8]) -> String {
    let id = bytes.get(ID).map(String::from_utf8_lossy);
    json!({ "session_id": id, "data": BASE64_STANDARD.encode(bytes), "next_cursor": null }).to_string()
}

/// Takes the bytes of a bundle out of the parameters. It must be whole: pieces are for surfaces that have them.
pub(super) fn take(params: &mut Map<String, Value>) -> Result<Vec<u8>, String> {
    if params.remove("is_last") != Some(Value::Bool(true)) {
        return Err("a bundle is imported in one piece here".to_owned());
    }
    let data = params.remove("data").unwrap_or_default();
    BASE64_STANDARD.decode(data.as_str().unwrap_or_default()).map_err(|error| format!("the bundle: {error}"))
}
