//! Tool calls of a turn for people: a line while a call runs, and its result folded. Only a terminal gets them.

use std::time::Duration;

use meerkat_service::session::{
    event::{ToolFinished, ToolOutcome, ToolProgress},
    message::{Body, ToolCall},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::output::{Output, Progress, clean};

/// Pause between two drawings of a call that runs.
pub(super) const TICK: Duration = Duration::from_millis(250);

/// Lines of a result that are shown.
const LINES_SHOWN: usize = 5;

/// Most characters of a call's title, and of a line of its result.
const CHARS_MAX: usize = 100;

/// Arguments that say most about a call, the best first.
const TELLING: [&str; 7] = ["command", "path", "pattern", "query", "url", "name", "text"];

/// Calls of the running step.
pub(super) struct Calls {
    out: Output,
    calls: Vec<Call>,
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
        Self { out: out.clone(), calls: Vec::new(), line: out.progress(), ticks: 0 }
    }

    /// Returns true if people see the calls.
    pub(super) const fn are_shown(&self) -> bool {
        self.line.is_shown()
    }

    /// Returns true if a call runs and people see it.
    pub(super) fn are_running(&self) -> bool {
        self.are_shown() && self.calls.iter().any(|call| call.started.is_some())
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

    /// Takes a call's result; returns its lines for people.
    pub(super) fn finish(&mut self, finished: &ToolFinished) -> Vec<String> {
        let at = self.calls.iter().position(|call| call.call_id == finished.call_id);
        let title = at.map_or_else(|| finished.name.clone(), |at| self.calls.remove(at).title);
        self.line.clear();
        let how = match finished.outcome {
            ToolOutcome::Succeeded => "",
            ToolOutcome::Failed => " failed,",
            ToolOutcome::NotRun => " did not run,",
            ToolOutcome::Unknown => " has an unknown outcome,",
        };
        let mut lines = vec![format!("{title}:{how} {}", time(Duration::from_millis(finished.duration_ms)))];
        lines.extend(folded(&finished.output));
        lines
    }

    /// Draws the call that has run longest.
    pub(super) fn draw(&mut self) {
        if !self.are_running() {
            return;
        }
        let running: Vec<&Call> = self.calls.iter().filter(|call| call.started.is_some()).collect();
        let Some(first) = running.first() else { return };
        let sign = ["|", "/", "-", "\\"][self.ticks % 4];
        let elapsed = first.started.map_or(Duration::ZERO, |started| started.elapsed());
        let mut line = format!("{sign} {}  {}", first.title, time(elapsed));
        if first.bytes > 0 {
            line.push_str(&format!("  {}  {}", size(first.bytes), first.last));
        }
        if running.len() > 1 {
            line.push_str(&format!("  and {} more", running.len() - 1));
        }
        self.ticks += 1;
        let columns = self.out.width.unwrap_or(80).saturating_sub(1);
        self.line.say(&cut(&line, columns));
    }

    /// Removes the line of the running call; the next drawing brings it back.
    pub(super) fn clear(&mut self) {
        self.line.clear();
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
    cut(format!("{name} {rest}").trim_end(), CHARS_MAX)
}

/// The first lines of a result, indented, and the number of the others.
fn folded(output: &Body) -> Vec<String> {
    let text = output.excerpt();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = if lines.len() > LINES_SHOWN + 1 { LINES_SHOWN } else { lines.len() };
    let mut folded: Vec<String> =
        lines[..shown].iter().map(|line| format!("  {}", cut(line.trim_end(), CHARS_MAX))).collect();
    if shown < lines.len() {
        let bytes = size(usize::try_from(output.len()).unwrap_or(usize::MAX));
        folded.push(format!("  … {} more lines, {bytes} in all", lines.len() - shown));
    }
    folded
}

/// Cuts a text to so many characters on one line, without what a terminal would obey.
fn cut(text: &str, chars_max: usize) -> String {
    let line: String = clean(text).chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if line.chars().count() <= chars_max {
        return line;
    }
    line.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
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
    use super::*;

    #[test]
    fn a_call_is_named_by_what_it_is_about() {
        for (arguments, expected) in [
            (r#"{"command":"cargo test"}"#, "shell cargo test"),
            (r#"{"glob":"*.rs","pattern":"fn main","path":"src"}"#, "shell src"),
            (r#"{"limit":3}"#, r#"shell {"limit":3}"#),
            ("{}", "shell"),
            ("not JSON", "shell"),
            ("{\"command\":\"a\\n\\u001b[2Jb\"}", "shell a b"),
        ] {
            assert_eq!(title("shell", arguments), expected, "{arguments}");
        }
        assert_eq!(title("shell", &format!(r#"{{"command":"{}"}}"#, "x".repeat(500))).chars().count(), CHARS_MAX);
    }

    #[test]
    fn a_long_result_is_folded() {
        let lines = |count: usize| (0..count).map(|n| format!("line {n}\n")).collect::<String>();
        assert_eq!(folded(&lines(6).into()).len(), 6);
        let shown = folded(&lines(40).into());
        assert_eq!((shown.len(), shown[0].as_str()), (6, "  line 0"));
        assert_eq!(shown[5], "  … 35 more lines, 310 bytes in all");
    }

    #[test]
    fn times_and_sizes_are_short() {
        let times = [(840, "0.8 s"), (9_990, "9.9 s"), (61_000, "1 min 1 s")];
        assert!(times.iter().all(|(ms, text)| time(Duration::from_millis(*ms)) == *text));
        let sizes = [(12, "12 bytes"), (2_100, "2 KB"), (5 << 20, "5 MB")];
        assert!(sizes.iter().all(|(bytes, text)| size(*bytes) == *text));
    }
}
