//! Printing, which only this file does: data on standard output, everything else on standard error.
//!
//! Texts of models, tools and files lose their control sequences here, except with `--raw`; JSON is always escaped.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::OsString,
    io::{self, BufRead, IsTerminal as _, Write},
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_errors::ErrorBody;
use meerkat_service::{
    redact::redact_key_shapes,
    tool::{is_unseen, visible},
};
use serde_json::Value;
use tokio::sync::mpsc;
use tracing_subscriber::fmt::MakeWriter;
use unicode_width::UnicodeWidthStr as _;

use crate::args::Globals;

/// Most characters of a table's cell.
const CELL_CHARS_MAX: usize = 72;

/// Columns of a terminal of unknown width.
const COLUMNS: usize = 80;

/// Rows of a terminal of unknown height.
const ROWS: usize = 24;

/// Columns of a progress bar.
const BAR_COLUMNS: usize = 20;

/// Everything outside of the program that it reads or writes; a test can hand in its own.
pub struct Terminal {
    /// Standard input.
    pub stdin: Box<dyn BufRead + Send>,
    /// Standard output.
    pub stdout: Box<dyn Write + Send>,
    /// Standard error.
    pub stderr: Box<dyn Write + Send>,
    /// True for each of the three that is a terminal, in that order.
    pub are_terminals: [bool; 3],
    /// True if lines are edited; else they are read unchanged.
    pub has_editor: bool,
    /// True if standard input is the keyboard of this process's terminal, of which keys can be thrown away.
    pub has_keyboard: bool,
    /// Source of Ctrl-C; the process's own signal if `None`.
    pub interrupts: Option<mpsc::UnboundedReceiver<()>>,
    /// Environment and folder.
    pub environment: Environment,
}

/// The environment and the current folder.
pub struct Environment {
    /// The variables.
    pub variables: BTreeMap<String, OsString>,
    /// The folder.
    pub dir: PathBuf,
}

impl Environment {
    /// Returns a variable's value, if it is text.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).and_then(|value| value.to_str()).map(str::to_owned)
    }

    /// Returns the folder for state that programs keep between their runs.
    pub(crate) fn state(&self) -> Option<PathBuf> {
        let named = self.variable("XDG_STATE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
        let at_home = || Some(PathBuf::from(self.variables.get("HOME")?).join(".local/state"));
        named.or_else(at_home).filter(|folder| folder.is_absolute())
    }

    /// Returns the columns that the user names.
    fn columns(&self) -> Option<usize> {
        self.variable("COLUMNS").and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0)
    }

    /// Returns true if the terminal is not of a kind that is known to show and obey little.
    fn has_able_terminal(&self) -> bool {
        self.variable("TERM").is_none_or(|term| !["dumb", "linux"].contains(&term.as_str()))
    }

    /// Returns true if a terminal takes colours.
    fn allows_colours(&self) -> bool {
        let is_set = |name| self.variables.get(name).is_some_and(|value| !value.is_empty());
        !is_set("NO_COLOR") && self.variables.get("TERM").is_none_or(|term| term != "dumb")
    }
}

impl Terminal {
    /// Takes the process's own.
    #[must_use]
    pub fn process() -> Self {
        let are_terminals = [io::stdin().is_terminal(), io::stdout().is_terminal(), io::stderr().is_terminal()];
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let mut variables: BTreeMap<String, OsString> = variables.collect();
        // Without the variable the system still knows the user's home.
        if let (false, Some(home)) = (variables.contains_key("HOME"), std::env::home_dir()) {
            variables.insert("HOME".to_owned(), home.into());
        }
        let environment = Environment { variables, dir: std::env::current_dir().unwrap_or_else(|_| ".".into()) };
        Self {
            stdin: Box::new(io::BufReader::new(io::stdin())),
            stdout: Box::new(io::stdout()),
            stderr: Box::new(io::stderr()),
            // An editor moves the cursor, which not every terminal understands.
            has_editor: are_terminals == [true; 3] && environment.variable("TERM").is_none_or(|term| term != "dumb"),
            has_keyboard: are_terminals[0],
            are_terminals,
            interrupts: None,
            environment,
        }
    }
}

