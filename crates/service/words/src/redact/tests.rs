//! Secrets and key shapes, whole and in pieces.

use meerkat_testkit::cases;
use proptest::prelude::*;

use super::*;

fn secrets(values: &[&str]) -> Secrets {
    Secrets::new(values.iter().map(|value| SecretString::from(*value)))
}

/// Sends the chunks through a stream; answers with what came out after each, and at the end.
fn stream(secrets: &Secrets, chunks: &[&str]) -> Vec<String> {
    let mut redactor = secrets.stream();
    let mut sent: Vec<String> = chunks.iter().map(|chunk| redactor.push(chunk).into_owned()).collect();
    sent.push(redactor.finish());
    sent
}

#[test]
fn every_secret_is_replaced() {
    let secrets = secrets(&["opensesame", "hunter2hunter2"]);
    assert_eq!(
        secrets.replace("opensesame, hunter2hunter2 and opensesameopensesame"),
        "[redacted], [redacted] and [redacted][redacted]"
    );
}

#[test]
fn a_learned_secret_is_replaced_by_all_clones_until_its_learner_has_others() {
    let secrets = secrets(&["opensesame"]);
    let mut begun = secrets.clone().stream();
    secrets.learn("a", vec!["first-token".into()]);
    secrets.learn("b", vec!["other-token".into()]);
    assert_eq!(begun.push("opensesame first-token other-token!"), "[redacted] [redacted] [redacted]!");
    secrets.learn("a", vec!["second-token".into()]);
    assert_eq!(secrets.replace("opensesame first-token second-token"), "[redacted] first-token [redacted]");
}

#[test]
fn of_two_that_match_the_longer_one_counts() {
    let secrets = secrets(&["abcdefgh", "abcdefghijkl"]);
    assert_eq!(secrets.replace("abcdefghijkl abcdefghijk"), "[redacted] [redacted]ijk");
    assert_eq!(stream(&secrets, &["abcdefgh", "ijkl"]), ["", "[redacted]", ""]);
    assert_eq!(stream(&secrets, &["abcdefgh", "ij", "x"]), ["", "", "[redacted]ijx", ""]);
}

#[test]
fn a_secret_within_json_is_replaced() {
    let secrets = secrets(&["pass\"word\\\n"]);
    assert_eq!(secrets.replace(r#"{"key":"pass\"word\\\n"}"#), r#"{"key":"[redacted]"}"#);
    assert_eq!(secrets.replace("pass\"word\\\n"), "[redacted]");
}

#[test]
fn short_values_are_no_secrets() {
    let secrets = secrets(&["", "1234567"]);
    assert!(secrets.is_empty());
    assert_eq!(secrets.replace("1234567"), "1234567");
}

#[test]
fn without_a_secret_nothing_is_copied_or_held_back() {
    let none = Secrets::default();
    assert!(matches!(none.replace("text"), Cow::Borrowed("text")));
    assert!(matches!(none.stream().push("text"), Cow::Borrowed("text")));
    assert!(matches!(secrets(&["opensesame"]).replace("text"), Cow::Borrowed("text")));
}

#[test]
fn no_more_is_held_back_than_could_begin_a_secret() {
    let secrets = secrets(&["opensesame"]);
    assert_eq!(
        stream(&secrets, &["say open", "ing", " open", "sesa", "me!"]),
        ["say ", "opening", " ", "", "[redacted]!", ""]
    );
    assert_eq!(stream(&secrets, &["oopenses"]), ["o", "openses"]);
}

/// Texts over few letters, so that secrets overlap, contain and nearly meet each other.
fn texts() -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
    let secrets = prop::collection::vec("[aé\"]{8,10}", 1..4);
    secrets.prop_flat_map(|secrets| {
        let in_json: Vec<String> = secrets.iter().map(|secret| serde_json::to_string(secret).unwrap()).collect();
        let planted = prop::sample::select([secrets.clone(), in_json].concat());
        let pieces = prop::collection::vec(prop_oneof![planted, "[aé\"\\\\b]{0,6}"], 0..12);
        (Just(secrets), pieces)
    })
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_stream_is_redacted_like_the_whole((values, pieces) in texts(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let secrets = secrets(&values.iter().map(String::as_str).collect::<Vec<_>>());
        let text = pieces.concat();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        let chunks: Vec<&str> = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();

        let sent = stream(&secrets, &chunks).concat();

        prop_assert_eq!(&sent, &secrets.replace(&text));
        for value in &values {
            prop_assert!(!sent.contains(value), "{:?} is still in {:?}", value, sent);
        }
    }
}

/// A secret in JSON is found however it is escaped, also where it is a number, and what is left is JSON.
#[test]
fn json_is_redacted_in_every_spelling() {
    let secrets = Secrets::new(["planted/secret=".to_owned().into(), "1234567890".to_owned().into()]);
    let clean = |json: &str| secrets.replace_json(&RawJson::parse(json).unwrap()).as_str().to_owned();
    assert_eq!(clean(r#"{"a":"x planted\/secret\u003d y"}"#), r#"{"a":"x [redacted] y"}"#);
    assert_eq!(clean(r#"{"n":1234567890,"planted/secret=":[true]}"#), r#"{"n":"[redacted]","[redacted]":[true]}"#);
    let untouched = r#"{"a":"\u00e9\"\\","b":1e2,"b":-0.10}"#;
    assert_eq!(clean(untouched), untouched);
}

/// A body is redacted in chunks like in the whole, wherever a character, a secret or a key is cut.
#[test]
fn a_body_in_chunks_is_redacted_like_the_whole() {
    let secrets = Secrets::new([SecretString::from("hunter2-hunter2")]);
    let text = "é hunter2-hunter2 sk-abcdefgh \u{1F600} hunter2-hunter hunter2-hunter2".repeat(3);
    let body = [text.as_bytes(), b" \xff\xe2\x82 ", text.as_bytes(), b"\xe2\x82"].concat();
    let whole = secrets.redact(&String::from_utf8_lossy(&body)).into_owned();
    for bytes in 1..100 {
        let (mut redactor, mut out) = (BodyRedactor::new(&secrets), Vec::new());
        for chunk in body.chunks(bytes) {
            out.extend(redactor.push(chunk, false));
        }
        out.extend(redactor.push(b"", true));
        assert_eq!(String::from_utf8(out).unwrap(), whole, "in chunks of {bytes}");
    }
}
