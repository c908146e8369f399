//! Servers of the user's own configuration.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::until;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{
    CALL, Home,
    drive::ran,
    program,
    server::{MARK, noted},
    text,
};

pub(crate) const TRIALS: &[(&str, fn())] = &[
    ("the_first_run_after_a_server_was_added_calls_its_tool", added),
    ("what_cannot_be_added_changes_nothing", refused),
    ("a_users_server_starts_and_is_found_outside_of_the_project", of_the_user),
    ("after_a_kill_no_turn_begins_beside_a_call_that_goes_on", killed),
    ("after_a_kill_no_turn_begins_beside_a_server_that_is_configured_no_longer", killed_and_removed),
    ("a_run_beside_an_owner_that_waits_for_its_servers_end_takes_its_place", beside_an_end),
    ("of_many_tools_those_that_a_search_found_are_offered", searched),
];

fn added() {
    let home = Home::new();
    let file = ".config/meerkat/meerkat.toml";
    home.put(file, "# mine\n[limits]\npins = 3 # few\n");
    let (program, noted) = (program(), home.at("noted"));
    let (program, noted) = (program.to_str().unwrap(), noted.to_str().unwrap());
    let add = |name| ["servers", "add", name, "--json", "--env", "GIVEN=${HOME}/x", "--", program, MARK, noted];
    let answer = home.done(&add("t")).json();
    assert_eq!((&answer["server"], &answer["next"]), (&"t".into(), &"meerkat servers check t".into()));
    assert_eq!(home.starts(), 0);
    let expected = "# mine\n[limits]\npins = 3 # few\n\n[servers.t]\n";
    let written = text(home.at(file));
    assert!(written.starts_with(expected) && written.contains("env = { GIVEN = \"${HOME}/x\" }"), "{written}");

    home.call();
    assert_eq!((home.starts(), home.calls()), (1, 1));
    let again = home.run(&add("t")).json();
    assert!(again["message"].as_str().unwrap().contains("configured already"), "{again}");
    assert_eq!(text(home.at(file)), written);

    home.done(&["servers", "remove", "t"]);
    assert_eq!(text(home.at(file)), "# mine\n[limits]\npins = 3 # few\n");
    assert_eq!(home.done(&["servers", "--json"]).json()["items"].as_array().unwrap().len(), 0);
    home.run(&["servers", "remove", "t"]).refused(ErrorCode::InvalidRequest, "no such server");
}

fn refused() {
    let home = Home::new();
    let file = ".config/meerkat/meerkat.toml";
    home.put(file, "servers = { x = { command = \"x\" } }\n");
    for (args, words) in [
        (&["add", "A", "--", "npx"][..], "A server's name"),
        (&["add", "a", "--url", "http://example.com"], "https://"),
        (&["add", "a"], "<COMMAND>"),
        (&["add", "a", "--url", "https://b", "--", "npx"], "cannot be used with"),
        (&["add", "a", "--env", "B", "--", "npx"], "NAME=value"),
        (&["add", "a", "--env", "B=${", "--", "npx"], "closing brace"),
        (&["add", "x", "--", "npx"], "configured already"),
        (&["remove", "y"], "no such server"),
    ] {
        home.run(&[&["servers"], args].concat()).refused(ErrorCode::InvalidRequest, words);
        assert_eq!(text(home.at(file)), "servers = { x = { command = \"x\" } }\n");
    }
    home.done(&["servers", "add", "a", "--url", "https://example.com/mcp"]);
    assert!(text(home.at(file)).contains("a = { url = \"https://example.com/mcp\" }"));
}

fn searched() {
    let home = Home::new();
    let (program, noted) = (program(), home.at("noted"));
    let (program, noted) = (program.to_str().unwrap(), noted.to_str().unwrap());
    home.done(&["servers", "add", "t", "--", program, MARK, noted, "many"]);
    // A tenth of the window has no room for the definitions of more than a hundred tools.
    let run = |args: &[&str]| ran(home.command(args).env("MEERKAT_MODEL__SCRIPTED_WINDOW_TOKENS", "20000"));
    let offered = || {
        let tools = run(&["--json", "tools", "last"]).json();
        let items = tools["items"].as_array().unwrap().iter();
        let offered = items.filter(|tool| tool["left_out"].is_null()).map(|tool| tool["name"].as_str().unwrap());
        let mut names: Vec<String> = offered.filter(|name| name.starts_with("mcp__")).map(str::to_owned).collect();
        names.sort();
        names
    };
    assert_eq!(run(&["run", "@say Hello."]).out, "Hello.\n");
    assert_eq!(offered(), [""; 0]);
    let prompt = r#"@call search_tools {"query":"issue 042"} @step @call mcp__t__issue_042 {} @step @echo last_result"#;
    let ran = run(&["resume", "last", "--allow", "mcp__t__*", prompt]);
    assert!(ran.code == 0 && ran.out.contains("issue_042"), "{}{}", ran.out, ran.err);
    assert!(offered().contains(&"mcp__t__issue_042".to_owned()) && offered().len() <= 5, "{:?}", offered());
}

