//! Terms of words and of their forms.

use super::super::text::{analyse, analyse_query};

/// Each row has one word.
#[test]
fn forms_of_a_word_are_one_word() {
    let same = [
        ["plan", "plans", "planned", "planning"],
        ["study", "studies", "studied", "studying"],
        ["make", "makes", "Making", "MAKE"],
        ["happy", "HAPPY", "Happy", "happy's"],
        ["use", "used", "using", "uses"],
        ["й", "и\u{306}", "Й", "И\u{306}"],
        ["각", "\u{1100}\u{1161}\u{11a8}", "각", "각"],
        ["box", "boxes", "boxed", "boxing"],
        ["stop", "stopped", "stops", "stopping"],
        ["play", "plays", "played", "playing"],
        ["day", "days", "Day", "day’s"],
        ["crème", "CRÈME", "creme", "cre\u{300}me"],
        ["Straße", "strasse", "STRASSE", "ｓｔｒａｓｓｅ"],
    ];
    for forms in same {
        let words = forms.map(|form| analyse(form).words);
        assert!(words.iter().all(|other| *other == words[0] && other.len() == 1), "{forms:?}");
    }
    for (one, other) in [("sing", "s"), ("bus", "bu"), ("this", "thi"), ("red", "r"), ("class", "clas")] {
        assert_ne!(analyse(one).words, analyse(other).words, "{one} {other}");
    }
}

/// All terms of the first are in the second.
#[test]
fn parts_and_wholes_are_both_terms() {
    let within = [
        ("src", "src/foo_bar.rs"),
        ("foo_bar", "src/foo_bar.rs"),
        ("bar", "src/foo_bar.rs"),
        ("foo_bar.rs", "see src/foo_bar.rs."),
        ("case", "camelCase"),
        ("camelcase", "camelCase"),
        ("server", "HTTPServer"),
        ("2024", "2024-03-05"),
        ("2024-03-05", "on 2024-03-05, at"),
        ("v1.2.3", "v1.2.3"),
        ("std", "std::io"),
        ("me@example.org", "mail me@example.org!"),
        ("寿司", "東京で寿司を"),
        ("homme", "l'homme"),
    ];
    for (part, whole) in within {
        let (part_words, words) = (analyse(part).words, analyse(whole).words);
        assert!(part_words.iter().all(|word| words.contains(word)), "{part} in {whole}");
    }
}

/// The stop words of eight languages ate words that matter, and an irregular form made `won't` a victory.
#[test]
fn a_query_loses_english_stop_words_alone() {
    for word in ["hat", "war", "die", "US", "MIT", "go", "C", "das", "un", "oder"] {
        assert_eq!(analyse_query(&format!("what is {word}")).words, analyse(word).words, "{word}");
    }
    assert!(analyse_query("which of the").words.len() == 3, "they are kept if there is nothing else");
    assert_ne!(analyse("won't").words, analyse("win").words);
}

#[test]
fn what_asks_is_known() {
    for asks in ["Where is it?", "And then? ", "(really?)", "「どこ？」", "أين هو؟"] {
        assert!(analyse(asks).asks, "{asks}");
    }
    for tells in ["It is there.", "Why? Because.", "a?b", ""] {
        assert!(!analyse(tells).asks, "{tells}");
    }
}

#[test]
fn a_huge_text_is_bounded() {
    let terms = analyse(&"word ".repeat(1_000_000));
    assert!(terms.words.len() <= 64 * 1024 / 5 + 1);
    let terms = analyse(&"x".repeat(1_000_000));
    assert!(terms.words.len() == 1 && terms.spelt.len() == 1);
}
