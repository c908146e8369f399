//! `read`: a page of a file with line numbers, or the names in a folder.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    sync::Arc,
};

use meerkat_service::{
    SessionError,
    tool::{IMAGE_BYTES_MAX, Picture, Tool, ToolError},
};
use rustix::fs::{Dir, FileType};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{
    change::Changes,
    common::{ANSWER_BYTES_MAX, Shown, look},
    marks,
    path::{Inside, Opened, Workspace, io_failed, shown},
    seen::Stamp,
};

/// Bytes by which an image is known.
const MAGIC_BYTES: usize = 12;
/// Bytes of a line that are shown.
const LINE_BYTES_MAX: usize = 2000;
/// Bytes of a line that are passed over to find its end.
const LINE_BYTES_PASSED_MAX: u64 = 1024 * 1024;
/// Bytes at the beginning of a file that tell text from binary.
const SNIFFED_BYTES: usize = 8 * 1024;
/// Bytes that are read at a time.
const READ_BYTES: usize = 64 * 1024;
/// Names of a folder that are shown.
const NAMES_MAX: usize = 500;
/// Lines of a page.
const LINES_MAX: usize = 2000;
/// Bytes that are kept of an answer for its last line.
const NOTE_BYTES: usize = 300;

const DESCRIPTION: &str = "Reads a text file of the workspace. Each line is shown as its number, a tab and its text. A \
                           long file is shown in pages: offset is the first line wanted. For a folder its names are \
                           listed. A PNG, JPEG, GIF or WebP image is shown as one.";

const SCHEMA: &str = r#"{"type":"object","properties":{
"path":{"type":"string","minLength":1,"maxLength":4096,"description":"File or folder, relative to the workspace."},
"offset":{"type":"integer","minimum":1,"description":"First line to read. Default: 1."},
"limit":{"type":"integer","minimum":1,"description":"Lines at most."}
},"required":["path"],"additionalProperties":false}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    path: String,
    offset: Option<u64>,
    limit: Option<usize>,
}

/// Makes `read`.
pub(super) fn tool(changes: Arc<Changes>) -> Result<Arc<dyn Tool>, SessionError> {
    look("read", DESCRIPTION, SCHEMA, move |invocation| {
        let Arguments { path, offset, limit } = ToolError::decode(&invocation.arguments)?;
        let (offset, limit) = (offset.unwrap_or(1), limit.unwrap_or(LINES_MAX));
        if offset == 0 || limit == 0 {
            return Err(ToolError::Arguments("`offset` and `limit` count from 1".to_owned()));
        }
        let page = Page { offset, lines_max: limit.min(LINES_MAX), bytes_max: ANSWER_BYTES_MAX - NOTE_BYTES };
        let workspace = Workspace::open(invocation)?;
        let path = workspace.inside(&path)?;
        match workspace.open_to_read(&path)? {
            Opened::Folder(folder) => listing(&path, &folder, page.bytes_max).map(Shown::Text),
            Opened::File(file) => {
                // Taken first: a change while it is read counts as one after it.
                let metadata = file.metadata().map_err(|error| io_failed(&path, error))?;
                if let Some(image) = image(&path, &file)? {
                    return Ok(Shown::Image(image));
                }
                let text = page.of(&path, file, metadata.len(), &invocation.cancel)?;
                changes.record(&workspace, invocation.session_id, &path, Stamp::of(&metadata));
                Ok(Shown::Text(text))
            }
        }
    })
}

/// Reads a file that begins like an image; of one that is too large only enough to see that.
fn image(path: &Inside, file: &File) -> Result<Option<Vec<u8>>, ToolError> {
    let failed = |error| io_failed(path, error);
    let mut beginning = [0; MAGIC_BYTES];
    let bytes = file.read_at(&mut beginning, 0).map_err(failed)?;
    if Picture::media_type(&beginning[..bytes]).is_none() {
        return Ok(None);
    }
    let mut image = Vec::new();
    file.take(IMAGE_BYTES_MAX as u64 + 1).read_to_end(&mut image).map_err(failed)?;
    Ok(Some(image))
}

/// Returns what a text of at most [`SNIFFED_BYTES`] is, if it is no text.
pub(super) fn not_text(beginning: &[u8]) -> Option<&'static str> {
    let beginning = &beginning[..beginning.len().min(SNIFFED_BYTES)];
    let is_cut = beginning.len() == SNIFFED_BYTES;
    match std::str::from_utf8(beginning) {
        _ if beginning.contains(&0) => Some("a binary file"),
        // A character may be cut.
        Err(error) if !(is_cut && error.error_len().is_none()) => Some("not UTF-8 text"),
        Ok(_) | Err(_) => None,
    }
}