/// The server of a killed process went on with its call for half a second, beside the next process's turn.
fn killed() {
    let home = Home::new();
    let notes = killed_during_a_call(&home);
    home.done(&["resume", "last", "--allow", "mcp__t__count", CALL]);
    assert_eq!((home.starts(), noted(&notes, "calls"), noted(&notes, "beside")), (2, 2, 0));
}

/// The next process has no servers, and waits for that one all the same.
fn killed_and_removed() {
    let home = Home::new();
    let notes = killed_during_a_call(&home);
    let server = text(notes.join("starts")).trim().to_owned();
    home.done(&["servers", "remove", "t"]);
    assert_eq!(home.done(&["run", "@say Hello."]).out, "Hello.\n");
    assert!(!Path::new("/proc").join(&server).exists(), "process {server} is still there");
}

/// Broken once: it was attached to a process that had begun to end, and asked it again and again.
fn beside_an_end() {
    let home = Home::new();
    let (program, notes) = (program(), home.at("noted"));
    let (program, folder) = (program.to_str().unwrap(), notes.to_str().unwrap());
    home.done(&["servers", "add", "t", "--", program, MARK, folder, "lingering"]);
    // Its read of a pipe that nobody writes to is how the server takes its time.
    mknodat(CWD, notes.join("end"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut command = home.command(&["run", "--allow", "mcp__t__count", CALL]);
    let mut owner = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the owner waits for its server", || noted(&notes, "closed") == 1);
    // On a slow machine it may have ended by now, and then there is nothing to wait for.
    assert_eq!(home.done(&["run", "@say Hello."]).out, "Hello.\n");
    assert!(owner.wait().unwrap().success());
}

/// Kills a process whose server goes on with its call; returns the folder of the server's notes.
fn killed_during_a_call(home: &Home) -> PathBuf {
    let (program, notes) = (program(), home.at("noted"));
    let (program, folder) = (program.to_str().unwrap(), notes.to_str().unwrap());
    home.done(&["servers", "add", "t", "--", program, MARK, folder, "lingering"]);
    let mut command = home.command(&["run", "--allow", "mcp__t__slow", "@call mcp__t__slow {} @say Done."]);
    let mut owner = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the call runs", || noted(&notes, "begun") == 1);
    owner.kill().unwrap();
    owner.wait().unwrap();
    notes
}

/// Programs take commands from the folder that they start in, and a project's files are not the user's.
fn of_the_user() {
    let home = Home::new();
    let where_it_is =
        |name: &str| format!("#!/bin/sh\npwd > '{}'\n{}", home.at("noted").join(name).display(), home.script());
    for (folder, name) in [("project/.venv/bin", "theirs"), ("bin", "own")] {
        std::fs::create_dir_all(home.at(folder)).unwrap();
        home.put(&format!("{folder}/tool"), &where_it_is(name));
        std::fs::set_permissions(home.at(&format!("{folder}/tool")), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = |folders: &[&str]| {
        let own = folders.iter().map(|folder| home.at(folder)).chain(["/usr/bin".into(), "/bin".into()]);
        std::env::join_paths(own).unwrap()
    };
    let call = |path: std::ffi::OsString| {
        let prompt = "@call mcp__t__count {} @echo last_result";
        ran(home.command(&["run", "--allow", "mcp__t__count", prompt]).env("PATH", path)).out
    };
    let file = ".config/meerkat/meerkat.toml";
    home.put(file, "[servers.t]\ncommand = \"tool\"\n");
    call(path(&["project/.venv/bin", "bin"]));
    assert_eq!(text(home.at("noted/theirs")), "");
    assert_eq!(text(home.at("noted/own")).trim(), home.at(".local/state/meerkat/empty").to_str().unwrap());
    assert_eq!(home.calls(), 1);

    // It is found nowhere else.
    let said = call(path(&["project/.venv/bin"]));
    assert!(said.contains(".venv/bin/tool, which models may change; write this path"), "{said}");
    assert_eq!(text(home.at("noted/theirs")), "");

    // A person may name the folder, and the program.
    home.done(&["servers", "remove", "t"]);
    home.done(&["servers", "add", "t", "--folder", ".", "--", ".venv/bin/tool"]);
    call(path(&["bin"]));
    assert_eq!(text(home.at("noted/theirs")).trim(), home.at("project").to_str().unwrap());
    assert_eq!(home.calls(), 2);
}
