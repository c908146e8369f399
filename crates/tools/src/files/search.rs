//! Search of files for a pattern: the first matches by path, and a count of all.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{self, Read},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use globset::GlobSet;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use meerkat_service::tool::ToolError;
use tokio_util::sync::CancellationToken;

use super::{
    marks,
    path::{Inside, Workspace, open_plain},
    walk::{self, Visit},
};

/// Bytes of a line that are shown.
const LINE_BYTES_MAX: usize = 300;
/// Of them, before the match.
const BEFORE_BYTES: usize = 100;
/// Bytes of the longest line that can be searched.
const HEAP_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of a compiled pattern, and of its tables while it searches.
const PATTERN_BYTES_MAX: usize = 8 * 1024 * 1024;
const TABLE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Compiles a pattern.
pub(super) fn pattern(pattern: &str) -> Result<RegexMatcher, ToolError> {
    RegexMatcherBuilder::new()
        .line_terminator(Some(b'\n'))
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(TABLE_BYTES_MAX)
        .build(pattern)
        .map_err(|error| ToolError::Arguments(format!("`pattern` cannot be searched for: {error}")))
}

/// Files that have the pattern.
#[derive(Default)]
pub(super) struct Matches {
    /// The first files by path, until they have as many lines as are wanted.
    pub(super) files: BTreeMap<PathBuf, Lines>,
    /// Lines that are kept, of all files.
    kept: usize,
    /// Matching lines of all files, kept or not.
    pub(super) lines: u64,
    /// Files that match.
    pub(super) matching: u64,
    /// Files that were searched.
    pub(super) searched: u64,
    /// Files and folders that cannot be read.
    pub(super) unreadable: u64,
}

/// Lines of a file, by number.
pub(super) type Lines = Vec<(u64, String)>;

impl Matches {
    fn add(&mut self, path: PathBuf, lines: Lines, count: u64, most: usize) {
        self.lines += count;
        self.matching += 1;
        self.kept += lines.len();
        self.files.insert(path, lines);
        while let Some(last) = self.files.last_entry()
            && self.kept - last.get().len() >= most
        {
            self.kept -= last.remove().len();
        }
    }
}

/// Searches the files of a folder, or one file. At least the first `most` matching lines by path are kept.
pub(super) fn search(
    workspace: &Workspace,
    start: &Inside,
    matcher: &RegexMatcher,
    glob: Option<&GlobSet>,
    most: usize,
    cancel: &CancellationToken,
) -> Result<Matches, ToolError> {
    let found = Mutex::new(Matches::default());
    let visitor = || Visitor {
        matcher: matcher.clone(),
        glob,
        searcher: SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .heap_limit(Some(HEAP_BYTES_MAX))
            .build(),
        most,
        cancel,
        found: &found,
        searched: 0,
        unreadable: 0,
    };
    let visitors = walk::walk(workspace, start, cancel, visitor)?;
    let counts = visitors.iter().map(|visitor| (visitor.searched, visitor.unreadable));
    let (searched, unreadable) = counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    drop(visitors);
    if cancel.is_cancelled() {
        return Err(ToolError::Cancelled);
    }
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Matches { searched, unreadable, ..found })
}

struct Visitor<'a> {
    matcher: RegexMatcher,
    glob: Option<&'a GlobSet>,
    searcher: Searcher,
    most: usize,
    cancel: &'a CancellationToken,
    found: &'a Mutex<Matches>,
    searched: u64,
    unreadable: u64,
}

impl Visit for Visitor<'_> {
    fn file(&mut self, folder: &OwnedFd, name: &OsStr, path: &Inside) {
        if self.glob.is_some_and(|glob| !glob.is_match(path.as_path())) {
            return;
        }
        let Ok(file) = open_plain(folder, path, name) else {
            self.unreadable += 1;
            return;
        };
        let mut lines =
            FileLines { matcher: &self.matcher, most: self.most, lines: Vec::new(), count: 0, binary: false };
        let file = Cancellable { file, cancel: self.cancel };
        match self.searcher.search_reader(&self.matcher, file, &mut lines) {
            Ok(()) => self.searched += 1,
            Err(_) => self.unreadable += 1,
        }
        if lines.count > 0 && !lines.binary {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.add(path.as_path().to_owned(), lines.lines, lines.count, self.most);
        }
    }

    fn unreadable(&mut self) {
        self.unreadable += 1;
    }
}

