//! The builds of the matrix: each is really made with its own features, and its binaries are kept apart.
//!
//! A nested build has a target folder of its own and nothing of the outer one's environment, or it would
//! overwrite the binaries of the build that runs it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::Deserialize;
use serde_json::{Map, Value};

/// The packages whose binaries are driven, with the binary of each.
const BINARIES: [(&str, &str); 2] = [("meerkat-surface-cli", "meerkat"), ("meerkat-parity-tests", "sdk-driver")];

/// The builds with nothing and with everything: in these, further transports and mixed surfaces are driven too.
pub const THOROUGH: [&str; 2] = ["A", "F"];

/// A row of `config/builds.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The features that it is made with.
    pub features: Vec<String>,
    /// The answer of `capabilities`, without version and name.
    pub capabilities: Map<String, Value>,
}

/// A build.
#[derive(Debug)]
pub struct Build {
    /// Its name: one of A to F, BD, CD, FP.
    pub name: String,
    /// Its row.
    pub row: Row,
    made: OnceLock<Result<PathBuf, String>>,
    /// Whether the reason why it could not be made has been reported.
    is_told: AtomicBool,
}

/// Every build that has landed, in the order of their names.
pub fn all() -> Result<Vec<Build>, String> {
    let path = workspace().join("config/builds.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("config/builds.toml: {error}"))?;
    let rows: BTreeMap<String, Row> =
        toml_edit::de::from_str(&text).map_err(|error| format!("config/builds.toml: {error}"))?;
    Ok(rows
        .into_iter()
        .map(|(name, row)| Build { name, row, made: OnceLock::new(), is_told: AtomicBool::new(false) })
        .collect())
}

/// The program `meerkat` of a build. It is made first.
pub fn meerkat(name: &str) -> Result<PathBuf, String> {
    let build =
        all()?.into_iter().find(|build| build.name == name).ok_or_else(|| format!("there is no build {name}"))?;
    Ok(build.binaries()?.join("meerkat"))
}

/// The workspace's root.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

impl Build {
    /// Whether further transports and mixed surfaces are driven in it.
    pub fn is_thorough(&self) -> bool {
        THOROUGH.contains(&self.name.as_str())
    }

    /// The name that the program itself says: that of the build with these capabilities alone.
    pub fn said_name(&self) -> &str {
        self.name.trim_end_matches('P')
    }

    /// Whether its sessions are in a database.
    pub fn has_database(&self) -> bool {
        self.has("postgres")
    }

    /// Whether it has this feature.
    pub fn has(&self, feature: &str) -> bool {
        self.row.features.iter().any(|name| name == feature)
    }

    /// Makes the build, once, and answers with the folder of its binaries.
    pub fn binaries(&self) -> Result<PathBuf, String> {
        // One at a time: the builds share a target folder, so they compile their common crates once.
        static BUILDING: Mutex<()> = Mutex::new(());
        let make = || {
            let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
            self.make()
        };
        self.made.get_or_init(make).clone().map_err(|why| {
            // Once is enough: every trial of the build ends here.
            let why = if self.is_told.swap(true, Ordering::Relaxed) { "another trial says why" } else { &why };
            format!("build {} could not be made: {why}", self.name)
        })
    }

    fn make(&self) -> Result<PathBuf, String> {
        let outer = target_folder()?;
        let target = outer.join("parity");
        let mut cargo = scrubbed_cargo();
        cargo.args(["build", "--locked", "--profile", "parity", "--no-default-features"]);
        for (package, binary) in BINARIES {
            cargo.args(["--package", package, "--bin", binary]);
            for feature in &self.row.features {
                cargo.args(["--features", &format!("{package}/{feature}")]);
            }
        }
        cargo.env("CARGO_TARGET_DIR", &target);
        let made = cargo.output().map_err(|error| format!("cargo could not be started: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
        let kept = outer.join("parity-bin").join(&self.name);
        std::fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        for (_, binary) in BINARIES {
            keep(&target.join("parity").join(binary), &kept, binary)?;
        }
        Ok(kept)
    }
}

/// Cargo in the workspace, with nothing of the build that runs.
pub(crate) fn scrubbed_cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    for (name, _) in std::env::vars_os() {
        if is_of_outer_build(&name.to_string_lossy()) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Copies a binary by rename, because one of the same name may be running.
fn keep(made: &Path, kept: &Path, binary: &str) -> Result<(), String> {
    let fresh = kept.join(format!("{binary}.{}", std::process::id()));
    let copied = std::fs::copy(made, &fresh).and_then(|_| std::fs::rename(&fresh, kept.join(binary)));
    copied.map_err(|error| format!("{} could not be kept: {error}", made.display()))
}

/// The target folder of the build that runs: this program is in its `<profile>/deps`.
fn target_folder() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let deps = program.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "deps"));
    let target = deps.and_then(Path::parent).and_then(Path::parent);
    target.map(Path::to_path_buf).ok_or_else(|| format!("{} stands in no target folder", program.display()))
}

/// Whether a variable shapes the outer build. The settings of registries are kept.
fn is_of_outer_build(name: &str) -> bool {
    const KEPT: [&str; 6] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_", "CARGO_SOURCE_"];
    const SCRUBBED: [&str; 6] = ["CARGO", "__CARGO", "RUSTFLAGS", "RUSTDOCFLAGS", "RUSTC", "RUST_MIN_STACK"];
    SCRUBBED.iter().any(|prefix| name.starts_with(prefix)) && !KEPT.iter().any(|kept| name.starts_with(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shapes_the_outer_build_is_scrubbed_and_the_registry_is_kept() {
        for scrubbed in ["CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WRAPPER", "CARGO_PKG_NAME"]
        {
            assert!(is_of_outer_build(scrubbed), "{scrubbed}");
        }
        for kept in ["PATH", "HOME", "CARGO_HOME", "CARGO_REGISTRIES_X_INDEX", "RUSTUP_TOOLCHAIN"] {
            assert!(!is_of_outer_build(kept), "{kept}");
        }
    }

    #[test]
    fn every_build_says_all_its_capabilities() {
        for build in all().unwrap() {
            // A database is a place, and no capability.
            let features: Vec<_> = build.row.features.iter().filter(|feature| *feature != "postgres").collect();
            for feature in &features {
                assert_eq!(build.row.capabilities[&feature.replace('-', "_")], true, "{}: {feature}", build.name);
            }
            let present = build.row.capabilities.values().filter(|value| **value == true).count();
            assert_eq!((build.row.capabilities.len(), present), (3, features.len()), "{}", build.name);
        }
    }
}
