//! The greeting on an owner's socket, before JSON-RPC.

use std::io;

use meerkat_service::{Capabilities, ErrorBody, ErrorCode};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// Bytes of the first message, either way.
pub const HELLO_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes of a request.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A value that a flag or a variable of an attached command has set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setting {
    /// The key, such as `turn.tool_timeout_ms`.
    pub key: String,
    /// The value.
    pub value: serde_json::Value,
    /// The flag or variable that set it.
    pub origin: String,
}

/// The method of the first message.
pub const HELLO: &str = "owner/hello";

/// The last message of an owner that ends in order: what it has not answered, it has not begun.
pub const BYE: &str = r#"{"jsonrpc":"2.0","method":"owner/bye"}"#;

/// A process that greets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speaker {
    version: String,
    build: String,
    pid: u32,
}

impl Speaker {
    /// This process.
    #[must_use]
    pub fn own() -> Self {
        let view = Capabilities::compiled().view();
        Self { version: view.version, build: view.build, pid: std::process::id() }
    }

    /// The refusal if the two may not understand each other.
    #[must_use]
    pub fn refuse(owner: &Self, attached: &Self) -> Option<ErrorBody> {
        let of = |speaker: &Self| (speaker.version.clone(), speaker.build.clone());
        (of(owner) != of(attached)).then(|| {
            let message = format!(
                "Process {} owns the data directory and is meerkat {} (build {}), this is meerkat {} (build {}); end it, \
                 or use the same one.",
                owner.pid, owner.version, owner.build, attached.version, attached.build
            );
            ErrorBody::with_message(ErrorCode::StoreLocked, message)
                .detail("pid", owner.pid)
                .detail("version", owner.version.clone())
                .detail("build", owner.build.clone())
        })
    }
}

/// The greeting of a command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The command.
    pub speaker: Speaker,
    /// Its flags and variables for values that the owner decides.
    pub settings: Vec<Setting>,
    /// Its `PATH`.
    #[serde(default)]
    pub search_path: Option<String>,
}

/// Bytes of an attached command's `PATH`. Folders behind them are left out.
const SEARCH_PATH_BYTES_MAX: usize = 16 * 1024;

impl Hello {
    /// Returns the absolute folders of its `PATH`; `None` if there are none.
    #[must_use]
    pub fn search_path(&self) -> Option<String> {
        let is_folder = |folder: &&str| folder.starts_with('/') && !folder.contains(char::is_control);
        let mut folders = String::new();
        for folder in self.search_path.iter().flat_map(|path| path.split(':')).filter(is_folder) {
            if folders.len() + 1 + folder.len() > SEARCH_PATH_BYTES_MAX {
                break;
            }
            if !folders.is_empty() {
                folders.push(':');
            }
            folders.push_str(folder);
        }
        Some(folders).filter(|folders| !folders.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_folders_of_a_bounded_path_count() {
        let check = |path: &str, expected: Option<&str>| {
            let hello = Hello { speaker: Speaker::own(), settings: Vec::new(), search_path: Some(path.to_owned()) };
            assert_eq!(hello.search_path().as_deref(), expected, "{path:?}");
        };
        check("/venv/bin:/usr/bin", Some("/venv/bin:/usr/bin"));
        check(":./bin:/a b:node_modules/.bin::~/bin:/c", Some("/a b:/c"));
        check("/a\u{1b}[2J:/b\n", None);
        check("", None);
        let long = format!("/{}", "a".repeat(SEARCH_PATH_BYTES_MAX - 4));
        check(&format!("{long}:/b:/c"), Some(&format!("{long}:/b")));
    }
}

/// Whether new work is taken, and if not, why.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Readiness {
    /// New work is taken at once.
    pub is_ready: bool,
    /// The reason if it is not.
    pub trouble: Option<ErrorBody>,
}

/// The owner's answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The owner.
    pub speaker: Speaker,
    /// The reason why it does not serve this command.
    pub refusal: Option<ErrorBody>,
    /// State of the owner's service at this moment. Other versions may not send it.
    #[serde(default)]
    pub readiness: Readiness,
}

/// The first message.
#[derive(Debug, Deserialize)]
pub struct First {
    /// [`HELLO`]; anything else is no greeting.
    pub method: String,
    /// The greeting.
    pub params: Hello,
}

/// Reads a line without its end; `None` at the end of the input.
///
/// # Errors
/// If reading fails, or the line is longer than `limit`.
pub async fn read_line(reader: &mut (impl AsyncBufRead + Unpin), limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(limit + 1).read_until(b'\n', &mut line).await?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() as u64 >= limit => Err(io::Error::other(format!("a line has more than {limit} bytes"))),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
