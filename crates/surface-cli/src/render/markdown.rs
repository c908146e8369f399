//! Colours for Markdown that comes in pieces. Only colours are added: every character stays, in its place.
//!
//! A line's beginning decides its look, so at most that is held back. No colour outlives a piece.

use std::mem::take;

/// Most bytes of a line's beginning that are held back.
const HELD_MAX: usize = 64;

const PLAIN: &str = "";
const BOLD: &str = "1";
const FAINT: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

/// Markdown of one answer.
#[derive(Default)]
pub(crate) struct Markdown {
    /// Beginning of a line whose look is not decided.
    held: String,
    /// Look of the line, once it is decided.
    look: Option<Look>,
    /// Block of code that the line is in.
    fence: Option<Fence>,
    is_code: bool,
    is_bold: bool,
    /// True after one `*`, which is held back: a second one makes text bold.
    is_starred: bool,
    shown: String,
    style: &'static str,
}

/// Look of a line.
#[derive(Clone, Copy)]
enum Look {
    /// One style.
    Whole(&'static str),
    /// Item of a list: its sign, then text.
    Item,
    /// Text, in which code and bold words have a style.
    Text,
}

/// Block of code, by the line that opened it.
#[derive(Clone, Copy)]
struct Fence {
    marker: char,
    length: usize,
    indent: usize,
    is_diff: bool,
}

impl Markdown {
    /// Takes a piece; returns what can be shown by now.
    pub(crate) fn push(&mut self, text: &str) -> String {
        for char in text.chars() {
            if char == '\n' {
                self.end();
                self.show(char, PLAIN);
            } else if let Some(look) = self.look {
                self.draw(char, look);
            } else {
                self.held.push(char);
                if let Some(look) = self.decide(false) {
                    self.begin(look);
                }
            }
        }
        self.taken()
    }

    /// Ends a line that may lack its new line; returns what was held back of it.
    pub(crate) fn end_line(&mut self) -> String {
        self.end();
        self.taken()
    }

    fn end(&mut self) {
        if self.look.is_none()
            && let Some(look) = self.decide(true)
        {
            self.begin(look);
        }
        if take(&mut self.is_starred) {
            self.show('*', self.text_style());
        }
        (self.look, self.is_code, self.is_bold) = (None, false, false);
    }

    /// Shows the beginning of a line whose look is decided.
    fn begin(&mut self, look: Look) {
        for char in take(&mut self.held).chars() {
            match look {
                Look::Item => self.show(char, CYAN),
                look => self.draw(char, look),
            }
        }
        self.look = Some(look);
    }

    /// Decides the look of a line by its beginning; `None` if more of it may decide otherwise.
    fn decide(&mut self, is_end: bool) -> Option<Look> {
        let is_last = is_end || self.held.len() >= HELD_MAX;
        let start = self.held.trim_start_matches(' ');
        let indent = self.held.len() - start.len();
        let other = self.fence.map_or(Look::Text, |fence| Look::Whole(fence.style(&self.held)));
        let Some(marker) = start.chars().next() else { return is_last.then_some(other) };
        let length = start.chars().take_while(|char| *char == marker).count();
        let rest = &start[length * marker.len_utf8()..];
        if let Some(fence) = self.fence {
            let may_close = marker == fence.marker && indent <= fence.indent && rest.trim().is_empty();
            if may_close && is_end && length >= fence.length {
                self.fence = None;
                return Some(Look::Whole(FAINT));
            }
            return (is_last || !may_close).then_some(other);
        }
        let sign = start.trim_start_matches(|char: char| char.is_ascii_digit());
        match marker {
            '`' | '~' if length >= 3 && is_end && !rest.contains('`') => {
                let is_diff = matches!(rest.trim(), "diff" | "patch");
                self.fence = Some(Fence { marker, length, indent, is_diff });
                Some(Look::Whole(FAINT))
            }
            '`' | '~' => (is_last || (length < 3 && !rest.is_empty())).then_some(other),
            '#' if length <= 6 && rest.starts_with(' ') => Some(Look::Whole(BOLD)),
            '-' | '*' | '+' if length == 1 && rest.starts_with(' ') => Some(Look::Item),
            '0'..='9' if sign.starts_with(". ") || sign.starts_with(") ") => Some(Look::Item),
            '0'..='9' => (is_last || !["", ".", ")"].contains(&sign)).then_some(other),
            '#' | '-' | '*' | '+' => (is_last || !rest.is_empty()).then_some(other),
            '>' => Some(Look::Whole(FAINT)),
            _ => Some(other),
        }
    }

    fn draw(&mut self, char: char, look: Look) {
        if let Look::Whole(style) = look {
            return self.show(char, style);
        }
        if char == '*' && !self.is_code {
            if take(&mut self.is_starred) {
                [char, char].into_iter().for_each(|char| self.show(char, BOLD));
                self.is_bold = !self.is_bold;
            } else {
                self.is_starred = true;
            }
            return;
        }
        if take(&mut self.is_starred) {
            self.show('*', self.text_style());
        }
        if char == '`' {
            self.is_code = !self.is_code;
            return self.show(char, CYAN);
        }
        self.show(char, self.text_style());
    }

