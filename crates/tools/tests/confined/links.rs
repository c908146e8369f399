//! Links on the way to what git and other programs obey, and links in it: no command changes what they lead to.

use std::{fs, os::unix::fs::symlink};

use meerkat_service::tool::Ask;
use serde_json::json;

use super::{
    git::stay,
    place::{Place, RUNTIME, has_namespaces},
};

pub(crate) const TRIALS: [(&str, fn()); 4] = [
    ("git_hooks_that_are_links_are_not_changed", hooks_that_are_links_are_not_changed),
    ("git_hooks_that_are_links_are_asked_for_and_said", hooks_that_are_links_are_asked_for_and_said),
    ("git_links_in_the_middle_of_a_way_are_not_changed", links_in_the_middle_are_not_changed),
    ("git_links_to_a_git_directory_are_not_changed", links_to_a_git_directory_are_not_changed),
];

/// Writes a file of a workspace, and makes the folders above it.
pub(crate) fn put(place: &Place, path: &str, text: &str) {
    let path = place.workspace.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn link(place: &Place, target: &str, path: &str) {
    let path = place.workspace.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

/// Tells whether `write` asks for this path although `tools.ask` is `never`.
pub(crate) fn asks(place: &Place, path: &str) -> bool {
    let tools = place.all_tools(Ask::Never);
    let write = tools.iter().find(|tool| tool.spec().name == "write").unwrap();
    // Without an approval a file that was not read is refused.
    let mut invocation = place.invocation(&json!({"path": path, "content": "x"}));
    invocation.is_approved = true;
    RUNTIME.block_on(write.plan(&invocation)).unwrap().always_asks
}

fn hooked() -> Place {
    let place = Place::new();
    place.git();
    put(&place, "scripts/pre-commit", "#!/bin/sh\n");
    put(&place, "scripts/other", "mine");
    fs::remove_dir_all(place.workspace.join(".git/hooks")).ok();
    link(&place, "../../scripts/pre-commit", ".git/hooks/pre-commit");
    // A circle, a pipe and what leads to the workspace itself are no harm.
    link(&place, "circle", ".git/hooks/circle");
    link(&place, "../..", ".git/hooks/all");
    link(&place, "/dev/zero", ".git/hooks/zero");
    place
}

/// The hooks as a whole, in a folder of the workspace.
fn hooked_whole() -> Place {
    let place = Place::new();
    place.git();
    put(&place, "hk/pre-commit", "#!/bin/sh\n");
    fs::remove_dir_all(place.workspace.join(".git/hooks")).ok();
    link(&place, "../hk", ".git/hooks");
    place
}

/// A submodule's hook.
fn hooked_submodule() -> Place {
    let place = Place::new();
    place.git();
    fs::create_dir_all(place.workspace.join(".git/modules")).unwrap();
    place.owners_git("init -q --separate-git-dir .git/modules/sub sub");
    put(&place, "sub/sh/pre-commit", "#!/bin/sh\n");
    fs::remove_file(place.workspace.join(".git/modules/sub/hooks/pre-commit")).ok();
    link(&place, "../../../../sub/sh/pre-commit", ".git/modules/sub/hooks/pre-commit");
    place
}

fn hooks_that_are_links_are_not_changed() {
    for command in [
        "echo evil > scripts/pre-commit",
        "rm scripts/pre-commit && echo evil > scripts/pre-commit",
        "cp -r scripts new && mv scripts old && mv new scripts && echo evil > scripts/pre-commit",
    ] {
        stay(&hooked, &["scripts/pre-commit"], command);
    }
    hooked().succeeds("echo x > scripts/other && echo x > file");
    for command in ["echo evil > hk/pre-commit", "echo evil > hk/post-commit", "mv hk old && mkdir hk"] {
        stay(&hooked_whole, &["hk/pre-commit", "hk/post-commit"], command);
    }
    stay(&hooked_submodule, &["sub/sh/pre-commit"], "echo evil > sub/sh/pre-commit");
}

fn hooks_that_are_links_are_asked_for_and_said() {
    let place = hooked();
    assert!(asks(&place, "scripts/pre-commit") && !asks(&place, "scripts/other"));
    let text = place.succeeds_with_git("echo new > scripts/pre-commit");
    assert!(text.contains("scripts/pre-commit changed while the command ran, and git obeys it"), "{text}");
    assert!(asks(&hooked_whole(), "hk/post-commit"));
    assert!(asks(&hooked_submodule(), "sub/sh/pre-commit") && !asks(&hooked_submodule(), "sub/file"));
}

fn links_in_the_middle_are_not_changed() {
    let make = || {
        let place = Place::new();
        place.git();
        put(&place, "real/hooks/pre-commit", "#!/bin/sh\n");
        put(&place, "real/team.inc", "[alias]\n");
        put(&place, "env/rc", "mine");
        put(&place, "editor/vs/tasks.json", "mine");
        put(&place, "editor/launch.json", "mine");
        // A chain.
        link(&place, "other", "conf");
        link(&place, "real", "other");
        link(&place, "mid", ".envrc");
        link(&place, "env/rc", "mid");
        link(&place, "eds/vs", ".vscode");
        link(&place, "editor", "eds");
        link(&place, "../launch.json", "editor/vs/launch.json");
        place.owners_git("config core.hooksPath conf/hooks");
        place.owners_git("config include.path ../conf/team.inc");
        place
    };
    let files = [
        "conf",
        "other",
        "mid",
        "eds",
        "conf/hooks/pre-commit",
        "conf/team.inc",
        ".envrc",
        ".vscode/tasks.json",
        ".vscode/launch.json",
    ];
    if has_namespaces() {
        for command in [
            "rm conf && mkdir -p conf/hooks && echo evil > conf/hooks/pre-commit",
            "rm other && mkdir -p other/hooks && echo evil > other/hooks/pre-commit",
            "mv conf old && mkdir conf && echo evil > conf/team.inc",
            "ln -sfn evil other",
        ] {
            stay(&make, &files, command);
        }
        assert!(asks(&make(), "real/hooks/pre-commit"));
    }
    for command in [
        "rm mid && echo evil > mid",
        "rm eds && mkdir -p eds/vs && echo evil > eds/vs/tasks.json",
        "echo evil > editor/launch.json",
    ] {
        stay(&make, &files, command);
    }
    assert!(asks(&make(), "env/rc") && asks(&make(), "editor/vs/x") && asks(&make(), "editor/launch.json"));
    assert!(!asks(&make(), "env/other"));
    make().succeeds("echo x > real/x && echo x > env/x && echo x > editor/x");
    // After a yes a link is replaced, and that is said.
    let text = make().succeeds_with_git("rm mid && echo new > mid");
    assert!(text.contains("/mid changed while the command ran"), "{text}");
}

fn links_to_a_git_directory_are_not_changed() {
    for is_file in [false, true] {
        let make = || {
            let place = Place::new();
            fs::create_dir(place.workspace.join("kept")).unwrap();
            place.owners_git("init -q --separate-git-dir kept/g .");
            link(&place, "kept", "lg");
            let git = place.workspace.join(".git");
            fs::remove_file(&git).unwrap();
            if is_file {
                fs::write(git, "gitdir: lg/g\n").unwrap();
            } else {
                symlink("lg/g", git).unwrap();
            }
            place
        };
        for command in [
            "rm lg && cp -r kept lg && echo evil >> lg/g/config",
            "ln -sfn elsewhere lg",
            "cp -r kept new && mv kept old && mv new kept && echo evil >> kept/g/config",
        ] {
            stay(&make, &["lg", "kept/g/config", "lg/g/config"], command);
        }
    }
}
