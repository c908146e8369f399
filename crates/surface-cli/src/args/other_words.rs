//! Words of other tools, with ours for them. They only answer with a suggestion: none of them runs anything.

/// Commands and flags, and lines of `chat` with their `/`.
const WORDS: [(&[&str], &str); 17] = [
    (&["ls", "list"], "meerkat sessions list"),
    (&["exec", "ask", "prompt", "-p", "--print", "--prompt"], "meerkat run 'PROMPT'"),
    (&["new", "start", "repl"], "meerkat chat"),
    (&["continue", "-c", "--continue"], "meerkat chat last"),
    (&["-r", "--resume"], "meerkat chat SESSION` or `meerkat sessions open"),
    (&["-m"], "--model NAME"),
    (&["-C", "--cd"], "--workspace FOLDER"),
    (&["--yolo", "--full-auto", "--dangerously-skip-permissions"], "--allow RULE,RULE"),
    (
        &["login", "auth", "/login"],
        "meerkat models` for the variable of your vendor's key, or `meerkat servers login NAME",
    ),
    (&["history"], "meerkat sessions history last"),
    (&["/clear", "/reset"], "/new"),
    (&["/ls"], "/sessions"),
    (&["/status", "/cost", "/context", "/usage"], "/show"),
    (&["/rename"], "/title TEXT"),
    (&["/rewind", "/revert"], "/undo` for files, or `/fork --turn N"),
    (&["/models"], "/model NAME"),
    (&["/q", "/bye"], "/quit"),
];

/// Returns our word for another tool's flag.
pub(crate) fn our_flag(flag: &str) -> Option<&'static str> {
    // Other words in its place are most likely the rest of a prompt.
    ours(flag).filter(|_| flag.starts_with('-'))
}

/// Returns our word for another tool's command, or for a prompt without a command before it.
pub(crate) fn our_command(word: &str) -> Option<&'static str> {
    ours(word).or_else(|| (!word.starts_with('/') && word.contains(' ')).then_some("meerkat run 'PROMPT'"))
}

fn ours(word: &str) -> Option<&'static str> {
    WORDS.iter().find(|(others, _)| others.contains(&word)).map(|(_, ours)| *ours)
}