    const fn text_style(&self) -> &'static str {
        match (self.is_code, self.is_bold) {
            (true, _) => CYAN,
            (false, true) => BOLD,
            (false, false) => PLAIN,
        }
    }

    fn show(&mut self, char: char, style: &'static str) {
        self.set(style);
        self.shown.push(char);
    }

    fn set(&mut self, style: &'static str) {
        if style == self.style {
            return;
        }
        if self.style != PLAIN {
            self.shown.push_str("\x1b[0m");
        }
        if style != PLAIN {
            self.shown.push_str(&format!("\x1b[{style}m"));
        }
        self.style = style;
    }

    fn taken(&mut self) -> String {
        self.set(PLAIN);
        take(&mut self.shown)
    }
}

impl Fence {
    /// Returns the style of a line in the block.
    fn style(self, line: &str) -> &'static str {
        match line.chars().nth(self.indent) {
            Some('+') if self.is_diff => GREEN,
            Some('-') if self.is_diff => RED,
            _ => CYAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use meerkat_testkit::cases;
    use proptest::prelude::*;

    use super::*;

    /// Splits a text into its characters and the style that each has.
    fn styled(text: &str) -> Vec<(char, String)> {
        let (mut chars, mut style, mut shown) = (text.chars(), String::new(), Vec::new());
        while let Some(char) = chars.next() {
            if char == '\x1b' {
                style = chars.by_ref().skip(1).take_while(|char| *char != 'm').collect();
                style = if style == "0" { String::new() } else { style };
            } else {
                shown.push((char, style.clone()));
            }
        }
        assert_eq!(style, "", "a style outlives {text:?}");
        shown
    }

    fn whole(text: &str) -> String {
        let mut markdown = Markdown::default();
        markdown.push(text) + &markdown.end_line()
    }

    #[test]
    fn each_part_of_an_answer_has_its_look() {
        for (text, expected) in [
            ("# A `b`\nplain", "\x1b[1m# A `b`\x1b[0m\nplain"),
            ("####### seven", "####### seven"),
            ("#tag", "#tag"),
            ("- a\n  * b\n12. c\n12.5", "\x1b[36m- \x1b[0ma\n\x1b[36m  * \x1b[0mb\n\x1b[36m12. \x1b[0mc\n12.5"),
            ("a `b` **c** d*e", "a \x1b[36m`b`\x1b[0m \x1b[1m**c**\x1b[0m d*e"),
            ("**a\nb", "\x1b[1m**a\x1b[0m\nb"),
            ("a `b\nc", "a \x1b[36m`b\x1b[0m\nc"),
            ("`*", "\x1b[36m`*\x1b[0m"),
            ("> said", "\x1b[2m> said\x1b[0m"),
            (
                "```rust\n# a\n- b\n```\nc",
                "\x1b[2m```rust\x1b[0m\n\x1b[36m# a\x1b[0m\n\x1b[36m- b\x1b[0m\n\x1b[2m```\x1b[0m\nc",
            ),
            ("````\n```\n````\nc", "\x1b[2m````\x1b[0m\n\x1b[36m```\x1b[0m\n\x1b[2m````\x1b[0m\nc"),
            ("```a```\n- b", "\x1b[36m```a```\x1b[0m\n\x1b[36m- \x1b[0mb"),
            (
                "~~~diff\n@@ 1 @@\n-a\n+b\n~~~",
                "\x1b[2m~~~diff\x1b[0m\n\x1b[36m@@ 1 @@\x1b[0m\n\x1b[31m-a\x1b[0m\n\x1b[32m+b\x1b[0m\n\x1b[2m~~~\x1b[0m",
            ),
            ("--- \n- ", "--- \n\x1b[36m- \x1b[0m"),
        ] {
            assert_eq!(styled(&whole(text)), styled(expected), "{text:?}");
        }
    }

    #[test]
    fn a_word_is_shown_before_its_line_is_complete() {
        let mut markdown = Markdown::default();
        assert_eq!(markdown.push("The"), "The");
        assert_eq!(markdown.push("\n#"), "\n");
        assert_eq!(markdown.push(" H"), "\x1b[1m# H\x1b[0m");
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Nothing is left out, added or moved but colours, and these do not depend on how the text comes.
        #[test]
        fn the_characters_stay(text in "([`~*#+> \n.)1-]|[aé猫]|```diff\n|\n```\n){0,40}", cuts in prop::collection::vec(1..5_usize, 40)) {
            let (mut markdown, mut shown, mut chars) = (Markdown::default(), String::new(), text.chars().peekable());
            for cut in cuts.iter().cycle() {
                let piece = markdown.push(&chars.by_ref().take(*cut).collect::<String>());
                styled(&piece);
                shown += &piece;
                if chars.peek().is_none() {
                    break;
                }
            }
            shown += &markdown.end_line();
            let shown = styled(&shown);
            prop_assert_eq!(shown.iter().map(|(char, _)| *char).collect::<String>(), text.clone());
            prop_assert_eq!(shown, styled(&whole(&text)));
        }
    }
}
