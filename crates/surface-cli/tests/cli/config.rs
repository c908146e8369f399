//! The configuration: its layers, its refusals, and the commands about it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::needs;

use crate::drive::{
    Ran,
    terminal::{Cli, cli},
};

/// The value and the origin of a key.
#[track_caller]
fn entry(ran: &Ran, key: &str) -> (String, String) {
    ran.entries(key).remove(0)
}

#[test]
fn the_later_layer_wins_and_every_value_has_its_origin() {
    let mut command = cli(&["config", "show", "--json"]);
    let (dir, root) = (command.dir.clone(), command.dir().display().to_string());
    let shown = |command: Cli| entry(&command.env("XDG_CONFIG_HOME", &root).run(), "turn.max_steps");
    assert_eq!(shown(command), ("0".to_owned(), "built-in".to_owned()));

    fs::create_dir(dir.path().join("meerkat")).unwrap();
    fs::write(dir.path().join("meerkat/meerkat.toml"), "turn.max_steps = 2\nturn.max_queued = 9").unwrap();
    let again = || cli(&["config", "show", "--json"]).in_dir(&dir);
    assert_eq!(shown(again()), ("2".to_owned(), format!("user file {root}/meerkat/meerkat.toml")));

    fs::write(dir.path().join("meerkat.toml"), "[turn]\nmax_steps = 1").unwrap();
    assert_eq!(cli(&["config", "trust", "--yes"]).in_dir(&dir).env("XDG_CONFIG_HOME", &root).run().code, 0);
    assert_eq!(shown(again()), ("1".to_owned(), format!("project file {root}/meerkat.toml")));

    fs::write(dir.path().join("more.toml"), "[turn]\nmax_steps = 3").unwrap();
    let with_file = || cli(&["config", "show", "--json", "--config", "more.toml"]).in_dir(&dir);
    assert_eq!(shown(with_file()), ("3".to_owned(), format!("--config file {root}/more.toml")));

    command = with_file().env("MEERKAT_TURN__MAX_STEPS", "4").env("XDG_CONFIG_HOME", &root);
    let ran = command.run();
    assert_eq!(entry(&ran, "turn.max_steps"), ("4".to_owned(), "variable MEERKAT_TURN__MAX_STEPS".to_owned()));
    assert_eq!(entry(&ran, "turn.max_queued").0, "9", "layers are merged key by key");

    let args = ["config", "show", "--json", "--ephemeral", "--data-dir", "there", "-v"];
    let ran = cli(&args).env("MEERKAT_STORE__ENABLED", "true").env("MEERKAT_DATA_DIR", "elsewhere").run();
    assert_eq!(entry(&ran, "store.enabled"), ("false".to_owned(), "flag --ephemeral".to_owned()));
    assert_eq!(entry(&ran, "store.data_dir"), ("\"there\"".to_owned(), "flag --data-dir".to_owned()));
    assert_eq!(entry(&ran, "log.level"), ("\"info\"".to_owned(), "flag -v".to_owned()));
    let ran = cli(&["config", "show", "--json"]).env("MEERKAT_DATA_DIR", "elsewhere").run();
    assert_eq!(entry(&ran, "store.data_dir").1, "variable MEERKAT_DATA_DIR");
}

/// An option of milliseconds takes 0 as "no limit", as "at once" where that is of use, or not at all.
#[test]
fn a_time_of_0_that_would_be_over_at_once_is_refused() {
    let variable = |key: &str| format!("MEERKAT_{}", key.to_uppercase().replace('.', "__"));
    for key in ["ephemeral.idle_ms", "serve.header_timeout_ms", "serve.stall_ms"] {
        let ran = cli(&["config", "show"]).env(&variable(key), "0").run();
        for part in [key, &variable(key), "leave it out for the built-in time"] {
            ran.refused(ErrorCode::ConfigInvalid, part);
        }
    }
    for key in [
        "turn.model_idle_timeout_ms",
        "turn.default_wall_ms",
        "turn.max_wall_ms",
        "turn.retry_total_ms",
        "tools.timeout_ms",
        "tools.approval_timeout_ms",
        // At once, or as often as anybody asks.
        "turn.retry_base_ms",
        "turn.retry_max_ms",
        "tools.grace_ms",
        "limits.wait_ms",
        "store.idle_ms",
        "serve.drain_ms",
    ] {
        let ran = cli(&["config", "show", "--json"]).env(&variable(key), "0").run();
        assert_eq!(entry(&ran, key).0, "0", "{key}");
    }
}

