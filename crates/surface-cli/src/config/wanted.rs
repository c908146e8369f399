//! What a project's files want and do not get before they are trusted, in words and for the question of trust.

use std::{collections::BTreeSet, path::Path};

use meerkat_service::SessionError;
use meerkat_tools::servers::ServerConfig;
use serde_json::{Value, json};

use super::{
    Config, Untrusted,
    programs::{Programs, bytes_of},
    project::{Ignored, json as to_json},
    remember,
};
use crate::{
    error::CliError,
    output::{Environment, printable},
};

/// Most names that one line has.
const NAMED_MAX: usize = 8;

/// Server that a project's files name and that is not trusted.
pub(crate) struct WantedServer {
    pub(crate) name: String,
    /// How it is reached: `command` or `url`.
    pub(crate) kind: &'static str,
    /// Its program with the arguments, or its address.
    pub(crate) what: String,
    /// Variables whose values it gets.
    pub(crate) variables: Vec<String>,
}

impl Config {
    /// Describes what is ignored and left out of the project's files.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(Untrusted { file, ignored, mcp, servers, has_changed, .. }) = &self.untrusted {
            let why = if *has_changed { "has changed since it was trusted" } else { "is not trusted" };
            let keys: Vec<String> = ignored.iter().filter(|it| !it.counts).map(|it| printable(&it.key)).collect();
            let allow = "`meerkat config trust` shows and allows them.";
            if let Some(file) = file.as_ref().filter(|_| !keys.is_empty()) {
                lines.push(format!("{} {why}, so these keys in it are ignored: {}; {allow}", shown(file), few(&keys)));
            }
            if let Some(file) = mcp {
                let names: Vec<String> = servers.keys().map(|name| printable(name)).collect();
                lines.push(format!("{} {why}, so its servers are not started: {}; {allow}", shown(file), few(&names)));
            }
        } else if let Some(path) = &self.skipped {
            lines.push(format!("{} belongs to another user, so it is ignored.", shown(path)));
        }
        let left_out = self.left_out.len().saturating_sub(NAMED_MAX);
        lines.extend(self.left_out().cloned());
        lines.extend((left_out > 0).then(|| format!("{left_out} more are left out.")));
        lines
    }

    /// Describes what is left out of the project's files.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = &String> {
        self.left_out.iter().take(NAMED_MAX)
    }

    /// Describes what of the project's files is read in another way than it is written.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &String> {
        self.notes.iter().take(NAMED_MAX)
    }

    /// Lists the untrusted project's files with something in them that trust would allow.
    pub(crate) fn untrusted_files(&self) -> Vec<String> {
        let Some(Untrusted { file, ignored, mcp, .. }) = &self.untrusted else { return Vec::new() };
        file.iter().filter(|_| !ignored.is_empty()).chain(mcp).map(|path| shown(path)).collect()
    }

    /// Lists the keys and values of the untrusted project's file that trust would allow.
    pub(crate) fn wanted_keys(&self) -> Vec<(String, String)> {
        let wanted = |it: &Ignored| (printable(&it.key), printable(&to_json(&it.value).to_string()));
        self.untrusted.iter().flat_map(|file| &file.ignored).map(wanted).collect()
    }

    /// Lists the servers that trust would allow.
    pub(crate) fn wanted_servers(&self) -> Vec<WantedServer> {
        let servers = self.untrusted.iter().flat_map(|file| &file.servers);
        servers.map(|(name, server)| wanted(name, server)).collect()
    }

    /// Lists the files of the untrusted project that its servers name, with their bytes.
    pub(crate) fn wanted_programs(&self) -> Vec<(String, u64)> {
        let programs = |file: &Untrusted| {
            let evidence = file.evidence.as_ref().ok();
            let files = evidence.into_iter().flat_map(|evidence| listed(&evidence.programs));
            files.collect::<Vec<_>>()
        };
        self.untrusted.iter().flat_map(programs).collect()
    }

    /// Returns true if a server of this name is in force.
    pub(crate) fn has_server(&self, name: &str) -> bool {
        self.values.servers.contains_key(name)
    }

    /// Records the project's files as trusted, as they were read.
    pub(crate) fn trust(self, env: &Environment) -> Result<(), CliError> {
        let Some(Untrusted { evidence, .. }) = self.untrusted else { return Ok(()) };
        let evidence =
            evidence.map_err(|why| SessionError::invalid("project", format!("it cannot be trusted: {why}")))?;
        remember(env, evidence.seen())
    }
}

fn listed(programs: &Programs) -> impl Iterator<Item = (String, u64)> {
    let files: BTreeSet<_> = programs.files().into_values().collect();
    files.into_iter().map(|path| (shown(&path), bytes_of(&path)))
}

fn wanted(name: &str, server: &ServerConfig) -> WantedServer {
    // As text of JSON, so that an argument with spaces is seen to be one.
    let quoted = |text: &String| if is_plain(text) { text.clone() } else { Value::from(text.as_str()).to_string() };
    let words = server.command.iter().chain(&server.args).map(quoted).collect::<Vec<_>>().join(" ");
    let env: Vec<String> = server.env.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    let headers: Vec<String> =
        server.headers.iter().map(|(name, value)| format!("{name}: {}", quoted(value))).collect();
    let mut what = match &server.url {
        Some(url) => format!("connects to {url}"),
        None if words.is_empty() => "changes its settings".to_owned(),
        None => format!("runs {words}"),
    };
    for (label, values) in [("environment", env), ("headers", headers)] {
        if !values.is_empty() {
            what = format!("{what}, {label} {}", values.join(", "));
        }
    }
    WantedServer {
        name: printable(name),
        kind: if server.url.is_some() { "url" } else { "command" },
        what: printable(&what),
        variables: server.variables().iter().map(|name| printable(name)).collect(),
    }
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|char| char.is_ascii_graphic() && !matches!(char, '"' | '\''))
}

fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// Joins the first few names, and says how many there are besides.
fn few(names: &[String]) -> String {
    let mut few: Vec<String> = names.iter().take(NAMED_MAX).cloned().collect();
    if names.len() > NAMED_MAX {
        few.push(format!("{} more", names.len() - NAMED_MAX));
    }
    few.join(", ")
}

impl WantedServer {
    /// Describes it in a line.
    pub(crate) fn line(&self) -> String {
        let variables = match self.variables.is_empty() {
            true => String::new(),
            false => format!("; it gets your {}", self.variables.join(", ")),
        };
        format!("{} {}{variables}", self.name, self.what)
    }

    /// Describes it for programs.
    pub(crate) fn json(&self) -> Value {
        json!({ "server": self.name, "what": self.what, "variables": self.variables })
    }
}
