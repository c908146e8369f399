//! Hits of a memory search for people: place, time and speaker, the words around the match, and how to open it.

use std::fmt::Write as _;

use meerkat_service::service::SearchHit;

use super::{minute, one_line};

/// Most characters shown of a hit's text.
const SHOWN_CHARS: usize = 320;
/// Of those, the characters before the first matching word.
const BEFORE_CHARS: usize = 80;
/// Least characters, and three quarters of its own, that a word must share with one of the query to match it.
const STEM_CHARS_MIN: usize = 4;

/// Search, and how to show its hits.
pub(crate) struct Found<'a> {
    pub(crate) query: &'a str,
    /// True if a session's history can be opened.
    pub(crate) opens: bool,
    /// True if matching words are highlighted.
    pub(crate) highlights: bool,
    pub(crate) width: Option<usize>,
}

impl Found<'_> {
    /// Renders the hits, without control sequences.
    pub(crate) fn render(&self, hits: &[SearchHit]) -> String {
        if hits.is_empty() {
            return "Nothing was found. Other words may find more.\n".to_owned();
        }
        let (mut text, wanted) = (String::new(), words(self.query));
        for hit in hits {
            let SearchHit { session_id, from_seq, role, time, .. } = hit;
            let head = format!("{session_id}:{from_seq}  {}  {}", minute(*time), one_line(role));
            // Writing to a string cannot fail.
            _ = writeln!(text, "{}", if self.highlights { format!("\x1b[2m{head}\x1b[0m") } else { head });
            _ = writeln!(text, "  {}", self.excerpt(&one_line(&hit.text), &wanted));
            if self.opens {
                let cursor = from_seq.saturating_sub(1);
                _ = writeln!(text, "  meerkat sessions history {session_id} --cursor {cursor} --limit 1");
            }
            text.push('\n');
        }
        text
    }

    /// Returns the words around the first match; the whole text if no terminal limits it.
    fn excerpt(&self, text: &str, wanted: &[String]) -> String {
        let matching = matching(text, wanted);
        let (mut from, mut to) = (0, text.len());
        if self.width.is_some() && text.chars().count() > SHOWN_CHARS {
            let first = matching.first().map_or(0, |(start, _)| *start);
            from = text[..first].char_indices().rev().nth(BEFORE_CHARS).map_or(0, |(at, _)| at);
            to = text[from..].char_indices().nth(SHOWN_CHARS).map_or(text.len(), |(at, _)| from + at);
        }
        let mut shown = if from > 0 { "…".to_owned() } else { String::new() };
        let mut at = from;
        for (start, end) in matching.into_iter().filter(|(start, end)| self.highlights && *start >= from && *end <= to)
        {
            _ = write!(shown, "{}\x1b[1m{}\x1b[0m", &text[at..start], &text[start..end]);
            at = end;
        }
        shown.push_str(&text[at..to]);
        if to < text.len() {
            shown.push('…');
        }
        shown
    }
}

fn words(text: &str) -> Vec<String> {
    spans(text).map(|(start, end)| text[start..end].to_lowercase()).collect()
}

/// Finds the words of a text.
fn spans(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let words = text.split_inclusive(|char: char| !char.is_alphanumeric()).scan(0, |at, piece| {
        let start = *at;
        *at += piece.len();
        let word = piece.trim_end_matches(|char: char| !char.is_alphanumeric());
        Some((start, start + word.len()))
    });
    words.filter(|(start, end)| start < end)
}

/// Finds the words that match the query.
fn matching(text: &str, wanted: &[String]) -> Vec<(usize, usize)> {
    let is_wanted = |&(start, end): &(usize, usize)| {
        let word = text[start..end].to_lowercase();
        wanted.iter().any(|wanted| {
            let shared = wanted.chars().zip(word.chars()).take_while(|(one, other)| one == other).count();
            word == *wanted || (shared >= STEM_CHARS_MIN && shared * 4 >= wanted.chars().count() * 3)
        })
    };
    spans(text).filter(is_wanted).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hit(text: &str) -> SearchHit {
        let hit = json!({
            "session_id": "01900000-0000-7000-8000-000000000001", "from_seq": 3, "to_seq": 3, "role": "user",
            "time": "2026-01-02T03:04:05Z", "text": text, "score": 1.0, "lanes": {},
        });
        serde_json::from_value(hit).unwrap()
    }

    #[test]
    fn a_hit_says_where_it_stands_and_how_it_is_opened() {
        let found = Found { query: "keys", opens: true, highlights: false, width: None };
        let id = "01900000-0000-7000-8000-000000000001";
        let text = format!(
            "{id}:3  2026-01-02 03:04 UTC  user\n  The key is blue.\n  meerkat sessions history {id} --cursor 2 --limit 1\n\n"
        );
        assert_eq!(found.render(&[hit("The \u{1b}[31mkey\nis blue.")]), text);
        assert_eq!(Found { opens: false, ..found }.render(&[]), "Nothing was found. Other words may find more.\n");
    }

    #[test]
    fn words_that_match_stand_out_where_they_may() {
        let found = Found { query: "Decides, blue", opens: false, highlights: true, width: Some(80) };
        let text = found.render(&[hit("We decided: BLUE it is.")]);
        assert!(text.contains("We \x1b[1mdecided\x1b[0m: \x1b[1mBLUE\x1b[0m it is."), "{text:?}");
    }

    #[test]
    fn of_a_long_text_a_terminal_shows_what_is_around_the_match() {
        let text = format!("{} quokka {}", "é ".repeat(400), "ü ".repeat(400));
        let found = Found { query: "quokka", opens: false, highlights: false, width: Some(80) };
        let shown = found.render(&[hit(&text)]);
        assert!(shown.contains("quokka") && shown.contains("  …") && shown.ends_with("…\n\n"), "{shown}");
        assert!(shown.chars().count() < SHOWN_CHARS + 100);
        assert!(Found { width: None, ..found }.render(&[hit(&text)]).chars().count() > 1_600);
    }
}
