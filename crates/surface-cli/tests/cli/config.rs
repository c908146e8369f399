//! Commands about the program itself. The configuration is in `transcripts/config.md`.

use meerkat_errors::ErrorCode;

use crate::drive::terminal::cli;

#[test]
fn what_needs_no_configuration_works_without_one() {
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["completions", "zsh"], &["errors"]] {
        let ran = cli(args).env("MEERKAT_TURN__FROB", "1").run();
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(!ran.out.is_empty() && ran.err.is_empty());
    }
    assert_eq!(cli(&["--version"]).run().out, format!("meerkat {}\n", env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(cli(&["completions", shell]).run().out.contains("meerkat"));
    }
}

#[test]
fn tables_are_for_people_and_documents_for_programs() {
    let capabilities = cli(&["capabilities", "--json"]).run().json();
    let built = meerkat_service::Capabilities::compiled().view();
    assert_eq!(
        (&capabilities["build"], &capabilities["session_store"]),
        (&built.build.into(), &built.session_store.into())
    );
    assert!(cli(&["capabilities", "--ephemeral"]).run().out.contains("session_store       false\n"));
    let errors = cli(&["errors", "--json"]).run().json();
    assert_eq!(errors["items"].as_array().unwrap().len(), ErrorCode::ALL.len());
    let table = cli(&["errors"]).run().out;
    assert!(ErrorCode::ALL.iter().all(|code| table.contains(code.as_str())));
    assert_eq!(cli(&["errors", "session_busy"]).run().out, ErrorCode::SessionBusy.page());
    assert_eq!(cli(&["errors", "SESSION_BUSY", "--json"]).run().json()["items"][0]["exit_code"], 14);
    cli(&["errors", "FROB"]).run().refused(ErrorCode::InvalidRequest, "is not a code");
}
