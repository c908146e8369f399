//! Commands that pages and messages advise exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::drive::terminal::cli;

/// Kinds of files that a person may read, or that print what one reads.
const KINDS: [&str; 6] = ["md", "rs", "js", "toml", "py", "ts"];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() && !["target", "tests", "node_modules"].contains(&name.as_str()) && !name.starts_with('.') {
            files(&entry, found);
        } else if entry.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known)) {
            found.push(entry);
        }
    }
}

/// Words of a command up to the first that is no name: those of commands, and the operation of a call.
fn words(advice: &str) -> Vec<String> {
    let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || b"-/_".contains(&byte));
    let words = advice.split_whitespace().filter(|word| *word != "\\").take_while(is_name);
    words.take_while(|word| !word.starts_with('-')).map(str::to_owned).collect()
}

/// A page of errors advised a command that was renamed long ago.
#[test]
fn what_is_advised_in_backquotes_is_a_command() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    ["crates", "docs", "examples", "config"].iter().for_each(|folder| files(&root.join(folder), &mut found));
    let mut advised = BTreeSet::new();
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        for advice in text.split("`meerkat ").skip(1).filter_map(|rest| rest.split('`').next()) {
            advised.insert(words(advice));
        }
    }
    assert!(advised.len() > 30, "{advised:?}");
    for words in advised.iter().filter(|words| !words.is_empty()) {
        let args: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let ran = cli(&args).run();
        assert_eq!(ran.code, 0, "`meerkat {}`: {}", words.join(" "), ran.err);
    }
}
