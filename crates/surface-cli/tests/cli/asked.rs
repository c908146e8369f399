//! Questions at a terminal: what a person sees before they decide, and that only what they type then decides.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex, mpsc},
};

use meerkat_testkit::{Random, seed, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::typed::Typed;
use crate::drive::{fake, meerkat, ran, signal, terminal::cli};

/// Questions before which something is typed.
const EARLY: u64 = 50;

/// A model whose answers the test gives one by one.
struct Model {
    port: u16,
    asked: mpsc::Receiver<()>,
    answers: mpsc::Sender<String>,
}

impl Model {
    fn start() -> Self {
        let (seen, asked) = mpsc::channel();
        let (answers, given) = mpsc::channel();
        let given = Arc::new(Mutex::new(given));
        let port = fake::serve(move |_| {
            seen.send(()).ok()?;
            Some((200, "text/event-stream", given.lock().unwrap().recv().ok()?))
        });
        Self { port, asked, answers }
    }

    /// Waits until the model is asked. Meanwhile the terminal goes on to answer the editor.
    #[track_caller]
    fn is_asked(&self, typed: &mut Typed) {
        until("the model is asked", || {
            typed.glance();
            self.asked.try_recv().is_ok()
        });
    }

    /// Answers with a text, and with a call if one is given.
    fn answer(&self, text: &str, call: Option<(&str, Value)>) {
        let mut deltas = vec![json!({ "content": text })];
        deltas.extend(call.as_ref().map(|(name, arguments)| {
            let function = json!({ "name": name, "arguments": arguments.to_string() });
            json!({ "tool_calls": [{ "index": 0, "id": "c", "type": "function", "function": function }] })
        }));
        let end = if call.is_some() { "tool_calls" } else { "stop" };
        let line = |delta: Value, end: Option<&str>| {
            let choice = json!({ "index": 0, "delta": delta, "finish_reason": end });
            format!("data: {}\n\n", json!({ "id": "1", "choices": [choice] }))
        };
        let lines: String = deltas.into_iter().map(|delta| line(delta, None)).collect();
        self.answers.send(format!("{lines}{}data: [DONE]\n\n", line(json!({}), Some(end)))).unwrap();
    }

    /// Makes a command that asks this model.
    fn command(&self, home: &TempDir, args: &[&str]) -> Command {
        let config = format!(
            "[model]\nname = \"local/x\"\n[model.compatible.local]\nbase_url = \"http://127.0.0.1:{}/v1\"\nwindow_tokens = \
             32768\n",
            self.port
        );
        fs::write(home.path().join("model.toml"), config).unwrap();
        let mut command = meerkat(home, args);
        command.env("MEERKAT_CONFIG", home.path().join("model.toml"));
        command.env("MEERKAT_TOOLS__TEST_DIR", home.path());
        command
    }
}

/// Types keys that would decide, in pieces, each of which the terminal has before the next one.
fn type_early(typed: &mut Typed, random: &mut Random) {
    let keys = ["y\r", "always\r", "session\r", "y", "yes\ry\r", "\r\ry\r", "/approve\r", "n\r"];
    let keys = keys[random.below(keys.len() as u64) as usize];
    let at = random.below(keys.len() as u64 + 1) as usize;
    for piece in [&keys[..at], &keys[at..]] {
        typed.keys(piece);
    }
}

/// Plays one turn up to its question, and types something at one moment before. Answers the question with no.
#[track_caller]
fn play(typed: &mut Typed, model: &Model, random: &mut Random, (moment, number, is_chat): (u64, u64, bool)) {
    let early = |typed: &mut Typed, random: &mut Random, now: u64| {
        if moment == now {
            type_early(typed, random);
        }
    };
    model.is_asked(typed);
    early(typed, random, 1);
    model.answer("Looking. ", Some(("test_echo", json!({ "text": "x" }))));
    typed.wait("Looking.");
    early(typed, random, 2);
    model.is_asked(typed);
    early(typed, random, 3);
    let asked = json!({ "name": format!("made-{number}"), "line": "x", "lasting": true });
    model.answer("Asking. ", Some(("test_ask", asked)));
    typed.question();
    if is_chat {
        typed.prompt();
    }
    typed.keys("n\r");
    model.is_asked(typed);
    model.answer(&format!("Done {number}."), None);
    typed.wait(&format!("Done {number}."));
}

/// Nothing that was typed early may have decided.
#[track_caller]
fn check(home: &std::path::Path, screen: &str) {
    let made: Vec<PathBuf> = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!made.iter().any(|path| path.to_string_lossy().contains("made-")), "{made:?}: {screen}");
    assert!(!home.join(".config/meerkat/meerkat.toml").exists(), "{screen}");
}

