//! Options of the file tools.

/// Tools that are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// `read`, `grep` and `glob`.
    Read,
    /// Also `edit` and `write`.
    Write,
}

/// Options of the file tools.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Tools that are offered.
    pub access: FileAccess,
    /// Lines of a page that `read` shows.
    pub read_lines: usize,
    /// Bytes of an answer of `read`, `grep` or `glob`. An answer larger than `tools.inline_bytes` would go to a blob.
    pub answer_bytes: usize,
    /// Bytes of a file that `edit` or `write` may leave or find.
    pub file_bytes: u64,
    /// Matches that `grep` shows.
    pub grep_matches: usize,
    /// Files whose last reading or writing by a session is remembered, of all sessions; the oldest are forgotten.
    pub seen_files: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            access: FileAccess::Write,
            read_lines: 2000,
            answer_bytes: 30 * 1024,
            file_bytes: 16 * 1024 * 1024,
            grep_matches: 200,
            seen_files: 10_000,
        }
    }
}
