//! Questions at the terminal about the calls of a turn. Only an answer decides; anything else repeats the question.

use std::collections::VecDeque;

use meerkat_service::service::{Decision, Scope};

use crate::{
    app::App,
    input::{Line, Lines},
    stream::{Call, decide},
};

/// Reason that a model gets for a call about which nobody answered.
const NO_ANSWER: &str = "Nobody answered: the input ended.";

/// Calls to ask about, one after the other.
#[derive(Default)]
pub(crate) struct Questions {
    calls: VecDeque<Call>,
    /// True if the turn ended while a question was open, so the next line answers nothing.
    is_late: bool,
}

/// Answer to a question.
#[derive(Debug, PartialEq)]
enum Verdict<'a> {
    Allow(Scope),
    Deny(Option<&'a str>),
}

/// Reads an answer to a question about a call; `None` if it is none.
fn verdict<'a>(line: &'a str, call_id: &str) -> Option<Verdict<'a>> {
    let line = line.trim();
    let (word, rest) = line.split_once([' ', ',', ':']).unwrap_or((line, ""));
    let rest = rest.trim();
    // As a command it may name the call.
    let rest = rest.strip_prefix(call_id).map_or(rest, str::trim);
    match (word.to_ascii_lowercase().as_str(), rest) {
        ("y" | "yes" | "/approve", "") => Some(Verdict::Allow(Scope::Once)),
        ("s" | "session", "") => Some(Verdict::Allow(Scope::Session)),
        ("a" | "always", "") => Some(Verdict::Allow(Scope::Always)),
        ("n" | "no" | "/deny", reason) => Some(Verdict::Deny((!reason.is_empty()).then_some(reason))),
        _ => None,
    }
}

impl Questions {
    /// Returns true if the next line is an answer.
    pub(crate) fn are_open(&self) -> bool {
        self.is_late || !self.calls.is_empty()
    }

    /// Returns true if a line is a command that does not answer the question.
    pub(crate) fn is_beside(&self, line: &Line) -> bool {
        let call_id = self.calls.front().map_or("", |call| &call.call_id);
        matches!(line, Line::Text(line) if line.starts_with('/') && verdict(line, call_id).is_none())
    }

    /// Drops the questions of a turn that has ended.
    pub(crate) fn close(&mut self) {
        self.is_late = self.are_open();
        self.calls.clear();
    }

    /// Asks about a call, once those before it are decided.
    pub(crate) fn push(&mut self, app: &App, call: Call, lines: &mut Lines) {
        self.calls.push_back(call);
        if self.calls.len() == 1 {
            self.ask(app, lines);
        }
    }

    /// Asks about the first call.
    pub(crate) fn ask(&self, app: &App, lines: &mut Lines) {
        if let Some(Call { name, arguments, preview, rule, .. }) = self.calls.front() {
            let shown = match preview {
                Some(preview) => {
                    app.out.preview(preview);
                    name.clone()
                }
                None => format!("{name} {arguments}"),
            };
            let wider = match rule {
                Some(rule) => format!("session or always for `{rule}`, "),
                None => String::new(),
            };
            app.out.notice(&format!("Allow {shown}? y, n, {wider}or n and why: "));
            lines.ask_answer();
        }
    }

    /// Takes a line as the answer to the first question.
    pub(crate) fn answer(&mut self, app: &App, line: &Line, lines: &mut Lines) {
        if std::mem::take(&mut self.is_late) {
            return app.out.note("The turn had ended before the answer came.");
        }
        let Some(call) = self.calls.front() else { return };
        let verdict = match line {
            Line::Text(line) => verdict(line, &call.call_id),
            Line::End => Some(Verdict::Deny(Some(NO_ANSWER))),
            Line::Refused(_) | Line::Interrupt => None,
        };
        match (verdict, call.rule.as_deref()) {
            (Some(Verdict::Deny(reason)), _) => decide(app, call, Decision::Deny, Scope::Once, reason),
            (Some(Verdict::Allow(Scope::Once)), _) => decide(app, call, Decision::Approve, Scope::Once, None),
            (Some(Verdict::Allow(scope @ (Scope::Session | Scope::Always))), Some(rule)) => {
                let kept = if scope == Scope::Always { app.remember_rule(rule) } else { Ok(()) };
                if let Err(error) = kept {
                    app.out.error(&error.body());
                    return self.ask(app, lines);
                }
                self.allow(app, rule.to_owned());
                return self.ask(app, lines);
            }
            (None | Some(Verdict::Allow(Scope::Session | Scope::Always)), rule) => {
                let wider = match rule {
                    Some(rule) => format!("; session runs `{rule}` in this session, always everywhere"),
                    None => ", each time: no rule is proposed for it".to_owned(),
                };
                app.out.note(&format!("y runs {}, n does not{wider}.", call.name));
                return self.ask(app, lines);
            }
        }
        self.calls.pop_front();
        self.ask(app, lines);
    }

    /// Allows a rule for the session, and with it every call that proposed it.
    fn allow(&mut self, app: &App, rule: String) {
        let (allowed, others): (VecDeque<Call>, _) =
            self.calls.drain(..).partition(|call| call.rule.as_ref() == Some(&rule));
        self.calls = others;
        for call in &allowed {
            decide(app, call, Decision::Approve, Scope::Session, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_decides() {
        for (line, expected) in [
            ("y", Some(Verdict::Allow(Scope::Once))),
            (" YES ", Some(Verdict::Allow(Scope::Once))),
            ("/approve", Some(Verdict::Allow(Scope::Once))),
            ("/approve call_3_0", Some(Verdict::Allow(Scope::Once))),
            ("a", Some(Verdict::Allow(Scope::Always))),
            ("s", Some(Verdict::Allow(Scope::Session))),
            ("session", Some(Verdict::Allow(Scope::Session))),
            ("Always", Some(Verdict::Allow(Scope::Always))),
            ("n", Some(Verdict::Deny(None))),
            ("No, use the other file", Some(Verdict::Deny(Some("use the other file")))),
            ("/deny call_3_0 not today", Some(Verdict::Deny(Some("not today")))),
            ("", None),
            ("yes?", None),
            ("what does it do?", None),
            ("not now", None),
            ("yes but slowly", None),
            ("/approve call_9_9", None),
            ("/show", None),
        ] {
            assert_eq!(verdict(line, "call_3_0"), expected, "{line:?}");
        }
    }
}
