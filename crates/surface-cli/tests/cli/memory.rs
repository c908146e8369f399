//! `memory …`: what people see of hits at a terminal, and what they are asked before something is forgotten; what was
//! forgotten stays forgotten if a file of memory is damaged.

use std::{fs, path::Path, sync::Arc};

use meerkat_testkit::{Random, seed, until, until_some};

use crate::drive::{Ran, meerkat, ran, terminal::cli};

#[test]
fn a_person_sees_what_was_found_and_is_asked_before_it_is_forgotten() {
    let dir = Arc::new(meerkat_testkit::folder());
    assert_eq!(cli(&["run", "@say The passphrase is persimmon."]).in_dir(&dir).run().code, 0);
    let search = || cli(&["memory", "search", "persimmons", "--role", "assistant"]).in_dir(&dir).on_terminal();
    // A search waits a while for memory, and a busy machine may need more.
    until("memory has it", || search().run().out.contains("is \u{1b}[1mpersimmon\u{1b}[0m."));
    let plain = search().env("NO_COLOR", "1").run();
    assert!(!plain.out.contains('\u{1b}') && plain.out.contains("persimmon"), "{:?}", plain.out);
    let forget =
        |typed: &str| cli(&["memory", "forget", "--source", "assistant"]).in_dir(&dir).on_terminal().stdin(typed);
    let refused = forget("no\n").run();
    assert!(refused.err.contains("Forget all texts that match") && refused.err.contains("Nothing was forgotten."));
    assert!(search().run().out.contains("persimmon"));
    assert_eq!(forget("y\n").run().out, "forgotten  1\nerased     true\n");
}

#[test]
fn a_paraphrase_without_a_common_word_is_found_out_of_the_box() {
    let dir = meerkat_testkit::folder();
    let said = "The certificate had expired.";
    assert_eq!(run(dir.path(), &["run", &format!("@say {said}")]).code, 0);
    let find = |query: &str| {
        let found = run(dir.path(), &["memory", "search", query, "--role", "assistant", "--json"]);
        assert_eq!(found.code, 0, "{}", found.err);
        found.json()["items"].clone()
    };
    // A search waits a while for memory, and a busy machine may need more.
    let found = until_some("memory has it", || Some(find("TLS cert ran out")).filter(|found| found[0].is_object()));
    assert_eq!(found[0]["text"], said);
    let lanes = found[0]["lanes"].as_object().unwrap();
    assert_eq!(lanes.keys().collect::<Vec<_>>(), ["vector"], "no word is the same");
    assert_eq!(find("medieval cathedral gargoyle"), serde_json::json!([]));
}

/// A forgetting once answered only when the text had left every file, with nothing to say otherwise.
#[test]
fn forgetting_waits_until_the_text_has_left_every_file_unless_it_is_told_not_to() {
    for is_told in [false, true] {
        let dir = meerkat_testkit::folder();
        let said = run(dir.path(), &["run", "@say The passphrase is persimmon."]);
        assert_eq!(said.code, 0, "{}", said.err);
        // The prompt has the word, too.
        let forget = ["memory", "forget", "--session", "last", "--yes", "--json"];
        let no_wait: &[&str] = if is_told { &["--no-wait"] } else { &[] };
        let forgotten = run(dir.path(), &[&forget[..], no_wait].concat()).json();
        assert_eq!((&forgotten["forgotten"], &forgotten["erased"]), (&2.into(), &(!is_told).into()));
        if is_told {
            // What that process did not do, the next one does.
            let found = run(dir.path(), &["memory", "search", "persimmon", "--json"]);
            assert_eq!(found.json()["items"], serde_json::json!([]), "{}", found.err);
            let again = run(dir.path(), &forget).json();
            assert_eq!((&again["forgotten"], &again["erased"]), (&0.into(), &true.into()));
        }
        is_forgotten(dir.path(), "persimmon");
    }
}

