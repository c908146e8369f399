//! Replacement of an exact text, whatever the file's line endings are.
//!
//! A file is searched as it is shown: without carriage returns at the ends of lines. Everything outside the replaced
//! places keeps its bytes, and what is put there gets the line endings of the file.

use std::ops::Range;

/// Text after a replacement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replaced {
    pub(super) text: String,
    /// Places of the new text in it, in bytes.
    pub(super) places: Vec<Range<usize>>,
}

/// Reason why nothing is replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mismatch {
    /// The text does not occur.
    Missing,
    /// It occurs in more places than one, which begin on these lines.
    Several(Vec<usize>),
    /// The result would have this many bytes.
    TooLarge(u64),
}

/// Replaces the one occurrence of `old`, or `all`.
pub(super) fn replace(text: &str, old: &str, new: &str, all: bool, bytes_max: u64) -> Result<Replaced, Mismatch> {
    let (shown, returns) = shown(text);
    let (old, new) = (old.replace("\r\n", "\n"), new.replace("\r\n", "\n"));
    let found: Vec<usize> = shown.match_indices(&old).map(|(at, _)| at).collect();
    if found.is_empty() {
        return Err(Mismatch::Missing);
    }
    if found.len() > 1 && !all {
        return Err(Mismatch::Several(lines(&shown, &found)));
    }
    let ends = shown.bytes().filter(|byte| *byte == b'\n').count();
    let new = if returns.len() * 2 > ends { new.replace('\n', "\r\n") } else { new };
    let bytes = text.len() as u64 + new.len() as u64 * found.len() as u64;
    if bytes.saturating_sub(old.len() as u64 * found.len() as u64) > bytes_max {
        return Err(Mismatch::TooLarge(bytes));
    }
    // A place in the text as shown is one carriage return further on in the file for each that was left out before.
    let in_file = |at: usize| at + returns.partition_point(|left_out| *left_out < at);
    let mut replaced = Replaced { text: String::with_capacity(text.len()), places: Vec::with_capacity(found.len()) };
    let mut copied = 0;
    for at in found {
        replaced.text.push_str(&text[copied..in_file(at)]);
        let start = replaced.text.len();
        replaced.text.push_str(&new);
        replaced.places.push(start..replaced.text.len());
        copied = in_file(at + old.len());
    }
    replaced.text.push_str(&text[copied..]);
    Ok(replaced)
}

/// Returns the text without the carriage returns before line feeds, and the places of these line feeds in it.
fn shown(text: &str) -> (String, Vec<usize>) {
    let (mut shown, mut returns) = (String::with_capacity(text.len()), Vec::new());
    let mut rest = text;
    while let Some(at) = rest.find("\r\n") {
        shown.push_str(&rest[..at]);
        returns.push(shown.len());
        shown.push('\n');
        rest = &rest[at + 2..];
    }
    shown.push_str(rest);
    (shown, returns)
}

/// Numbers of the lines that hold these places, which rise.
pub(super) fn lines(text: &str, places: &[usize]) -> Vec<usize> {
    let (mut number, mut counted) = (1, 0);
    places
        .iter()
        .map(|place| {
            number += text.as_bytes()[counted..*place].iter().filter(|byte| **byte == b'\n').count();
            counted = *place;
            number
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use meerkat_testkit::cases;
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, old: &str, new: &str, all: bool) -> Result<String, Mismatch> {
        replace(text, old, new, all, 1000).map(|replaced| replaced.text)
    }

    #[test]
    fn line_endings_follow_the_file() {
        for (text, old, new, want) in [
            ("a\nb\nc\n", "a\nb", "x\ny", "x\ny\nc\n"),
            ("a\r\nb\r\nc\r\n", "a\nb", "x\ny", "x\r\ny\r\nc\r\n"),
            ("a\r\nb\r\nc\r\n", "a\r\nb", "x\r\ny", "x\r\ny\r\nc\r\n"),
            ("a\r\nb", "b", "b\nc", "a\r\nb\r\nc"),
            ("a\nb\n", "a\r\nb", "x", "x\n"),
            // Of mixed endings, those outside the place stay.
            ("a\r\nb\nc\r\nd\n", "b\nc", "x", "a\r\nx\r\nd\n"),
            ("a\r\nb\r\nc\n", "\nb", "\nx", "a\r\nx\r\nc\n"),
            ("a\r\nb", "a\n", "", "b"),
            ("a\rb\n", "a\rb", "c", "c\n"),
        ] {
            let result = check(text, old, new, false);
            assert_eq!(result, Ok(want.to_owned()), "{text:?}: {old:?} to {new:?}");
        }
    }

    #[test]
    fn a_text_that_is_not_there_or_not_unique_is_not_replaced() {
        assert_eq!(check("a\nb\n", "c", "d", false), Err(Mismatch::Missing));
        assert_eq!(check("a\nb\na\n\na", "a", "d", false), Err(Mismatch::Several(vec![1, 3, 5])));
        assert_eq!(check("a\nb\na\n", "a", "d", true), Ok("d\nb\nd\n".to_owned()));
        assert_eq!(replace("aaaa", "a", "bbbb", true, 15), Err(Mismatch::TooLarge(20)));
        assert_eq!(replace("aaaa", "a", "bbbb", true, 16).map(|replaced| replaced.text.len()), Ok(16));
    }

    #[test]
    fn places_are_those_of_the_new_text() {
        let replaced = replace("a\r\nb\r\na\r\n", "a", "x\ny", true, 1000).unwrap();
        let places: Vec<&str> = replaced.places.iter().map(|place| &replaced.text[place.clone()]).collect();
        assert_eq!(places, ["x\r\ny", "x\r\ny"]);
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// Few different characters, so that texts occur, overlap and touch line ends.
        #[test]
        fn a_replacement_is_that_of_the_standard_library(
            text in "[ab\né]{0,24}", old in "[ab\né]{1,4}", new in "[abc\n]{0,5}", all in any::<bool>()
        ) {
            let count = text.matches(&old).count();
            let want = match count {
                0 => Err(()),
                1 => Ok(text.replacen(&old, &new, 1)),
                _ if all => Ok(text.replace(&old, &new)),
                _ => Err(()),
            };
            prop_assert_eq!(check(&text, &old, &new, all).map_err(drop), want.clone());
            // The same in a file with the other line endings.
            let dos = |text: &str| text.replace('\n', "\r\n");
            let want = want.map(|want| if text.contains('\n') { dos(&want) } else { want });
            prop_assert_eq!(check(&dos(&text), &old, &new, all).map_err(drop), want);
        }

        /// Whatever the endings are, the bytes outside the place stay.
        #[test]
        fn nothing_else_changes(
            before in "([ab]|\n|\r\n|\r){0,9}", after in "([ab]|\n|\r\n|\r){0,9}", new in "[c\n]{0,3}"
        ) {
            let text = format!("{before}<x>{after}");
            let result = check(&text, "<x>", &new, false).unwrap();
            let changed = result.strip_prefix(&before).and_then(|rest| rest.strip_suffix(&after));
            prop_assert_eq!(changed.map(|changed| changed.replace("\r\n", "\n")), Some(new));
        }
    }
}
