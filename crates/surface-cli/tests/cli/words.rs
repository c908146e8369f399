//! What is shown of an answer at a terminal, and beside it.

use crate::drive::terminal::{Cli, cli};

#[test]
fn markdown_is_coloured_on_a_terminal_that_wants_it() {
    let run = || cli(&["run", "@chunks 99 @say # A\\n- `b`"]);
    let coloured = run().on_terminal().run();
    assert_eq!(coloured.out, "\x1b[1m# A\x1b[0m\n\x1b[36m- `b`\x1b[0m\n");
    let raw = cli(&["run", "--raw", "@chunks 99 @say # A\\n- `b`"]).on_terminal();
    let others = [
        run(),
        raw,
        run().on_terminal().env("NO_COLOR", "1"),
        run().on_terminal().env("TERM", "dumb"),
        run().on_terminal().env("MEERKAT_OUTPUT__MARKDOWN", "false"),
    ];
    for cli in others {
        assert_eq!(cli.run().out, "# A\n- `b`\n");
    }
}

#[test]
fn a_pipe_gets_no_spinner_and_no_status_line() {
    let ran = cli(&["chat"]).stdin("@fail overloaded retry_after_ms=600 times=1 @say Hi.\n").run();
    assert_eq!(ran.out, "Hi.\n", "{}", ran.err);
    for word in ["waiting for", "retry in", "tokens, session", "\r"] {
        assert!(!ran.err.contains(word), "{word:?}: {}", ran.err);
    }
    let status = |args: &[&str]| cli(&[&["chat"], args].concat()).stdin("@say Hi.\n").on_terminal().run().err;
    let shown = status(&[]);
    let line = shown.lines().find(|line| line.contains(" tokens, session ")).unwrap();
    assert!(line.contains("scripted, ") && line.contains(" of 100k tokens, session "), "{line}");
    assert!(!status(&["--quiet"]).contains("tokens, session"));
}

/// It said how long the messages were, without the system prompt and the tools.
#[test]
fn the_status_of_a_chat_says_how_full_the_window_of_its_model_was() {
    let window = |cli: Cli| cli.env("MEERKAT_MODEL__SCRIPTED_WINDOW_TOKENS", "30000");
    let chat = window(cli(&["chat"])).stdin("@usage in=2680 @say Hi.\n").on_terminal();
    let dir = chat.dir.clone();
    let ran = chat.run();
    let status = ran.err.lines().find(|line| line.contains(" tokens, session ")).unwrap();
    assert!(!status.contains("USD"), "the scripted model has no price: {status}");
    assert!(status.contains("scripted, 2.6k of 30k tokens, session "), "{status}");
    let prices = r#"[{model="scripted",input="1",output="1"}]"#;
    let priced = window(cli(&["chat"])).env("MEERKAT_MODEL__PRICES", prices).stdin("@usage in=2680 out=1 @say Hi.\n");
    let priced = priced.on_terminal().run();
    assert!(priced.err.contains(", 0.002681 USD"), "{}", priced.err);
    // A command in the chat would be answered beside the turn, perhaps before its end.
    let show = window(cli(&["sessions", "show", "last"])).in_dir(&dir).run();
    let line = "window      [#-------------------] 8 %, the last model call had 2680 tokens\n";
    assert!(show.out.contains(line), "{}", show.out);
}
