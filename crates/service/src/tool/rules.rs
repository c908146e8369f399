//! Rules of approval: which calls run, wait for a decision, or are denied. Pure.
//!
//! A rule is a tool's name, a pattern of names (`mcp__github__*`), a server (`github: *`), or a name with a pattern of
//! the call's subject (`shell: cargo test *`). A pattern holds for the words of a subject: `*` alone as the last word
//! is the rest, also if there is none; elsewhere `*` is any part of one word. A rule may have several patterns, separated
//! by `;`: it holds where one of them holds. A rule `shell` holds for every command; `shell: *` only for those whose words
//! are known. A call with several subjects, such as `cd src && make`, is allowed if each of them is.
//!
//! Patterns guard against accidents. They are no wall: `sh -c` runs what its argument says.

use std::collections::BTreeMap;

use meerkat_words::tool::is_name_char;

use super::{Approval, Plan};
pub use commands::shell_commands;

mod commands;

/// Bytes of a rule.
const RULE_BYTES_MAX: usize = 1024;
/// Word between two patterns of a rule.
const BETWEEN_PATTERNS: &str = ";";

/// Rule for calls of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    name: String,
    /// Patterns for the call's subject, each as its words; without any the rule holds for every call.
    patterns: Vec<Vec<String>>,
}

/// Relation of a rule to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Holds,
    /// The call has no subject, so the pattern may hold or not.
    Unclear,
    HoldsNot,
}

impl Rule {
    /// Reads a rule.
    ///
    /// # Errors
    /// Says why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > RULE_BYTES_MAX {
            return Err(format!("a rule has at most {RULE_BYTES_MAX} bytes; this one has {}", text.len()));
        }
        let (name, pattern) = text.split_once(':').map_or((text, None), |(name, pattern)| (name, Some(pattern)));
        let name = name.trim();
        let is_allowed = |character: char| is_name_char(character) || (character == '*' && pattern.is_none());
        if name.is_empty() || !name.chars().all(is_allowed) {
            return Err(format!(
                "{text:?} is not a rule; write a tool's name, names with '*', \"server: *\" or \"name: pattern\""
            ));
        }
        let words: Vec<String> = pattern.into_iter().flat_map(str::split_whitespace).map(str::to_owned).collect();
        let patterns: Vec<Vec<String>> = match pattern {
            Some(_) => words.split(|word| word == BETWEEN_PATTERNS).map(<[String]>::to_vec).collect(),
            None => Vec::new(),
        };
        if patterns.iter().any(Vec::is_empty) {
            return Err(format!(
                "{text:?} lacks a pattern after its ':' or at a ';'; write {name:?} for every call of the tool"
            ));
        }
        Ok(Self { name: name.to_owned(), patterns })
    }

    /// Returns true if the rule allows a planned call by itself.
    #[must_use]
    pub fn allows(&self, tool: &str, plan: &Plan) -> bool {
        subjects(plan).all(|subject| self.relation(tool, subject, false) == Relation::Holds)
    }

    /// Returns the tool that must exist for the rule to hold for anything, if it is one by its name.
    pub(super) fn names(&self) -> Option<&str> {
        let is_open = self.name.contains('*') || self.is_of_all();
        (!is_open).then_some(self.name.as_str())
    }

    /// Returns true for `name: *`, which may be a server.
    fn is_of_all(&self) -> bool {
        self.patterns == [["*"]]
    }

    /// Relates the rule to a call. `is_wide` is true for a rule that keeps calls back: its pattern holds for the text of
    /// the subject too, wherever its words end.
    fn relation(&self, tool: &str, subject: Option<&str>, is_wide: bool) -> Relation {
        if self.patterns.is_empty() {
            return if is_like(&self.name, tool) { Relation::Holds } else { Relation::HoldsNot };
        }
        let is_of_server = || {
            let rest = tool.strip_prefix("mcp__").and_then(|rest| rest.strip_prefix(self.name.as_str()));
            rest.is_some_and(|rest| rest.starts_with("__"))
        };
        if self.is_of_all() && is_of_server() {
            return Relation::Holds;
        }
        match subject {
            _ if tool != self.name => Relation::HoldsNot,
            None => Relation::Unclear,
            Some(subject) => {
                let holds =
                    |pattern: &Vec<String>| fits(pattern, subject) || (is_wide && is_like(&pattern.join(" "), subject));
                if self.patterns.iter().any(holds) { Relation::Holds } else { Relation::HoldsNot }
            }
        }
    }
}

