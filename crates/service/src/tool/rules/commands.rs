//! Commands of a shell, as their words. What a shell would do more than run programs with these words is not read: a
//! redirection to a file, a variable, an expansion, an assignment, a comment, a part in parentheses.

use std::str::Chars;

/// Stands for white space inside a word of a subject, so that a subject has as many words as its command.
const SPACE_IN_WORD: char = '␣';

/// Words that mean something else than a program where a command begins.
const RESERVED: [&str; 21] = [
    "!", "time", "coproc", "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac",
    "in", "select", "function", "[[", "{", "}",
];

/// Commands of a shell that change what the ones after them do, or run other ones.
const CHANGING: [&str; 37] = [
    ".",
    "alias",
    "bind",
    "builtin",
    "command",
    "compgen",
    "complete",
    "compopt",
    "declare",
    "disown",
    "enable",
    "eval",
    "exec",
    "export",
    "fc",
    "getopts",
    "hash",
    "history",
    "jobs",
    "let",
    "local",
    "mapfile",
    "read",
    "readarray",
    "readonly",
    "set",
    "shift",
    "shopt",
    "source",
    "suspend",
    "trap",
    "typeset",
    "ulimit",
    "umask",
    "unalias",
    "unset",
    "wait",
];

/// Command that is being read.
#[derive(Default)]
struct Reading {
    words: Vec<String>,
    word: Option<String>,
    /// If any of the word was quoted.
    is_quoted: bool,
    begins_quoted: bool,
}

impl Reading {
    fn quoted(&mut self) -> &mut String {
        self.is_quoted = true;
        self.word.get_or_insert_default()
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if self.words.is_empty() {
            self.begins_quoted = self.is_quoted;
        }
        self.words.push(word);
        self.is_quoted = false;
    }

    /// Returns the words at the end of the command; `None` if it is none that is read here.
    fn end(mut self) -> Option<Vec<String>> {
        self.end_word();
        let first = self.words.first()?;
        (self.begins_quoted || !RESERVED.contains(&first.as_str())).then_some(self.words)
    }

    /// Passes a redirection that changes no file: to nothing, or of one output to the other. `begin` is its sign.
    fn redirect(&mut self, begin: &str, chars: &mut Chars<'_>) -> Option<()> {
        // Digits in front of the sign are no word: they name what is redirected.
        let digits = self.word.take_if(|word| !self.is_quoted && word.chars().all(|digit| digit.is_ascii_digit()));
        if digits.is_some_and(|digits| begin != ">" || !matches!(digits.as_str(), "1" | "2")) {
            return None;
        }
        self.end_word();
        let rest = chars.as_str();
        let other = ["&1", "&2"].into_iter().filter(|_| begin == ">").find_map(|other| rest.strip_prefix(other));
        let after = other.or_else(|| rest.trim_start_matches([' ', '\t']).strip_prefix("/dev/null"))?;
        let is_whole = after.is_empty() || after.starts_with([' ', '\t', '\n', ';', '|', '&']);
        *chars = after.chars();
        is_whole.then_some(())
    }
}

/// Splits what a shell runs into its commands, joined by `&&`, `||`, `|`, `;` or the end of a line, and each of them into
/// its words as a POSIX shell does; white space inside a word becomes `␣`. `None` if a shell would do more.
#[must_use]
pub fn shell_commands(text: &str) -> Option<Vec<Vec<String>>> {
    let (mut commands, mut reading, mut chars) = (Vec::new(), Reading::default(), text.chars());
    // Whether a command must follow.
    let mut is_open = true;
    while let Some(character) = chars.next() {
        let next = chars.as_str().chars().next();
        match character {
            ' ' | '\t' => reading.end_word(),
            // A line that is empty, and one after a sign that joins.
            '\n' if reading.words.is_empty() && reading.word.is_none() => {}
            '\n' | ';' => {
                commands.push(std::mem::take(&mut reading).end()?);
                is_open = false;
                continue;
            }
            '&' | '|' if next == Some(character) || (character == '|' && next != Some('&')) => {
                if next == Some(character) {
                    chars.next();
                }
                commands.push(std::mem::take(&mut reading).end()?);
                is_open = true;
                continue;
            }
            '&' if next == Some('>') => {
                chars.next();
                reading.redirect("&>", &mut chars)?;
            }
            '>' => reading.redirect(">", &mut chars)?,
            '<' => reading.redirect("<", &mut chars)?,
            '\'' => {
                let word = reading.quoted();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        // Some builtins evaluate their words again.
                        '$' | '`' => return None,
                        inner => word.push(kept(inner)?),
                    }
                }
            }
            '"' => {
                let word = reading.quoted();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '$' | '`' => return None,
                        '\\' => match chars.next()? {
                            '$' | '`' => return None,
                            escaped @ ('"' | '\\') => word.push(escaped),
                            other => word.extend(['\\', kept(other)?]),
                        },
                        inner => word.push(kept(inner)?),
                    }
                }
            }
            '\\' => match chars.next()? {
                '$' | '`' => return None,
                escaped => reading.quoted().push(kept(escaped)?),
            },
            '&' | '|' | '$' | '`' | '(' | ')' | '{' | '}' | '*' | '?' | '[' | ']' | '#' => return None,
            // An assignment, also one that is quoted in part.
            '=' if reading.words.is_empty() => return None,
            // A home folder.
            '~' if reading.word.as_deref().is_none_or(|word| word.ends_with(['=', ':'])) => return None,
            plain => reading.word.get_or_insert_default().push(kept(plain)?),
        }
    }
    if is_open || reading.word.is_some() || !reading.words.is_empty() {
        commands.push(reading.end()?);
    }
    let changes = |words: &Vec<String>| {
        let is_assigning = words[0] == "printf" && words.get(1).is_some_and(|second| second.starts_with("-v"));
        is_assigning || CHANGING.contains(&words[0].as_str())
    };
    (commands.len() == 1 || !commands.iter().any(changes)).then_some(commands)
}

/// Returns a character as a subject holds it; `None` for one that ends a command or hides text.
fn kept(character: char) -> Option<char> {
    match character {
        ' ' | '\t' => Some(SPACE_IN_WORD),
        control if control.is_control() => None,
        plain => Some(plain),
    }
}
