//! Lines from standard input, read by a thread of their own and only on request: with an editor on a terminal, else
//! unchanged.

use std::{
    fs::OpenOptions,
    io::{self, BufRead, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::mpsc as blocking,
    time::Duration,
};

use meerkat_errors::ErrorBody;
use meerkat_service::SessionError;
use reedline::{
    ColumnarMenu, Completer, CompletionResult, DefaultPrompt, DefaultPromptSegment, EditCommand, Emacs,
    FileBackedHistory, KeyCode, KeyModifiers, MenuBuilder as _, Reedline, ReedlineEvent, ReedlineMenu, Signal, Span,
    Suggestion, default_emacs_keybindings,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{ioctl_fionbio, retry_on_intr},
    stdio::dup2_stdin,
    termios::{OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr},
};
use tokio::sync::mpsc;

use crate::{attach::completions, signals::hang_up};

/// Lines of history to keep.
const HISTORY_MAX: usize = 1000;

/// Time to look for events of the editor. Without any, crossterm does not look at those that it has already read.
const EVENTS_WAIT: Duration = Duration::from_millis(50);

/// Times that typed keys are thrown away for one question; nobody types so many.
const THROWS_MAX: usize = 10_000;

/// Result of asking for a line.
pub(crate) enum Line {
    /// A line.
    Text(String),
    /// A refused line; later lines can still be read.
    Refused(Box<ErrorBody>),
    /// Ctrl-C in the editor.
    Interrupt,
    /// End of the input.
    End,
}

/// Source of lines.
pub(crate) enum Source {
    /// Terminal whose lines can be edited.
    Editor {
        /// True if it takes colours.
        has_colours: bool,
        /// File of the history.
        history: Option<PathBuf>,
        /// The user's folder, for paths after `@~/`.
        home: Option<PathBuf>,
    },
    /// Any other input.
    Plain {
        /// Reader of the input.
        input: Box<dyn BufRead + Send>,
        /// Most bytes of a line.
        limit: u64,
        /// True if it is the keyboard of this process's terminal.
        is_keyboard: bool,
    },
}

/// Lines of standard input.
pub(crate) struct Lines {
    /// Requests for lines; true for a prompt, which the history keeps.
    wish: blocking::Sender<bool>,
    lines: mpsc::UnboundedReceiver<Line>,
    is_asked: bool,
    /// State of the terminal before an editor took it over.
    terminal: Option<Termios>,
    /// What lines come from, if a person types them.
    keyboard: Option<Keyboard>,
}

/// Readers of a keyboard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keyboard {
    /// The terminal makes lines of what is typed.
    Lines,
    /// The editor does, and may have read keys ahead.
    Editor,
}

/// Restores the terminal for an editor that is still reading when its command ends.
impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal
            && let Err(error) = tcsetattr(io::stdin(), OptionalActions::Now, terminal)
        {
            tracing::info!(%error, "the terminal could not be restored");
        }
    }
}

impl Lines {
    /// Starts the thread. It ends with the process, since nothing can stop a read.
    pub(crate) fn start(source: Source) -> Self {
        let (wish, wishes) = blocking::channel();
        let (sender, lines) = mpsc::unbounded_channel();
        let keyboard = match source {
            Source::Editor { .. } => Some(Keyboard::Editor),
            Source::Plain { is_keyboard, .. } => is_keyboard.then_some(Keyboard::Lines),
        };
        let is_edited = keyboard == Some(Keyboard::Editor);
        let terminal = is_edited.then(|| tcgetattr(io::stdin()).ok()).flatten();
        if terminal.is_some() {
            std::thread::spawn(end_without_terminal);
        }
        std::thread::spawn(move || {
            let mut read: Box<dyn FnMut(bool) -> Line> = match source {
                Source::Editor { has_colours, history, home } => {
                    let mut prompts = editor(has_colours, history.as_deref(), home);
                    let mut answers = editor(has_colours, None, None);
                    Box::new(move |is_prompt| if is_prompt { prompts() } else { answers() })
                }
                Source::Plain { input, limit, .. } => {
                    let mut line = plain(input, limit);
                    Box::new(move |_| line())
                }
            };
            while let Ok(is_prompt) = wishes.recv() {
                if sender.send(read(is_prompt)).is_err() {
                    return;
                }
            }
        });
        Self { wish, lines, is_asked: false, terminal, keyboard }
    }

    /// Asks for the next line, unless this was already done.
    pub(crate) fn ask(&mut self) {
        if !self.is_asked {
            self.is_asked = self.wish.send(true).is_ok();
        }
    }

