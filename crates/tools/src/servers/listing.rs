//! Tools that a server lists: read one by one, bounded, and compared with what was accepted before.
//!
//! A list is hostile text. A bad tool is put aside with a reason; the others stay. What was read is kept, so that a start
//! reads no list again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use meerkat_service::{model::ToolSpec, redact::MARK, session::message::RawJson, tool::check_schema};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    cache::{Accepted, KeptTool},
    config::hex,
    names::public_name,
};

/// Tools of one server; further ones are left out.
pub(super) const TOOLS_MAX: usize = 512;
/// Tools of one server that are accepted unseen, over all its lists: what was accepted is never forgotten.
const ACCEPTED_MAX: usize = 8 * TOOLS_MAX;
/// Bytes of a description; more is cut.
const DESCRIPTION_BYTES_MAX: usize = 2 * 1024;
/// Bytes of a tool's name at its server.
const NAME_BYTES_MAX: usize = 256;
/// Bytes of text for one token, roughly.
const BYTES_PER_TOKEN: u64 = 4;

/// Tool of a server.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    /// The server's name for it.
    pub(super) remote: String,
    /// Name, description and schema for the model.
    pub(super) spec: ToolSpec,
    /// True if it says that it changes nothing.
    pub(super) says_read_only: bool,
    /// True if it says that twice changes no more than once.
    pub(super) says_idempotent: bool,
    /// Hash of all that a person accepts.
    pub(super) hash: String,
    /// Fault for which it cannot be used.
    fault: Option<String>,
    /// Reason that the model is not shown it: its fault, or that it was not accepted as it is now.
    pub(super) quarantined: Option<String>,
}

impl PartialEq for Definition {
    /// Compares names, hashes and reasons; all else follows from them.
    fn eq(&self, other: &Self) -> bool {
        (&self.remote, &self.hash, &self.quarantined) == (&other.remote, &other.hash, &other.quarantined)
    }
}

impl Definition {
    /// Makes the definition of a kept tool.
    pub(super) fn of(server: &str, kept: KeptTool, accepted: &Accepted) -> Self {
        let name = public_name(server, &kept.remote);
        let mut definition = Self {
            remote: kept.remote,
            spec: ToolSpec { name, description: kept.description, schema: kept.schema },
            says_read_only: kept.says_read_only,
            says_idempotent: kept.says_idempotent,
            hash: kept.hash,
            fault: kept.fault,
            quarantined: None,
        };
        definition.judge(server, accepted);
        definition
    }

    /// Returns what is kept of it.
    pub(super) fn kept(&self) -> KeptTool {
        KeptTool {
            remote: self.remote.clone(),
            description: self.spec.description.clone(),
            schema: self.spec.schema.clone(),
            says_read_only: self.says_read_only,
            says_idempotent: self.says_idempotent,
            hash: self.hash.clone(),
            fault: self.fault.clone(),
        }
    }

    /// Accepts it as it is, unless it has a fault.
    pub(super) fn accept(&mut self, server: &str, accepted: &mut Accepted) {
        if self.fault.is_none() {
            accepted.insert(self.remote.clone(), self.hash.clone());
        }
        self.judge(server, accepted);
    }

    fn judge(&mut self, server: &str, accepted: &Accepted) {
        let why = match accepted.get(&self.remote) {
            Some(hash) if *hash == self.hash => None,
            Some(_) => Some("its description or schema has changed"),
            None => Some("it is new, and its server has had too many new ones"),
        };
        let look = |why| format!("{why}; look at it with meerkat servers check {server}, and accept it there");
        self.quarantined = self.fault.clone().or_else(|| why.map(look));
    }

    /// Estimates the tokens that it costs in each request.
    pub(super) fn tokens(&self) -> u64 {
        self.spec.bytes().div_ceil(BYTES_PER_TOKEN)
    }
}

/// Reads the tools of a server, in its order. `known` are those of its last list, whose schemas were checked. `accepted`
/// gets the hashes of new tools: a new tool holds no permission of an old one, a changed one might.
pub(super) fn read(
    server: &str,
    tools: &[Value],
    known: &[Arc<Definition>],
    accepted: &mut Accepted,
) -> Vec<Definition> {
    let mut names = BTreeSet::new();
    let mut definitions = Vec::new();
    for tool in tools.iter().take(TOOLS_MAX) {
        let mut definition = read_one(server, tool);
        if !names.insert(definition.spec.name.clone()) {
            // Which of the two a call would reach is the server's choice, so the first has the name.
            continue;
        }
        let is_same = |known: &&Arc<Definition>| known.remote == definition.remote && known.hash == definition.hash;
        if definition.fault.is_none() {
            definition.fault = match known.iter().find(is_same) {
                Some(known) => known.fault.clone(),
                None => check_schema(&definition.spec.schema)
                    .err()
                    .map(|why| format!("{why}; report this to the server's author")),
            };
        }
        if definition.fault.is_some() {
            definition.spec.schema = RawJson::empty_object();
        } else if accepted.len() < ACCEPTED_MAX {
            accepted.entry(definition.remote.clone()).or_insert_with(|| definition.hash.clone());
        }
        definition.judge(server, accepted);
        definitions.push(definition);
    }
    definitions
}

