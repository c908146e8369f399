//! Turns that call a tool of a server, run commands and edit a file: killed at every place, and shared by many sessions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use meerkat_testkit::{campaigns::Part, until};
use serde_json::{Value, json};

use crate::{
    oracle::{Known, check, let_waiting_turn_end},
    process::{Answer, Process, Stage, Trouble},
    shim::{Act, NOT_INDEX, Shim, Told},
};

/// Tool of the server that counts.
const ADD: &str = "mcp__tally__add";
/// The edited file before, and both edits of it.
const OLD: &str = "one\ntwo\nthree\n";
const EDITS: [(&str, &str); 2] = [("two", "2"), ("three", "3")];
/// The file that a call makes.
const NEW: &str = "four\nfive\n";
/// Durable events of the turn at least. A subscriber may miss live ones.
const EVENTS_MIN: u64 = 19;
/// Sessions that share a server. The pool has 200 of them in its own tests.
const SESSIONS: u64 = 20;

fn work(stage: &Stage) -> PathBuf {
    stage.home().join("work")
}

/// Makes a folder to work in, and configures it and the server that counts.
fn with_tools(approval: &str) -> Stage {
    let stage = Stage::made();
    fs::create_dir(work(&stage)).unwrap();
    fs::write(work(&stage).join("file"), OLD).unwrap();
    let folder = stage.home().join(".config/meerkat");
    fs::create_dir_all(&folder).unwrap();
    let config = format!(
        "[tools]\nfolders = {{ work = {:?} }}\napproval = {{ \"shell: sleep *\" = \"allow\" }}\n\
         [servers.tally]\ncommand = {:?}\nargs = [{:?}]\napproval = {approval:?}\n",
        work(&stage),
        env!("CARGO_BIN_EXE_tally"),
        stage.home().join("tools"),
    );
    fs::write(folder.join("meerkat.toml"), config).unwrap();
    // Its list of tools is kept from then on.
    let listed = stage.run(&["servers", "check", "tally"]);
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    fs::remove_file(stage.home().join("tools/starts")).unwrap();
    stage
}

