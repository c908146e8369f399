//! Commands that change a data directory, killed at every operation: the next one finishes what they began.

use std::sync::Arc;

use meerkat_testkit::campaigns::Part;
use serde_json::Value;

use crate::{
    damage::{flip, segment},
    oracle::{Known, Stored},
    process::{Process, Stage, copy},
    shim::{Act, Shim, Told},
};

/// Three sessions with some turns, a fork and a blob; returns their ids.
fn filled(process: &Process) -> Vec<String> {
    let mut ids: Vec<String> = (0..3).map(|_| process.create().unwrap()).collect();
    for id in &ids {
        process.turn(id, r#"@call test_huge {"bytes":40000} @say Huge."#).unwrap();
        for n in 0..4 {
            process.turn(id, &format!(r#"@call test_echo {{"text":"{n}"}} @say Text {n}."#)).unwrap();
        }
    }
    ids.push(process.fork(&ids[0]).unwrap());
    ids
}

/// Runs a command with a disk that acts at a place; returns true if there was such a place.
fn acted(stage: &Stage, args: &[&str], shim: &Shim) -> bool {
    let mut command = stage.command(args);
    shim.attach(&mut command);
    command.output().unwrap();
    shim.fired().is_some()
}

fn done(stage: &Stage, args: &[&str]) {
    let harmless = Shim::new(&stage.data());
    let mut command = stage.command(args);
    harmless.attach(&mut command);
    let output = command.output().unwrap();
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
}

/// What is stored of sessions, but for the times of a repair, and of an answer that has a gap.
fn stored(stage: &Stage, ids: &[String]) -> Vec<Vec<Value>> {
    let process = stage.rpc(&Arc::default(), None);
    let events = ids.iter().map(|id| {
        let mut events = Stored::of(&process, id).unwrap().events();
        let is_anew = |event: &&mut Value| event["type"] == "records_lost" || event["type"] == "pruned";
        events.iter_mut().filter(is_anew).for_each(|event| event["time"] = Value::Null);
        events
    });
    let events = events.collect();
    assert_eq!(process.end(), Some(0), "{}", stage.stderr());
    events
}

/// Says of which session what differs, and no more.
fn check_same(found: &[Vec<Value>], due: &[Vec<Value>]) {
    for (found, due) in found.iter().zip(due) {
        let differ = |at: &usize| found.get(*at) != due.get(*at);
        if let Some(at) = (0..found.len().max(due.len())).find(differ) {
            panic!("event {at} is {:?}, not {:?}", found.get(at), due.get(at));
        }
    }
}

#[test]
fn a_repair_that_is_killed_anywhere_is_finished_by_the_next() {
    let damaged = Stage::made();
    let known = Arc::<Known>::default();
    let process = damaged.rpc(&known, None);
    let ids = filled(&process);
    assert_eq!(process.end(), Some(0));
    flip(&segment(&damaged, &ids[1]), 0.5);
    let staged = || {
        let stage = Stage::empty();
        copy(&damaged.data(), &stage.data());
        stage
    };
    let whole = staged();
    done(&whole, &["doctor", "--repair"]);
    let due = stored(&whole, &ids);
    assert!(due[1].iter().any(|event| event["type"] == "records_lost"), "{:?}", due[1]);
    for act in [Act::KillBefore, Act::KillTorn] {
        let places = crate::each::each(Part::Store, |at| {
            let stage = staged();
            let shim = Shim::new(&stage.data()).at(at, act);
            let is_there = acted(&stage, &["doctor", "--repair"], &shim);
            let _told = Told(format!("{act:?} at {at}: {:?}", shim.fired()));
            done(&stage, &["doctor", "--repair"]);
            done(&stage, &["doctor"]);
            let mut found = stored(&stage, &ids);
            // What is lost is recorded before a file is replaced. A repair that was killed between them is made again.
            if found[1].len() > due[1].len() {
                let [mut first, again] = found[1].split_off(due[1].len() - 1).try_into().unwrap();
                first["seq"] = again["seq"].clone();
                assert_eq!(first, again);
                found[1].push(due[1].last().unwrap().clone());
            }
            check_same(&found, &due);
            is_there
        });
        assert!(places > 15, "{places}");
    }
}

#[test]
fn a_copy_that_is_killed_anywhere_is_finished_by_the_next() {
    let from = Stage::made();
    let process = from.rpc(&Arc::default(), None);
    let ids = filled(&process);
    assert_eq!(process.end(), Some(0));
    let due = stored(&from, &ids);
    for act in [Act::KillBefore, Act::KillTorn] {
        let places = crate::each::each(Part::Store, |at| {
            let to = Stage::empty();
            // One owner at a time.
            let (source, target) = (to.home().join("from"), to.data());
            copy(&from.data(), &source);
            let args = ["store", "copy", source.to_str().unwrap(), target.to_str().unwrap()];
            let shim = Shim::new(&target).at(at, act);
            let is_there = acted(&to, &args, &shim);
            let _told = Told(format!("{act:?} at {at}: {:?}", shim.fired()));
            done(&to, &args);
            check_same(&stored(&to, &ids), &due);
            is_there
        });
        assert!(places > 40, "{places}");
    }
    check_same(&stored(&from, &ids), &due);
}
