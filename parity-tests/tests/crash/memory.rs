//! Memory, killed at everything it writes: the next start finds what an index made from nothing finds, and nothing
//! that was forgotten.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use meerkat_testkit::campaigns::Part;
use serde_json::{Value, json};

use crate::{
    KEEPS_SESSIONS,
    process::{Answer, Process, Stage, Trouble, copy},
    shim::{Act, NAMES, Shim, Told, WRITES},
};

/// What was said before, a word for each session.
const BEFORE: [&str; 3] = ["kumquat", "persimmon", "rambutan"];
/// What is said meanwhile.
const MEANWHILE: [&str; 2] = ["tamarind", "mangosteen"];

/// A data directory with three sessions that memory has taken in.
struct Base {
    stage: Stage,
    sessions: [String; 3],
}

impl Base {
    fn new() -> Self {
        let stage = Stage::made();
        let process = stage.rpc(&Arc::default(), None);
        let sessions = BEFORE.map(|word| {
            let id = process.create().unwrap();
            say(&process, &id, word).unwrap();
            id
        });
        caught_up(&process).unwrap();
        assert_eq!(process.end(), Some(0));
        Self { stage, sessions }
    }
}

fn copied(from: &Stage) -> Stage {
    let stage = Stage::empty();
    copy(&from.data(), &stage.data());
    stage
}

fn say(process: &Process, session_id: &str, word: &str) -> Answer<()> {
    let prompt = format!("@say The {word} is ripe.");
    process.ask("turn/start", &json!({ "session_id": session_id, "prompt": prompt })).map(drop)
}

/// Forgetting waits until everything is taken in, and then until all that was forgotten is erased, also where there is
/// nothing to be forgotten.
fn caught_up(process: &Process) -> Answer<()> {
    forget(process, &json!({ "source": "nothing of this name", "wait": true }))
        .map(|forgotten| assert_eq!(forgotten, 0))
}

fn forget(process: &Process, what: &Value) -> Answer<u64> {
    Ok(process.value("memory/forget", what)?["forgotten"].as_u64().unwrap())
}

/// What of the script was acknowledged.
#[derive(Default)]
struct Done {
    said: Vec<&'static str>,
    forgotten: Vec<&'static str>,
}

impl Done {
    /// Says something that is to be found from now on: a journal holds it when it is answered, and where there is none,
    /// the memory's log does once it is taken in.
    fn say(&mut self, process: &Process, session_id: &str, word: &'static str) -> Answer<()> {
        say(process, session_id, word)?;
        if !KEEPS_SESSIONS {
            caught_up(process)?;
        }
        self.said.push(word);
        Ok(())
    }
}

type Script = fn(&Process, &[String; 3], &mut Done) -> Answer<()>;

/// Takes in, forgets, deletes, and makes the index anew.
fn script(process: &Process, sessions: &[String; 3], done: &mut Done) -> Answer<()> {
    // Sessions that did not outlive their process are remembered, and have nothing more to say.
    let speakers = match KEEPS_SESSIONS {
        true => [sessions[0].clone(), sessions[1].clone()],
        false => [process.create()?, process.create()?],
    };
    done.say(process, &speakers[0], MEANWHILE[0])?;
    caught_up(process)?;
    let forgotten = forget(process, &json!({ "session_id": sessions[0], "from_seq": 1, "to_seq": 4, "wait": true }))?;
    assert_eq!(forgotten, 2, "a prompt and an answer");
    done.forgotten.push(BEFORE[0]);
    let last = json!({ "session_id": sessions[2] });
    match KEEPS_SESSIONS {
        true => drop(process.ask("session/delete", &last)?),
        false => assert_eq!(forget(process, &last)?, 2),
    }
    done.forgotten.push(BEFORE[2]);
    done.say(process, &speakers[1], MEANWHILE[1])?;
    process.ask("memory/reindex", &json!({})).map(drop)
}

/// Waits while the index is made from what is recorded.
fn script_of_making(process: &Process, _: &[String; 3], _: &mut Done) -> Answer<()> {
    caught_up(process)
}

/// The hits for each word that hold it, in the order of what was said, without their vectors: those are made beside all
/// else, and may not be there yet.
fn found(process: &Process) -> BTreeMap<&'static str, Vec<Value>> {
    caught_up(process).unwrap();
    let of = |word: &'static str| {
        let mut page = process.value("memory/search", &json!({ "query": word, "limit": 100 })).unwrap();
        let mut hits: Vec<Value> = std::mem::take(page["items"].as_array_mut().unwrap());
        hits.retain(|hit| hit["text"].as_str().unwrap().contains(word));
        for hit in &mut hits {
            hit["score"].take();
            hit["lanes"].as_object_mut().unwrap().remove("vector");
        }
        hits.sort_by_key(|hit| (hit["session_id"].to_string(), hit["from_seq"].as_u64()));
        (word, hits)
    };
    BEFORE.into_iter().chain(MEANWHILE).map(of).collect()
}

