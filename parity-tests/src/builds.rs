//! The builds of the matrix: each is really made with its own features, and its binaries are kept apart.
//!
//! F and FP are the default build, which cargo makes with the trials. The others are nested builds. A nested build has a
//! target folder of its own and nothing of the outer one's environment, or it would overwrite the binaries of the build
//! that runs it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use meerkat_service::Capability;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The builds that are the default build of both programs. With a database it is FP, and without one F.
const DEFAULT: [&str; 2] = ["F", "FP"];

/// The packages whose binaries are driven, with the binary of each.
const BINARIES: [(&str, &str); 2] = [("meerkat-surface-cli", "meerkat"), ("meerkat-sdk-driver", "sdk-driver")];

/// The builds with nothing and with everything: in these run the trials that cannot be scenarios, and in the whole plan
/// further transports and mixed surfaces.
pub const THOROUGH: [&str; 2] = ["A", "F"];

/// A row of `config/builds.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The features that it is made with.
    pub features: Vec<String>,
    /// The answer of `capabilities`, without version and name.
    pub capabilities: Map<String, Value>,
    /// Whether its programs are made and driven. The scenarios of one that is not are played over the SDK of the default
    /// build, by a program that does not set what the row lacks. Compaction is nothing that a program sets.
    #[serde(default = "driven")]
    pub driven: bool,
}

const fn driven() -> bool {
    true
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
    let compacts = |row: &Row| row.features.iter().any(|name| name == feature(Capability::SessionCompaction));
    if let Some((name, _)) = rows.iter().find(|(_, row)| !row.driven && !compacts(row)) {
        return Err(format!("config/builds.toml: {name} is not driven, so it must have session-compaction"));
    }
    Ok(rows
        .into_iter()
        .map(|(name, row)| Build { name, row, made: OnceLock::new(), is_told: AtomicBool::new(false) })
        .collect())
}

/// Every build, of which F and FP have these programs: the default build of `meerkat` and of the SDK's driver.
pub fn all_with(default: [&str; BINARIES.len()]) -> Result<Vec<Build>, String> {
    let (builds, kept) = (all()?, folder_of(DEFAULT[0])?);
    for (made, (_, binary)) in default.iter().zip(BINARIES) {
        keep(Path::new(made), &kept, binary)?;
    }
    for build in builds.iter().filter(|build| build.is_default()) {
        // Nothing has made it before.
        drop(build.made.set(Ok(kept.clone())));
    }
    Ok(builds)
}

/// The feature of a capability.
pub const fn feature(capability: Capability) -> &'static str {
    match capability {
        Capability::SessionStore => "session-store",
        Capability::MemoryStore => "memory-store",
        Capability::SessionCompaction => "session-compaction",
    }
}

