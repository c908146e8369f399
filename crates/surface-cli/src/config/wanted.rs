//! What a project's files want, in words and for the question of trust.

use std::path::Path;

use figment::Figment;
use meerkat_tools::servers::ServerConfig;
use serde_json::{Value, json};

use super::{
    Config, Project, mcp_file::MCP_FILE, project::json as to_json, project_files::Parsed, remember, trust::Trust, walk,
};
use crate::{
    error::CliError,
    output::{Environment, printable},
};

/// Most lines about what is left out.
const NAMED_MAX: usize = 8;

/// Server that a project's files name.
pub(crate) struct WantedServer {
    pub(crate) name: String,
    /// Its program with the arguments, or its address.
    pub(crate) what: String,
    /// Variables whose values it gets.
    pub(crate) variables: Vec<String>,
}

impl Config {
    /// Describes which of the project's files are ignored, and what is left out of them.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let ignored: Vec<String> = self.untrusted().into_iter().flat_map(|it| it.files.paths()).map(shown).collect();
        if !ignored.is_empty() {
            let has_changed = self.project.as_ref().is_some_and(|project| project.trust == Trust::Changed);
            let why = if has_changed { "changed since it was trusted" } else { "not trusted" };
            let files = ignored.join(", ");
            lines.push(format!("{files}: {why}, so ignored; `meerkat config trust` shows and allows what it says."));
        } else if let Some(path) = &self.skipped {
            lines.push(format!("{} belongs to another user, so it is ignored.", shown(path)));
        }
        lines.extend(self.left_out());
        lines
    }

    /// Describes what is left out of the project's files.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let unread = self.project.iter().flat_map(|project| project.files.unread());
        let mut lines: Vec<String> = unread.chain(self.parsed().flat_map(|parsed| &parsed.left_out)).cloned().collect();
        let more = lines.len().saturating_sub(NAMED_MAX);
        lines.truncate(NAMED_MAX);
        lines.extend((more > 0).then(|| format!("{more} more are left out.")));
        lines
    }

    /// Describes what of the project's files is read in another way than it is written.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &String> {
        self.parsed().flat_map(|parsed| &parsed.notes).take(NAMED_MAX)
    }

    /// Lists the project's files that are not trusted as they are.
    pub(crate) fn untrusted_files(&self) -> Vec<String> {
        self.untrusted().into_iter().flat_map(|project| project.files.paths()).map(shown).collect()
    }

    /// Lists the keys and values of the project's file.
    pub(crate) fn wanted_keys(&self) -> Vec<(String, String)> {
        let mut keys = Vec::new();
        for layer in self.parsed().flat_map(|parsed| &parsed.layers).filter(|layer| !layer.origin.ends_with(MCP_FILE)) {
            walk(&Figment::from(layer), |key, value, _| {
                keys.push((printable(key), printable(&to_json(value).to_string())));
            });
        }
        keys
    }

    /// Lists the servers of the project's files.
    pub(crate) fn wanted_servers(&self) -> Vec<WantedServer> {
        let servers = self.parsed().flat_map(|parsed| &parsed.servers);
        servers.map(|(name, server)| wanted(name, server)).collect()
    }

    /// Returns true if a server of this name is in force.
    pub(crate) fn has_server(&self, name: &str) -> bool {
        self.values.servers.contains_key(name)
    }

    /// Records the project's files as trusted, as they were read.
    pub(crate) fn trust(&self, env: &Environment) -> Result<(), CliError> {
        self.untrusted().map_or(Ok(()), |project| remember(env, project.files.seen()))
    }

    fn untrusted(&self) -> Option<&Project> {
        self.project.as_ref().filter(|it| it.trust != Trust::Full && it.files.paths().next().is_some())
    }

    fn parsed(&self) -> impl Iterator<Item = &Parsed> {
        self.project.iter().filter_map(|project| project.parsed.as_ref())
    }
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
