//! Commands that run without a question because they are confined, in sessions that nobody attends.

use std::{fs, path::Path};

use meerkat_testkit::needs;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::drive::{meerkat, ran};

/// What the model is told of a call that would ask.
const ASKS: &str = "asks before it runs";

/// Returns what became of each call, in order: its output or its error, and its confinement.
fn called(configuration: &str, calls: &[(&str, Value)]) -> Vec<(String, Option<String>)> {
    let home = TempDir::new().unwrap();
    let folder = home.path().join(".config/meerkat");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("meerkat.toml"), configuration).unwrap();
    fs::create_dir(home.path().join("project")).unwrap();
    let calls: Vec<String> = calls.iter().map(|(tool, arguments)| format!("@call {tool} {arguments} @step")).collect();
    let prompt = format!("{} @say Done.", calls.join(" "));
    let mut command = meerkat(&home, &["run", "--workspace", "project", "--events", &prompt]);
    let ran = ran(command.env("PATH", "/usr/local/bin:/usr/bin:/bin"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let events = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let finished: Vec<Value> = events.filter(|event| event["type"] == "tool_finished").collect();
    assert_eq!(finished.len(), calls.len(), "{}", ran.out);
    let text = |event: &Value| event["output"].as_str().unwrap_or_default().to_owned() + &event["error"].to_string();
    finished.iter().map(|event| (text(event), event["confinement"].as_str().map(str::to_owned))).collect()
}

fn shell(command: &str) -> (&'static str, Value) {
    ("shell", json!({ "command": command }))
}

/// Returns true if the kernel confines commands: without that, each asks whatever the configuration says.
fn is_confined() -> bool {
    called("tools.ask = \"never\"\n", &[shell("true")])[0].1.is_some()
}

#[test]
fn what_is_confined_runs_and_what_escapes_asks() {
    needs!("a kernel that gives commands namespaces" => is_confined());
    let calls = [
        shell("printf 'b\\na\\n' > made; sort made | head -n 1 && echo $((1 + 1))"),
        ("shell", json!({"command": "true", "network": true})),
        ("shell", json!({"command": "true", "git": true})),
        ("write", json!({"path": "file", "content": "x"})),
        ("read", json!({"path": "made"})),
    ];
    let found = called("tools.ask = \"escapes\"\n", &calls);
    assert!(found[0].0.starts_with("a\n2\nexit code 0"), "{found:?}");
    assert!(found[1..4].iter().all(|(text, confinement)| text.contains(ASKS) && confinement.is_none()), "{found:?}");
    assert!(found[4].0.contains('b'), "{found:?}");
    let usual = called("", &calls);
    assert!(usual[..4].iter().all(|(text, _)| text.contains(ASKS)), "{usual:?}");
}

#[test]
fn rules_hold_for_what_is_confined() {
    needs!("a kernel that gives commands namespaces" => is_confined());
    let calls = [
        shell("rm file"),
        shell("ls && rm file"),
        shell("cat file"),
        shell("ls $(rm file)"),
        shell("ls; cat file"),
        shell("ls && ls 2>&1 | wc -l"),
    ];
    let rules = "\n[tools.approval]\n\"shell: rm *\" = \"deny\"\n\"shell: cat *\" = \"ask\"\n";
    let found = called(&format!("tools.ask = \"escapes\"\n{rules}"), &calls);
    assert!(found[..2].iter().all(|(text, confinement)| !text.contains(ASKS) && confinement.is_none()), "{found:?}");
    assert!(found[2..5].iter().all(|(text, confinement)| text.contains(ASKS) && confinement.is_none()), "{found:?}");
    assert!(found[5].0.starts_with("0\nexit code 0"), "{found:?}");
}

/// The port is that of the session alone, so the test may choose it. A pipe says when the server has it: each end waits for
/// the other.
#[test]
fn a_server_in_the_background_is_reached_by_the_next_command() {
    needs!("a kernel that gives commands namespaces" => is_confined());
    needs!("/usr/bin/python3" => Path::new("/usr/bin/python3").exists());
    let serve = "python3 -c 'import http.server as h; s = h.HTTPServer((\"127.0.0.1\", 8000), h.SimpleHTTPRequestHandler); \
                 open(\"ready\", \"w\").close(); s.serve_forever()'";
    let get = "python3 -c 'from urllib.request import urlopen; print(urlopen(\"http://127.0.0.1:8000/made\").read())'";
    let calls = [
        shell("echo served > made && mkfifo ready"),
        ("shell", json!({"command": serve, "background": true})),
        ("shell", json!({"command": format!(": < ready && {get}"), "timeout_ms": 60_000})),
    ];
    let found = called("tools.ask = \"escapes\"\n", &calls);
    assert_eq!(found[2].0, "b'served\\n'\nexit code 0null", "{found:?}");
    assert_eq!(found[2].1.as_deref(), Some("landlock, seccomp, namespaces"));
}
