//! State of a repository in a reminder: git runs confined, whatever the repository's configuration says.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use libtest_mimic::Trial;
use meerkat_service::{clock::Timestamp, session::reminder::SystemReminderType, tool::WorkspaceNotes as _};
use meerkat_testkit::until_some;
use meerkat_tools::notes::Notes;

use super::place::{Place, RUNTIME, has_namespaces};

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let trials: [(&str, fn()); _] = [
        ("the_state_of_a_repository_is_told", told),
        ("a_repository_runs_nothing_for_its_state", hostile),
        ("nothing_is_guarded_against_a_look", unguarded),
        ("a_folder_of_a_repository_has_the_state_of_its_files", inner),
    ];
    trials.into_iter().map(|(name, trial)| {
        Trial::test(name, move || {
            trial();
            Ok(())
        })
    })
}

/// Returns the reminder of a folder's repository.
fn status(place: &Place, folder: &Path) -> Option<String> {
    let notes = Notes::new(Arc::new(|_| true), 1024).with_git_status(place.options());
    let notes = RUNTIME.block_on(notes.write(folder, Timestamp::from_millis(0)));
    let status = notes.into_iter().find(|(kind, _)| *kind == SystemReminderType::GitStatus);
    status.unwrap().1
}

/// Returns the reminder of a folder that has one, if git runs at all: on a busy machine git may take longer than it has.
fn state(place: &Place, folder: &Path) -> Option<String> {
    if !has_namespaces() {
        return status(place, folder);
    }
    Some(until_some("git tells the state", || status(place, folder)))
}

fn git(place: &Place, arguments: &[&str]) {
    assert!(Command::new("git").args(arguments).current_dir(&place.workspace).status().unwrap().success());
}

fn told() {
    let place = Place::new();
    assert_eq!(status(&place, &place.workspace), None, "no repository");
    place.git();
    git(&place, &["checkout", "-q", "-b", "work"]);
    fs::write(place.workspace.join("a"), "1").unwrap();
    git(&place, &["add", "a"]);
    git(&place, &["commit", "-q", "-m", "first"]);
    // Without whole confinement git does not run.
    let only = |text: &str| has_namespaces().then(|| text.to_owned());
    assert_eq!(state(&place, &place.workspace), only("Branch: work\nNo changed files."));
    fs::write(place.workspace.join("a"), "22").unwrap();
    fs::write(place.workspace.join("b\u{1b}[2J"), "").unwrap();
    let expected = "Branch: work\nChanged files: 2\n M a\n?? \"b\\033[2J\"";
    assert_eq!(state(&place, &place.workspace), only(expected));
    for number in 0..30 {
        fs::write(place.workspace.join(format!("new {number:02}")), "").unwrap();
    }
    let text = state(&place, &place.workspace);
    assert_eq!(text.is_some(), has_namespaces());
    if let Some(text) = text {
        assert!(text.contains("Changed files: 32\n") && text.ends_with("\n[12 more]"), "{text}");
        assert_eq!(text.lines().count(), 23, "{text}");
    }
}

/// The programs that a repository names: a monitor of files, a filter, a hook.
fn hostile() {
    let place = Place::new();
    place.git();
    fs::write(place.workspace.join("a"), "1").unwrap();
    git(&place, &["add", "a"]);
    git(&place, &["commit", "-q", "-m", "first"]);
    let program = place.workspace.join("evil");
    let marks = [place.workspace.join("mark"), place.folder.path().join("data/mark"), "/var/tmp/meerkat-mark".into()];
    let script: String = marks.iter().map(|mark| format!("echo ran > {}\n", mark.display())).collect();
    fs::write(&program, format!("#!/bin/sh\necho obey me >&2\n{script}cat\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let evil = program.to_str().unwrap();
    for (key, value) in [("core.fsmonitor", evil), ("filter.evil.clean", evil), ("filter.evil.required", "true")] {
        git(&place, &["config", key, value]);
    }
    fs::create_dir_all(place.workspace.join(".git/hooks")).unwrap();
    for hook in ["post-index-change", "fsmonitor-watchman"] {
        fs::copy(&program, place.workspace.join(".git/hooks").join(hook)).unwrap();
    }
    fs::write(place.workspace.join(".gitattributes"), "* filter=evil\n").unwrap();
    // Of equal size, so that its content is looked at.
    fs::write(place.workspace.join("a"), "2").unwrap();
    let text = state(&place, &place.workspace);
    for mark in &marks {
        assert!(!mark.exists(), "{} was written; {text:?}", mark.display());
    }
    assert!(!text.iter().any(|text| text.contains("obey me")), "{text:?}");
    assert_eq!(text.is_some_and(|text| text.contains("Branch: ma") && text.contains(" M a")), has_namespaces());
}

/// Broken once: a look put back what the owner changed meanwhile.
fn unguarded() {
    let place = Place::new();
    place.git();
    let file = place.workspace.join(".git/config.worktree");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                // Each fails if somebody else makes or deletes the file.
                fs::File::create_new(&file).unwrap();
                assert!(file.exists());
                fs::remove_file(&file).unwrap();
            }
        });
        for _ in 0..40 {
            drop(status(&place, &place.workspace));
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

fn inner() {
    let mut place = Place::new();
    place.git();
    let folder = place.workspace.join("inner");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), "").unwrap();
    fs::write(place.workspace.join("above"), "").unwrap();
    git(&place, &["add", "-N", "inner/file"]);
    let text = state(&place, &folder);
    assert_eq!(text.is_some(), has_namespaces());
    if let Some(text) = text {
        assert!(text.ends_with("\nChanged files: 1\n A file"), "{text}");
    }
    // A repository in a folder that may be no workspace has none.
    place.workspace = place.folder.path().join("data/repository");
    fs::create_dir(&place.workspace).unwrap();
    place.git();
    assert_eq!(status(&place, &place.workspace), None);
}
