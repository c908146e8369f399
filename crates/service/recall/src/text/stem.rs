//! Stemming: removes the commonest endings, so that `plans`, `planned` and `planning` match.
//!
//! The rules are English; the plural serves related languages too. They only cut or replace an ending: a wrong cut
//! happens in texts and queries alike.

const LETTERS_MIN: usize = 4;

/// Stems a word; one with other than plain Latin letters stays as it is.
pub(super) fn stem(word: &[char]) -> Vec<char> {
    let mut stem = word.to_vec();
    if !stem.iter().all(char::is_ascii_lowercase) {
        return stem;
    }
    if stem.len() >= LETTERS_MIN {
        plural(&mut stem);
        adverb(&mut stem);
        participle(&mut stem);
        if stem.len() >= LETTERS_MIN && stem.ends_with(&['e']) {
            stem.pop();
        }
    }
    if let [_, .., before, last] = &mut stem[..]
        && *last == 'y'
        && !is_vowel(*before)
    {
        *last = 'i';
    }
    stem
}

fn plural(stem: &mut Vec<char>) {
    if ends(stem, "ies") {
        // `studies` and `study`, but `ties` and `tie`.
        cut(stem, if stem.len() > 4 { 2 } else { 1 });
    } else if ends(stem, "sses") || ends(stem, "ches") || ends(stem, "shes") || ends(stem, "xes") || ends(stem, "zes") {
        cut(stem, 2);
    } else if ends(stem, "s") && !ends(stem, "ss") && !ends(stem, "us") && !ends(stem, "is") {
        cut(stem, 1);
    }
}

fn adverb(stem: &mut Vec<char>) {
    if stem.len() > 5 && ends(stem, "ly") {
        cut(stem, 2);
    } else if stem.len() > 6 && ends(stem, "ness") {
        cut(stem, 4);
    }
}

fn participle(stem: &mut Vec<char>) {
    if stem.len() > 4 && ends(stem, "ied") {
        cut(stem, 2);
        return;
    }
    let ending = if ends(stem, "ing") {
        3
    } else if ends(stem, "ed") {
        2
    } else {
        return;
    };
    let kept = stem.len() - ending;
    // `sing` and `red` are no participles.
    if kept < 3 && !(kept == 2 && ending == 3) || !stem.iter().take(kept).any(|letter| is_vowel(*letter)) {
        return;
    }
    cut(stem, ending);
    if let [.., before, last] = stem[..]
        && before == last
        && !is_vowel(last)
        && !matches!(last, 'l' | 's' | 'z')
        && stem.len() > 3
    {
        stem.pop();
    }
}

fn is_vowel(letter: char) -> bool {
    matches!(letter, 'a' | 'e' | 'i' | 'o' | 'u' | 'y')
}

fn ends(stem: &[char], ending: &str) -> bool {
    stem.len() > ending.len() && stem.iter().rev().copied().zip(ending.chars().rev()).all(|(a, b)| a == b)
}

fn cut(stem: &mut Vec<char>, letters: usize) {
    stem.truncate(stem.len().saturating_sub(letters));
}
