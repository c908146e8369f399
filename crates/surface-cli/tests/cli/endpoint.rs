//! `memory.embedder = "endpoint"` through the whole program: a server on loopback that speaks as OpenAI's does, processes
//! that take in and search, and what people are told if it fails.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::{until, until_some};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::drive::{Ran, fake, meerkat, ran};

const KEY: &str = "embed-key-0123456789abcdef";
/// Words of one meaning each.
const MEANINGS: [&[&str]; 3] = [&["hound", "canine"], &["lorry", "vehicle"], &["drizzle", "precipitation"]];

/// What the server does with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Does {
    #[default]
    Answers,
    /// With vectors that have more components than before.
    AnswersLonger,
    Refuses(u16),
    Hangs,
}

#[derive(Default)]
struct Seen {
    does: Does,
    /// Texts of one model that are answered, without those of queries; a request for more is refused.
    most: Option<usize>,
    /// Requests that were refused for that.
    refusals: usize,
    /// The model and a text of each that was answered.
    answered: Vec<(String, String)>,
}

/// An endpoint on loopback.
struct Server {
    port: u16,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    fn start() -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = seen.clone();
        let port = fake::serve(move |asked| {
            assert_eq!(asked.line, "POST /v1/embeddings HTTP/1.1");
            let (status, body) = answer(&serde_json::from_slice(&asked.body).unwrap(), &asked.key, &shared)?;
            Some((status, "application/json", body))
        });
        Self { port, seen }
    }

    fn does(&self, does: Does) {
        self.seen.lock().unwrap().does = does;
    }

    /// The texts that a model was asked for and gave vectors of.
    fn texts(&self, model: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.answered.iter().filter(|(of, _)| of == model).map(|(_, text)| text.clone()).collect()
    }
}

/// The status and the body, as OpenAI's server writes them; `None` where it is silent.
fn answer(request: &Value, key: &str, seen: &Mutex<Seen>) -> Option<(u16, String)> {
    let refused = |status: u16, code: &str| {
        let message = format!("Refused. You sent the key {key}.");
        let error = json!({"message": message, "type": "requests", "param": null, "code": code});
        Some((status, json!({ "error": error }).to_string()))
    };
    let mut seen = seen.lock().unwrap();
    let does = seen.does;
    match does {
        _ if key != KEY => return refused(401, "invalid_api_key"),
        Does::Refuses(status) => return refused(status, "refused"),
        Does::Hangs => return None,
        Does::Answers | Does::AnswersLonger => {}
    }
    assert_eq!(request["encoding_format"], "float");
    let model = request["model"].as_str().unwrap();
    let texts: Vec<&str> = request["input"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let known = seen.answered.iter().filter(|(of, _)| of == model).map(|(_, text)| text.as_str());
    let wanted: BTreeSet<&str> = known.chain(texts.iter().copied()).filter(|text| !is_query(text)).collect();
    if seen.most.is_some_and(|most| wanted.len() > most) {
        seen.refusals += 1;
        return refused(500, "refused");
    }
    let embedded = |(index, text): (usize, &&str)| {
        let mut vector: Vec<f64> =
            MEANINGS.iter().map(|words| f64::from(words.iter().any(|word| text.contains(word)))).collect();
        vector.resize(if does == Does::AnswersLonger { 6 } else { 4 }, if vector.contains(&1.0) { 0.0 } else { 0.5 });
        json!({"object": "embedding", "index": index, "embedding": vector})
    };
    // Each says which text it belongs to, and they come as they come.
    let data: Vec<Value> = texts.iter().enumerate().map(embedded).rev().collect();
    seen.answered.extend(texts.iter().map(|text| (model.to_owned(), (*text).to_owned())));
    let usage = json!({"prompt_tokens": texts.len(), "total_tokens": texts.len()});
    Some((200, json!({"object": "list", "data": data, "model": model, "usage": usage}).to_string()))
}

fn is_query(text: &str) -> bool {
    ["canine", "hound"].contains(&text)
}

/// A project that is configured for a server.
struct Project(TempDir);

impl Project {
    fn new(server: &Server, model: &str) -> Self {
        let project = Self(meerkat_testkit::folder());
        project.configure(server, model);
        project
    }

    fn configure(&self, server: &Server, model: &str) {
        let config = format!(
            "[memory]\nembedder = \"endpoint\"\nendpoint.base_url = \"http://127.0.0.1:{}/v1\"\nendpoint.model = \
             \"{model}\"\nendpoint.key_variable = \"EMBEDDINGS_KEY\"\n",
            server.port
        );
        std::fs::create_dir_all(self.0.path().join(".git")).unwrap();
        let folder = self.0.path().join(".config/meerkat");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("meerkat.toml"), config).unwrap();
    }

    fn run_with(&self, args: &[&str], key: &str) -> Ran {
        let ran = ran(meerkat(&self.0, args).env("EMBEDDINGS_KEY", key));
        assert!(!format!("{}{}", ran.out, ran.err).contains(KEY), "the key is told: {}{}", ran.out, ran.err);
        ran
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, KEY)
    }

    #[track_caller]
    fn say(&self, text: &str) {
        let said = self.run(&["run", &format!("@say {text}")]);
        assert_eq!(said.code, 0, "{}", said.err);
    }

    /// The hits for a query, each with its text and the lanes that found it; and what people are told beside them.
    #[track_caller]
    fn find(&self, query: &str) -> (Vec<(String, Vec<String>)>, String) {
        let found = self.run(&["memory", "search", query, "--role", "assistant", "--json"]);
        assert_eq!(found.code, 0, "{}", found.err);
        let items = found.json();
        let hit = |hit: &Value| {
            let lanes = hit["lanes"].as_object().unwrap().keys().cloned().collect();
            (hit["text"].as_str().unwrap().to_owned(), lanes)
        };
        (items["items"].as_array().unwrap().iter().map(hit).collect(), found.err)
    }

    /// Searches until so many are found: vectors are made beside all else.
    #[track_caller]
    fn find_by_meaning(&self, query: &str, hits: usize) -> Vec<(String, Vec<String>)> {
        until_some(&format!("{hits} are found by the meaning of {query}"), || {
            Some(self.find(query).0).filter(|found| found.len() >= hits)
        })
    }
}