/// Prints a panic as one line on standard error, without anything that looks like a key.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let line = redact_key_shapes(&panic.to_string()).replace('\n', " ");
        // A failure here cannot be reported.
        drop(writeln!(io::stderr(), "meerkat: {}", clean(&line)));
    }));
}

type Stream = Arc<Mutex<Box<dyn Write + Send>>>;

/// Returns the columns of a terminal now: its window may have changed.
fn columns(terminal: impl AsFd) -> Option<usize> {
    let columns = rustix::termios::tcgetwinsize(terminal).ok()?.ws_col;
    (columns > 0).then_some(columns.into())
}

/// Returns the rows of a terminal now.
fn rows(terminal: impl AsFd) -> Option<usize> {
    let rows = rustix::termios::tcgetwinsize(terminal).ok()?.ws_row;
    (rows > 0).then_some(rows.into())
}

/// Returns a text for a terminal. While an editor reads a line, an end of line alone would not move to the first column.
fn with_returns(text: &str, is_terminal: bool) -> Cow<'_, str> {
    match is_terminal && text.contains('\n') && crossterm::terminal::is_raw_mode_enabled().unwrap_or_default() {
        true => Cow::Owned(text.replace('\n', "\r\n")),
        false => Cow::Borrowed(text),
    }
}

/// Printer.
#[derive(Clone)]
pub(crate) struct Output {
    out: Stream,
    err: Stream,
    /// Width of the progress line on the screen; any other output erases it first.
    drawn: Arc<AtomicUsize>,
    /// True for JSON on standard output, also of errors.
    pub(crate) is_json: bool,
    is_raw: bool,
    pub(crate) is_quiet: bool,
    pub(crate) has_colours: bool,
    is_err_terminal: bool,
    /// Columns that the user names, whatever the terminal has.
    named_columns: Option<usize>,
    has_clipboard: bool,
    /// True if words may be highlighted on standard output.
    pub(crate) highlights: bool,
    /// Columns of the terminal, if standard output is one.
    pub(crate) width: Option<usize>,
    /// True if the user can be asked.
    pub(crate) can_ask: bool,
}

impl Output {
    pub(crate) fn new(
        (stdout, stderr): (Box<dyn Write + Send>, Box<dyn Write + Send>),
        are_terminals: [bool; 3],
        env: &Environment,
    ) -> Self {
        Self {
            out: Arc::new(Mutex::new(stdout)),
            err: Arc::new(Mutex::new(stderr)),
            drawn: Arc::default(),
            is_json: false,
            is_raw: false,
            is_quiet: false,
            has_colours: are_terminals[2] && env.allows_colours(),
            is_err_terminal: are_terminals[2],
            named_columns: env.columns(),
            has_clipboard: are_terminals[2] && env.has_able_terminal(),
            highlights: are_terminals[1] && env.allows_colours(),
            width: are_terminals[1].then(|| env.columns().or_else(|| columns(io::stdout())).unwrap_or(COLUMNS)),
            can_ask: are_terminals[0] && are_terminals[2],
        }
    }

    pub(crate) const fn set(&mut self, globals: &Globals) {
        self.is_json = globals.json;
        self.is_raw = globals.raw;
        self.is_quiet = globals.quiet;
    }

    /// Returns true if Markdown may be coloured on standard output.
    pub(crate) const fn colours_text(&self) -> bool {
        self.highlights && !self.is_raw
    }

    /// Returns the columns that a line of progress may have.
    pub(crate) fn progress_columns(&self) -> usize {
        self.named_columns.or_else(|| columns(io::stderr())).or(self.width).unwrap_or(COLUMNS).saturating_sub(1)
    }

    /// Returns the rows and columns of the terminal that questions are on.
    pub(crate) fn screen(&self) -> (usize, usize) {
        (rows(io::stderr()).unwrap_or(ROWS), self.progress_columns() + 1)
    }

    /// Prints a document, or a line of one, unchanged except for characters that a terminal would obey.
    pub(crate) fn document(&self, bytes: &[u8]) -> io::Result<()> {
        let shown = self.width.map(|_| escaped(&String::from_utf8_lossy(bytes)));
        self.give_way();
        let mut out = lock(&self.out);
        out.write_all(shown.as_ref().map_or(bytes, |shown| shown.as_bytes()))?;
        out.write_all(with_returns("\n", self.width.is_some()).as_bytes())?;
        out.flush()
    }

