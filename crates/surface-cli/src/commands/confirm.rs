//! Questions to which only yes means yes.

use crate::{
    app::{App, Streams},
    input::{Line, Lines, Source},
};

/// Most bytes of the answer to a question.
pub(super) const ANSWER_BYTES_MAX: u64 = 1024;

/// Asks a question; prints `otherwise` unless the answer is yes.
pub(super) async fn is_confirmed(app: &App, streams: &mut Streams, question: &str, otherwise: &str) -> bool {
    let mut lines = answers(streams);
    app.out.notice(&format!("{question} [y/N]"));
    app.out.notice(lines.begin_answer());
    lines.ask_answer();
    let is_confirmed = matches!(lines.next().await, Line::Text(text) if is_yes(&text));
    if !is_confirmed {
        app.out.note(otherwise);
    }
    is_confirmed
}

/// Starts to read answers from standard input.
pub(super) fn answers(streams: &mut Streams) -> Lines {
    let is_keyboard = streams.has_keyboard;
    Lines::start(Source::Plain { input: streams.take_stdin(), limit: ANSWER_BYTES_MAX, is_keyboard })
}

/// Returns true if a line answers yes.
pub(crate) fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
