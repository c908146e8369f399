//! `call`: every operation by its name.

use meerkat_service::Operation;
use serde_json::json;

use crate::drive::terminal::cli;

/// What the other surfaces have by a table of their own, the command line has by this list.
#[test]
fn every_operation_is_listed_and_describes_its_parameters() {
    let listed = cli(&["call", "--json"]).run().json();
    let listed: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|item| item["operation"].as_str().unwrap()).collect();
    let names = Operation::ALL.iter().map(|operation| operation.public_name());
    assert_eq!(listed, names.chain(["session/subscribe"]).collect::<Vec<_>>());
    for name in &listed {
        let ran = cli(&["call", name, "--help"]).run();
        assert!(ran.code == 0 && ran.out.contains(&format!("meerkat call {name}")), "{}{}", ran.out, ran.err);
    }
    let ran = cli(&["call"]).run();
    assert!(ran.code == 0 && ran.out.contains("reader/fetch") && ran.err.contains("--help"), "{}{}", ran.out, ran.err);
    let help = cli(&["call", "session/pin", "--help"]).run().out;
    let row = help.lines().find(|line| line.starts_with("text ")).unwrap();
    assert!(row.contains("string") && row.contains("required"), "{help}");
    let schema = cli(&["call", "session/pin", "-h", "--json"]).run().json();
    assert_eq!(schema["required"], json!(["session_id", "text"]));
}
