//! Every example runs and does what it says.

use std::process::Command;

/// Runs an example that `cargo test` has built beside this test.
fn run(name: &str) -> String {
    let here = std::env::current_exe().unwrap();
    let program = here.parent().unwrap().parent().unwrap().join("examples").join(name);
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn hello_says_who_answers() {
    assert!(run("hello").starts_with("scripted said: "));
}

#[test]
fn tool_runs_after_its_approval() {
    let said = run("tool");
    assert!(said.contains("approving call_") && said.contains("deployed to staging"), "{said}");
}

#[test]
fn follow_shows_the_turn_to_its_end() {
    let said = run("follow");
    for part in [
        r#""type":"session_created""#,
        r#""type":"assistant_message""#,
        r#""type":"turn_completed""#,
        "go on from seq 4",
    ] {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    assert_eq!(
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap().count(),
        3,
        "each example has its test here"
    );
}
