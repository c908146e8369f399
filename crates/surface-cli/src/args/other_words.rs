//! Words of other tools, with ours for them. They only answer with a suggestion: none of them runs anything.

use clap::CommandFactory as _;

use super::Cli;

/// Commands and flags, and lines of `chat` with their `/`.
const WORDS: [(&[&str], &str); 16] = [
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

/// Returns what to type for a word that is no command there: another tool's word, a command of sessions, or a prompt without
/// a command before it. `path` has the commands before the word.
pub(crate) fn our_command(path: &str, word: &str) -> Option<String> {
    let of_sessions = |name: &str| {
        let cli = Cli::command();
        let mut sessions = cli.get_subcommands().filter(|command| command.get_name() == "sessions");
        sessions.next().is_some_and(|sessions| sessions.find_subcommand(name).is_some())
    };
    let is_list = matches!(word, "list" | "ls");
    match (path, word) {
        ("", "version") => Some("meerkat --version".to_owned()),
        ("", word) => ours(word)
            .or_else(|| (!word.starts_with('/') && word.contains(' ')).then_some("meerkat run 'PROMPT'"))
            .map(str::to_owned)
            .or_else(|| of_sessions(word).then(|| format!("meerkat sessions {word}"))),
        ("servers" | "mcp", _) if is_list => Some("meerkat servers".to_owned()),
        ("mcp", "add" | "remove" | "login" | "logout") => Some(format!("meerkat servers {word}")),
        ("memory", _) if is_list => Some("meerkat memory search QUERY".to_owned()),
        ("models" | "nodes", _) if is_list => Some(format!("meerkat {path}")),
        ("sessions", "rm" | "remove") => Some("meerkat sessions delete SESSION".to_owned()),
        _ => None,
    }
}

fn ours(word: &str) -> Option<&'static str> {
    WORDS.iter().find(|(others, _)| others.contains(&word)).map(|(_, ours)| *ours)
}