fn read_one(server: &str, tool: &Value) -> Definition {
    let text = |key: &str| tool[key].as_str().unwrap_or_default();
    let remote = text("name");
    let (schema, bad_schema) = match read_schema(&tool["inputSchema"]) {
        Ok(schema) => (schema, None),
        Err(why) => (RawJson::empty_object(), Some(format!("its schema {why}; report this to the server's author"))),
    };
    let bad_name = match remote.len() {
        _ if remote.contains(MARK) => Some("its name holds a secret; report this to the server's author".to_owned()),
        0 => Some("it has no name; report this to the server's author".to_owned()),
        1..=NAME_BYTES_MAX => None,
        _ => Some(format!("its name has more than {NAME_BYTES_MAX} bytes; report this to the server's author")),
    };
    let remote = &remote[..remote.floor_char_boundary(NAME_BYTES_MAX)];
    let description = if text("description").is_empty() { text("title") } else { text("description") };
    let cut = description.floor_char_boundary(DESCRIPTION_BYTES_MAX);
    let hint = |key: &str| tool["annotations"][key].as_bool().unwrap_or(false);
    let seen = Value::from(vec![description.into(), tool["inputSchema"].clone(), tool["annotations"].clone()]);
    Definition {
        remote: remote.to_owned(),
        spec: ToolSpec { name: public_name(server, remote), description: description[..cut].to_owned(), schema },
        says_read_only: hint("readOnlyHint"),
        says_idempotent: hint("idempotentHint"),
        hash: hex(&Sha256::digest(canonical(&seen))),
        fault: bad_name.or(bad_schema),
        quarantined: None,
    }
}

/// Reads a schema of arguments, which is not checked yet. `{}` takes any object.
fn read_schema(schema: &Value) -> Result<RawJson, String> {
    let Value::Object(object) = schema else { return Err("is not a JSON object".to_owned()) };
    let kind = object.get("type");
    if kind.is_some_and(|kind| kind != "object") {
        return Err("is not that of an object".to_owned());
    }
    let mut object = object.clone();
    if kind.is_none() {
        // Vendors insist on it.
        object.insert("type".to_owned(), "object".into());
    }
    RawJson::parse(&Value::Object(object).to_string()).map_err(|error| format!("cannot be used: {error}"))
}

