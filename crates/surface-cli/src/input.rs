//! Lines from standard input, read by a thread of their own and only when asked for: typed with an editor where
//! there is a terminal, else as they come.

use std::{
    io::{self, BufRead, Read as _},
    sync::mpsc as blocking,
};

use meerkat_errors::ErrorBody;
use meerkat_service::SessionError;
use reedline::{DefaultPrompt, DefaultPromptSegment, Reedline, Signal};
use tokio::sync::mpsc;

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
    wish: blocking::Sender<()>,
    lines: mpsc::UnboundedReceiver<Line>,
    is_asked: bool,
}

impl Lines {
    /// Starts the thread. It ends with the process, since nothing can stop a read.
    pub(crate) fn start(source: Source) -> Self {
        let (wish, wishes) = blocking::channel();
        let (sender, lines) = mpsc::unbounded_channel();
        let mut read: Box<dyn FnMut() -> Line + Send> = match source {
            Source::Editor { has_colours } => Box::new(editor(has_colours)),
            Source::Plain { input, limit } => Box::new(plain(input, limit)),
        };
        std::thread::spawn(move || {
            while wishes.recv().is_ok() {
                if sender.send(read()).is_err() {
                    return;
                }
            }
        });
        Self { wish, lines, is_asked: false }
    }

    /// Asks for the next line, unless it is asked for already.
    pub(crate) fn ask(&mut self) {
        if !self.is_asked {
            self.is_asked = self.wish.send(()).is_ok();
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

fn editor(has_colours: bool) -> impl FnMut() -> Line + Send {
    let mut editor = Reedline::create().with_ansi_colors(has_colours);
    let prompt = DefaultPrompt::new(DefaultPromptSegment::Empty, DefaultPromptSegment::Empty);
    move || match editor.read_line(&prompt) {
        Ok(Signal::Success(line)) => Line::Text(line),
        Ok(Signal::CtrlC) => Line::Interrupt,
        Ok(_) => Line::End,
        Err(error) => {
            tracing::error!(%error, "the terminal cannot be read");
            Line::End
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
