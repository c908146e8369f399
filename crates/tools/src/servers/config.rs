//! Configuration of a server: its keys, their checks, and the variables that they name.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use meerkat_service::{SessionError, tool::Approval};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::hands::NAMES;

/// Longest name of a server.
const NAME_BYTES_MAX: usize = 32;
/// Longest time for a start, in milliseconds.
const START_MS_MAX: u64 = 600_000;
/// Longest time for a call, in milliseconds.
const CALL_MS_MAX: u64 = 3_600_000;

/// Approval of the calls of a server's tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerApproval {
    /// Every call runs.
    Allow,
    /// Every call waits for a decision.
    #[default]
    Ask,
    /// No call runs.
    Deny,
    /// A call of a tool that says it only reads runs; every other waits for a decision.
    Reads,
}

/// Sessions that share a connection to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All sessions share one.
    #[default]
    Process,
    /// Each session has its own, for a server that keeps state.
    Session,
}

/// Server of the Model Context Protocol: the table `[servers.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Program that speaks the protocol over its input and output.
    pub command: Option<String>,
    /// Arguments of the program. Here, in `command`, `url`, and the values of `env` and `headers`, `${VAR}` and
    /// `${VAR:-default}` stand for a variable.
    pub args: Vec<String>,
    /// Further environment of the program.
    pub env: BTreeMap<String, String>,
    /// Folder that the program starts in; without one, that of this process.
    pub folder: Option<PathBuf>,
    /// Address of a server that speaks streamable HTTP.
    pub url: Option<String>,
    /// Headers of each request to that address.
    pub headers: BTreeMap<String, String>,
    /// Approval of the calls. `allow` and `reads` also mean that the tools' own annotations are believed.
    pub approval: ServerApproval,
    /// Approval of the calls of one tool, by the server's name for it.
    pub tools: BTreeMap<String, Approval>,
    /// Globs of the tools that the model is shown, by the server's names.
    pub only: Vec<String>,
    /// Globs of tools that the model is never shown.
    pub without: Vec<String>,
    /// Milliseconds that a start may take, with the list of tools.
    pub start_timeout_ms: u64,
    /// Milliseconds that a call may take.
    pub call_timeout_ms: u64,
    /// Sessions that share a connection.
    pub scope: Scope,
    /// Milliseconds without a call after which a connection ends; 0 for never.
    pub idle_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            folder: None,
            url: None,
            headers: BTreeMap::new(),
            approval: ServerApproval::default(),
            tools: BTreeMap::new(),
            only: vec!["*".to_owned()],
            without: Vec::new(),
            start_timeout_ms: 30_000,
            call_timeout_ms: 120_000,
            scope: Scope::default(),
            idle_ms: 600_000,
        }
    }
}

