//! Differences for people who decide about a change, and excerpts for models that made one.

use std::{fmt::Write as _, ops::Range, time::Duration};

use sha2::{Digest as _, Sha256};
use similar::TextDiff;

/// Lines of a difference that are shown.
const LINES_MAX: usize = 200;
/// Lines of both texts that are compared; each costs memory.
const COMPARED_LINES_MAX: usize = 200_000;
/// Bytes of a line that are shown.
const LINE_BYTES_MAX: usize = 500;
/// Lines before and after a change.
const CONTEXT_LINES: usize = 3;
/// Time after which a difference need no longer be the smallest one.
const SEARCH: Duration = Duration::from_millis(200);
/// Bytes of a hash.
const HASH_BYTES: usize = 8;
/// Lines of an excerpt.
const EXCERPT_LINES_MAX: usize = 40;

/// Writes a unified diff of a file; of a long one the beginning, and a line that says how much is left out. What is not
/// shown has a hash in it, so that diffs of other changes differ.
pub(super) fn unified(path: &str, old: Option<&str>, new: &str) -> String {
    let mut text = match old {
        Some(_) => format!("--- {path}\n+++ {path}\n"),
        None => format!("--- /dev/null\n+++ {path}\n"),
    };
    let old = old.unwrap_or_default();
    if are_too_many(old, new) {
        let [now, then] = [old, new].map(|text| {
            let (lines, bytes, hash) = (text.lines().count(), text.len(), hash(text.as_bytes()));
            format!("{lines} lines in {bytes} bytes with the hash {hash}")
        });
        let _ = writeln!(text, "[The file has {now}, and gets {then}: too many lines to compare.]");
        return text;
    }
    let diff = TextDiff::configure().timeout(SEARCH).diff_lines(old, new);
    let (mut shown, mut left_out, mut hidden) = (0, 0, String::new());
    for hunk in diff.unified_diff().context_radius(CONTEXT_LINES).iter_hunks() {
        if shown < LINES_MAX {
            let _ = writeln!(text, "{}", hunk.header());
        }
        for change in hunk.iter_changes() {
            let line = change.value();
            if shown == LINES_MAX || line.len() > LINE_BYTES_MAX {
                let _ = write!(hidden, "{}{line}", change.tag());
            }
            if shown == LINES_MAX {
                left_out += 1;
                continue;
            }
            shown += 1;
            let _ = writeln!(text, "{}{}", change.tag(), clip(visible(line).trim_end_matches('\n')));
            if !line.ends_with(['\n', '\r']) {
                text.push_str("\\ No newline at end of file\n");
            }
        }
    }
    if left_out > 0 {
        let _ = writeln!(text, "[{left_out} more lines of the difference are not shown.]");
    }
    if !hidden.is_empty() {
        let _ = writeln!(text, "[Hash of the long and omitted lines: {}.]", hash(hidden.as_bytes()));
    }
    text
}

/// Returns true if the lines of both texts together are too many to be compared.
fn are_too_many(old: &str, new: &str) -> bool {
    old.lines().count() + new.lines().count() > COMPARED_LINES_MAX
}