/// File whose reading ends when the call is to stop.
struct Cancellable<'a, R> {
    file: R,
    cancel: &'a CancellationToken,
}

impl<R: Read> Read for Cancellable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("stopped on request"));
        }
        self.file.read(buffer)
    }
}

/// Matching lines of one file.
struct FileLines<'a> {
    matcher: &'a RegexMatcher,
    most: usize,
    lines: Lines,
    count: u64,
    binary: bool,
}

impl Sink for FileLines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.count += 1;
        if self.lines.len() < self.most {
            self.lines.push((found.line_number().unwrap_or_default(), self.shown(found.bytes())));
        }
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> Result<bool, io::Error> {
        self.binary = true;
        Ok(false)
    }
}

impl FileLines<'_> {
    /// Shows a line, of a long one the part around the match.
    fn shown(&self, line: &[u8]) -> String {
        use grep_matcher::Matcher as _;

        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() <= LINE_BYTES_MAX {
            return String::from_utf8_lossy(line).into_owned();
        }
        let at = self.matcher.find(line).ok().flatten().map_or(0, |found| found.start());
        let start = at.saturating_sub(BEFORE_BYTES).min(line.len() - LINE_BYTES_MAX);
        let start = (start..=at).find(|at| is_boundary(line, *at)).unwrap_or(at);
        let end = start + LINE_BYTES_MAX.min(line.len() - start);
        let end = (start..=end).rev().find(|at| is_boundary(line, *at)).unwrap_or(end);
        let mark = |bytes: usize| if bytes == 0 { String::new() } else { marks::clipped(bytes as u64) };
        let part = String::from_utf8_lossy(&line[start..end]);
        format!("{}{part}{}", mark(start), mark(line.len() - end))
    }
}

fn is_boundary(line: &[u8], at: usize) -> bool {
    line.get(at).is_none_or(|byte| byte & 0b1100_0000 != 0b1000_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_stops_on_request_within_a_file() {
        /// Cancels after a million bytes; it never ends.
        struct Endless(CancellationToken, usize);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.1 += buffer.len();
                if self.1 > 1_000_000 {
                    self.0.cancel();
                }
                buffer.fill(b'\n');
                Ok(buffer.len())
            }
        }
        let (cancel, matcher) = (CancellationToken::new(), pattern("x").unwrap());
        let file = Cancellable { file: Endless(cancel.clone(), 0), cancel: &cancel };
        let mut lines = FileLines { matcher: &matcher, most: 1, lines: Vec::new(), count: 0, binary: false };
        assert!(SearcherBuilder::new().build().search_reader(&matcher, file, &mut lines).is_err());
    }

    #[test]
    fn a_long_line_is_shown_around_its_match() {
        let matcher = pattern("needle").unwrap();
        let lines = FileLines { matcher: &matcher, most: 1, lines: Vec::new(), count: 0, binary: false };
        let line = "é".repeat(1000) + "needle" + &"ö".repeat(1000) + "\r\n";
        let want = format!(
            "[... 1900 bytes left out ...]{}needle{}[... 1806 bytes left out ...]",
            "é".repeat(50),
            "ö".repeat(97)
        );
        assert_eq!(lines.shown(line.as_bytes()), want);
        assert_eq!(lines.shown(b"a needle\r\n"), "a needle");
        let end = "x".repeat(1000) + "needle";
        assert_eq!(lines.shown(end.as_bytes()), format!("[... 706 bytes left out ...]{}needle", "x".repeat(294)));
    }

    #[test]
    fn the_first_matches_by_path_are_kept_in_whatever_order_they_come() {
        let names: Vec<String> = (0..50).map(|n| format!("{n:02}")).collect();
        for step in [1, 7, 49] {
            let mut found = Matches::default();
            for n in 0..50 {
                let lines = vec![(1, String::new()), (2, String::new())];
                found.add(PathBuf::from(&names[n * step % 50]), lines, 3, 5);
            }
            let kept: Vec<_> = found.files.keys().map(|path| path.to_str().unwrap()).collect();
            assert_eq!((kept, found.lines, found.matching), (vec!["00", "01", "02"], 150, 50));
        }
    }
}
