//! Stop words: questions are full of them, and in a memory some are rare enough to outweigh the words that matter.
//!
//! Texts keep them; only queries drop them, and only if other words are left. Only English ones: those of other
//! languages are words that matter here (`die`, `hat`, `war`). So are
//! `go` and `us`, which are a language and a country.

/// English articles, pronouns, auxiliaries, prepositions and question words, folded but not stemmed.
const COMMON: &str = " a about after again all also am an and any are as at be been being but by can could did do does doing \
    for from get had has have having he her him his how i if in into is it its just me more my no not of off on once \
    only or our out s she should so some such t than that the their them then there these they this those to too up \
    very was we were what when where which while who whom whose why will with would you your ";

/// Returns true if a folded word is a stop word.
pub(super) fn is_common(word: &[char]) -> bool {
    const LETTERS_MAX: usize = 8;
    if word.len() > LETTERS_MAX {
        return false;
    }
    let padded: String = [' '].iter().chain(word).chain(&[' ']).collect();
    COMMON.contains(&padded)
}
