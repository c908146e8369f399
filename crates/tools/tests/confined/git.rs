//! What git obeys later, outside of any confinement: no command changes it without a question.

use std::fs;

use libtest_mimic::Trial;
use meerkat_service::tool::{Approval, Ask};
use meerkat_testkit::until;
use serde_json::json;

use super::{
    links, named,
    place::{Place, RUNTIME, has_namespaces},
};

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let trials: [(&str, fn()); _] = [
        ("no_hook_or_config_of_git_is_changed", no_hook_or_config_is_changed),
        ("no_hook_or_config_of_a_submodule_or_worktree_is_changed", no_other_git_directory_is_changed),
        ("no_hook_or_config_of_a_named_git_directory_is_changed", no_named_git_directory_is_changed),
        ("nothing_is_put_back_for_a_command", nothing_is_put_back_for_a_command),
        ("nothing_that_git_is_told_to_obey_is_changed", nothing_that_git_is_told_to_obey_is_changed),
        ("a_repository_that_a_command_makes_is_said", a_new_repository_is_said),
        ("nothing_that_other_programs_obey_is_changed", nothing_that_other_programs_obey_is_changed),
        ("a_write_to_what_git_is_told_to_obey_asks", a_write_to_what_git_is_told_to_obey_asks),
    ];
    trials.into_iter().chain(links::TRIALS).chain(named::TRIALS).map(|(name, trial)| {
        Trial::test(name, move || {
            trial();
            Ok(())
        })
    })
}

fn no_hook_or_config_is_changed() {
    let make = || {
        let place = Place::new();
        place.git();
        let hooks = place.workspace.join(".git/hooks");
        fs::create_dir_all(&hooks).unwrap();
        fs::write(hooks.join("pre-commit"), "#!/bin/sh\n").unwrap();
        place
    };
    let files =
        ["config", "config.worktree", "commondir", "hooks/x", "hooks/pre-commit", "rebase-merge/git-rebase-todo"];
    let files = files.map(|file| format!(".git/{file}"));
    for command in [
        "echo evil >> .git/config",
        "git config core.fsmonitor ./evil",
        "rm -f .git/config && echo evil > .git/config",
        "echo evil > .git/hooks/x",
        "echo evil > .git/hooks/pre-commit",
        "rm -rf .git/hooks && mkdir .git/hooks && echo evil > .git/hooks/x",
        "echo ../evil > .git/commondir",
        "ln -s ../evil .git/commondir",
        "echo evil > .git/config.worktree",
        "mkdir .git/rebase-merge && echo 'exec ./evil' > .git/rebase-merge/git-rebase-todo",
        "mv .git .old && cp -r .old .git && echo evil >> .git/config",
        "mv .git/hooks .git/old",
    ] {
        stay(&make, &files, command);
    }
}

/// Checks that a command neither changes these files nor makes the missing ones. Where the kernel has no namespaces it
/// may, and then that is said.
#[track_caller]
pub(crate) fn stay(make: &dyn Fn() -> Place, files: &[impl AsRef<str>], command: &str) {
    let place = make();
    let state = || {
        let state = files.iter().map(|file| place.workspace.join(file.as_ref()));
        state.map(|file| (fs::read(&file).ok(), fs::read_link(&file).ok())).collect::<Vec<_>>()
    };
    let before = state();
    let text = place.shell(command);
    if has_namespaces() {
        assert_eq!(state(), before, "{command}: {text}");
        assert!(!text.ends_with("exit code 0"), "{command}: {text}");
    } else {
        assert!(state() == before || text.contains("changed while the command ran"), "{command}: {text}");
    }
}

fn no_other_git_directory_is_changed() {
    let (deep, inner) = (".git/modules/deep/name", ".git/modules/deep/name/modules/inner");
    let make = || {
        let place = Place::new();
        place.git();
        place.owners_git("commit -q --allow-empty -m first");
        place.owners_git("worktree add -q tree");
        fs::create_dir_all(place.workspace.join(".git/modules/deep")).unwrap();
        place.owners_git("init -q --separate-git-dir .git/modules/deep/name lib");
        fs::create_dir(place.workspace.join(deep).join("modules")).unwrap();
        place.owners_git("init -q --separate-git-dir .git/modules/deep/name/modules/inner lib/inner");
        place
    };
    let files = [
        ".git/config",
        ".git/modules/deep/name/config",
        ".git/modules/deep/name/config.worktree",
        ".git/modules/deep/name/hooks/x",
        ".git/modules/deep/name/modules/inner/config",
        ".git/worktrees/tree/commondir",
        ".git/worktrees/tree/config.worktree",
        ".git/worktrees/tree/gitdir",
    ];
    for command in [
        format!("echo evil >> {deep}/config"),
        format!("echo evil > {deep}/config.worktree"),
        format!("mkdir -p {deep}/hooks && echo evil > {deep}/hooks/x"),
        format!("echo evil >> {inner}/config"),
        format!("rm {inner}/config && echo evil > {inner}/config"),
        "echo ../../../evil > .git/worktrees/tree/commondir".to_owned(),
        "echo evil > .git/worktrees/tree/config.worktree".to_owned(),
        "echo evil > .git/worktrees/tree/gitdir".to_owned(),
        "cd lib && git config core.fsmonitor ./evil".to_owned(),
        format!("cp -r .git/modules new && mv .git/modules old && mv new .git/modules && echo evil >> {deep}/config"),
        format!("cp -r {deep} new && mv {deep} old && mv new {deep} && echo evil >> {inner}/config"),
    ] {
        stay(&make, &files, &command);
    }
    let place = make();
    place.succeeds("cd lib && git status && cd ../tree && git status");
    place.succeeds_with_git("cd lib && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m second");
    place.succeeds_with_git("cd tree && git commit -q --allow-empty -m third");
}

