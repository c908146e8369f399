//! What a turn waits for, as one line on a terminal: the model, a retry, or a tool call; and results of calls, folded.

use std::time::Duration;

use meerkat_service::{
    session::{
        event::{ToolFinished, ToolOutcome, ToolProgress},
        message::{Body, ToolCall},
    },
    tool::visible,
};
use meerkat_tools::Confinement;
use serde_json::Value;
use tokio::time::Instant;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::output::{Output, Progress, clean};

/// Pause between two drawings of what is waited for.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// Lines of a result that are shown.
const LINES_SHOWN: usize = 5;

/// Most columns of a call's title, and of a line of its result.
const COLUMNS_MAX: usize = 100;

/// Arguments that say most about a call, the best first.
const TELLING: [&str; 8] = ["command", "path", "pattern", "query", "url", "name", "text", "prompt"];

/// Calls of the running step, and what else the turn waits for.
pub(super) struct Calls {
    out: Output,
    calls: Vec<Call>,
    /// Name of the turn's model.
    model: String,
    /// Start of the wait for the model, until it says something.
    model_since: Option<Instant>,
    /// Time of the next try, after a failed one.
    retry_at: Option<Instant>,
    /// Calls that wait for a person: nothing is drawn over a question.
    asked: usize,
    line: Progress,
    ticks: usize,
}

struct Call {
    call_id: String,
    title: String,
    /// Start, once it runs.
    started: Option<Instant>,
    /// Bytes of its progress.
    bytes: usize,
    /// Last line of its progress.
    last: String,
}

impl Calls {
    pub(super) fn new(out: &Output) -> Self {
        Self {
            out: out.clone(),
            calls: Vec::new(),
            model: String::new(),
            model_since: None,
            retry_at: None,
            asked: 0,
            line: out.progress(),
            ticks: 0,
        }
    }

    /// Returns true if people see the calls.
    pub(super) const fn are_shown(&self) -> bool {
        self.line.is_shown()
    }

    /// Returns true if there is a line to draw.
    pub(super) fn is_waiting(&self) -> bool {
        let is_running = || self.calls.iter().any(|call| call.started.is_some());
        self.are_shown() && self.asked == 0 && (self.model_since.is_some() || is_running())
    }

    /// Takes the model of the turn, which is asked now.
    pub(super) fn ask_model(&mut self, model: &str) {
        self.model = cut(model, COLUMNS_MAX);
        self.ask_again();
    }

    /// Begins the wait for the next answer of the turn's model.
    pub(super) fn ask_again(&mut self) {
        self.model_since = Some(Instant::now());
    }

    /// Takes a failure of the model, which is asked again after a pause.
    pub(super) fn retry_in(&mut self, pause: Duration) {
        self.retry_at = Some(Instant::now() + pause);
    }

    /// Ends the wait for the model.
    pub(super) fn has_answered(&mut self) {
        (self.model_since, self.retry_at) = (None, None);
        self.line.clear();
    }

    /// Begins a question to a person.
    pub(super) fn ask_person(&mut self) {
        self.asked += 1;
        self.line.clear();
    }

    /// Ends a question to a person.
    pub(super) const fn decided(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// Takes the calls of an answer.
    pub(super) fn propose<'a>(&mut self, calls: impl Iterator<Item = &'a ToolCall>) {
        let call = |call: &ToolCall| Call {
            call_id: call.call_id.clone(),
            title: title(&call.name, call.arguments.as_str()),
            started: None,
            bytes: 0,
            last: String::new(),
        };
        self.calls = calls.map(call).collect();
    }

    /// Names a call of the step.
    pub(super) fn title_of(&self, call_id: &str) -> Option<&str> {
        self.calls.iter().find(|call| call.call_id == call_id).map(|call| call.title.as_str())
    }

    pub(super) fn start(&mut self, call_id: &str) {
        if let Some(call) = self.find(call_id) {
            call.started = Some(Instant::now());
        }
        self.draw();
    }

    pub(super) fn progress(&mut self, progress: &ToolProgress) {
        if let Some(call) = self.find(&progress.call_id) {
            call.bytes += progress.text.len();
            if let Some(line) = progress.text.lines().rev().find(|line| !line.trim().is_empty()) {
                call.last = line.trim().to_owned();
            }
        }
        self.draw();
    }

    /// Takes what the sub-agent of a call does.
    pub(super) fn works(&mut self, call_id: &str, line: &str) {
        if let Some(call) = self.find(call_id) {
            line.clone_into(&mut call.last);
        }
        self.draw();
    }

