//! Sessions of coding agents, generated from a seed: calls of tools, contents of files, logs, differences, errors and
//! their causes, decisions and their reversals, with thousands of texts that are nearly equal. Each question's evidence
//! is known, and was planted once.
//!
//! The two corpora share no subject. Nothing here knows how memory searches.

use meerkat_words::{
    clock::Timestamp,
    memory::{Intake, Passage},
};

use super::{
    corpus::{Place, fill, session_id},
    questions::{Haystack, Question},
    random::Random,
};

/// Size of a corpus.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) sessions: usize,
    /// Steps of a session; each is a call with its result, and sometimes words.
    pub(crate) steps: usize,
}

/// Size of the benchmark's corpora.
pub(crate) const FULL: Size = Size { sessions: 160, steps: 25 };
/// Size for a test.
#[allow(dead_code, reason = "the test measures small ones")]
pub(crate) const SMALL: Size = Size { sessions: 24, steps: 12 };

/// Fact in the words of an agent's work, with questions in other words.
struct Plant {
    category: &'static str,
    /// Messages in order, each with its role; `*` before the text marks the evidence.
    said: &'static [(&'static str, &'static str)],
    asked: &'static [&'static str],
}

/// Slots: `{m}` a module, `{o}` another one, `{n}` a number, `{t}` a tool.
const PLANTS: &[Plant] = &[
    Plant {
        category: "decision",
        said: &[
            ("user", "How should {m} keep its state between runs?"),
            (
                "assistant",
                "*I would write it to {t}: it survives a restart and needs no server. I will do that for {m}.",
            ),
        ],
        asked: &["Why did we choose {t} for {m}?", "What did we decide about the state of {m}?"],
    },
    Plant {
        category: "reversal",
        said: &[
            ("user", "*Take {t} out of {m} again: it made the build slow. Go back to plain files."),
            ("assistant", "Reverted. The build of {m} takes {n} seconds now."),
        ],
        asked: &["Why was {t} removed from {m}?", "Which change to {m} was taken back?"],
    },
    Plant {
        category: "cause",
        said: &[
            ("tool_results", "error[E0502]: cannot borrow `{m}` as mutable, src/{m}.rs:{n}"),
            ("assistant", "*The cause was a lock held across the await in {m}; I drop the guard before it."),
        ],
        asked: &["What caused the borrow error in {m}?", "How did we fix the deadlock of {m}?"],
    },
    Plant {
        category: "log",
        said: &[
            ("assistant", "I look at what the service wrote."),
            ("tool_results", "*2026-03-0{d}T10:22:31Z ERROR {m}: connection pool exhausted after {n} waiters"),
        ],
        asked: &["connection pool exhausted {m}", "When did {m} run out of connections?"],
    },
    Plant {
        category: "difference",
        said: &[
            ("assistant", "I change the limit."),
            (
                "tool_results",
                "*--- a/src/{m}.rs\n+++ b/src/{m}.rs\n@@ -{n},3 +{n},3 @@\n-const RETRIES_MAX: u32 = 3;\n+const RETRIES_MAX: u32 = {n};",
            ),
        ],
        asked: &["To what did we set RETRIES_MAX in {m}?", "Which retries limit has {m}?"],
    },
    Plant {
        category: "preference",
        said: &[("user", "*In {m} never use unwrap; return the error, with the name of the file in it.")],
        asked: &["How should errors be handled in {m}?", "What was I told about unwrap in {m}?"],
    },
    Plant {
        category: "question and answer",
        said: &[("assistant", "Which port should {m} listen on?"), ("user", "*{p}, as in staging.")],
        asked: &["Which port does {m} listen on?", "port of {m}"],
    },
    Plant {
        category: "misspelt",
        said: &[("assistant", "*The scheduler of {m} starves when its backlog is longer than {n} entries.")],
        asked: &["Why does the schedular of {m} starve?", "backlogg of {m}"],
    },
];

/// What an agent does all day: texts that are nearly equal. Each row is a call and its result.
const ROUTINE: &[(&str, &str)] = &[
    (
        "shell {\"command\":\"cargo test -p {m}\"}",
        "running {n} tests\ntest result: ok. {n} passed; 0 failed; finished in 0.{n}s",
    ),
    (
        "read_file {\"path\":\"src/{m}.rs\"}",
        "//! Part of {m}.\nuse crate::{o};\npub fn run(limit: usize) -> Result<(), Error> {\n    {o}::open(limit)?.run()\n}",
    ),
    ("grep {\"pattern\":\"{o}\"}", "src/{m}.rs:{n}: use crate::{o};\nsrc/lib.rs:{n}: mod {m};"),
    (
        "shell {\"command\":\"tail -n 3 {m}.log\"}",
        "2026-03-0{d}T10:{n}:31Z INFO {m}: request served in {n} ms\n2026-03-0{d}T10:{n}:32Z WARN {m}: connection reset by peer",
    ),
    ("shell {\"command\":\"git diff --stat\"}", "src/{m}.rs | {n} ++--\nsrc/{o}.rs | {n} +\n2 files changed"),
    ("edit_file {\"path\":\"src/{m}.rs\"}", "edited src/{m}.rs: 1 replacement"),
    (
        "shell {\"command\":\"cargo clippy\"}",
        "warning: unused variable `limit` in src/{m}.rs:{n}\nwarning: `{m}` generated {n} warnings",
    ),
    ("shell {\"command\":\"cargo build\"}", "error: could not compile `{m}` due to {n} previous errors"),
];

