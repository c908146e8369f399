//! Questions at the terminal about the calls of a turn. Only an answer decides; anything else repeats the question.

use std::collections::VecDeque;

use meerkat_service::{
    SessionError, SessionId,
    service::{DecideApproval, Decision, Scope},
    tool::visible,
};

use super::{
    forms::{Filling, Taken},
    shown::{Part, Shown, Size},
};
use crate::{
    app::App,
    input::{Line, Lines},
    stream::{Call, RunningTurn, answer, decide},
};

/// Reason that a model gets for a call about which nobody answered.
const NO_ANSWER: &str = "Nobody answered: the input ended.";

/// Calls to ask about, one after the other.
#[derive(Default)]
pub(crate) struct Questions {
    calls: VecDeque<Call>,
    /// True if a question ended while a line was read for it: that line answers nothing.
    is_late: bool,
    /// Form of the first question, if it is a server's.
    form: Option<Filling>,
    /// Text about the first question's call, if its own line has not all of it.
    shown: Option<Shown>,
}

/// Answer to a question.
#[derive(Debug, PartialEq)]
enum Verdict<'a> {
    Allow(Scope),
    Deny(Option<&'a str>),
    /// Not decided: the person wants to see more.
    View,
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
        ("v" | "view", "") => Some(Verdict::View),
        ("n" | "no" | "/deny", reason) => Some(Verdict::Deny((!reason.is_empty()).then_some(reason))),
        _ => None,
    }
}

impl Questions {
    /// Returns true if the line that was read is an answer, although perhaps a late one.
    pub(crate) fn are_open(&self) -> bool {
        self.is_late || !self.calls.is_empty()
    }

    /// Returns true if a line is a command that does not answer the question.
    pub(crate) fn is_beside(&self, line: &Line) -> bool {
        // A path is an answer to a server.
        if self.form.is_some() {
            return false;
        }
        let call_id = self.calls.front().map_or("", |call| &call.call_id);
        matches!(line, Line::Text(line) if line.starts_with('/') && verdict(line, call_id).is_none())
    }

    /// Drops all questions: their turns were interrupted, which answers them.
    pub(crate) fn drop_all(&mut self) {
        *self = Self::default();
    }

    /// Drops the questions of a turn that has ended.
    pub(crate) fn close(&mut self, app: &App, turn: &RunningTurn, lines: &mut Lines) {
        self.end(app, lines, |call| turn.has(call), None);
    }

    /// Takes note that a line was dealt with, whatever it was: the next one is not late.
    pub(crate) const fn has_read(&mut self) {
        self.is_late = false;
    }

    /// Drops the question about a call that is decided or over, and those that its server asks.
    pub(crate) fn settle(&mut self, app: &App, (session_id, call_id): (SessionId, &str), lines: &mut Lines) {
        let names =
            |call: &Call| call.call_id == call_id || call.form.as_ref().is_some_and(|form| form.call_id == call_id);
        let is_of = |call: &Call| call.session_id == session_id && names(call);
        self.end(app, lines, is_of, Some("The question was answered elsewhere, or is not asked any more."));
    }

    fn end(&mut self, app: &App, lines: &mut Lines, is_over: impl Fn(&Call) -> bool, note: Option<&str>) {
        let is_asked = self.calls.front().is_some_and(&is_over);
        self.calls.retain(|call| !is_over(call));
        if is_asked {
            // What is typed now may have been begun for this question, so it decides about no other.
            self.is_late = lines.is_asked();
            note.iter().for_each(|note| app.out.note(note));
            self.begin(app, lines);
        }
    }

    /// Asks about a call, once those before it are decided.
    pub(crate) fn push(&mut self, app: &App, call: Call, lines: &mut Lines) {
        self.calls.push_back(call);
        if self.calls.len() == 1 {
            self.begin(app, lines);
        }
    }

    /// Begins the first question.
    fn begin(&mut self, app: &App, lines: &mut Lines) {
        let form = self.calls.front().and_then(|call| Some((call.form.as_ref()?, &call.name)));
        self.form = form.map(|(form, name)| {
            let server = &form.server;
            app.out.note(&format!(
                "The server {server} asks this during {name}, and gets your answer. Give it no secrets; type /deny to decline."
            ));
            // It must not look like a text of ours.
            let quoted: Vec<String> = form.message.lines().map(|line| format!("[{server}] {line}")).collect();
            app.out.preview(&quoted.join("\n"));
            Filling::new(form)
        });
        self.shown = self.calls.front().and_then(|call| Shown::of(call, Size::of(&app.out)));
        self.ask(app, lines);
    }

