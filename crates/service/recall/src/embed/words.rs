//! Weights of words: the commonest words of a few languages say little about a text's subject.

/// Sorted, in lower case.
const COMMON: &[&str] = &[
    "a", "about", "after", "again", "all", "also", "am", "an", "and", "any", "are", "as", "at", "auch", "auf", "aus",
    "avec", "be", "because", "been", "before", "bei", "but", "by", "can", "ce", "che", "com", "como", "con", "could",
    "da", "dans", "das", "de", "del", "dem", "den", "der", "des", "di", "did", "die", "do", "does", "du", "e", "ein",
    "eine", "el", "en", "er", "es", "est", "et", "for", "from", "für", "get", "go", "had", "has", "hat", "have", "he",
    "her", "here", "him", "his", "how", "i", "ich", "if", "il", "im", "in", "into", "is", "ist", "it", "its", "je",
    "just", "know", "la", "las", "le", "les", "like", "lo", "los", "made", "make", "many", "me", "mit", "more", "most",
    "much", "my", "new", "nicht", "no", "not", "now", "of", "oh", "ok", "okay", "on", "one", "only", "or", "other",
    "our", "out", "over", "para", "pas", "please", "por", "pour", "que", "qui", "really", "said", "say", "se", "she",
    "should", "sich", "sie", "so", "some", "sont", "such", "sur", "thank", "thanks", "that", "the", "their", "them",
    "then", "there", "these", "they", "thing", "this", "those", "to", "too", "um", "un", "una", "und", "une", "up",
    "us", "use", "very", "von", "vous", "want", "was", "we", "well", "were", "what", "when", "where", "which", "who",
    "why", "will", "with", "would", "yes", "you", "your", "zu",
];

/// Returns how much a word says about a text's subject: little if common or short, much if long or a number.
pub(super) fn weight(word: &str) -> f32 {
    if COMMON.binary_search(&word).is_ok() {
        return 0.1;
    }
    let mut weight: f32 = match word.chars().count() {
        0 | 1 => 0.3,
        2 => 0.6,
        3 => 0.8,
        4 | 5 => 1.0,
        6 | 7 => 1.2,
        8..=10 => 1.4,
        _ => 1.6,
    };
    if word.chars().any(|letter| letter.is_ascii_digit()) {
        weight *= 1.5;
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        assert!(COMMON.is_sorted_by(|one, other| one < other));
    }
}
