//! The `/` lines of `chat`: what people type in one. Every operation is a line of `/call`.

use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser,
    builder::{PossibleValuesParser, TypedValueParser},
};
use meerkat_service::{options::Effort, service::Scope};
use serde_json::json;

use super::{CallArgs, CompactHow, SessionFlags, TurnFlags, flags::scope};

/// Text of `chat --help` after the flags.
pub(super) const PROTOCOL: &str = "\
A line is a prompt. A line that begins with `/` is a command for the chat's session; /help lists the commands, and \
/call calls any operation. Words are split as in a shell: 'single quotes' keep their content, \"double quotes\" \
understand \\n \\t \\\\ and \\\", a backslash outside of quotes keeps the next character. The text of /title, /steer, \
/approve and /deny is the unchanged rest of the line, unless it begins with a quote or the line has a flag. Ctrl-C clears a \
half-typed line; otherwise it interrupts the running turn or /compact, and a second Ctrl-C leaves. When the input ends, \
the chat leaves after its last line is done.

At a terminal, `@PATH` in a prompt shows the model that image, PDF or text file, and so does the whole path that a \
terminal pastes for a file which is dropped on it. Put a path with blanks in quotes: @\"my notes.txt\".

Lines are handled in order. While a turn or a /compact runs, other lines are answered, but the next prompt waits; \
/steer says something to the running turn, before its next model call. At a terminal a chat reads no line while a turn \
runs: steer it from a second one, with meerkat run --session ID --policy steer TEXT.

With --json the chat takes prompts, /call, /new and /quit. The first line of output is {\"session_id\", …}, or an \
error's body: then the chat ends with its exit code. Each answer is {\"line\": <number>, \"answer\": <document>}, where \
the number counts lines of input from 1, and the document is the answer or an error's body; answers come when they are \
ready. For scripts `meerkat call`, `meerkat run --json` and `meerkat rpc` are simpler: this is for builds without a store, \
which keep sessions only in the process that made them.";

/// Line of `chat` that begins with `/`.
#[derive(Parser)]
#[command(
    no_binary_name = true,
    override_usage = "/<COMMAND>   /help <COMMAND> says more; any other line is a prompt",
    help_template = "{usage-heading} {usage}\n\n{subcommands}"
)]
pub(crate) enum SlashCommand {
    /// Continue with a new session
    New(Box<NewArgs>),
    /// Continue with another session
    Open {
        /// Its id, `last`, or words of its title
        #[arg(value_name = "WORD")]
        words: Vec<String>,
    },
    /// Use another model from the next turn on, or show the current one
    Model {
        /// The model's name
        name: Option<String>,
    },
    /// Let the model think this long from the next turn on, or show how long it does
    Effort {
        /// none, low, medium or high; default takes the choice back
        #[arg(value_name = "LEVEL", value_parser = level())]
        level: Option<ChosenEffort>,
    },
    /// Compact the live context
    Compact(CompactHow),
    /// Put the files back that the last turn changed
    Undo {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Set the session's title
    Title {
        /// The title; an empty one removes it
        #[arg(value_name = "TEXT")]
        text: String,
    },
    /// Say something to the running turn, before its next model call; without one, and at a terminal, it is a prompt
    Steer {
        /// The text
        #[arg(value_name = "TEXT")]
        text: String,
    },
    /// Copy the last answer to the terminal's clipboard
    Copy,
    /// List the tools that the model is offered, and those that are left out
    Tools,
    /// List the servers of the Model Context Protocol, with their tools
    Servers,
    /// Allow a call that waits for approval
    Approve {
        /// The call's id
        call_id: String,
        /// Allow only this call (once), or also further calls like it: in this session (session) or everywhere (always)
        #[arg(long, value_name = "SCOPE", default_value = "once", value_parser = scope, hide_default_value = true)]
        scope: Scope,
        /// Answer to a server's question as a JSON object; fields that are left out get their defaults
        #[arg(long, value_name = "JSON")]
        answer: Option<String>,
        /// A reason that the model reads
        reason: Option<String>,
    },
    /// Refuse a call that waits for approval
    Deny {
        /// The call's id
        call_id: String,
        /// A reason that the model reads
        reason: Option<String>,
    },
    /// End the running turn or compaction
    Interrupt,
    /// Show the session, and how full the model's window is
    Show,
    /// Call any operation: /call OPERATION NAME=TEXT NAME:=JSON; alone it lists them
    #[command(disable_help_flag = true)]
    Call(CallArgs),
    /// Leave when the lines before this one are done
    #[command(visible_alias = "exit")]
    Quit,
}

/// An effort that a chat chooses; `None` is that of the session, or its vendor's choice.
#[derive(Clone, Copy)]
pub(crate) struct ChosenEffort(pub(crate) Option<Effort>);

/// Reads the level of `/effort`.
fn level() -> impl TypedValueParser<Value = ChosenEffort> {
    PossibleValuesParser::new(["none", "low", "medium", "high", "default"])
        .map(|name| ChosenEffort(serde_json::from_value(json!(name)).ok()))
}

/// `/new`, and `sessions create`.
#[derive(Args)]
pub(crate) struct NewArgs {
    #[command(flatten)]
    pub(crate) create: SessionFlags,
    #[command(flatten)]
    pub(crate) turn: TurnFlags,
}

/// Returns the definition, with names as they are typed.
pub(crate) fn definition() -> clap::Command {
    let named = |command: clap::Command| {
        let name = format!("/{}", command.get_name());
        command.bin_name(name)
    };
    SlashCommand::command().mut_subcommands(named)
}

/// Parses the words of a line, without its `/`.
pub(crate) fn parse(words: Vec<String>) -> Result<SlashCommand, clap::Error> {
    SlashCommand::from_arg_matches(&definition().try_get_matches_from(words)?)
}

/// Splits a line, without its `/`, into words. A text that needs no quotes is the unchanged rest of the line.
pub(crate) fn words(line: &str) -> Result<Vec<String>, &'static str> {
    // Words before the text.
    let before = match line.split_whitespace().next() {
        Some("title" | "steer") => 1,
        Some("deny" | "approve") => 2,
        _ => return split(line),
    };
    let has_flag = line.split_whitespace().any(|word| word.starts_with("--"));
    let (mut words, mut rest) = (Vec::new(), line.trim());
    while words.len() < before && !rest.is_empty() {
        let (word, tail) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        words.push(word.to_owned());
        rest = tail.trim_start();
    }
    if has_flag || rest.is_empty() || words.iter().any(|word| word.contains(['\'', '"', '\\'])) {
        return split(line);
    }
    match split(rest) {
        // A text in quotes is their content.
        Ok(text) if text.len() == 1 && rest.starts_with(['\'', '"']) => words.extend(text),
        Err(why) if rest.starts_with(['\'', '"']) => return Err(why),
        _ => words.push(rest.to_owned()),
    }
    Ok(words)
}

