//! `.mcp.json` of a project: the servers that other programs start there too.
//!
//! Other programs own the file, and anybody may have written it: nothing in it makes a command fail. What cannot be used
//! is left out, with words.

use std::collections::BTreeMap;

use meerkat_tools::servers::ServerConfig;
use serde_json::{Map, Value, json};

use crate::output::printable;

/// Name of the file, in the project's root.
pub(super) const MCP_FILE: &str = ".mcp.json";

/// Servers of a file; further ones are left out.
const SERVERS_MAX: usize = 64;
/// Arguments, variables or headers of one server.
const VALUES_MAX: usize = 256;
/// Longest name of a server, in characters.
const NAME_CHARS_MAX: usize = 32;
/// Characters of a text of the file that a message quotes.
const QUOTED_CHARS: usize = 60;
/// Keys of a server that count.
const KEYS: [&str; 6] = ["type", "command", "args", "env", "url", "headers"];

/// Servers of the file.
#[derive(Debug, Default)]
pub(super) struct McpFile {
    /// Tables as of `[servers.NAME]`, by the names that they have here.
    pub(super) servers: BTreeMap<String, Value>,
    /// Why something of it is left out.
    pub(super) left_out: Vec<String>,
    /// What is read in another way than it is written.
    pub(super) notes: Vec<String>,
}

impl McpFile {
    /// Reads the file's bytes.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut file = Self::default();
        let found: Value = match serde_json::from_slice(bytes) {
            Ok(found) => found,
            Err(error) => {
                file.left_out.push(format!("it is not valid JSON ({error})"));
                return file;
            }
        };
        let Some(servers) = found["mcpServers"].as_object() else {
            file.left_out.push("it lacks the object mcpServers".to_owned());
            return file;
        };
        for (name, server) in servers.iter().take(SERVERS_MAX) {
            if let Err(why) = file.add(name, server) {
                file.left_out.push(format!("{}: {why}", quoted(name)));
            }
        }
        if servers.len() > SERVERS_MAX {
            file.left_out.push(format!("it has more than {SERVERS_MAX} servers"));
        }
        file
    }

    fn add(&mut self, name: &str, server: &Value) -> Result<(), String> {
        let fields = server.as_object().ok_or("it is not an object")?;
        let plain = plain_name(name);
        if self.servers.contains_key(&plain) {
            return Err(format!("another server is named {plain} here; rename one"));
        }
        let table = table(fields)?;
        let config: ServerConfig = serde_json::from_value(table.clone()).map_err(|error| error.to_string())?;
        config.check(&plain).map_err(|error| error.to_string())?;
        if plain != name {
            self.notes.push(format!("{} is named {plain} here", quoted(name)));
        }
        let others = fields.keys().filter(|key| !KEYS.contains(&key.as_str()));
        self.notes.extend(others.map(|key| format!("{plain}.{} is unknown and ignored", quoted(key))));
        self.servers.insert(plain, table);
        Ok(())
    }
}

/// Makes a table as of `[servers.NAME]`.
fn table(fields: &Map<String, Value>) -> Result<Value, String> {
    match fields.get("type").map(|kind| kind.as_str().unwrap_or_default()) {
        None | Some("stdio" | "http" | "streamable-http" | "streamableHttp") => {}
        Some("sse") => {
            return Err("its transport SSE is an old one that is not supported; name the server's address for \
                        streamable HTTP, with the type http"
                .to_owned());
        }
        Some(other) => return Err(format!("its type {} is not stdio or http", quoted(other))),
    }
    let mut table = json!({});
    for (key, value) in fields.iter().filter(|(key, _)| KEYS[1..].contains(&key.as_str())) {
        let (is_right, count) = match (key.as_str(), value) {
            ("command" | "url", value) => (value.is_string(), 1),
            ("args", Value::Array(items)) => (items.iter().all(Value::is_string), items.len()),
            ("env" | "headers", Value::Object(values)) => (values.values().all(Value::is_string), values.len()),
            _ => (false, 0),
        };
        if !is_right {
            return Err(format!("its {key} may contain only texts"));
        }
        if count > VALUES_MAX {
            return Err(format!("its {key} has more than {VALUES_MAX} values"));
        }
        if count > 0 {
            table[key] = in_our_form(value);
        }
    }
    Ok(table)
}

/// Writes `${env:VAR}`, as some programs have it, as `${VAR}`.
fn in_our_form(value: &Value) -> Value {
    match value {
        Value::String(text) => text.replace("${env:", "${").into(),
        Value::Array(items) => items.iter().map(in_our_form).collect(),
        Value::Object(values) => values.iter().map(|(key, value)| (key.clone(), in_our_form(value))).collect(),
        other => other.clone(),
    }
}

