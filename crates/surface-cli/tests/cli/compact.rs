//! `compact`, `/compact`, how full the window was, and what Ctrl-C ends.

use std::{process::Stdio, sync::Arc};

use meerkat_errors::ErrorCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::drive::{
    meerkat, signal,
    terminal::{Cli, Talk, cli},
};

/// Leaves one turn, so that three turns are enough to compact.
const KEEP: [&str; 2] = ["--compact-keep-turns", "1"];

/// Sessions in a folder.
struct Stage {
    dir: Arc<TempDir>,
    id: String,
}

impl Stage {
    /// A session of three turns, of which each asks for these summaries.
    fn new(summary: &str) -> Self {
        let first = cli(&["run", "--json", &prompt(0, summary)]);
        let dir = first.dir.clone();
        let id = first.run().json()["session_id"].as_str().unwrap().to_owned();
        let stage = Self { dir, id };
        for turn in 1..3 {
            assert_eq!(stage.cli(&["run", "-q", "--session", &stage.id, &prompt(turn, summary)]).run().code, 0);
        }
        stage
    }

    fn cli(&self, args: &[&str]) -> Cli {
        cli(args).in_dir(&self.dir)
    }

    /// What a command prints that does what it is meant to.
    #[track_caller]
    fn out(&self, args: &[&str]) -> String {
        let ran = self.cli(args).run();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}: {}", ran.out);
        ran.out
    }

    /// The types of the session's events behind its turns: it was made, and each turn has three.
    fn kinds(&self) -> Vec<String> {
        let page = self.out(&["events", &self.id, "--since", "10", "--json"]);
        let page: Value = serde_json::from_str(&page).unwrap();
        page["items"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }
}

/// A turn that uses a thousand tokens more than the one before.
fn prompt(turn: u32, summary: &str) -> String {
    let talk = "We went through all of it once more. ".repeat(20);
    format!("@note {talk} @usage in={} @say Turn {turn}. @compaction {summary}", (turn + 1) * 1000)
}

/// The words of the line that begins with a name.
#[track_caller]
fn row<'a>(text: &'a str, name: &str) -> &'a str {
    let row = text.lines().find_map(|line| line.strip_prefix(name));
    row.unwrap_or_else(|| panic!("no {name} in {text}")).trim_start()
}