/// What is wrong with a database is said at once, with what to do, and never with its password.
#[test]
fn a_database_that_cannot_be_used_is_refused_without_its_password() {
    for (variables, code, part) in [
        (&[("MEERKAT_STORE__URL", "mysql://u:hunter2secret@h/d")][..], ErrorCode::ConfigInvalid, "postgres://"),
        (&[("MEERKAT_STORE__URL", "postgres://u:pa?hunter2secret@h/d")], ErrorCode::ConfigInvalid, "percent-encoded"),
        (
            &[("MEERKAT_STORE__URL", "postgres://u:hunter2secret@127.0.0.1:1/d")],
            ErrorCode::StoreFailed,
            "127.0.0.1:1/d cannot be reached",
        ),
        (&[("MEERKAT_STORE__URL_VARIABLE", "DATABASE_URL")], ErrorCode::ConfigInvalid, "DATABASE_URL"),
        (
            &[("MEERKAT_STORE__URL_VARIABLE", "DATABASE_URL"), ("DATABASE_URL", "http://u:hunter2secret@h")],
            ErrorCode::ConfigInvalid,
            "postgres://",
        ),
    ] {
        let mut command = cli(&["run", "-vv", "x"]);
        for (name, value) in variables {
            command = command.env(name, value);
        }
        let ran = command.run();
        ran.refused(code, part);
        assert!(!format!("{}{}", ran.out, ran.err).contains("hunter2"), "{}{}", ran.out, ran.err);
    }
    let ran = cli(&["config", "show", "--json"]).env("MEERKAT_STORE__URL", "postgres://u:hunter2secret@h/d").run();
    assert_eq!(entry(&ran, "store.url"), ("\"[redacted]\"".to_owned(), "variable MEERKAT_STORE__URL".to_owned()));
}

#[test]
fn vendors_are_shown_without_their_secrets() {
    let show = || cli(&["config", "show", "--json"]).env("OPENAI_API_KEY", "hunter2secret");
    let ran = show().env("OPENAI_BASE_URL", "https://me:hunter2secret@example.com/v1").run();
    let vendor = "a variable of the vendor".to_owned();
    assert_eq!(entry(&ran, "model.openai.key"), ("\"set\"".to_owned(), vendor.clone()));
    assert_eq!(entry(&ran, "model.gemini.key").0, "\"not set\"");
    assert_eq!(entry(&ran, "model.openai.base_url"), ("\"[redacted]\"".to_owned(), vendor));
    assert!(!ran.out.contains("hunter2"));
    let ran = show().env("OPENAI_BASE_URL", "https://a").env("MEERKAT_MODEL__OPENAI__BASE_URL", "https://b").run();
    let variable = "variable MEERKAT_MODEL__OPENAI__BASE_URL".to_owned();
    assert_eq!(entry(&ran, "model.openai.base_url"), ("\"https://b\"".to_owned(), variable));
}

#[test]
fn the_projects_file_is_found_from_below() {
    let mut command = cli(&["config", "show", "--json"]);
    fs::write(command.dir().join("meerkat.toml"), "context.overflow = \"slide\"").unwrap();
    let (below, home) = (command.dir().join("a/b"), command.dir().join("home").display().to_string());
    fs::create_dir_all(&below).unwrap();
    command.below = Some(below);
    let trust = cli(&["config", "trust", "--yes"]).in_dir(&command.dir).env("HOME", &home);
    assert_eq!(trust.run().code, 0);
    let command = command.env("HOME", &home);
    assert_eq!(entry(&command.run(), "context.overflow").0, "\"slide\"");
}