/// The program `meerkat` of a nested build. It is made first.
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
    /// Whether the trials that cannot be scenarios run in it.
    pub fn is_thorough(&self) -> bool {
        THOROUGH.contains(&self.name.as_str())
    }

    /// Whether its programs are those of the default build.
    fn is_default(&self) -> bool {
        !self.row.driven || DEFAULT.contains(&self.name.as_str())
    }

    /// The name that the program itself says: that of the build with these capabilities alone.
    pub fn said_name(&self) -> &str {
        if self.is_default() { DEFAULT[0] } else { &self.name }
    }

    /// What the program that plays its scenarios does not set: of a build that is not driven, what it lacks.
    pub fn unset(&self) -> Vec<&str> {
        let lacks = self.row.capabilities.iter().filter(|(_, has)| !self.row.driven && **has == false);
        lacks.map(|(name, _)| name.as_str()).collect()
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
        if self.is_default() {
            return Err("it is no nested build: give its programs to builds::all_with".to_owned());
        }
        let outer = target_folder()?;
        let target = outer.join("parity");
        let mut cargo = scrubbed_cargo();
        cargo.args(["build", "--locked", "--no-default-features"]);
        for (package, binary) in BINARIES {
            cargo.args(["--package", package, "--bin", binary]);
            for feature in &self.row.features {
                cargo.args(["--features", &format!("{package}/{feature}")]);
            }
        }
        // What it compiles lies beside what the outer build has compiled, so that crates of others are not compiled again.
        cargo.env("CARGO_BUILD_BUILD_DIR", &outer).env("CARGO_TARGET_DIR", &target);
        cargo.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
        let made = cargo.output().map_err(|error| format!("cargo could not be started: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
        let kept = folder_of(&self.name)?;
        for (_, binary) in BINARIES {
            keep(&target.join("debug").join(binary), &kept, binary)?;
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

/// The folder in which a build's binaries are kept.
fn folder_of(build: &str) -> Result<PathBuf, String> {
    let kept = target_folder()?.join("parity-bin").join(build);
    std::fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    Ok(kept)
}

/// Copies a binary by rename, because one of the same name may be running. Another process copies it: what this one had open
/// would be open in each that it starts meanwhile, and what is open for writing cannot be run.
fn keep(made: &Path, kept: &Path, binary: &str) -> Result<(), String> {
    let fresh = kept.join(format!("{binary}.{}", std::process::id()));
    let copied = Command::new("cp").args([made, &fresh]).output().and_then(|copied| match copied.status.success() {
        true => std::fs::rename(&fresh, kept.join(binary)),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&copied.stderr).into_owned())),
    });
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
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::tidy::{files, packages};

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

    fn manifest(path: &str) -> Value {
        let text = std::fs::read_to_string(workspace().join(path)).unwrap();
        toml_edit::de::from_str(&text).unwrap()
    }

    fn names(list: &Value) -> BTreeSet<&str> {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    #[test]
    fn the_default_build_has_the_features_of_fp() {
        let builds = all().unwrap();
        let of = |name: &str| builds.iter().find(|build| build.name == name).unwrap().row.features.clone();
        let more = BTreeSet::from(["postgres".to_owned(), "openai".to_owned()]);
        let (with, without) = (BTreeSet::from_iter(of("FP")), BTreeSet::from_iter(of("F")));
        assert_eq!(with, &without | &more, "FP is F with a database and OpenAI's protocols");
        // The SDK has no surface.
        let of_sdk = &with - &BTreeSet::from(["openai".to_owned()]);
        for (package, with) in [("crates/surface-cli", &with), ("parity-tests/sdk-driver", &of_sdk)] {
            let manifest = manifest(&format!("{package}/Cargo.toml"));
            // Those of other packages pass the same features on. The protocol of editors is in no other build.
            let own = names(&manifest["features"]["default"]).into_iter();
            let own = own.filter(|feature| !feature.contains('/') && *feature != "acp");
            assert_eq!(&own.map(str::to_owned).collect::<BTreeSet<_>>(), with, "{package}");
        }
        let (ours, workspace) = (manifest("parity-tests/Cargo.toml"), manifest("Cargo.toml"));
        for package in ["meerkat-surface-cli", "meerkat-sdk-driver"] {
            assert_eq!(ours["dependencies"][package], json!({ "workspace": true }), "{package}");
            let keys = workspace["workspace"]["dependencies"][package].as_object().unwrap();
            assert_eq!(keys.keys().collect::<Vec<_>>(), ["path"], "{package}");
        }
    }

    /// Cargo makes the default build together with the tests, and gives a package all features that any of them asks for.
    #[test]
    fn tests_add_one_feature_to_our_packages_and_it_adds_one_module() {
        let packages = packages().unwrap();
        let ours = packages.iter().filter(|package| package["source"].is_null());
        let builds = all().unwrap();
        let features = &builds.iter().find(|build| build.name == "FP").unwrap().row.features;
        let mut added = BTreeSet::new();
        for dependency in ours.flat_map(|package| package["dependencies"].as_array().unwrap()) {
            let name = dependency["name"].as_str().unwrap();
            let asked = names(&dependency["features"]).into_iter().filter(|_| name.starts_with("meerkat-"));
            let more = asked.filter(|asked| *asked != "default" && !features.iter().any(|feature| feature == asked));
            added.extend(more.map(|feature| format!("{name}/{feature}")));
        }
        assert_eq!(added, BTreeSet::from(["meerkat-journal/sim".to_owned()]));
        let mut met = Vec::new();
        for file in files().unwrap().iter().filter(|file| file.path.starts_with("crates/service/journal/src/")) {
            let lines: Vec<&str> = file.text.lines().collect();
            met.extend(
                lines.windows(2).filter(|pair| pair[0].contains(r#"feature = "sim""#)).map(|pair| pair[1].to_owned()),
            );
        }
        assert_eq!(met, ["pub mod simulated;"], "the journal does the same with its feature sim");
    }

    #[test]
    fn every_build_says_all_its_capabilities() {
        for build in all().unwrap() {
            // A database is a place, and OpenAI's protocols are a surface: no capabilities.
            let is_capability = |feature: &&String| !matches!(feature.as_str(), "postgres" | "openai");
            let features: Vec<_> = build.row.features.iter().filter(is_capability).collect();
            for feature in &features {
                assert_eq!(build.row.capabilities[&feature.replace('-', "_")], true, "{}: {feature}", build.name);
            }
            let present = build.row.capabilities.values().filter(|value| **value == true).count();
            assert_eq!((build.row.capabilities.len(), present), (3, features.len()), "{}", build.name);
        }
    }
}