/// The number behind a word.
#[track_caller]
fn number(text: &str, before: &str) -> u64 {
    let (_, behind) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {text}"));
    behind.trim_start().split(|next: char| !next.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn a_compaction_is_planned_made_shown_and_taken_back() {
    let stage = Stage::new("@say The sum. @usage in=70 out=7 cached=60");
    let id = stage.id.as_str();
    let plan = stage.out(&[&["compact", id, "--preview"][..], &KEEP].concat());
    assert!(plan.starts_with("This is a plan: nothing was changed, and no model was called.\n"), "{plan}");
    assert_eq!(row(&plan, "messages"), "2 would be kept, 4 would be discarded");
    assert!(stage.kinds().is_empty());

    let done = stage.out(&[&["compact", "last"][..], &KEEP].concat());
    let (before, after) = (number(&done, "context     about"), number(&done, "became about"));
    assert!(0 < after && after < before, "{done}");
    assert_eq!(before, number(&plan, "context     about"));
    let saved = (before - after) * 100 / before;
    let undo = format!("meerkat compact {id} --undo");
    let expected = format!(
        "context     about {before} tokens became about {after}, {saved} % less\n\
         by          a summary that the model wrote\n\
         messages    2 kept, 4 discarded\n\
         results     0 tool results masked\n\
         carried     0 reminders, 0 pins\n\
         anchor      none\n\
         cost        70 tokens in (60 cached), 7 out\n\
         undo        {undo}\n"
    );
    assert_eq!(done, expected);
    assert_eq!(stage.kinds(), ["compaction_started", "context_rebuilt", "compaction_completed"]);

    let words: Vec<&str> = undo.split(' ').skip(1).collect();
    let back = format!(
        "Compaction 13 is undone: 4 messages are back in the context. Before the compaction it had about {before} tokens.\n"
    );
    assert_eq!(stage.out(&words), back);
    stage.cli(&words).run().refused(ErrorCode::ItemNotFound, "error: The session has no such compaction.\n");

    let window = serde_json::from_str::<Value>(&stage.out(&["sessions", "show", id, "--json"])).unwrap();
    let window = window["context"]["window_tokens"].as_u64().unwrap();
    let shown = stage.out(&["sessions", "show", id]);
    let line = format!(" {} %, the last model call had 3000 tokens\n", 3000 * 100 / window);
    assert!(shown.contains("\nwindow      [") && shown.contains(&line), "{shown}");
}

#[test]
fn ctrl_c_in_compact_ends_the_compaction() {
    let stage = Stage::new("@say The sum @stall");
    for presses in 1..3 {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        (0..presses).for_each(|_| sender.send(()).unwrap());
        let mut command = stage.cli(&[&["compact", &stage.id][..], &KEEP].concat());
        command.interrupts = Some(receiver);
        let ran = command.run();
        let told = "Interrupting; Ctrl-C again leaves at once.\n";
        assert_eq!((ran.code, ran.out.as_str()), (ErrorCode::TurnInterrupted.exit_code(), ""), "{}", ran.err);
        assert!(ran.err.starts_with(told), "{}", ran.err);
        assert!(!stage.kinds().contains(&"compaction_completed".to_owned()));
    }
    let state = stage.out(&["sessions", "show", &stage.id, "--json"]);
    assert!(state.contains(r#""state":"idle""#), "{state}");
}

#[test]
fn ctrl_c_in_chat_ends_the_compaction_and_the_lines_go_on() {
    let stage = Stage::new("@say The sum @stall");
    let lines =
        "/compact --compact-keep-turns 1\n/call session/subscribe since_seq=10 until=compaction_started\n@say After.\n";
    let ran = stage.cli(&["chat", &stage.id]).stdin(lines).interrupted_at("compaction_started", None).run();
    assert!(ran.code == 0 && ran.err.contains("TURN_INTERRUPTED"), "{}{}", ran.out, ran.err);
    assert!(ran.out.ends_with("After.\n"), "{}", ran.out);
    assert!(ran.err.contains("Interrupting; Ctrl-C again leaves."), "{}", ran.err);
    assert_eq!(stage.kinds()[..2], ["compaction_started", "compaction_failed"]);
}

/// What belongs to another process goes on there, and the command says how to see and to end it.
#[test]
fn ctrl_c_in_a_compact_that_is_attached_leaves_and_says_what_goes_on() {
    let stage = Stage::new("@say The sum @stall");
    let mut owner: Talk = stage.cli(&["chat", &stage.id, "--json"]).talk();
    owner.next();
    let mut attached = meerkat(stage.dir.path(), &[&["compact", &stage.id][..], &KEEP].concat());
    let mut attached = attached.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    owner.ask("/call session/subscribe since_seq=10 until=compaction_started");
    signal(&attached, "INT");
    let mut err = String::new();
    std::io::Read::read_to_string(&mut attached.stderr.take().unwrap(), &mut err).unwrap();
    assert_eq!(attached.wait().unwrap().code(), Some(ErrorCode::TurnInterrupted.exit_code().into()), "{err}");
    let id = &stage.id;
    let told = format!(
        "The compaction continues in the process that serves the session: `meerkat events {id} --follow` shows how it \
         ends, `meerkat sessions interrupt {id}` ends it now.\n"
    );
    assert_eq!(err, told);
    let ended = owner.ask("/call turn/interrupt");
    let failed = owner.ask("/call session/subscribe since_seq=10 until=compaction_failed");
    let (ended, failed) = (&ended["answer"], &failed["answer"]);
    assert_eq!((&failed["code"], &failed["seq"]), (&json!("TURN_INTERRUPTED"), &ended["seq"]));
}