/// Rules of the configuration.
#[derive(Clone, Debug, Default)]
pub struct ApprovalRules(Vec<(Rule, Approval)>);

impl ApprovalRules {
    /// Reads the rules of a configuration.
    ///
    /// # Errors
    /// Returns the first text that is no rule, and why.
    pub fn parse(rules: &BTreeMap<String, Approval>) -> Result<Self, (String, String)> {
        let read = |(text, approval): (&String, &Approval)| match Rule::parse(text) {
            Ok(rule) => Ok((rule, *approval)),
            Err(why) => Err((text.clone(), why)),
        };
        rules.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Lists the tools that the rules name.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|(rule, _)| rule.names())
    }

    /// Returns true if no call of the tool can run.
    #[must_use]
    pub fn deny_all(&self, tool: &str) -> bool {
        let denies = |(rule, approval): &(Rule, Approval)| {
            *approval == Approval::Deny && rule.relation(tool, None, true) == Relation::Holds
        };
        self.0.iter().any(denies)
    }

    /// Decides on a planned call. `granted` are rules that the session and the turn allow: they outweigh a rule that
    /// asks, and none that denies. A call without a subject may be what a pattern denies, so it is asked about; a
    /// person sees what it is. Of several subjects, one that is denied denies the call, and one that asks makes it ask.
    #[must_use]
    pub fn decide<'a>(&self, tool: &str, plan: &Plan, granted: impl IntoIterator<Item = &'a str>) -> Approval {
        let granted: Vec<Rule> = granted.into_iter().filter_map(|rule| Rule::parse(rule).ok()).collect();
        let decided: Vec<Approval> =
            subjects(plan).map(|subject| self.decide_one(tool, plan, subject, &granted)).collect();
        let strongest = [Approval::Deny, Approval::Ask].into_iter().find(|one| decided.contains(one));
        strongest.unwrap_or(Approval::Allow)
    }

    fn decide_one(&self, tool: &str, plan: &Plan, subject: Option<&str>, granted: &[Rule]) -> Approval {
        let relation = |wanted: Approval| {
            let rules = self.0.iter().filter(|(_, approval)| *approval == wanted);
            let is_wide = wanted != Approval::Allow;
            let relations: Vec<Relation> = rules.map(|(rule, _)| rule.relation(tool, subject, is_wide)).collect();
            let strongest = [Relation::Holds, Relation::Unclear].into_iter().find(|one| relations.contains(one));
            strongest.unwrap_or(Relation::HoldsNot)
        };
        let is_allowed = relation(Approval::Allow) == Relation::Holds;
        match relation(Approval::Deny) {
            Relation::Holds => return Approval::Deny,
            Relation::Unclear => return Approval::Ask,
            Relation::HoldsNot => {}
        }
        if plan.approval == Approval::Deny && !is_allowed {
            return Approval::Deny;
        }
        if plan.always_asks {
            return Approval::Ask;
        }
        if granted.iter().any(|rule| rule.relation(tool, subject, false) == Relation::Holds) {
            return Approval::Allow;
        }
        match relation(Approval::Ask) {
            Relation::Holds | Relation::Unclear => Approval::Ask,
            Relation::HoldsNot if is_allowed => Approval::Allow,
            Relation::HoldsNot => plan.approval,
        }
    }
}

/// Lists the subjects of a call; that of a call without any is not known.
fn subjects(plan: &Plan) -> impl Iterator<Item = Option<&str>> {
    let unknown = plan.subjects.is_empty().then_some(None);
    plan.subjects.iter().map(|subject| Some(subject.as_str())).chain(unknown)
}

/// Checks a subject against the words of a pattern.
fn fits(pattern: &[String], subject: &str) -> bool {
    let words: Vec<&str> = subject.split(' ').collect();
    match pattern.split_last() {
        Some((last, first)) if last == "*" => {
            words.len() >= first.len() && first.iter().zip(&words).all(|(like, word)| is_like(like, word))
        }
        _ => words.len() == pattern.len() && pattern.iter().zip(&words).all(|(like, word)| is_like(like, word)),
    }
}

/// Checks a text against one with `*` for any part of it.
fn is_like(like: &str, text: &str) -> bool {
    let Some((start, rest)) = like.split_once('*') else { return like == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        // The first place is as good as any: more is left for the parts after it.
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests;
