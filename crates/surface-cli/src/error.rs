//! Errors of commands and their exit codes. Only here clap's own errors become bodies.

use std::io;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{SessionError, redact::redact_key_shapes};

use crate::args::{our_command, our_flag};

/// Failure of a command.
pub(crate) enum CliError {
    /// The command was refused or failed.
    Refused(Box<ErrorBody>),
    /// Nobody reads standard output any more, which ends a command without an error.
    OutputClosed,
}

impl From<ErrorBody> for CliError {
    fn from(body: ErrorBody) -> Self {
        Self::Refused(Box::new(body))
    }
}

impl From<SessionError> for CliError {
    fn from(error: SessionError) -> Self {
        error.body().into()
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        ErrorBody::with_message(ErrorCode::Internal, format!("The output could not be written: {error}.")).into()
    }
}

/// Returns the exit code of a body.
pub(crate) fn exit_code(body: &ErrorBody) -> u8 {
    body.code.exit_code()
}

/// Returns the exit code of a command that its user leaves by Ctrl-C.
pub(crate) fn exit_code_of_leaving() -> u8 {
    ErrorCode::TurnInterrupted.exit_code()
}

/// Returns the call that a busy session waits for a decision about.
pub(crate) fn waiting_call(body: &ErrorBody) -> Option<&str> {
    let call_id = body.details.get("call_id").filter(|_| body.code == ErrorCode::SessionBusy);
    call_id.and_then(serde_json::Value::as_str)
}

/// Returns true if there was no command at all, which is answered with the help.
pub(crate) fn is_bare(error: &clap::Error) -> bool {
    error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
}

/// Returns clap's help or version text, if that is what was asked for.
pub(crate) fn help(error: &clap::Error) -> Option<String> {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion).then(|| error.to_string())
}

/// Joins clap's lines: a list follows its colon, and clap's hint at the help is replaced by our own.
fn joined(lines: &str) -> String {
    let lines = lines.split('\n').map(str::trim);
    let mut what = String::new();
    let mut is_list = false;
    // What looks like a flag is most likely meant as one.
    let is_noise = |line: &&str| ["For more information", "tip: to pass"].iter().any(|noise| line.starts_with(noise));
    for line in lines.filter(|line| !line.is_empty() && !is_noise(line)) {
        // An item of a list begins as an argument does; nothing else follows a line that ends with a colon.
        let is_item = is_list && line.starts_with(['<', '-', '[']);
        what.push_str(match what.chars().next_back() {
            None => "",
            Some(':') => " ",
            Some(_) if is_item => ", ",
            Some(_) => "; ",
        });
        is_list = is_item || line.ends_with(':');
        what.push_str(line);
    }
    what
}

/// Makes the body of clap's error about arguments.
pub(crate) fn usage(error: &clap::Error) -> ErrorBody {
    refusal(error, "")
}

/// Makes the body of clap's error about a `/` line of `chat`.
pub(crate) fn usage_of_line(error: &clap::Error) -> ErrorBody {
    refusal(error, "/")
}

/// Returns the commands that an error is about: `sessions` of `meerkat sessions`, none of the program's own. `None` if it
/// does not say.
fn path_of(error: &clap::Error, before: &str) -> Option<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return None };
    let usage = usage.to_string();
    // `Usage: meerkat run [OPTIONS]`; a line of `chat` begins with its command.
    let words = usage.split_whitespace().skip(if before.is_empty() { 2 } else { 1 });
    let path: Vec<&str> = words.take_while(|word| !word.starts_with(['[', '<', '-'])).collect();
    Some(path.join(" "))
}

/// Returns true if an error is about the program's own flags, or those of a command that runs turns or begins sessions.
fn is_about_turns(path: &str) -> bool {
    let name = path.split(' ').next().unwrap_or_default().trim_start_matches('/');
    ["", "run", "chat", "resume", "turn", "new"].contains(&name)
}

fn refusal(error: &clap::Error, before: &str) -> ErrorBody {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => "arguments".to_owned(),
    };
    let (field, kind) = match error.kind() {
        ErrorKind::InvalidSubcommand => ("command", ContextKind::InvalidSubcommand),
        _ => ("flag", ContextKind::InvalidArg),
    };
    let word = context(kind);
    let word = if field == "command" { format!("{before}{word}") } else { word };
    let path = path_of(error, before);
    let ours = match (error.kind(), &path) {
        // A line of `chat` begins with its command.
        (ErrorKind::InvalidSubcommand, _) if !before.is_empty() => our_command("", &word),
        (ErrorKind::InvalidSubcommand, path) => our_command(path.as_deref().unwrap_or_default(), &word),
        (ErrorKind::UnknownArgument, Some(path)) if is_about_turns(path) => our_flag(&word).map(str::to_owned),
        (ErrorKind::UnknownArgument, Some(path)) if !path.is_empty() => our_command(path, &word),
        _ => None,
    };
    if let Some(ours) = ours {
        let word = redact_key_shapes(&word);
        return SessionError::invalid(field, format!("there is no {word:?} here; did you mean `{ours}`?")).body();
    }
    let text = error.to_string();
    // The usage comes after the error and its tips.
    let what = text.strip_prefix("error: ").unwrap_or(&text).split("\n\nUsage:").next().unwrap_or(&text);
    let what = match error.kind() {
        ErrorKind::MissingRequiredArgument if context(ContextKind::InvalidArg) == "<SESSION>" => {
            "not given, and required; `last` is the session that changed last".to_owned()
        }
        ErrorKind::MissingRequiredArgument => "not given, and required".to_owned(),
        // A word that is no flag: most likely the rest of a prompt.
        ErrorKind::UnknownArgument if !context(ContextKind::InvalidArg).starts_with('-') => {
            "nothing more is expected here; put a text of several words in quotes".to_owned()
        }
        _ => joined(what),
    };
    let what = redact_key_shapes(&what);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let name = context(ContextKind::InvalidSubcommand);
            let name = redact_key_shapes(&name);
            let like = match error.get(ContextKind::SuggestedSubcommand) {
                Some(ContextValue::Strings(names)) if !names.is_empty() => {
                    format!("did you mean {}? ", names.join(" or "))
                }
                _ => String::new(),
            };
            let message =
                format!("There is no command {:?} here; {like}--help lists the commands.", redact_key_shapes(&word));
            ErrorBody::with_message(ErrorCode::UnknownOperation, message).detail("operation", name)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            SessionError::invalid("command", "say what to do; --help lists the commands").body()
        }
        _ => {
            let field = context(ContextKind::InvalidArg);
            SessionError::invalid(redact_key_shapes(&field), format!("{what}; --help says what is allowed")).body()
        }
    }
}

/// Makes a `CONFIG_INVALID` with the key and its origin.
pub(crate) fn refused(key: &str, what: &str, origin: &str) -> ErrorBody {
    let message = format!("{key} ({origin}): {what}.");
    ErrorBody::with_message(ErrorCode::ConfigInvalid, redact_key_shapes(&message))
        .detail("key", key)
        .detail("origin", origin)
}