/// The processes with this in their command line: the server of a stage has its folder there.
fn with(mark: &str) -> Vec<PathBuf> {
    let of = |process: &PathBuf| {
        fs::read(process.join("cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
    };
    fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(of).collect()
}

fn running(mark: &str) -> usize {
    with(mark).len()
}

/// The parent of a process that lives, and when it began, which tells it from a later one with its number.
fn parent_and_start(process: &Path) -> Option<(PathBuf, String)> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    (fields[0] != "Z").then(|| (Path::new("/proc").join(fields[1]), fields[19].to_owned()))
}

/// A process and those above it up to this one, each with its start.
fn up_to(ancestor: &Path, process: &Path) -> Vec<(PathBuf, String)> {
    let (mut above, mut at) = (Vec::new(), process.to_owned());
    while at != ancestor {
        let Some((parent, start)) = parent_and_start(&at) else { break };
        above.push((std::mem::replace(&mut at, parent), start));
    }
    above
}

fn server_of(stage: &Stage) -> String {
    stage.home().join("tools").display().to_string()
}

/// Waits for the end of processes, of which none would end by itself.
#[track_caller]
fn is_left_by_all(mark: &str) {
    until(&format!("no process with {mark} lives"), || running(mark) == 0);
}

/// A call of the server, then two edits of a file and a new file, which somebody approves.
fn script(process: &Process, killed_at: Option<u64>) -> Answer<()> {
    let id = process.create_with(&json!({ "workspace": "work" }))?;
    let events = process.listen(&id);
    if let Some(at) = killed_at {
        process.kill_at_event(at);
    }
    let prompt = format!(
        r#"@say Counting. @call {ADD} {{"line":"{id} counted"}}
        @step {} @call write {} @say Edited."#,
        EDITS.map(|(old, new)| format!("@call edit {}", json!({ "path": "file", "old": old, "new": new }))).join(" "),
        json!({ "path": "made", "content": NEW })
    );
    process.accept(&id, &prompt)?;
    for _ in 0..=EDITS.len() {
        let asked = events.until("approval_requested")?;
        process.approve(&id, &asked["call_id"])?;
    }
    events.until("turn_completed").map(drop)
}

/// Outcomes of a session's calls by their tools, in call order.
fn outcomes(events: &[Value]) -> BTreeMap<&str, Vec<&str>> {
    let blocks = events.iter().flat_map(|event| event["blocks"].as_array().into_iter().flatten());
    let mut outcomes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for call in blocks.filter(|block| block["type"] == "tool_call") {
        let is_its = |event: &&Value| event["type"] == "tool_finished" && event["call_id"] == call["call_id"];
        let [finished] = events.iter().filter(is_its).collect::<Vec<_>>()[..] else { panic!("{call}: {events:#?}") };
        outcomes.entry(call["name"].as_str().unwrap()).or_default().push(finished["outcome"].as_str().unwrap());
    }
    outcomes
}

/// Another process goes on with what was left, and everything is as the events say.
fn goes_on(stage: &Stage, known: &Arc<Known>) {
    is_left_by_all(&server_of(stage));
    // A file that replaces another has a name of its own for a moment. One of a process that was killed at this moment
    // stays for an hour.
    let mut names_left = names(stage);
    names_left.retain(|name| name.starts_with(".meerkat-"));
    assert!(names_left.len() <= 1, "{names_left:?}");
    let and_left = |more: &[&str]| [names_left.clone(), more.iter().map(ToString::to_string).collect()].concat();
    let process = stage.rpc(known, None);
    for id in known.sessions() {
        let_waiting_turn_end(&process, &id).unwrap();
        let resume = json!({ "session_id": id, "attended": true, "wait": false });
        match process.value("session/resume", &resume) {
            Ok(_) => let_waiting_turn_end(&process, &id).unwrap(),
            Err(Trouble::Refused(code, _)) => assert_eq!(code, "ITEM_NOT_FOUND", "nothing was interrupted"),
            Err(Trouble::Gone) => panic!("{}", stage.stderr()),
        }
    }
    assert_eq!(process.end(), Some(0), "{}", stage.stderr());
    let survey = check(stage, known);
    is_left_by_all(&server_of(stage));

    let lines = stage.tool_lines("effects").len();
    let file = fs::read_to_string(work(stage).join("file")).unwrap();
    let made = fs::read_to_string(work(stage).join("made")).ok();
    assert!(made.as_deref().is_none_or(|made| made == NEW), "torn: {made:?}");
    let files = &["file", "made"][..=usize::from(made.is_some())];
    assert_eq!(names(stage), and_left(files), "nothing else stays beside the files");
    let sessions: Vec<_> = survey.sessions.values().map(|stored| stored.events()).collect();
    let events = sessions.first().map_or(&[][..], Vec::as_slice);
    let outcomes = outcomes(events);
    let is_asked = events.iter().any(|event| event["prompt"].as_str().is_some_and(|prompt| prompt.contains(ADD)));
    // How often each call may have run.
    let ran = |name: &str| {
        let runs = |outcome: &&str| match *outcome {
            "succeeded" => 1..=1,
            "not_run" => 0..=0,
            "unknown" => 0..=1,
            other => panic!("{other}: {events:#?}"),
        };
        outcomes.get(name).map(|outcomes| outcomes.iter().map(runs).collect::<Vec<_>>())
    };
    match ran(ADD).as_deref() {
        None => assert!(!is_asked && lines == 0, "{events:#?}"),
        Some([add]) => assert!(add.contains(&lines), "it ran {lines} times"),
        Some(_) => panic!("{events:#?}"),
    }
    match ran("edit").as_deref() {
        None => assert!(!is_asked && file == OLD, "{events:#?}"),
        Some([one, two]) => {
            let [is_one, is_two] = EDITS.map(|(_, new)| file.contains(new));
            let whole = [is_one, is_two].into_iter().zip(EDITS).filter(|(is_done, _)| *is_done);
            assert_eq!(file, whole.fold(OLD.to_owned(), |text, (_, (old, new))| text.replace(old, new)), "torn");
            assert!(one.contains(&usize::from(is_one)) && two.contains(&usize::from(is_two)), "{file} {events:#?}");
        }
        Some(_) => panic!("{events:#?}"),
    }
    match ran("write").as_deref() {
        None => assert!(!is_asked && made.is_none(), "{events:#?}"),
        Some([write]) => assert!(write.contains(&usize::from(made.is_some())), "{events:#?}"),
        Some(_) => panic!("{events:#?}"),
    }
    if file != OLD || made.is_some() {
        let id = survey.sessions.keys().next().unwrap();
        let restored = stage.run(&["sessions", "restore-files", id, "--turn", "0", "--yes"]);
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        assert_eq!(fs::read_to_string(work(stage).join("file")).unwrap(), OLD);
        assert_eq!(names(stage), and_left(&["file"]));
    }
}

/// Lists the files of the folder to work in.
fn names(stage: &Stage) -> Vec<String> {
    let names = fs::read_dir(work(stage)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Kills a process at each place of everything that it writes, its folder to work in and the lists of servers too.
fn killed_at_each(act: Act) -> u64 {
    crate::each::each(Part::Store, |at| {
        let (stage, known) = (with_tools("allow"), Arc::<Known>::default());
        let shim = Shim::new(stage.home()).under(NOT_INDEX).at(at, act);
        let process = stage.rpc(&known, Some(&shim));
        let done = script(&process, None);
        let code = process.end();
        let fired = shim.fired();
        assert_eq!(fired.is_some(), code.is_none(), "{}", stage.stderr());
        assert!(fired.is_some() || done.is_ok(), "{done:?} {}", stage.stderr());
        let is_there = fired.is_some();
        let _told = Told(format!("{act:?} at {at}: {}", fired.unwrap_or_default()));
        goes_on(&stage, &known);
        is_there
    })
}

#[test]
fn killed_at_each_write_of_a_turn_with_tools_nothing_runs_twice_and_no_file_is_torn() {
    assert!(killed_at_each(Act::KillTorn) > 30);
    // Of most places these are those after the place before.
    if Part::Store.is_whole() {
        assert!(killed_at_each(Act::KillBefore) > 30);
    }
}

/// Also between writes: while a server runs a call, and while a person is asked.
#[test]
fn killed_at_each_event_of_a_turn_with_tools_nothing_runs_twice_and_no_file_is_torn() {
    let events = crate::each::each(Part::Store, |at| {
        let (stage, known) = (with_tools("allow"), Arc::<Known>::default());
        let process = stage.rpc(&known, None);
        let done = script(&process, Some(at));
        let is_killed = process.end().is_none();
        assert!(is_killed || done.is_ok(), "{done:?} {}", stage.stderr());
        let _told = Told(format!("the event {at}"));
        goes_on(&stage, &known);
        is_killed
    });
    assert!(events >= EVENTS_MIN, "{events}");
}

#[test]
fn many_sessions_share_one_process_of_a_server() {
    let stage = with_tools("allow");
    let server = stage.serve(None);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for n in 0..SESSIONS / 4 {
                    let id = server.create();
                    let prompt = format!(r#"@call {ADD} {{"line":"{thread} {n}"}} @say Added."#);
                    let (_, ended) = server.post(&format!("/v1/sessions/{id}/turns"), &json!({ "prompt": prompt }));
                    assert_eq!((&ended["status"], &ended["text"]), (&json!("completed"), &json!("Added.")), "{ended}");
                }
            });
        }
    });
    assert_eq!((stage.tool_lines("effects").len() as u64, stage.tool_lines("starts").len()), (SESSIONS, 1));
    // The server with its supervisor.
    assert_eq!(running(&server_of(&stage)), 2);
    assert_eq!(server.end(), Some(0));
    assert_eq!(running(&server_of(&stage)), 0);
}

