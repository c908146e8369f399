//! Which model answers, what is missing where none does, and how the limits of turns and the rules of tools are read.

use std::{path::Path, sync::Arc};

use meerkat_errors::ErrorCode;
use meerkat_testkit::refusing_address;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::sources::Server;
use crate::drive::terminal::{Cli, cli};

/// A user who has configured this.
fn configured(args: &[&str], user: &str) -> Cli {
    let command = cli(args);
    let folder = command.dir().join(".config/meerkat");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("meerkat.toml"), user).unwrap();
    command
}

/// What `models` says of a name: whether it is the default, and what it lacks.
#[track_caller]
fn listed(command: Cli, model: &str) -> (bool, String) {
    let items = command.run().json();
    let row = items["items"].as_array().unwrap().iter().find(|row| row["model"] == model);
    let row: &Value = row.unwrap_or_else(|| panic!("{model} is not in {items}"));
    assert_eq!(row["usable"] == true, row["lacks"].is_null());
    (row["default"] == true, row["lacks"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn the_only_server_is_the_default_and_says_what_it_lacks() {
    let server = Server::ollama();
    let models = |user: &str| configured(&["models", "--json"], user).env("OLLAMA_HOST", &server.host);
    assert_eq!(listed(cli(&["models", "--json"]), "scripted"), (true, String::new()));
    assert_eq!(listed(models("model.compatible.ollama.model = \"qwen3\""), "ollama/qwen3"), (true, String::new()));
    let mine = "model.compatible.mine = { preset = \"llama.cpp\", model = \"x\" }";
    // Whether something answers there is the machine's; the next one has an address of its own.
    assert!(listed(models(mine), "mine/x").0);
    let sources = models(mine).run().json()["sources"].as_array().unwrap().clone();
    let source = sources.iter().find(|source| source["source"] == "mine").unwrap();
    assert!(source["state"].as_str().unwrap().contains("http://localhost:8080"), "{source}");
    let silent =
        format!("model.compatible.mine = {{ base_url = \"http://{}/v1\", model = \"x\" }}", refusing_address());
    assert!(listed(models(&silent), "mine/x").1.contains("nothing answers at"));
    assert_eq!(listed(models(mine), "scripted"), (false, String::new()));
    assert!(listed(models(mine), "claude-sonnet-5-5").1.contains("ANTHROPIC_API_KEY"));

    let unnamed = "model.compatible.local.base_url = \"http://localhost:1/v1\"";
    configured(&["run", "hello"], unnamed).run().refused(ErrorCode::ModelNotConfigured, "local/<model>");
    let diagnosis = configured(&["doctor", "--json"], unnamed).run();
    assert_eq!(diagnosis.code, 1, "{}", diagnosis.err);
    assert_eq!(diagnosis.json()["findings"][0]["check"], "configuration");
    let diagnosis = configured(&["doctor"], "context.summary_model = \"gone/x\"").run();
    assert!(diagnosis.code == 1 && diagnosis.out.contains("gone/x"), "{}", diagnosis.out);
    assert_eq!(cli(&["doctor"]).run().code, 0);
    configured(&["run", "x"], "model.compatible.local.model = \"x\"")
        .run()
        .refused(ErrorCode::ConfigInvalid, "base_url");
}

#[test]
fn what_is_not_set_and_the_models_are_shown_too() {
    let command = cli(&["config", "show", "--json"]);
    let dir = command.dir.clone();
    let shown = command.run().json();
    let value = |key: &str| {
        let entry = shown["items"].as_array().unwrap().iter().find(|entry| entry["key"] == key).unwrap();
        entry["value"].clone()
    };
    let has = |key: &str, expected: Value| assert_eq!(value(key), expected, "{key}");
    // The folder that the next command uses.
    let data_dir = value("store.data_dir");
    assert_eq!(cli(&["run", "@say Hi."]).in_dir(&dir).run().code, 0);
    assert!(Path::new(data_dir.as_str().unwrap()).join("journal").is_dir(), "{data_dir}");
    has("model.name", Value::Null);
    has("model scripted", json!("can be used"));
}

/// Without its key, what a real model answered before was answered by the scripted one, with exit code 0.
#[test]
fn where_a_real_model_answered_the_scripted_one_does_not_stand_in() {
    let run = |dir: &Arc<TempDir>| cli(&["run", "hello"]).in_dir(dir);
    let with_key = |command: Cli, url: &str| {
        let command = command.env("OPENAI_API_KEY", "sk-0123456789").env("OPENAI_BASE_URL", url);
        command.env("MEERKAT_MODEL__NAME", "gpt-4o").env("MEERKAT_TURN__MODEL_ATTEMPTS", "1").run()
    };
    let real = |dir: &Arc<TempDir>, url: &str| with_key(run(dir), url);
    let dir = cli(&[]).dir;
    assert!(run(&dir).run().out.contains("scripted"));
    assert_ne!(real(&dir, "http://127.0.0.1:1/v1").code, 0, "nobody listens there");
    let prompted_again = cli(&["resume", "last", "hello"]).in_dir(&dir);
    assert_ne!(with_key(prompted_again, "http://127.0.0.1:1/v1").code, 0);
    std::fs::write(
        dir.path().join("said.json"),
        r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#,
    )
    .unwrap();
    let given = cli(&["run", "--history", dir.path().join("said.json").to_str().unwrap(), "hello"]).in_dir(&dir);
    assert_ne!(with_key(given, "http://127.0.0.1:1/v1").code, 0);
    // It never answered, and may have been a slip. What was said elsewhere is no answer of it.
    let again = run(&dir).run();
    assert!(again.out.contains("scripted") && again.err.contains("The scripted model answers"), "{}", again.err);
    let answered = real(&dir, &format!("http://{}/v1", Server::ollama().host));
    assert_eq!((answered.code, answered.out.as_str()), (0, "Well.\n"), "{}", answered.err);
    run(&dir).run().refused(ErrorCode::ModelNotConfigured, "OPENAI_API_KEY");
    let chosen = run(&dir).env("MEERKAT_MODEL__NAME", "scripted").run();
    assert!(chosen.out.contains("scripted"), "{}", chosen.err);
    let elsewhere = cli(&["run", "-q", "hello"]).run();
    assert!(elsewhere.out.contains("scripted"), "{}", elsewhere.err);
}

#[test]
fn who_names_no_model_hears_which_one_answers() {
    let server = Server::ollama();
    let run = |dir: &Arc<TempDir>, args: &[&str]| {
        cli(&[&["run"], args, &["hello"]].concat()).in_dir(dir).env("OLLAMA_HOST", &server.host).run()
    };
    let dir = cli(&[]).dir;
    assert_eq!(run(&dir, &["--model", "ollama/qwen3:8b"]).err, "");
    let again = run(&dir, &[]);
    assert_eq!(again.out, "Well.\n");
    assert!(again.err.starts_with("ollama/qwen3:8b answers, as in an earlier session here;"), "{}", again.err);
    for slip in ["claude", "gtp-5", "olama/llama3.2"] {
        run(&dir, &["--model", slip]).refused(ErrorCode::ModelNotConfigured, "a name begins with claude-, gpt- or");
    }
}

#[test]
fn no_request_lifts_the_maximum() {
    let prompt = "@call test_echo {\"text\":\"1\"} @usage in=1 out=1 @say Never.";
    let run = |max: &str| {
        let command = cli(&["run", "-q", "--budget-steps", "10", prompt]).with_tools();
        command.env("MEERKAT_TURN__MAX_STEPS", max).run()
    };
    assert_eq!(run("1").code, ErrorCode::BudgetExhausted.exit_code());
    assert_eq!(run("2").code, 0);
}

#[test]
fn a_rule_for_no_tool_is_refused_with_the_nearest_name() {
    let rule = |name: &str| cli(&["run", "x"]).env(&format!("MEERKAT_TOOLS__APPROVAL__{name}"), "deny").run();
    let ran = rule("TEST_ECO");
    ran.refused(ErrorCode::ConfigInvalid, "tools.approval.test_eco (variable MEERKAT_TOOLS__APPROVAL__TEST_ECO)");
    assert!(ran.err.contains("hold for nothing (did you mean \"test_echo\"?).\n"), "{}", ran.err);
    assert!(!rule("FROB").err.contains("did you mean"));
    assert_eq!(rule("TEST_ECHO").code, 0, "a tool of another configuration may wait for its rule");
}