impl ServerConfig {
    /// Checks the table of the server `name`.
    ///
    /// # Errors
    /// `CONFIG_INVALID` that names the key at fault.
    pub fn check(&self, name: &str) -> Result<(), SessionError> {
        check_name(name)?;
        let refused = |key: &str, message: &str| {
            Err(SessionError::ConfigInvalid { key: format!("servers.{name}{key}"), message: message.to_owned() })
        };
        match (&self.command, &self.url) {
            (None, None) => return refused("", "Set either command or url; it has neither."),
            (Some(_), Some(_)) => return refused("", "Set either command or url; it has both."),
            (Some(command), None) if command.is_empty() => return refused(".command", "Name a program."),
            (Some(_), None) if !self.headers.is_empty() => return refused(".headers", "Only a url has headers."),
            (None, Some(_)) if !self.args.is_empty() => return refused(".args", "Only a command has arguments."),
            (None, Some(_)) if !self.env.is_empty() => return refused(".env", "Only a command has an environment."),
            (None, Some(_)) if self.folder.is_some() => return refused(".folder", "Only a command has a folder."),
            (Some(_), None) => {}
            // An address with a variable is checked once that has its value.
            (None, Some(url)) if url.contains("${") => {}
            (None, Some(url)) => check_url(url).or_else(|why| refused(".url", &why))?,
        }
        let in_range = |ms: u64, max: u64| (1..=max).contains(&ms);
        if !in_range(self.start_timeout_ms, START_MS_MAX) {
            return refused(".start_timeout_ms", &format!("Give 1 to {START_MS_MAX} milliseconds."));
        }
        if !in_range(self.call_timeout_ms, CALL_MS_MAX) {
            return refused(".call_timeout_ms", &format!("Give 1 to {CALL_MS_MAX} milliseconds."));
        }
        for (key, globs) in [(".only", &self.only), (".without", &self.without)] {
            if let Err(error) = glob_set(globs) {
                return refused(key, &format!("This is not a glob: {error}."));
            }
        }
        for (key, texts) in [(".env", &self.env), (".headers", &self.headers)] {
            for (field, text) in texts {
                if let Err(why) = expand(text, &|_| Some(String::new())) {
                    return refused(&format!("{key}.{field}"), &why);
                }
            }
        }
        let args = self.args.iter().map(|text| (".args", text));
        let one = [(".command", &self.command), (".url", &self.url)];
        for (key, text) in one.iter().filter_map(|(key, text)| Some((*key, text.as_ref()?))).chain(args) {
            if let Err(why) = expand(text, &|_| Some(String::new())) {
                return refused(key, &why);
            }
        }
        Ok(())
    }

    /// Lists the variables whose values the server gets.
    #[must_use]
    pub fn variables(&self) -> BTreeSet<String> {
        let names = RefCell::new(BTreeSet::new());
        let note = |name: &str| {
            names.borrow_mut().insert(name.to_owned());
            Some(String::new())
        };
        let one = self.command.iter().chain(&self.url);
        for text in one.chain(&self.args).chain(self.env.values()).chain(self.headers.values()) {
            // A form that is none names no variable.
            drop(expand(text, &note));
        }
        names.into_inner()
    }

    /// Returns true if the annotations of the tools are believed: a person has trusted the server with more.
    pub(super) const fn is_trusted(&self) -> bool {
        match self.approval {
            ServerApproval::Allow | ServerApproval::Reads => true,
            ServerApproval::Ask | ServerApproval::Deny => false,
        }
    }

    /// Returns the hash of all that decides which program or address answers. Variables in the command, its arguments
    /// and the address count with their values. Those in the environment and the headers do not: they are mostly
    /// tokens, and a new token is no other server.
    pub(super) fn definition(&self, value_of: &dyn Fn(&str) -> Option<String>) -> String {
        // Without one of its variables the server cannot be used.
        let valued = |text: &String| expand(text, value_of).unwrap_or_else(|_| text.clone());
        let (command, url) = (self.command.as_ref().map(valued), self.url.as_ref().map(valued));
        let args: Vec<String> = self.args.iter().map(valued).collect();
        let parts = (command, args, &self.env, url, &self.headers);
        let mut hash = Sha256::new_with_prefix(serde_json::to_vec(&parts).unwrap_or_default());
        // Two projects may name their servers by the same relative path.
        if let Some(folder) = &self.folder {
            hash.update(folder.as_os_str().as_bytes());
        }
        hex(&hash.finalize())
    }
}

/// Writes bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks a server's name. It must not hold what separates it from a tool's name, or two tools could have one name.
fn check_name(name: &str) -> Result<(), SessionError> {
    if NAMES.contains(&name) {
        let message =
            format!("A server must not be named {name}: the rule \"{name}: *\" would be for the tool {name} too.");
        return Err(SessionError::ConfigInvalid { key: "servers".to_owned(), message });
    }
    let is_char = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    let is_separate = !name.contains("__") && !name.starts_with('_') && !name.ends_with('_');
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_char) && is_separate {
        return Ok(());
    }
    Err(SessionError::ConfigInvalid {
        key: "servers".to_owned(),
        message: format!(
            "A server's name has 1 to {NAME_BYTES_MAX} characters of a-z, 0-9, '-' and single '_' between them; {name:?} \
             has not."
        ),
    })
}