    /// Takes a call's result; returns its lines for people.
    pub(super) fn finish(&mut self, finished: &ToolFinished) -> Vec<String> {
        let at = self.calls.iter().position(|call| call.call_id == finished.call_id);
        let title = at.map_or_else(|| finished.name.clone(), |at| self.calls.remove(at).title);
        self.line.clear();
        if self.calls.is_empty() {
            self.ask_again();
        }
        let how = match finished.outcome {
            ToolOutcome::Succeeded => "",
            ToolOutcome::Failed => " failed,",
            ToolOutcome::NotRun => " did not run,",
            ToolOutcome::Unknown => " has an unknown outcome,",
        };
        let held = lesser(finished.confinement.as_deref());
        let used =
            finished.delegated.map_or_else(String::new, |it| format!(", {} steps, {} tokens", it.steps, it.tokens));
        let mut lines =
            vec![format!("{title}:{how} {}{used}{held}", time(Duration::from_millis(finished.duration_ms)))];
        lines.extend(folded(&finished.output));
        lines
    }

    /// Draws what is waited for: the call that has run longest, else the model.
    pub(super) fn draw(&mut self) {
        if !self.is_waiting() {
            return;
        }
        let sign = ["|", "/", "-", "\\"][self.ticks % 4];
        self.ticks += 1;
        let what = self.awaited();
        self.line.say(&cut(&format!("{sign} {what}"), self.out.progress_columns()));
    }

    fn awaited(&self) -> String {
        let running: Vec<&Call> = self.calls.iter().filter(|call| call.started.is_some()).collect();
        let since = |start: Option<Instant>| time(start.map_or(Duration::ZERO, |start| start.elapsed()));
        let Some(first) = running.first() else {
            let (model, elapsed) = (&self.model, since(self.model_since));
            let left = self.retry_at.map(|at| at.saturating_duration_since(Instant::now()));
            return match left.filter(|left| !left.is_zero()) {
                // A second that has begun counts.
                Some(left) => format!("retry in {} s: {model}  {elapsed}", left.as_millis().div_ceil(1000)),
                None => format!("waiting for {model}  {elapsed}"),
            };
        };
        let mut line = format!("{}  {}", first.title, since(first.started));
        if first.bytes > 0 {
            line.push_str(&format!("  {}", size(first.bytes)));
        }
        if !first.last.is_empty() {
            line.push_str(&format!("  {}", first.last));
        }
        if running.len() > 1 {
            line.push_str(&format!("  and {} more", running.len() - 1));
        }
        line
    }

    fn find(&mut self, call_id: &str) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.call_id == call_id)
    }
}

/// Names a call by its tool and the argument that says most.
fn title(name: &str, arguments: &str) -> String {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
    let telling = TELLING.iter().find_map(|key| arguments[key].as_str());
    let rest = match (telling, &arguments) {
        (Some(text), _) => text.to_owned(),
        (None, Value::Object(members)) if members.is_empty() => String::new(),
        (None, Value::Null) => String::new(),
        (None, arguments) => arguments.to_string(),
    };
    let agent = arguments["agent"].as_str().filter(|_| name == "delegate");
    let name = agent.map_or_else(|| name.to_owned(), |agent| format!("{name} {agent}:"));
    cut(format!("{name} {rest}").trim_end(), COLUMNS_MAX)
}

/// The confinement that held, if it is less than whole.
fn lesser(confinement: Option<&str>) -> String {
    let whole = Confinement::WHOLE.names(false);
    let lesser = confinement.filter(|held| *held != whole);
    lesser.map_or(String::new(), |held| cut(&format!(", confinement: {held}"), COLUMNS_MAX))
}

/// The first lines of a result, indented, and the number of the others.
pub(super) fn folded(output: &Body) -> Vec<String> {
    let text = output.excerpt();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = if lines.len() > LINES_SHOWN + 1 { LINES_SHOWN } else { lines.len() };
    let mut folded: Vec<String> =
        lines[..shown].iter().map(|line| format!("  {}", cut(line.trim_end(), COLUMNS_MAX))).collect();
    if shown < lines.len() {
        let bytes = size(usize::try_from(output.len()).unwrap_or(usize::MAX));
        // Of a long result only its beginning and end are here.
        let count = if matches!(output, Body::Inline(_)) { format!("{} ", lines.len() - shown) } else { String::new() };
        folded.push(format!("  … {count}more lines, {bytes} in all"));
    }
    folded
}

/// Cuts a text to so many columns on one line, without what a terminal would obey. What nobody would see is an escape.
fn cut(text: &str, columns_max: usize) -> String {
    let seen = |char: char| if char.is_control() { char.to_string() } else { visible(char.encode_utf8(&mut [0; 4])) };
    let text: String = text.chars().map(seen).collect();
    let line: String = clean(&text).chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if line.width() <= columns_max {
        return line;
    }
    let mut columns = 0;
    let fits = |char: &char| {
        columns += char.width().unwrap_or(0);
        columns < columns_max
    };
    line.chars().take_while(fits).chain(['…']).collect()
}