fn no_named_git_directory_is_changed() {
    let make = || {
        let place = Place::new();
        fs::create_dir(place.workspace.join("kept")).unwrap();
        place.owners_git("init -q --separate-git-dir kept/repo .");
        place
    };
    let files = [".git", "kept/repo/config", "kept/repo/hooks/x"];
    for command in [
        "echo evil >> kept/repo/config",
        "mkdir -p kept/repo/hooks && echo evil > kept/repo/hooks/x",
        "cp -r kept new && mv kept old && mv new kept && echo evil >> kept/repo/config",
        "rm .git && cp -r kept/repo .git",
        "echo gitdir: elsewhere > .git",
    ] {
        stay(&make, &files, command);
    }
    // The same through a link.
    let make = || {
        let place = make();
        fs::remove_file(place.workspace.join(".git")).unwrap();
        std::os::unix::fs::symlink("kept/repo", place.workspace.join(".git")).unwrap();
        place
    };
    for command in ["echo evil >> .git/config", "ln -sfn elsewhere .git", "rm .git", "mv .git old"] {
        stay(&make, &files, command);
    }
}

/// A link that a command in the background plants and takes away again while another one runs. Once, what was there at
/// the start of the second one was taken for the user's, and made again at its end.
fn nothing_is_put_back_for_a_command() {
    if !has_namespaces() {
        // Nothing runs in the background.
        return;
    }
    let place = Place::new();
    place.git();
    let first = "mkdir x x/objects x/refs; echo 'ref: refs/heads/m' > x/HEAD; echo ../x > cd; \
                 ln -s ../cd .git/commondir; touch ready; while [ ! -e go ]; do sleep 0.01; done; \
                 rm .git/commondir; touch gone";
    let (text, result) = place.call("shell", &json!({"command": first, "background": true}));
    assert!(result.is_ok(), "{text}");
    until("the first command is ready", || place.workspace.join("ready").exists());
    let text = place.succeeds("touch go; while [ ! -e gone ]; do sleep 0.01; done");
    let planted = place.workspace.join(".git/commondir").symlink_metadata();
    assert!(planted.is_err(), "the command's link is there: {text}");
}

/// Files of the workspace that the user's configuration names: git obeys them as it obeys its own.
fn nothing_that_git_is_told_to_obey_is_changed() {
    let make = || {
        let place = Place::new();
        place.git();
        for (path, text) in [("tools/hooks/pre-commit", "#!/bin/sh\n"), ("team.inc", "[alias]\n"), ("bin/watch", "")] {
            fs::create_dir_all(place.workspace.join(path).parent().unwrap()).unwrap();
            fs::write(place.workspace.join(path), text).unwrap();
        }
        place.owners_git("config core.hooksPath tools/hooks");
        place.owners_git("config include.path ../team.inc");
        place.owners_git("config core.fsmonitor bin/watch");
        place
    };
    let files = ["tools/hooks/pre-commit", "tools/hooks/post-commit", "team.inc", "bin/watch"];
    if has_namespaces() {
        for command in [
            "echo evil > tools/hooks/pre-commit",
            "echo evil > tools/hooks/post-commit",
            "cp -r tools new && mv tools old && mv new tools && echo evil > tools/hooks/pre-commit",
            "echo evil >> team.inc",
            "rm bin/watch && echo evil > bin/watch",
        ] {
            stay(&make, &files, command);
        }
        let text = make().fails("echo evil > tools/hooks/pre-commit");
        assert!(text.contains("Pass git: true"), "{text}");
    }
    let place = make();
    place.succeeds("echo mine > tools/other && echo x > bin/x && echo y > file");
    // After a yes the change is made, and said.
    let text = place.succeeds_with_git("echo new > .git/hooks/x; mkdir -p .git/hooks; echo new > .git/hooks/x");
    assert!(text.contains("hooks/x changed while the command ran") || text.contains("hooks changed"), "{text}");
    // What is named but missing is not mounted; a command that makes it is said.
    let place = Place::new();
    place.git().owners_git("config core.hooksPath .hooks");
    let text = place.succeeds("mkdir .hooks && echo evil > .hooks/pre-commit");
    assert_eq!(text.contains(".hooks changed while the command ran"), has_namespaces(), "{text}");
}

