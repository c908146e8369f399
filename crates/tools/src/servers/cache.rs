//! Lists of tools on disk, so that a server is not started to learn what it offers.
//!
//! A list is kept under the hash of its server's definition. A lost or damaged file costs one start.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use meerkat_service::session::message::RawJson;
use serde::{Deserialize, Serialize};

/// Bytes of a list of tools.
pub(super) const LIST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of one file: more than the longest list with all that is accepted, as what is not kept is accepted again.
const FILE_BYTES_MAX: u64 = 2 * LIST_BYTES_MAX as u64;

/// Tool as it is kept: what was read of it, but not what its server's name here and a person decide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptTool {
    pub(super) remote: String,
    pub(super) description: String,
    pub(super) schema: RawJson,
    pub(super) says_read_only: bool,
    pub(super) says_idempotent: bool,
    pub(super) hash: String,
    pub(super) fault: Option<String>,
}

/// Hash of each accepted tool by the server's name for it, also of tools that are not listed now.
pub(super) type Accepted = BTreeMap<String, String>;

/// The last list of a server, and what was accepted of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The tools as they were read, without secrets; none if another version read them, which has another name for this
    /// field.
    pub(super) cleaned: Option<Vec<KeptTool>>,
    /// What a person, or the first list, has accepted.
    pub(super) accepted: Accepted,
}

/// Folder of lists; without one nothing is kept.
#[derive(Clone, Debug)]
pub(super) struct Cache(pub(super) Option<PathBuf>);

impl Cache {
    fn path(&self, definition: &str) -> Option<PathBuf> {
        self.0.as_deref().map(|folder| folder.join(format!("{definition}.json")))
    }

    /// Reads the list of a definition, if there is one.
    pub(super) fn read(&self, definition: &str) -> Option<Kept> {
        let path = self.path(definition)?;
        let file =
            OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(&path);
        let mut text = String::new();
        file.ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text)
            .inspect_err(
                |error| tracing::warn!(target: "servers", path = %path.display(), %error, "a list is unreadable"),
            )
            .ok()
    }

    /// Keeps the list of a definition.
    pub(super) fn write(&self, definition: &str, kept: &Kept) {
        let Some(path) = self.path(definition) else { return };
        if let Err(error) = replace(&path, kept) {
            tracing::warn!(target: "servers", path = %path.display(), %error, "a list of tools could not be kept");
        }
    }
}

fn replace(path: &Path, kept: &Kept) -> std::io::Result<()> {
    let text = serde_json::to_vec(kept)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // Another process may keep the same list now.
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    fs::remove_file(&temporary).ok();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(&text)?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_read_back_and_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache(Some(folder.path().join("lists")));
        assert_eq!(cache.read("d"), None);
        let tool = json!({ "remote": "a", "description": "", "schema": {}, "says_read_only": false,
            "says_idempotent": true, "hash": "h", "fault": null });
        let kept = json!({ "cleaned": [tool], "accepted": { "a": "h" } });
        let kept: Kept = serde_json::from_str(&kept.to_string()).unwrap();
        cache.write("d", &kept);
        cache.write("d", &kept);
        assert_eq!(cache.read("d"), Some(kept));
        assert_eq!(cache.read("e"), None);
        let path = folder.path().join("lists/d.json");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path().join("lists")).unwrap().count(), 1);
        fs::write(&path, r#"{"tools":[{}],"accepted":{"a":"h"},"is_checked":true}"#).unwrap();
        let former = Kept { cleaned: None, accepted: [("a".into(), "h".into())].into() };
        assert_eq!(cache.read("d"), Some(former), "what was accepted stays so");
        fs::write(&path, "{").unwrap();
        assert_eq!(cache.read("d"), None);
        Cache(None).write("d", &Kept::default());
    }
}
