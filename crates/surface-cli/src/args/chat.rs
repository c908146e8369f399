//! The `/` lines of `chat`: the commands' own definitions, with the chat's session as the default.

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser};

use super::{
    CallArgs, CompactArgs, Delivery, ErrorsArgs, EventsArgs, MemoryCommand, ResumeArgs, SessionCommand, SessionFlags,
    Target, ToolsArgs, TurnFlags,
};

/// Text of `chat --help` after the flags.
pub(super) const PROTOCOL: &str = "\
A line is a prompt. A line that begins with `/` is a command for the chat's session; --session names another session. \
/help lists the commands. Words are split as in a shell: 'single quotes' keep their content, \"double quotes\" \
understand \\n \\t \\\\ and \\\", a backslash outside of quotes keeps the next character. The text of /turn, /pin, \
/title, /approve and /deny is the unchanged rest of the line, unless it begins with a quote or the line has a \
flag. Ctrl-C clears a half-typed line; otherwise it interrupts the running turn or /compact, and a second Ctrl-C \
leaves. When the input ends, the chat leaves after its last line is done.

Lines are handled in order. While a turn or a /compact runs, other lines are answered, but the next turn waits, unless \
it has a --policy. A second /compact waits for the first.

With --json the first line of output is {\"session_id\", \"seq\", \"created_at\"} for a new session, {\"session_id\"} \
for an existing one, or an error's body: then the chat ends with its exit code. After that each line of input, even an \
empty one, gets one line of output: the answer, or an error's body. Only an error's body has a `code`. A turn is \
answered when it has ended, with /turn --detach when it is accepted. Answers come when they are ready; to match them, \
write `/id <name> <line>`, whose answer is {\"id\": <name>, \"answer\": <document>}. `/events SINCE --until TYPE` is \
answered with the first event of that type, /help with {\"help\"}, /quit with {\"quit\": true}.";

/// Line of `chat` that begins with `/`.
#[derive(Parser)]
#[command(
    no_binary_name = true,
    override_usage = "/<COMMAND>   /help <COMMAND> says more; any other line is a prompt",
    help_template = "{usage-heading} {usage}\n\n{subcommands}"
)]
pub(crate) enum SlashCommand {
    /// Continue with a new session
    New(NewArgs),
    /// Run a turn; the text is the rest of the line
    Turn(TurnArgs),
    /// Continue the interrupted turn, or run a new turn if you give a prompt
    Resume(ResumeArgs),
    /// List events
    Events(EventsArgs),
    /// Compact the live context
    Compact(CompactArgs),
    #[command(flatten)]
    Session(SessionCommand),
    /// Search what was said in all sessions, or forget some of it
    #[command(subcommand)]
    Memory(MemoryCommand),
    /// Call any operation: /call OPERATION NAME=TEXT NAME:=JSON; alone it lists them
    #[command(disable_help_flag = true)]
    Call(CallArgs),
    /// Continue with another session: its id, `last`, or words of its title
    Open {
        /// Its id, `last`, or words of its title
        #[arg(value_name = "WORD")]
        words: Vec<String>,
    },
    /// List what this build can do
    Capabilities,
    /// List the tools that the model is offered, and those that are left out
    Tools(ToolsArgs),
    /// List the servers of the Model Context Protocol, with their tools
    Servers,
    /// Check the data directory; repair nothing
    Doctor,
    /// List the error codes
    Errors(ErrorsArgs),
    /// Put the files back that the last turn changed
    Undo {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Copy the last answer to the terminal's clipboard
    Copy,
    /// Use another model from the next turn on, or show the current one
    Model {
        /// The model's name
        name: Option<String>,
    },
    /// Leave when the lines before this one are done
    #[command(visible_alias = "exit")]
    Quit,
}

/// `/new`.
#[derive(Args)]
pub(crate) struct NewArgs {
    #[command(flatten)]
    pub(crate) create: SessionFlags,
    #[command(flatten)]
    pub(crate) turn: TurnFlags,
}

/// `/turn`, and a plain line.
#[derive(Args)]
pub(crate) struct TurnArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) turn: TurnFlags,
    #[command(flatten)]
    pub(crate) delivery: Delivery,
    /// The prompt
    #[arg(value_name = "TEXT")]
    pub(crate) text: Vec<String>,
}

impl TurnArgs {
    /// Makes the turn of a plain line.
    pub(crate) fn plain(text: String) -> Self {
        let (turn, delivery) = (TurnFlags::default(), Delivery::default());
        Self { target: Target { session: None }, turn, delivery, text: vec![text] }
    }
}

/// Returns the definition: the session is a flag here, because the chat has one.
pub(crate) fn definition() -> clap::Command {
    SlashCommand::command().mut_subcommands(|command| line("/", command))
}

fn line(before: &str, command: clap::Command) -> clap::Command {
    let flag = |arg: clap::Arg| match arg.get_id() == "session" && arg.is_positional() {
        true => arg.long("session").required(false),
        false => arg,
    };
    let name = format!("{before}{}", command.get_name());
    let within = format!("{name} ");
    let command = if name == "/list" { command.visible_alias("sessions") } else { command };
    command.mut_args(flag).mut_subcommands(|command| line(&within, command)).bin_name(name)
}

/// Parses the words of a line, without its `/`.
pub(crate) fn parse(words: Vec<String>) -> Result<SlashCommand, clap::Error> {
    SlashCommand::from_arg_matches(&definition().try_get_matches_from(words)?)
}

/// Splits a line, without its `/`, into words. A text that needs no quotes is the unchanged rest of the line.
pub(crate) fn words(line: &str) -> Result<Vec<String>, &'static str> {
    // Words before the text.
    let before = match line.split_whitespace().next() {
        Some("turn" | "pin" | "title") => 1,
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
            ("pin Never on Fridays", "pin|Never on Fridays"),
            ("pin  don't  say \"no\" ", "pin|don't  say \"no\""),
            (r"pin C:\new", r"pin|C:\new"),
            ("pin 'the key is blue'", "pin|the key is blue"),
            (r#"pin "a\nb""#, "pin|a\nb"),
            (r#"pin "Never" on Fridays"#, r#"pin|"Never" on Fridays"#),
            ("pin --session x 'a b'", "pin|--session|x|a b"),
            ("call session/pin text='a b'", "call|session/pin|text=a b"),
            ("deny call_1 not today", "deny|call_1|not today"),
            ("turn say it's so", "turn|say it's so"),
            ("title Don't 'stop' now", "title|Don't 'stop' now"),
            ("pin", "pin"),
            ("'pin' 'a b'", "pin|a b"),
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
