//! Mistyped words, the token, and what a chat does beside operations.

use meerkat_errors::ErrorCode::{InvalidRequest, UnknownOperation};
use meerkat_serve::Token;
use serde_json::json;

use crate::drive::terminal::{Cli, cli};

/// A word that is nothing here runs nothing, and the answer says what is near.
#[test]
fn a_mistyped_word_is_answered_with_what_is_near() {
    cli(&["rum"]).run().refused(UnknownOperation, "unrecognized subcommand 'rum'; some similar subcommands exist: ");
    cli(&["sessions", "lst"]).run().refused(UnknownOperation, "a similar subcommand exists: 'list'");
    cli(&["run", "--modle", "x", "y"]).run().refused(InvalidRequest, "a similar argument exists: '--model'");
    cli(&["say hello to me"]).run().refused(UnknownOperation, "--help lists the commands");
    let ran = cli(&["run", "-p", "x", "--json"]).run();
    let body = ran.json();
    assert_eq!((ran.code, &body["code"]), (InvalidRequest.exit_code(), &"INVALID_REQUEST".into()), "{body}");
    assert_eq!(body["details"]["field"], "-p", "{body}");
    let lines = "/copi\n/exit\n@say Never.\n";
    let ran = cli(&["chat"]).stdin(lines).run();
    assert!(ran.code == 0 && ran.err.contains("'copy'"), "{}", ran.err);
    assert!(!ran.out.contains("Never."), "/exit is a command: {}", ran.out);
}

#[test]
fn the_token_is_printed_and_never_made() {
    let dir = cli(&[]).dir;
    let data_dir = dir.path().join("data");
    let data = data_dir.display().to_string();
    let token = |args: &[&str]| cli(&[&["token"], args].concat()).in_dir(&dir).env("MEERKAT_DATA_DIR", &data);
    token(&[]).run().refused(InvalidRequest, "`meerkat serve` makes one");
    assert!(!data_dir.exists());
    let (made, path) = Token::of_dir(&data_dir).unwrap();
    assert_eq!(token(&[]).run().out, format!("{}\n", made.text()));
    assert_eq!(token(&["--path"]).run().out, format!("{}\n", path.display()));
    let document = token(&["--json"]).run().json();
    assert_eq!((&document["token"], &document["path"]), (&made.text().into(), &path.display().to_string().into()));
    let document = token(&["--path", "--json"]).run().json();
    assert_eq!(document, json!({ "path": path.display().to_string() }));
    let named = |args: &[&str]| token(args).env("MEERKAT_TOKEN", "a-token-of-the-variable");
    assert_eq!(named(&[]).run().out, "a-token-of-the-variable\n");
    named(&["--path"]).run().refused(InvalidRequest, "leave --path out");
    let refused = named(&["--path", "--json"]).run();
    assert_eq!((refused.code, &refused.json()["code"]), (InvalidRequest.exit_code(), &"INVALID_REQUEST".into()));
}

#[test]
fn a_chat_opens_the_session_whose_title_has_the_words() {
    let ran =
        cli(&["chat"]).stdin("/title One thing\n/new --title Another\n/open thing\n/show\n/open o\n/copy\n/undo\n");
    let ran = ran.run();
    assert!(ran.out.contains("One thing"), "{}", ran.out);
    for refusal in ["several sessions", "there is no answer yet", "there was no turn yet"] {
        assert!(ran.err.contains(refusal), "{refusal}: {}", ran.err);
    }
}

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
    assert!(status.ends_with(", cost unknown"), "{status}");
    assert!(status.contains("scripted, 2.6k of 30k tokens, session "), "{status}");
    // A command in the chat would be answered beside the turn, perhaps before its end.
    let show = window(cli(&["sessions", "show", "last"])).in_dir(&dir).run();
    let line = "window      [#-------------------] 8 %, the last model call had 2680 tokens\n";
    assert!(show.out.contains(line), "{}", show.out);
}
