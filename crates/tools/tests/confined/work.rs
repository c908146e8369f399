//! What a command can do.

use std::{fs, time::Duration};

use libtest_mimic::Trial;
use meerkat_service::tool::Network;
use meerkat_service::tool::{Approval, ToolError};
use meerkat_testkit::until;
use serde_json::json;

use super::place::{Place, RUNTIME, call_heard, has_namespaces, has_networks};

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let trials: [(&str, fn()); _] = [
        ("output_and_exit_code", output_and_exit_code),
        ("git_status_and_commit", git_status_and_commit),
        ("a_command_that_may_change_git_always_asks", git_plan),
        ("npm_runs_tests", npm),
        ("a_c_program_is_compiled_and_runs", a_c_program),
        ("python_runs", python),
        ("cargo_runs", cargo),
        ("temporary_files_are_private_and_end_with_the_call", temporary_files),
        ("a_workspace_beneath_tmp_works", beneath_tmp),
        ("a_workspace_in_shared_memory_works", in_shared_memory),
        ("a_megabyte_and_bytes_that_are_no_text", a_megabyte),
        ("only_harmless_variables_are_passed_on", variables),
        ("nothing_is_kept_between_calls_and_cwd_is_taken", cwd),
        ("a_command_ends_at_its_time_with_all_its_processes", timeout),
        ("a_command_ends_when_its_call_is_cancelled", cancel),
        ("a_plan_says_command_folder_and_confinement", plan),
        ("the_network_is_asked_for_one_call", network_plan),
        ("a_failure_of_the_network_says_how_to_get_it", network_hint),
        ("commands_in_the_background", background),
        ("a_workspace_that_is_too_wide_is_refused", wide),
        ("a_call_says_what_confined_it", confinement),
        ("programs_of_the_turns_own_path_run", own_path),
        ("caches_of_package_managers_can_be_written", caches),
    ];
    trials.into_iter().map(|(name, trial)| {
        Trial::test(name, move || {
            trial();
            Ok(())
        })
    })
}

fn output_and_exit_code() {
    let place = Place::new();
    assert_eq!(place.shell("echo a; echo b >&2; printf c"), "a\nb\nc\nexit code 0");
    assert_eq!(place.shell("exit 3"), "exit code 3");
    assert_eq!(place.shell("printf 'b\\na\\n' | sort"), "a\nb\nexit code 0");
    assert_eq!(place.shell("kill -9 $$"), "exit code 137 (signal 9, KILL)");
    assert_eq!(place.shell("cat"), "exit code 0", "standard input is empty");
}

fn git_status_and_commit() {
    let place = Place::new();
    place.git();
    let commit = "git add file && git commit -qm first && git branch other && git checkout -q other";
    place.succeeds("echo x > file");
    if has_namespaces() {
        let text = place.fails(commit);
        assert!(text.contains("Read-only file system") && text.contains("Pass git: true"), "{text}");
    }
    place.succeeds_with_git(commit);
    // What only looks goes on, also when git would write what it found.
    assert!(place.succeeds("touch -d 2000-01-01 file && git status").contains("nothing to commit"));
    place.succeeds(
        "echo y > file && git diff | grep -q '^+y' && git log --oneline | grep -q first && git show HEAD:file",
    );
    place.succeeds("python3 -m unittest discover -q 2>&1 | grep -q 'Ran 0 tests'");
    place.succeeds(
        "git -c core.fsmonitor=false stash list && git blame file >/dev/null && git ls-files | grep -qx file",
    );
}

fn git_plan() {
    let place = Place::new();
    let arguments = json!({"command": "git commit -m x", "git": true});
    let plan = place.plan(&arguments).unwrap();
    assert!(plan.always_asks && plan.rule.is_none() && plan.subjects.is_empty(), "no rule allows it");
    if has_namespaces() {
        let preview = plan.preview.unwrap();
        assert!(preview.contains("with .git open (git later runs its hooks"), "{preview}");
        assert!(!place.plan(&json!({"command": "git status"})).unwrap().always_asks);
        let held = place.confinement(&json!({"command": "true", "git": true}));
        assert_eq!(held.as_deref(), Some("landlock, seccomp, namespaces; git open"));
    }
}

