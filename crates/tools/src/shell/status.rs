//! State of a workspace's repository, as git tells it.
//!
//! What a repository's configuration names may run, so git is confined: it only reads the repository, without a network.

use std::{fmt::Write as _, path::Path, sync::Arc, time::Duration};

use super::{Place, run::Run};

/// Time that git has. A status that comes later is left out.
const LIMIT: Duration = Duration::from_secs(1);
/// Changed files that are listed.
const FILES_MAX: usize = 20;
/// Characters of a line.
const CHARS_MAX: usize = 200;

/// The options that override a configuration: nothing is run for speed, nothing is written, and the form is known. What
/// a program of the repository says on its error output is not the state.
const COMMAND: &str = "exec git --no-optional-locks -c core.fsmonitor=false -c core.hooksPath=/dev/null \
    -c core.quotePath=false -c color.ui=false -c color.status=false -c status.relativePaths=true status --short --branch \
    --untracked-files=normal --ignore-submodules=dirty --no-renames --no-column -- . 2>/dev/null";

/// Describes the repository that a workspace lies in; `None` if there is none, if nothing confines git, or if it takes
/// too long.
pub(crate) async fn of(place: Arc<Place>, workspace: &Path) -> Option<String> {
    let is_root = |folder: &&Path| folder.join(".git").symlink_metadata().is_ok();
    let root = workspace.ancestors().find(is_root)?.to_owned();
    let status = tokio::time::timeout(LIMIT, ask(place, workspace.to_owned(), root)).await;
    let status = status.map_err(|_| format!("git has not answered within {} ms", LIMIT.as_millis()));
    status.and_then(|status| status).inspect_err(|why| tracing::debug!(why, "no git status")).ok()
}

async fn ask(place: Arc<Place>, workspace: std::path::PathBuf, root: std::path::PathBuf) -> Result<String, String> {
    let looking = place.clone();
    let job = tokio::task::spawn_blocking(move || looking.look(&workspace, &root, COMMAND));
    let job = job.await.map_err(|error| error.to_string())??;
    let mut run = Run::start(&place, &job, None).map_err(|error| error.to_string())?;
    let mut status = Status::default();
    while let Some(piece) = run.pieces.recv().await {
        status.take(&piece);
    }
    let end = run.end().await.map_err(|error| error.to_string())?;
    if end.code == 0 { Ok(status.text()) } else { Err(format!("git ended with {}", end.code)) }
}

/// Output of git, of which only the first lines are kept.
#[derive(Default)]
struct Status {
    lines: Vec<String>,
    line: String,
    ended: usize,
}

impl Status {
    fn take(&mut self, piece: &str) {
        for char in piece.chars() {
            if char == '\n' {
                self.ended += 1;
                let line = std::mem::take(&mut self.line);
                if self.lines.len() <= FILES_MAX {
                    self.lines.push(line);
                }
            } else if self.line.len() < CHARS_MAX {
                self.line.push(if char.is_control() { char::REPLACEMENT_CHARACTER } else { char });
            }
        }
    }

    fn text(self) -> String {
        let mut lines = self.lines.into_iter();
        let branch = lines.next().unwrap_or_default();
        let mut text = format!("Branch: {}", branch.trim_start_matches("## "));
        let changed = self.ended.saturating_sub(1);
        if changed == 0 {
            text.push_str("\nNo changed files.");
            return text;
        }
        // Writing to a string does not fail.
        let _ = write!(text, "\nChanged files: {changed}");
        let listed = lines.len();
        for line in lines {
            let _ = write!(text, "\n{line}");
        }
        if listed < changed {
            let _ = write!(text, "\n[{} more]", changed - listed);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_bounded_and_obeys_no_name() {
        let check = |pieces: &[&str], expected: &str| {
            let mut status = Status::default();
            pieces.iter().for_each(|piece| status.take(piece));
            assert_eq!(status.text(), expected);
        };
        check(&["## main...origin/main [ahead 1]\n"], "Branch: main...origin/main [ahead 1]\nNo changed files.");
        check(&["## main\n M a", ".rs\n?? b\x1b[2J\n"], "Branch: main\nChanged files: 2\n M a.rs\n?? b\u{fffd}[2J");
        let many = format!("## main\n{}", "?? file\n".repeat(5_000));
        check(&[&many], &format!("Branch: main\nChanged files: 5000{}\n[4980 more]", "\n?? file".repeat(20)));
        let long = format!("## main\n?? {}\n", "a".repeat(10_000));
        check(&[&long], &format!("Branch: main\nChanged files: 1\n?? {}", "a".repeat(CHARS_MAX - 3)));
    }
}