/// Kills it at its `at`th write or change of a name; `false` where there are fewer.
fn killed(base: &Stage, sessions: &[String; 3], script: Script, at: u64) -> bool {
    let stage = copied(base);
    // What a killed process has written stays, synced or not: a sync is no place of its own.
    let shim = Shim::new(&stage.data()).under("/memory").only(WRITES | NAMES).at(at, Act::KillTorn);
    let process = stage.rpc(&Arc::default(), Some(&shim));
    let mut done = Done::default();
    let ended = script(&process, sessions, &mut done);
    process.end();
    let what = shim.fired();
    match &what {
        Some(_) => assert!(matches!(ended, Ok(()) | Err(Trouble::Gone))),
        None => ended.unwrap(),
    }
    let is_killed = what.is_some();
    let _told = Told(format!("{at}: {}", what.unwrap_or_default()));

    check(&stage, &done);
    is_killed
}

/// Holds what the next start finds against what was acknowledged, and against what an index from nothing finds.
fn check(stage: &Stage, done: &Done) {
    let process = stage.rpc(&Arc::default(), None);
    let after = found(&process);
    assert_eq!(process.end(), Some(0), "{}", stage.stderr());
    for word in &done.forgotten {
        assert_eq!(after[word], [Value::Null; 0], "{word} was forgotten");
        assert!(!is_in_log(stage, word), "{word} was forgotten");
    }
    for word in done.said.iter().chain(&BEFORE[1..2]) {
        assert_eq!(after[word].len(), 2, "{word} was said by both");
    }
    without_index(stage);
    let process = stage.rpc(&Arc::default(), None);
    for (word, hits) in found(&process) {
        assert_eq!(after[word], hits, "{word}, and from nothing");
    }
}

/// The files of the memory's log.
fn log(stage: &Stage) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(stage.data().join("memory")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn is_in_log(stage: &Stage, word: &str) -> bool {
    let holds = |path: &PathBuf| fs::read(path).unwrap().windows(word.len()).any(|it| it == word.as_bytes());
    log(stage).iter().any(holds)
}

/// Leaves nothing of memory but what it is made from.
fn without_index(stage: &Stage) {
    fs::remove_file(stage.data().join("memory.redb")).unwrap();
}

/// Kills it at each of those in a script; answers how many there were.
fn each(base: &Base, script: Script) -> u64 {
    crate::each::each(Part::Memory, |at| killed(&base.stage, &base.sessions, script, at))
}

#[test]
fn killed_while_memory_changes_it_finds_what_an_index_from_nothing_finds() {
    let base = Base::new();
    assert!(each(&base, script) > 40);
}

#[test]
fn killed_while_its_index_is_made_from_nothing_memory_finds_the_same() {
    let base = Base::new();
    let process = base.stage.rpc(&Arc::default(), None);
    forget(&process, &json!({ "session_id": base.sessions[0] })).unwrap();
    assert_eq!(process.end(), Some(0));
    without_index(&base.stage);
    assert!(each(&base, script_of_making) > 5);
}

/// Plays the script to its end, or to its first refusal, and kills the process; `shim` may lie to it.
fn played(base: &Base, shim: impl FnOnce(Shim) -> Shim) -> (Stage, Answer<Done>, Shim) {
    let stage = copied(&base.stage);
    let shim = shim(Shim::new(&stage.data()));
    let process = stage.rpc(&Arc::default(), Some(&shim));
    let mut done = Done::default();
    let played = script(&process, &base.sessions, &mut done);
    process.kill();
    process.end();
    (stage, played.map(|()| done), shim)
}

/// The oracle complains if the log's first write of these bytes is answered as done and is not. Where the log alone has the
/// texts, memory itself does: what it cannot read may be one that it was to erase.
pub(crate) fn sees_a_swallowed_write(bytes: &str) {
    let base = Base::new();
    let lying = |shim: Shim| shim.under("/memory/").holding(bytes).at(1, Act::Swallow);
    let (stage, done, shim) = played(&base, lying);
    assert!(shim.fired().is_some(), "nothing was swallowed");
    let done = match (done, KEEPS_SESSIONS) {
        (Ok(done), true) => done,
        (Err(Trouble::Refused(code, error)), false) => {
            return assert_eq!(code, "MEMORY_INDEX_UNAVAILABLE", "{error}");
        }
        (Ok(_), false) => panic!("nothing was refused"),
        (Err(trouble), _) => panic!("{trouble:?}"),
    };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&stage, &done)));
    assert!(checked.is_err(), "nobody saw it");
}

