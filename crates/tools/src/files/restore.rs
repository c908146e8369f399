//! Files of a workspace as they are now, compared with what an agent left, and put back.
//!
//! They are found, read and replaced in the way of `edit` and `write`: beneath the folder, through no link, never git's
//! own.

use std::path::Path;

use meerkat_service::{SessionError, tool::ToolError};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    change::{Changes, Target},
    path::{Workspace, io_failed},
};

/// Identity of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// Files of a workspace.
pub struct WorkspaceFiles {
    workspace: Workspace,
    changes: Changes,
}

impl WorkspaceFiles {
    /// Opens a workspace.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if the folder cannot be opened, or has become a link.
    pub fn open(root: &Path) -> Result<Self, SessionError> {
        let workspace = Workspace::at(root.to_owned()).map_err(invalid)?;
        Ok(Self { workspace, changes: Changes::new() })
    }

    /// Returns what a file has now; `None` if there is none.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if the path leads out of the workspace or through a link, is no plain file, is read-only, or
    /// cannot be read.
    pub fn content(&self, path: &str) -> Result<Option<Content>, SessionError> {
        let target = self.changes.target(&self.workspace, path).map_err(invalid)?;
        Ok(content(&target))
    }

    /// Replaces a file that has the content `now`, or deletes it for `None`. Its mode and owner stay.
    ///
    /// # Errors
    /// Those of [`Self::content`], and if the file has another content or cannot be written: it then stays as it is.
    pub fn put_back(&self, path: &str, now: Option<&Content>, then: Option<&[u8]>) -> Result<(), SessionError> {
        let target = self.changes.target(&self.workspace, path).map_err(invalid)?;
        if content(&target).as_ref() != now {
            let why = format!("{} was changed by another program just now", target.path);
            return Err(SessionError::invalid("workspace", why));
        }
        let folder = match then {
            Some(then) => self
                .changes
                .replace(&self.workspace, &target, then, &CancellationToken::new())
                .map(|(_, folder)| folder),
            None => Changes::remove(&self.workspace, &target),
        };
        let synced = rustix::fs::fsync(folder.map_err(invalid)?);
        synced.map_err(|errno| invalid(io_failed(format_args!("the folder of {path}"), errno)))
    }
}

fn content(target: &Target) -> Option<Content> {
    let bytes = &target.found.as_ref()?.bytes;
    let sha256 = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(Content { sha256, bytes: bytes.len() as u64 })
}

fn invalid(error: ToolError) -> SessionError {
    SessionError::invalid("workspace", error.to_string())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, sync::Arc};

    use async_trait::async_trait;
    use meerkat_service::{
        SessionId,
        redact::Secrets,
        session::message::RawJson,
        store::{BlobStore, BlobWriter, StoreError},
        tool::{Invocation, OutputLimits, OutputSink},
    };
    use tokio::sync::mpsc;

    use super::*;
    use crate::files::{FileAccess, file_tools};

    /// Store without room.
    struct Full;

    #[async_trait]
    impl BlobStore for Full {
        async fn list(&self, _: SessionId) -> Result<BTreeSet<String>, StoreError> {
            Ok(BTreeSet::new())
        }

        async fn remove(&self, _: SessionId, _: &BTreeSet<String>) -> Result<(), StoreError> {
            Ok(())
        }

        fn writer(&self, _: SessionId) -> Box<dyn BlobWriter> {
            Box::new(Self)
        }

        async fn read(&self, _: SessionId, _: &str, _: u64, _: usize) -> Result<Option<bytes::Bytes>, StoreError> {
            Ok(None)
        }

        async fn forget(&self, _: SessionId) {}
    }

    #[async_trait]
    impl BlobWriter for Full {
        async fn write(&mut self, _: &[u8]) -> Result<(), StoreError> {
            Ok(())
        }

        async fn finish(self: Box<Self>) -> Result<(String, u64), StoreError> {
            Err(StoreError::Full)
        }
    }

    #[tokio::test]
    async fn a_file_whose_copy_cannot_be_stored_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::write(root.join("file"), "one\n").unwrap();
        let invocation = Invocation {
            session_id: "01900000-0000-7000-8000-000000000001".parse().unwrap(),
            turn: 0,
            call_id: "c".to_owned(),
            arguments: RawJson::parse(r#"{"path":"file","old":"one","new":"two"}"#).unwrap(),
            workspace: Some(root.clone()),
            is_approved: false,
            search_path: None,
            cancel: CancellationToken::new(),
        };
        let progress = mpsc::channel(1).0;
        let secrets = Secrets::default().stream();
        let sink = OutputSink::new(OutputLimits::default(), Arc::new(Full), invocation.session_id, secrets, progress);
        let tools = file_tools(FileAccess::Write).unwrap();
        let edit = tools.iter().find(|tool| tool.spec().name == "edit").unwrap();
        let result = edit.call(invocation, &sink).await;
        assert!(matches!(&result, Err(ToolError::Refused(why)) if why.contains("stays as it is")), "{result:?}");
        assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "one\n");
    }

    #[test]
    fn a_file_is_put_back_only_if_it_is_as_expected_and_never_outside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("workspace");
        fs::create_dir_all(root.join(".git")).unwrap();
        fs::write(root.join("file"), "one\n").unwrap();
        fs::write(root.join(".git/config"), "x").unwrap();
        fs::write(root.join("../outside"), "x").unwrap();
        let files = WorkspaceFiles::open(&root).unwrap();
        let one = files.content("file").unwrap();
        assert_eq!(one.as_ref().map(|content| content.bytes), Some(4));
        fs::write(root.join("file"), "two\n").unwrap();
        for (now, then) in [(&one, Some(&b"old\n"[..])), (&one, None), (&None, Some(b"old\n"))] {
            let refused = files.put_back("file", now.as_ref(), then).unwrap_err();
            assert!(refused.to_string().contains("changed by another program"), "{refused}");
        }
        assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "two\n");
        for path in ["../outside", ".git/config", "", "."] {
            assert!(files.content(path).is_err() && files.put_back(path, None, None).is_err(), "{path}");
        }
        let now = files.content("file").unwrap();
        files.put_back("file", now.as_ref(), Some(b"old\n")).unwrap();
        assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "old\n");
        let now = files.content("file").unwrap();
        files.put_back("file", now.as_ref(), None).unwrap();
        assert!(!root.join("file").exists() && root.join(".git/config").exists());
        assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "no temporary file is left");
    }
}
