//! `edit`: replaces an exact text in a file.

use std::{fmt::Write as _, sync::Arc};

use meerkat_service::{
    SessionError,
    tool::{ChangeLog, Effect, Invocation, Plan, ToolError},
};
use serde::Deserialize;

use super::{
    change::{Changes, FILE_BYTES_MAX, Target},
    common::{Change, spec},
    diff, marks, nearest,
    path::{Inside, Workspace},
    read::{not_text, refuse_binary},
    replace::{self, Mismatch, Replaced, replace},
};

/// Line numbers that an answer lists.
const LINES_LISTED: usize = 20;
/// Bytes with which some text files begin. They are not shown.
const MARK_OF_ORDER: &str = "\u{feff}";

const DESCRIPTION: &str = "Replaces a text in a file of the workspace. old is the text exactly as read shows it, \
                           without line numbers, and with enough around it to occur once; with all every occurrence \
                           is replaced. Line endings, mode and owner stay.";

const SCHEMA: &str = r#"{"type":"object","properties":{
"path":{"type":"string","minLength":1,"maxLength":4096,"description":"Path of the file, relative to the workspace."},
"old":{"type":"string","minLength":1,"description":"Text to replace."},
"new":{"type":"string","description":"Text to put there; empty to delete."},
"all":{"type":"boolean","description":"Replace every occurrence."}
},"required":["path","old","new"],"additionalProperties":false}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    path: String,
    old: String,
    new: String,
    #[serde(default)]
    all: bool,
}

/// Makes `edit`.
pub(super) fn tool(changes: Arc<Changes>) -> Result<Change, SessionError> {
    Ok(Change { spec: spec("edit", DESCRIPTION, SCHEMA)?, usual: Plan::once().ask(), changes, plan, call })
}

fn plan(changes: &Changes, invocation: &Invocation) -> Result<Plan, ToolError> {
    let arguments = arguments(invocation)?;
    let workspace = Workspace::open(invocation)?;
    let edited = Edited::of(changes, &workspace, invocation, &arguments)?;
    Ok(Changes::plan(Effect::Once, "edit", &edited.target, &edited.content()))
}

fn call(changes: &Changes, invocation: &Invocation, log: &ChangeLog) -> Result<String, ToolError> {
    let arguments = arguments(invocation)?;
    let workspace = Workspace::open(invocation)?;
    let _lock = changes.lock(&workspace, &workspace.inside(&arguments.path)?);
    let edited = Edited::of(changes, &workspace, invocation, &arguments)?;
    changes.commit(&workspace, (invocation, log), &edited.target, edited.content().as_bytes())?;
    Ok(edited.answer())
}

/// Reads the arguments, and refuses those that no file can mean.
fn arguments(invocation: &Invocation) -> Result<Arguments, ToolError> {
    let arguments: Arguments = ToolError::decode(&invocation.arguments)?;
    marks::refuse("old", &arguments.old)?;
    marks::refuse("new", &arguments.new)?;
    if arguments.old.is_empty() {
        let message = "`old` is empty; give the text to replace, or use write for a new file.";
        return Err(ToolError::Refused(message.to_owned()));
    }
    if arguments.old == arguments.new {
        return Err(ToolError::Refused("`old` and `new` are the same, so nothing would change.".to_owned()));
    }
    Ok(arguments)
}

/// File after an edit that is not yet written.
struct Edited {
    target: Target,
    has_mark: bool,
    replaced: Replaced,
}

impl Edited {
    fn of(
        changes: &Changes,
        workspace: &Workspace,
        invocation: &Invocation,
        arguments: &Arguments,
    ) -> Result<Self, ToolError> {
        let target = changes.target(workspace, &arguments.path)?;
        let Some(found) = &target.found else {
            let message = format!("{}; write makes new files.", workspace.missing(&target.path));
            return Err(ToolError::Refused(message));
        };
        changes.is_seen(workspace, invocation, &target)?;
        let size = found.bytes.len() as u64;
        let binary = |kind| refuse_binary(&target.path, kind, size);
        if let Some(kind) = not_text(&found.bytes) {
            return Err(binary(kind));
        }
        let text = std::str::from_utf8(&found.bytes).map_err(|_| binary("not UTF-8 text, a file"))?;
        let (has_mark, text) = text.strip_prefix(MARK_OF_ORDER).map_or((false, text), |text| (true, text));
        let Arguments { old, new, all, .. } = arguments;
        let replaced = replace(text, old, new, *all, FILE_BYTES_MAX)
            .map_err(|mismatch| ToolError::Refused(explain(&target.path, text, old, mismatch, FILE_BYTES_MAX)))?;
        if replaced.text == text {
            let message = "`old` and `new` differ in line endings alone, which stay as they are in the file.";
            return Err(ToolError::Refused(message.to_owned()));
        }
        Ok(Self { target, has_mark, replaced })
    }

    fn content(&self) -> String {
        let mark = if self.has_mark { MARK_OF_ORDER } else { "" };
        format!("{mark}{}", self.replaced.text)
    }

    /// Says which lines changed, and shows the first place.
    fn answer(&self) -> String {
        let Replaced { text, places } = &self.replaced;
        let starts: Vec<usize> = places.iter().map(|place| place.start).collect();
        let lines = list(&replace::lines(text, &starts));
        let path = &self.target.path;
        let mut answer = match places.len() {
            1 => format!("Edited {path} at line {lines}.\n"),
            count => format!("Edited {path} in {count} places, at lines {lines}.\n"),
        };
        if let Some(first) = places.first() {
            answer.push_str(&diff::excerpt(text, first));
        }
        answer
    }
}

fn list(lines: &[usize]) -> String {
    let listed: Vec<String> = lines.iter().take(LINES_LISTED).map(usize::to_string).collect();
    let more = lines.len().saturating_sub(LINES_LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    listed.join(", ") + &rest
}

/// Says why nothing was replaced, and what comes nearest.
fn explain(path: &Inside, text: &str, old: &str, mismatch: Mismatch, most: u64) -> String {
    match mismatch {
        Mismatch::Several(lines) => format!(
            "`old` occurs {} times in {path}, at lines {}; add lines around it until it is unique, or set `all`.",
            lines.len(),
            list(&lines)
        ),
        Mismatch::TooLarge(bytes) => {
            format!("{path} would have {bytes} bytes; files of at most {most} can be changed.")
        }
        Mismatch::Missing => {
            let mut message = format!("`old` does not occur in {path}.");
            if without_numbers(old).is_some_and(|old| text.contains(&old)) {
                message.push_str(" It does without the line numbers; leave them out.");
                return message;
            }
            match nearest::lines(text, old) {
                None => message.push_str(" No line is like it; read the file."),
                Some(at) => {
                    let lines = diff::numbered(text, at + 1, at + old.lines().count());
                    let _ = write!(message, " The nearest lines, with their numbers, are:\n{lines}");
                }
            }
            message
        }
    }
}

/// Returns the text without the numbers that `read` puts before lines, if each line has one.
fn without_numbers(old: &str) -> Option<String> {
    let plain: Option<Vec<&str>> = old
        .lines()
        .map(|line| {
            let (number, line) = line.split_once('\t')?;
            number.trim().parse::<u64>().is_ok().then_some(line)
        })
        .collect();
    plain.map(|lines| lines.join("\n")).filter(|plain| !plain.is_empty())
}
