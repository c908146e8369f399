//! Source of the dialogues: the topics of a book, each with its values, scenes and questions.
//!
//! A book is a text file, for reviewers to read. The book for tuning and the one for reporting share no topic, name or
//! template. A line is a key and a text; a scene is lines separated by ` / `, each with its author (`U` the person, `A`
//! the assistant, `T` a tool) and `*` if it has the answer.

use std::collections::BTreeMap;

/// Line of a scene.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    pub(crate) author: char,
    pub(crate) is_evidence: bool,
    pub(crate) text: &'static str,
}

/// Topic with its scenes and questions.
#[derive(Default)]
pub(crate) struct Topic {
    pub(crate) language: &'static str,
    /// True if one person has several values, all of them true.
    pub(crate) is_many: bool,
    lines: BTreeMap<&'static str, Vec<&'static str>>,
}

impl Topic {
    /// Returns the lines with a key.
    pub(crate) fn lines(&self, key: &str) -> &[&'static str] {
        self.lines.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns the possible values.
    pub(crate) fn values(&self) -> Vec<&'static str> {
        self.lines("v").iter().flat_map(|line| line.split(" | ")).collect()
    }
}

/// A whole book.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) names: Vec<&'static str>,
    /// Beginnings and endings of messages, for any topic.
    pub(crate) fillers: Vec<&'static str>,
    pub(crate) tails: Vec<&'static str>,
    pub(crate) topics: Vec<Topic>,
    /// Small talk, by language.
    pub(crate) chat: BTreeMap<&'static str, Vec<&'static str>>,
    /// Questions about things never said.
    pub(crate) foreign: Vec<&'static str>,
}

impl Book {
    /// Returns the book for tuning.
    pub(crate) fn tune() -> Self {
        Self::parse(include_str!("books/tune.txt"))
    }

    /// Returns the book for reporting.
    pub(crate) fn report() -> Self {
        Self::parse(include_str!("books/report.txt"))
    }

    fn parse(text: &'static str) -> Self {
        let mut book = Self::default();
        // A block that begins with `topic` ends at an empty line.
        let mut in_topic = false;
        for line in text.lines() {
            let Some((key, rest)) = line.split_once(' ') else {
                in_topic = false;
                continue;
            };
            match (key, in_topic.then(|| book.topics.last_mut()).flatten()) {
                ("topic", _) => {
                    in_topic = true;
                    let language = rest.split_once(" lang ").map_or("en", |(_, language)| language);
                    let is_many = rest.ends_with(" many");
                    book.topics.push(Topic { language, is_many, ..Topic::default() });
                }
                (key, Some(topic)) => topic.lines.entry(key).or_default().push(rest),
                ("names", None) => book.names = rest.split(" | ").collect(),
                ("fillers", None) => book.fillers = rest.split(" | ").collect(),
                ("tails", None) => book.tails = rest.split(" | ").collect(),
                ("far", None) => book.foreign.push(rest),
                ("chat", None) => {
                    let (language, scene) = rest.split_once(' ').unwrap();
                    book.chat.entry(language).or_default().push(scene);
                }
                (other, None) => panic!("a book has no {other}"),
            }
        }
        book
    }
}

/// Parses the lines of a scene.
pub(crate) fn scene(text: &'static str) -> Vec<Line> {
    let line = |part: &'static str| {
        let (author, text) = part.split_once(' ').unwrap();
        let letter = author.chars().next().unwrap();
        assert!("UAT".contains(letter), "{part}");
        Line { author: letter, is_evidence: author.ends_with('*'), text }
    };
    text.split(" / ").map(line).collect()
}
