//! Sub-agents as a person sees them: live in a run, as a tree, and where they ask.

use serde_json::json;

use crate::drive::terminal::cli;

fn delegates(prompt: &str) -> String {
    format!("@call delegate {} ", json!({ "prompt": prompt }))
}

/// A sub-agent's question is asked where the turn runs, and the answer there decides.
#[test]
fn a_sub_agent_asks_the_person_who_runs_the_turn() {
    let prompt = delegates(r#"@call test_ask {"name":"a","line":"x"} @echo last_result"#) + "@echo last_result";
    for (answer, is_run) in [("y\n", true), ("n\n", false)] {
        let command = cli(&["run", &prompt]).with_tools().env("MEERKAT_AGENTS__ENABLED", "true");
        let command = command.on_terminal().env("NO_COLOR", "1").stdin(answer);
        let dir = command.dir.clone();
        let ran = command.run();
        assert!(ran.err.contains(" asks. Allow test_ask {\"name\":\"a\",\"line\":\"x\"}? y = once"), "{}", ran.err);
        assert!(ran.err.contains("The sub-agent "), "{}", ran.err);
        assert_eq!((ran.code, dir.path().join("a").exists()), (0, is_run), "{}", ran.err);
    }
}

/// One line for each sub-agent when it starts, and one with what it used; then the tree, with each branch.
#[test]
fn a_tree_has_a_line_for_each_session_and_sums_for_each_branch() {
    let run = |args: &[&str], dir: Option<_>| {
        let command = cli(args).env("MEERKAT_AGENTS__ENABLED", "true").env("MEERKAT_AGENTS__DEPTH", "2");
        match dir {
            Some(dir) => command.in_dir(dir),
            None => command,
        }
    };
    let branch = delegates(&(delegates("@say Leaf.") + "@say Branch."));
    let prompt = format!("{branch}{}@say Root.", delegates("@say Short."));
    let first = run(&["run", &prompt], None);
    let dir = first.dir.clone();
    let ran = first.run();
    assert_eq!(ran.code, 0, "{}", ran.err);
    let started = ran.err.lines().filter(|line| line.contains(": the sub-agent ") && line.ends_with(" works"));
    assert_eq!(started.count(), 2, "{}", ran.err);
    let ended = ran.err.lines().filter(|line| line.starts_with("delegate succeeded") && line.contains(" tokens"));
    assert_eq!(ended.count(), 2, "{}", ran.err);
    let tree = run(&["sessions", "tree", "last", "--json"], Some(&dir)).run().json();
    let items = tree["items"].as_array().unwrap();
    let shape: Vec<_> = items.iter().map(|it| (it["depth"].as_u64().unwrap(), it["steps"].as_u64().unwrap())).collect();
    assert_eq!(shape, [(0, 2), (1, 2), (2, 1), (1, 1)], "{tree}");
    let sums: Vec<_> = items.iter().map(|it| it["branch"]["steps"].as_u64().unwrap()).collect();
    assert_eq!(sums, [6, 3, 1, 1], "{tree}");
    let tokens = |name: &str| items.iter().map(|it| it[name].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(items[0]["branch"]["tokens"], tokens("tokens").iter().sum::<u64>());
    assert_eq!(items[0]["branch"]["sessions"], 4);
    assert_eq!(items[2]["parent"]["session_id"], items[1]["session_id"]);
    let shown = run(&["sessions", "tree", "last"], Some(&dir)).run().out;
    let ids: Vec<_> = shown.lines().skip(1).map(|line| line.split("  ").next().unwrap().trim().to_owned()).collect();
    let id = |at: usize| items[at]["session_id"].as_str().unwrap();
    let expected = [id(0).to_owned(), format!("· {}", id(1)), format!("· · {}", id(2)), format!("· {}", id(3))];
    assert_eq!(ids, expected, "{shown}");
    let child = run(&["sessions", "show", id(1)], Some(&dir)).run().out;
    assert!(child.contains(&format!("sub-agent   of session {}, turn 0, call ", id(0))), "{child}");
}