/// Refusal of a file that is no text.
pub(super) fn refuse_binary(path: &Inside, kind: &str, bytes: u64) -> ToolError {
    ToolError::Refused(format!("{path} is {kind} of {bytes} bytes; only text can be read and edited."))
}

/// Page of a file.
#[derive(Clone, Copy)]
struct Page {
    offset: u64,
    lines_max: usize,
    bytes_max: usize,
}

impl Page {
    /// Shows the page. Memory does not depend on the file, and what follows the page is not read.
    fn of(
        self,
        path: &Inside,
        file: impl io::Read,
        bytes: u64,
        cancel: &CancellationToken,
    ) -> Result<String, ToolError> {
        let failed = |error| io_failed(path, error);
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        let beginning = file.fill_buf().map_err(failed)?;
        if let Some(kind) = not_text(beginning) {
            return Err(refuse_binary(path, kind, bytes));
        }
        if beginning.is_empty() {
            return Ok(format!("[{path} is empty.]\n"));
        }
        if beginning.starts_with("\u{feff}".as_bytes()) {
            file.consume('\u{feff}'.len_utf8());
        }
        let passed = skip(&mut file, self.offset - 1, cancel).map_err(failed)?;
        if cancel.is_cancelled() {
            return Err(ToolError::Cancelled);
        }
        if file.fill_buf().map_err(failed)?.is_empty() {
            return Ok(format!("[{path} has {passed} lines; there is no line {}.]\n", self.offset));
        }
        let mut text = String::new();
        let mut number = self.offset;
        while number - self.offset < self.lines_max as u64 {
            let Some(line) = Line::read(&mut file, cancel).map_err(failed)? else { break };
            if cancel.is_cancelled() {
                return Err(ToolError::Cancelled);
            }
            let Some(shown) = line.shown() else {
                return Err(refuse_binary(path, &format!("not UTF-8 text in line {number}, a file"), bytes));
            };
            let before = text.len();
            let _ = writeln!(text, "{number}\t{shown}");
            if text.len() > self.bytes_max {
                text.truncate(before);
                let _ =
                    writeln!(text, "[More lines follow: read on with offset {number}. The file has {bytes} bytes.]");
                return Ok(text);
            }
            if !line.has_end {
                let _ = writeln!(
                    text,
                    "[Line {number} has more than {LINE_BYTES_PASSED_MAX} bytes; what follows is not shown. grep finds \
                     text in it.]"
                );
                return Ok(text);
            }
            number += 1;
        }
        if !file.fill_buf().map_err(failed)?.is_empty() {
            let _ = writeln!(text, "[More lines follow: read on with offset {number}. The file has {bytes} bytes.]");
        }
        Ok(text)
    }
}

/// Passes over lines; returns how many there were.
fn skip(file: &mut impl BufRead, lines: u64, cancel: &CancellationToken) -> io::Result<u64> {
    let (mut passed, mut in_line) = (0, false);
    while passed < lines && !cancel.is_cancelled() {
        let buffer = file.fill_buf()?;
        if buffer.is_empty() {
            return Ok(passed + u64::from(in_line));
        }
        let ends = buffer.iter().filter(|byte| **byte == b'\n').count() as u64;
        let used = if passed + ends < lines {
            in_line = buffer.last() != Some(&b'\n');
            passed += ends;
            buffer.len()
        } else {
            let last = usize::try_from(lines - passed - 1).unwrap_or(usize::MAX);
            let end = buffer.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(last);
            passed = lines;
            end.map_or(buffer.len(), |(at, _)| at + 1)
        };
        file.consume(used);
    }
    Ok(passed)
}

/// Beginning of a line.
struct Line {
    bytes: Vec<u8>,
    /// Bytes that follow on the line.
    left_out: u64,
    /// False for a line that is too long to look for its end.
    has_end: bool,
}

impl Line {
    fn read(file: &mut impl BufRead, cancel: &CancellationToken) -> io::Result<Option<Self>> {
        let mut line = Self { bytes: Vec::new(), left_out: 0, has_end: false };
        let mut is_first = true;
        while line.left_out <= LINE_BYTES_PASSED_MAX && !cancel.is_cancelled() {
            let buffer = file.fill_buf()?;
            if buffer.is_empty() {
                line.has_end = true;
                return Ok((!is_first).then_some(line));
            }
            is_first = false;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let (kept, rest) = part.split_at(part.len().min(LINE_BYTES_MAX - line.bytes.len()));
            line.bytes.extend_from_slice(kept);
            line.left_out += rest.len() as u64;
            let used = end.map_or(buffer.len(), |end| end + 1);
            file.consume(used);
            if end.is_some() {
                line.has_end = true;
                return Ok(Some(line));
            }
        }
        Ok(Some(line))
    }

