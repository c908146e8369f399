//! The rules of the house that a program can check, one test each, and each checker against a bad sample. Beside them:
//! what the contract, the scenarios and the tables must say of each other.

#![expect(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod capabilities;
mod contract;
mod coverage;
mod specification;

use std::collections::BTreeMap;

use meerkat_errors::ErrorCode;
use meerkat_parity_tests::{
    builds,
    tidy::{self, File},
};
use meerkat_service::session::event::EventKind;
use serde_json::{Value, json};

/// Holds a rule over every file.
#[track_caller]
fn check(rule: impl Fn(&File) -> Vec<String>) {
    let files = tidy::files().unwrap();
    assert!(files.iter().filter(|file| file.path.ends_with(".rs")).count() > 50, "the sources were not found");
    let complaints: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Number of complaints of a rule about a file with this text.
fn complaints(path: &str, text: &str, rule: impl Fn(&File) -> Vec<String>) -> usize {
    rule(&File::new(path, text)).len()
}

fn from_toml(path: &str) -> Value {
    let text = std::fs::read_to_string(builds::workspace().join(path)).unwrap();
    toml_edit::de::from_str(&text).unwrap()
}

#[test]
fn every_file_says_what_it_is_for_and_is_short() {
    check(tidy::shape);
    assert_eq!(complaints("crates/x/src/a.rs", "fn a() {}\n", tidy::shape), 1);
    assert_eq!(complaints("crates/x/src/a.rs", &format!("//! A.\n{}", "\n".repeat(700)), tidy::shape), 1);
    assert_eq!(complaints("crates/x/src/a.rs", "//! A.\n", tidy::shape), 0);
}

#[test]
fn a_protocols_crate_stays_in_its_surface_and_surfaces_stay_apart() {
    check(tidy::confined);
    assert_eq!(complaints("crates/surface-cli/src/chat.rs", "use meerkat_surface_rest::x;", tidy::confined), 1);
    assert_eq!(complaints("crates/serve/src/front.rs", "use meerkat_surface_rest::x;", tidy::confined), 0);
    assert_eq!(complaints("crates/service/src/a.rs", "use axum::Router;", tidy::confined), 1);
    assert_eq!(complaints("crates/service/src/a.rs", "let x = clap::Arg::new(redb::X);", tidy::confined), 2);
    assert_eq!(complaints("crates/service/src/store/directory/index.rs", "use redb::Database;", tidy::confined), 0);
    assert_eq!(complaints("crates/service/src/a.rs", "let x = my_axum::x();", tidy::confined), 0);
}

#[test]
fn only_twins_ask_for_a_feature() {
    let files = tidy::files().unwrap();
    check(|file| tidy::feature_zones(file, &files));
    let twins = [File::new("crates/service/src/memory/absent.rs", "")];
    let zones = |file: &File| tidy::feature_zones(file, &twins);
    assert_eq!(complaints("crates/service/src/agent/actor.rs", "#[cfg(feature = \"memory-store\")]", zones), 1);
    assert_eq!(complaints("crates/service/src/memory/mod.rs", "#[cfg(feature = \"memory-store\")]", zones), 0);
    assert_eq!(complaints("crates/service/src/store/mod.rs", "if cfg!(feature = \"x\") {}", zones), 1);
}

#[test]
fn pages_show_code_that_runs() {
    let files = tidy::files().unwrap();
    assert_eq!(files.iter().filter(|file| tidy::EXAMPLE_PAGES.contains(&file.path.as_str())).count(), 3);
    check(|file| tidy::shows_examples(file, &files));
    let examples = [File::new("examples/a.py", "def a():\n    b()\n    c()\n")];
    let shown = |block: &str| {
        let page = format!("# A\n\n```python\ndef a():\n```\n\n```python\n{block}\n```\n");
        complaints("docs/python.md", &page, |file| tidy::shows_examples(file, &examples))
    };
    assert_eq!(shown("b()\nc()"), 0);
    assert_eq!(shown("a()\nc()"), 1);
    assert_eq!(shown("b("), 1);

    let text = |path| files.iter().find(|file| file.path == path).map(|file| file.text.as_str()).unwrap();
    let (page, program) = tidy::PROGRAM;
    let shown: Vec<&str> =
        text(page).split("```rust,no_run\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(shown, [text(program)], "{page} does not show {program}");
}

#[test]
fn serde_stays_where_bytes_are_made() {
    check(tidy::serde_zones);
    assert_eq!(complaints("crates/service/src/agent/actor.rs", "#[derive(Clone, Serialize)]", tidy::serde_zones), 1);
    assert_eq!(complaints("crates/service/src/wire/call.rs", "#[derive(Deserialize)]", tidy::serde_zones), 0);
    assert_eq!(complaints("crates/service/src/wire/call.rs", "#[serde(flatten)]", tidy::serde_zones), 1);
    assert_eq!(complaints("crates/service/words/src/options.rs", "#[serde(untagged)]", tidy::serde_zones), 1);
}

#[test]
fn tests_run_and_wait_on_no_clock() {
    check(tidy::test_manners);
    let of = |text: &str| complaints("crates/x/tests/a.rs", text, tidy::test_manners);
    let test = |attribute: &str, body: &str| format!("{attribute}\nasync fn test() {{\n    {body}\n}}\n");
    let sleep = concat!("tokio::time::", "sleep(x).await;");
    let paused = "#[tokio::test(start_paused = true)]";
    assert_eq!(of(&test("#[tokio::test]", sleep)), 1);
    assert_eq!(of(&test(paused, sleep)), 0);
    assert_eq!(of(&(test(paused, sleep) + &test("#[tokio::test]", sleep))), 1, "each test has its own clock");
    for spin in ["while !is_so() {\n        yield_now();", "loop {\n        if is_so() {\n            yield_now();"] {
        assert_eq!(of(&test("#[test]", spin)), 1, "{spin}");
        assert_eq!(of(&test(paused, spin)), 0, "{spin}");
    }
    assert_eq!(of(&test("#[test]", "for _ in 0..10 {\n        yield_now();")), 0);
    let port = concat!("let port = TcpListener::bind(\"127.0.0.1:0\").unwrap().", "local_addr();");
    let deadline = concat!("assert!(began.elapsed() ", "< Duration::from_secs(3));");
    let timeout = concat!("time", "out(Duration::from_secs(59), work).await;");
    let released = concat!("let gone = TcpListener::", "bind(here).unwrap();\n    drop(gone);");
    let wait = concat!("let wait = WaitReader ", "{ reader, session_id, seq, wait_ms: 5_000 };");
    for hurry in [port, deadline, timeout, released, wait] {
        assert_eq!(of(&test("#[test]", hurry)), 1, "{hurry}");
    }
    assert_eq!(complaints("crates/x/src/a.rs", "    #[ignore]", tidy::test_manners), 1);
    assert_eq!(complaints("crates/x/src/a.rs", "#[allow(dead_code, reason = \"x\")]", tidy::test_manners), 1);
}

#[test]
fn messages_are_in_plain_words() {
    check(tidy::plain_words);
    let of = |text: &str| complaints("crates/x/src/a.rs", text, tidy::plain_words);
    assert_eq!(of("refused(\"it is no folder\");\n"), 1);
    assert_eq!(of("refused(\"there is no folder; it is not a link\");\nlet told = nobody(\"a\");\n"), 0);
    assert_eq!(of("refused(\"one \\\n  that nobody asked for\");\n"), 1);
    assert_eq!(of("// \"nobody\"\n\nmod tests {\n    x(\"nobody\");\n"), 0);
    assert_eq!(complaints("crates/x/tests/a.rs", "x(\"nobody\");\n", tidy::plain_words), 0);
}

#[test]
fn the_architecture_names_what_is_there() {
    let files = tidy::files().unwrap();
    check(|file| tidy::names_exist(file, &files));
    let of = |text: &str| complaints("ARCHITECTURE.md", text, |file| tidy::names_exist(file, &files));
    assert_eq!(of("`agent/decide.rs`, `crates/errors`, `embed/`, `Session::apply`, `GET /v1`, `codes/<NAME>.md`"), 0);
    assert_eq!(of("`agent/decides.rs`, `crates/errors/none`, `embeds/`"), 3);
    assert_eq!(of(&"a\n".repeat(201)), 1);
}

#[test]
fn chance_has_a_seed_that_is_printed_and_can_be_set() {
    check(tidy::seeds);
    let of = |text: &str| complaints("crates/x/tests/a.rs", text, tidy::seeds);
    let property = |settings: &str| format!("proptest! {{\n{settings}\n    #[test]\n    fn a(n: u8) {{}}\n}}\n");
    assert_eq!(of(&property("    #![proptest_config(cases(9))]\n")), 0);
    assert_eq!(of(&property("")), 1);
    assert_eq!(of(&property("    #![proptest_config(ProptestConfig::default())]\n")), 2);
    assert_eq!(of("let mut runner = TestRunner::default();\n"), 1);
    assert_eq!(of("getrandom::fill(&mut bytes);\n"), 1);
}

#[test]
fn no_file_names_what_only_one_machine_has() {
    let machine = tidy::machine();
    check(|file| tidy::stays_home(file, &machine));
    let here = ["/the/checkout/".to_owned()];
    assert_eq!(complaints("README.md", "see /the/checkout/target", |file| tidy::stays_home(file, &here)), 1);
    assert_eq!(complaints("README.md", "see target/", |file| tidy::stays_home(file, &here)), 0);
}

#[test]
fn our_crates_depend_on_each_other_as_drawn() {
    let complaints = tidy::edges(&tidy::packages().unwrap());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let package = |name: &str, on: &str| [json!({ "name": name, "source": null, "dependencies": [{ "name": on }] })];
    assert_eq!(tidy::edges(&package("meerkat-service", "meerkat-surface-rest")).len(), 1);
    assert_eq!(tidy::edges(&package("meerkat-service", "axum")).len(), 1);
    assert_eq!(tidy::edges(&package("meerkat-stranger", "serde")).len(), 1);
    assert_eq!(tidy::edges(&package("meerkat-surface-rest", "axum")).len(), 0);
}

#[test]
fn every_licence_is_allowed() {
    let deny = from_toml("deny.toml");
    let allowed: Vec<String> = serde_json::from_value(deny["licenses"]["allow"].clone()).unwrap();
    let complaints = tidy::licences(&tidy::packages().unwrap(), &allowed);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let some = ["MIT".to_owned(), "ISC".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()];
    for met in ["MIT", "GPL-3.0 OR MIT", "MIT/GPL-3.0", "(GPL-3.0 OR MIT) AND ISC", "Apache-2.0 WITH LLVM-exception"] {
        assert!(tidy::is_allowed(met, &some), "{met}");
    }
    for unmet in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR MIT) AND X", "Apache-2.0", "", "(MIT"] {
        assert!(!tidy::is_allowed(unmet, &some), "{unmet}");
    }
}

/// Over the lock file, which has the packages of every platform.
#[test]
fn nothing_that_is_banned_is_locked() {
    let name_of = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let banned: Vec<String> =
        from_toml("deny.toml")["bans"]["deny"].as_array().unwrap().iter().map(|row| name_of(row, "crate")).collect();
    for must in ["libsqlite3-sys", "rusqlite", "sqlx-sqlite", "openssl-sys", "aws-lc-sys"] {
        assert!(banned.iter().any(|name| name == must), "deny.toml must ban {must}");
    }
    let lock = from_toml("Cargo.lock");
    let locked: Vec<String> = lock["package"].as_array().unwrap().iter().map(|row| name_of(row, "name")).collect();
    assert!(locked.contains(&"tokio".to_owned()), "the lock file was not understood");
    let found: Vec<&String> = locked.iter().filter(|name| banned.contains(name) || name.contains("sqlite")).collect();
    assert!(found.is_empty(), "remove {found:?}: deny.toml says why they are banned");
}

#[test]
fn every_page_opens_with_its_name() {
    let codes = ErrorCode::ALL.iter().map(|code| (code.as_str(), code.page()));
    for (name, page) in codes.chain(EventKind::ALL.iter().map(|kind| (kind.name(), kind.page()))) {
        assert!(page.starts_with(&format!("# {name}\n\n")), "the page of {name} opens with `# {name}` and says more");
    }
}

#[test]
fn the_readmes_matrix_is_that_of_the_builds() {
    let readme = std::fs::read_to_string(builds::workspace().join("README.md")).unwrap();
    let rows = readme.lines().skip_while(|line| *line != "| build | features |").skip(2);
    let cells =
        |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect::<Vec<_>>();
    let written: BTreeMap<String, String> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|row| (cells(row)[0].clone(), cells(row)[1].clone()))
        .collect();
    let features = |features: &[String]| if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let built: BTreeMap<String, String> =
        builds::all().unwrap().into_iter().map(|build| (build.name, features(&build.row.features))).collect();
    assert_eq!(written, built, "README.md's table of builds must say what config/builds.toml says");
}

#[test]
fn every_surface_has_the_same_rooms() {
    for entry in std::fs::read_dir(builds::workspace().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        if folder.file_name().unwrap().to_string_lossy().starts_with("surface-") {
            for room in ["lib.rs", "wire.rs", "error.rs", "stream.rs"] {
                assert!(folder.join("src").join(room).is_file(), "{} needs src/{room}", folder.display());
            }
        }
    }
}
