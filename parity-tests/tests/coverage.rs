//! Every error code, event kind and operation occurs in a scenario, or in `uncovered.txt` with a reason.
//!
//! It reads the scenarios' expectations; the trials test that they are met.

#![expect(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::collections::BTreeSet;

use meerkat_errors::ErrorCode;
use meerkat_parity_tests::{
    builds::{self, Build},
    expect::absence,
    scenario::{self, Step},
};
use meerkat_service::{Operation, session::event::EventKind};
use serde_json::{Value, json};

/// Everything that an expectation names as a `code` or a `type`; whole lines are read as the JSON that they are.
fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let ("code" | "type", Some(text)) = (name.as_str(), member.as_str()) {
                    found.insert(text.to_owned());
                }
                names(member, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, found)),
        Value::String(line) if line.starts_with("{\"v\":") => names(&serde_json::from_str(line).unwrap(), found),
        _ => {}
    }
}

/// The answers that a step can have in any build.
fn expected(step: &Step, builds: &[Build]) -> Value {
    let needs: Vec<&str> = step.needs.iter().flat_map(|needs| needs.split_whitespace()).collect();
    let lacking = builds.iter().filter_map(|build| needs.iter().find(|needs| !build.has(needs)));
    let absences: Vec<Value> = lacking.map(|needs| json!({ "code": absence(needs).unwrap().code })).collect();
    let is_met = builds.iter().any(|build| needs.iter().all(|needs| build.has(needs)));
    let own = json!([
        step.ok,
        step.error.as_ref().map(|error| json!({ "code": error.code })),
        step.events,
        step.event,
        step.until.as_ref().map(|until| json!({ "type": until })),
    ]);
    let given = step.given.as_ref().filter(|given| builds.iter().any(|build| build.has(&given.capability)));
    json!([
        absences,
        is_met.then_some(own),
        given.map(|given| json!([
            given.ok,
            given.error.as_ref().map(|error| json!({ "code": error.code })),
            given.events
        ]))
    ])
}

fn steps() -> Vec<Step> {
    scenario::all().unwrap().into_iter().flat_map(|scenario| scenario.steps).collect()
}

#[test]
fn every_code_and_every_kind_is_met_or_excused() {
    let builds = builds::all().unwrap();
    let mut met = BTreeSet::new();
    steps().iter().for_each(|step| names(&expected(step, &builds), &mut met));
    let all = ErrorCode::ALL.iter().map(|code| code.as_str()).chain(EventKind::ALL.iter().map(|kind| kind.name()));
    let all: BTreeSet<String> = all.map(str::to_owned).collect();
    let unmet: BTreeSet<String> = all.difference(&met).cloned().collect();

    let text = include_str!("../uncovered.txt");
    let excused: Vec<(&str, &str)> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": ")).collect();
    assert!(excused.iter().all(|(_, reason)| reason.len() > 10), "a line of uncovered.txt is `NAME: its reason`");
    let excused: BTreeSet<String> = excused.into_iter().map(|(name, _)| name.to_owned()).collect();
    let missing: Vec<&String> = unmet.difference(&excused).collect();
    assert!(missing.is_empty(), "write a scenario that expects {missing:?}, or say in uncovered.txt why there is none");
    let idle: Vec<&String> = excused.difference(&unmet).collect();
    assert!(idle.is_empty(), "take {idle:?} out of uncovered.txt: it is covered, or there is no such name");
}

#[test]
fn every_operation_is_asked() {
    let mut asked: BTreeSet<String> = steps().into_iter().filter_map(|step| step.operation).collect();
    // The first trial of each build asks it.
    asked.insert("capabilities".to_owned());
    let unasked: Vec<&str> =
        Operation::ALL.iter().map(|operation| operation.name()).filter(|name| !asked.contains(*name)).collect();
    assert!(unasked.is_empty(), "write a scenario that asks for {unasked:?}");
}