/// Words in between.
const WORDS: &[(&str, &str)] = &[
    ("user", "Go on with {m}."),
    ("assistant", "The tests of {m} pass. Next I look at {o}."),
    ("user", "Is {m} done?"),
    ("assistant", "Yes, {m} is done, and {o} builds."),
    ("user", "Run the tests of {m} again."),
    ("assistant", "I found nothing wrong in {m}; {n} tests pass."),
];

const TUNED: (&[&str], &[&str]) = (
    &["parser", "ledger", "router", "mailer", "indexer", "importer", "billing", "gateway", "renderer", "planner"],
    &["sqlite", "bincode", "rayon", "mmap", "protobuf"],
);
const REPORTED: (&[&str], &[&str]) = (
    &[
        "tokenizer",
        "inventory",
        "dispatcher",
        "notifier",
        "crawler",
        "exporter",
        "payroll",
        "proxy",
        "compositor",
        "roster",
    ],
    &["leveldb", "msgpack", "crossbeam", "io_uring", "capnproto"],
);
/// Never planted in either corpus.
const FOREIGN: &[&str] =
    &["How did the kubernetes migration go?", "Which colour has the logo?", "What is Margaret's birthday?"];

const FIRST_DAY_MS: i64 = 1_772_000_000_000;
const DAY_MS: i64 = 24 * 3_600_000;

/// Makes the corpus that constants are tuned on.
pub(crate) fn tune(size: Size) -> Haystack {
    haystack(31, size, TUNED)
}

/// Makes the corpus that is reported.
pub(crate) fn report(size: Size) -> Haystack {
    haystack(977, size, REPORTED)
}

/// Session under construction.
struct Session {
    intake: Intake,
    time_ms: i64,
}

impl Session {
    fn say(&mut self, role: &str, text: String) -> Place {
        self.intake.up_to += 2;
        self.time_ms += 20_000;
        let seq = self.intake.up_to;
        let source = if role == "tool_results" { "tool:shell" } else { role };
        let (role, source, time) = (role.to_owned(), source.to_owned(), Timestamp::from_millis(self.time_ms));
        self.intake.passages.push(Passage { seq, to_seq: seq, part: 0, role, source, time, text });
        (self.intake.session_id, seq)
    }
}

fn haystack(seed: u64, size: Size, (modules, tools): (&[&str], &[&str])) -> Haystack {
    let mut random = Random::new(seed);
    let mut questions = Vec::new();
    let mut sessions: Vec<Session> = (0..size.sessions)
        .map(|nth| {
            let intake = Intake {
                session_id: session_id(seed, nth as u64),
                labels: std::collections::BTreeMap::new(),
                passages: Vec::new(),
                up_to: 0,
                inherited: std::collections::BTreeMap::new(),
            };
            Session { intake, time_ms: FIRST_DAY_MS + nth as i64 * DAY_MS }
        })
        .collect();
    // Each plant once for each module, in a session and at a step of its own.
    let mut plants: Vec<(&Plant, &str)> =
        PLANTS.iter().flat_map(|plant| modules.iter().map(move |module| (plant, *module))).collect();
    random.shuffle(&mut plants);
    let mut places: Vec<(usize, usize)> =
        (0..size.sessions).flat_map(|session| (1..size.steps).map(move |step| (session, step))).collect();
    random.shuffle(&mut places);
    let mut planted: Vec<_> = places.into_iter().zip(plants).collect();
    planted.sort_by_key(|(place, _)| *place);
    let mut planted = planted.into_iter().peekable();
    for (nth, session) in sessions.iter_mut().enumerate() {
        // A session is mostly about one module.
        let (subject, other) = (random.pick(modules), random.pick(modules));
        for step in 0..size.steps {
            let (number, day) = (random.below(90) + 10, random.below(9) + 1);
            let (number, day) = (number.to_string(), day.to_string());
            let slots = |module| [("{m}", module), ("{o}", other), ("{n}", &*number), ("{d}", &*day)];
            if let Some((_, (plant, module))) = planted.next_if(|(place, _)| *place == (nth, step)) {
                plant_in(session, plant, &slots(module), random.pick(tools), &mut random, &mut questions);
            }
            let (call, result) = random.pick(ROUTINE);
            session.say("assistant", fill(call, &slots(subject)));
            session.say("tool_results", fill(result, &slots(subject)));
            if random.one_in(2) {
                let (role, text) = random.pick(WORDS);
                session.say(role, fill(text, &slots(subject)));
            }
        }
    }
    assert!(planted.next().is_none(), "there are too few places");
    for text in FOREIGN {
        questions.push(Question { text: (*text).to_owned(), category: "foreign", evidence: Vec::new() });
    }
    Haystack { sessions: sessions.into_iter().map(|session| session.intake).collect(), questions }
}

/// Plants a fact, and makes its questions.
fn plant_in(
    session: &mut Session,
    plant: &Plant,
    slots: &[(&str, &str)],
    tool: &str,
    random: &mut Random,
    questions: &mut Vec<Question>,
) {
    let port = (4_000 + random.below(5_000)).to_string();
    let filled = |text: &str| fill(&fill(text, slots), &[("{t}", tool), ("{p}", &port)]);
    let mut evidence = Vec::new();
    for (role, text) in plant.said {
        let place = session.say(role, filled(text.trim_start_matches('*')));
        if text.starts_with('*') {
            evidence.push(place);
        }
    }
    for text in plant.asked {
        questions.push(Question { text: filled(text), category: plant.category, evidence: evidence.clone() });
    }
}
