//! What git's configuration names, in every git directory of a workspace and by whichever key.

use std::fs;

use serde_json::json;

use super::{
    git::stay,
    links::{asks, put},
    place::{Place, has_namespaces},
};

pub(crate) const TRIALS: [(&str, fn()); 3] = [
    ("git_pipes_in_place_of_a_configuration_are_refused", pipes_are_refused),
    ("git_hooks_that_submodules_and_worktrees_name_are_not_changed", others_are_not_changed),
    ("git_programs_of_any_key_are_not_changed", programs_of_any_key_are_not_changed),
];

/// A submodule and a linked worktree, each with settings of its own.
fn with_others() -> Place {
    let place = Place::new();
    place.git();
    place.owners_git("commit -q --allow-empty -m first");
    place.owners_git("worktree add -q w2");
    fs::create_dir_all(place.workspace.join(".git/modules")).unwrap();
    place.owners_git("init -q --separate-git-dir .git/modules/sub sub");
    place.owners_git("--git-dir=.git/modules/sub config core.worktree ../../../sub");
    place.owners_git("-C sub config core.hooksPath sh");
    place.owners_git("-C sub config include.path ../../../sub/team.inc");
    place.owners_git("-C sub config filter.x.clean ./conv");
    place.owners_git("config extensions.worktreeConfig true");
    place.owners_git("-C w2 config --worktree core.hooksPath wh");
    for path in ["sub/sh/pre-commit", "sub/team.inc", "sub/conv", "w2/wh/pre-commit"] {
        put(&place, path, "# mine\n");
    }
    for path in ["sh/x", "wh/x", "conv"] {
        put(&place, path, "mine");
    }
    place
}

fn others_are_not_changed() {
    if !has_namespaces() {
        // Nobody reads the configuration.
        return;
    }
    let files = ["sub/sh/pre-commit", "sub/team.inc", "sub/conv", "w2/wh/pre-commit"];
    for file in files {
        stay(&with_others, &files, &format!("echo evil > {file}"));
        assert!(asks(&with_others(), file), "{file}");
    }
    for command in ["mv sub old && cp -r old sub && echo evil > sub/sh/pre-commit", "mv w2/wh w2/old"] {
        stay(&with_others, &files, command);
    }
    with_others().succeeds("echo x > sh/x && echo x > wh/x && echo x > conv && echo x > sub/file && echo x > w2/file");
}

/// git would wait for such a pipe, and the command with it.
fn pipes_are_refused() {
    if !has_namespaces() {
        return;
    }
    for path in [".git/modules/sub/config", ".git/modules/sub/config.worktree", ".git/config"] {
        let place = with_others();
        let path = place.workspace.join(path);
        fs::remove_file(&path).ok();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (text, result) = place.call("shell", &json!({"command": "true"}));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("is not a regular file"), "{error} {text}");
    }
}

fn programs_of_any_key_are_not_changed() {
    if !has_namespaces() {
        return;
    }
    let make = || {
        let place = Place::new();
        place.git();
        for (key, value) in [
            ("alias.a", "!sh t/al.sh"),
            ("difftool.x.cmd", "t/diff.sh $LOCAL"),
            ("submodule.s.update", "!./t/sub.sh"),
            ("gpg.ssh.defaultKeyCommand", "'t/key.sh' -q"),
            ("remote.origin.url", "other"),
            ("branch.main.remote", "src"),
        ] {
            let mut git = std::process::Command::new("git");
            assert!(git.args(["config", key, value]).current_dir(&place.workspace).status().unwrap().success());
        }
        for path in ["t/al.sh", "t/diff.sh", "t/sub.sh", "t/key.sh", "src/file", "other/file"] {
            put(&place, path, "mine");
        }
        place
    };
    let files = ["t/al.sh", "t/diff.sh", "t/sub.sh", "t/key.sh"];
    for file in files {
        stay(&make, &files, &format!("echo evil > {file}"));
        assert!(asks(&make(), file), "{file}");
    }
    make().succeeds("echo x > src/file && echo x > other/file && echo x > t/other");
}
