//! A server that speaks chat completions, through the whole program: what people see of its answers and its failures.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use meerkat_errors::ErrorCode;

use crate::drive::{
    Ran, fake, meerkat, ran,
    terminal::{Cli, cli},
};

/// An answer as servers stream it: its first frame says nothing.
const ANSWER: &str = r#"data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"1","choices":[{"index":0,"delta":{"content":"Well."},"finish_reason":null}]}

data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

"#;

/// A server on loopback that gives one answer to everything: its port, and how often it was asked.
fn server(status: u16, kind: &'static str, body: &'static str) -> (u16, Arc<AtomicUsize>) {
    let asked = Arc::<AtomicUsize>::default();
    let count = asked.clone();
    let port = fake::serve(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Some((status, kind, body.to_owned()))
    });
    (port, asked)
}

fn answers(body: &'static str) -> u16 {
    server(200, "text/event-stream", body).0
}

/// Runs a command with a model behind a port of this machine.
#[track_caller]
fn run(port: u16, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let dir = meerkat_testkit::folder();
    let config = format!(
        "[model]\nname = \"local/x\"\n[model.compatible.local]\nbase_url = \
         \"http://127.0.0.1:{port}/v1\"\nwindow_tokens = 32768\n[turn]\nretry_base_ms = 1\n"
    );
    std::fs::write(dir.path().join("config.toml"), config).unwrap();
    let args = [&["--config", "config.toml", "--ephemeral"], args].concat();
    ran(meerkat(&dir, &args).envs(env.iter().copied()))
}

/// Libraries write log lines of their own, of which nobody knows what is in them.
#[test]
fn nothing_but_our_own_messages_is_printed() {
    let port = answers(ANSWER);
    for args in [&["run", "-q", "hi"][..], &["-vvv", "run", "hi"]] {
        let ran = run(port, args, &[]);
        assert_eq!((ran.code, ran.out.as_str()), (0, "Well.\n"), "{}", ran.err);
        assert!(
            !ran.err.contains("EMPTY CHOICE") && (args[0] == "-vvv" || ran.err.is_empty()),
            "{args:?}: {}",
            ran.err
        );
    }
    let traced = run(port, &["run", "-q", "hi"], &[("MEERKAT_LOG", "genai=trace")]);
    assert!(traced.err.contains("EMPTY CHOICE"), "{}", traced.err);
    run(port, &["run", "hi"], &[("MEERKAT_LOG", "genai=loud")]).refused(ErrorCode::ConfigInvalid, "MEERKAT_LOG");

    let (port, asked) = server(500, "application/json", r#"{"error":{"message":"Boom."}}"#);
    let Ran { code, out, err } = run(port, &["run", "-q", "hi"], &[]);
    assert_eq!((code, out.as_str()), (ErrorCode::ModelOverloaded.exit_code(), ""), "{err}");
    assert_eq!(asked.load(Ordering::SeqCst), 8);
    assert!(err.starts_with("error: ") && err.matches("Boom.").count() == 1, "{err}");
    assert!(!err.contains("ERROR") && !err.contains("HttpError"), "{err}");
}

#[test]
fn a_server_that_is_not_there_is_named_with_what_to_do() {
    let port = meerkat_testkit::refusing_address().port();
    let ran = run(port, &["run", "hi"], &[]);
    ran.refused(ErrorCode::ModelTimeout, &format!("http://127.0.0.1:{port} "));
    assert!(ran.err.contains("model.compatible.local.base_url"), "{}", ran.err);
}

#[test]
fn an_answer_without_the_end_of_its_stream_is_whole_once_its_reason_came() {
    let ran = run(answers(ANSWER.strip_suffix("data: [DONE]\n\n").unwrap()), &["run", "hi"], &[]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "Well.\n"), "{}", ran.err);
}

/// It said how full the window of the model from before was.
#[test]
fn the_status_of_a_chat_has_the_window_of_the_model_that_answered() {
    let port = answers(ANSWER);
    let chat = cli(&["chat", "--config", "config.toml"]).env("MEERKAT_MODEL__SCRIPTED_WINDOW_TOKENS", "30000");
    let config = format!(
        "[model]\nname = \"local/x\"\n[model.compatible.local]\nbase_url = \
         \"http://127.0.0.1:{port}/v1\"\nwindow_tokens = 16000\n"
    );
    std::fs::write(chat.dir().join("config.toml"), config).unwrap();
    let dir = chat.dir.clone();
    let of_window = |cli: Cli, lines: &str, window: &str| {
        let ran = cli.stdin(lines).on_terminal().run();
        let status = ran.err.lines().find(|line| line.contains(" tokens, session ")).unwrap_or_default();
        assert!(status.contains(window), "{}", ran.err);
    };
    of_window(chat, "hi\n", " of 16k tokens, ");
    let more = cli(&["chat", "last", "--config", "config.toml"]).env("MEERKAT_MODEL__SCRIPTED_WINDOW_TOKENS", "30000");
    of_window(more.in_dir(&dir), "/model scripted\n@usage in=2680 @say Two.\n", "scripted, 2.6k of 30k tokens, ");
}