/// Runs the program on the data directory `data` in a folder.
#[track_caller]
fn run(dir: &Path, args: &[&str]) -> Ran {
    ran(meerkat(dir, args).env("MEERKAT_DATA_DIR", dir.join("data")))
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        match from.is_dir() {
            true => copied(&from, &to),
            false => fs::write(to, fs::read(from).unwrap()).unwrap(),
        }
    }
}

/// Returns the files and folders of memory in a data directory.
fn of_memory(data: &Path) -> Vec<std::path::PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![data.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_its = folder != data || name.starts_with("memory") || name == "quarantine";
            match path.is_dir() {
                true if is_its => folders.push(path),
                false if is_its => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// Checks that a word is in no file of memory, and in no answer.
#[track_caller]
fn is_forgotten(dir: &Path, word: &str) {
    let found = run(dir, &["memory", "search", word, "--json"]);
    let items = found.json()["items"].as_array().map_or(0, Vec::len);
    assert_eq!(items, 0, "{}{}", found.out, found.err);
    for file in of_memory(&dir.join("data")) {
        let is_there = fs::read(&file).unwrap().windows(word.len()).any(|it| it == word.as_bytes());
        assert!(!is_there, "{word} is in {}", file.display());
    }
}

type Damage = fn(&Path, &mut Random);

const DAMAGES: [(&str, Damage); 4] = [
    ("deleted", |file, _| fs::remove_file(file).unwrap()),
    ("cut off", |file, random| {
        let bytes = fs::read(file).unwrap();
        let left = random.below(bytes.len() as u64);
        fs::write(file, &bytes[..usize::try_from(left).unwrap()]).unwrap();
    }),
    ("a bit of its last record", |file, random| flip(file, |len| len - 1 - random.below(len.min(60)))),
    ("a bit of it", |file, random| flip(file, |len| random.below(len))),
];

fn flip(file: &Path, at: impl FnOnce(u64) -> u64) {
    let mut bytes = fs::read(file).unwrap();
    let at = usize::try_from(at(bytes.len() as u64)).unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

/// `doctor --repair` once said that nothing was wrong, and without memory.redb the forgotten text was found.
#[test]
fn what_was_forgotten_stays_so_if_one_of_memorys_files_is_damaged() {
    let (dir, mut random) = (meerkat_testkit::folder(), Random::new(seed()));
    let whole = dir.path().join("whole");
    fs::create_dir(&whole).unwrap();
    assert_eq!(run(&whole, &["run", "@say The passphrase is persimmon."]).code, 0);
    assert_eq!(run(&whole, &["memory", "forget", "--session", "last", "--yes", "--json"]).json()["forgotten"], 2);
    assert_eq!(run(&whole, &["run", "@say The harbour is closed."]).code, 0);
    is_forgotten(&whole, "persimmon");
    for file in of_memory(&whole.join("data")) {
        for (damage, happens) in DAMAGES {
            let what = format!("{}, {damage}", file.display());
            let damaged = |name: &str, random: &mut Random| {
                let place = dir.path().join(name);
                drop(fs::remove_dir_all(&place));
                copied(&whole, &place);
                happens(&place.join(file.strip_prefix(&whole).unwrap()), random);
                place
            };
            let place = damaged("repaired", &mut random);
            let repaired = run(&place, &["doctor", "--repair"]);
            assert_eq!(repaired.code, 0, "{what}: {}{}", repaired.out, repaired.err);
            drop(fs::remove_file(place.join("data/memory.redb")));
            // A search waits a short time only for what is taken in again.
            until(&format!("{what}: what was not forgotten is found"), || {
                run(&place, &["memory", "search", "harbour"]).out.contains("harbour is closed")
            });
            is_forgotten(&place, "persimmon");
            // Without a repair it refuses, or has what it needs.
            let place = damaged("lost", &mut random);
            drop(fs::remove_file(place.join("data/memory.redb")));
            run(&place, &["memory", "reindex"]);
            is_forgotten(&place, "persimmon");
        }
    }
}
