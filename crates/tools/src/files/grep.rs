//! `grep`: lines of the workspace's files that match a pattern.

use std::{fmt::Write as _, sync::Arc};

use meerkat_service::{
    SessionError,
    tool::{Tool, ToolError},
};
use serde::Deserialize;

use super::{
    common::{ANSWER_BYTES_MAX, Shown, look},
    glob::{GLOB_BYTES_MAX, matcher},
    path::{Workspace, shown},
    search::{self, Matches},
};

/// Longest pattern in bytes.
const PATTERN_BYTES_MAX: usize = 4096;
/// Matches that are shown.
const MATCHES_MAX: usize = 200;

const DESCRIPTION: &str = "Finds lines that match a regular expression (Rust syntax; (?i) ignores case) in the files \
                           of the workspace, and shows them as path:line:text. Hidden files, files that .gitignore \
                           or .ignore names, and binary files are left out; name a file or folder as path to search \
                           it nevertheless. Links are not followed.";

const SCHEMA: &str = r#"{"type":"object","properties":{
"pattern":{"type":"string","minLength":1,"maxLength":4096,"description":"Regular expression, matched line by line."},
"path":{"type":"string","description":"File or folder in the workspace. Default: the whole workspace."},
"glob":{"type":"string","minLength":1,"maxLength":1024,"description":"Only such paths: *.rs, src/**/*.{ts,tsx}."}
},"required":["pattern"],"additionalProperties":false}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
}

/// Makes `grep`.
pub(super) fn tool() -> Result<Arc<dyn Tool>, SessionError> {
    look("grep", DESCRIPTION, SCHEMA, move |invocation| {
        let Arguments { pattern, path, glob } = ToolError::decode(&invocation.arguments)?;
        for (name, text, most) in
            [("pattern", Some(&pattern), PATTERN_BYTES_MAX), ("glob", glob.as_ref(), GLOB_BYTES_MAX)]
        {
            if text.is_some_and(|text| text.is_empty() || text.len() > most) {
                return Err(ToolError::Arguments(format!("`{name}` must have 1 to {most} bytes")));
            }
        }
        let workspace = Workspace::open(invocation)?;
        let start = workspace.inside(&path.unwrap_or_default())?;
        let (pattern, glob) = (search::pattern(&pattern)?, glob.map(|glob| matcher(&glob, &workspace)).transpose()?);
        let found = search::search(&workspace, &start, &pattern, glob.as_ref(), MATCHES_MAX, &invocation.cancel)?;
        Ok(Shown::Text(answer(&found)))
    })
}

/// Writes the first matches, and a line that says how many there are.
fn answer(found: &Matches) -> String {
    let (mut text, mut count) = (String::new(), 0_usize);
    'files: for (path, lines) in &found.files {
        let path = shown(path);
        for (number, line) in lines {
            let before = text.len();
            let _ = writeln!(text, "{path}:{number}:{line}");
            if count == MATCHES_MAX || text.len() > ANSWER_BYTES_MAX {
                text.truncate(before);
                break 'files;
            }
            count += 1;
        }
    }
    let unreadable = match found.unreadable {
        0 => String::new(),
        some => format!(" {some} files or folders could not be read."),
    };
    let Matches { lines, matching, searched, .. } = found;
    let _ = match count {
        0 if *lines == 0 => writeln!(
            text,
            "[No match in {searched} files. Hidden, ignored and binary files are not searched.{unreadable}]"
        ),
        all if all as u64 == *lines => writeln!(text, "[{lines} matching lines in {matching} files.{unreadable}]"),
        some => writeln!(
            text,
            "[{some} of {lines} matching lines in {matching} files are shown, in the order of their paths. For fewer, \
             give a longer pattern, a path or a glob.{unreadable}]"
        ),
    };
    text
}
