//! A session with a damaged record, over HTTP: no answer ends at the damage as if that were all.

use std::path::{Path, PathBuf};

use meerkat_service::AgentBuildConfig;
use meerkat_surface_rest::RestOptions;
use serde_json::Value;

use crate::common::Server;

fn open(dir: &Path) -> Server {
    Server::with(AgentBuildConfig::new().store(dir.to_owned()).build().unwrap(), RestOptions::default())
}

/// Finds the first file of a session's journal.
fn journal(dir: &Path, session: &str) -> PathBuf {
    let folder = dir.join("journal").join(&session[session.len() - 2..]).join(session);
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "mlog")).min().unwrap()
}

/// Changes a bit of this text in a file.
fn damage(path: &Path, text: &str) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_damaged_session_is_refused_where_it_is_damaged_and_read_past_it_if_that_is_asked_for() {
    let dir = meerkat_testkit::folder();
    let server = open(dir.path());
    let session = server.session().await;
    for n in 0..6 {
        server.turn(&session, &format!("@say Text {n}.")).await;
    }
    let before = server.lines(&session, 0).await;
    let bad = 1 + before.iter().position(|line| line.contains(r#""text":"Text 3.""#)).unwrap();
    server.service.shut_down(60_000).await;
    drop(server);
    damage(&journal(dir.path(), &session), r#""text":"Text 3.""#);

    let server = open(dir.path());
    let of = |what: &str| format!("GET /v1/sessions/{session}/{what}");
    let is_it = |body: &Value| {
        let (code, last) = (&body["code"], &body["details"]["last_good_seq"]);
        assert_eq!((code.as_str(), last.as_u64()), (Some("SESSION_CORRUPTED"), Some(bad as u64 - 1)), "{body}");
    };
    // A page that has something good ends there, and the next one is refused.
    let page = server.send(&of("events?limit=1000"), "").await.ok();
    let good: Vec<&str> = before[..bad - 1].iter().map(String::as_str).collect();
    assert_eq!(page["items"].as_array().unwrap().len(), good.len());
    for what in [format!("events?since_seq={}", bad - 1), "bundle".to_owned()] {
        let refused = server.send(&of(&what), "").await;
        assert_eq!(refused.refusal().1, "SESSION_CORRUPTED", "{what}");
        is_it(&refused.json());
    }
    let refused = server.send(&format!("POST /v1/sessions/{session}/turns"), r#"{"prompt":"Next."}"#).await;
    is_it(&refused.json());

    let mut stream = server.follow(&of("events"), "").await;
    for line in &good {
        assert_eq!(stream.next().await.unwrap().data, *line);
    }
    let last = stream.next().await.unwrap();
    assert_eq!((last.id, last.event.as_deref()), (None, Some("failure")), "{}", last.data);
    is_it(&serde_json::from_str(&last.data).unwrap());
    assert_eq!(stream.next().await, None);

    let whole = server.send(&of("events?skip_damage=true&limit=1000"), "").await.ok();
    let items = whole["items"].as_array().unwrap();
    let seqs: Vec<u64> = items.iter().filter_map(|item| item["seq"].as_u64()).collect();
    let is_good = |seq: &u64| *seq != bad as u64;
    assert_eq!(seqs, (1..=before.len() as u64).filter(is_good).collect::<Vec<_>>(), "{whole}");
    assert_eq!(items.iter().filter(|item| item["type"] == "pruned").count(), 1, "{whole}");
    let mut stream = server.follow(&of("events?skip_damage=true"), "").await;
    for (at, line) in before.iter().enumerate() {
        let sent = stream.next().await.unwrap();
        if at + 1 == bad {
            let gap: Value = serde_json::from_str(&sent.data).unwrap();
            let [from, to] = ["from", "to"].map(|field| gap[field].as_u64());
            assert_eq!((gap["type"].as_str(), gap["reason"].as_str()), (Some("pruned"), Some("damage")), "{gap}");
            assert_eq!([from, to], [Some(bad as u64); 2], "{gap}");
        } else {
            assert_eq!(sent.data, *line);
        }
    }
}
