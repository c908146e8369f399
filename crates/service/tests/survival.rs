//! What becomes of a fact that is said once: planted probes, many compactions, and a look at what the model is sent.
//!
//! What stands in a pin, a reminder or a turn that stays is held to be there to the letter. Of the rest the share that
//! survived is measured, for the mechanical summary and for models that summarise badly, and stands as a table in
//! `docs/compaction.md`, which this test holds equal to what it measures. Whatever the context lost, `history` has.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use meerkat_service::{
    Agent, AgentBuildConfig, Seq, SessionId,
    compaction::{COMPACTION_PROMPT, CompactionConfig},
    memory::MemoryOptions,
    model::{ModelClient, ModelError, ModelRequest, ModelStream, StaticModels, scripted::ScriptedModel},
    options::EngineOptions,
    service::{PinFact, ReadEvents, ReadHistory, Remind, SearchHit, SearchMemory},
    session::{
        event::{Event, Record},
        message::{Body, Message},
        reminder::SystemReminderType,
    },
    wire::decode_event,
};
use meerkat_testkit::until_asked;
use tempfile::TempDir;

/// Small enough that a few turns fill it.
const WINDOW_TOKENS: u64 = 4_000;
const KEPT_TURNS: usize = 4;
const COMPACTIONS: [usize; 3] = [1, 3, 10];

/// The scripted model, and what it was sent last for a turn.
#[derive(Default)]
struct Watched {
    sent: Mutex<String>,
}

#[async_trait]
impl ModelClient for Watched {
    fn vendor(&self) -> &str {
        "scripted"
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let text = |message: &Arc<Message>| message.text();
        let last = request.messages.last().map(text);
        if last.as_deref() != Some(COMPACTION_PROMPT) {
            let said: Vec<String> = request.messages.iter().map(text).collect();
            *self.sent.lock().unwrap() =
                format!("{}\n{}", said.join("\n"), request.tail.as_deref().unwrap_or_default());
        }
        ScriptedModel.stream_response(request).await
    }
}

/// What a summary is made by.
#[derive(Clone, Copy)]
struct Summariser {
    name: &'static str,
    script: &'static str,
}

const SUMMARISERS: [Summariser; 4] = [
    Summariser { name: "none: the mechanical summary", script: "@fail rejected" },
    Summariser { name: "a model that drops every second sentence", script: "@summarise drop" },
    Summariser { name: "a model that negates", script: "@summarise negate" },
    Summariser { name: "a model that paraphrases", script: "@summarise paraphrase" },
];

