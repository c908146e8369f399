//! The projector, killed at everything it does to its folder: the next start makes the files what a journal makes them.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use meerkat_testkit::campaigns::Part;
use serde_json::json;

use crate::{
    process::{Answer, Process, Stage, Trouble, copy},
    shim::{Act, Shim, Told},
};

/// A data directory with two sessions, and their files where they are wanted.
struct Base {
    stage: Stage,
    sessions: [String; 2],
}

impl Base {
    fn new(is_projected: bool) -> Self {
        let stage = Stage::made();
        let process = stage.rpc(&Arc::default(), None);
        let first = process.create().unwrap();
        process.turn(&first, r#"@call test_echo {"text":"hi"} @say Done."#).unwrap();
        let second = process.fork(&first).unwrap();
        let sessions = [first, second];
        projected(&process, &sessions).unwrap();
        assert_eq!(process.end(), Some(0));
        if !is_projected {
            fs::remove_dir_all(stage.rkat()).unwrap();
        }
        Self { stage, sessions }
    }

    fn copied(&self) -> Stage {
        let stage = Stage::empty();
        copy(&self.stage.data(), &stage.data());
        if self.stage.rkat().exists() {
            copy(&self.stage.rkat(), &stage.rkat());
        }
        stage
    }
}

/// Waits until the files have the sessions whole.
fn projected(process: &Process, sessions: &[String]) -> Answer<()> {
    for id in sessions {
        let seq = process.value("session/read", &json!({ "session_id": id }))?["last_seq"].clone();
        let wait = json!({ "reader": "projection", "session_id": id, "seq": seq, "wait_ms": 60_000 });
        assert_eq!(process.value("reader/wait", &wait)?["seq"], seq);
    }
    Ok(())
}

/// Every file of the sessions, without those that are not whole yet.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(path),
                false => {
                    drop(found.insert(path.strip_prefix(root).unwrap().display().to_string(), fs::read(path).unwrap()))
                }
            }
        }
    }
    found
}

fn rebuild(stage: &Stage) -> BTreeMap<String, Vec<u8>> {
    let done = stage.run(&["call", "projection/rebuild"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    files(&stage.rkat())
}

/// Kills `script` within each write of the projector and after each other thing that it does; afterwards `again` makes
/// the files whole. Answers how often.
fn each(
    base: &Base,
    script: fn(&Process, &[String]) -> Answer<()>,
    again: fn(&Process, &[String]) -> Answer<()>,
) -> u64 {
    crate::each::each(Part::Store, |at| {
        let stage = base.copied();
        let shim = Shim::new(&stage.rkat()).at(at, Act::KillTorn);
        let process = stage.rpc(&Arc::default(), Some(&shim));
        let done = script(&process, &base.sessions);
        process.end();
        let what = shim.fired();
        if what.is_none() {
            assert!(!matches!(done, Err(Trouble::Gone)), "{}", stage.stderr());
        }
        let is_there = what.is_some();
        let _told = Told(format!("{at}: {}", what.unwrap_or_default()));
        let process = stage.rpc(&Arc::default(), None);
        again(&process, &base.sessions).unwrap();
        let found = files(&stage.rkat().join("sessions"));
        process.end();
        // From nothing, and then once more.
        fs::remove_dir_all(stage.rkat()).unwrap();
        let whole = rebuild(&stage);
        let of_sessions =
            |(name, bytes): (&String, &Vec<u8>)| Some((name.strip_prefix("sessions/")?.to_owned(), bytes.clone()));
        let wanted: BTreeMap<String, Vec<u8>> = whole.iter().filter_map(of_sessions).collect();
        assert_eq!(wanted.len(), 8, "{:?}", wanted.keys());
        assert!(found == wanted, "{:?}", differences(&found, &wanted));
        assert!(rebuild(&stage) == whole);
        is_there
    })
}

/// The names of the files that are not the same.
fn differences<'a>(one: &'a BTreeMap<String, Vec<u8>>, other: &'a BTreeMap<String, Vec<u8>>) -> Vec<&'a String> {
    let names = one.keys().chain(other.keys());
    names.filter(|name| one.get(*name) != other.get(*name)).collect()
}

fn turn(process: &Process, session_id: &str, prompt: &str) -> Answer<()> {
    process.ask("turn/start", &json!({ "session_id": session_id, "prompt": prompt })).map(drop)
}

fn with_a_turn(process: &Process, sessions: &[String]) -> Answer<()> {
    turn(process, &sessions[0], r#"@call test_echo {"text":"again"} @say Again."#)?;
    projected(process, sessions)
}

fn with_a_turn_each(process: &Process, sessions: &[String]) -> Answer<()> {
    for id in sessions {
        turn(process, id, "@say On.")?;
    }
    projected(process, sessions)
}

#[test]
fn killed_while_the_files_grow_the_next_start_goes_on() {
    assert!(each(&Base::new(true), with_a_turn, projected) > 8);
}

#[test]
fn killed_while_there_was_nothing_yet_the_next_turn_makes_the_files() {
    assert!(each(&Base::new(false), with_a_turn_each, with_a_turn_each) > 20);
}

#[test]
fn killed_while_the_files_are_made_anew_the_next_turn_makes_them_whole() {
    let rebuild = |process: &Process, _: &[String]| process.ask("projection/rebuild", &json!({})).map(drop);
    assert!(each(&Base::new(true), rebuild, with_a_turn_each) > 20);
}