    /// Prints text as it comes.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        self.give_way();
        let mut out = lock(&self.out);
        out.write_all(with_returns(text, self.width.is_some()).as_bytes())?;
        out.flush()
    }

    /// Prints an answer for people.
    pub(crate) fn answer(&self, answer: &Value) -> io::Result<()> {
        self.readable(&render(answer))
    }

    /// Prints a text for people.
    pub(crate) fn readable(&self, text: &str) -> io::Result<()> {
        if self.is_raw { self.text(text) } else { self.text(&clean(text)) }
    }

    /// Prints a short line about progress on standard error.
    pub(crate) fn note(&self, line: &str) {
        if !self.is_quiet {
            self.error_line(line, "2");
        }
    }

    /// Prints a short line that only a terminal gets.
    pub(crate) fn status(&self, line: &str) {
        if self.is_err_terminal {
            self.note(line);
        }
    }

    /// Hands a text to the terminal's clipboard, without what a terminal would obey. Returns false if it can have none.
    pub(crate) fn copy(&self, text: &str) -> bool {
        if self.has_clipboard {
            self.write_err(&format!("\x1b]52;c;{}\x07", BASE64_STANDARD.encode(clean(text))));
        }
        self.has_clipboard
    }

    /// Prints a model's reasoning, already filtered, if standard error is a terminal.
    pub(crate) fn reasoning(&self, text: &str) {
        if !self.is_quiet && self.is_err_terminal {
            self.write_err(&if self.has_colours { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() });
        }
    }

    /// Prints an error's message on standard error.
    pub(crate) fn error(&self, body: &ErrorBody) {
        self.error_line(&format!("error: {}", redact_key_shapes(&body.message)), "31");
        self.note(&format!("  {0}; `meerkat errors {0}` says what to do", body.code));
    }

    /// Prints text on standard error unchanged, such as a question without the end of its line.
    pub(crate) fn notice(&self, text: &str) {
        self.write_err(&clean(text));
    }

    /// Prints what a call would do on standard error; in a terminal with colours the lines of a diff have theirs.
    pub(crate) fn preview(&self, text: &str) {
        // Nothing of it is obeyed, and nothing stays unseen: it would run all the same.
        for line in visible(text).lines() {
            let style = match line.as_bytes().first() {
                Some(b'+') => "32",
                Some(b'-') => "31",
                Some(b'@') => "36",
                _ => "0",
            };
            self.error_line(line, if self.has_colours { style } else { "0" });
        }
    }

    /// Makes a progress bar.
    pub(crate) fn progress(&self) -> Progress {
        Progress { out: self.clone(), line: String::new() }
    }

    fn error_line(&self, line: &str, style: &str) {
        let line = clean(line);
        self.write_err(&if self.has_colours { format!("\x1b[{style}m{line}\x1b[0m\n") } else { format!("{line}\n") });
    }

    /// Writes to standard error; a failure does not end the command.
    fn write_err(&self, text: &str) {
        self.give_way();
        self.write_raw(text);
    }

    /// Removes the line of progress from the terminal.
    fn give_way(&self) {
        let columns = self.drawn.swap(0, Relaxed);
        if columns > 0 {
            self.write_raw(&format!("\r{}\r", " ".repeat(columns)));
        }
    }

    fn write_raw(&self, text: &str) {
        let text = with_returns(text, self.is_err_terminal);
        let mut err = lock(&self.err);
        drop(err.write_all(text.as_bytes()).and_then(|()| err.flush()));
    }

    /// Makes the filter of one block of streamed text.
    pub(crate) fn filter(&self) -> Filter {
        Filter { is_raw: self.is_raw, state: State::Text }
    }
}

/// A number with the name of what it counts.
pub(crate) fn count(number: u64, name: &str) -> String {
    format!("{number} {name}{}", if number == 1 { "" } else { "s" })
}

/// Draws a part of a whole.
pub(crate) fn bar(part: u64, whole: u64) -> String {
    let filled = part.min(whole).saturating_mul(BAR_COLUMNS as u64) / whole.max(1);
    let filled = usize::try_from(filled).map_or(BAR_COLUMNS, |filled| filled.min(BAR_COLUMNS));
    format!("[{}{}]", "#".repeat(filled), "-".repeat(BAR_COLUMNS - filled))
}

