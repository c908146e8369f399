//! Dialogues of many sessions, generated from a book by a seed, with questions whose evidence is known by session and
//! seq.
//!
//! Several people talk with one assistant over two years. Many of them tell the same kinds of facts with other values,
//! some facts change later, and most messages have no fact. Nothing here knows how memory searches.

use std::collections::BTreeMap;

use meerkat_words::{
    Seq, SessionId,
    clock::Timestamp,
    memory::{Intake, Passage},
};
use uuid::Uuid;

use super::{
    book::{Book, Topic, scene},
    random::Random,
};

/// Position of a message.
pub(crate) type Place = (SessionId, Seq);

/// Size of a corpus.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Sessions in English; each other language has a twelfth of that.
    pub(crate) sessions: usize,
    /// Messages of a session, at least.
    pub(crate) messages: usize,
    /// People who speak of each topic.
    pub(crate) people: usize,
}

/// The first session's day, and how long the last one is after it.
const FIRST_DAY_MS: i64 = 1_704_700_000_000;
const SPAN_MS: i64 = 700 * 24 * 3_600_000;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Form {
    Plain,
    /// The subject is in a message next to the evidence.
    Near,
    /// Said twice; the second value supersedes the first.
    Update,
    /// Several values, all of them true.
    Many,
}

/// Fact of one person about one topic.
pub(crate) struct Fact<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) who: &'static str,
    pub(crate) form: Form,
    /// An id of the topic's pattern; empty if it has none.
    pub(crate) key: String,
    pub(crate) values: Vec<&'static str>,
    /// Position and time of each value.
    pub(crate) told: Vec<(Place, Timestamp)>,
}

/// Scene of a dialogue.
struct Scene {
    text: &'static str,
    who: &'static str,
    key: String,
    value: &'static str,
    /// Its fact, and the index of the value.
    tells: Option<(usize, usize)>,
}

/// Generates the facts of a book, and the sessions that have them.
pub(crate) fn generate<'a>(book: &'a Book, seed: u64, size: Size) -> (Vec<Intake>, Vec<Fact<'a>>) {
    let mut random = Random::new(seed);
    let mut facts = facts(book, size.people, &mut random);
    let mut languages = vec!["en"; size.sessions];
    for language in book.chat.keys().filter(|language| **language != "en") {
        languages.extend(std::iter::repeat_n(*language, (size.sessions / 12).max(3)));
    }
    random.shuffle(&mut languages);
    let mut scenes: Vec<Vec<Scene>> = languages.iter().map(|_| Vec::new()).collect();
    for (nth, fact) in facts.iter().enumerate() {
        place(fact, nth, &languages, &mut scenes, &mut random);
    }
    let mut sessions = Vec::new();
    for (nth, (language, scenes)) in languages.iter().zip(scenes).enumerate() {
        let started = FIRST_DAY_MS + (nth as i64 * SPAN_MS) / languages.len() as i64 + random.below(40_000_000) as i64;
        let mut session = Session::new(seed, nth as u64, started);
        session.fill(book, language, scenes, size.messages, &mut random);
        for (fact, value, place, time) in session.told {
            let told = &mut facts[fact].told;
            // A fact's scenes are in sessions of rising time.
            assert_eq!(told.len(), value);
            told.push((place, time));
        }
        sessions.push(session.intake);
    }
    (sessions, facts)
}

fn facts<'a>(book: &'a Book, people: usize, random: &mut Random) -> Vec<Fact<'a>> {
    let mut facts = Vec::new();
    for topic in &book.topics {
        let mut names = book.names.clone();
        random.shuffle(&mut names);
        let mut values = topic.values();
        random.shuffle(&mut values);
        let mut values = values.into_iter().cycle();
        let people = if topic.language == "en" { people } else { people.div_ceil(2) };
        for who in names.into_iter().take(people) {
            let form = match random.below(4) {
                _ if topic.is_many => Form::Many,
                0 | 1 if !topic.lines("again").is_empty() => Form::Update,
                0 | 2 if !topic.lines("near").is_empty() => Form::Near,
                _ => Form::Plain,
            };
            let count = match form {
                Form::Plain | Form::Near => 1,
                Form::Update => 2,
                Form::Many => 1 + random.below(3),
            };
            let values = values.by_ref().take(count).collect();
            let key = topic.lines("id").first().map_or(String::new(), |pattern| key(pattern, random));
            facts.push(Fact { topic, who, form, key, values, told: Vec::new() });
        }
    }
    facts
}

/// An id of a pattern: `#` is a digit, `[` a hexadecimal one, `@` a syllable's half of a made-up word.
fn key(pattern: &str, random: &mut Random) -> String {
    let mut halves = 0;
    let mut made = |place: char| match place {
        '#' => char::from(random.pick(b"0123456789")),
        '[' => char::from(random.pick(b"0123456789abcdef")),
        '@' => {
            halves += 1;
            char::from(if halves % 2 == 1 { random.pick(b"bdfgklmnprstvz") } else { random.pick(b"aeiou") })
        }
        other => other,
    };
    pattern.chars().map(&mut made).collect()
}

