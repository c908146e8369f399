//! Questions about a corpus: paraphrased, misspelt, by month, about several people, and about things never said.

use std::collections::BTreeSet;

use meerkat_words::{clock::Timestamp, memory::Intake};

use super::{
    book::Book,
    corpus::{Fact, Form, Place, Size, fill, generate},
    random::Random,
};

/// Question with its evidence.
pub(crate) struct Question {
    pub(crate) text: String,
    pub(crate) category: &'static str,
    /// Empty if it was never said.
    pub(crate) evidence: Vec<Place>,
}

/// Sessions of a project, and questions about them.
pub(crate) struct Haystack {
    pub(crate) sessions: Vec<Intake>,
    pub(crate) questions: Vec<Question>,
}

/// Makes the corpus for tuning constants.
pub(crate) fn tune(size: Size) -> Haystack {
    asked(&Book::tune(), 11, size)
}

/// Makes the corpus for reporting, which nothing is tuned on.
pub(crate) fn report(size: Size) -> Haystack {
    asked(&Book::report(), 4_242, size)
}

fn asked(book: &Book, seed: u64, size: Size) -> Haystack {
    let (sessions, facts) = generate(book, seed, size);
    let mut random = Random::new(seed ^ 0x0a5c_ed00);
    let mut questions = Vec::new();
    for fact in &facts {
        about(fact, &facts, &mut random, &mut questions);
    }
    of_two(&facts, &mut random, &mut questions);
    never_told(book, &facts, &mut random, &mut questions);
    Haystack { sessions, questions }
}

/// Makes the questions about one fact.
fn about(fact: &Fact<'_>, facts: &[Fact<'_>], random: &mut Random, questions: &mut Vec<Question>) {
    let topic = fact.topic;
    let places: Vec<Place> = fact.told.iter().map(|(place, _)| *place).collect();
    let is_foreign_language = topic.language != "en";
    let category = match fact.form {
        _ if is_foreign_language => "languages",
        _ if !fact.key.is_empty() => "exact ids",
        Form::Plain => "single",
        Form::Near => "neighbour",
        Form::Update => "current",
        Form::Many => "several",
    };
    let mut ask = |template: &str, category, evidence: Vec<Place>, value: &str, month: &str| {
        let slots = [("{who}", fact.who), ("{v}", value), ("{k}", &fact.key), ("{month}", month)];
        questions.push(Question { text: fill(template, &slots), category, evidence });
    };
    let is_update = fact.form == Form::Update;
    if is_update && !is_foreign_language {
        ask(random.pick(topic.lines("now")), "current", vec![places[1]], "", "");
        ask(random.pick(topic.lines("was")), "former", vec![places[0]], "", "");
        return;
    }
    let evidence = if is_update { vec![places[1]] } else { places.clone() };
    // A question by the value has one answer only if nobody else has the same value.
    let tells = |other: &Fact<'_>, value: &&str| std::ptr::eq(other.topic, topic) && other.values.contains(value);
    let is_unique = |value: &&'static str| facts.iter().filter(|other| tells(other, value)).count() == 1;
    match fact.values.iter().position(is_unique) {
        Some(nth) if !topic.lines("who").is_empty() && random.one_in(3) => {
            ask(random.pick(topic.lines("who")), category, vec![places[nth]], fact.values[nth], "");
        }
        _ => ask(random.pick(topic.lines("ask")), category, evidence.clone(), fact.values[0], ""),
    }
    if fact.form == Form::Plain && !topic.lines("infer").is_empty() {
        ask(random.pick(topic.lines("infer")), "inferred", evidence.clone(), fact.values[0], "");
    }
    if category == "single" && random.one_in(2) {
        let template = random.pick(topic.lines("ask"));
        let slots = [("{who}", fact.who), ("{v}", fact.values[0])];
        let text = misspelt(&fill(template, &slots), random);
        questions.push(Question { text, category: "misspelt", evidence });
    } else if fact.form == Form::Many && !topic.lines("month").is_empty() {
        by_month(fact, random, questions);
    }
}

/// Makes a question by the month, if the month identifies one of a person's values.
fn by_month(fact: &Fact<'_>, random: &mut Random, questions: &mut Vec<Question>) {
    let months: Vec<String> = fact.told.iter().map(|(_, time)| month(*time)).collect();
    let nth = random.below(months.len());
    if months.iter().filter(|month| **month == months[nth]).count() == 1 {
        let slots = [("{who}", fact.who), ("{month}", months[nth].as_str())];
        let text = fill(random.pick(fact.topic.lines("month")), &slots);
        questions.push(Question { text, category: "dated", evidence: vec![fact.told[nth].0] });
    }
}

/// `March 2025`.
fn month(time: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(time.as_millis()).unwrap().strftime("%B %Y").to_string()
}

/// Makes questions about two people, each pair once.
fn of_two(facts: &[Fact<'_>], random: &mut Random, questions: &mut Vec<Question>) {
    for pair in facts.windows(2).filter(|pair| std::ptr::eq(pair[0].topic, pair[1].topic)).step_by(2) {
        if let Some(template) = pair[0].topic.lines("both").first().filter(|_| random.below(3) > 0) {
            let text = fill(template, &[("{who}", pair[0].who), ("{other}", pair[1].who)]);
            let evidence = pair.iter().flat_map(|fact| fact.told.iter().map(|(place, _)| *place)).collect();
            questions.push(Question { text, category: "several", evidence });
        }
    }
}

/// Makes questions about things never said, and about people who never said them.
fn never_told(book: &Book, facts: &[Fact<'_>], random: &mut Random, questions: &mut Vec<Question>) {
    for text in &book.foreign {
        questions.push(Question { text: (*text).to_owned(), category: "foreign", evidence: Vec::new() });
    }
    for topic in book.topics.iter().filter(|topic| topic.language == "en" && topic.lines("id").is_empty()) {
        let told: BTreeSet<&str> =
            facts.iter().filter(|fact| std::ptr::eq(fact.topic, topic)).map(|fact| fact.who).collect();
        let silent: Vec<&str> = book.names.iter().copied().filter(|name| !told.contains(name)).collect();
        let text = fill(random.pick(topic.lines("ask")), &[("{who}", random.pick(&silent))]);
        questions.push(Question { text, category: "wrong person", evidence: Vec::new() });
    }
}

/// Misspells a text's two longest words.
fn misspelt(text: &str, random: &mut Random) -> String {
    let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let mut longest: Vec<usize> = (0..words.len()).filter(|nth| words[*nth].is_ascii()).collect();
    longest.sort_by_key(|nth| (std::cmp::Reverse(words[*nth].len()), *nth));
    for nth in longest.into_iter().take(2) {
        let letters: Vec<char> = words[nth].chars().collect();
        if letters.len() > 3 {
            words[nth] = slip(letters, random);
        }
    }
    words.join(" ")
}

/// Misspells a word: two letters swapped, one left out, or one doubled; the first and the last stay.
fn slip(mut letters: Vec<char>, random: &mut Random) -> String {
    let at = 1 + random.below(letters.len() - 3);
    match random.below(3) {
        0 => letters.swap(at, at + 1),
        1 => {
            letters.remove(at);
        }
        _ => letters.insert(at, letters[at]),
    }
    letters.into_iter().collect()
}