#[test]
fn the_oracle_sees_a_swallowed_write_of_what_to_forget() {
    sees_a_swallowed_write("from_seq");
}

#[test]
fn the_oracle_has_nothing_to_say_of_an_honest_disk() {
    let (stage, done, _) = played(&Base::new(), |shim| shim);
    check(&stage, &done.unwrap());
}

#[test]
#[should_panic(expected = "was forgotten")]
fn the_oracle_sees_a_disk_that_lost_all_that_memory_wrote() {
    let base = Base::new();
    let (stage, done, _) = played(&base, |shim| shim);
    let done = done.unwrap();
    let (before, after) = (base.stage.data(), stage.data());
    fs::remove_dir_all(after.join("memory")).unwrap();
    copy(&before.join("memory"), &after.join("memory"));
    fs::copy(before.join("memory.redb"), after.join("memory.redb")).unwrap();
    // Otherwise it is known that the log had more.
    fs::remove_file(after.join("memory.end")).unwrap();
    check(&stage, &done);
}

/// What `doctor` finds of the memory's log.
fn examined(stage: &Stage, args: &[&str]) -> Vec<Value> {
    let ran = stage.run(&[&["doctor", "--json"], args].concat());
    let mut diagnosis: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let mut found: Vec<Value> = std::mem::take(diagnosis["findings"].as_array_mut().unwrap());
    found.retain(|finding| finding["check"] == "memory");
    let is_left = found.iter().any(|finding| finding["mended"] == false);
    assert_eq!(ran.status.code(), Some(i32::from(is_left)), "{found:?}");
    found
}

/// Damages the place in the log that says what to forget; answers what is to be told of it.
type Damage = fn(&Stage) -> String;

fn change(stage: &Stage, change: fn(&mut [u8])) -> String {
    let word = b"from_seq";
    let is_place = |path: &PathBuf| fs::read(path).unwrap().windows(word.len()).any(|it| it == word);
    let path = log(stage).into_iter().find(is_place).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(word.len()).position(|it| it == word).unwrap();
    change(&mut bytes[at..at + word.len()]);
    fs::write(&path, &bytes).unwrap();
    format!("memory/{} is damaged at byte ", path.file_name().unwrap().display())
}

const DAMAGES: [(&str, Damage); 3] = [
    ("a flipped byte", |stage| change(stage, |bytes| bytes[0] ^= 1)),
    ("a torn middle", |stage| change(stage, |bytes| bytes.fill(0))),
    ("no file is left", |stage| {
        log(stage).iter().for_each(|path| fs::remove_file(path).unwrap());
        // It is the index that knows, and says so from then on.
        let process = stage.rpc(&Arc::default(), None);
        caught_up(&process).unwrap();
        assert_eq!(process.end(), Some(0));
        "are missing before memory/1.1.mlog".to_owned()
    }),
];

#[test]
fn a_damaged_log_is_mended_and_what_was_forgotten_stays_forgotten() {
    let base = Base::new();
    let process = base.stage.rpc(&Arc::default(), None);
    for id in [&base.sessions[0], &base.sessions[2]] {
        assert_eq!(forget(&process, &json!({ "session_id": id })).unwrap(), 2);
    }
    assert_eq!(process.end(), Some(0));
    assert_eq!(examined(&base.stage, &[]), [Value::Null; 0]);
    for (name, damage) in DAMAGES {
        for has_index in [true, false] {
            let _told = Told(format!("{name}, with an index: {has_index}"));
            let stage = copied(&base.stage);
            let told = damage(&stage);
            if !has_index {
                without_index(&stage);
            }
            let seen = examined(&stage, &[]);
            assert!(seen.len() == 1 && seen[0]["what"].as_str().unwrap().contains(&told), "{told}: {seen:?}");
            let mended = examined(&stage, &["--repair"]);
            let what = mended[0]["what"].as_str().unwrap();
            // What the log cannot say any more, the index can.
            assert_eq!(what.contains(&format!("session {}, events 0 to", base.sessions[0])), has_index, "{what}");
            assert_eq!(what.contains("forget again what is missing here"), !has_index, "{what}");
            assert!(what.contains("kept in quarantine/memory.1."), "{what}");
            assert_eq!(examined(&stage, &[]), [Value::Null; 0]);
            if has_index {
                without_index(&stage);
            }
            let process = stage.rpc(&Arc::default(), None);
            let after = found(&process);
            assert_eq!(process.end(), Some(0), "{}", stage.stderr());
            // Without journals it stands nowhere any more; with them, whoever mends is told.
            let comes_back = KEEPS_SESSIONS && !has_index;
            assert_eq!(after[BEFORE[0]].is_empty(), !comes_back, "{name}");
            assert_eq!(after[BEFORE[1]].is_empty(), !KEEPS_SESSIONS && name == "no file is left", "{name}");
        }
    }
}
