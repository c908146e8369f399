//! Killed at any moment while several clients work, again and again in the same data directory.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use meerkat_testkit::{Random, campaigns::Part, seed};
use serde_json::{Value, json};

use crate::{
    oracle::{Known, check, check_stored, let_all_turns_end},
    process::{Answer, Process, Stage, Trouble},
    shim::{Act, NOT_INDEX, Shim, Told},
};

/// Lives in one data directory.
const LIVES: u64 = 25;
const CLIENTS: u64 = 3;
/// Steps that may be refused, each with the code and what somebody must have asked of the session for it. Nobody has to
/// ask for a code that follows from the session's own state: others work on it, too. A kill leads to none of them.
const REFUSALS: &[(&str, &str, &[&str])] = &[
    ("turn", "SESSION_ARCHIVED", &["archive"]),
    ("turn", "TURN_INTERRUPTED", &["delete"]),
    ("update", "SESSION_ARCHIVED", &["archive"]),
    ("interrupt", "SESSION_NOT_RUNNING", &[]),
    ("archive", "SESSION_BUSY", &[]),
    ("resume", "SESSION_ARCHIVED", &["archive"]),
    ("resume", "SESSION_BUSY", &[]),
    ("resume", "ITEM_NOT_FOUND", &[]),
    ("resume", "TURN_INTERRUPTED", &["delete"]),
    ("fork", "SESSION_BUSY", &[]),
    ("compact", "SESSION_ARCHIVED", &["archive"]),
    ("compact", "SESSION_BUSY", &[]),
    ("compact", "COMPACTION_NO_PROGRESS", &[]),
    ("compact", "TURN_INTERRUPTED", &["interrupt", "delete"]),
    ("undo", "SESSION_ARCHIVED", &["archive"]),
    ("undo", "SESSION_BUSY", &[]),
    ("undo", "ITEM_NOT_FOUND", &[]),
    ("pin", "SESSION_ARCHIVED", &["archive"]),
    ("answers", "ITEM_NOT_FOUND", &["interrupt"]),
];

