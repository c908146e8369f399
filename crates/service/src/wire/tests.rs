//! The one encoding: a line that is decoded and encoded again is the same, byte for byte.

use meerkat_testkit::cases_and_regressions;
use proptest::{option, prelude::*};
use serde_json::{Map, Value, json};

use super::*;
use crate::{
    Operation,
    agent::record::bodies,
    clock::Timestamp,
    ids::{Seq, TurnNumber},
    service::SearchHit,
    session::{
        event::{Event, EventKind, LiveRecord, Record, SessionUpdated},
        message::RawJson,
        tests::{Filling, Sample, assert_committed, damaged, edits, filling, pinned, sample, session_id, tokens},
    },
};

/// Names of the head. A payload is spliced behind it, so no field of it may have one of these.
const HEAD: [&str; 7] = ["v", "session_id", "seq", "after", "turn", "time", "type"];

fn place() -> impl Strategy<Value = (Seq, Option<TurnNumber>, Timestamp)> {
    let time = (0..253_402_300_799_999_i64).prop_map(Timestamp::from_millis);
    (any::<Seq>(), option::of(any::<TurnNumber>()), time)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Other requests have no more keys than people would write, which bounds what reading them takes.
#[test]
fn a_creation_may_have_the_keys_of_a_whole_history() {
    let message = json!({ "role": "user", "content": "Go on." });
    let params = |messages| json!({ "history": vec![message.clone(); messages] }).to_string();
    assert_eq!(decode_create(&params(10_000)).unwrap().history.len(), 10_000);
    let keys = |keys| format!(r#"{{"labels":{{{}}}}}"#, vec![r#""a":"b""#; keys].join(","));
    assert!(decode_create(&keys(200_000)).unwrap_err().to_string().contains("more than 200000 keys"));
    let refused = decode_params::<crate::service::SessionQuery>(&keys(10_000)).unwrap_err();
    assert!(refused.to_string().contains("more than 10000 keys"), "{refused}");
    // A number that is whole is read as one, wherever it is.
    assert_eq!(decode_create(r#"{"budgets":{"steps":2.0}}"#).unwrap().budgets.steps, Some(2));
}

/// A session's creation and a turn take the same tools, and the refusal of more says the bound.
#[test]
fn a_turn_may_have_the_keys_of_all_tools_that_a_creation_takes() {
    let schema = |keys: usize| {
        let fields = (0..keys).map(|n| (format!("k{n}"), json!({}))).collect::<Map<_, _>>();
        json!({ "type": "object", "properties": fields })
    };
    let tool = |keys| json!({ "name": "look", "description": "Looks.", "input_schema": schema(keys) });
    for (tools, keys, is_taken) in [(128, 100, true), (19, 9_990, true), (21, 9_990, false)] {
        let mut params = json!({ "client_tools": vec![tool(keys); tools] });
        let created = decode_create(&params.to_string()).map(|request| request.client_tools.unwrap().len());
        (params["session_id"], params["prompt"]) = (json!(session_id()), json!("Go."));
        let begun = decode_turn(&params.to_string()).map(|request| request.client_tools.unwrap().len());
        for read in [created, begun] {
            match is_taken {
                true => assert_eq!(read.unwrap(), tools),
                false => assert!(read.unwrap_err().to_string().contains("more than 200000 keys")),
            }
        }
    }
}

/// A model wrote them, whatever else has to be read again.
#[test]
fn arguments_in_a_history_stay_as_they_were_written() {
    let arguments = r#"{"n":1.0,"of":[2e0,{"m":3.0}],"n":4.0}"#;
    let call = format!(r#"{{"type":"tool_call","call_id":"a","name":"f","arguments":{arguments}}}"#);
    let history = format!(r#"[{{"role":"user","content":"x"}},{{"role":"assistant","blocks":[{call},{call}]}}]"#);
    let params = format!(r#"{{"history":{history},"budgets":{{"steps":2.0}}}}"#);
    let request = decode_create(&params).unwrap();
    assert_eq!(request.budgets.steps, Some(2));
    let written = serde_json::to_string(&request.history).unwrap();
    assert_eq!(written.matches(arguments).count(), 2, "{written}");
    assert_eq!(decode_history(&history).unwrap(), request.history);
}

/// Only a command on the machine of the process may choose the programs that run there.
#[test]
fn no_request_in_json_names_a_search_path() {
    let session = session_id();
    let params = json!({ "session_id": session, "prompt": "x", "search_path": "/evil" }).to_string();
    let refused = decode_params::<crate::service::StartTurn>(&params).unwrap_err();
    assert!(refused.to_string().contains("unknown field `search_path`"), "{refused}");
    let turn = crate::service::StartTurn {
        search_path: Some("/bin".to_owned()),
        ..crate::service::StartTurn::new(session, "x")
    };
    assert!(!serde_json::to_string(&turn).unwrap().contains("/bin"));
}

#[test]
fn an_outline_lacks_what_was_said_and_nothing_that_a_user_named() {
    let long = "\\\" é".repeat(40);
    let filling = Filling {
        text: "text".to_owned(),
        body: long.as_str().into(),
        json: RawJson::empty_object(),
        number: 7,
        is_full: true,
    };
    let line = |event| encode_event(&Record { event, ..pinned(7, "") }).unwrap();
    for kind in EventKind::ALL.iter().filter(|kind| kind.is_durable()) {
        let Sample::Durable(mut event) = sample(*kind, &filling) else { panic!("{kind:?} is durable") };
        let outline = decode_outline(text(&line(event.clone())), false).unwrap().event;
        bodies(&mut event).into_iter().for_each(|body| *body = "".into());
        match event {
            // A system prompt does not matter for an outline.
            Event::SessionCreated(_) => assert!(matches!(outline, Event::SessionCreated(_))),
            event => assert_eq!(outline, event),
        }
    }
    let updated =
        Event::SessionUpdated(SessionUpdated { title: Some(long.clone()), labels: [("text".to_owned(), long)].into() });
    assert_eq!(decode_outline(text(&line(updated.clone())), false).unwrap().event, updated);
}

/// Writes a sample and reads it; answers with its line.
fn round_trip(
    kind: EventKind,
    filling: &Filling,
    (seq, turn, time): (Seq, Option<TurnNumber>, Timestamp),
) -> Result<String, TestCaseError> {
    let session_id = session_id();
    let line = match sample(kind, filling) {
        Sample::Durable(event) => {
            let record = Record { session_id, seq, turn, time, event };
            let line = encode_event(&record).unwrap();
            let read = decode_event(text(&line)).unwrap();
            prop_assert_eq!(&read, &record);
            prop_assert_eq!(encode_event(&read).unwrap(), &line);
            prop_assert_eq!(decode_live(text(&line)).ok().flatten(), None);
            line
        }
        Sample::Live(event) => {
            let line = encode_live(session_id, seq, turn, time, &event).unwrap();
            let read = decode_live(text(&line)).unwrap().unwrap();
            prop_assert_eq!(encode_live(session_id, seq, turn, time, &read.event).unwrap(), &line);
            prop_assert_eq!(read, LiveRecord { session_id, after: seq, turn, time, event });
            prop_assert!(decode_event(text(&line)).is_err());
            line
        }
    };
    Ok(text(&line).to_owned())
}

/// Every finite float: by its bits, and by how it is usually written.
fn floats() -> impl Strategy<Value = f64> {
    let bits = any::<u64>().prop_map(f64::from_bits);
    let single = any::<f32>().prop_map(f64::from);
    let subnormal = (0..1_u64 << 52).prop_map(f64::from_bits);
    prop_oneof![bits, single, subnormal, Just(-0.0), -2.0..2.0].prop_filter("JSON has no other", |it| it.is_finite())
}

proptest! {
    #![proptest_config(cases_and_regressions(256))]

    #[test]
    fn a_float_comes_back_bit_for_bit(float in floats(), filling in filling(), place in place()) {
        let written = serde_json::to_string(&float).unwrap();
        let bits = |json: &str| serde_json::from_str::<f64>(json).unwrap().to_bits();
        // In a model's answer.
        let filling = Filling { json: RawJson::parse(&format!("{{\"n\":{written}}}")).unwrap(), ..filling };
        let line = round_trip(EventKind::AssistantMessage, &filling, place)?;
        let tree: Value = serde_json::from_str(&line).unwrap();
        prop_assert_eq!(bits(&written), float.to_bits());
        prop_assert!(tree.to_string().contains(&format!("{{\"n\":{written}}}")), "{} {}", written, tree);
        // In an answer, and in one that an attached command hands on.
        let hit = SearchHit {
            session_id: session_id(), from_seq: 1, to_seq: 1, role: "user".to_owned(), time: place.2,
            text: String::new(), score: float, lanes: [("words".to_owned(), float)].into(),
        };
        let answer = encode(&hit).unwrap();
        let read: SearchHit = serde_json::from_slice(&answer).unwrap();
        prop_assert_eq!((read.score.to_bits(), read.lanes["words"].to_bits()), (float.to_bits(), float.to_bits()));
        prop_assert_eq!(encode(&read).unwrap(), answer);
        // In parameters: numbers with a fraction keep their digits.
        let params = format!("{{\"n\":[{written}]}}");
        let decoded: Value = decode_params(&params).unwrap();
        prop_assert_eq!(bits(&decoded["n"][0].to_string()), float.to_bits());
    }

    #[test]
    fn every_kind_is_read_as_it_was_written(filling in filling(), place in place()) {
        for &kind in EventKind::ALL {
            let line = round_trip(kind, &filling, place)?;
            prop_assert!(!line.contains('\n'));
            let (seq, turn, time) = place;
            let head = format!(
                r#"{{"v":1,"session_id":"{}","{}":{seq},"turn":{},"time":"{time}","type":"{}""#,
                session_id(), if kind.is_durable() { "seq" } else { "after" },
                turn.map_or("null".to_owned(), |turn| turn.to_string()), kind.name(),
            );
            let rest = line.strip_prefix(&head);
            prop_assert!(rest.is_some_and(|rest| rest == "}" || rest.starts_with(",\"")), "{}", line);
        }
    }

    #[test]
    fn an_unknown_kind_is_kept_to_the_letter(tokens in tokens(), (seq, turn, time) in place()) {
        let line = format!(
            r#"{{"type":"dreamt", "v":2,"session_id":"{}","seq":{seq},"turn":{},"time":"{time}","of": {} }}"#,
            session_id(), turn.map_or("null".to_owned(), |turn| turn.to_string()), tokens.join(" "),
        );
        let record = decode_event(&line).unwrap();
        prop_assert_eq!((record.seq, record.turn, record.time), (seq, turn, time));
        prop_assert_eq!(record.event.type_name(), "dreamt");
        prop_assert_eq!(encode_event(&record).unwrap(), line.as_bytes());
    }

    /// A damaged line is refused or read; a line that is read can be encoded and decoded again.
    #[test]
    fn a_damaged_line_is_no_panic(filling in filling(), place in place(), which in any::<usize>(), edits in edits()) {
        let line = round_trip(EventKind::ALL[which % EventKind::ALL.len()], &filling, place)?;
        let line = damaged(&line, &edits);
        if let Ok(record) = decode_event(&line) {
            let again = encode_event(&record).unwrap();
            prop_assert_eq!(decode_event(text(&again)).unwrap(), record);
        }
        if let Ok(Some(live)) = decode_live(&line) {
            let again = encode_live(live.session_id, live.after, live.turn, live.time, &live.event).unwrap();
            prop_assert_eq!(decode_live(text(&again)).unwrap(), Some(live));
        }
    }
}

#[test]
fn an_unknown_kind_may_nest_deeper_than_what_comes_from_outside() {
    let deep = "[".repeat(100) + &"]".repeat(100);
    let known = text(&encode_event(&pinned(1, "x")).unwrap()).to_owned();
    let line = known.replace(r#""pinned""#, r#""dreamt""#).replace(r#""x""#, &deep);
    let record = decode_event(&line).unwrap();
    assert!(matches!(record.event, Event::Unknown(_)));
    assert_eq!(text(&encode_event(&record).unwrap()), line);
    assert_eq!(decode_live(&line.replace("seq", "after")).unwrap(), None);
}

#[test]
fn no_field_of_a_payload_has_a_name_of_the_head() {
    for &kind in EventKind::ALL {
        let schema = kind.payload_schema();
        assert_eq!(schema.get("type").and_then(Value::as_str), Some("object"), "{}", kind.name());
        let fields = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let taken: Vec<_> = fields.filter(|field| HEAD.contains(&field.as_str())).collect();
        assert!(taken.is_empty(), "{}: {taken:?}", kind.name());
    }
}

/// A compound schema: one for each name, each with an `$id` of its own, so that references stay within it.
fn document(what: &str, schemas: impl Iterator<Item = (&'static str, schemars::Schema)>) -> String {
    let mut definitions = Map::new();
    for (name, mut schema) in schemas {
        schema.remove("$schema");
        schema.insert("$id".to_owned(), name.into());
        definitions.insert(name.to_owned(), schema.to_value());
    }
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made by `MEERKAT_BLESS=1 cargo test -p meerkat-service`. Do not edit.",
        "title": what,
        "$defs": definitions,
    });
    // Some builds keep the order of insertion in a value tree.
    document.sort_all_objects();
    serde_json::to_string_pretty(&document).unwrap() + "\n"
}

#[test]
fn the_schemas_are_made_of_the_types() {
    let events = EventKind::ALL.iter().map(|&kind| (kind.name(), event_schema(kind)));
    assert_committed("docs/schemas/events.json", &document("One line of each kind of event", events));
    let of = |schema: fn(Operation) -> schemars::Schema| {
        Operation::ALL.iter().map(move |&operation| (operation.name(), schema(operation)))
    };
    let requests = document("The parameters of each operation", of(request_schema));
    assert_committed("docs/schemas/requests.json", &requests);
    assert_committed("docs/schemas/answers.json", &document("The answer of each operation", of(answer_schema)));
}

#[test]
fn a_whole_number_is_one_however_it_is_written() {
    let read = |number: &str| {
        let params = format!(r#"{{"session_id":"{}","since_seq":{number}}}"#, session_id());
        decode_params::<crate::service::ReadEvents>(&params).map(|request| request.since_seq).ok()
    };
    for (written, meant) in [("7", 7), ("7.0", 7), ("70e-1", 7), ("1E+3", 1000), ("-0.0", 0), ("1e16", 10_u64.pow(16))]
    {
        assert_eq!(read(written), Some(meant), "{written}");
    }
    assert_eq!(read("18446744073709551615"), Some(u64::MAX));
    for wrong in ["7.5", "-1", "-1.0", "1e300", "18446744073709551616", r#""7.0""#, "null", "true"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
    let prompt = r#"say \"2.0\" and 1e3"#;
    let turn = format!(r#"{{"session_id":"{}","prompt":"{prompt}","budgets":{{"steps":2.0}}}}"#, session_id());
    let turn: crate::service::StartTurn = decode_params(&turn).unwrap();
    assert_eq!((&*turn.prompt.text(), turn.budgets.steps), (r#"say "2.0" and 1e3"#, Some(2)));
}

#[test]
fn a_part_of_a_request_is_an_object() {
    let read = |part: &str| {
        let params = format!(r#"{{"session_id":"{}","prompt":"x",{part}}}"#, session_id());
        decode_params::<crate::service::StartTurn>(&params).is_ok()
    };
    assert!(read(r#""budgets":{"steps":1},"compaction":{"recent_turn_budget":1}"#));
    assert!(read(r#""budgets":{},"compaction":null"#));
    assert!(read(r#""options":{"temperature":1,"stop":[],"seed":null}"#));
    for wrong in [
        r#""budgets":[1]"#,
        r#""budgets":null"#,
        r#""compaction":[1,2,3,4]"#,
        r#""budgets":{"steps":[1]}"#,
        r#""options":[1]"#,
        r#""options":null"#,
        r#""options":{"heat":1}"#,
        r#""options":{"seed":-1}"#,
    ] {
        assert!(!read(wrong), "{wrong}");
    }
}