    /// Returns its text, unless it is none.
    fn shown(&self) -> Option<String> {
        if self.left_out == 0 {
            let line = self.bytes.strip_suffix(b"\r").unwrap_or(&self.bytes);
            return std::str::from_utf8(line).ok().map(str::to_owned);
        }
        let whole = match std::str::from_utf8(&self.bytes) {
            Ok(_) => self.bytes.len(),
            // The last character may be cut.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => return None,
        };
        let (kept, cut) = self.bytes.split_at(whole);
        let mark = marks::clipped(self.left_out + cut.len() as u64);
        Some(std::str::from_utf8(kept).ok()?.to_owned() + &mark)
    }
}

/// Lists the names in a folder in alphabetical order.
fn listing(path: &Inside, folder: &OwnedFd, bytes_max: usize) -> Result<String, ToolError> {
    let failed = |errno| io_failed(path, errno);
    let (mut first, mut count) = (std::collections::BTreeSet::new(), 0_u64);
    for entry in Dir::read_from(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Directory => "/",
            FileType::Symlink => " (link)",
            _ => "",
        };
        count += 1;
        first.insert(format!("{}{kind}", shown(std::path::Path::new(&name))));
        if first.len() > NAMES_MAX {
            first.pop_last();
        }
    }
    let mut text = format!("[{path} is a folder with {count} names:]\n");
    let mut listed = 0;
    for name in &first {
        if text.len() + name.len() >= bytes_max {
            break;
        }
        let _ = writeln!(text, "{name}");
        listed += 1;
    }
    if listed < count {
        let _ = writeln!(text, "[The first {listed} of {count}; glob finds the others.]");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Gives the same text for ever.
    struct Endless(&'static [u8], usize);

    impl io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            for byte in buffer.iter_mut() {
                *byte = self.0[self.1 % self.0.len()];
                self.1 += 1;
            }
            Ok(buffer.len())
        }
    }

    fn page(
        offset: u64,
        lines_max: usize,
        file: impl io::Read,
        cancel: &CancellationToken,
    ) -> Result<String, ToolError> {
        let page = Page { offset, lines_max, bytes_max: 4096 };
        page.of(&Inside::root(), file, 0, cancel)
    }

    #[test]
    fn a_page_of_an_endless_file_ends() {
        let token = CancellationToken::new();
        let text = page(100_001, 2, Endless(b"a\nb\n", 0), &token).unwrap();
        assert_eq!(
            text,
            "100001\ta\n100002\tb\n[More lines follow: read on with offset 100003. The file has 0 bytes.]\n"
        );
        // A line without an end.
        let text = page(1, 2, Endless(b"a", 0), &token).unwrap();
        assert!(
            text.ends_with("[Line 1 has more than 1048576 bytes; what follows is not shown. grep finds text in it.]\n")
        );
        assert!(text.len() < 4096, "{}", text.len());
    }

    #[test]
    fn a_search_for_a_line_stops_on_request() {
        struct Cancelling(Endless, CancellationToken);
        impl io::Read for Cancelling {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if self.0.1 > 1_000_000 {
                    self.1.cancel();
                }
                self.0.read(buffer)
            }
        }
        for text in [b"a\n", b"aa"] {
            let token = CancellationToken::new();
            let file = Cancelling(Endless(text, 0), token.clone());
            let result = page(u64::MAX, 1, file, &token);
            assert!(matches!(result, Err(ToolError::Cancelled)), "{result:?}");
        }
    }

    #[test]
    fn text_is_told_from_binary_by_its_beginning() {
        assert_eq!(not_text("aé".as_bytes()), None);
        assert_eq!(not_text(b"a\0"), Some("a binary file"));
        assert_eq!(not_text(b"a\xe9b"), Some("not UTF-8 text"));
        // At the end of what is looked at a character may be cut, at the end of a file not.
        let cut = [&[b'a'; SNIFFED_BYTES - 1][..], "é".as_bytes()].concat();
        assert_eq!(not_text(&cut), None);
        assert_eq!(not_text(&cut[..SNIFFED_BYTES]), None);
        assert_eq!(not_text(b"a\xc3"), Some("not UTF-8 text"));
        let endless = Endless(b"\0", 0).take(10);
        assert!(matches!(page(1, 1, endless, &CancellationToken::new()), Err(ToolError::Refused(_))));
    }
}