#[test]
fn a_bad_key_or_value_is_named_with_its_origin_and_what_is_allowed() {
    for (text, expected) in [
        ("turn.frob = 1", ["turn.frob (--config file", "there is no such key; the keys here are max_steps"]),
        ("frob = 1", ["frob (--config file", "the keys here are model, turn"]),
        ("turn.max_steps = \"many\"", ["turn.max_steps (--config file", "must be a whole number, 0 or more"]),
        ("turn.max_steps = -1", ["turn.max_steps (--config file", "must be a whole number, 0 or more"]),
        ("context.overflow = \"frob\"", ["context.overflow (--config file", "allowed are fail, slide"]),
        ("tools.approval.x = \"frob\"", ["tools.approval.x (--config file", "allowed are allow, ask, deny"]),
        ("turn = 1", ["turn (--config file", "it must be a table of keys"]),
        ("a = 1\nb = ", ["line 2 (--config file", "meerkat.toml"]),
        ("compaction.max_summary_tokens = 0", ["compaction.max_summary_tokens (--config file", "meerkat.toml"]),
    ] {
        let command = cli(&["run", "x", "--config", "meerkat.toml"]);
        fs::write(command.dir().join("meerkat.toml"), text).unwrap();
        let ran = command.run();
        for part in expected {
            ran.refused(ErrorCode::ConfigInvalid, part);
        }
    }
    let command = cli(&["run", "x", "--config", "own.toml"]);
    let server = "model.compatible.scripted = { base_url = \"http://localhost\", window_tokens = 1 }";
    fs::write(command.dir().join("own.toml"), server).unwrap();
    let ran = command.run();
    for part in ["model.compatible", "another name"] {
        ran.refused(ErrorCode::ConfigInvalid, part);
    }
    for (name, value, expected) in [
        ("MEERKAT_TURN__MAX_STEPS", "many", "turn.max_steps (variable MEERKAT_TURN__MAX_STEPS)"),
        ("MEERKAT_TURN__FROB", "1", "turn.frob (variable MEERKAT_TURN__FROB)"),
        ("MEERKAT_STORE__ENABLED", "perhaps", "store.enabled (variable MEERKAT_STORE__ENABLED)"),
        ("MEERKAT_TEST_SEED", "frob", "variable MEERKAT_TEST_SEED"),
        (
            "MEERKAT_MODEL__OPENAI__BASE_URL",
            "ftp://x",
            "model.openai.base_url (variable MEERKAT_MODEL__OPENAI__BASE_URL)",
        ),
        ("OPENAI_BASE_URL", "ftp://x", "model.openai.base_url (a variable of the vendor)"),
        ("MEERKAT_COMPACTION__AUTO_COMPACT_THRESHOLD", "0", "compaction.auto_compact_threshold (variable MEERKAT_"),
        ("MEERKAT_COMPACTION__RECENT_TURN_BUDGET", "0", "compaction.recent_turn_budget (variable MEERKAT_"),
        ("MEERKAT_COMPACTION__MAX_SUMMARY_TOKENS", "0", "compaction.max_summary_tokens (variable MEERKAT_"),
        (
            "MEERKAT_COMPACTION__MIN_TURNS_BETWEEN_COMPACTIONS",
            "0",
            "compaction.min_turns_between_compactions (variable",
        ),
    ] {
        let command = cli(&["run", "x"]).env(name, value).env("OPENAI_API_KEY", "sk-0123456789");
        command.run().refused(ErrorCode::ConfigInvalid, expected);
    }
    cli(&["run", "--config", "none.toml", "x"]).run().refused(ErrorCode::ConfigInvalid, "none.toml");
}

#[test]
fn what_needs_no_configuration_works_without_one() {
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["completions", "zsh"], &["errors"]] {
        let ran = cli(args).env("MEERKAT_TURN__FROB", "1").run();
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(!ran.out.is_empty() && ran.err.is_empty());
    }
    assert_eq!(cli(&["--version"]).run().out, format!("meerkat {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(cli(&["completions", shell]).run().out.contains("meerkat"));
    }
}

