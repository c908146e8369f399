//! The page that says where each promise of the specification is kept: what it names must be there.
//!
//! A row is `| P-1 | promise | where | test | reasons |`. Behind a file, by its short name in brackets, stand the names to
//! look for in it, in backquotes. A word is declared in a file of Rust; any other text occurs as it stands.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::File;

/// The page.
pub const PAGE: &str = "docs/specification.md";

/// Words that declare the name behind them.
const DECLARING: [&str; 10] =
    ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "macro_rules!", "let"];

/// What stands in the place of a test if there can be none.
const BY_ITSELF: [&str; 2] = ["the compiler", "every scenario"];

/// Everything that is wrong with the page: files and names that are not there, numbers that are left out, departures
/// without a reason, and reasons of none.
pub fn complaints(page: &File, files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut named = BTreeMap::new();
    for (label, path) in definitions(&page.text) {
        let file = files.iter().find(|file| file.path == path);
        if file.is_none() {
            complaints.push(format!("[{label}]: there is no file {path}"));
        }
        if !is_name_of(label, path) {
            complaints.push(format!("[{label}] is no name of {path}"));
        }
        named.insert(label, file);
    }
    let (mut counts, mut departures) = (BTreeMap::<&str, usize>::new(), BTreeSet::new());
    for line in page.text.lines() {
        let Some((part, number, rest)) = numbered(line) else { continue };
        let count = counts.entry(part).or_default();
        *count += 1;
        let mut complain = |what: String| complaints.push(format!("{part}-{number}: {what}"));
        if count.to_string() != number {
            complain(format!("its number should be {part}-{count}"));
        }
        let cells: Vec<&str> = rest.split('|').map(str::trim).collect();
        let &[_, place, test, reasons, ""] = &cells[..] else {
            complain("a row has five cells".to_owned());
            continue;
        };
        for (cell, is_said) in [(place, false), (test, BY_ITSELF.iter().any(|words| test.starts_with(words)))] {
            missing(cell, &named).into_iter().for_each(&mut complain);
            if !is_said && !cell.contains('[') && reasons.is_empty() {
                complain("it says neither where it is kept and tested, nor why not".to_owned());
            }
        }
        departures.extend(reasons.split(", ").filter(|reason| !reason.is_empty()));
    }
    let bold = page.text.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("**"));
    let given: BTreeSet<&str> = bold.map(|(reason, _)| reason).filter(|reason| reason.starts_with("D-")).collect();
    let differ = departures.symmetric_difference(&given);
    complaints.extend(differ.map(|reason| format!("{reason} is a reason that is not given, or that no row has")));
    complaints.into_iter().map(|complaint| format!("{}: {complaint}", page.path)).collect()
}

/// Short names of files, and their paths from the root.
fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ../"))
}

/// Returns true if a short name is the end of a path, or the number of a scenario.
fn is_name_of(label: &str, path: &str) -> bool {
    let scenario = path.strip_prefix("parity-tests/scenarios/").and_then(|name| name.split('-').next());
    scenario == Some(label) || path == label || path.ends_with(&format!("/{label}"))
}

/// The letter and the number of a row, and what follows.
fn numbered(line: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = line.strip_prefix("| ")?.split_once(" | ")?;
    let (part, number) = name.split_once('-')?;
    number.parse::<usize>().is_ok().then_some((part, number, rest))
}

/// What a cell names that is not there.
fn missing(cell: &str, named: &BTreeMap<&str, Option<&File>>) -> Vec<String> {
    let (mut complaints, mut file, mut rest) = (Vec::new(), None, cell);
    while let Some(at) = rest.find(['[', '`']) {
        let is_file = rest[at..].starts_with('[');
        let Some((name, behind)) = rest[at + 1..].split_once(if is_file { ']' } else { '`' }) else {
            complaints.push(format!("`{cell}` has no end"));
            break;
        };
        rest = behind;
        if is_file {
            let known = named.get(name);
            complaints.extend(known.is_none().then(|| format!("[{name}] is no file of the list at the end")));
            file = Some(known.copied().flatten());
        } else if !file.is_some_and(|file| file.is_none_or(|file| has(file, name))) {
            complaints.push(format!("`{name}` is not in the file before it"));
        }
    }
    complaints
}

/// Returns true if a file declares a word, or has a text.
fn has(file: &File, name: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    if !file.path.ends_with(".rs") || !name.chars().all(is_word) {
        return file.text.contains(name);
    }
    DECLARING.iter().any(|word| {
        let declared = format!("{word} {name}");
        let behind = |(at, _): (usize, &str)| file.text[at + declared.len()..].chars().next();
        file.text.match_indices(&declared).any(|found| !behind(found).is_some_and(is_word))
    })
}
