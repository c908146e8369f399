//! Marks of texts that were shown changed: a secret replaced, a middle left out. None of them belongs in a file.

use meerkat_service::{redact, tool::ToolError};

/// Beginning and end of the mark of a text whose middle is left out: `[... 120 bytes left out ...]`.
const CLIPPED: [&str; 2] = ["[... ", " bytes left out"];

/// Refuses an argument that holds a mark.
pub(super) fn refuse(argument: &str, text: &str) -> Result<(), ToolError> {
    if text.contains(redact::MARK) {
        let message = format!(
            "`{argument}` holds {}, which replaces a secret that is not shown; the file holds the secret itself. \
             Leave that line alone: change only the lines around it.",
            redact::MARK
        );
        return Err(ToolError::Refused(message));
    }
    if is_clipped(text) {
        let message = format!(
            "`{argument}` holds a mark of a text that was not shown whole ({}N{} ...]). Read the missing part and \
             write it out, or change a smaller part.",
            CLIPPED[0], CLIPPED[1]
        );
        return Err(ToolError::Refused(message));
    }
    Ok(())
}

/// Mark of bytes of a line that are left out.
pub(super) fn clipped(bytes: u64) -> String {
    format!("{}{bytes}{} ...]", CLIPPED[0], CLIPPED[1])
}

/// Finds `[... N bytes left out` and `[... N of M bytes left out`.
fn is_clipped(text: &str) -> bool {
    text.match_indices(CLIPPED[0]).any(|(at, begin)| {
        let rest = &text[at + begin.len()..];
        let number = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let first = number(rest);
        let rest = &rest[first..];
        let rest = rest.strip_prefix(" of ").map_or(rest, |rest| &rest[number(rest)..]);
        first > 0 && rest.starts_with(CLIPPED[1])
    })
}

#[cfg(test)]
mod tests {
    use meerkat_service::session::message::{BlobRef, Body};

    use super::*;

    #[test]
    fn marks_of_this_program_are_refused_and_texts_that_only_look_alike_are_not() {
        let blob = BlobRef { blob: "ab".repeat(32), bytes: 900, head: "a".to_owned(), tail: "b".to_owned() };
        let excerpt = Body::Blob(blob).excerpt().into_owned();
        let marked = ["key = [redacted]\n", &excerpt, "x [... 5 of 10 bytes left out ...]", &clipped(7)];
        for text in marked {
            let refusal = refuse("new", text);
            assert!(matches!(&refusal, Err(ToolError::Refused(why)) if why.contains("`new`")), "{text}: {refusal:?}");
        }
        let plain =
            ["redacted", "[...]", "[... {} bytes left out ...]", "[... x bytes left out", "[... 5 bytes", "[... "];
        for text in plain {
            assert!(refuse("new", text).is_ok(), "{text}");
        }
    }
}