/// Files from which editors, other agents, shells and build servers take commands.
fn nothing_that_other_programs_obey_is_changed() {
    let files = [
        ".vscode/tasks.json",
        ".claude/settings.json",
        ".cursor/mcp.json",
        ".husky/pre-commit",
        ".github/workflows/ci.yml",
        ".envrc",
        "Jenkinsfile",
    ];
    let make = || {
        let place = Place::new();
        for file in files {
            fs::create_dir_all(place.workspace.join(file).parent().unwrap()).unwrap();
            fs::write(place.workspace.join(file), "mine").unwrap();
        }
        place
    };
    for file in files {
        stay(&make, &files, &format!("echo evil > {file}"));
    }
    for command in [
        "echo evil > .vscode/launch.json && echo evil > .vscode/tasks.json",
        "mv .github old && cp -r old .github && echo evil > .github/workflows/ci.yml",
        "rm .envrc && echo evil > .envrc",
        "cp -r .claude new && rm -r .claude && mv new .claude && echo evil > .claude/settings.json",
    ] {
        stay(&make, &files, command);
    }
    let place = make();
    if has_namespaces() {
        let text = place.fails("echo evil > .vscode/tasks.json");
        assert!(text.contains("Pass git: true"), "{text}");
    }
    // What lies beside them, and the same names further below, are files like any other.
    let text =
        place.succeeds("echo x > .github/CODEOWNERS && mkdir -p node_modules/a && echo x > node_modules/a/.travis.yml");
    assert!(!text.contains("changed"), "{text}");
    // Those that are new, and those that a person let it change, are said.
    let text = Place::new().succeeds("mkdir .vscode && echo evil > .vscode/tasks.json && echo evil > .envrc");
    assert!(text.contains(".vscode changed while the command ran, and other programs obey it"), "{text}");
    assert!(text.contains(".envrc changed while the command ran"), "{text}");
    let text = place.succeeds_with_git("echo new > .envrc");
    assert!(text.contains(".envrc changed while the command ran"), "{text}");
    // The same through a link.
    let make = || {
        let place = Place::new();
        fs::create_dir(place.workspace.join("editor")).unwrap();
        fs::write(place.workspace.join("editor/tasks.json"), "mine").unwrap();
        std::os::unix::fs::symlink("editor", place.workspace.join(".vscode")).unwrap();
        place
    };
    for command in ["echo evil > editor/tasks.json", "ln -sfn elsewhere .vscode"] {
        stay(&make, &["editor/tasks.json", ".vscode"], command);
    }
}

/// A rule, or `tools.ask = "never"`, lets the model write files; git would run these without a further question.
fn a_write_to_what_git_is_told_to_obey_asks() {
    let place = Place::new();
    place.git().owners_git("config core.hooksPath tools/hooks");
    fs::create_dir_all(place.workspace.join("tools/hooks")).unwrap();
    let tools = place.all_tools(Ask::Never);
    let plan = |path: &str| {
        let write = tools.iter().find(|tool| tool.spec().name == "write").unwrap();
        RUNTIME.block_on(write.plan(&place.invocation(&json!({"path": path, "content": "x"})))).unwrap()
    };
    for path in ["tools/hooks/pre-commit", "tools/hooks/inner/x"] {
        let plan = plan(path);
        // Where nothing confines git, nobody reads its configuration.
        let expected = if has_namespaces() { Approval::Ask } else { Approval::Allow };
        assert_eq!((plan.approval, plan.always_asks), (expected, has_namespaces()), "{path}");
        assert!(plan.rule.is_none() || !has_namespaces(), "{path}");
    }
    let plan = plan("tools/other");
    assert_eq!((plan.approval, plan.always_asks, plan.rule.as_deref()), (Approval::Allow, false, Some("write")));
}

fn a_new_repository_is_said() {
    for (command, made) in [
        ("git init -q", "workspace\n"),
        ("git init -q sub/inner", "workspace/sub/inner\n"),
        ("mkdir b b/objects b/refs && echo 'ref: refs/heads/m' > b/HEAD && echo '[core]' > b/config", "workspace/b\n"),
        ("mkdir d && echo 'gitdir: ../x' > d/.git", "workspace/d\n"),
    ] {
        let text = Place::new().succeeds(command);
        assert!(text.contains("made a repository") && text.contains(made), "{command}: {text}");
    }
    assert!(!Place::new().succeeds("mkdir -p a/objects a/refs").contains("repository"));
}
