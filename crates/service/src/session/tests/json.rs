//! JSON from models and tools: kept to the letter but for white space between tokens, whatever it says.

use meerkat_testkit::cases;
use proptest::{collection::vec, prelude::*, sample::select};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use crate::session::message::{BlobRef, Block, Body, JSON_DEPTH_MAX, JSON_KEYS_MAX, Message, RawJson, ToolCall};

/// The tokens of any JSON value, with numbers and escapes that a value tree would change.
pub(crate) fn tokens() -> impl Strategy<Value = Vec<String>> {
    let number = prop_oneof![
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        select(vec!["1e2", "-0", "1.0", "100000000000000000000000000000001", "1E400"]).prop_map(str::to_owned),
    ];
    let plain = any::<char>().prop_map(|character| {
        let quoted = serde_json::to_string(&character).unwrap();
        quoted[1..quoted.len() - 1].to_owned()
    });
    let escape = select(vec!["\\u00e9", "\\/", "\\ud83d\\ude00", "\\ud800", "\\\\", "\\\"", " ", "{", "]", ",", ":"]);
    let string = vec(prop_oneof![plain, escape.prop_map(str::to_owned)], 0..8)
        .prop_map(|parts| format!("\"{}\"", parts.concat()));
    let key = prop_oneof![Just("\"twice\"".to_owned()), string.clone()];
    let literal = select(vec!["null", "true", "false"]).prop_map(str::to_owned);
    let leaf = prop_oneof![number, string, literal].prop_map(|token| vec![token]);
    leaf.prop_recursive(4, 32, 4, move |inner| {
        let member = (key.clone(), inner.clone()).prop_map(|(key, value)| [vec![key, ":".to_owned()], value].concat());
        prop_oneof![
            vec(inner, 0..4).prop_map(|items| enclose("[", items, "]")),
            vec(member, 0..4).prop_map(|members| enclose("{", members, "}")),
        ]
    })
}

fn enclose(open: &str, items: Vec<Vec<String>>, close: &str) -> Vec<String> {
    let items = items.join(&",".to_owned());
    [vec![open.to_owned()], items, vec![close.to_owned()]].concat()
}

pub(super) fn compact(tokens: &[String]) -> String {
    tokens.concat()
}

/// The tokens with white space around each.
fn spaced() -> impl Strategy<Value = (Vec<String>, String)> {
    let gap = select(vec!["", "", " ", "\n", "\t\r\n  "]);
    (tokens(), vec(gap, 1..16)).prop_map(|(tokens, gaps)| {
        let gap = |at: usize| gaps[at % gaps.len()];
        let pieces = tokens.iter().enumerate().map(|(at, token)| format!("{}{token}", gap(at)));
        let text = pieces.collect::<String>() + gap(tokens.len());
        (tokens, text)
    })
}

/// Valid JSON with a few characters replaced, put in or taken out.
pub(crate) fn damaged(text: &str, edits: &[(usize, u8, char)]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for &(at, edit, character) in edits {
        let at = at % (characters.len() + 1);
        match (edit % 3, at < characters.len()) {
            (0, true) => characters[at] = character,
            (1, true) => drop(characters.remove(at)),
            _ => characters.insert(at, character),
        }
    }
    characters.into_iter().collect()
}

pub(crate) fn edits() -> impl Strategy<Value = Vec<(usize, u8, char)>> {
    let character = prop_oneof![any::<char>(), select(" \n\"\\{}[],:1e.-ntu\u{0}".chars().collect::<Vec<_>>())];
    vec((any::<usize>(), any::<u8>(), character), 1..6)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn only_white_space_between_tokens_goes((tokens, text) in spaced()) {
        let parsed = RawJson::parse(&text).unwrap();
        prop_assert_eq!(parsed.as_str(), compact(&tokens));
    }

    /// The oracle is the decoder: `RawJson` accepts the same texts with the same meaning.
    #[test]
    fn what_is_no_json_is_refused((_, text) in spaced(), edits in edits()) {
        let text = damaged(&text, &edits);
        let parsed = RawJson::parse(&text);
        prop_assert_eq!(parsed.is_ok(), serde_json::from_str::<&RawValue>(&text).is_ok(), "{:?}", text);
        if let (Ok(parsed), Ok(value)) = (parsed, serde_json::from_str::<Value>(&text)) {
            prop_assert_eq!(parsed.decode::<Value>().unwrap(), value);
        }
    }
}