/// Checks an address: https, or http to this machine. Its query may hold a key, so no message repeats it.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    use meerkat_service::model::vendors::{Api, network::base_url};

    let (address, _) = url.split_once('?').unwrap_or((url, ""));
    match base_url("url", Api::Compatible, address, false) {
        Ok(_) => Ok(()),
        Err(SessionError::ConfigInvalid { message, .. }) => Err(message),
        Err(error) => Err(error.to_string()),
    }
}

/// Makes the set of some globs; `None` is every name: compiling `*` would take as long as all else of a server.
pub(super) fn glob_set(globs: &[String]) -> Result<Option<GlobSet>, globset::Error> {
    if globs == ["*"] {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        set.add(GlobBuilder::new(glob).build()?);
    }
    set.build().map(Some)
}

/// Replaces `${VAR}` and `${VAR:-default}` by the variable's value. Any other dollar sign stays.
///
/// # Errors
/// Returns the cause with the name of a variable that is not set, or of a form that is none.
pub fn expand(text: &str, value_of: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut expanded, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        let Some((inside, following)) = after.split_once('}') else {
            return Err("A ${ has no closing brace.".to_owned());
        };
        let (variable, default) =
            inside.split_once(":-").map_or((inside, None), |(variable, default)| (variable, Some(default)));
        let is_char = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if variable.is_empty()
            || variable.starts_with(|first: char| first.is_ascii_digit())
            || !variable.bytes().all(is_char)
        {
            return Err(format!("${{{inside}}} is not ${{VAR}} or ${{VAR:-default}}."));
        }
        // As in a shell, an empty variable has the default too.
        let value = value_of(variable).filter(|value| default.is_none() || !value.is_empty());
        match value.or_else(|| default.map(str::to_owned)) {
            Some(value) => expanded.push_str(&value),
            None => {
                return Err(format!("The variable {variable} is not set; set it, or write ${{{variable}:-default}}."));
            }
        }
        rest = following;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: serde_json::Value) -> ServerConfig {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_server_has_a_command_or_a_url() {
        let check = |json, name: &str| parse(json).check(name).map_err(|error| error.to_string());
        assert_eq!(check(serde_json::json!({ "command": "npx" }), "git-hub_1"), Ok(()));
        assert_eq!(check(serde_json::json!({ "url": "https://example.com/mcp?key=1" }), "a"), Ok(()));
        assert_eq!(check(serde_json::json!({ "url": "http://127.0.0.1:1/mcp" }), "a"), Ok(()));
        for (json, words) in [
            (serde_json::json!({}), "servers.a: Set either command or url; it has neither."),
            (serde_json::json!({ "command": "a", "url": "https://b" }), "it has both"),
            (serde_json::json!({ "command": "a", "headers": { "b": "c" } }), "servers.a.headers"),
            (serde_json::json!({ "url": "https://b", "env": { "b": "c" } }), "servers.a.env"),
            (serde_json::json!({ "url": "https://b", "args": ["c"] }), "servers.a.args"),
            (serde_json::json!({ "url": "http://example.com" }), "servers.a.url"),
            (serde_json::json!({ "url": "http://169.254.169.254/" }), "servers.a.url"),
            (serde_json::json!({ "command": "a", "start_timeout_ms": 0 }), "servers.a.start_timeout_ms"),
            (serde_json::json!({ "command": "a", "call_timeout_ms": 3_600_001 }), "servers.a.call_timeout_ms"),
            (serde_json::json!({ "command": "a", "only": ["[" ] }), "servers.a.only"),
            (serde_json::json!({ "command": "a", "env": { "B": "${" } }), "servers.a.env.B"),
            (serde_json::json!({ "command": "a", "args": ["${1}"] }), "servers.a.args"),
            (serde_json::json!({ "command": "${", "args": [] }), "servers.a.command"),
            (serde_json::json!({ "url": "https://${A B}/" }), "servers.a.url"),
        ] {
            let error = check(json.clone(), "a").unwrap_err();
            assert!(error.contains(words), "{json}: {error}");
        }
        for name in ["", "A", "a b", "a__b", "_a", "a_", "é", "shell", "read", &"a".repeat(33)] {
            assert!(check(serde_json::json!({ "command": "npx" }), name).is_err(), "{name}");
        }
        assert!(serde_json::from_value::<ServerConfig>(serde_json::json!({ "comand": "x" })).is_err());
    }

    #[test]
    fn only_named_variables_are_replaced() {
        let value_of = |name: &str| match name {
            "TOKEN" => Some("s3cret".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let expand = |text: &str| expand(text, &value_of);
        for (text, expanded) in [
            ("a ${TOKEN} b${TOKEN}", "a s3cret bs3cret"),
            ("${NONE:-x}${EMPTY:-y}", "xy"),
            ("${EMPTY}", ""),
            ("$TOKEN $(id) `id` $", "$TOKEN $(id) `id` $"),
            ("${NONE:-${TOKEN}", "${TOKEN"),
        ] {
            assert_eq!(expand(text).as_deref(), Ok(expanded), "{text}");
        }
        assert!(expand("${NONE}").unwrap_err().contains("The variable NONE is not set"));
        for text in ["${", "${}", "${A B}", "${1A}", "${A-b}"] {
            assert!(expand(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_variable_that_a_server_gets_is_listed() {
        let program = parse(serde_json::json!({ "command": "${A}", "args": ["x${B:-y}${A}"], "env": { "C": "${D}" } }));
        assert_eq!(program.variables().into_iter().collect::<Vec<_>>(), ["A", "B", "D"]);
        let address = parse(serde_json::json!({ "url": "https://${H}/", "headers": { "x": "${T} ${" } }));
        assert_eq!(address.variables().into_iter().collect::<Vec<_>>(), ["H", "T"]);
    }

    #[test]
    fn a_definition_has_the_values_of_what_runs_and_not_of_what_it_is_given() {
        let of =
            |json, name: &str, value: &str| parse(json).definition(&|asked| (asked == name).then(|| value.to_owned()));
        let program = || serde_json::json!({ "command": "${A}", "args": ["${B}", "${C}"], "env": { "D": "${T}" } });
        let address = || serde_json::json!({ "url": "https://${H}/", "headers": { "x": "${T}" } });
        for name in ["A", "B", "C"] {
            assert_ne!(of(program(), name, "1"), of(program(), name, "2"), "{name}");
        }
        assert_ne!(of(address(), "H", "1"), of(address(), "H", "2"));
        assert_eq!(of(program(), "T", "1"), of(program(), "T", "2"));
        assert_eq!(of(address(), "T", "1"), of(address(), "T", "2"));
    }

    #[test]
    fn a_definition_is_what_runs_and_not_how_it_is_used() {
        let base = parse(serde_json::json!({ "command": "a", "args": ["b"] }));
        let used = parse(serde_json::json!({ "command": "a", "args": ["b"], "approval": "allow", "idle_ms": 5 }));
        let other = parse(serde_json::json!({ "command": "a", "args": ["c"] }));
        assert_eq!(base.definition(&|_| None), used.definition(&|_| None));
        assert_ne!(base.definition(&|_| None), other.definition(&|_| None));
        let elsewhere = ServerConfig { folder: Some("/elsewhere".into()), ..base.clone() };
        assert_ne!(base.definition(&|_| None), elsewhere.definition(&|_| None));
    }
}