/// Writes a value with sorted keys: a server may list the same schema in another order.
fn canonical(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let sorted: BTreeMap<_, _> = fields.iter().collect();
            let texts =
                sorted.into_iter().map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)));
            format!("{{{}}}", texts.collect::<Vec<_>>().join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, schema: Value) -> Value {
        json!({ "name": name, "description": "d", "inputSchema": schema })
    }

    fn reasons(tools: &[Value]) -> Vec<Option<String>> {
        read("s", tools, &[], &mut Accepted::new()).into_iter().map(|tool| tool.quarantined).collect()
    }

    #[test]
    fn a_bad_tool_is_put_aside_and_the_others_stay() {
        let deep = (0..40).fold(json!({}), |inner, _| json!({ "properties": inner }));
        let tools = [
            tool("good", json!({ "type": "object" })),
            tool("none", Value::Null),
            tool("list", json!([])),
            tool("text", json!({ "type": "string" })),
            tool("deep", deep),
            tool("large", json!({ "description": "x".repeat(65_536) })),
            tool("remote", json!({ "properties": { "a": { "$ref": "https://example.com/a.json" } } })),
            tool("", json!({})),
            tool(&"n".repeat(300), json!({})),
            tool("local", json!({ "$ref": "#/$defs/a", "$defs": { "a": {} } })),
            tool("slow", json!({ "allOf": vec![json!({ "pattern": "a{9}" }); 65] })),
            json!("no tool"),
        ];
        let words =
            ["", "not a JSON object", "not a JSON object", "not that of an object", "32 levels", "65536 are allowed"];
        let more = ["is not a path", "no name", "more than 256", "", "more than 64 patterns"];
        let found = reasons(&tools);
        // The last has the name of another without one.
        assert_eq!(found.len(), 11);
        for (reason, words) in found.iter().zip(words.iter().chain(&more)) {
            assert_eq!(reason.is_none(), words.is_empty(), "{reason:?}");
            assert!(reason.as_deref().unwrap_or_default().contains(words), "{reason:?}, not {words}");
        }
    }

    #[test]
    fn what_is_kept_of_a_tool_is_all_of_it_and_its_schema_is_not_checked_again() {
        let bad = tool("bad", json!({ "properties": { "a": { "pattern": "(" } } }));
        let mut accepted = Accepted::new();
        let good = tool("a.b", json!({ "properties": { "x": {} } }));
        let first = read("s", &[bad.clone(), good], &[], &mut accepted);
        assert!(first[0].quarantined.as_deref().is_some_and(|why| why.contains("cannot be used")), "{first:?}");
        assert_eq!(accepted.keys().collect::<Vec<_>>(), ["a.b"]);
        let again = |server: &str| -> Vec<Definition> {
            let text = serde_json::to_string(&first.iter().map(Definition::kept).collect::<Vec<_>>()).unwrap();
            let kept: Vec<KeptTool> = serde_json::from_str(&text).unwrap();
            kept.into_iter().map(|tool| Definition::of(server, tool, &accepted)).collect()
        };
        assert_eq!(format!("{:?}", again("s")), format!("{first:?}"));
        assert_eq!(again("t")[1].spec.name, public_name("t", "a.b"));
        let known: Vec<_> = again("s").into_iter().map(Arc::new).collect();
        assert_eq!(read("s", &[bad], &known, &mut accepted)[0], first[0]);
        // As if its pattern had been good: what is known is not checked again.
        let fault = Arc::new(Definition { fault: None, ..first[0].clone() });
        let bad = tool("bad", json!({ "properties": { "a": { "pattern": "(" } } }));
        assert_eq!(read("s", &[bad], &[fault], &mut accepted)[0].quarantined, None);
        // A former version accepted a bad tool unchecked, and rules allowed it: whatever gets its name waits.
        let mut accepted = Accepted::from([("bad".to_owned(), first[0].hash.clone())]);
        let other = read("s", &[tool("bad", json!({}))], &known, &mut accepted);
        assert!(other[0].quarantined.as_deref().is_some_and(|why| why.contains("has changed")), "{other:?}");
    }

    #[test]
    fn lists_and_texts_are_bounded() {
        let many: Vec<Value> = (0..600).map(|n| tool(&format!("t{n}"), json!({}))).collect();
        assert_eq!(reasons(&many).len(), TOOLS_MAX);
        let long = json!({ "name": "a", "description": "é".repeat(2000), "inputSchema": {} });
        let read = read("s", &[long], &[], &mut Accepted::new());
        assert_eq!(read[0].spec.description.len(), DESCRIPTION_BYTES_MAX);
        assert_eq!(read[0].spec.schema.as_str(), r#"{"type":"object"}"#);
    }

    /// Broken once: what was accepted grew without end, as nothing of it is forgotten.
    #[test]
    fn a_server_that_renames_its_tools_for_ever_fills_no_memory() {
        let mut accepted = Accepted::new();
        let list = |round: usize| (0..TOOLS_MAX).map(|n| tool(&format!("t{round}-{n}"), json!({}))).collect::<Vec<_>>();
        let first = list(0);
        let offered = |read: &[Definition]| read.iter().filter(|tool| tool.quarantined.is_none()).count();
        assert_eq!(offered(&read("s", &first, &[], &mut accepted)), TOOLS_MAX);
        let mut last = (1..20).map(|round| read("s", &list(round), &[], &mut accepted)).last().unwrap();
        assert!(accepted.len() <= ACCEPTED_MAX, "{}", accepted.len());
        assert!(last[0].quarantined.as_deref().is_some_and(|why| why.contains("accept it there")), "{:?}", last[0]);
        assert_eq!(offered(&read("s", &first, &[], &mut accepted)), TOOLS_MAX, "these were accepted");
        last[0].accept("s", &mut accepted);
        assert_eq!(last[0].quarantined, None, "a person may accept more");
    }

    #[test]
    fn a_changed_tool_waits_and_a_new_one_does_not() {
        let mut accepted = Accepted::new();
        let old = json!({ "name": "a", "description": "adds", "inputSchema": { "x": 1, "y": 2 } });
        let first = read("s", std::slice::from_ref(&old), &[], &mut accepted);
        assert_eq!(first[0].quarantined, None);
        let reordered = json!({ "inputSchema": { "y": 2, "x": 1 }, "description": "adds", "name": "a" });
        assert_eq!(read("s", &[reordered], &[], &mut accepted)[0].quarantined, None);
        for changed in [
            json!({ "name": "a", "description": "adds, and mails ~/.ssh", "inputSchema": { "x": 1, "y": 2 } }),
            json!({ "name": "a", "description": "adds", "inputSchema": { "x": 1 } }),
            json!({ "name": "a", "description": "adds", "inputSchema": { "x": 1, "y": 2 },
                    "annotations": { "readOnlyHint": true } }),
        ] {
            let now = read("s", &[changed, tool("new", json!({}))], &[], &mut accepted);
            assert!(now[0].quarantined.as_deref().is_some_and(|why| why.contains("has changed")), "{now:?}");
            assert_eq!(now[1].quarantined, None);
        }
        assert_eq!(read("s", &[old], &[], &mut accepted)[0].quarantined, None);
        let mut changed = read("s", &[tool("a", json!({}))], &[], &mut accepted).remove(0);
        assert!(changed.quarantined.is_some());
        changed.accept("s", &mut accepted);
        assert_eq!((changed.quarantined, accepted.get("a")), (None, Some(&changed.hash)));
    }
}
