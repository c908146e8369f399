//! Errors of commands and their exit codes. Only here clap's own errors become bodies.

use std::io;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{SessionError, redact::redact_key_shapes};

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

/// Makes the body of clap's error: its own words, without the usage.
pub(crate) fn usage(error: &clap::Error) -> ErrorBody {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => "arguments".to_owned(),
    };
    if is_bare(error) {
        return SessionError::invalid("command", "say what to do; --help lists the commands").body();
    }
    let text = error.to_string();
    let what = text.strip_prefix("error: ").unwrap_or(&text).split("\n\nUsage:").next().unwrap_or(&text);
    let lines =
        what.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let what = lines.collect::<Vec<_>>().join(" ").replace(" tip: ", "; ");
    let what = redact_key_shapes(&what);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let name = context(ContextKind::InvalidSubcommand);
            let message = format!("{what}; --help lists the commands.");
            ErrorBody::with_message(ErrorCode::UnknownOperation, message).detail("operation", redact_key_shapes(&name))
        }
        _ => SessionError::invalid(redact_key_shapes(&context(ContextKind::InvalidArg)), what).body(),
    }
}

/// Makes a `CONFIG_INVALID` with the key and its origin.
pub(crate) fn refused(key: &str, what: &str, origin: &str) -> ErrorBody {
    let message = format!("{key} ({origin}): {what}.");
    ErrorBody::with_message(ErrorCode::ConfigInvalid, redact_key_shapes(&message))
        .detail("key", key)
        .detail("origin", origin)
}