#[test]
fn a_key_is_set_in_the_users_own_file() {
    let dir = cli(&[]).dir;
    let file = dir.path().join(".config/meerkat/meerkat.toml");
    let set = |key: &str, value: &str| cli(&["config", "set", key, value]).in_dir(&dir).run();
    let text = || fs::read_to_string(&file).unwrap();

    let ran = set("model.name", "ollama/llama3.2");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(text(), "[model]\nname = \"ollama/llama3.2\"\n");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = cli(&["config", "show", "--json"]).in_dir(&dir).run();
    let origin = format!("user file {}", file.display());
    assert_eq!(entry(&shown, "model.name"), ("\"ollama/llama3.2\"".to_owned(), origin));

    let mine = "# mine\n[limits]\npins = 3 # few\n";
    fs::write(&file, mine).unwrap();
    assert_eq!(set("limits.pins", "4").code, 0);
    assert_eq!(text(), mine.replace('3', "4"));
    // The same words as for a file.
    for (key, value, expected) in [
        ("turn.frob", "1", ["turn.frob (user file", "there is no such key; the keys here are max_steps"]),
        ("turn.max_steps", "many", ["turn.max_steps (user file", "must be a whole number, 0 or more"]),
        ("turn.max_steps", "-1", ["turn.max_steps (user file", "must be a whole number, 0 or more"]),
        ("context.overflow", "frob", ["context.overflow (user file", "allowed are fail, slide"]),
        ("compaction.max_summary_tokens", "0", ["compaction.max_summary_tokens (user file", "meerkat.toml"]),
        ("serve.stall_ms", "0", ["serve.stall_ms (user file", "leave it out for the built-in time"]),
        ("limits.pins.x", "1", ["limits.pins.x (user file", "`limits.pins` is not a table in it"]),
        ("a..b", "1", ["a..b (user file", "it is not a key"]),
    ] {
        let ran = set(key, value);
        for part in expected {
            ran.refused(ErrorCode::ConfigInvalid, part);
        }
    }
    // Somebody pastes the key itself.
    let ran = set("model.name", "sk-or-0123456789abcdef0123456789");
    ran.refused(ErrorCode::ConfigInvalid, "looks like a secret");
    assert!(!format!("{}{}", ran.out, ran.err).contains("sk-or-"), "{}", ran.err);
    assert_eq!(text(), mine.replace('3', "4"), "nothing was written");

    // A key that must be quoted, a text that looks like a number, and a value that another layer overrides.
    assert_eq!(set("tools.approval.\"shell: cargo test *\"", "allow").code, 0);
    assert_eq!(set("model.compatible.mine.model", "4").code, 0);
    let read = text();
    for line in ["\"shell: cargo test *\" = \"allow\"\n", "[model.compatible.mine]\nmodel = \"4\"\n"] {
        assert!(read.contains(line), "{line}: {read}");
    }
    assert_eq!(set("model.compatible.mine.base_url", "http://localhost:1/v1").code, 0);
    let overridden = cli(&["config", "set", "limits.pins", "5"]).in_dir(&dir).env("MEERKAT_LIMITS__PINS", "6").run();
    assert!(
        overridden.err.contains("limits.pins is also set by the variable MEERKAT_LIMITS__PINS"),
        "{}",
        overridden.err
    );

    // It corrects what no other command starts with.
    fs::write(&file, "turn.max_steps = \"many\"\n").unwrap();
    cli(&["run", "x"]).in_dir(&dir).run().refused(ErrorCode::ConfigInvalid, "turn.max_steps");
    assert_eq!(set("turn.max_steps", "5").code, 0);
    assert_eq!(text(), "turn.max_steps = 5\n");
}

/// A summary suits itself to the window, so what is built in never stands in the way of a start.
#[test]
fn the_built_in_compaction_suits_every_window() {
    let narrow = cli(&["run", "@say Hi."]).env("MEERKAT_TURN__MAX_OUTPUT_TOKENS", "99000").run();
    assert_eq!((narrow.code, narrow.out.as_str()), (0, "Hi.\n"), "{}", narrow.err);
}