/// Hashes content that a difference does not show.
pub(super) fn hash(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().take(HASH_BYTES).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Shows carriage returns as ␍, so that a change of line endings is seen.
fn visible(line: &str) -> String {
    line.replace('\r', "␍")
}

fn clip(line: &str) -> String {
    if line.len() <= LINE_BYTES_MAX {
        return line.to_owned();
    }
    let (kept, cut) = line.split_at(line.floor_char_boundary(LINE_BYTES_MAX));
    format!("{kept}{}", super::marks::clipped(cut.len() as u64))
}

/// Counts lines that a change adds and removes; of too many, all.
pub(super) fn counts(old: &str, new: &str) -> (usize, usize) {
    if are_too_many(old, new) {
        return (new.lines().count(), old.lines().count());
    }
    let diff = TextDiff::configure().timeout(SEARCH).diff_lines(old, new);
    diff.ops().iter().fold((0, 0), |(added, removed), op| match op {
        similar::DiffOp::Equal { .. } => (added, removed),
        similar::DiffOp::Delete { old_len, .. } => (added, removed + old_len),
        similar::DiffOp::Insert { new_len, .. } => (added + new_len, removed),
        similar::DiffOp::Replace { old_len, new_len, .. } => (added + new_len, removed + old_len),
    })
}

/// Shows the numbered lines of a place and around it.
pub(super) fn excerpt(text: &str, place: &Range<usize>) -> String {
    let lines = super::replace::lines(text, &[place.start, place.end]);
    let [first, last] = [0, 1].map(|at| lines.get(at).copied().unwrap_or(1));
    // A place that ends with a line break ends on that line.
    let last = if text[place.clone()].ends_with('\n') { last - 1 } else { last };
    numbered(text, first.saturating_sub(CONTEXT_LINES).max(1), last + CONTEXT_LINES)
}

/// Shows lines with their numbers, at most [`EXCERPT_LINES_MAX`].
pub(super) fn numbered(text: &str, first: usize, last: usize) -> String {
    let mut shown = String::new();
    let wanted = text.lines().enumerate().skip(first - 1).take((last + 1).saturating_sub(first));
    for (count, (at, line)) in wanted.enumerate() {
        if count == EXCERPT_LINES_MAX {
            shown.push_str("[...]\n");
            break;
        }
        let _ = writeln!(shown, "{}\t{}", at + 1, clip(line));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_three_lines_around_each_change() {
        let old: String = (1..=20).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n10\n", "\nten\n");
        let want = "--- a\n+++ a\n@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n";
        assert_eq!(unified("a", Some(&old), &new), want);
        assert_eq!(counts(&old, &new), (1, 1));
        let want = "--- /dev/null\n+++ a\n@@ -0,0 +1,2 @@\n+x\n+y\n\\ No newline at end of file\n";
        assert_eq!(unified("a", None, "x\ny"), want);
        assert!(unified("a", Some("x\r\n"), "x\n").contains("-x␍\n+x\n"));
    }

    #[test]
    fn a_long_difference_says_what_is_left_out() {
        let new: String = (0..1000).map(|n| format!("{n}\n")).collect();
        let text = unified("a", None, &new);
        assert_eq!(text.lines().count(), 2 + 1 + LINES_MAX + 2);
        assert!(text.contains("\n[800 more lines of the difference are not shown.]\n"), "{text}");
        assert!(unified("a", None, &"x".repeat(1_000_000)).len() < 1000);
    }

    /// Broken once: a file of line ends alone cost a difference hundreds of megabytes.
    #[test]
    fn texts_of_very_many_lines_are_named_by_their_sizes_and_hashes() {
        let old = "\n".repeat(COMPARED_LINES_MAX);
        let text = |new: &str| unified("a", Some(&old), new);
        let shown = text("x");
        assert!(shown.starts_with("--- a\n+++ a\n[The file has "), "{shown}");
        assert_ne!(shown, text("y"), "another change is another difference");
        assert_ne!(shown, unified("a", Some(&format!("{old}\n")), "x"), "and of another file");
        assert_eq!(counts(&old, "x"), (1, COMPARED_LINES_MAX));
    }

    /// A person approves a difference, and what is not shown of it may not change unnoticed.
    #[test]
    fn differences_that_show_the_same_have_another_hash() {
        let lines: String = (0..1000).map(|n| format!("{n}\n")).collect();
        let line = "x".repeat(1000);
        for (old, changed) in [(lines.clone(), lines.replace("950", "nine")), (line.clone(), format!("{line}y"))] {
            let [one, other] = [&old, &changed].map(|old| unified("a", Some(old), ""));
            assert_ne!(one, other);
        }
    }

    #[test]
    fn an_excerpt_has_the_lines_around_a_place() {
        let text: String = (1..=20).map(|n| format!("{n}\n")).collect();
        let at = text.find("10").unwrap();
        assert_eq!(excerpt(&text, &(at..at + 2)), "7\t7\n8\t8\n9\t9\n10\t10\n11\t11\n12\t12\n13\t13\n");
        assert_eq!(excerpt(&text, &(at..at + 3)), "7\t7\n8\t8\n9\t9\n10\t10\n11\t11\n12\t12\n13\t13\n");
        assert_eq!(excerpt(&text, &(0..0)), "1\t1\n2\t2\n3\t3\n4\t4\n");
        assert_eq!(excerpt("", &(0..0)), "");
        let all = excerpt(&"x\n".repeat(100), &(0..200));
        assert!(all.ends_with("40\tx\n[...]\n"), "{all}");
    }
}