/// Splits a line into words: single quotes keep their content, double quotes know `\n \t \\ \"`, a backslash
/// outside of quotes keeps the next character.
pub(crate) fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word, mut chars) = (Vec::new(), None::<String>, line.chars());
    while let Some(char) = chars.next() {
        if char.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match char {
            '\'' => loop {
                match chars.next().ok_or("a single quote is not closed")? {
                    '\'' => break,
                    char => word.push(char),
                }
            },
            '"' => loop {
                match chars.next().ok_or("a double quote is not closed")? {
                    '"' => break,
                    '\\' => word.push(match chars.next() {
                        Some('n') => '\n',
                        Some('t') => '\t',
                        Some(char @ ('\\' | '"')) => char,
                        _ => return Err(r#"in double quotes only \n \t \\ and \" are escapes"#),
                    }),
                    char => word.push(char),
                }
            },
            '\\' => word.push(chars.next().ok_or("the line ends with a backslash")?),
            char => word.push(char),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_rest_of_the_line() {
        let words = |line| words(line).map(|words| words.join("|"));
        for (line, expected) in [
            ("title Never on Fridays", "title|Never on Fridays"),
            ("title  don't  say \"no\" ", "title|don't  say \"no\""),
            (r"title C:\new", r"title|C:\new"),
            ("title 'the key is blue'", "title|the key is blue"),
            (r#"title "a\nb""#, "title|a\nb"),
            (r#"title "Never" on Fridays"#, r#"title|"Never" on Fridays"#),
            ("steer don't touch it", "steer|don't touch it"),
            ("title --flag x 'a b'", "title|--flag|x|a b"),
            ("deny call_1 not today", "deny|call_1|not today"),
            ("call session/pin text='a b'", "call|session/pin|text=a b"),
            ("title", "title"),
            ("'title' 'a b'", "title|a b"),
            ("show a b", "show|a|b"),
        ] {
            assert_eq!(words(line), Ok(expected.to_owned()), "{line}");
        }
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let split = |line| split(line).map(|words| words.join("|"));
        assert_eq!(split("pin  a\tb "), Ok("pin|a|b".to_owned()));
        assert_eq!(split(r#"pin 'it is "so"\n' x"#), Ok(r#"pin|it is "so"\n|x"#.to_owned()));
        assert_eq!(split(r#"pin "a\n\t\\\"b" "" c"d"e"#), Ok("pin|a\n\t\\\"b||cde".to_owned()));
        assert_eq!(split(r"pin a\ b \'"), Ok("pin|a b|'".to_owned()));
        for bad in ["'", "\"a", r#""\x""#, r"a\"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }
}
