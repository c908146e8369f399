//! Parsers of the public datasets LoCoMo and LongMemEval, one haystack at a time: their files are large.

use std::{collections::BTreeMap, fmt, io::Read};

use meerkat_words::{
    clock::Timestamp,
    memory::{Intake, Passage},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, Deserializer, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    corpus::{Place, session_id},
    questions::{Haystack, Question},
};

/// Category of LoCoMo's questions with a false premise, which are counted separately.
pub(crate) const ADVERSARIAL: &str = "adversarial";

/// Passes each element of an array on as soon as it is parsed.
fn each<T: DeserializeOwned>(file: impl Read, mut take: impl FnMut(T)) -> serde_json::Result<()> {
    struct Each<'a, T>(&'a mut dyn FnMut(T));

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<'_, T> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
            while let Some(element) = elements.next_element()? {
                (self.0)(element);
            }
            Ok(())
        }
    }

    serde_json::Deserializer::from_reader(std::io::BufReader::new(file)).deserialize_seq(Each(&mut take))
}

/// Session being parsed; without a date, the epoch is used.
fn session(seed: u64, nth: u64) -> Intake {
    Intake {
        session_id: session_id(seed, nth),
        labels: BTreeMap::new(),
        passages: Vec::new(),
        up_to: 0,
        inherited: BTreeMap::new(),
    }
}

fn say(session: &mut Intake, seq: u64, role: &str, started_ms: i64, text: String) {
    let time = Timestamp::from_millis(started_ms + seq as i64 * 30_000);
    let (role, source) = (role.to_owned(), role.to_owned());
    session.passages.push(Passage { seq, to_seq: seq, part: 0, role, source, time, text });
    session.up_to = seq;
}

fn time(text: &str, format: &str) -> i64 {
    let read = jiff::civil::DateTime::strptime(format, text.trim());
    read.and_then(|time| jiff::tz::Offset::UTC.to_timestamp(time)).map_or(0, jiff::Timestamp::as_millisecond)
}

#[derive(Deserialize)]
struct LocomoSample {
    conversation: serde_json::Map<String, Value>,
    #[serde(default)]
    qa: Vec<LocomoQuestion>,
}

#[derive(Deserialize)]
struct LocomoQuestion {
    question: String,
    #[serde(default)]
    evidence: Vec<String>,
    category: u8,
}

#[derive(Deserialize)]
struct LocomoTurn {
    speaker: String,
    dia_id: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    blip_caption: Option<String>,
}

/// Parses LoCoMo; each sample is a haystack. A turn has its text and its picture's description, and no name before it:
/// memory stores a message's text alone, and the speaker is its role.
pub(crate) fn locomo(file: impl Read, mut take: impl FnMut(Haystack)) -> serde_json::Result<()> {
    let mut seed = 0;
    each(file, |sample: LocomoSample| {
        seed += 1;
        take(locomo_haystack(seed, sample));
    })
}

fn locomo_haystack(seed: u64, sample: LocomoSample) -> Haystack {
    let mut sessions = Vec::new();
    let mut known: BTreeMap<(u64, u64), Place> = BTreeMap::new();
    let first_speaker = sample.conversation.get("speaker_a").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut turns: Vec<(u64, Vec<LocomoTurn>)> = Vec::new();
    for (key, value) in &sample.conversation {
        let number = key.strip_prefix("session_").and_then(|number| number.parse().ok());
        if let (Some(number), Ok(said)) = (number, Vec::deserialize(value)) {
            turns.push((number, said));
        }
    }
    turns.sort_by_key(|(number, _)| *number);
    for (number, said) in turns {
        let mut session = session(seed, number);
        let date = sample.conversation.get(&format!("session_{number}_date_time")).and_then(Value::as_str);
        let started_ms = time(&date.unwrap_or_default().to_uppercase(), "%I:%M %p ON %d %B, %Y");
        for turn in said {
            let Some(id) = dia_ids(&turn.dia_id).first().copied() else { continue };
            let picture = turn.blip_caption.map_or(String::new(), |shows| format!("[shows {shows}] "));
            let role = if turn.speaker == first_speaker { "user" } else { "assistant" };
            say(&mut session, id.1, role, started_ms, format!("{picture}{}", turn.text));
            known.insert(id, (session.session_id, id.1));
        }
        sessions.push(session);
    }
    let question = |asked: LocomoQuestion| {
        let ids = asked.evidence.iter().flat_map(|text| dia_ids(text));
        let mut evidence: Vec<Place> = ids.filter_map(|id| known.get(&id).copied()).collect();
        evidence.sort_unstable();
        evidence.dedup();
        // A question without existing evidence is neither answerable nor a case for abstention.
        (!evidence.is_empty()).then(|| Question {
            text: asked.question,
            category: locomo_category(asked.category),
            evidence,
        })
    };
    Haystack { questions: sample.qa.into_iter().filter_map(question).collect(), sessions }
}

fn locomo_category(number: u8) -> &'static str {
    match number {
        1 => "multi-hop",
        2 => "temporal",
        3 => "open-domain",
        4 => "single-hop",
        _ => ADVERSARIAL,
    }
}

/// Parses every id in a text to session and turn; some texts have two, as `D8:6; D9:17`, some are written `D:11:26` or
/// `D30:05`.
pub(crate) fn dia_ids(text: &str) -> Vec<(u64, u64)> {
    let numbers = |id: &str| {
        let mut numbers = id.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    text.split([';', ',', ' ']).filter_map(numbers).collect()
}

#[derive(Deserialize)]
struct LongMemSample {
    question_id: String,
    question_type: String,
    question: String,
    haystack_dates: Vec<String>,
    haystack_sessions: Vec<Vec<LongMemTurn>>,
}

#[derive(Deserialize)]
struct LongMemTurn {
    role: String,
    content: String,
    #[serde(default)]
    has_answer: bool,
}

/// Parses LongMemEval; each question is a haystack, and the marked turns are its evidence.
pub(crate) fn longmemeval(file: impl Read, mut take: impl FnMut(Haystack)) -> serde_json::Result<()> {
    let mut seed = 0;
    each(file, |sample: LongMemSample| {
        seed += 1;
        take(longmemeval_haystack(seed, sample));
    })
}

fn longmemeval_haystack(seed: u64, sample: LongMemSample) -> Haystack {
    let (mut sessions, mut evidence) = (Vec::new(), Vec::new());
    for (nth, said) in sample.haystack_sessions.into_iter().enumerate() {
        let mut session = session(seed, nth as u64);
        let date = sample.haystack_dates.get(nth).map_or("", String::as_str);
        let started_ms = time(date, "%Y/%m/%d (%a) %H:%M");
        for (turn, seq) in said.into_iter().zip(1..) {
            say(&mut session, seq, &turn.role, started_ms, turn.content);
            if turn.has_answer {
                evidence.push((session.session_id, seq));
            }
        }
        sessions.push(session);
    }
    // The id marks a question without an answer.
    let is_unanswerable = sample.question_id.ends_with("_abs");
    let category = match sample.question_type.as_str() {
        _ if is_unanswerable => "abstention",
        "single-session-user" => "one session, user",
        "single-session-assistant" => "one session, assistant",
        "single-session-preference" => "one session, preference",
        "multi-session" => "several sessions",
        "temporal-reasoning" => "temporal",
        "knowledge-update" => "update",
        _ => "other",
    };
    if is_unanswerable {
        evidence.clear();
    }
    let is_asked = is_unanswerable || !evidence.is_empty();
    let question = is_asked.then_some(Question { text: sample.question, category, evidence });
    Haystack { sessions, questions: question.into_iter().collect() }
}
