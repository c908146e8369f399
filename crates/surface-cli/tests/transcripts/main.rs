//! Sessions at a shell, as the files of this folder write them down: commands, and what they print.
//!
//! Each `## ` heading begins a session of its own: one shell, which starts in the repository `~/project` of a new home
//! folder. Lines indented by four spaces are the session, all others explain it:
//!
//! - `$ ` begins a command, and `> ` is a further line of it.
//! - `2> ` begins a line that is expected on standard error, and `exit ` the exit code that is expected instead of 0. Any
//!   other line is expected on standard output.
//! - `[..]` stands for any text in a line, and `...` alone for any lines. The home folder is written as `~`.
//!
//! `Needs git, root.` names programs that the session needs, or the system's administrator.
//!
//! A person writes what is expected, from what is promised: nothing fills it in. To run one file or one session, name a
//! part of it: `cargo test -p meerkat-surface-cli --test transcripts -- config`.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use libtest_mimic::{Arguments, Failed, Trial};
use meerkat_testkit::{can_run, has_program};
use rustix::process::geteuid;

/// Ends what a command has printed. No command prints it.
const END: char = '\u{1}';

/// Commands that share a home folder.
struct Session {
    title: String,
    needs: Vec<String>,
    steps: Vec<Step>,
}

/// Command, and what is expected of it.
#[derive(Default)]
struct Step {
    line: usize,
    command: String,
    out: Vec<String>,
    err: Vec<String>,
    code: String,
}

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut trials = Vec::new();
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let file = path.file_stem().unwrap().to_string_lossy();
        for session in sessions(&fs::read_to_string(&path).unwrap()) {
            assert!(!session.steps.is_empty(), "{file}.md: there is no command under {:?}", session.title);
            let place = format!("{file}.md");
            trials.push(Trial::test(format!("{file}: {}", session.title), move || play(&place, &session)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Reads the sessions of a file.
fn sessions(text: &str) -> Vec<Session> {
    let mut sessions = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("## ") {
            sessions.push(Session { title: title.to_owned(), needs: Vec::new(), steps: Vec::new() });
        }
        let Some(Session { needs, steps, .. }) = sessions.last_mut() else { continue };
        if let Some(needed) = line.strip_prefix("Needs ") {
            needs.extend(needed.trim_end_matches('.').split(", ").map(str::to_owned));
        }
        let Some(line) = line.strip_prefix("    ").or(line.is_empty().then_some("")) else {
            assert!(!line.trim_start().starts_with("$ "), "line {} is not indented by four spaces", at + 1);
            continue;
        };
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: at + 1, command: command.to_owned(), code: "0".to_owned(), ..Step::default() });
        } else if let Some(step) = steps.last_mut() {
            match line.split_once(' ').unwrap_or((line, "")) {
                (">", more) => step.command += &format!("\n{more}"),
                ("2>", text) => step.err.push(text.to_owned()),
                ("exit", code) if code.bytes().all(|byte| byte.is_ascii_digit()) => code.clone_into(&mut step.code),
                _ => step.out.push(line.to_owned()),
            }
        }
    }
    for step in sessions.iter_mut().flat_map(|session| &mut session.steps) {
        // Empty lines part the session from what follows.
        while step.out.last().is_some_and(String::is_empty) {
            step.out.pop();
        }
    }
    sessions
}

/// Runs a session in a shell, and compares what it printed.
fn play(file: &str, session: &Session) -> Result<(), Failed> {
    for needed in &session.needs {
        let is_here = if needed == "root" { geteuid().is_root() } else { has_program(needed) };
        if !can_run(needed, is_here) {
            return Ok(());
        }
    }
    let folder = meerkat_testkit::folder();
    let (bin, home) = (folder.path().join("bin"), folder.path().canonicalize()?.join("home"));
    fs::create_dir(&bin)?;
    fs::create_dir_all(home.join("project/.git"))?;
    symlink(env!("CARGO_BIN_EXE_meerkat"), bin.join("meerkat"))?;
    let ends = |step: &Step| format!("{}\nprintf '\\1%s\\1' $?; printf '\\1' >&2\n", step.command);
    fs::write(folder.path().join("script"), session.steps.iter().map(ends).collect::<String>())?;
    let mut shell = Command::new("sh");
    shell.arg("../../script").current_dir(home.join("project")).stdin(Stdio::null());
    shell.env_clear().env("HOME", &home).env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
    let ran = shell.output()?;
    let text = |bytes| String::from_utf8(bytes).map(|text| text.replace(home.to_str().unwrap(), "~"));
    let (out, err) = (text(ran.stdout)?, text(ran.stderr)?);
    let (mut out, mut err) = (out.split(END), err.split(END));
    for step in &session.steps {
        let place = format!("{file}:{}", step.line);
        let printed = (out.next(), out.next(), err.next());
        let (Some(printed), Some(code), Some(said)) = printed else {
            return Err(format!("{place}: the shell has ended: {printed:?}").into());
        };
        let [printed, said] = [printed, said].map(|text| text.trim_end_matches('\n').lines().collect::<Vec<_>>());
        if !is_like(&step.out, &printed) || !is_like(&step.err, &said) || step.code != code {
            let err: String = said.iter().map(|line| format!("2> {line}\n")).collect();
            return Err(format!("{place}: it printed\n{}\n{err}exit {code}", printed.join("\n")).into());
        }
    }
    Ok(())
}

fn is_like(expected: &[String], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == "..." => (0..=lines.len()).any(|from| is_like(rest, &lines[from..])),
        Some((first, rest)) => !lines.is_empty() && is_line(first, lines[0]) && is_like(rest, &lines[1..]),
    }
}

fn is_line(expected: &str, line: &str) -> bool {
    let Some((before, after)) = expected.split_once("[..]") else { return expected == line };
    let rest = line.strip_prefix(before);
    rest.is_some_and(|rest| (0..=rest.len()).filter_map(|at| rest.get(at..)).any(|rest| is_line(after, rest)))
}