fn time(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{}.{} s", duration.as_secs(), duration.subsec_millis() / 100),
        10..60 => format!("{} s", duration.as_secs()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        0..1_024 => format!("{bytes} bytes"),
        1_024..1_048_576 => format!("{} KB", bytes / 1_024),
        _ => format!("{} MB", bytes / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io, path::PathBuf};

    use meerkat_service::session::message::BlobRef;

    use super::*;
    use crate::output::Environment;

    #[test]
    fn a_call_is_named_by_what_it_is_about() {
        for (arguments, expected) in [
            (r#"{"command":"cargo test"}"#, "shell cargo test"),
            (r#"{"glob":"*.rs","pattern":"fn main","path":"src"}"#, "shell src"),
            (r#"{"limit":3}"#, r#"shell {"limit":3}"#),
            (r#"{"agent":"a","prompt":"Look."}"#, "shell Look."),
            ("{}", "shell"),
            ("not JSON", "shell"),
            ("{\"command\":\"a\\n\\u001b[2Jb\"}", "shell a b"),
            ("{\"path\":\"a\\u200bb\\u202ec\"}", "shell a\\u{200b}b\\u{202e}c"),
        ] {
            assert_eq!(title("shell", arguments), expected, "{arguments}");
        }
        assert_eq!(title("delegate", r#"{"agent":"reviewer","prompt":"Look."}"#), "delegate reviewer: Look.");
        assert_eq!(title("shell", &format!(r#"{{"command":"{}"}}"#, "x".repeat(500))).chars().count(), COLUMNS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_says_what_is_waited_for() {
        let env = Environment { variables: BTreeMap::new(), dir: PathBuf::new() };
        let streams = || -> Box<dyn io::Write + Send> { Box::new(io::sink()) };
        let calls = |are_terminals| Calls::new(&Output::new((streams(), streams()), are_terminals, &env));
        let mut waits = calls([true; 3]);
        assert!(!waits.is_waiting());
        waits.ask_model("gpt-5");
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert!(waits.is_waiting());
        assert_eq!(waits.awaited(), "waiting for gpt-5  1.5 s");
        waits.retry_in(Duration::from_millis(3_500));
        assert_eq!(waits.awaited(), "retry in 4 s: gpt-5  1.5 s");
        tokio::time::advance(Duration::from_millis(3_500)).await;
        assert_eq!(waits.awaited(), "waiting for gpt-5  5.0 s");
        waits.has_answered();
        assert!(!waits.is_waiting());
        let arguments = serde_json::from_str("{}").unwrap();
        let call = ToolCall { call_id: "c".to_owned(), name: "shell".to_owned(), arguments, opaque: None };
        waits.propose([call].iter());
        waits.ask_person();
        waits.start("c");
        assert!(!waits.is_waiting(), "nothing is drawn over a question");
        waits.decided();
        assert!(waits.is_waiting());
        assert_eq!(waits.awaited(), "shell  0.0 s");
        let mut piped = calls([true, true, false]);
        piped.ask_model("gpt-5");
        assert!(!piped.is_waiting());
    }

    #[test]
    fn a_line_is_cut_by_its_columns() {
        for (columns, expected) in [(9, "ab猫猫猫c"), (8, "ab猫猫…"), (7, "ab猫猫…"), (6, "ab猫…"), (3, "ab…")]
        {
            assert_eq!(cut("ab猫猫猫c", columns), expected, "{columns}");
        }
    }

    #[test]
    fn a_confinement_is_shown_if_it_is_less_than_whole() {
        assert_eq!(lesser(None), "");
        assert_eq!(lesser(Some("landlock, seccomp, namespaces")), "");
        assert_eq!(lesser(Some("none")), ", confinement: none");
        assert_eq!(lesser(Some("\u{1b}[2Jx")), ", confinement: x");
    }

    #[test]
    fn a_long_result_is_folded() {
        let lines = |count: usize| (0..count).map(|n| format!("line {n}\n")).collect::<String>();
        assert_eq!(folded(&lines(6).into()).len(), 6);
        let shown = folded(&lines(40).into());
        assert_eq!((shown.len(), shown[0].as_str()), (6, "  line 0"));
        assert_eq!(shown[5], "  … 35 more lines, 310 bytes in all");
        let (head, tail) = (lines(20), lines(20));
        let blob = BlobRef { blob: "0".repeat(64), bytes: 1_288_895, head, tail };
        let shown = folded(&Body::Blob(blob));
        assert_eq!(shown[5], "  … more lines, 1 MB in all", "the lines between are not known");
    }

    #[test]
    fn times_and_sizes_are_short() {
        let times = [(840, "0.8 s"), (9_990, "9.9 s"), (61_000, "1 min 1 s")];
        assert!(times.iter().all(|(ms, text)| time(Duration::from_millis(*ms)) == *text));
        let sizes = [(12, "12 bytes"), (2_100, "2 KB"), (5 << 20, "5 MB")];
        assert!(sizes.iter().all(|(bytes, text)| size(*bytes) == *text));
    }
}
