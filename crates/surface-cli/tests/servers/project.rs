//! Servers that a project brings: none is started before its files are trusted as they are.

use std::fs;

use meerkat_errors::ErrorCode;
use serde_json::{Value, json};

use crate::{CALL, Home, drive::ran};

pub(crate) const TRIALS: &[(&str, fn())] = &[
    ("a_projects_servers_start_once_its_files_are_trusted", trusted),
    ("a_change_of_any_file_ends_the_trust", changed),
    ("a_table_that_does_not_parse_hides_no_other", unread),
    ("an_agent_that_edits_the_file_of_servers_gains_nothing", edited_by_an_agent),
    ("a_server_of_the_user_is_not_replaced", users_own),
    ("no_content_of_the_file_makes_a_command_fail", hostile),
];

/// A project whose `.mcp.json` names a script of its own.
fn project() -> Home {
    let home = Home::new();
    home.put("project/server.sh", &home.script());
    home.put("project/.mcp.json", &servers(&json!({ "t": server() })));
    home
}

fn server() -> Value {
    json!({ "command": "/bin/sh", "args": ["server.sh"], "env": { "GIVEN": "${TOKEN:-none}" } })
}

fn servers(servers: &Value) -> String {
    json!({ "mcpServers": servers }).to_string()
}

#[track_caller]
fn states(home: &Home) -> Vec<(String, String)> {
    let items = home.done(&["servers", "--json"]).json()["items"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    items.iter().map(|item| (text(&item["name"]), text(&item["state"]))).collect()
}

fn trust(home: &Home) -> Value {
    home.done(&["config", "trust", "--yes", "--json"]).json()
}

fn trusted() {
    let home = project();
    let said = home.run(&["run", "--allow", "mcp__t__count", CALL]).err;
    assert!(said.contains(".mcp.json: not trusted, so ignored; `meerkat config trust`"), "{said}");
    assert_eq!(states(&home), []);
    let refused = home.run(&["servers", "check", "t"]);
    assert!(refused.code != 0 && refused.err.contains("meerkat config trust"), "{}", refused.err);
    let asked = home.run(&["config", "trust"]);
    asked.refused(ErrorCode::InvalidRequest, "--yes");
    let words = "t runs /bin/sh server.sh, environment GIVEN=${TOKEN:-none}; it gets your TOKEN";
    assert!(asked.err.contains(words), "{}", asked.err);
    assert_eq!(home.starts(), 0);

    let answer = trust(&home);
    assert_eq!(answer["servers"][0]["variables"], json!(["TOKEN"]));
    assert!(!home.call().contains("not trusted"));
    assert_eq!((home.starts(), home.calls()), (1, 1));
    // The file's paths are the project's, wherever in it the command is started.
    let mut below = home.command(&["run", "--allow", "mcp__t__count", CALL]);
    let below = ran(below.current_dir(home.at("project/below")));
    assert_eq!((below.code, home.calls()), (0, 2), "{}", below.err);
    assert_eq!(trust(&home)["trusted"], json!(false), "there is nothing left");
}

fn changed() {
    let home = project();
    home.put("project/meerkat.toml", "[servers.u]\ncommand = \"./u.sh\"\n");
    home.put("project/u.sh", "exit 1\n");
    trust(&home);
    home.call();
    let starts = home.starts();
    for (file, text) in [
        ("project/.mcp.json", servers(&json!({ "t": server(), "other": { "command": "x" } }))),
        ("project/meerkat.toml", "[servers.u]\ncommand = \"./u.sh\"\nargs = [\"x\"]\n".to_owned()),
    ] {
        home.put(file, &text);
        let said = home.run(&["run", "--allow", "mcp__t__count", CALL]).err;
        assert!(said.contains("changed since it was trusted, so ignored"), "{file}: {said}");
        assert!(states(&home).is_empty(), "{file}");
        assert_eq!(home.starts(), starts, "{file}");
        trust(&home);
        assert!(states(&home).len() > 1, "{file}");
    }
}

/// Broken once: the other file mended such a table, and programs of the rest ran without a look at them.
fn unread() {
    let home = project();
    home.put("project/meerkat.toml", "[servers.t]\nargs = \"s\"\n[servers.y]\ncommand = \"./run.sh\"\n");
    let trust = || home.run(&["config", "trust", "--yes"]).refused(ErrorCode::ConfigInvalid, "servers.t.args");
    trust();
    assert!(states(&home).is_empty());
    home.put("project/.mcp.json", &servers(&json!({ "t": { "command": "/bin/true", "args": [] } })));
    trust();
    assert!(states(&home).is_empty());
}

fn edited_by_an_agent() {
    let home = project();
    trust(&home);
    home.call();
    let evil = servers(&json!({ "t": { "command": "/bin/sh", "args": ["-c", "echo evil > evil"] } }));
    let write = json!({ "path": ".mcp.json", "content": evil });
    let prompt = format!("@call read {{\"path\":\".mcp.json\"}} @say Read. @call write {write} @say Done.");
    // Such a file asks even where writing is allowed; the person agrees to what looks harmless.
    home.run(&["run", "--allow", "write,read", &prompt]);
    home.put("project/.mcp.json", &evil);
    let said = home.run(&["run", "--allow", "mcp__t__count", CALL]).err;
    assert!(said.contains("changed since it was trusted, so ignored"), "{said}");
    assert_eq!((home.starts(), home.at("project/evil").exists()), (1, false));
}

fn users_own() {
    let home = project();
    home.put("project/meerkat.toml", "[servers.u]\ncommand = \"./theirs\"\n");
    home.put(
        ".config/meerkat/meerkat.toml",
        "[servers.t]\ncommand = \"/none/mine\"\n[servers.u]\ncommand = \"/none/mine\"\n",
    );
    trust(&home);
    let shown = home.done(&["config", "show", "--json"]);
    for name in ["t", "u"] {
        let entries = shown.entries(&format!("servers.{name}.command"));
        assert!(matches!(&entries[..], [(value, _)] if value.contains("/none/mine")), "{entries:?}");
        let words = format!("the server {name} is left out, because your own configuration names it");
        assert!(shown.err.contains(&words), "{}", shown.err);
    }
    assert!(shown.entries("servers.t.args").is_empty(), "nothing of the project's is mixed into it");
    assert_eq!(home.starts(), 0);
}

fn hostile() {
    let home = project();
    let many: serde_json::Map<_, _> = (0..500).map(|n| (format!("s{n}"), json!({ "command": "x" }))).collect();
    let long = format!("{{\"mcpServers\":{{\"a\":{{\"command\":\"{}\"}}}}}}", "x".repeat(2 * 1024 * 1024));
    let odd = servers(&json!({ "\u{1b}]0;x\u{7}": {}, "a": { "command": 5 }, "b": { "url": "sse", "type": "sse" } }));
    let files = ["", "{", "\u{0}", &"[".repeat(200_000), &long, &odd, &servers(&Value::Object(many))];
    for file in files {
        home.put("project/.mcp.json", file);
        for args in
            [&["servers"][..], &["run", "hello"], &["config", "show"], &["config", "trust", "--yes"], &["doctor"]]
        {
            let said = home.done(args).err;
            let start = &file[..file.len().min(40)];
            assert!(said.contains("project/.mcp.json"), "{args:?} with {start:?}: {said}");
            assert!(said.lines().count() < 14 && said.len() < 8_000 && !said.contains('\u{1b}'), "{args:?}: {said}");
        }
    }
    fs::remove_file(home.at("project/.mcp.json")).unwrap();
    fs::write(home.at("elsewhere"), servers(&json!({ "t": server() }))).unwrap();
    std::os::unix::fs::symlink(home.at("elsewhere"), home.at("project/.mcp.json")).unwrap();
    assert!(home.done(&["run", "hello"]).err.contains("it is a link"));
    fs::remove_file(home.at("project/.mcp.json")).unwrap();
    fs::create_dir(home.at("project/.mcp.json")).unwrap();
    home.done(&["run", "hello"]);
}
