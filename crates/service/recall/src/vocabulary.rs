//! Words that texts hold, by the runs of three letters in them: a word of a query that no text holds is looked for in
//! the words that are spelt alike.
//!
//! It costs what the vocabulary does, not what the texts do. Words with digits are ids, and are not in it.

use std::collections::HashMap;

use redb::{ReadTransaction, ReadableTable as _, WriteTransaction};

use super::{
    file::Trouble,
    tables::{FORMS, RUNS},
    text::{self, Spelt},
};

/// Letters of a run; a word's two ends count as letters.
const RUN_LETTERS: usize = 3;
/// Marks a word's end in a run.
const END: char = '\u{1}';
/// Letters of a word that is looked for by its spelling.
const LETTERS: std::ops::RangeInclusive<usize> = 2..=24;
/// Words with a run that are looked at.
const WORDS_PER_RUN_MAX: usize = 4_096;
/// Runs that one of two words has more.
const LENGTHS_APART_MAX: usize = 2;
/// Words that are returned, at most.
const ALIKE_MAX: usize = 32;
/// Least share of their runs that two words have in common (Dice).
const ALIKE_MIN: f32 = 0.5;

/// Adds the words of texts.
pub(super) fn put<'a>(transaction: &WriteTransaction, words: impl Iterator<Item = &'a Spelt>) -> Result<(), Trouble> {
    let mut forms = transaction.open_table(FORMS)?;
    let mut by_run = transaction.open_table(RUNS)?;
    for Spelt { word, term } in words {
        let form = text::term(word.chars());
        if forms.get(form)?.is_some() {
            continue;
        }
        let runs = runs(word);
        if let Ok(count) = u8::try_from(runs.len())
            && count > 0
        {
            forms.insert(form, (*term, count, word.chars().next().unwrap_or_default()))?;
            runs.iter().try_for_each(|run| by_run.insert((*run, form), ()).map(drop))?;
        }
    }
    Ok(())
}

/// Finds the terms of words that are spelt like this one, each with its likeness up to 1, best first.
pub(super) fn alike(transaction: &ReadTransaction, word: &str) -> Result<Vec<(u32, f32)>, Trouble> {
    let wanted = runs(word);
    let (forms, by_run) = (transaction.open_table(FORMS)?, transaction.open_table(RUNS)?);
    let mut common: HashMap<u32, u16> = HashMap::new();
    for run in &wanted {
        for row in by_run.range((*run, 0)..=(*run, u32::MAX))?.take(WORDS_PER_RUN_MAX) {
            *common.entry(row?.0.value().1).or_default() += 1;
        }
    }
    let mut alike: Vec<(u32, f32)> = Vec::new();
    for (form, common) in common {
        let Some((term, runs, begins)) = forms.get(form)?.map(|row| row.value()) else { continue };
        // A slip leaves the length about as it is, and hardly ever changes the first letter.
        let is_slip = word.starts_with(begins) && wanted.len().abs_diff(usize::from(runs)) <= LENGTHS_APART_MAX;
        if !is_slip && !word.contains(text::is_unspaced) {
            continue;
        }
        let all = f32::from(runs) + f32::from(u16::try_from(wanted.len()).unwrap_or(u16::MAX));
        let likeness = 2.0 * f32::from(common) / all;
        if likeness > ALIKE_MIN {
            alike.push((term, likeness));
        }
    }
    alike.sort_unstable_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
    let mut known = std::collections::HashSet::new();
    alike.retain(|(term, _)| known.insert(*term));
    alike.truncate(ALIKE_MAX);
    Ok(alike)
}

/// Hashes the different runs of a word; none if it is too short or too long. In a script without spaces between words
/// each letter is a run.
fn runs(word: &str) -> Vec<u32> {
    let letters: Vec<char> = word.chars().collect();
    let mut runs: Vec<u32> = if letters.iter().any(|letter| text::is_unspaced(*letter)) {
        letters.iter().map(|letter| text::term([*letter])).collect()
    } else if LETTERS.contains(&letters.len()) {
        let ended: Vec<char> = [END].into_iter().chain(letters).chain([END]).collect();
        ended.windows(RUN_LETTERS).map(|run| text::term(run.iter().copied())).collect()
    } else {
        Vec::new()
    };
    runs.sort_unstable();
    runs.dedup();
    runs
}
