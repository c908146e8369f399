//! Terms of words and of their forms.

use super::super::text::{analyse, analyse_query};

/// Each row has one word.
#[test]
fn forms_of_a_word_are_one_word() {
    let same = [
        ["plan", "plans", "planned", "planning"],
        ["study", "studies", "studied", "studying"],
        ["make", "makes", "Making", "MAKE"],
        ["happy", "happily", "Happy", "happy's"],
        ["box", "boxes", "boxed", "boxing"],
        ["buy", "buys", "bought", "buying"],
        ["write", "wrote", "written", "writing"],
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

#[test]
fn runs_are_shared_by_what_is_written_alike() {
    let (right, wrong) = (analyse("bassoon").runs, analyse("basoon").runs);
    assert!(wrong.iter().filter(|run| right.contains(run)).count() >= 3);
    assert_eq!(analyse("ab").runs.len(), 1);
    assert!(analyse("a ?! \u{0}").runs.is_empty());
}

#[test]
fn what_asks_and_what_names_a_time_is_known() {
    for asks in ["Where is it?", "And then? ", "(really?)", "「どこ？」", "أين هو؟"] {
        assert!(analyse(asks).asks, "{asks}");
    }
    for tells in ["It is there.", "Why? Because.", "a?b", ""] {
        assert!(!analyse(tells).asks, "{tells}");
    }
    for timed in ["I went yesterday", "in June", "since 2019", "vor einer Woche", "l'année dernière, en août", "вчера"]
    {
        assert!(analyse(timed).names_time, "{timed}");
    }
    for timeless in ["I went there", "an apple, mes amis", "port 7432", "3019 of them", ""] {
        assert!(!analyse(timeless).names_time, "{timeless}");
    }
    for question in ["When did she leave?", "which year was it", "Wann war das?", "когда?"] {
        assert!(analyse_query(question).asks_when, "{question}");
    }
    for question in ["Where was it last year?", "what did the day bring", "whenever", ""] {
        assert!(!analyse_query(question).asks_when, "{question}");
    }
}

#[test]
fn a_huge_text_is_bounded() {
    let terms = analyse(&"word ".repeat(1_000_000));
    assert!(terms.words.len() <= 64 * 1024 / 5 + 1);
    let terms = analyse(&"x".repeat(1_000_000));
    assert!(terms.words.len() == 1 && terms.runs.len() <= 64);
}