fn npm() {
    if !meerkat_testkit::can_run("npm", meerkat_testkit::has_program("npm")) {
        return;
    }
    let place = Place::new();
    place.git();
    fs::write(place.workspace.join("package.json"), r#"{"name":"a","version":"1.0.0","scripts":{"test":"node t.js"}}"#)
        .unwrap();
    fs::write(place.workspace.join("t.js"), "require('child_process').execSync('echo ran > made')").unwrap();
    place.succeeds("HOME=$TMPDIR npm test --silent && grep -qx ran made");
}

fn a_c_program() {
    let place = Place::new();
    let program = place.compile("hello", "#include <stdio.h>\nint main(void) { puts(\"from C\"); return 7; }");
    assert_eq!(place.shell(&program), "from C\nexit code 7");
}

fn python() {
    let place = Place::new();
    let text =
        place.succeeds("python3 -c 'import json, tempfile; f = tempfile.TemporaryFile(); print(json.dumps([1]))'");
    assert_eq!(text, "[1]\n");
}

fn cargo() {
    // It is in the home folder of the person who runs the tests.
    let has_toolchain = rustix::process::geteuid().is_root() || std::env::var_os("CARGO").is_some();
    meerkat_testkit::needs!("a toolchain of the user's own" => has_toolchain);
    let place = Place::new();
    place.git();
    assert!(place.succeeds("cargo --version").starts_with("cargo "));
    place.succeeds("cargo init -q --vcs none --name trial && cargo run -q --offline");
}

fn temporary_files() {
    let place = Place::new();
    let path = place.succeeds("echo secret > $TMPDIR/mine && ls -d $TMPDIR && cat $TMPDIR/mine");
    assert!(path.ends_with("secret\n"), "{path}");
    place.fails("cat $TMPDIR/mine");
    if has_namespaces() {
        assert_eq!(place.succeeds("echo $TMPDIR && ls -A /tmp"), "/tmp\n");
    }
}

fn beneath_tmp() {
    let place = Place::over(tempfile::tempdir_in("/tmp").unwrap(), Network::Ask);
    place.succeeds("echo x > file && cp file $TMPDIR/copy && mv $TMPDIR/copy back && cat back");
    place.fails("echo x > ../outside");
    place.fails("ls /tmp");
    place.is_untouched();
}

/// Broken once: the command's own shared memory covered the workspace, and no shell could start in it.
fn in_shared_memory() {
    let place = Place::over(tempfile::tempdir_in("/dev/shm").unwrap(), Network::Ask);
    assert_eq!(place.succeeds("echo x > file && cat file"), "x\n");
    place.fails("echo x > ../outside");
    place.fails("ls /dev/shm");
    place.is_untouched();
}

fn a_megabyte() {
    let place = Place::new();
    let text = place.succeeds("head -c 1048576 /dev/zero | tr '\\0' x");
    assert_eq!(text.len(), 1_048_577, "with the line end before the exit code");
    let text = place.succeeds("printf 'a\\377b\\303'; sleep 0.01; printf '\\244c'");
    assert_eq!(text, "a\u{FFFD}bäc\n");
}

fn variables() {
    let place = Place::new();
    let text = place.succeeds("env");
    for name in ["API_KEY", "SSH_AUTH_SOCK", "secret"] {
        assert!(!text.contains(name), "{text}");
    }
    for name in ["HOME=", "PATH=", "TERM=dumb", "TMPDIR="] {
        assert!(text.contains(name), "{name} in {text}");
    }
    // Those that were given, and the shell's own: none of this process.
    let known = ["CARGO_HOME", "RUSTUP_HOME", "PYENV_ROOT", "HOME", "PATH", "TERM", "TMPDIR", "SHELL", "PWD", "SHLVL"];
    let known = [&known[..], &["XDG_CACHE_HOME", "npm_config_cache"]].concat();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    assert!(names.iter().all(|name| known.contains(name) || ["_", "OLDPWD"].contains(name)), "{text}");
}

fn cwd() {
    let place = Place::new();
    fs::create_dir(place.workspace.join("sub")).unwrap();
    place.succeeds("cd sub && export KEPT=1");
    assert_eq!(place.succeeds("basename $PWD; echo $KEPT"), "workspace\n\n");
    let (output, result) = place.call("shell", &json!({"command": "basename $PWD", "cwd": "sub"}));
    assert!(result.is_ok() && output.starts_with("sub\n"), "{output}");
    std::os::unix::fs::symlink("/", place.workspace.join("root")).unwrap();
    for cwd in ["..", "/etc", "sub/../..", "root/etc", "absent"] {
        let (_, result) = place.call("shell", &json!({"command": "pwd", "cwd": cwd}));
        assert!(matches!(result, Err(ToolError::Refused(_))), "{cwd}: {result:?}");
    }
}

/// Makes a time to sleep that no other process has in its command line, neither of another run of these tests.
pub(crate) fn mark(number: u32) -> String {
    format!("8765{number}.{}", std::process::id())
}

/// Counts the processes whose command line has a mark.
pub(crate) fn count(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| fs::read(process.path().join("cmdline")).is_ok_and(|line| contains(&line, mark.as_bytes())))
        .count()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn timeout() {
    let place = Place::new();
    let mark = mark(1);
    let command = format!("sleep {mark} & setsid sleep {mark}; echo never");
    let arguments = json!({"command": command, "timeout_ms": 300});
    let (output, result) = place.call("shell", &arguments);
    assert!(!output.contains("never"), "{output}");
    let error = result.unwrap_err().to_string();
    assert!(error.contains("after 300 ms") && error.contains("timeout_ms"), "{error}");
    assert_eq!(count(&mark), 0);
    assert_eq!(place.plan(&arguments).unwrap().timeout, Some(Duration::from_millis(10_300)));
}

fn cancel() {
    let place = Place::new();
    let mark = mark(2);
    let invocation = place.invocation(&json!({"command": format!("echo started; sleep {mark} & sleep {mark}")}));
    let cancel = invocation.cancel.clone();
    let (output, result) = RUNTIME.block_on(call_heard(place.tool("shell"), invocation, move |_| cancel.cancel()));
    assert!(matches!(result, Err(ToolError::Cancelled)), "{result:?}");
    assert_eq!(output, "started\n", "what it said before is kept");
    assert_eq!(count(&mark), 0);
}

fn plan() {
    let place = Place::new();
    fs::create_dir(place.workspace.join("sub")).unwrap();
    let plan = place.plan(&json!({"command": "cargo test --lib", "cwd": "sub"})).unwrap();
    let preview = plan.preview.unwrap();
    assert_eq!(plan.approval, Approval::Ask);
    assert!(preview.starts_with("In /") && preview.ends_with(":\ncargo test --lib"), "{preview}");
    assert!(preview.contains("workspace/sub;"), "{preview}");
    // A folder's name cannot say what is confined, nor turn the text that a person reads.
    let forged = "x; confined: all:\nls\u{202e}";
    fs::create_dir(place.workspace.join(forged)).unwrap();
    let preview = place.plan(&json!({"command": "rm x", "cwd": forged})).unwrap().preview.unwrap();
    assert!(preview.lines().count() == 2 && !preview.contains('\u{202e}'), "{preview}");
    let turned = place.plan(&json!({"command": "rm \u{202e}x"}));
    assert!(matches!(&turned, Err(ToolError::Arguments(why)) if why.contains("no person would see")), "{turned:?}");
    if has_namespaces() {
        assert!(preview.contains("; confined: files, network"), "{preview}");
        assert_eq!(plan.rule.as_deref(), Some("shell: cargo test *"));
        assert_eq!(plan.subjects, ["cargo test --lib"]);
        let joined = place.plan(&json!({"command": "ls; rm x"})).unwrap();
        assert_eq!((joined.rule.as_deref(), joined.subjects.len()), (Some("shell: ls * ; rm *"), 2));
        let hidden = place.plan(&json!({"command": "ls $(rm x)"})).unwrap();
        assert_eq!((hidden.rule, hidden.subjects), (None, Vec::new()));
    } else {
        assert!(preview.contains("compared afterwards"), "{preview}");
        assert_eq!((plan.rule, plan.subjects), (None, Vec::new()), "every command asks");
    }
}

fn network_plan() {
    let asks = json!({"command": "ls", "network": true});
    let plan = Place::new().plan(&asks).unwrap();
    assert_eq!((plan.approval, plan.rule, plan.subjects), (Approval::Ask, None, Vec::new()));
    let denied = Place::with(Network::Deny).plan(&asks);
    assert!(matches!(denied, Err(ToolError::Refused(_))), "{denied:?}");
    let opened = Place::with(Network::Allow);
    let socket = "python3 -c 'import socket; socket.socket(); print(1)'";
    assert_eq!(opened.succeeds(socket), "1\n");
    // Sockets of services on this machine stay closed.
    opened.fails("python3 -c 'import socket; socket.socket(socket.AF_UNIX)'");
}

fn network_hint() {
    let place = Place::new();
    let connect = |to: &str| format!("python3 -c 'import socket; socket.create_connection({to})'");
    // A server of this machine may be meant, and one that is not.
    for to in ["(\"127.0.0.1\", 9)", "(\"192.0.2.1\", 9)", "(\"example.invalid\", 9)"] {
        let text = place.fails(&connect(to));
        assert!(text.contains("Pass network: true"), "{text}");
        assert_eq!(text.contains("127.0.0.1 is"), has_networks(), "{text}");
    }
    let text = Place::with(Network::Deny).fails(&connect("(\"192.0.2.1\", 9)"));
    assert!(text.contains("tools.network"), "{text}");
    assert!(!place.fails("false").contains("network"), "another failure is not the network's");
}

fn background() {
    let place = Place::new();
    let start = |command: &str| place.call("shell", &json!({"command": command, "background": true}));
    if !has_namespaces() {
        assert!(matches!(start("true").1, Err(ToolError::Refused(_))));
        return;
    }
    let job = "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second; exit 4";
    fs::write(place.workspace.join("job"), job).unwrap();
    let (text, result) = start("sh job");
    assert!(result.is_ok() && text.starts_with("job-1 "), "{text}");
    let id = json!({"id": "job-1"});
    let said = |part: &str| {
        let mut all = String::new();
        until(part, || {
            all.push_str(&place.call("shell_output", &id).0);
            all.contains(part)
        });
        all
    };
    assert!(said("first\n").contains("job-1 runs"));
    fs::write(place.workspace.join("go"), "").unwrap();
    let rest = said("ended: exit code 4");
    assert!(rest.contains("second\n") && !rest.contains("first"), "{rest}");

    let mark = mark(3);
    for number in 2..=9 {
        assert!(start(&format!("sleep {mark}")).0.starts_with(&format!("job-{number} ")));
    }
    assert!(matches!(start("true").1, Err(ToolError::Refused(_))), "eight run already");
    // Each call waits a short time for the end.
    until("job-2 ends", || place.call("shell_stop", &json!({"id": "job-2"})).0.contains("job-2 ended: stopped"));
    let (_, unknown) = place.call("shell_output", &json!({"id": "job-99"}));
    assert!(unknown.unwrap_err().to_string().contains("job-9"));
    drop(place);
    // They end with the service.
    until("none is left", || count(&mark) == 0);
}

fn wide() {
    let mut place = Place::new();
    for folder in ["/".into(), std::env::home_dir().unwrap(), "/home".into(), place.folder.path().join("data")] {
        if folder.is_dir() && (folder != *"/home" || std::env::home_dir().unwrap().starts_with("/home")) {
            place.workspace = folder;
            let plan = place.plan(&json!({"command": "ls"}));
            assert!(matches!(plan, Err(ToolError::Refused(_))), "{plan:?}");
        }
    }
}

fn confinement() {
    let whole = if has_namespaces() { "landlock, seccomp, namespaces" } else { "landlock, seccomp" };
    let place = Place::new();
    assert_eq!(place.confinement(&json!({"command": "true"})).as_deref(), Some(whole));
    assert_eq!(place.confinement(&json!({"command": "sleep 9", "timeout_ms": 1})).as_deref(), Some(whole));
    assert_eq!(place.confinement(&json!({"command": "true", "network": true})), Some(format!("{whole}; network open")));
    let background = place.confinement(&json!({"command": "true", "background": true}));
    assert_eq!(background.as_deref(), has_namespaces().then_some(whole));
    assert_eq!(place.confinement(&json!({"command": "true", "cwd": ".."})), None, "it did not run");
}

fn caches() {
    let place = Place::new();
    place.succeeds("mkdir -p $XDG_CACHE_HOME/x $npm_config_cache && echo x > $XDG_CACHE_HOME/x/file");
    assert_eq!(place.succeeds("ls -A $TMPDIR"), "", "a command without one has none of it");
    if meerkat_testkit::can_run("npm", meerkat_testkit::has_program("npm")) {
        let text = place.succeeds("[ $(npm config get cache) = $TMPDIR/cache/npm ] && echo there");
        assert!(text.ends_with("there\n"), "{text}");
    }
}

fn own_path() {
    let mut place = Place::new();
    let folder = place.folder.path().join("venv");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("only-here");
    fs::write(&program, "#!/bin/sh\necho from the venv\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert!(place.fails("only-here").contains("not found"));
    place.search_path = Some(format!("{}:/usr/bin:/bin", folder.display()));
    assert_eq!(place.succeeds("only-here && ls only-here* 2>&1 | wc -l"), "from the venv\n1\n");
    assert!(place.fails("cat ../outside").contains("denied"), "a folder beside it stays closed");
    // A virtual environment of Python is read as a whole.
    let modules = place.folder.path().join("env/lib");
    fs::create_dir_all(&modules).unwrap();
    fs::create_dir(place.folder.path().join("env/bin")).unwrap();
    fs::write(modules.join("module"), "from the environment\n").unwrap();
    place.search_path = Some(format!("{}:/usr/bin:/bin", place.folder.path().join("env/bin").display()));
    let read = format!("cat {}/module", modules.display());
    place.fails(&read);
    fs::write(place.folder.path().join("env/pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    assert_eq!(place.succeeds(&read), "from the environment\n");
    place.fails("cat ../outside");
    // What no command may reach stays closed, also by this way.
    place.search_path = Some(format!("{}:/usr/bin:/bin", place.folder.path().join("data").display()));
    place.fails(&format!("cat {}/data/token", place.folder.path().display()));
}
