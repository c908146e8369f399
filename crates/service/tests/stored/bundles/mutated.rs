//! Bundles with some bytes changed, from a small corpus that is kept: what comes in is one of the sessions that went
//! out, or nothing does. Where hashes are made to fit, whatever comes in can still be read, and nothing panics.
//!
//! The corpus also holds that a bundle of an earlier version can be imported.

use meerkat_service::{ErrorCode, SessionId};
use meerkat_testkit::cases;
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    archive::{FOLDER, pack, seal, unpack},
    in_memory,
};
use crate::stored::Process;

/// A session with a body in a blob, and it with a fork of it.
const CORPUS: [&[u8]; 2] = [include_bytes!("corpus/one.tar"), include_bytes!("corpus/many.tar")];

/// The lines of each session of a bundle.
fn sessions(bundle: &[u8]) -> Vec<(String, Vec<String>)> {
    let files = unpack(bundle);
    let events = files.iter().filter(|file| file.is_in("events/"));
    let lines = |body: &[u8]| std::str::from_utf8(body).unwrap().lines().map(str::to_owned).collect();
    events.map(|file| (file.text(FOLDER), lines(&file.body))).collect()
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    /// Others in the place of so many bytes.
    Replace(Index, usize, Vec<u8>),
    Repeat(Index, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let inserted = prop_oneof![vec(any::<u8>(), 1..20), Just(vec![0; 512])];
    let removed = prop_oneof![1..20_usize, Just(512)];
    let repeated = prop_oneof![1..20_usize, Just(512), Just(1024)];
    prop_oneof![
        4 => (at(), 0..8_u8).prop_map(|(at, bit)| Mutation::Flip(at, 1 << bit)),
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Replace(at, 1, vec![byte])),
        2 => (at(), inserted).prop_map(|(at, bytes)| Mutation::Replace(at, 0, bytes)),
        2 => (at(), removed).prop_map(|(at, len)| Mutation::Replace(at, len, Vec::new())),
        1 => at().prop_map(|at| Mutation::Replace(at, usize::MAX, Vec::new())),
        1 => (at(), repeated).prop_map(|(at, len)| Mutation::Repeat(at, len)),
    ]
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let end = bytes.len();
        let range = |at: &Index, len: usize| {
            let at = at.index(end);
            at..end.min(at.saturating_add(len))
        };
        match self {
            Self::Flip(at, bit) => *at.get_mut(bytes) ^= bit,
            Self::Replace(at, len, others) => drop(bytes.splice(range(at, *len), others.iter().copied())),
            Self::Repeat(at, len) => {
                let range = range(at, *len);
                let part = bytes[range.clone()].to_vec();
                bytes.splice(range.start..range.start, part);
            }
        }
    }
}

/// Imports it; if it is refused, nothing is left.
async fn import(bundle: &[u8], new_ids: bool) -> Option<(Process, Vec<SessionId>)> {
    let (process, held) = in_memory(Default::default());
    match process.import(bundle, usize::MAX, new_ids).await {
        Ok(made) => Some((process, made.iter().map(|made| made.session_id).collect())),
        Err(refused) => {
            assert_eq!(refused.code(), ErrorCode::BundleInvalid, "{refused}");
            assert_eq!(process.listed().await, []);
            assert_eq!(held.bytes(), 0);
            None
        }
    }
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

#[test]
fn the_corpus_is_good() {
    run(async {
        for bundle in CORPUS {
            let due = sessions(bundle);
            let (process, ids) = import(bundle, false).await.unwrap();
            for (id, (folder, lines)) in ids.iter().zip(&due) {
                assert_eq!((id.to_string(), &process.lines(*id).await), (folder.clone(), lines));
                process.turn(*id, "@say It goes on.").await.ok();
            }
            assert_eq!(ids.len(), due.len());
            assert_eq!(import(bundle, true).await.unwrap().1.len(), due.len());
        }
    });
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn a_bundle_with_changed_bytes_is_the_same_sessions_or_none(
        which in 0..CORPUS.len(),
        mutations in vec(mutation(), 1..4),
        new_ids: bool,
    ) {
        let mut bundle = CORPUS[which].to_vec();
        mutations.iter().for_each(|mutation| mutation.apply(&mut bundle));
        run(async {
            let Some((process, ids)) = import(&bundle, new_ids).await else { return };
            // What ends between two sections is a bundle of those before; what begins there, of those behind.
            let due = sessions(CORPUS[which]);
            for id in &ids {
                let lines = process.lines(*id).await;
                let known = due.iter().any(|(folder, due)| match new_ids {
                    true => lines[..lines.len() - 1] == *due,
                    false => *folder == id.to_string() && lines == *due,
                });
                assert!(known, "{id} is no session of the corpus");
            }
            assert!(!ids.is_empty() && ids.len() <= due.len());
        });
    }

    #[test]
    fn lines_that_are_changed_and_sealed_do_no_harm(
        which in 0..CORPUS.len(),
        mutations in vec((mutation(), any::<Index>()), 1..4),
        new_ids: bool,
    ) {
        let mut files = unpack(CORPUS[which]);
        for (mutation, at) in &mutations {
            let events: Vec<usize> = (0..files.len()).filter(|at| files[*at].is_in("events/")).collect();
            let at = *at.get(&events);
            let mut body = files[at].body.clone();
            mutation.apply(&mut body);
            files[at].fill(body);
        }
        seal(&mut files);
        run(async {
            let Some((process, ids)) = import(&pack(&files), new_ids).await else { return };
            for session_id in ids {
                assert!(!process.lines(session_id).await.is_empty());
                process.view(session_id).await;
                process.said(session_id).await;
                process.export(session_id, true).await;
                let ended = process.turn(session_id, "@say It goes on.").await;
                assert!(!ended.is_err_and(|error| error.code() == ErrorCode::Internal));
            }
        });
    }
}
