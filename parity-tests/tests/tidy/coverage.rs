//! Every error code, event kind and operation occurs in a scenario, or in `uncovered.txt` with a reason; and each refusal of an
//! operation, or in `refusals.txt` with the test that holds it.
//!
//! It reads the scenarios' expectations; the trials test that they are met.

#![expect(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use meerkat_errors::ErrorCode;
use meerkat_parity_tests::{
    builds::{self, Build},
    expect::absence,
    scenario::{self, Step},
};
use meerkat_service::{AgentBuildConfig, Operation, memory::MemoryOptions, session::event::EventKind, wire::call};
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

    let text = include_str!("../../uncovered.txt");
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

/// A service that has no session refuses such a request only if it cannot be decoded; what else is wrong comes later. Of
/// an import the command line reads the flags itself, so there the bundle is none.
#[tokio::test]
async fn every_operation_that_needs_a_capability_is_asked_with_what_cannot_be_decoded() {
    let folder = meerkat_testkit::folder();
    let config = AgentBuildConfig::new().store(folder.path().join("data"));
    let agent = config.memory(None, MemoryOptions::default()).build().unwrap();
    let scenarios = scenario::all().unwrap();
    let first = scenarios.iter().find(|scenario| scenario.name == "003-capability-first").unwrap();
    let mut asked = BTreeSet::new();
    for step in &first.steps {
        let operation = Operation::from_name(step.operation.as_deref().unwrap()).unwrap();
        let due = step.error.as_ref().unwrap().code.as_str();
        let params = json!(step.params).to_string();
        let refused = call(agent.service().as_ref(), operation, &params).await.unwrap_err();
        let expected = match operation {
            Operation::ImportBundle => ErrorCode::BundleInvalid,
            _ => ErrorCode::InvalidRequest,
        };
        assert_eq!((due, refused.code()), (expected.as_str(), expected), "{operation:?} {params}");
        asked.insert(operation.name());
    }
    let needy = Operation::ALL.iter().filter(|operation| operation.needs().is_some());
    assert_eq!(asked, needy.map(|operation| operation.name()).collect());
    agent.service().shut_down(1_000).await;
}

/// The refusals that a step can have in any build. An awaited answer is that of the operation that was asked before.
fn refused(step: &Step, operation: &str, builds: &[Build]) -> Vec<(String, String)> {
    let needs: Vec<&str> = step.needs.iter().flat_map(|needs| needs.split_whitespace()).collect();
    let lacking = builds.iter().filter_map(|build| needs.iter().find(|needs| !build.has(needs)));
    let mut codes: Vec<String> = lacking.map(|needs| absence(needs).unwrap().code).collect();
    codes.extend(step.error.as_ref().map(|error| error.code.clone()));
    let given = step.given.as_ref().and_then(|given| given.error.as_ref());
    codes.extend(given.map(|error| error.code.clone()));
    codes.into_iter().map(|code| (operation.to_owned(), code)).collect()
}

#[test]
fn every_refusal_of_an_operation_is_met_or_held_by_a_test() {
    let builds = builds::all().unwrap();
    let mut met = BTreeSet::new();
    for scenario in scenario::all().unwrap() {
        let mut asked = BTreeMap::new();
        for step in &scenario.steps {
            let operation = step.operation.as_ref().or_else(|| asked.get(step.awaited.as_ref()?).copied());
            let Some(operation) = operation else { continue };
            if let Some(name) = &step.detached {
                asked.insert(name, operation);
            }
            met.extend(refused(step, operation, &builds));
        }
    }
    let declared = Operation::ALL.iter().flat_map(|operation| {
        let name = operation.name().to_owned();
        operation.refusals().iter().map(move |code| (name.clone(), code.as_str().to_owned()))
    });
    let unmet: BTreeSet<_> = declared.filter(|pair| !met.contains(pair)).collect();

    let mut held = BTreeSet::new();
    for line in include_str!("../../refusals.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [operation, code, file, test, ..] = words[..] else { panic!("`{line}` is not `OPERATION CODE FILE TEST`") };
        held.insert((operation.to_owned(), code.to_owned()));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
        let is_named = text.contains(code) || text.contains(&camel_case(code));
        assert!(is_named, "{file} does not name {code}");
    }
    let missing: Vec<_> = unmet.difference(&held).collect();
    assert!(missing.is_empty(), "write a scenario with {missing:?}, or name in refusals.txt the test that holds it");
    let idle: Vec<_> = held.difference(&unmet).collect();
    assert!(idle.is_empty(), "take {idle:?} out of refusals.txt: it is covered, or is no refusal of the operation");
}

/// The name of a code's variant.
fn camel_case(code: &str) -> String {
    let words = code.split('_').map(|word| format!("{}{}", &word[..1], word[1..].to_ascii_lowercase()));
    words.collect()
}
