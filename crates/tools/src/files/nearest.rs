//! Names and lines that are like a given one, for errors that say what may have been meant.

use std::os::fd::OwnedFd;

/// Names of a folder that are looked at.
const NAMES_MAX: usize = 2000;
/// Names that an error lists.
const NAMES_SHOWN: usize = 3;
/// Bytes of a line that are compared.
const LINE_BYTES_MAX: usize = 400;
/// Least likeness, of 1, of a name or line that is worth a word.
const LIKENESS_MIN: f64 = 0.5;

/// Names in a folder that are like this one, best first.
pub(super) fn names(folder: &OwnedFd, name: &str) -> Vec<String> {
    let Ok(entries) = rustix::fs::Dir::read_from(folder) else { return Vec::new() };
    let mut likeness = Likeness::to(&name.to_lowercase());
    let mut like: Vec<(f64, String)> = entries
        .take(NAMES_MAX)
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|other| other != "." && other != "..")
        .map(|other| (likeness.of(&other.to_lowercase()), other))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .collect();
    like.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    like.into_iter().take(NAMES_SHOWN).map(|(_, name)| name).collect()
}

/// Index of the line of `text` at which lines like `wanted` begin, if any are.
///
/// The longest of the wanted lines is compared with each line; white space around a line does not count.
pub(super) fn lines(text: &str, wanted: &str) -> Option<usize> {
    let (before, anchor) = wanted.lines().enumerate().max_by_key(|(at, line)| (line.trim().len(), usize::MAX - at))?;
    let mut likeness = Likeness::to(anchor.trim());
    let mut best: Option<(f64, usize)> = None;
    for (at, line) in text.lines().enumerate() {
        let found = likeness.of(line.trim());
        if found >= LIKENESS_MIN && best.is_none_or(|(most, _)| found > most) {
            best = Some((found, at));
        }
    }
    best.map(|(_, at)| at.saturating_sub(before))
}

/// Likeness of texts to one text: the share of pairs of neighbouring bytes that they have in common.
struct Likeness {
    text: Vec<u8>,
    /// How often each pair occurs in the text.
    pairs: Vec<u16>,
}

impl Likeness {
    fn to(text: &str) -> Self {
        let text = text.as_bytes()[..text.len().min(LINE_BYTES_MAX)].to_vec();
        let mut pairs = vec![0; 1 << 16];
        for pair in text.windows(2) {
            pairs[index(pair)] += 1;
        }
        Self { text, pairs }
    }

    /// Likeness of another text, from 0 to 1.
    fn of(&mut self, other: &str) -> f64 {
        let other = &other.as_bytes()[..other.len().min(LINE_BYTES_MAX)];
        if self.text == other {
            return 1.0;
        }
        let mut common = 0_u32;
        let mut taken = Vec::new();
        for pair in other.windows(2) {
            let left = &mut self.pairs[index(pair)];
            if *left > 0 {
                *left -= 1;
                common += 1;
                taken.push(index(pair));
            }
        }
        for at in taken {
            self.pairs[at] += 1;
        }
        let all = (self.text.len().saturating_sub(1) + other.len().saturating_sub(1)).max(1);
        // Both are at most a few hundred.
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let all = all as f64;
        2.0 * f64::from(common) / all
    }
}

fn index(pair: &[u8]) -> usize {
    usize::from(pair[0]) << 8 | usize::from(pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_lines_begin_where_the_longest_wanted_line_fits_best() {
        let text = "fn one() {\n    let value = compute(1);\n}\n\nfn two() {\n    let value = compute(22);\n}\n";
        assert_eq!(lines(text, "fn two() {\n    let value = compute(23);\n}"), Some(4));
        assert_eq!(lines(text, "let value = compute(1)"), Some(1));
        assert_eq!(lines(text, "let value=compute(22);"), Some(5));
        assert_eq!(lines(text, "something else entirely"), None);
        assert_eq!(lines("", "x"), None);
        assert_eq!(lines("x", ""), None);
    }

    #[test]
    fn likeness_is_between_nothing_and_the_same() {
        let mut likeness = Likeness::to("readme.md");
        assert!((likeness.of("readme.md") - 1.0).abs() < f64::EPSILON);
        assert!(likeness.of("readm.md") > likeness.of("read"));
        assert!(likeness.of("xyz") < f64::EPSILON);
        // Comparing changes nothing.
        assert!(likeness.of("readm.md") > 0.7);
    }
}