/// Returns a name as our rule has it, made of the characters that it allows.
fn plain_name(name: &str) -> String {
    let mut plain = String::new();
    for char in name.chars().flat_map(char::to_lowercase) {
        let char = if char.is_ascii_alphanumeric() || char == '_' { char } else { '-' };
        if !(plain.ends_with(char) && matches!(char, '-' | '_')) {
            plain.push(char);
        }
        if plain.len() == NAME_CHARS_MAX {
            break;
        }
    }
    plain.trim_matches(['-', '_']).to_owned()
}

/// Quotes a text of the file, shortened and with nothing that a terminal obeys.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(QUOTED_CHARS).collect();
    let end = if short.len() < text.len() { "…" } else { "" };
    format!("{}{end}", printable(&short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(file: &Value) -> McpFile {
        McpFile::parse(file.to_string().as_bytes())
    }

    #[test]
    fn the_forms_of_other_programs_are_read() {
        let file = parse(&json!({ "inputs": [], "mcpServers": {
            "git-hub": { "command": "npx", "args": ["-y", "x"], "env": { "TOKEN": "${env:GH}" } },
            "Figma Dev Mode": { "type": "http", "url": "${BASE:-https://example.com}/mcp", "headers": { "a": "${B}" } },
            "plain": { "type": "stdio", "command": "a", "args": [], "disabled": true },
        } }));
        assert_eq!(file.left_out, [""; 0]);
        assert_eq!(
            file.servers,
            BTreeMap::from([
                (
                    "figma-dev-mode".into(),
                    json!({ "url": "${BASE:-https://example.com}/mcp", "headers": { "a": "${B}" } })
                ),
                ("git-hub".into(), json!({ "command": "npx", "args": ["-y", "x"], "env": { "TOKEN": "${GH}" } })),
                ("plain".into(), json!({ "command": "a" })),
            ])
        );
        assert_eq!(
            file.notes,
            ["Figma Dev Mode is named figma-dev-mode here", "plain.disabled is unknown and ignored"]
        );
    }

    #[test]
    fn what_cannot_be_used_is_left_out_with_words() {
        let many: Map<String, Value> = (0..70).map(|n| (format!("s{n}"), json!({ "command": "a" }))).collect();
        let args = vec!["a"; 300];
        for (servers, words) in [
            (json!({ "a": 5 }), "a: it is not an object"),
            (json!({ "a": {} }), "neither"),
            (json!({ "a": { "command": "x", "url": "https://y" } }), "both"),
            (json!({ "a": { "type": "sse", "url": "https://y" } }), "streamable HTTP"),
            (json!({ "a": { "type": "ws", "url": "wss://y" } }), "ws is not stdio or http"),
            (json!({ "a": { "url": "http://example.com" } }), "https://"),
            (json!({ "a": { "command": ["x"] } }), "its command may contain only texts"),
            (json!({ "a": { "command": "x", "args": "y" } }), "its args may contain only texts"),
            (json!({ "a": { "command": "x", "args": [5] } }), "its args may contain only texts"),
            (json!({ "a": { "command": "x", "args": args } }), "more than 256"),
            (json!({ "a": { "command": "x", "env": { "A": 1 } } }), "its env may contain only texts"),
            (json!({ "a": { "command": "x", "args": ["${input:key}"] } }), "${input:key} is not"),
            (json!({ "é": { "command": "x" } }), "é: "),
            (json!({ "A": { "command": "x" }, "a": { "command": "y" } }), "another server is named a"),
            (Value::Object(many), "more than 64 servers"),
        ] {
            let file = parse(&json!({ "mcpServers": servers }));
            assert!(matches!(&file.left_out[..], [why] if why.contains(words)), "{servers}: {:?}", file.left_out);
        }
        let deep = "[".repeat(100_000);
        for bytes in ["", "{", "[]", "5", "{\"mcpServers\":[]}", "\u{feff}{}", &deep] {
            let file = McpFile::parse(bytes.as_bytes());
            assert!(file.servers.is_empty() && file.left_out.len() == 1, "{:?}", file.left_out);
        }
        let file = parse(&json!({ "mcpServers": { "\u{1b}[2K\u{202e}": {} } }));
        assert!(file.left_out[0].starts_with("\\u{1b}[2K\\u{202e}: "), "{:?}", file.left_out);
    }

    #[test]
    fn names_keep_what_may_stay() {
        for (name, plain) in [
            ("github", "github"),
            ("Git Hub!", "git-hub"),
            ("a__b", "a_b"),
            ("@scope/pkg", "scope-pkg"),
            ("_x_", "x"),
            ("ÄÖ", ""),
            (&"x".repeat(40), &"x".repeat(32)),
        ] {
            assert_eq!(plain_name(name), plain);
        }
    }
}