    /// Asks for the answer to a question, which is not a prompt.
    pub(crate) fn ask_answer(&mut self) {
        if !self.is_asked {
            self.is_asked = self.wish.send(false).is_ok();
        }
    }

    /// Throws away what was typed before the question that is on the screen now. Returns what belongs between the question
    /// and its answer.
    pub(crate) fn begin_answer(&self) -> &'static str {
        // A line that is being read ends with the question that it was asked for.
        if let Some(keyboard) = self.keyboard.filter(|_| !self.is_asked) {
            throw_away(keyboard);
        }
        // The editor begins with a line of its own, and some terminals would show it over the question.
        if self.keyboard == Some(Keyboard::Editor) { " \n" } else { " " }
    }

    pub(crate) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Returns the next line.
    pub(crate) async fn next(&mut self) -> Line {
        let line = self.lines.recv().await.unwrap_or(Line::End);
        self.is_asked = false;
        line
    }
}

/// Throws away what was typed before now at this process's terminal: it was not typed for a question that is shown now. A
/// pipe keeps its lines, which a program has written for the questions that it expects.
pub(crate) fn throw_away_typed(has_keyboard: bool) {
    if has_keyboard {
        throw_away(Keyboard::Lines);
    }
}

fn throw_away(keyboard: Keyboard) {
    let thrown = throw_keys().and_then(|()| if keyboard == Keyboard::Editor { throw_events() } else { Ok(()) });
    if let Err(error) = thrown {
        tracing::info!(%error, "what was typed early could not be thrown away");
    }
}

/// Empties the terminal.
fn throw_keys() -> io::Result<()> {
    let stdin = io::stdin();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    for _ in 0..THROWS_MAX {
        let mut keys = [PollFd::new(&stdin, PollFlags::IN)];
        // Before it says that there is nothing, the terminal takes in what is on the way to it.
        retry_on_intr(|| poll(&mut keys, Some(&now)))?;
        let is_more = keys[0].revents() == PollFlags::IN;
        tcflush(&stdin, QueueSelector::IFlush)?;
        if !is_more {
            break;
        }
    }
    Ok(())
}

/// Empties the editor: what came in one piece with the end of the line before is not in the terminal any more.
fn throw_events() -> io::Result<()> {
    while crossterm::event::poll(EVENTS_WAIT)? {
        crossterm::event::read()?;
    }
    Ok(())
}

/// Ends this process in order once its terminal is gone: an editor would try to read it for ever, and no signal comes
/// where the terminal controls nothing or SIGHUP is ignored.
fn end_without_terminal() {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::empty())];
    if retry_on_intr(|| poll(&mut terminal, None)).is_err() {
        return;
    }
    // From here on the editor waits for keys that never come: the turns of others may still run for long.
    let unheard = no_keys().and_then(|keys| Ok(dup2_stdin(keys)?));
    if let Err(error) = unheard {
        tracing::info!(%error, "the editor goes on reading a terminal that is gone");
    }
    hang_up();
}

/// Returns the end of a pipe to which nothing is ever written. A read does not wait there: it may be one that began because
/// of what the terminal had, on the thread that ends the command.
fn no_keys() -> io::Result<io::PipeReader> {
    let (keys, never) = io::pipe()?;
    ioctl_fionbio(&keys, true)?;
    std::mem::forget(never);
    Ok(keys)
}

fn plain(mut input: Box<dyn BufRead + Send>, limit: u64) -> impl FnMut() -> Line + Send {
    move || {
        let mut line = Vec::new();
        match input.by_ref().take(limit + 1).read_until(b'\n', &mut line) {
            Ok(0) => return Line::End,
            Ok(_) => {}
            Err(error) => return Line::Refused(Box::new(unreadable(&error).body())),
        }
        if line.len() as u64 > limit && !line.ends_with(b"\n") {
            return match skip_line(&mut input) {
                Ok(()) => Line::Refused(Box::new(too_large("line", limit).body())),
                Err(error) => Line::Refused(Box::new(unreadable(&error).body())),
            };
        }
        match text("line", line) {
            Ok(line) => Line::Text(line),
            Err(error) => Line::Refused(Box::new(error.body())),
        }
    }
}

/// Skips the rest of a line.
fn skip_line(input: &mut dyn BufRead) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        let (length, is_end) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(length);
        if is_end {
            return Ok(());
        }
    }
}

