//! The framing of stdio: mutations of a corpus, and lines that arrive in pieces.

use meerkat_service::{AgentBuildConfig, clock::World};
use meerkat_surface_rpc::{RpcOptions, service};
use meerkat_testkit::cases;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt as _;

use crate::{
    common::{Client as _, PIPE, pipes, rpc, session, stdio},
    section_7::digest,
};

const CORPUS: &[u8] = include_bytes!("corpus.ndjson");

/// The members of an object, with repetitions.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                std::iter::from_fn(|| map.next_entry().transpose()).collect()
            }
        }
        decoder.deserialize_map(Visitor).map(Members)
    }
}

/// The id of the answer to a line; `None` for a notification, which has none.
fn expected_id(line: &[u8]) -> Option<String> {
    let null = || Some("null".to_owned());
    let Ok(request) = std::str::from_utf8(line) else { return null() };
    let Ok(Members(members)) = serde_json::from_str(request) else { return null() };
    let all =
        |name: &str| members.iter().filter(|(known, _)| known == name).map(|(_, it)| it.get()).collect::<Vec<_>>();
    let known = [all("jsonrpc"), all("method"), all("params"), all("id")];
    let is_id = |id: &str| id == "null" || id.starts_with('"') || id.parse::<u64>().is_ok();
    let [version, method, _, id] = known.each_ref().map(|found| found.first().copied());
    if known[3].len() > 1 || id.is_some_and(|id| !is_id(id)) {
        return null();
    }
    // The library writes a string in its own way.
    let written = |id: &str| serde_json::from_str::<serde_json::Value>(id).unwrap().to_string();
    if let Some(id) = id {
        return Some(written(id));
    }
    let is_string = |text: &str| serde_json::from_str::<String>(text).is_ok();
    let is_version = version.is_some_and(|it| serde_json::from_str::<String>(it).is_ok_and(|it| it == "2.0"));
    let is_whole = known.iter().all(|found| found.len() <= 1);
    if is_whole && is_version && method.is_some_and(is_string) { None } else { null() }
}

/// The id of an answer, which must be valid.
fn id_of(answer: &str) -> String {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
    }

    digest(answer);
    serde_json::from_str::<Answer<'_>>(answer).unwrap().id.get().to_owned()
}

/// Checks that lines get their answers, and that nothing else is written. The service has a session with the corpus's id.
fn check(input: &[u8]) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let output = runtime.block_on(async {
        let engine = AgentBuildConfig::new().world(World::seeded(1, 0)).build().unwrap().service().clone();
        assert_eq!(session(&engine).await, "019b76da-a801-7001-8000-000000000001");
        stdio(&service(engine, RpcOptions::default()), input).await
    });
    let answers: Vec<_> = output.into_iter().filter(|line| !line.contains(r#""method":"session/event""#)).collect();
    let mut found: Vec<_> = answers.iter().map(|line| id_of(line)).collect();
    let lines = input.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let mut expected: Vec<_> = lines.filter_map(expected_id).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected, "{}", String::from_utf8_lossy(input));
    answers
}

#[derive(Clone, Debug)]
enum Mutation {
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize, usize),
    Repeat(usize, usize),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len().max(1);
        let range = |at: usize, count: usize| at % len..(at % len + count).min(len);
        match *self {
            _ if bytes.is_empty() => {}
            Self::Set(at, byte) => bytes[at % len] = byte,
            Self::Insert(at, byte) => bytes.insert(at % len, byte),
            Self::Remove(at, count) => drop(bytes.drain(range(at, count))),
            Self::Repeat(at, count) => {
                let piece = bytes[range(at, count)].to_vec();
                bytes.splice(at % len..at % len, piece);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // More often bytes with a meaning in JSON or lines.
    let byte = prop_oneof![3 => proptest::sample::select(&b"{}[]\",:\\\n\r 0\xff"[..]), 1 => any::<u8>()];
    prop_oneof![
        (any::<usize>(), byte.clone()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<usize>(), byte).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        (any::<usize>(), 1..40_usize).prop_map(|(at, count)| Mutation::Remove(at, count)),
        (any::<usize>(), 1..40_usize).prop_map(|(at, count)| Mutation::Repeat(at, count)),
    ]
}

#[test]
fn the_corpus_is_answered() {
    let answers: Vec<_> = check(CORPUS).iter().map(|answer| digest(answer)).collect();
    for id in ["1", "2", r#""s""#, r#""éé\"\\""#, "4"] {
        assert!(answers.contains(&format!("{id}: ok")), "{id}: {answers:?}");
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn every_line_gets_what_it_is_owed(mutations in proptest::collection::vec(mutation(), 1..20)) {
        let mut input = CORPUS.to_vec();
        for mutation in &mutations {
            mutation.apply(&mut input);
        }
        check(&input);
    }
}

#[tokio::test]
async fn a_line_may_come_in_any_two_pieces() {
    let input = "{\"jsonrpc\":\"2.0\",\"id\":\"é\",\"method\":\"errors/list\"}\r\n\n[1]\n{\n";
    let expected = ["\"é\": ok", "null: -32600 INVALID_REQUEST", "null: -32700 INVALID_REQUEST"];
    let rpc = rpc();
    for at in 0..=input.len() {
        let mut client = pipes(&rpc, PIPE);
        let (first, second) = input.as_bytes().split_at(at);
        client.input.write_all(first).await.unwrap();
        // The reader takes the first piece before the second one.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        client.input.write_all(second).await.unwrap();
        client.input.shutdown().await.unwrap();
        let mut answers: Vec<_> = client.rest().await.iter().map(|answer| digest(answer)).collect();
        answers.sort_unstable();
        assert_eq!(answers, expected, "split at {at}");
    }
}

#[tokio::test]
async fn a_last_line_needs_no_end_and_half_a_line_is_no_json() {
    let rpc = rpc();
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"errors/list"}"#;
    assert_eq!(digest(&stdio(&rpc, line.as_bytes()).await[0]), "1: ok");
    assert_eq!(digest(&stdio(&rpc, &line.as_bytes()[..30]).await[0]), "null: -32700 INVALID_REQUEST");
    assert!(stdio(&rpc, b"").await.is_empty());
    assert!(stdio(&rpc, b"\n \r\n\t").await.is_empty());
}