#[test]
fn a_run_that_calls_none_of_ten_listed_servers_starts_none() {
    let stage = with_tools("allow");
    let config = stage.home().join(".config/meerkat/meerkat.toml");
    let tally = (env!("CARGO_BIN_EXE_tally"), stage.home().join("tools"));
    let more = (0..9).map(|n| format!("[servers.s{n}]\ncommand = {:?}\nargs = [{:?}, \"{n}\"]\n", tally.0, tally.1));
    let text = fs::read_to_string(&config).unwrap() + &more.collect::<String>();
    fs::write(&config, text).unwrap();
    assert!(stage.run(&["run", "@say Listed."]).status.success());
    assert_eq!(stage.tool_lines("starts").len(), 9, "those that were not listed yet");
    assert_eq!(stage.run(&["run", "@say Again."]).stdout, b"Again.\n");
    assert_eq!(stage.tool_lines("starts").len(), 9);
    let ran = stage.run(&["run", &format!(r#"@call {ADD} {{"line":"x"}} @say Called."#)]);
    assert_eq!((ran.stdout.as_slice(), stage.tool_lines("starts").len()), (&b"Called.\n"[..], 10));
}

#[test]
fn nothing_that_a_killed_program_started_lives_for_long() {
    let stage = with_tools("allow");
    let server = stage.serve(None);
    // A number of this test's own.
    let sleep = format!("900000.{}", std::process::id());
    let id = server.post("/v1/sessions", &json!({ "workspace": "work" })).1["session_id"].as_str().unwrap().to_owned();
    let prompt = format!(
        r#"@call {ADD} {{"line":"{id}"}} @step @call shell {{"command":"sleep {sleep}","background":true}} @say Begun."#
    );
    let (_, ended) = server.post(&format!("/v1/sessions/{id}/turns"), &json!({ "prompt": prompt }));
    assert_eq!(ended["status"], "completed", "{ended}");
    let (_, page) = server.get(&format!("/v1/sessions/{id}/events"));
    let events = page["items"].as_array().unwrap();
    assert_eq!(running(&server_of(&stage)), 2, "{events:#?}");
    let mut started = Vec::new();
    // A kernel that gives no namespaces runs no command in the background.
    if outcomes(events)["shell"] == ["succeeded"] {
        until("the command runs", || running(&sleep) == 1);
        started = up_to(&server.process(), &with(&sleep)[0]);
        // The keeper, the entrance and the command: only the last one shows the text.
        assert!(started.len() >= 3, "{started:?}");
    }
    server.kill();
    is_left_by_all(&server_of(&stage));
    let lives = |(process, start): &(PathBuf, String)| parent_and_start(process).is_some_and(|it| it.1 == *start);
    until("what it started has ended", || !started.iter().any(lives));
}