/// Returns the file of the lines that were typed, readable by its owner alone.
pub(crate) fn history_file(folder: &Path) -> io::Result<PathBuf> {
    let file = folder.join("chat_history");
    OpenOptions::new().create(true).append(true).mode(0o600).open(&file)?;
    Ok(file)
}

/// Name of the editor's list of paths.
const PATHS: &str = "paths";

/// Completes the paths after an `@`; has the user's folder.
struct Paths(Option<PathBuf>);

impl Completer for Paths {
    fn complete(&mut self, line: &str, at: usize) -> CompletionResult {
        let (start, paths) = completions(&line[..at], self.0.as_deref());
        let suggestion = |value| Suggestion { value, span: Span::new(start, at), ..Suggestion::default() };
        CompletionResult::fresh(paths.into_iter().map(suggestion).collect::<Vec<_>>())
    }
}

/// Makes an editor like a shell's: a paste is one text, and Ctrl-C first clears a line.
fn editor(has_colours: bool, history: Option<&Path>, home: Option<PathBuf>) -> impl FnMut() -> Line + use<> {
    let mut keys = default_emacs_keybindings();
    let complete = vec![ReedlineEvent::Menu(PATHS.to_owned()), ReedlineEvent::MenuNext];
    keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, ReedlineEvent::UntilFound(complete));
    // Unlike the editor's own Ctrl-C this keeps the line, so that it can be examined.
    keys.add_binding(KeyModifiers::CONTROL, KeyCode::Char('c'), ReedlineEvent::ExecuteHostCommand(String::new()));
    let mut editor = Reedline::create()
        .with_ansi_colors(has_colours)
        .with_edit_mode(Box::new(Emacs::new(keys)))
        .with_completer(Box::new(Paths(home)))
        .with_menu(ReedlineMenu::EngineCompleter(Box::new(ColumnarMenu::default().with_name(PATHS))))
        .with_quick_completions(true)
        .with_partial_completions(true)
        .use_bracketed_paste(true)
        .with_history_exclusion_prefix(Some(" ".to_owned()));
    match history.map(|file| FileBackedHistory::with_file(HISTORY_MAX, file.to_owned())) {
        Some(Ok(history)) => editor = editor.with_history(Box::new(history)),
        Some(Err(error)) => tracing::info!(%error, "the history is kept for this chat only"),
        None => {}
    }
    let prompt = DefaultPrompt::new(DefaultPromptSegment::Empty, DefaultPromptSegment::Empty);
    move || {
        loop {
            return match editor.read_line(&prompt) {
                Ok(Signal::Success(line)) => {
                    // The thread ends with the process, so the history is written at once.
                    if let Err(error) = editor.sync_history() {
                        tracing::info!(%error, "the history of the chat cannot be written");
                    }
                    Line::Text(line)
                }
                Ok(Signal::HostCommand(_)) if !editor.current_buffer_contents().is_empty() => {
                    editor.run_edit_commands(&[EditCommand::Clear]);
                    continue;
                }
                Ok(Signal::CtrlC | Signal::HostCommand(_)) => Line::Interrupt,
                Ok(_) => Line::End,
                Err(error) => {
                    tracing::error!(%error, "the terminal cannot be read");
                    Line::End
                }
            };
        }
    }
}

/// Reads all of standard input as a prompt, up to the limit.
pub(crate) fn whole(input: Box<dyn BufRead + Send>, limit: u64) -> Result<String, SessionError> {
    let mut bytes = Vec::new();
    // One byte more than the limit, and the new line that an `echo` adds.
    input.take(limit + 2).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > limit + 1 {
        return Err(too_large("prompt", limit));
    }
    text("prompt", bytes)
}

/// Decodes text that was read, without the new line at its end.
fn text(field: &str, mut bytes: Vec<u8>) -> Result<String, SessionError> {
    if bytes.ends_with(b"\n") {
        bytes.pop();
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        SessionError::invalid(field, format!("standard input is not UTF-8 at byte {at}; convert it, or send text"))
    })
}

fn unreadable(error: &io::Error) -> SessionError {
    SessionError::invalid("stdin", format!("standard input cannot be read: {error}"))
}

/// Makes the error for input over the limit; the rest was not read.
fn too_large(what: &'static str, limit: u64) -> SessionError {
    SessionError::PayloadTooLarge { what, bytes: limit + 1, limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Broken once: a chat whose terminal was closed right behind a question never ended.
    #[test]
    fn keys_that_never_come_are_not_waited_for_by_a_read() {
        assert_eq!(no_keys().unwrap().read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