#[test]
fn tables_are_for_people_and_documents_for_programs() {
    let capabilities = cli(&["capabilities", "--json"]).run().json();
    let built = meerkat_service::Capabilities::compiled().view();
    assert_eq!(
        (&capabilities["build"], &capabilities["session_store"]),
        (&built.build.into(), &built.session_store.into())
    );
    assert!(cli(&["capabilities", "--ephemeral"]).run().out.contains("session_store       false\n"));
    let errors = cli(&["errors", "--json"]).run().json();
    assert_eq!(errors["items"].as_array().unwrap().len(), ErrorCode::ALL.len());
    let table = cli(&["errors"]).run().out;
    assert!(ErrorCode::ALL.iter().all(|code| table.contains(code.as_str())));
    assert_eq!(cli(&["errors", "session_busy"]).run().out, ErrorCode::SessionBusy.page());
    assert_eq!(cli(&["errors", "SESSION_BUSY", "--json"]).run().json()["items"][0]["exit_code"], 14);
    cli(&["errors", "FROB"]).run().refused(ErrorCode::InvalidRequest, "is not a code");
}

/// Broken once: headers and variables that do not look like a vendor's key were printed, and ended in reports of bugs.
#[test]
fn nothing_that_a_server_is_given_is_shown() {
    let command = cli(&["config", "show", "--json"]);
    let (dir, root) = (command.dir.clone(), command.dir().display().to_string());
    fs::create_dir(dir.path().join("meerkat")).unwrap();
    let own = r#"
        servers.a = { command = "a", env = { PASSWORD = "planted", TOKEN = "${TOKEN}", BOTH = "${A:-planted}" } }
        servers.b = { url = "https://b", headers = { Authorization = "Basic planted" } }
    "#;
    fs::write(dir.path().join("meerkat/meerkat.toml"), own).unwrap();
    fs::write(dir.path().join("meerkat.toml"), "servers.c = { command = \"c\", env = { SECRET = \"planted\" } }")
        .unwrap();
    assert_eq!(cli(&["config", "trust", "--yes"]).in_dir(&dir).env("XDG_CONFIG_HOME", &root).run().code, 0);
    let show = || cli(&["config", "show", "--json"]).in_dir(&dir).env("XDG_CONFIG_HOME", &root);
    let ran = show().env("MEERKAT_SERVERS__A__ENV__MORE", "planted").run();
    for key in ["a.env.PASSWORD", "a.env.BOTH", "b.headers.Authorization", "c.env.SECRET", "a.env.more"] {
        assert_eq!(entry(&ran, &format!("servers.{key}")).0, "\"[redacted]\"", "{key}");
    }
    assert_eq!(entry(&ran, "servers.a.env.TOKEN").0, "\"${TOKEN}\"");
    assert!(!format!("{}{}", ran.out, ran.err).contains("planted"), "{}{}", ran.out, ran.err);
}

/// Broken once: whoever could write the file decided which programs a user's meerkat starts.
#[test]
fn a_users_file_that_others_may_write_is_refused() {
    let command = cli(&["config", "show"]);
    let (dir, root) = (command.dir.clone(), command.dir().display().to_string());
    let folder = dir.path().join("meerkat");
    let file = folder.join("meerkat.toml");
    fs::create_dir(&folder).unwrap();
    fs::write(&file, "turn.max_steps = 2").unwrap();
    let run = || cli(&["run", "@say Hi."]).in_dir(&dir).env("XDG_CONFIG_HOME", &root).run();
    let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (path, good, bad) in [(&file, 0o664, 0o666), (&folder, 0o775, 0o777)] {
        allow(path, bad);
        let ran = run();
        ran.refused(
            ErrorCode::ConfigInvalid,
            &format!("everybody may write it; `chmod o-w {}` ends that", path.display()),
        );
        assert!(ran.err.contains(&format!("user file {}", file.display())), "{}", ran.err);
        allow(path, good);
        assert_eq!(run().out, "Hi.\n");
    }
}

#[test]
fn a_users_file_of_another_user_is_refused() {
    needs!("root, to give a file away" => rustix::process::geteuid().is_root());
    let command = cli(&["config", "show"]);
    let (dir, root) = (command.dir.clone(), command.dir().display().to_string());
    let file = dir.path().join("meerkat/meerkat.toml");
    fs::create_dir(dir.path().join("meerkat")).unwrap();
    fs::write(&file, "turn.max_steps = 2").unwrap();
    chown(&file, Some(12_345), None).unwrap();
    let ran = cli(&["run", "@say Hi."]).in_dir(&dir).env("XDG_CONFIG_HOME", &root).run();
    ran.refused(ErrorCode::ConfigInvalid, "it belongs to another user");
}
