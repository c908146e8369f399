//! An index that is damaged while its owner runs: nobody is ever answered from what is left of it.

use std::{collections::BTreeMap, fs, os::unix::fs::FileExt as _};

use meerkat_service::{
    SessionId,
    service::{CreateSession, NamedReader, SessionQuery, UpdateSession},
};

use crate::stored::{Place, Process, files, pages};

/// Their rows are more than redb keeps in memory of its file.
const SESSIONS: usize = 120;

/// A create whose row is long.
fn create(n: usize) -> CreateSession {
    let labels = (0..64).map(|label| (format!("label {label}"), "x".repeat(1000))).collect::<BTreeMap<_, _>>();
    CreateSession { labels, idempotency_key: Some(format!("key {n}")), ..CreateSession::default() }
}

/// Every byte of the index behind its header is another one.
fn flip(place: &Place) {
    let file = fs::File::options().read(true).write(true).open(place.index()).unwrap();
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap() - 4096];
    file.read_exact_at(&mut bytes, 4096).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    file.write_all_at(&bytes, 4096).unwrap();
}

/// All that are listed, the newest first.
async fn listed(process: &Process) -> Vec<SessionId> {
    let ask = |cursor| process.service.list(SessionQuery { limit: Some(7), cursor, ..SessionQuery::default() });
    let mut ids: Vec<SessionId> = pages(ask).await.0.concat().iter().map(|item| item.session_id).collect();
    ids.sort_unstable_by(|a, b| b.cmp(a));
    ids
}

#[test]
fn an_index_that_is_damaged_while_it_is_open_is_made_anew() {
    let place = Place::new();
    let mut ids = place.process(true, async |process| {
        let mut ids = Vec::new();
        for n in 0..SESSIONS {
            ids.push(process.service.create_session(create(n)).await.unwrap().session_id);
        }
        ids
    });
    for (times, first) in ["a key", "a change", "a reader"].into_iter().enumerate() {
        place.process(true, async |process| {
            process.service.ready().await.unwrap();
            flip(&place);
            if first == "a change" {
                let update = UpdateSession { session_id: ids[3], title: Some("A title".to_owned()), labels: None };
                process.service.update(update).await.unwrap();
                assert_eq!(process.turn(ids[5], "@say Still.").await.unwrap().text, "Still.");
            }
            if first == "a reader" {
                let reader = || NamedReader { reader: "r".to_owned() };
                // The caller that finds the damage may fail.
                drop(process.service.create_reader(reader()).await);
                let behind = process.service.create_reader(reader()).await.unwrap().sessions_behind;
                assert_eq!(behind, ids.len() as u64, "a lost index hides no session from a reader");
            }
            for n in [0, SESSIONS / 2, SESSIONS - 1] {
                let again = process.service.create_session(create(n)).await.unwrap();
                assert_eq!(again.session_id, ids[n], "a key stands for the session that it made");
            }
            let newest_first = |ids: &[SessionId]| ids.iter().rev().copied().collect::<Vec<_>>();
            assert_eq!(listed(&process).await, newest_first(&ids));
            assert_eq!(process.turn(ids[SESSIONS - 1], "@say On.").await.unwrap().text, "On.");
            ids.push(process.create().await);
            assert_eq!(listed(&process).await, newest_first(&ids));
        });
        let set_aside = files(&place.data_dir()).into_iter().filter(|path| path.contains("set-aside")).count();
        assert_eq!(set_aside, times + 1, "{first}: the damage was noticed");
    }
}