#[test]
fn what_stands_apart_is_not_joined() {
    for text in ["", " ", "1 2", "tr ue", "- 1", "1 .5", "\"a\" \"b\"", "[1 2]", "{}{}", "{\"a\"}", "'a'", "\u{a0}1"] {
        assert!(RawJson::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn json_nests_only_so_deep() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(RawJson::parse(&nested(JSON_DEPTH_MAX)).is_ok());
    assert!(RawJson::parse(&nested(JSON_DEPTH_MAX + 1)).is_err());
    assert!(RawJson::parse(&nested(1_000_000)).is_err());
    let brackets_in_text = format!("\"\\\"{}\"", "[".repeat(JSON_DEPTH_MAX + 1));
    assert_eq!(RawJson::parse(&brackets_in_text).unwrap().as_str(), brackets_in_text);
    assert!(RawJson::parse(&"[]".repeat(JSON_DEPTH_MAX)).is_err());
    let siblings = format!("[{}]", vec!["[]"; 2 * JSON_DEPTH_MAX].join(","));
    assert!(RawJson::parse(&siblings).is_ok());
}

#[test]
fn json_has_only_so_many_keys() {
    let keys = |count: usize| format!("{{\"a\":[{{}}{}]}}", ",{\"b:c\":\"d:\"}".repeat(count - 1));
    assert!(RawJson::parse(&keys(JSON_KEYS_MAX)).is_ok());
    assert!(RawJson::parse(&keys(JSON_KEYS_MAX + 1)).is_err());
}

#[test]
fn a_reference_shows_its_beginning_its_end_and_what_is_left_out() {
    let blob = BlobRef { blob: "5d41".to_owned(), bytes: 10, head: "he".to_owned(), tail: "lo".to_owned() };
    let body = Body::Blob(blob);
    assert_eq!((body.len(), body.is_empty()), (10, false));
    assert_eq!(body.excerpt(), "he\n[... 6 bytes left out; the whole is blob 5d41 ...]\nlo");
}

#[test]
fn long_arguments_are_shown_by_their_beginning_their_end_and_their_size() {
    let shown = |arguments: String| {
        let (call_id, name) = ("c".to_owned(), "t".to_owned());
        ToolCall { call_id, name, arguments: RawJson::parse(&arguments).unwrap(), opaque: None }.shown_arguments()
    };
    assert_eq!(shown(r#"{"a":"é"}"#.to_owned()), r#"{"a":"é"}"#);
    let long = shown(format!(r#"{{"first":"{}","last":"end"}}"#, "é".repeat(100_000)));
    assert!(
        long.len() < 2_000 && long.starts_with(r#"{"first":"é"#) && long.ends_with(r#"é","last":"end"}"#),
        "{long}"
    );
    assert!(long.contains(" of 200025 bytes left out ...]"), "{long}");
}

/// Checks that the first texts are read and written unchanged, and the others refused.
fn check<T: DeserializeOwned + Serialize>(whole: &[&str], lacking: &[&str]) {
    for text in whole {
        assert_eq!(serde_json::to_string(&serde_json::from_str::<T>(text).unwrap()).unwrap(), *text);
    }
    for text in lacking {
        assert!(serde_json::from_str::<T>(text).is_err(), "{text}");
    }
}

#[test]
fn what_was_said_is_read_as_it_was_written() {
    check::<Body>(
        &[r#""a\nb""#, r#"{"blob":"5d41","bytes":10,"head":"he","tail":"lo"}"#],
        &["1", "null", "true", "[]", "{}", r#"{"blob":"5d41","bytes":10,"head":"he"}"#],
    );
    check::<Block>(
        &[
            r#"{"type":"text","text":""}"#,
            r#"{"type":"reasoning","text":"hm","vendor":"v","opaque":null}"#,
            r#"{"type":"tool_call","call_id":"c","name":"n","arguments":null}"#,
            r#"{"type":"tool_call","call_id":"c","name":"n","arguments":{"a":1,"a":1e2},"opaque":"x"}"#,
        ],
        &[
            r#"{"text":"hm"}"#,
            r#"{"type":"text"}"#,
            r#"{"type":"text","text":null}"#,
            r#"{"type":"reasoning","text":"hm"}"#,
            r#"{"type":"tool_call","call_id":"c","name":"n"}"#,
            r#"{"type":"image","text":"hm"}"#,
        ],
    );
    check::<Message>(
        &[
            r#"{"role":"system","content":"a"}"#,
            r#"{"role":"user","content":{"blob":"ab","bytes":9,"head":"h","tail":"t"}}"#,
            r#"{"role":"assistant","content":""}"#,
            r#"{"role":"block_assistant","model":"m","blocks":[{"type":"text","text":"x"},{"type":"tool_call","call_id":"c","name":"n","arguments":{"twice":1e2,"twice":1.0}}]}"#,
            r#"{"role":"system_reminder","kind":"custom:style","content":"</system-reminder>"}"#,
            r#"{"role":"pin","n":7,"content":"a"}"#,
            r#"{"role":"tool_results","results":[{"call_id":"c","name":"n","is_error":false,"content":"x"}]}"#,
        ],
        &[
            r#"{"role":"user"}"#,
            r#"{"role":"nobody","content":"a"}"#,
            r#"{"content":"a"}"#,
            r#"{"role":"system_reminder","content":"a"}"#,
            r#"{"role":"system_reminder","kind":"novel","content":"a"}"#,
            r#"{"role":"system_reminder","kind":"claude_md"}"#,
            r#"{"role":"pin","content":"a"}"#,
            r#"{"role":"pin","n":7}"#,
            r#"{"role":"block_assistant","model":"m"}"#,
            r#"{"role":"tool_results"}"#,
        ],
    );
}
