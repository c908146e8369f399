//! Files of a project that configure this program: `meerkat.toml`, `.mcp.json`, and the files that their servers name.
//!
//! They are trusted together: a change of any of them ends the trust in all.

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
    programs::Programs,
    project::{Links, ProjectFile, read},
    trust::{Seen, hex},
};
use crate::{error::CliError, output::printable};

/// Project's files as they were read.
pub(super) struct ProjectFiles {
    /// `meerkat.toml`, unless it is the user's own.
    pub(super) file: Option<ProjectFile>,
    /// Path of `.mcp.json` and the layer of its servers, if it has any.
    pub(super) mcp: Option<(PathBuf, Layer)>,
    /// All servers that these name.
    pub(super) servers: BTreeMap<String, ServerConfig>,
    /// What is left out of them, each with its file.
    pub(super) left_out: Vec<String>,
    /// What is read in another way than it is written.
    pub(super) notes: Vec<String>,
    /// Content that trust is for, or why there can be no trust.
    pub(super) evidence: Result<Evidence, String>,
}

/// Servers of a file, among its other keys.
#[derive(Deserialize)]
struct Tables {
    #[serde(default)]
    servers: BTreeMap<String, ServerConfig>,
}

/// Content that trust is for.
#[derive(Clone)]
pub(super) struct Evidence {
    root: PathBuf,
    /// Names of the files that configure something.
    names: Vec<&'static str>,
    pub(super) programs: Programs,
    sha256: String,
}

impl ProjectFiles {
    /// Reads the files in a project's root. `is_users` are the paths of files that are the user's own, `user` are all
    /// layers of the user's.
    pub(super) fn read(
        root: &Path,
        is_users: impl Fn(&Path) -> bool,
        user: &Figment,
        variables: &BTreeMap<String, String>,
    ) -> Result<Option<Self>, CliError> {
        let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let mut file = ProjectFile::read(root)?.filter(|_| !is_users(&real.join("meerkat.toml")));
        let path = root.join(MCP_FILE);
        let (mut left_out, mut notes) = (Vec::new(), Vec::new());
        let shown = printable(&path.display().to_string());
        let (bytes, parsed) = match read(&path, Links::Refused) {
            Ok(Some(bytes)) => {
                let parsed = McpFile::parse(&bytes);
                (Some(bytes), parsed)
            }
            Ok(None) => (None, McpFile::default()),
            Err(error) => {
                (None, McpFile { left_out: vec![format!("it cannot be read: {error}")], ..McpFile::default() })
            }
        };
        left_out.extend(parsed.left_out.iter().map(|why| format!("{shown}: left out, {why}.")));
        notes.extend(parsed.notes.iter().map(|note| format!("{shown}: {note}.")));

        let users = names(user.find_value("servers").ok().as_ref());
        let mut taken = |path: &str, name: &str, whose: &str| {
            let path = printable(path);
            left_out.push(format!("{path}: the server {} is left out, because {whose} names it.", printable(name)));
        };
        let own = "your own configuration";
        let mut servers: BTreeMap<String, ServerConfig> = BTreeMap::new();
        if let Some(ProjectFile { layer, path, .. }) = &mut file
            && let Some(Value::Dict(_, tables)) = layer.values.get_mut("servers")
        {
            for name in users.iter().filter(|name| tables.remove(*name).is_some()) {
                taken(&path.display().to_string(), name, own);
            }
            if tables.is_empty() {
                layer.values.remove("servers");
            } else {
                // The other file could complete a broken table and start an unreviewed program.
                let alone = Figment::from(&*layer);
                servers = alone.extract::<Tables>().map_err(|error| invalid(&alone, error))?.servers;
            }
        }
        let mut tables = Dict::new();
        for (name, table) in parsed.servers {
            let whose = if users.contains(&name) { Some(own) } else { None };
            if let Some(whose) = whose.or_else(|| servers.contains_key(&name).then_some("its meerkat.toml")) {
                taken(&path.display().to_string(), &name, whose);
            } else if let (Ok(value), Ok(config)) = (Value::serialize(&table), serde_json::from_value(table)) {
                tables.insert(name.clone(), value);
                servers.insert(name, config);
            }
        }
        let mcp = (!tables.is_empty()).then(|| {
            let values = Dict::from([("servers".to_owned(), tables.into())]);
            (path.clone(), Layer { origin: format!("project file {}", path.display()), values })
        });
        if file.is_none() && bytes.is_none() && left_out.is_empty() {
            return Ok(None);
        }
        let evidence = Programs::named_by(&real, servers.values(), variables).and_then(|programs| {
            let file = file.as_ref().map(|file| ("meerkat.toml", file.bytes.as_slice()));
            let files: Vec<_> = file.into_iter().chain(bytes.as_deref().map(|bytes| (MCP_FILE, bytes))).collect();
            let names = files.iter().map(|(name, _)| *name).collect();
            let sha256 = sha256(&files, &programs)?;
            Ok(Evidence { root: real, names, programs, sha256 })
        });
        Ok(Some(Self { file, mcp, servers, left_out, notes, evidence }))
    }
}

impl Evidence {
    /// Returns the project as it was read.
    pub(super) fn seen(&self) -> Seen {
        Seen::hashed(self.root.clone(), rustix::process::geteuid().as_raw(), self.sha256.clone())
    }

    /// Root of the project, without links.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Checks that everything is as it was read.
    pub(super) fn is_unchanged(&self) -> Result<(), String> {
        let mut files = Vec::new();
        for name in &self.names {
            let links = if *name == MCP_FILE { Links::Refused } else { Links::Followed };
            let found = read(&self.root.join(name), links).map_err(|error| format!("{name}: {error}"))?;
            files.push((*name, found.unwrap_or_default()));
        }
        let files: Vec<_> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
        if sha256(&files, &self.programs)? == self.sha256 {
            return Ok(());
        }
        Err(format!(
            "files of the project {} have changed since this command began; look at them with `meerkat config trust`, and \
             begin it again",
            self.root.display()
        ))
    }
}

fn sha256(files: &[(&str, &[u8])], programs: &Programs) -> Result<String, String> {
    let mut hash = Sha256::new();
    for (name, bytes) in files {
        for part in [name.as_bytes(), bytes] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    programs.add_to(&mut hash)?;
    Ok(hex(&hash.finalize()))
}

/// Lists the names of a table.
fn names(table: Option<&Value>) -> BTreeSet<String> {
    table.and_then(Value::as_dict).into_iter().flat_map(Dict::keys).cloned().collect()
}