fn by_meaning(text: &str) -> Vec<(String, Vec<String>)> {
    vec![(text.to_owned(), vec!["vector".to_owned()])]
}

#[test]
fn what_shares_no_word_is_found_by_its_meaning() {
    let server = Server::start();
    let project = Project::new(&server, "small");
    project.say("The hound sleeps.");
    project.say("A lorry was sold.");
    assert_eq!(project.find_by_meaning("canine", 1), by_meaning("The hound sleeps."));
    assert_eq!(project.find_by_meaning("vehicle", 1), by_meaning("A lorry was sold."));
    let both = ["vector", "words"].map(str::to_owned).to_vec();
    // A query waits for its vector a second at most, which a busy machine may take.
    let both = ("The hound sleeps.".to_owned(), both);
    until("it is found by the word and by its meaning", || project.find("hound").0[0] == both);
    // What is an answer by its words alone is no secret, and the key of the endpoint is one.
    let echoed = project.run(&["run", &format!("@say The key is {KEY}.")]);
    assert_eq!(echoed.out, "The key is [redacted].\n");
}

#[test]
fn another_model_makes_all_vectors_anew_and_goes_on_where_it_was_interrupted() {
    let server = Server::start();
    let project = Project::new(&server, "small");
    // More than one request has room for.
    let paragraphs: Vec<String> = (0..90).map(|n| format!("Paragraph {n}: {}", "drizzle ".repeat(150))).collect();
    std::fs::write(project.0.path().join("prompt"), paragraphs.join("\n\n")).unwrap();
    let prompt = std::fs::File::open(project.0.path().join("prompt")).unwrap();
    let mut long = meerkat(&project.0, &["run", "-"]);
    assert!(long.env("EMBEDDINGS_KEY", KEY).stdin(prompt).output().unwrap().status.success());
    project.say("The hound sleeps.");
    assert_eq!(project.find_by_meaning("canine", 1), by_meaning("The hound sleeps."));
    let of = |model: &str| server.texts(model).into_iter().filter(|text| !is_query(text)).collect::<Vec<String>>();
    let small = of("small");
    // A process that ends waits for its vectors a second at most, so the next one may ask for some again.
    let all: BTreeSet<&String> = small.iter().collect();
    assert!(all.len() > 90, "{}", all.len());

    project.configure(&server, "large");
    server.seen.lock().unwrap().most = Some(64);
    // The old vectors are of no use, and the words answer.
    let (hits, _) = project.find("hound");
    assert_eq!(hits[0], ("The hound sleeps.".to_owned(), ["words"].map(str::to_owned).to_vec()));
    // It asks for more only when it has kept the first ones.
    until("it asks for more", || {
        project.find("hound");
        server.seen.lock().unwrap().refusals > 0
    });
    let asked = of("large");
    let first: BTreeSet<&String> = asked.iter().collect();
    assert_eq!(first.len(), 64);
    server.seen.lock().unwrap().most = None;
    assert_eq!(project.find_by_meaning("canine", 1), by_meaning("The hound sleeps."));
    let large = of("large");
    assert!(large[asked.len()..].iter().all(|text| !first.contains(text)), "it goes on where it was interrupted");
    assert_eq!(large.iter().collect::<BTreeSet<_>>(), all);
    assert_eq!(of("small"), small);
}