/// The probes of one round, each a fact of its own, by kind.
fn probes(round: usize) -> [(&'static str, String); 6] {
    let n = 4_000 + round * 37;
    [
        ("an id", format!("ORD-{n}-XK")),
        ("a path", format!("crates/parser{n}/src/lib.rs")),
        ("a number", format!("{n}.25 MB")),
        ("a negation", format!("never deploy service {n} on Fridays")),
        ("a decision", format!("we decided to use protocol {n} for sync")),
        ("an open item", format!("still open: the migration of table t{n}")),
    ]
}

/// What must be there of a probe that was said, to the letter: of a value the value, of a sentence all of it, with how it
/// begins, so that one that was turned round does not count.
fn needle(kind: &str, probe: &str) -> String {
    match kind {
        "an id" | "a path" | "a number" => probe.to_owned(),
        _ => format!("Remember: {probe}."),
    }
}

/// A session that is filled with probes until it was compacted so often.
struct Trial {
    agent: Agent,
    model: Arc<Watched>,
    session_id: SessionId,
    /// Each probe that was said, the kind it is of, and the turn that said it.
    said: Vec<(&'static str, String, u32)>,
    summariser: Summariser,
    _dir: TempDir,
}

impl Trial {
    async fn new(summariser: Summariser, has_memory: bool) -> Self {
        let dir = meerkat_testkit::folder();
        let model = Arc::new(Watched::default());
        let models = StaticModels::new("scripted", model.clone(), WINDOW_TOKENS);
        let config =
            CompactionConfig { recent_turn_budget: KEPT_TURNS, max_summary_tokens: 1_000, ..Default::default() };
        let data = dir.path().join("data");
        let agent = AgentBuildConfig::new().models(Arc::new(models)).options(EngineOptions::default());
        let agent = agent.compaction(config).store(data.clone());
        let agent = if has_memory { agent.memory(Some(data), MemoryOptions::default()) } else { agent };
        let agent = agent.build().unwrap();
        let session_id = agent.create_session().await.unwrap().session_id;
        Self { agent, model, session_id, said: Vec::new(), summariser, _dir: dir }
    }

    async fn turn(&self, text: &str) -> u32 {
        let session = meerkat_service::service::StartTurn::new(
            self.session_id,
            format!("@note {text} @say Noted. @compaction {}", self.summariser.script),
        );
        let result = self.agent.service().start_turn(session).await.unwrap();
        assert_eq!(result.error, None, "a turn failed");
        result.turn
    }

    /// A round of probes, each in a turn of its own with some talk around it.
    async fn round(&mut self, round: usize) {
        for (kind, probe) in probes(round) {
            let talk = "Let us go through this once more, slowly and from the beginning, as we did the last time. ";
            let turn = self.turn(&format!("{}Remember: {probe}. {talk}", talk.repeat(3))).await;
            self.said.push((kind, probe, turn));
        }
    }

    /// Every event of the session.
    async fn records(&self) -> Vec<Record> {
        let (mut records, mut since_seq) = (Vec::new(), 0);
        loop {
            let request = ReadEvents { limit: Some(1_000), ..ReadEvents::new(self.session_id, since_seq) };
            let page = self.agent.service().events(request).await.unwrap();
            if page.items.is_empty() {
                return records;
            }
            since_seq = page.next_seq;
            records.extend(page.items.iter().map(|line| decode_event(std::str::from_utf8(line).unwrap()).unwrap()));
        }
    }

    async fn compactions(&self) -> usize {
        let records = self.records().await;
        records.iter().filter(|record| matches!(record.event, Event::CompactionCompleted(_))).count()
    }

    /// What the model is sent for the next turn.
    async fn sent(&self) -> String {
        self.turn("Go on.").await;
        self.model.sent.lock().unwrap().clone()
    }
}

/// What survived of each kind, in percent, and how much of the context the compactions saved.
struct Row {
    shares: BTreeMap<&'static str, (usize, usize)>,
    before: u64,
    after: u64,
}

async fn measure(summariser: Summariser, compactions: usize) -> Row {
    let mut trial = Trial::new(summariser, false).await;
    let (pinned, reminded) = (probes(900), probes(901));
    for (_, probe) in &pinned {
        let pin = PinFact { session_id: trial.session_id, text: probe.clone() };
        trial.agent.service().pin(pin).await.unwrap();
    }
    let text = reminded.iter().map(|(_, probe)| probe.as_str()).collect::<Vec<_>>().join("\n");
    let remind = Remind { session_id: trial.session_id, kind: SystemReminderType::ClaudeMd, text };
    trial.agent.service().remind(remind).await.unwrap();
    let mut round = 0;
    while trial.compactions().await < compactions {
        trial.round(round).await;
        round += 1;
        assert!(round < 200, "it never came to {compactions} compactions");
    }
    let sent = trial.sent().await;
    for (kind, probe) in pinned.iter().chain(&reminded) {
        assert_eq!(sent.matches(probe.as_str()).count(), 1, "{kind} in a pin or a reminder: {probe}");
    }
    trial.assert_history_has_all().await;
    let records = trial.records().await;
    let mut row = Row { shares: BTreeMap::new(), before: 0, after: 0 };
    let mut stays = Vec::new();
    for record in &records {
        if let Event::ContextRebuilt(rebuilt) = &record.event {
            row.before += rebuilt.receipt.tokens_before;
            row.after += rebuilt.receipt.tokens_after;
            stays = rebuilt.retained.clone();
            stays.push((record.seq, Seq::MAX));
        }
    }
    let started = started(&records);
    for (kind, probe, turn) in &trial.said {
        let is_there = sent.contains(&needle(kind, probe));
        if stays.iter().any(|(from, to)| (from..=to).contains(&&started[turn])) {
            assert!(is_there, "{kind} in a turn that stays: {probe}");
            continue;
        }
        let (found, all) = row.shares.entry(kind).or_default();
        *found += usize::from(is_there);
        *all += 1;
    }
    trial.agent.service().shut_down(1_000).await;
    row
}

/// Where each turn started.
fn started(records: &[Record]) -> BTreeMap<u32, Seq> {
    let starts = records.iter().filter(|record| matches!(record.event, Event::TurnStarted(_)));
    starts.map(|record| (record.turn.unwrap(), record.seq)).collect()
}

impl Trial {
    /// Every probe stands in the history, at the seq of the turn that said it.
    async fn assert_history_has_all(&self) {
        let started = started(&self.records().await);
        let (mut history, mut cursor) = (BTreeMap::new(), None);
        loop {
            let request = ReadHistory { cursor, limit: Some(500), ..ReadHistory::new(self.session_id) };
            let page = self.agent.service().history(request).await.unwrap();
            history.extend(page.items.into_iter().map(|item| (item.seq, item.message)));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        for (kind, probe, turn) in &self.said {
            let message = &history[&started[turn]];
            let Message::User { content: Body::Inline(text), .. } = message else { panic!("{message:?} is no prompt") };
            assert!(text.contains(probe.as_str()), "{kind}: {probe} is not at its place in the history");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_survives_is_as_the_documentation_says() {
    let kinds: Vec<&str> = probes(0).iter().map(|(kind, _)| *kind).collect();
    let mut table = format!("| summarised by | compactions | {} | all | tokens saved |\n", kinds.join(" | "));
    writeln!(table, "|---|---|{}---|---|", "---|".repeat(kinds.len())).unwrap();
    for summariser in SUMMARISERS {
        for compactions in COMPACTIONS {
            let row = measure(summariser, compactions).await;
            let percent = |(found, all): (usize, usize)| format!("{} %", found * 100 / all.max(1));
            let shares: Vec<String> = kinds
                .iter()
                .map(|kind| row.shares.get(kind).map_or("none left".to_owned(), |of| percent(*of)))
                .collect();
            let all = row.shares.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
            let saved = (row.before - row.after) * 100 / row.before;
            let (name, shares) = (summariser.name, shares.join(" | "));
            writeln!(table, "| {name} | {compactions} | {shares} | {} | {saved} % |", percent(all)).unwrap();
        }
    }
    assert_documented(&table);
}

/// Whatever the summaries lost, memory finds it: each probe, at the turn that said it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_probe_is_found_in_memory() {
    for summariser in [SUMMARISERS[0], SUMMARISERS[1]] {
        let mut trial = Trial::new(summariser, true).await;
        let most = *COMPACTIONS.last().unwrap();
        let mut round = 0;
        while trial.compactions().await < most {
            trial.round(round).await;
            round += 1;
        }
        let started = started(&trial.records().await);
        for (kind, probe, turn) in &trial.said {
            let asks = SearchMemory { query: probe.clone(), limit: Some(10), ..search() };
            let is_found = |hit: &SearchHit| {
                hit.session_id == trial.session_id && hit.from_seq == started[turn] && hit.text.contains(probe.as_str())
            };
            // A search waits a while for memory, and a busy machine may need more.
            until_asked(&format!("{kind}: {probe} is found"), async || {
                trial.agent.service().search_memory(asks.clone()).await.unwrap().items.iter().any(is_found)
            })
            .await;
        }
        trial.agent.service().shut_down(1_000).await;
    }
}

/// A search of the whole project.
fn search() -> SearchMemory {
    serde_json::from_str(r#"{"query": ""}"#).unwrap()
}

/// Holds the table of the documentation equal to what was measured, or writes it there.
fn assert_documented(table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compaction.md");
    let (begin, end) = ("<!-- measured -->\n", "<!-- /measured -->");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(begin).unwrap();
    let (committed, after) = rest.split_once(end).unwrap();
    if std::env::var_os("MEERKAT_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    } else {
        assert_eq!(committed, table, "docs/compaction.md is not what was measured; MEERKAT_BLESS=1 writes it anew");
    }
}
