//! `glob`: files of the workspace by their paths.

use std::{collections::BTreeSet, ffi::OsStr, fmt::Write as _, os::fd::OwnedFd, path::PathBuf, sync::Arc};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use meerkat_service::{
    SessionError,
    tool::{Tool, ToolError},
};
use serde::Deserialize;

use super::{
    common::{ANSWER_BYTES_MAX, Shown, look},
    path::{Inside, Workspace, shown},
    walk::{self, Visit},
};

/// Longest glob in bytes.
pub(super) const GLOB_BYTES_MAX: usize = 1024;
/// Paths that are shown.
const PATHS_MAX: usize = 1000;

const DESCRIPTION: &str = "Finds files of the workspace by a glob such as *.rs or src/**/*.{ts,tsx}, and lists their \
                           paths in alphabetical order. A glob without a slash is for names in any folder. Hidden \
                           files and files that .gitignore or .ignore names are left out.";

const SCHEMA: &str = r#"{"type":"object","properties":{
"pattern":{"type":"string","minLength":1,"maxLength":1024,"description":"Glob for paths relative to the workspace."}
},"required":["pattern"],"additionalProperties":false}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    pattern: String,
}

/// Makes `glob`.
pub(super) fn tool() -> Result<Arc<dyn Tool>, SessionError> {
    look("glob", DESCRIPTION, SCHEMA, move |invocation| {
        let Arguments { pattern } = ToolError::decode(&invocation.arguments)?;
        if pattern.is_empty() || pattern.len() > GLOB_BYTES_MAX {
            return Err(ToolError::Arguments(format!("`pattern` must have 1 to {GLOB_BYTES_MAX} bytes")));
        }
        let workspace = Workspace::open(invocation)?;
        let glob = matcher(&pattern, &workspace)?;
        let visitor = || Visitor { glob: &glob, first: BTreeSet::new(), count: 0 };
        let visitors = walk::walk(&workspace, &Inside::root(), &invocation.cancel, visitor)?;
        let count: u64 = visitors.iter().map(|visitor| visitor.count).sum();
        let first: BTreeSet<PathBuf> = visitors.into_iter().flat_map(|visitor| visitor.first).collect();
        Ok(Shown::Text(answer(&first, count)))
    })
}

/// Compiles a glob for paths from the workspace on. Without a slash it is for names in any folder.
pub(super) fn matcher(glob: &str, workspace: &Workspace) -> Result<GlobSet, ToolError> {
    let root = workspace.root().to_string_lossy();
    let inside = glob.strip_prefix(&*root).and_then(|inside| inside.strip_prefix('/'));
    let inside = inside.unwrap_or(glob).trim_start_matches("./");
    let anywhere = if inside.contains('/') { inside.to_owned() } else { format!("**/{inside}") };
    // A set of one: a single glob whose expression cannot be built would panic.
    let parsed = GlobBuilder::new(&anywhere).literal_separator(true).build();
    let built = parsed.and_then(|glob| GlobSetBuilder::new().add(glob).build());
    built.map_err(|error| ToolError::Arguments(format!("{glob:?} is not a valid glob: {}", error.kind())))
}

struct Visitor<'a> {
    glob: &'a GlobSet,
    /// The first paths of those that match.
    first: BTreeSet<PathBuf>,
    count: u64,
}

impl Visit for Visitor<'_> {
    fn file(&mut self, _: &OwnedFd, _: &OsStr, path: &Inside) {
        if !self.glob.is_match(path.as_path()) {
            return;
        }
        self.count += 1;
        self.first.insert(path.as_path().to_owned());
        if self.first.len() > PATHS_MAX {
            self.first.pop_last();
        }
    }

    fn unreadable(&mut self) {}
}

fn answer(first: &BTreeSet<PathBuf>, count: u64) -> String {
    let (mut text, mut listed) = (String::new(), 0);
    for path in first.iter().take(PATHS_MAX) {
        let before = text.len();
        let _ = writeln!(text, "{}", shown(path));
        if text.len() > ANSWER_BYTES_MAX {
            text.truncate(before);
            break;
        }
        listed += 1;
    }
    let _ = match listed {
        0 if count == 0 => writeln!(text, "[No file matches. Hidden and ignored files are not searched.]"),
        all if all == count => writeln!(text, "[{count} files.]"),
        some => writeln!(text, "[The first {some} of {count} files; for fewer, give a longer glob.]"),
    };
    text
}