#[test]
fn where_the_server_fails_the_words_answer_and_people_are_told() {
    let server = Server::start();
    let project = Project::new(&server, "small");
    // Before there is any vector, who takes in is told.
    for (does, told) in [(Does::Refuses(500), "500"), (Does::Hangs, "not all that was said has its vector yet")] {
        server.does(does);
        // Only if memory has taken in the text before the process ends is there anything to be told.
        until(&format!("{does:?} is told"), || {
            let said = project.run(&["run", "@say The hound sleeps."]);
            assert_eq!(said.code, 0, "{does:?}: {}", said.err);
            said.err.contains(told)
        });
    }
    server.does(Does::Answers);
    assert_eq!(project.find_by_meaning("canine", 1)[0], by_meaning("The hound sleeps.")[0]);
    let words = ["words"].map(str::to_owned).to_vec();
    for (does, told) in [
        (Does::Refuses(401), "memory.endpoint.key_variable"),
        (Does::Refuses(404), "check memory.endpoint"),
        (Does::Refuses(429), "429"),
        (Does::Refuses(500), "500"),
        (Does::Hangs, "silent"),
        (Does::AnswersLonger, "meerkat memory reindex"),
    ] {
        server.does(does);
        let said = project.run(&["-vvv", "run", &format!("@say A lorry for {does:?}.")]);
        assert_eq!(said.code, 0, "{does:?}: {}", said.err);
        // A query waits for its vector a second at most; what takes longer passes for a server that is silent.
        until(&format!("{does:?} is told, and the words answer"), || {
            let (hits, err) = project.find("lorry");
            err.contains(told) && hits.iter().any(|(text, lanes)| text.contains("lorry") && *lanes == words)
        });
        // Of 500 it is tried again for a while, and a server that is silent may take minutes.
        if matches!(does, Does::Refuses(401 | 404 | 429)) {
            let refused = project.run(&["memory", "reindex"]);
            assert_eq!(refused.code, ErrorCode::MemoryIndexUnavailable.exit_code(), "{}", refused.err);
            assert!(refused.err.contains("MEMORY_INDEX_UNAVAILABLE") && refused.err.contains(told), "{}", refused.err);
            server.does(Does::Answers);
            assert!(!project.find_by_meaning("vehicle", 1).is_empty());
        }
    }
    // It answers as before: nothing is to be done for that.
    server.does(Does::Answers);
    assert!(project.find_by_meaning("vehicle", 6).iter().all(|(_, lanes)| *lanes == ["vector"]));
    // As it answers now.
    server.does(Does::AnswersLonger);
    assert_eq!(project.run(&["memory", "reindex"]).code, 0);
    assert_eq!(project.find_by_meaning("canine", 1)[0], by_meaning("The hound sleeps.")[0]);
    let unset = project.run_with(&["memory", "search", "hound"], "");
    assert!(unset.code == 0 && unset.err.contains("memory.endpoint.key_variable"), "{}", unset.err);
}
