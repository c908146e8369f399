//! The kinds' pages with their examples and human lines, and `docs/events.md`, which is generated from them.
//!
//! The document is never edited by hand: `MEERKAT_BLESS=1 cargo test -p meerkat-service` writes it.

use std::{collections::BTreeSet, fs, path::Path};

use meerkat_testkit::cases;
use proptest::prelude::*;

use super::{Filling, Sample, assert_committed, filling, sample};
use crate::{
    session::{
        event::{Event, EventKind, UnknownEvent},
        message::RawJson,
    },
    wire::{decode_event, decode_live, encode_event, encode_live},
};

const INTRODUCTION: &str = r#"# Events

<!-- Made from crates/service by `MEERKAT_BLESS=1 cargo test -p meerkat-service`. Do not edit. -->

Everything that happens in a session is an event: one line of JSON, identical on every surface. All kinds have the same head:

```json
{"v":1,"session_id":"01900000-0000-7000-8000-000000000001","seq":1,"turn":null,"time":"2026-01-01T00:00:00.000Z","type":"session_created"}
```

`v` is the version of the encoding. `turn` counts from 0 and is `null` outside a turn. The kind's own fields follow; none has the name of a head field. A text too large for an event is an object instead of a string: its `blob` to read, the `bytes` of the whole, and its `head` and `tail`. A reader ignores unknown kinds and fields.

A **durable** event has a `seq`, which counts from 1 and is a cursor for reading on. No seq is used twice; if some are missing, `pruned` says which. A **live** event is sent to current followers and not stored; instead of `seq` it has `after`, the seq of the durable event before it.

The schemas of all kinds are in [schemas/events.json](schemas/events.json).

| kind | durable or live | what happened |
|---|---|---|
"#;

/// The example of a page, and its human line.
fn example(kind: EventKind) -> (&'static str, &'static str) {
    let page = kind.page();
    let (text, rest) = page.split_once("\n\n```json\n").expect("a page has an example");
    let (line, end) = rest.split_once('\n').expect("an example is one line");
    assert_eq!(end, "```\n", "{}: ends with its one example", kind.name());
    let (_, shown) = text.split_once(" In a terminal: `").expect("a page says how it is shown");
    (line, shown.strip_suffix('`').expect("a page's text ends with how it is shown"))
}

fn decode(kind: EventKind, line: &str) -> (Sample, Vec<u8>) {
    if kind.is_durable() {
        let record = decode_event(line).unwrap();
        let bytes = encode_event(&record).unwrap();
        (Sample::Durable(record.event), bytes.to_vec())
    } else {
        let live = decode_live(line).unwrap().expect("a known kind");
        let bytes = encode_live(live.session_id, live.after, live.turn, live.time, &live.event).unwrap();
        (Sample::Live(live.event), bytes.to_vec())
    }
}

#[test]
fn every_page_belongs_to_a_kind() {
    let pages: BTreeSet<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/session/events"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let kinds: BTreeSet<String> = EventKind::ALL.iter().map(|kind| format!("{}.md", kind.name())).collect();
    assert_eq!(pages, kinds);
}

#[test]
fn every_page_tells_its_kind_and_its_fields() {
    for &kind in EventKind::ALL {
        let (name, page) = (kind.name(), kind.page());
        assert!(page.starts_with(&format!("# {name}\n\n")), "{name}: opens with its name");
        assert!((5..=12).contains(&page.lines().count()), "{name}: is short");
        let first = page.lines().nth(2).unwrap();
        assert!(first.ends_with(if kind.is_durable() { " Durable." } else { " Live." }), "{name}: says what it is");
        let schema = kind.payload_schema();
        let fields = schema.get("properties").and_then(serde_json::Value::as_object);
        assert_eq!(fields.is_none(), page.contains("It has no fields."), "{name}: says where there are none");
        for field in fields.into_iter().flat_map(serde_json::Map::keys) {
            assert!(page.contains(&format!("`{field}`")), "{name}: tells of {field}");
        }
    }
}

#[test]
fn every_example_is_read_and_written_as_it_stands() {
    for &kind in EventKind::ALL {
        let (line, shown) = example(kind);
        let (event, bytes) = decode(kind, line);
        assert_eq!(String::from_utf8(bytes).unwrap(), line);
        let name = match &event {
            Sample::Durable(event) => event.type_name().to_owned(),
            Sample::Live(event) => event.type_name().to_owned(),
        };
        assert_eq!(name, kind.name());
        assert_eq!(event.human_line(), shown);
    }
}

#[test]
fn a_line_for_people_tells_the_first_line_and_is_cut() {
    let body = |text: &str| Filling { text: text.to_owned(), body: text.into(), ..plain() };
    let shown = |text: &str| sample(EventKind::TurnQueued, &body(text)).human_line();
    assert_eq!(shown("\n  first\u{1b}[31m\tline \nsecond"), "queued: first [31m line ");
    assert_eq!(shown("turn \u{202e}round"), "queued: turn  round");
    assert_eq!(shown("run\u{200b}.sh\u{e0041}"), "queued: run\\u{200b}.sh\\u{e0041}");
    assert_eq!(shown(&"é".repeat(112)), format!("queued: {}", "é".repeat(112)));
    assert_eq!(shown(&"é".repeat(113)), format!("queued: {}…", "é".repeat(111)));
    let unknown = UnknownEvent { type_name: "dreamt".to_owned(), line: RawJson::empty_object() };
    assert_eq!(Event::Unknown(unknown).human_line(), "event of an unknown kind: dreamt");
}

fn plain() -> Filling {
    Filling { text: String::new(), body: "".into(), json: RawJson::empty_object(), number: 0, is_full: true }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn no_text_can_forge_a_line_for_people(filling in filling()) {
        for &kind in EventKind::ALL {
            let line = sample(kind, &filling).human_line();
            prop_assert!(!line.is_empty() && line.chars().count() <= 120, "{}", line);
            prop_assert!(!line.contains(|c: char| c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c)), "{:?}", line);
        }
    }
}

#[test]
fn the_document_is_made_of_the_pages() {
    let row = |kind: &EventKind| {
        let (name, page) = (kind.name(), kind.page());
        let what = page.lines().nth(2).unwrap().split_once(". ").unwrap().0;
        format!("| [`{name}`](#{name}) | {} | {what} |\n", if kind.is_durable() { "durable" } else { "live" })
    };
    let rows = EventKind::ALL.iter().map(row);
    let pages = EventKind::ALL.iter().map(|kind| format!("\n#{}", kind.page()));
    assert_committed("docs/events.md", &(INTRODUCTION.to_owned() + &rows.chain(pages).collect::<String>()));
}
