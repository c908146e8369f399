//! Files of a project that configure this program: `meerkat.toml` and `.mcp.json` in its root.
//!
//! Anybody may have made a project's folder, so both are ignored until the user trusts them as they are. They are trusted
//! together: a change of either ends the trust in both.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use figment::{
    Figment,
    value::{Dict, Value},
};
use meerkat_tools::servers::ServerConfig;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{
    layers::{Layer, invalid},
    mcp_file::{MCP_FILE, McpFile},
    project::{Links, read},
    trust::{Seen, hex},
};
use crate::{
    error::{CliError, refused},
    output::printable,
};

/// The project's own configuration, in its root.
const FILE: &str = "meerkat.toml";

/// Project's files as they were read.
pub(super) struct ProjectFiles {
    /// Root of the project, without links.
    root: PathBuf,
    /// Those that could be read: name, path and content.
    files: Vec<(&'static str, PathBuf, Vec<u8>)>,
    /// Those that could not be read, each with the reason.
    unread: Vec<String>,
}

/// What the files say.
pub(super) struct Parsed {
    pub(super) layers: Vec<Layer>,
    /// All servers that they name.
    pub(super) servers: BTreeMap<String, ServerConfig>,
    /// What is left out of them, each with its file.
    pub(super) left_out: Vec<String>,
    /// What is read in another way than it is written.
    pub(super) notes: Vec<String>,
}

/// Servers of a file, among its other keys.
#[derive(Deserialize)]
struct Tables {
    #[serde(default)]
    servers: BTreeMap<String, ServerConfig>,
}

impl ProjectFiles {
    /// Reads the files in a project's root that exist and belong to this user. `is_users` tells paths of the user's own
    /// files.
    pub(super) fn read(root: &Path, is_users: impl Fn(&Path) -> bool) -> Self {
        let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let mut project = Self { files: Vec::new(), unread: Vec::new(), root: real };
        // A linked `meerkat.toml` is the project's own: the user trusts this project, not the one that the link leads to.
        for (name, links) in [(FILE, Links::Followed), (MCP_FILE, Links::Refused)] {
            let path = root.join(name);
            match read(&path, links) {
                Ok(Some(bytes)) if !is_users(&project.root.join(name)) => project.files.push((name, path, bytes)),
                Ok(_) => {}
                Err(error) => {
                    let path = printable(&path.display().to_string());
                    project.unread.push(format!("{path}: left out, it cannot be read: {error}."));
                }
            }
        }
        project
    }

    /// Root of the project, without links.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Lists the paths of the files.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(_, path, _)| path.as_path())
    }

    /// Describes the files that could not be read.
    pub(super) fn unread(&self) -> &[String] {
        &self.unread
    }

    /// Returns the project as it was read.
    pub(super) fn seen(&self) -> Seen {
        let mut hash = Sha256::new();
        for (name, _, bytes) in &self.files {
            for part in [name.as_bytes(), bytes] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
        }
        Seen::hashed(self.root.clone(), rustix::process::geteuid().as_raw(), hex(&hash.finalize()))
    }

    /// Reads what the files say. `user` are all layers of the user's.
    ///
    /// # Errors
    /// Says where `meerkat.toml` is wrong; nothing in `.mcp.json` makes a command fail.
    pub(super) fn parse(&self, user: &Figment) -> Result<Parsed, CliError> {
        let users = names(user.find_value("servers").ok().as_ref());
        let mut parsed =
            Parsed { layers: Vec::new(), servers: BTreeMap::new(), left_out: Vec::new(), notes: Vec::new() };
        for (name, path, bytes) in &self.files {
            let layer = match *name {
                FILE => parsed.add_toml(path, bytes, &users)?,
                _ => parsed.add_mcp(path, bytes, &users),
            };
            parsed.layers.push(layer);
        }
        Ok(parsed)
    }
}

impl Parsed {
    fn add_toml(&mut self, path: &Path, bytes: &[u8], users: &BTreeSet<String>) -> Result<Layer, CliError> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let origin = format!("project file {}", path.display());
            refused("file", &format!("it cannot be read: {error}"), &origin)
        })?;
        let mut layer = Layer::file_text("project", path, text)?;
        if let Some(Value::Dict(_, tables)) = layer.values.get_mut("servers") {
            for name in users.iter().filter(|name| tables.remove(*name).is_some()) {
                self.leave_out(path, name, "your own configuration");
            }
            if tables.is_empty() {
                layer.values.remove("servers");
            }
        }
        let alone = Figment::from(&layer);
        self.servers = alone.extract::<Tables>().map_err(|error| invalid(&alone, error))?.servers;
        Ok(layer)
    }

    fn add_mcp(&mut self, path: &Path, bytes: &[u8], users: &BTreeSet<String>) -> Layer {
        let McpFile { servers, left_out, notes } = McpFile::parse(bytes);
        let shown = printable(&path.display().to_string());
        self.left_out.extend(left_out.iter().map(|why| format!("{shown}: left out, {why}.")));
        self.notes.extend(notes.iter().map(|note| format!("{shown}: {note}.")));
        let mut tables = Dict::new();
        for (name, table) in servers {
            let is_named = self.servers.contains_key(&name);
            if users.contains(&name) {
                self.leave_out(path, &name, "your own configuration");
            } else if is_named {
                self.leave_out(path, &name, "its meerkat.toml");
            } else if let (Ok(value), Ok(config)) = (Value::serialize(&table), serde_json::from_value(table)) {
                tables.insert(name.clone(), value);
                self.servers.insert(name, config);
            }
        }
        let has_some = !tables.is_empty();
        let values = if has_some { Dict::from([("servers".to_owned(), tables.into())]) } else { Dict::new() };
        Layer { origin: format!("project file {}", path.display()), values }
    }

    fn leave_out(&mut self, path: &Path, name: &str, whose: &str) {
        let path = printable(&path.display().to_string());
        let name = printable(name);
        self.left_out.push(format!("{path}: the server {name} is left out, because {whose} names it."));
    }
}

/// Lists the names of a table.
fn names(table: Option<&Value>) -> BTreeSet<String> {
    table.and_then(Value::as_dict).into_iter().flat_map(Dict::keys).cloned().collect()
}