    /// Asks about the first call.
    pub(crate) fn ask(&mut self, app: &App, lines: &mut Lines) {
        let part = self.shown.as_mut().map(|shown| shown.overview(Size::of(&app.out)));
        self.put(app, lines, part);
    }

    /// Shows a part of the first call's text, and asks.
    fn put(&self, app: &App, lines: &mut Lines, part: Option<Part>) {
        let question = match (&self.form, self.calls.front()) {
            (Some(form), _) => visible(&form.prompt()),
            (None, None) => return,
            (None, Some(Call { name, arguments, rule, of, .. })) => {
                let wider = match rule {
                    Some(rule) => format!("session or always = every `{rule}`, "),
                    None => String::new(),
                };
                let (about, arguments) = match part {
                    Some(Part { text, about }) => {
                        app.out.preview(&text);
                        (about, String::new())
                    }
                    None => (String::new(), format!(" {arguments}")),
                };
                let asks = of.as_ref().map_or_else(String::new, |of| format!("The sub-agent {of} asks. "));
                visible(&format!("{asks}Allow {name}{arguments}? {about}y = once, {wider}n = no (you may add why):"))
            }
        };
        app.out.notice(question.trim_end());
        app.out.notice(lines.begin_answer());
        lines.ask_answer();
    }

    /// Takes a line as the answer to the first question.
    pub(crate) async fn answer(&mut self, app: &App, line: &Line, lines: &mut Lines) {
        if std::mem::take(&mut self.is_late) {
            app.out.note("That question is closed; what you typed was not sent.");
            return self.ask(app, lines);
        }
        let Some(call) = self.calls.front() else { return };
        if let Some(form) = &mut self.form {
            let taken = match line {
                Line::Text(line) => form.take(line),
                Line::End => Taken::Declined(Some(NO_ANSWER.to_owned())),
                Line::Refused(_) | Line::Interrupt => Taken::Open(None),
            };
            match taken {
                Taken::Open(why) => {
                    why.iter().for_each(|why| app.out.note(why));
                    return self.ask(app, lines);
                }
                Taken::Whole(given) => answer(app, call, &given),
                Taken::Declined(reason) => decide(app, call, Decision::Deny, Scope::Once, reason.as_deref()),
            }
            self.calls.pop_front();
            return self.begin(app, lines);
        }
        let verdict = match line {
            Line::Text(line) => verdict(line, &call.call_id),
            Line::End => Some(Verdict::Deny(Some(NO_ANSWER))),
            Line::Refused(_) | Line::Interrupt => None,
        };
        match (verdict, call.rule.as_deref()) {
            (Some(Verdict::View), _) => {
                let size = Size::of(&app.out);
                let part = self.shown.as_mut().map(|shown| shown.page(size));
                return self.put(app, lines, part);
            }
            (Some(Verdict::Deny(reason)), _) => decide(app, call, Decision::Deny, Scope::Once, reason),
            (Some(Verdict::Allow(Scope::Once)), _) => decide(app, call, Decision::Approve, Scope::Once, None),
            (Some(Verdict::Allow(scope @ (Scope::Session | Scope::Always))), Some(rule)) => {
                if scope == Scope::Always
                    && let Err(error) = always(app, call, rule).await
                {
                    app.out.error(&error.body());
                }
                self.allow(app, rule.to_owned());
                return self.begin(app, lines);
            }
            (None | Some(Verdict::Allow(Scope::Session | Scope::Always)), rule) => {
                let wider = match rule {
                    Some(rule) => format!("; session allows `{rule}` in this session, always in all sessions"),
                    None => ", and no rule can allow it for later".to_owned(),
                };
                app.out.note(&format!("Type y to run {}, or n to refuse it{wider}.", call.name));
                return self.ask(app, lines);
            }
        }
        self.calls.pop_front();
        self.begin(app, lines);
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

/// Approves a call for its session, and then keeps its rule for all sessions: if the second fails, less is allowed than
/// was meant, never more.
async fn always(app: &App, call: &Call, rule: &str) -> Result<(), SessionError> {
    let decided = DecideApproval::new(call.session_id, call.call_id.clone(), Decision::Approve);
    app.service.decide_approval(DecideApproval { scope: Scope::Session, ..decided }).await?;
    app.remember_rule(rule)
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
            ("v", Some(Verdict::View)),
            ("v 2", None),
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