/// Progress bar on standard error, if that is a terminal: one line, which is removed at the end.
pub(crate) struct Progress {
    out: Output,
    line: String,
}

impl Progress {
    /// Returns true if it is shown.
    pub(crate) const fn is_shown(&self) -> bool {
        self.out.is_err_terminal && !self.out.is_quiet
    }

    /// Shows progress and a few words about it.
    pub(crate) fn show(&mut self, done: u64, of: u64, words: &str) {
        if !self.is_shown() {
            return;
        }
        let line = format!("{} {words}", bar(done, of));
        if line != self.line {
            self.draw(&line);
            self.line = line;
        }
    }

    /// Shows a line; the caller has cut it to the terminal's width.
    pub(crate) fn say(&mut self, line: &str) {
        if self.is_shown() && line != self.line {
            self.draw(line);
            line.clone_into(&mut self.line);
        }
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if !self.line.is_empty() {
            self.out.give_way();
            self.line.clear();
        }
    }

    /// Redraws the line in a way that every terminal understands.
    fn draw(&self, line: &str) {
        let columns = line.width();
        let rest = self.out.drawn.swap(columns, Relaxed).saturating_sub(columns);
        self.out.write_raw(&format!("\r{line}{}\r", " ".repeat(rest)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn lock(stream: &Stream) -> MutexGuard<'_, Box<dyn Write + Send>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Log lines on standard error, without anything that looks like a key or moves a cursor.
impl<'a> MakeWriter<'a> for Output {
    type Writer = LogLine;

    fn make_writer(&'a self) -> LogLine {
        LogLine(self.clone())
    }
}

/// Log line, which comes in one piece.
pub(crate) struct LogLine(Output);

impl Write for LogLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.give_way();
        // A failure would be reported on standard error again, and end the task that logs.
        drop(lock(&self.0.err).write_all(clean(&redact_key_shapes(&text)).as_bytes()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        drop(lock(&self.0.err).flush());
        Ok(())
    }
}

/// Makes a text of a project's file safe to print: nothing in it moves a cursor or changes the writing direction.
pub(crate) fn printable(text: &str) -> String {
    let shown = |char: char| match char {
        '"' | '\'' | '\\' => char.to_string(),
        char if is_unseen(char) && !char.is_control() => char.escape_unicode().to_string(),
        char => char.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

/// Removes control sequences from a text.
pub(crate) fn clean(text: &str) -> String {
    Filter { is_raw: false, state: State::Text }.push(text)
}

/// Filter of control sequences in a text that comes in pieces.
pub(crate) struct Filter {
    is_raw: bool,
    state: State,
}

/// Position of the text in a control sequence.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Text,
    /// After ESC.
    Escape,
    /// After `ESC [`.
    Csi,
    /// In a string for the terminal, such as a title, which ends with BEL, ESC `\` or, here, at the line's end.
    String,
}

impl Filter {
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.is_raw {
            return text.to_owned();
        }
        let mut clean = String::with_capacity(text.len());
        for char in text.chars() {
            self.state = match (self.state, char) {
                (_, '\n') => {
                    clean.push(char);
                    State::Text
                }
                (_, '\x1b') => State::Escape,
                (State::Escape, '[') | (State::Text, '\u{9b}') => State::Csi,
                (State::Escape, ']' | 'P' | 'X' | '^' | '_')
                | (State::Text, '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}') => State::String,
                (State::Escape, ' '..='/') => State::Escape,
                (State::Escape, _) | (State::Csi, '@'..='~') | (State::String, '\x07' | '\u{9c}') => State::Text,
                (State::Csi, ' '..='?') => State::Csi,
                (State::String, _) => State::String,
                (State::Csi | State::Text, _) => {
                    if char == '\t' || !(char.is_control() || is_direction_mark(char)) {
                        clean.push(char);
                    }
                    State::Text
                }
            };
        }
        clean
    }
}

/// Escapes the characters in JSON that a terminal obeys, which only strings can have. The value stays the same.
fn escaped(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for char in json.chars() {
        if (char.is_control() && !matches!(char, '\n' | '\t' | '\r')) || is_direction_mark(char) {
            // All of them are in the plane that one escape reaches.
            shown += &format!("\\u{:04x}", u32::from(char));
        } else {
            shown.push(char);
        }
    }
    shown
}

/// Returns true for marks that change the direction of text on a terminal.
const fn is_direction_mark(char: char) -> bool {
    matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Renders an answer as lines: a list as a table, anything else as names and values.
fn render(answer: &Value) -> String {
    match answer {
        Value::Object(members) => match members.get("items").and_then(Value::as_array) {
            Some(items) => aligned(&table(items)),
            None => aligned(&members.iter().map(|(name, value)| [name.clone(), cell(value)]).collect::<Vec<_>>()),
        },
        other => format!("{}\n", cell(other)),
    }
}

/// Lays rows of cells out in columns, a line for each row.
pub(crate) fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let mut widths = Vec::new();
    for (at, cell) in rows.iter().flat_map(|row| row.as_ref().iter().enumerate()) {
        widths.resize(widths.len().max(at + 1), 0);
        widths[at] = widths[at].max(cell.width());
    }
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.width())));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn table(items: &[Value]) -> Vec<Vec<String>> {
    let Some(Value::Object(first)) = items.first() else {
        return items.iter().map(|item| vec![cell(item)]).collect();
    };
    let names: Vec<&String> = first.keys().collect();
    let row = |item: &Value| names.iter().map(|name| short(&cell(&item[name.as_str()]))).collect();
    let head = names.iter().map(|name| name.to_uppercase()).collect();
    std::iter::once(head).chain(items.iter().map(row)).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the first line of a text, cut if it is long.
fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the output.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<Vec<u8>>>);

    impl Write for Recorded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_is_drawn_over_itself_and_gone_in_the_end() {
        let env = Environment { variables: BTreeMap::new(), dir: PathBuf::new() };
        let drawn = |is_terminal| {
            let kept = Recorded::default();
            let out = Output::new((Box::new(io::sink()), Box::new(kept.clone())), [true, true, is_terminal], &env);
            let mut progress = out.progress();
            progress.show(0, 0, "nothing yet");
            progress.show(5, 10, "half");
            progress.show(5, 10, "half");
            progress.show(11, 10, "all");
            drop(progress);
            String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
        };
        let [empty, half, full] = [0, 10, 20].map(|filled| format!("[{:-<20}]", "#".repeat(filled)));
        let blanks = " ".repeat("[] all".len() + BAR_COLUMNS);
        let expected = format!("\r{empty} nothing yet\r\r{half} half       \r\r{full} all \r\r{blanks}\r");
        assert_eq!(drawn(true), expected);
        assert_eq!(drawn(false), "");
    }

    #[test]
    fn json_on_a_terminal_escapes_what_would_be_obeyed() {
        let json = "{\"a\":\"\u{9b}31m \u{202e}x\u{7f}\u{2066} é\\n\"}";
        let env = Environment { variables: BTreeMap::new(), dir: PathBuf::new() };
        let printed = |is_terminal| {
            let kept = Recorded::default();
            let out = Output::new((Box::new(kept.clone()), Box::new(io::sink())), [false, is_terminal, false], &env);
            out.document(json.as_bytes()).unwrap();
            String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
        };
        let shown = r#"{"a":"\u009b31m \u202ex\u007f\u2066 é\n"}"#;
        assert_eq!(printed(true), format!("{shown}\n"));
        assert_eq!(printed(false), format!("{json}\n"));
        let value = |json: &str| serde_json::from_str::<Value>(json).unwrap();
        assert_eq!(value(shown), value(json));
    }

    #[test]
    fn control_sequences_go_and_their_text_stays() {
        for (text, expected) in [
            ("a\tb\r\n", "a\tb\n"),
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", "xy"),
            ("\x1b]never closed\nnext", "\nnext"),
            ("\x1bPq#0\x1b\\a\x1b(Bb\x1bcc", "abc"),
            ("\u{9b}31mred\u{7f}\u{0}\u{85}", "red"),
            ("a\u{202e}b\u{2066}c\u{2069}", "abc"),
            ("é \u{1f600}", "é \u{1f600}"),
        ] {
            assert_eq!(clean(text), expected, "{text:?}");
            let mut filter = Filter { is_raw: false, state: State::Text };
            let pieces: String = text.chars().map(|char| filter.push(&char.to_string())).collect();
            assert_eq!(pieces, expected, "{text:?} in pieces");
        }
    }
}
