//! Lines from standard input, read by a thread of their own and only when asked for: typed with an editor where
//! there is a terminal, else as they come.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::{self, BufRead, Read as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::mpsc as blocking,
};

use meerkat_errors::ErrorBody;
use meerkat_service::SessionError;
use reedline::{
    DefaultPrompt, DefaultPromptSegment, EditCommand, Emacs, FileBackedHistory, KeyCode, KeyModifiers, Reedline,
    ReedlineEvent, Signal, default_emacs_keybindings,
};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

/// Lines of the history that are kept.
const HISTORY_MAX: usize = 1000;

/// What came of asking for a line.
pub(crate) enum Line {
    /// The line.
    Text(String),
    /// It cannot be taken; the lines after it can.
    Refused(Box<ErrorBody>),
    /// Ctrl-C in the editor.
    Interrupt,
    /// There are no more.
    End,
}

/// Where lines come from.
pub(crate) enum Source {
    /// A terminal, whose lines can be edited.
    Editor {
        /// Whether it takes colours.
        has_colours: bool,
        /// The file that keeps what was typed.
        history: Option<PathBuf>,
    },
    /// Anything else.
    Plain {
        /// What is read.
        input: Box<dyn BufRead + Send>,
        /// Bytes of a line.
        limit: u64,
    },
}

/// The lines of standard input.
pub(crate) struct Lines {
    /// Whether the line that is asked for is a prompt, which the history keeps.
    wish: blocking::Sender<bool>,
    lines: mpsc::UnboundedReceiver<Line>,
    is_asked: bool,
    /// The terminal as it was before an editor took it over.
    terminal: Option<Termios>,
}

/// An editor that still reads when its command was told to end leaves the terminal to this.
impl Drop for Lines {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal
            && let Err(error) = tcsetattr(io::stdin(), OptionalActions::Now, terminal)
        {
            tracing::info!(%error, "the terminal stays as the editor left it");
        }
    }
}

impl Lines {
    /// Starts the thread. It ends with the process, since nothing can stop a read.
    pub(crate) fn start(source: Source) -> Self {
        let (wish, wishes) = blocking::channel();
        let (sender, lines) = mpsc::unbounded_channel();
        let terminal = matches!(source, Source::Editor { .. }).then(|| tcgetattr(io::stdin()).ok()).flatten();
        std::thread::spawn(move || {
            let mut read: Box<dyn FnMut(bool) -> Line> = match source {
                Source::Editor { has_colours, history } => {
                    let mut prompts = editor(has_colours, history.as_deref());
                    let mut answers = editor(has_colours, None);
                    Box::new(move |is_prompt| if is_prompt { prompts() } else { answers() })
                }
                Source::Plain { input, limit } => {
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
        Self { wish, lines, is_asked: false, terminal }
    }

    /// Asks for the next line, unless it is asked for already.
    pub(crate) fn ask(&mut self) {
        if !self.is_asked {
            self.is_asked = self.wish.send(true).is_ok();
        }
    }

    /// Asks for the answer to a question, which is no prompt.
    pub(crate) fn ask_answer(&mut self) {
        if !self.is_asked {
            self.is_asked = self.wish.send(false).is_ok();
        }
    }

    pub(crate) const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// The line that was asked for.
    pub(crate) async fn next(&mut self) -> Line {
        let line = self.lines.recv().await.unwrap_or(Line::End);
        self.is_asked = false;
        line
    }
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

/// Passes over the rest of a line.
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

/// The file of the user's that keeps what was typed, made for the user alone.
pub(crate) fn history_file(state: &Path) -> io::Result<PathBuf> {
    let folder = state.join("meerkat");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let file = folder.join("chat_history");
    OpenOptions::new().create(true).append(true).mode(0o600).open(&file)?;
    Ok(file)
}

/// An editor as people know it from a shell: a paste is one text, and Ctrl-C clears a line before it means anything else.
fn editor(has_colours: bool, history: Option<&Path>) -> impl FnMut() -> Line + use<> {
    let mut keys = default_emacs_keybindings();
    // Unlike the editor's own Ctrl-C this one leaves the line, so that it can be looked at.
    keys.add_binding(KeyModifiers::CONTROL, KeyCode::Char('c'), ReedlineEvent::ExecuteHostCommand(String::new()));
    let mut editor = Reedline::create()
        .with_ansi_colors(has_colours)
        .with_edit_mode(Box::new(Emacs::new(keys)))
        .use_bracketed_paste(true);
    match history.map(|file| FileBackedHistory::with_file(HISTORY_MAX, file.to_owned())) {
        Some(Ok(history)) => editor = editor.with_history(Box::new(history)),
        Some(Err(error)) => tracing::info!(%error, "what is typed is kept for this chat only"),
        None => {}
    }
    let prompt = DefaultPrompt::new(DefaultPromptSegment::Empty, DefaultPromptSegment::Empty);
    move || {
        loop {
            return match editor.read_line(&prompt) {
                Ok(Signal::Success(line)) => {
                    // The thread ends with the process, so nothing is left for later.
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

/// The whole of standard input as a prompt. Reading stops at the limit.
pub(crate) fn whole(input: Box<dyn BufRead + Send>, limit: u64) -> Result<String, SessionError> {
    let mut bytes = Vec::new();
    // One more byte than is allowed, beside the new line that an `echo` puts there.
    input.take(limit + 2).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > limit + 1 {
        return Err(too_large("prompt", limit));
    }
    text("prompt", bytes)
}

/// The text of what was read, without the new line at its end.
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

/// What was read so far is over the limit; the rest was not read.
fn too_large(what: &'static str, limit: u64) -> SessionError {
    SessionError::PayloadTooLarge { what, bytes: limit + 1, limit }
}