/// What was asked of each session, in all lives of a data directory.
#[derive(Default)]
struct Asked(Mutex<BTreeSet<(String, &'static str)>>);

impl Asked {
    fn note(&self, id: &str, step: &'static str) {
        self.0.lock().unwrap().insert((id.to_owned(), step));
    }

    fn was(&self, id: &str, step: &'static str) -> bool {
        self.0.lock().unwrap().contains(&(id.to_owned(), step))
    }

    /// Returns true if a step on a session may be refused with a code.
    fn explains(&self, step: &str, id: &str, code: &str, error: &Value) -> bool {
        if code == "SESSION_NOT_FOUND" {
            // Also the session that the step itself has made, before it was followed.
            return error["data"]["details"]["session_id"].as_str().is_some_and(|id| self.was(id, "delete"));
        }
        let found = REFUSALS.iter().find(|(of, with, _)| (*of, *with) == (step, code));
        found.is_some_and(|(.., because)| because.is_empty() || because.iter().any(|step| self.was(id, step)))
    }
}

/// Decides and answers all that waits in a session until it rests: other clients may wait for the turn, and answer it too.
fn answers(process: &Process, id: &str, asked: &Asked) -> Answer<()> {
    loop {
        match let_all_turns_end(process, id) {
            Err(Trouble::Refused(code, error)) if asked.explains("answers", id, &code, &error) => {
                if code == "SESSION_NOT_FOUND" {
                    return Ok(());
                }
            }
            ended => return ended,
        }
    }
}

/// One client's next wish: its name, and what came of it.
fn act(process: &Process, random: &mut Random, asked: &Asked) -> (&'static str, String, Answer<()>) {
    let sessions = process.known.sessions();
    if sessions.len() < 2 || (sessions.len() < 6 && random.below(10) == 0) {
        return ("create", String::new(), process.create().map(drop));
    }
    let id = sessions[random.below(sessions.len() as u64) as usize].clone();
    let target = json!({ "session_id": id });
    let n = random.below(1 << 40);
    let (step, answer) = match random.below(20) {
        0..4 => ("turn", process.turn(&id, &format!("@say Text {n}.")).map(drop)),
        4..7 => {
            let call = format!(r#"@call test_append {{"name":"effects","line":"{id} {n}"}}"#);
            let prompt = format!(r#"@call test_echo {{"text":"{n}"}} @step {call} @say Done {n}."#);
            ("turn", process.turn(&id, &prompt).map(drop))
        }
        7 => {
            let prompt = format!(r#"@call test_set {{"name":"set","value":"{n}"}} @say Set."#);
            ("turn", process.accept(&id, &prompt).map(drop))
        }
        8 => ("turn", process.turn(&id, &format!(r#"@call test_huge {{"bytes":40000}} @say Huge {n}."#)).map(drop)),
        9 => {
            let update = json!({ "session_id": id, "title": format!("Title {n}") });
            ("update", process.change("session/update", "session_updated", &update))
        }
        // An interrupted turn records more than the answer names, so only what is shown of it counts.
        10 => {
            asked.note(&id, "interrupt");
            ("interrupt", process.ask("turn/interrupt", &target).map(drop))
        }
        11 => {
            asked.note(&id, "archive");
            let archived = process.ask("session/archive", &target);
            ("archive", archived.and(process.ask("session/unarchive", &target)).map(drop))
        }
        12 => ("unarchive", process.ask("session/unarchive", &target).map(drop)),
        // A fork would go on with its parent's turn, and append a line that names the parent.
        13 if !process.known.is_fork(&id) => match process.ask("session/resume", &target) {
            Ok(_) => ("answers", answers(process, &id, asked)),
            refused => ("resume", refused.map(drop)),
        },
        13 => ("nothing", Ok(())),
        14 if sessions.len() < 6 => ("fork", process.fork(&id).map(drop)),
        14 => {
            asked.note(&id, "delete");
            ("delete", process.delete(&id))
        }
        15 => ("compact", process.compact(&id)),
        16 => ("undo", process.change("session/compact_undo", "compaction_undone", &target)),
        17 | 18 => {
            let (look, order) = (format!(r#"@call look {{"n":{n}}}"#), format!(r#"@call order {{"n":{n}}}"#));
            let asks = format!(r#"@call test_ask {{"name":"effects","line":"{id} {n}"}}"#);
            match process.accept_with_tools(&id, &format!("{look} {asks} {order} @echo results")) {
                Ok(_) => ("answers", answers(process, &id, asked)),
                refused => ("turn", refused.map(drop)),
            }
        }
        _ => {
            let pin = json!({ "session_id": id, "text": format!("Fact {n}") });
            ("pin", process.change("session/pin", "pinned", &pin))
        }
    };
    (step, id, answer)
}

/// A client works until the process is gone, or until it has had enough answers and kills it.
fn work(stage: &Stage, process: &Process, mut random: Random, asked: &Asked, (answers, enough): (&AtomicU64, u64)) {
    loop {
        match act(process, &mut random, asked) {
            (.., Err(Trouble::Gone)) => return,
            (step, id, Err(Trouble::Refused(code, error))) => {
                assert!(asked.explains(step, &id, &code, &error), "{step} of {id}: {error}\n{}", stage.stderr());
            }
            (.., Ok(())) => {}
        }
        if answers.fetch_add(1, Ordering::Relaxed) + 1 == enough {
            process.kill();
        }
    }
}

fn live(stage: &Stage, known: &Arc<Known>, asked: &Asked, random: &mut Random) {
    // From inside at an operation of the disk, or from outside after some answers.
    let (at, enough) = match random.below(4) {
        0 => (u64::MAX / 2, 1 + random.below(20)),
        _ => (1 + random.below(120), u64::MAX),
    };
    let kind = if random.below(2) == 0 { Act::KillBefore } else { Act::KillTorn };
    let shim = Shim::new(&stage.data()).under(NOT_INDEX).at(at, kind);
    let process = stage.rpc(known, Some(&shim));
    for id in known.sessions() {
        // It may be killed at once.
        process.follow(&id).ok();
    }
    let answers = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let random = Random::new(random.number());
            scope.spawn(|| work(stage, &process, random, asked, (&answers, enough)));
        }
    });
    assert_eq!(process.end(), None, "it was killed: {}", stage.stderr());
}

fn lives(seed: u64, count: u64) {
    let (stage, known, random) = (Stage::made(), Arc::<Known>::default(), &mut Random::new(seed));
    let asked = Asked::default();
    for life in 1..=count {
        let _told = Told(format!("life {life} of MEERKAT_CRASH_SEED={seed}"));
        live(&stage, &known, &asked, random);
        if life % 10 == 0 || life == count {
            for id in known.sessions() {
                stage.run(&["sessions", "unarchive", &id]);
            }
            check(&stage, &known);
        } else {
            let process = stage.rpc(&known, None);
            check_stored(&stage, &process, &known);
            assert_eq!(process.end(), Some(0), "{}", stage.stderr());
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// `MEERKAT_CRASH_KILLS` asks for more, `MEERKAT_SEED` for others, `MEERKAT_CRASH_SEED` for those in one data directory.
#[test]
fn killed_at_random_under_load_nothing_acknowledged_is_lost() {
    if let Some(seed) = number("MEERKAT_CRASH_SEED") {
        return lives(seed, LIVES);
    }
    let kills = number("MEERKAT_CRASH_KILLS").unwrap_or_else(|| Part::Store.share(500));
    let mut random = Random::new(seed());
    let seeds = Mutex::new((0..kills.div_ceil(LIVES)).map(move |_| random.number()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.lock().unwrap().next() else { break };
                    lives(seed, LIVES);
                }
            });
        }
    });
}
