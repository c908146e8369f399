//! Killed at any moment while several clients work, again and again in the same data directory.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use meerkat_testkit::{Random, seed};
use serde_json::json;

use crate::{
    campaigns::Part,
    oracle::{Known, check, check_stored},
    process::{Answer, Process, Stage, Trouble},
    shim::{Act, NOT_INDEX, Shim, Told},
};

/// Lives in one data directory.
const LIVES: u64 = 25;
const CLIENTS: u64 = 3;
/// What clients may be told when they do not know of each other.
const REFUSALS: [&str; 8] = [
    "COMPACTION_NO_PROGRESS",
    "SESSION_ARCHIVED",
    "SESSION_NOT_FOUND",
    "SESSION_NOT_RUNNING",
    "SESSION_BUSY",
    "TURN_INTERRUPTED",
    "ITEM_NOT_FOUND",
    "QUEUE_FULL",
];

/// One client's next wish.
fn act(process: &Process, random: &mut Random) -> Answer<()> {
    let sessions = process.known.sessions();
    if sessions.len() < 2 || (sessions.len() < 6 && random.below(10) == 0) {
        return process.create().map(drop);
    }
    let id = &sessions[random.below(sessions.len() as u64) as usize];
    let target = json!({ "session_id": id });
    let n = random.below(1 << 40);
    match random.below(18) {
        0..4 => process.turn(id, &format!("@say Text {n}.")).map(drop),
        4..7 => {
            let call = format!(r#"@call test_append {{"name":"effects","line":"{id} {n}"}}"#);
            process.turn(id, &format!(r#"@call test_echo {{"text":"{n}"}} @step {call} @say Done {n}."#)).map(drop)
        }
        7 => process.accept(id, &format!(r#"@call test_set {{"name":"set","value":"{n}"}} @say Set."#)).map(drop),
        8 => process.turn(id, &format!(r#"@call test_huge {{"bytes":40000}} @say Huge {n}."#)).map(drop),
        9 => {
            let update = json!({ "session_id": id, "title": format!("Title {n}") });
            process.change("session/update", "session_updated", &update)
        }
        // An interrupted turn records more than the answer names, so only what is shown of it counts.
        10 => process.ask("turn/interrupt", &target).map(drop),
        11 => process.ask("session/archive", &target).and(process.ask("session/unarchive", &target)).map(drop),
        12 => process.ask("session/unarchive", &target).map(drop),
        // A fork would go on with its parent's turn, and append a line that names the parent.
        13 if !process.known.is_fork(id) => process.ask("session/resume", &target).map(drop),
        13 => Ok(()),
        14 if sessions.len() < 6 => process.fork(id).map(drop),
        14 => process.delete(id),
        15 => process.compact(id),
        16 => process.change("session/compact_undo", "compaction_undone", &target),
        _ => process.change("session/pin", "pinned", &json!({ "session_id": id, "text": format!("Fact {n}") })),
    }
}

/// A client works until the process is gone, or until it has had enough answers and kills it.
fn work(stage: &Stage, process: &Process, mut random: Random, answers: &AtomicU64, enough: u64) {
    loop {
        match act(process, &mut random) {
            Err(Trouble::Gone) => return,
            Err(Trouble::Refused(code, error)) => {
                assert!(REFUSALS.contains(&code.as_str()), "{error}\n{}", stage.stderr());
            }
            Ok(()) => {}
        }
        if answers.fetch_add(1, Ordering::Relaxed) + 1 == enough {
            process.kill();
        }
    }
}

fn live(stage: &Stage, known: &Arc<Known>, random: &mut Random) {
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
            scope.spawn(|| work(stage, &process, random, &answers, enough));
        }
    });
    assert_eq!(process.end(), None, "it was killed: {}", stage.stderr());
}

fn lives(seed: u64, count: u64) {
    let (stage, known, random) = (Stage::made(), Arc::<Known>::default(), &mut Random::new(seed));
    for life in 1..=count {
        let _told = Told(format!("life {life} of MEERKAT_CRASH_SEED={seed}"));
        live(&stage, &known, random);
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
