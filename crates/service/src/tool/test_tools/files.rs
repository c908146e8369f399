//! Files of test tools: plain files directly in one folder.
//!
//! A name never leads out of the folder, and no symbolic link is followed, neither of the folder nor of a file in it.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use crate::tool::ToolError;

/// Longest name of a file.
const NAME_BYTES_MAX: usize = 100;

/// Sets the file's content.
pub(super) fn set(dir: &Path, name: &str, value: &str) -> Result<(), ToolError> {
    let mut file = open(dir, name)?;
    file.set_len(0).and_then(|()| file.write_all(value.as_bytes())).map_err(failed)
}

/// Appends one line to the file.
pub(super) fn append(dir: &Path, name: &str, line: &str) -> Result<(), ToolError> {
    if line.contains('\n') {
        return Err(ToolError::Arguments("`line` has more than one line".to_owned()));
    }
    open(dir, name)?.write_all(format!("{line}\n").as_bytes()).map_err(failed)
}

/// Opens a file for appending, and creates it if it is missing.
fn open(dir: &Path, name: &str) -> Result<File, ToolError> {
    check_name(name)?;
    check_dir(dir).map_err(failed)?;
    open_regular(&dir.join(name)).map_err(failed)
}

fn check_name(name: &str) -> Result<(), ToolError> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_safe) {
        let rule = format!("`name` is 1 to {NAME_BYTES_MAX} letters, digits, `_` and `-`");
        return Err(ToolError::Arguments(rule));
    }
    Ok(())
}

/// Creates the folder if it is missing; it must not be a link.
fn check_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if fs::symlink_metadata(dir)?.is_dir() { Ok(()) } else { Err(refused("the tools' folder is not a folder")) }
}

fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600);
    let found = match fs::symlink_metadata(path) {
        // Creating a file never follows a link, not even one that was made just now.
        Err(error) if error.kind() == ErrorKind::NotFound => return options.create_new(true).open(path),
        found => found?,
    };
    let refusal = || refused("this name is not that of a plain file");
    if !found.is_file() {
        return Err(refusal());
    }
    let file = options.open(path)?;
    // A link could have replaced the file before it was opened; nothing was written yet.
    let id = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    if id(&file.metadata()?) == id(&found) { Ok(file) } else { Err(refusal()) }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

fn failed(error: io::Error) -> ToolError {
    ToolError::Failed(format!("the file could not be written: {error}"))
}
