//! What stands on the disk was damaged, or lost what it may lose.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    oracle::{Known, Stored, Survey, check},
    process::{Answer, Process, Stage, Trouble, copy},
    shim::{Act, Shim, Told},
};

fn refusal<T>(answer: Answer<T>) -> String {
    match answer {
        Err(Trouble::Refused(code, _)) => code,
        Err(Trouble::Gone) => "gone".to_owned(),
        Ok(_) => "none".to_owned(),
    }
}

pub(crate) fn segment(stage: &Stage, id: &str) -> PathBuf {
    stage.data().join("journal").join(&id[id.len() - 2..]).join(id).join("1.1.mlog")
}

/// Changes one bit of the byte at a part of a file.
pub(crate) fn flip(path: &Path, part: f64) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    let at = (bytes.len() as f64 * part) as usize;
    bytes[at] ^= 1;
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn one_flipped_byte_costs_one_session_what_follows_it_and_nothing_else() {
    for part in [0.2, 0.35, 0.5, 0.65] {
        for is_killed in [false, true] {
            let (stage, known) = (Stage::made(), Arc::<Known>::default());
            let process = stage.rpc(&known, None);
            let ids: Vec<String> = (0..3).map(|_| process.create().unwrap()).collect();
            for n in 0..6 {
                for id in &ids {
                    process.turn(id, &format!(r#"@call test_echo {{"text":"a"}} @say Text {n}."#)).unwrap();
                }
            }
            let before: Vec<Stored> = ids.iter().map(|id| Stored::of(&process, id).unwrap()).collect();
            if is_killed {
                process.kill();
            }
            process.end();
            let path = segment(&stage, &ids[1]);
            let damaged = flip(&path, part);
            let _told = Told(format!("a flipped byte at {part}, killed: {is_killed}"));
            for _ in 0..2 {
                let process = stage.rpc(&Arc::default(), None);
                let readable = lines(&process, &ids[1]);
                assert!(!readable.is_empty() && readable.len() < before[1].lines.len());
                assert_eq!(readable, before[1].lines[..readable.len()]);
                let target = json!({ "session_id": ids[1] });
                let turn = json!({ "session_id": ids[1], "prompt": "@say More." });
                assert_eq!(refusal(process.ask("turn/start", &turn)), "SESSION_CORRUPTED");
                assert_eq!(refusal(process.ask("session/archive", &target)), "SESSION_CORRUPTED");
                let view = process.value("session/read", &target).unwrap();
                // Its snapshot may have been made behind the damage.
                assert!(view["last_seq"].as_u64().unwrap() >= readable.len() as u64, "{view}");
                let behind = json!({ "session_id": ids[1], "since_seq": readable.len() });
                assert_eq!(refusal(process.ask("session/events", &behind)), "SESSION_CORRUPTED");
                let list = process.value("session/list", &json!({})).unwrap();
                assert_eq!(list["items"].as_array().unwrap().len(), 3, "{list}");
                for at in [0, 2] {
                    assert_eq!(Stored::of(&process, &ids[at]).unwrap(), before[at]);
                }
                process.end();
                assert!(fs::read(&path).unwrap() == damaged, "the damaged file was changed");
            }
            let process = stage.rpc(&known, None);
            for at in [0, 2] {
                assert_eq!(process.turn(&ids[at], "@say More.").unwrap()["text"], "More.");
            }
            // What can only be read can be deleted.
            process.delete(&ids[1]).unwrap();
            assert_eq!(process.end(), Some(0));
        }
    }
}

/// The events of a session, as far as they can be read.
fn lines(process: &Process, id: &str) -> Vec<String> {
    let page = process.ask("session/events", &json!({ "session_id": id, "limit": 100 })).unwrap();
    let page: std::collections::BTreeMap<String, Box<serde_json::value::RawValue>> =
        serde_json::from_str(&page).unwrap();
    let items: Vec<Box<serde_json::value::RawValue>> = serde_json::from_str(page["items"].get()).unwrap();
    items.iter().map(|item| item.get().to_owned()).collect()
}

/// A write that was torn was never acknowledged: it is cut off and kept aside, and an event says so before anything else.
#[test]
fn a_torn_end_is_kept_aside_and_an_event_says_so() {
    let (stage, known) = (Stage::made(), Arc::<Known>::default());
    let shim = Shim::new(&stage.data()).under("/journal/").holding("Torn").at(1, Act::KillTorn);
    let process = stage.rpc(&known, Some(&shim));
    let id = process.create().unwrap();
    process.turn(&id, "@say Whole.").unwrap();
    let whole = fs::metadata(segment(&stage, &id)).unwrap().len();
    assert_eq!(refusal(process.turn(&id, "@say Torn.")), "gone");
    process.end();
    let torn = fs::read(segment(&stage, &id)).unwrap().split_off(whole as usize);
    assert!(!torn.is_empty());
    let process = stage.rpc(&known, None);
    process.turn(&id, "@say More.").unwrap();
    let events: Vec<Value> =
        lines(&process, &id)[4..6].iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!([&events[0]["type"], &events[1]["type"]], ["log_tail_repaired", "turn_started"]);
    assert_eq!(events[0]["bytes"], torn.len());
    assert_eq!(fs::read(stage.data().join(events[0]["quarantine"].as_str().unwrap())).unwrap(), torn);
    assert_eq!(process.end(), Some(0));
    check(&stage, &known);
}

/// Sessions of every kind, all at rest, in a process that is killed: one with a queue that waits.
fn lived(stage: &Stage, known: &Arc<Known>) {
    let process = stage.rpc(known, None);
    let ids: Vec<String> = (0..5).map(|_| process.create().unwrap()).collect();
    for id in &ids {
        process.turn(id, r#"@call test_huge {"bytes":40000} @say Before."#).unwrap();
    }
    let events = process.listen(&ids[0]);
    process.accept(&ids[0], "@say Runs. @stall").unwrap();
    events.until("turn_started").unwrap();
    process.accept(&ids[0], "@say Waits.").unwrap();
    process.kill();
    process.end();
    let process = stage.rpc(known, None);
    process.change("session/update", "session_updated", &json!({ "session_id": ids[1], "title": "A title" })).unwrap();
    process.change("session/archive", "session_archived", &json!({ "session_id": ids[2] })).unwrap();
    process.turn(&ids[3], "@say After.").unwrap();
    process.fork(&ids[3]).unwrap();
    process.delete(&ids[4]).unwrap();
    process.kill();
    process.end();
}

fn index(stage: &Stage) -> PathBuf {
    stage.data().join("index.redb")
}

fn marks(stage: &Stage) -> PathBuf {
    stage.data().join("active")
}

#[test]
fn without_its_copies_and_marks_a_store_says_the_same_to_the_byte() {
    type Damage = fn(&Stage);
    let damages: [(&str, Damage); 7] = [
        ("none", |_| ()),
        ("no redb", |stage| fs::remove_file(index(stage)).unwrap()),
        ("redb is nonsense", |stage| fs::write(index(stage), "nonsense".repeat(10_000)).unwrap()),
        ("redb is cut", |stage| fs::File::options().write(true).open(index(stage)).unwrap().set_len(5000).unwrap()),
        ("the marks are gone", |stage| fs::remove_dir_all(marks(stage)).unwrap()),
        ("both are damaged", |stage| {
            fs::write(index(stage), "nonsense".repeat(10_000)).unwrap();
            fs::remove_dir_all(marks(stage)).unwrap();
        }),
        ("both are gone", |stage| {
            fs::remove_file(index(stage)).unwrap();
            fs::remove_dir_all(marks(stage)).unwrap();
        }),
    ];
    let (origin, known) = (Stage::made(), Arc::<Known>::default());
    lived(&origin, &known);
    if !index(&origin).exists() {
        // It is written a second after the first change; a start that ends well writes it too.
        origin.rpc(&known, None).end();
    }
    let mut expected: Option<Survey> = None;
    for (name, damage) in damages {
        let _told = Told(name.to_owned());
        let stage = Stage::empty();
        copy(&origin.data(), &stage.data());
        damage(&stage);
        let process = stage.rpc(&Arc::default(), None);
        let survey = Survey::of(&process).unwrap();
        assert_eq!(Some(&survey), expected.as_ref().or(Some(&survey)));
        for id in survey.sessions.keys().filter(|id| row(&survey, id)["archived"] == false) {
            let next = json!({ "session_id": id, "prompt": "@say Next.", "policy": "queue" });
            assert_eq!(process.value("turn/start", &next).unwrap()["text"], "Next.");
        }
        assert_eq!(process.end(), Some(0), "{}", stage.stderr());
        expected = expected.or(Some(survey));
    }
    check(&origin, &known);
}

/// What was acknowledged just before a kill is listed as it was acknowledged.
#[test]
fn a_change_stands_however_soon_its_process_is_killed() {
    type Act = fn(&Process, &[String]);
    type Holds = fn(&Survey, &[String]) -> bool;
    let acts: [(&str, Act, Holds); 7] = [
        ("created", |process, _| drop(process.create().unwrap()), |survey, ids| survey.list.len() == ids.len() + 1),
        (
            "archived",
            |process, ids| {
                let target = json!({ "session_id": ids[0] });
                process.change("session/archive", "session_archived", &target).unwrap();
            },
            |survey, ids| row(survey, &ids[0])["archived"] == true,
        ),
        (
            "renamed",
            |process, ids| {
                let update = json!({ "session_id": ids[0], "title": "Another" });
                process.change("session/update", "session_updated", &update).unwrap();
            },
            |survey, ids| row(survey, &ids[0])["title"] == "Another",
        ),
        (
            "queued",
            |process, ids| {
                process.accept(&ids[0], "@say Runs. @stall").unwrap();
                process.accept(&ids[0], "@say Waits.").unwrap();
            },
            |survey, ids| row(survey, &ids[0])["turn_count"] == 3,
        ),
        ("deleted", |process, ids| process.delete(&ids[0]).unwrap(), |survey, ids| survey.list.len() == ids.len() - 1),
        (
            "forked",
            |process, ids| drop(process.fork(&ids[0]).unwrap()),
            |survey, ids| survey.list.len() == ids.len() + 1,
        ),
        (
            "a turn",
            |process, ids| drop(process.turn(&ids[0], "@say More.").unwrap()),
            |survey, ids| row(survey, &ids[0])["turn_count"] == 2,
        ),
    ];
    for (name, act, holds) in acts {
        for is_resting in [true, false] {
            let _told = Told(format!("{name}, resting before: {is_resting}"));
            let (stage, known) = (Stage::made(), Arc::<Known>::default());
            let mut process = stage.rpc(&known, None);
            let ids: Vec<String> = (0..2).map(|_| process.create().unwrap()).collect();
            for id in &ids {
                process.turn(id, "@say Before.").unwrap();
            }
            if is_resting {
                process.end();
                process = stage.rpc(&known, None);
            }
            act(&process, &ids);
            process.kill();
            process.end();
            let process = stage.rpc(&known, None);
            assert!(holds(&Survey::of(&process).unwrap(), &ids));
            process.end();
            check(&stage, &known);
        }
    }
}

fn row(survey: &Survey, id: &str) -> Value {
    let rows = survey.list.iter().map(|row| serde_json::from_str::<Value>(row).unwrap());
    rows.into_iter().find(|row| row["session_id"] == id).unwrap()
}
