//! Rules that are allowed for always, in the user's own configuration. A project's file never gets any.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use meerkat_service::{SessionError, tool::RuleKeeper};
use toml_edit::{DocumentMut, Item, Table, value};

/// The file that is locked while another process could write what it read before.
const LOCK: &str = "meerkat.lock";

/// The user's configuration file, which may not exist yet.
#[derive(Clone)]
pub(crate) struct UserFile(pub(crate) PathBuf);

impl RuleKeeper for UserFile {
    fn remember(&self, rule: &str) -> Result<(), SessionError> {
        self.allow(rule).map_err(|error| SessionError::ConfigInvalid {
            key: "tools.approval".to_owned(),
            message: format!(
                "the rule {rule:?} holds in the session alone, because it could not be written to {}: {error}",
                self.0.display()
            ),
        })
    }
}

impl UserFile {
    /// Adds a rule to `[tools.approval]`. Everything else in the file stays as it is, comments too.
    fn allow(&self, rule: &str) -> io::Result<()> {
        self.edit(|text| with_rule(text, rule))
    }

    /// Replaces the file's text by an edited one, while no other process of ours does. An error leaves it as it is.
    pub(super) fn edit(&self, edited: impl FnOnce(&str) -> Result<String, String>) -> io::Result<()> {
        let folder = self.0.parent().unwrap_or_else(|| Path::new("/"));
        fs::create_dir_all(folder)?;
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(folder.join(LOCK))?;
        lock.lock()?;
        // A file that is a link stays one.
        let path = self.0.canonicalize().unwrap_or_else(|_| self.0.clone());
        let (text, mode) = match fs::read_to_string(&path) {
            Ok(text) => {
                let metadata = fs::metadata(&path)?;
                if metadata.uid() != rustix::process::geteuid().as_raw() {
                    return Err(io::Error::other("it belongs to another user; change it yourself"));
                }
                (text, metadata.mode() & 0o777)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (String::new(), 0o600),
            Err(error) => return Err(error),
        };
        let text = edited(&text).map_err(io::Error::other)?;
        let temporary = path.with_extension(format!("toml.{}.new", std::process::id()));
        drop(fs::remove_file(&temporary));
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    }
}

/// Parses a configuration's text.
pub(super) fn parse(text: &str) -> Result<DocumentMut, String> {
    text.parse().map_err(|error| format!("it does not parse: {error}"))
}

/// Returns a configuration's text with a rule that allows.
fn with_rule(text: &str, rule: &str) -> Result<String, String> {
    let mut document = parse(text)?;
    let tools = document.entry("tools").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let tools = tools.as_table_like_mut().ok_or("`tools` is not a table in it")?;
    let rules = tools.entry("approval").or_insert_with(|| Item::Table(Table::new()));
    rules.as_table_like_mut().ok_or("`tools.approval` is not a table in it")?.insert(rule, value("allow"));
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_rule_is_added_and_everything_else_stays() {
        for (before, after) in [
            ("", "[tools.approval]\n\"shell: cargo test *\" = \"allow\"\n"),
            (
                "# mine\n[tools]\ntimeout_ms = 5 # short\n",
                "# mine\n[tools]\ntimeout_ms = 5 # short\n\n[tools.approval]\n\"shell: cargo test *\" = \"allow\"\n",
            ),
            (
                "[tools.approval]\n# never\nwrite = \"deny\"\n",
                "[tools.approval]\n# never\nwrite = \"deny\"\n\"shell: cargo test *\" = \"allow\"\n",
            ),
            (
                "tools.approval = { edit = \"ask\" }\n",
                "tools.approval = { edit = \"ask\" , \"shell: cargo test *\" = \"allow\" }\n",
            ),
            (
                "[tools.approval]\n\"shell: cargo test *\" = \"ask\"\n",
                "[tools.approval]\n\"shell: cargo test *\" = \"allow\"\n",
            ),
        ] {
            assert_eq!(with_rule(before, "shell: cargo test *").unwrap(), after, "{before}");
        }
        for unusable in ["tools = 3", "[tools]\napproval = 3", "["] {
            with_rule(unusable, "edit").unwrap_err();
        }
    }

    #[test]
    fn the_file_keeps_its_place_and_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.toml"), folder.path().join("meerkat.toml"));
        UserFile(real.clone()).remember("edit").unwrap();
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&real, &link).unwrap();
        UserFile(link.clone()).remember("write").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        let text = fs::read_to_string(&real).unwrap();
        assert_eq!(text, "[tools.approval]\nedit = \"allow\"\nwrite = \"allow\"\n");
        fs::write(&real, "[").unwrap();
        UserFile(link).remember("edit").unwrap_err();
        assert_eq!(fs::read_to_string(&real).unwrap(), "[", "a file that does not parse is left alone");
    }
}
