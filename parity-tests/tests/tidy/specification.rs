//! `docs/specification.md` names files, names in them and scenarios: each is there.

use meerkat_parity_tests::{
    specification::{PAGE, complaints},
    tidy::{self, File},
};

#[test]
fn what_the_page_names_is_there() {
    let files = tidy::files().unwrap();
    let page = files.iter().find(|file| file.path == PAGE).unwrap();
    assert!(page.text.lines().filter(|line| line.starts_with("| P-")).count() > 100, "the rows were not found");
    let found = complaints(page, &files);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A page of two promises with nothing wrong.
const GOOD: &str = "\
| P-1 | It runs. | [src/a.rs] `run`, `run(1)` | [001] | |
| P-2 | It stops. | [src/a.rs] `run` | the compiler | D-1 |

- **D-1** It never stops.

[src/a.rs]: ../crates/x/src/a.rs
[001]: ../parity-tests/scenarios/001-runs.toml
";

/// Number of complaints about the good page, with one text of it replaced.
fn changed(from: &str, to: &str) -> usize {
    assert!(from.is_empty() || GOOD.contains(from), "{from}");
    let page = File::new(PAGE, &if from.is_empty() { GOOD.to_owned() } else { GOOD.replacen(from, to, 1) });
    let files = [
        File::new("crates/x/src/a.rs", "fn run(n: u8) {}\nfn runner() { run(1) }\n"),
        File::new("parity-tests/scenarios/001-runs.toml", ""),
        File::new("parity-tests/scenarios/002-stops.toml", ""),
    ];
    complaints(&page, &files).len()
}

#[test]
fn what_is_not_there_is_a_complaint() {
    assert_eq!(changed("", ""), 0);
    for (from, to, why) in [
        ("`run`,", "`runs`,", "no such function"),
        ("`run`,", "`runne`,", "a part of a function's name"),
        ("`run(1)`", "`run(2)`", "no such text"),
        ("[src/a.rs] `run`,", "`run`, [src/a.rs]", "a name before its file"),
        ("[src/a.rs] `run`,", "[src/b.rs] `run`,", "no such short name"),
        ("[001] |", "[002] |", "a scenario that is not on the list"),
        ("001-runs.toml", "002-stops.toml", "another scenario's file"),
        ("x/src/a.rs", "y/src/a.rs", "no such file"),
        ("[001]: ", "[src/c.rs]: ../crates/x/src/c.rs\n[001]: ", "a file on the list alone"),
        ("[001] |", "some test |", "no test"),
        ("[src/a.rs] `run`, `run(1)` |", "somewhere |", "no place"),
        ("P-2", "P-3", "a number left out"),
        ("| the compiler", "| the compiler | D-1", "a cell too many"),
        ("| D-1 |", "| |", "a reason that no row has"),
        ("| D-1 |", "| D-1, D-2 |", "a reason that is not given"),
    ] {
        assert!(changed(from, to) > 0, "{why}");
    }
}