/// Broken once: `y` that was typed while a command ran approved the next one, and `always` changed the configuration.
#[test]
fn what_is_typed_before_a_question_is_shown_never_answers_it() {
    let mut random = Random::new(seed());
    let model = Model::start();
    let home = meerkat_testkit::folder();
    let mut typed = Typed::begin(model.command(&home, &["chat"]), home);
    for number in 0..EARLY - 10 {
        typed.prompt();
        // The editor may read the keys behind the end of a line with it.
        let moment = random.below(4);
        typed.keys(if moment == 0 { "go\ry\r" } else { "go\r" });
        play(&mut typed, &model, &mut random, (moment, number, true));
    }
    check(typed.folder(), typed.screen());
    assert_eq!(typed.screen().matches("Allow test_ask").count() as u64, EARLY - 10, "{}", typed.screen());
    // This model counts no tokens.
    assert!(!typed.screen().contains("local/x, 0 of"), "{}", typed.screen());
    typed.leave();

    for number in EARLY - 10..EARLY {
        let home = meerkat_testkit::folder();
        let mut typed = Typed::begin(model.command(&home, &["run", "go"]), home);
        let moment = random.below(4);
        if moment == 0 {
            type_early(&mut typed, &mut random);
        }
        play(&mut typed, &model, &mut random, (moment, number, false));
        let (screen, home) = typed.end();
        check(home.path(), &screen);
    }
}

