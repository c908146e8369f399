//! The page's trials in a real browser need a built program, Chromium, Node and packages of npm, so they are no part of
//! `cargo test`: a script runs them. This says so, and what the script lacks here.

use std::{io::Write as _, path::Path, process::Command};

#[test]
fn the_trials_in_a_browser_say_that_they_did_not_run() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser/run.sh");
    let why = match Command::new("bash").arg(&script).arg("--lacks").output() {
        Err(error) => format!("bash cannot be started: {error}"),
        Ok(asked) => {
            let lacks = String::from_utf8(asked.stdout).unwrap().trim().to_owned();
            match asked.status.code() {
                Some(0) => "a script of their own runs them".to_owned(),
                Some(3) if !lacks.is_empty() => lacks,
                code => panic!("{code:?} {lacks}"),
            }
        }
    };
    writeln!(
        std::io::stderr(),
        "WARNING: the console's trials in a browser did NOT run: {why}. Run `cargo build`, then \
         `bash crates/console/browser/run.sh`."
    )
    .unwrap();
}