fn place(fact: &Fact<'_>, nth: usize, languages: &[&str], scenes: &mut [Vec<Scene>], random: &mut Random) {
    let mut sessions: Vec<usize> =
        (0..languages.len()).filter(|session| languages[*session] == fact.topic.language).collect();
    random.shuffle(&mut sessions);
    sessions.truncate(fact.values.len());
    sessions.sort_unstable();
    assert_eq!(sessions.len(), fact.values.len(), "a language has too few sessions");
    for (value, session) in sessions.into_iter().enumerate() {
        let kind = match (fact.form, value) {
            (Form::Near, _) => "near",
            (Form::Update, 1) => "again",
            _ => "tell",
        };
        let text = random.pick(fact.topic.lines(kind));
        let tells = Some((nth, value));
        scenes[session].push(Scene { text, who: fact.who, key: fact.key.clone(), value: fact.values[value], tells });
    }
}

/// Session under construction.
struct Session {
    intake: Intake,
    time_ms: i64,
    told: Vec<(usize, usize, Place, Timestamp)>,
}

impl Session {
    fn new(seed: u64, nth: u64, time_ms: i64) -> Self {
        let intake = Intake {
            session_id: session_id(seed, nth),
            labels: BTreeMap::new(),
            passages: Vec::new(),
            up_to: 0,
            inherited: BTreeMap::new(),
        };
        Self { intake, time_ms, told: Vec::new() }
    }

    fn fill(&mut self, book: &Book, language: &str, tells: Vec<Scene>, messages: usize, random: &mut Random) {
        let mut people: Vec<&'static str> = tells.iter().map(|scene| scene.who).collect();
        people.push(random.pick(&book.names));
        let said: usize = tells.iter().map(|tell| scene(tell.text).len()).sum();
        let mut scenes = tells;
        let mut left = messages.saturating_sub(said);
        while left > 0 {
            let chat = chat(book, language, random.pick(&people), random);
            left = left.saturating_sub(scene(chat.text).len());
            scenes.push(chat);
        }
        random.shuffle(&mut scenes);
        for scene in scenes {
            self.say(book, &scene, language == "en", random);
        }
    }

    fn say(&mut self, book: &Book, told: &Scene, is_english: bool, random: &mut Random) {
        // One name, day and number for a whole scene.
        let others: Vec<&str> = book.names.iter().copied().filter(|name| *name != told.who).collect();
        let (name, day) = (random.pick(&others), random.pick(&DAYS));
        let number = (2 + random.below(97)).to_string();
        for line in scene(told.text) {
            let mut text = line.text.to_owned();
            let is_aside = is_english && !line.is_evidence && line.author != 'T';
            if is_aside && line.author == 'U' && random.one_in(3) {
                text = format!("{} {text}", random.pick(&book.fillers));
            }
            if is_aside && random.below(3) > 0 {
                text = format!("{text} {}", random.pick(&book.tails));
            }
            let slots = [
                ("{v}", told.value),
                ("{k}", &told.key),
                ("{who}", told.who),
                ("{name}", name),
                ("{day}", day),
                ("{n}", &number),
            ];
            let text = fill(&text, &slots);
            let (role, source, text) = match line.author {
                'U' => ("user", "user", format!("{}: {text}", told.who)),
                'A' => ("assistant", "assistant", text),
                _ => ("tool_results", "tool:search", text),
            };
            let (seq, time) = self.push(role, source, text, random);
            if let (true, Some((fact, value))) = (line.is_evidence, told.tells) {
                self.told.push((fact, value, (self.intake.session_id, seq), time));
            }
        }
    }

    fn push(&mut self, role: &str, source: &str, text: String, random: &mut Random) -> (Seq, Timestamp) {
        // A journal has other events between two messages.
        self.intake.up_to += 1 + random.below(4) as u64;
        self.time_ms += 5_000 + random.below(120_000) as i64;
        let (seq, time) = (self.intake.up_to, Timestamp::from_millis(self.time_ms));
        let (role, source) = (role.to_owned(), source.to_owned());
        self.intake.passages.push(Passage { seq, to_seq: seq, part: 0, role, source, time, text });
        (seq, time)
    }
}

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Makes a scene without a fact, two times of three about one of the topics.
fn chat(book: &Book, language: &str, who: &'static str, random: &mut Random) -> Scene {
    let topics: Vec<&Topic> =
        book.topics.iter().filter(|topic| topic.language == language && !topic.lines("chat").is_empty()).collect();
    if random.one_in(3) || topics.is_empty() {
        let text = random.pick(&book.chat[language]);
        return Scene { text, who, key: String::new(), value: "", tells: None };
    }
    let topic = random.pick(&topics);
    let text = random.pick(topic.lines("chat"));
    // Ids here resemble those of questions, but differ.
    let key = topic.lines("id").first().map_or(String::new(), |pattern| key(pattern, random));
    Scene { text, who, key, value: random.pick(&topic.values()), tells: None }
}

/// Fills a text's slots.
pub(crate) fn fill(text: &str, slots: &[(&str, &str)]) -> String {
    slots.iter().fold(text.to_owned(), |text, (slot, value)| text.replace(slot, value))
}

/// Makes a session's id from numbers.
pub(crate) fn session_id(seed: u64, nth: u64) -> SessionId {
    SessionId::from_uuid(Uuid::from_u64_pair(0x0190_0000_0000_7000 | (seed & 0xfff), 0x8000_0000_0000_0000 | nth))
}