/// A pipe has no keyboard: its lines are there before the question, and answer it.
#[test]
fn lines_of_a_program_wait_for_their_questions() {
    let cli = cli(&["run", "-q", r#"@call test_ask {"name":"a","line":"x"} @say Ok."#]);
    let home = cli.dir.clone();
    let ran = cli.with_tools().on_terminal().stdin("y\n").run();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(home.path().join("a").exists(), "{}", ran.err);
}

/// Broken once: it was not asked again, and every line was refused.
#[test]
fn a_question_that_a_former_chat_left_is_asked_again_at_once() {
    let home = meerkat_testkit::folder();
    let chat = |home: &TempDir, args: &[&str]| {
        let mut command = meerkat(home, args);
        command.env("MEERKAT_TOOLS__TEST_DIR", home.path());
        command
    };
    let mut typed = Typed::begin(chat(&home, &["chat"]), home);
    typed.prompt();
    typed.keys("@say Before. @call test_ask {\"name\":\"asked\",\"line\":\"x\"} @say After.\r");
    typed.question();
    let home = typed.killed();
    let refused = ran(&mut chat(&home, &["run", "--session", "last", "hello"]));
    refused.refused(meerkat_errors::ErrorCode::SessionBusy, "Turn 0 waits for a decision about test_ask (call_");
    assert!(refused.err.contains("`meerkat sessions approve "), "{}", refused.err);

    let mut typed = Typed::begin(chat(&home, &["chat", "last"]), home);
    typed.wait("Turn 0 waits for your decision");
    typed.wait("Before.");
    typed.wait("Allow test_ask");
    typed.question();
    typed.prompt();
    assert!(!typed.folder().join("asked").exists());
    typed.keys("y\r");
    typed.wait("After.");
    typed.prompt();
    assert!(typed.folder().join("asked").exists(), "{}", typed.screen());
    typed.keys("@say Next.\r");
    typed.wait("\x1b[?2004l");
    typed.wait("Next.");
    typed.leave();
}

/// The question came before the text, so nothing that follows asks it.
#[test]
fn a_command_that_steers_asks_about_what_waits_already() {
    let home = meerkat_testkit::folder();
    let command = |home: &TempDir, args: &[&str]| {
        let mut command = meerkat(home, args);
        command.env("MEERKAT_TOOLS__TEST_DIR", home.path());
        command
    };
    let mut typed = Typed::begin(command(&home, &["chat"]), home);
    typed.prompt();
    typed.keys("@call test_ask {\"name\":\"asked\",\"line\":\"x\"} @say After.\r");
    typed.question();
    let home = typed.killed();
    let steer = ["run", "--session", "last", "--policy", "steer", "@say Steered."];
    let mut typed = Typed::begin(command(&home, &steer), home);
    typed.question();
    assert!(!typed.folder().join("asked").exists());
    typed.keys("y\r");
    let (screen, home) = typed.end();
    assert!(screen.contains("Steered."), "{screen}");
    assert_eq!(screen.matches("Allow test_ask").count(), 1, "{screen}");
    assert!(home.path().join("asked").exists(), "{screen}");
}

/// A session made by this command, with a tool that its caller runs. Its turn waits until a call of the tool is
/// answered.
fn waits_for_its_caller(home: &TempDir, more: &[&str], prompt: &str) -> [String; 2] {
    let run = |args: &[&str]| -> Value {
        let ran = ran(meerkat(home, args).env("MEERKAT_TOOLS__TEST_DIR", home.path()));
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str(&ran.out).unwrap()
    };
    let tools = r#"client_tools:=[{"name":"look","description":"Looks.","input_schema":{"type":"object"}}]"#;
    let id = run(&["call", "--json", "session/create", tools])["session_id"].as_str().unwrap().to_owned();
    let (session, prompt) = (format!("session_id={id}"), format!("prompt={prompt}"));
    let turn = run(&[&["call", "--json", "turn/start", &session, &prompt, "attended:=true"][..], more].concat());
    [id, turn["calls"][0]["call_id"].as_str().unwrap().to_owned()]
}

/// Broken once: it asked nobody, and the turn waited until the decision came from elsewhere.
#[test]
fn a_command_that_answers_a_call_and_waits_asks_about_what_comes_later() {
    let home = meerkat_testkit::folder();
    let prompt = r#"@call look {} @step @call test_ask {"name":"asked","line":"x"} @say After."#;
    let [id, call_id] = waits_for_its_caller(&home, &[], prompt);
    let mut command = meerkat(&home, &["sessions", "answer", &id, &call_id, "Seen.", "--wait"]);
    command.env("MEERKAT_TOOLS__TEST_DIR", home.path());
    let mut typed = Typed::begin(command, home);
    typed.question();
    assert!(!typed.folder().join("asked").exists());
    typed.keys("y\r");
    let (screen, home) = typed.end();
    assert!(screen.contains("After."), "{screen}");
    assert!(home.path().join("asked").exists(), "{screen}");
}

/// Broken once: another's turn ended when a command was left that had answered its call.
#[test]
fn a_command_that_answers_a_call_can_be_left_and_the_turn_goes_on() {
    for (name, code) in [("INT", meerkat_errors::ErrorCode::TurnInterrupted.exit_code()), ("TERM", 0)] {
        let home = Arc::new(meerkat_testkit::folder());
        let [id, call_id] = waits_for_its_caller(&home, &[], "@call look {} @step @stall");
        let mut owner = cli(&["chat", &id, "--json"]).in_dir(&home).talk();
        owner.next();
        let mut answer = meerkat(home.path(), &["sessions", "answer", &id, &call_id, "Seen.", "--wait"]);
        let mut answer = answer.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        owner.ask("/call session/subscribe since_seq=0 until=call_answered");
        signal(&answer, name);
        assert_eq!(answer.wait().unwrap().code(), Some(code.into()), "{name}");
        let view = owner.ask("/call session/read");
        assert_eq!(view["answer"]["state"], "running", "{name}: {view}");
        owner.ask("/call turn/interrupt");
    }
}

const SCHEMA: &str = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;

/// Broken once: an answer that the schema refuses was shown while it came.
#[test]
fn a_command_that_answers_a_call_shows_only_the_json_of_the_turns_answer() {
    let home = meerkat_testkit::folder();
    let output = format!(r#"output:={{"schema":{SCHEMA}}}"#);
    let prompt = r#"@call look {} @step @echo attempt @step @json {"n":2}"#;
    let [id, call_id] = waits_for_its_caller(&home, &[&output], prompt);
    let shown = ran(&mut meerkat(&home, &["sessions", "answer", &id, &call_id, "Seen.", "--wait"]));
    assert_eq!((shown.code, shown.out.as_str()), (0, "{\"n\":2}\n"), "{}", shown.err);
}

/// Broken once: an answer that the schema refuses was shown while it came.
#[test]
fn a_command_that_steers_shows_only_the_json_of_the_turns_answer() {
    let home = meerkat_testkit::folder();
    fs::write(home.path().join("schema.json"), SCHEMA).unwrap();
    let command = |home: &TempDir, args: &[&str]| {
        let mut command = meerkat(home, args);
        command.env("MEERKAT_TOOLS__TEST_DIR", home.path());
        command
    };
    let schema = home.path().join("schema.json").to_str().unwrap().to_owned();
    let asks = r#"@call test_ask {"name":"asked","line":"x"} @json {"n":1}"#;
    let mut typed = Typed::begin(command(&home, &["run", asks, "--output-schema", &schema]), home);
    typed.question();
    let home = typed.killed();
    let steer = ["run", "--session", "last", "--policy", "steer", r#"@echo attempt @step @json {"n":2}"#];
    let mut typed = Typed::begin(command(&home, &steer), home);
    typed.question();
    typed.keys("y\r");
    let (screen, _home) = typed.end();
    assert!(screen.contains("\n{\"n\":2}"), "{screen}");
    assert!(!screen.contains("attempt: "), "{screen}");
}

/// Broken once: what followed was shown as a staircase, the dead question again, and the next line was not taken.
#[test]
fn an_interrupt_at_a_question_ends_it_and_the_next_line_is_a_prompt() {
    let mut typed = Typed::start();
    typed.prompt();
    typed.keys("@call test_ask {\"name\":\"asked\",\"line\":\"x\"}\r");
    typed.question();
    typed.prompt();
    typed.keys("\x03");
    typed.wait("Interrupting");
    typed.prompt();
    typed.keys("@say Next.\r");
    typed.wait("\x1b[?2004l");
    typed.wait("Next.");
    typed.prompt();
    let lines = typed.lines();
    let has = |text: &str| lines.iter().any(|line| line.starts_with(text));
    assert!(has("Interrupting; ") && has("error: ") && has("Next."), "{lines:#?}");
    assert_eq!(typed.screen().matches("Allow test_ask").count(), 1, "{lines:#?}");
    assert!(!typed.folder().join("asked").exists(), "{lines:#?}");
    typed.keys("\x04");
    typed.end();
}

/// Broken once: the editor wrote its own line over the question.
#[test]
fn a_dumb_terminal_shows_the_question_as_a_plain_line() {
    let home = meerkat_testkit::folder();
    let mut command = meerkat(&home, &["chat"]);
    command.env("MEERKAT_TOOLS__TEST_DIR", home.path());
    let mut typed = Typed::begin_at("dumb", command, home);
    typed.wait("Ctrl-D leaves.");
    typed.keys("@call test_ask {\"name\":\"asked\",\"line\":\"x\"} @say After.\r");
    typed.question();
    let lines = typed.lines();
    let question = r#"Allow test_ask {"name":"asked","line":"x"}? y = once, n = no (you may add why):"#;
    assert!(lines.iter().any(|line| line == question), "{lines:#?}");
    typed.keys("y\r");
    typed.wait("After.");
    typed.wait("tokens, session");
    typed.keys("\x04");
    let (screen, home) = typed.end();
    assert!(home.path().join("asked").exists() && !screen.contains('\x1b'), "{screen:?}");
}

/// Starts a command in a project at a terminal, whose model makes this call.
fn calling(name: &str, arguments: &Value) -> Typed {
    let home = meerkat_testkit::folder();
    let project = home.path().join("project");
    fs::create_dir(&project).unwrap();
    let mut command = meerkat(&home, &["run", &format!("@call {name} {arguments} @say Done.")]);
    command.current_dir(project);
    Typed::begin(command, home)
}

/// Broken once: no line behind the two hundredth could be seen.
#[test]
fn every_line_of_a_long_change_can_be_seen_before_it_is_allowed() {
    let content: String = (1..=1003).map(|number| format!("line {number} of it\n")).collect();
    let mut typed = calling("write", &json!({ "path": "long.txt", "content": content }));
    typed.wait(" lines are shown, v shows them all. y = once, ");
    typed.question();
    assert!(typed.lines().iter().any(|line| line == "line 1003 of it"), "{:#?}", typed.lines());
    loop {
        typed.keys("v\r");
        typed.wait("Allow write? Lines ");
        typed.question();
        let lines = typed.lines();
        let question = lines.iter().rfind(|line| line.starts_with("Allow write?")).unwrap();
        if question.contains("v begins again") {
            break;
        }
        assert!(question.contains("v shows the next"), "{lines:#?}");
    }
    let screen = typed.screen();
    let unseen = (1..=1003).find(|number| !screen.contains(&format!("\nline {number} of it\r")));
    assert_eq!(unseen, None, "{screen}");
    typed.keys("n\r");
    let (_, home) = typed.end();
    assert!(!home.path().join("project/long.txt").exists());
}

/// Broken once: empty lines moved the end of a command off the screen.
#[test]
fn no_part_of_a_command_is_moved_off_the_screen() {
    let mut typed = calling("shell", &json!({ "command": format!("ls{}echo the end", "\n".repeat(200)) }));
    typed.wait(" of 202 lines are shown, v shows them all. ");
    typed.question();
    let lines = typed.lines();
    assert!(lines.iter().any(|line| line == "ls") && lines.iter().any(|line| line == "echo the end"), "{lines:#?}");
    typed.keys("n\r");
    typed.end();
}

/// Broken once: another file ran than the one that was seen.
#[test]
fn characters_that_nobody_sees_are_escapes_in_a_question_and_refused_in_a_command() {
    let content = "a\u{200b}b\u{202e}c\u{e0041}";
    let mut typed = calling("write", &json!({ "path": "odd.txt", "content": content }));
    typed.wait("+a\\u{200b}b\\u{202e}c\\u{e0041}");
    typed.question();
    typed.keys("y\r");
    let (screen, home) = typed.end();
    assert_eq!(fs::read_to_string(home.path().join("project/odd.txt")).unwrap(), content, "{screen}");
    assert!(!screen.contains(|char| "\u{200b}\u{202e}\u{e0041}".contains(char)), "{screen:?}");

    let project = home.path().join("project");
    for (char, code) in [('\u{200b}', "U+200B"), ('\u{e0041}', "U+E0041"), ('\u{2066}', "U+2066"), ('\r', "U+000D")] {
        let call = json!({ "command": format!("echo ran > made{char}") });
        let prompt = format!("@call shell {call} @echo last_result");
        let ran = ran(meerkat(&home, &["run", "-q", "--allow", "shell", &prompt]).current_dir(&project));
        assert!(ran.out.contains(code) && ran.out.contains("$'\\U"), "{code}: {}{}", ran.out, ran.err);
    }
    let names = fs::read_dir(&project).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!names.into_iter().any(|name| name.starts_with("made")));
}
