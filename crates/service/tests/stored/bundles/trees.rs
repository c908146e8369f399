//! A bundle of a session has its sub-agents, and an import makes them again below it.

use std::collections::BTreeMap;

use meerkat_service::{
    SessionId,
    service::{SessionQuery, SessionSummary},
};
use serde_json::json;

use super::{Place, Process};
use crate::stored::whole;

fn place() -> Place {
    let mut place = Place::new();
    (place.options.agents.enabled, place.options.agents.depth) = (true, 2);
    place
}

fn delegates(prompt: &str) -> String {
    format!("@call delegate {} ", json!({ "prompt": prompt }))
}

impl Process {
    /// Makes a session with two sub-agents, the first of which has two.
    async fn family(&self) -> SessionId {
        let leaf = || delegates("@say Leaf.");
        let id = self.create().await;
        let branch = delegates(&format!("{}{}@say Branch.", leaf(), leaf()));
        self.turn(id, &format!("{branch}{}@say Root.", leaf())).await.unwrap();
        id
    }

    async fn all(&self) -> BTreeMap<SessionId, SessionSummary> {
        let query = SessionQuery { children: true, ..SessionQuery::default() };
        let all = self.service.list(query).await.unwrap().items;
        all.into_iter().map(|session| (session.session_id, session)).collect()
    }
}

#[test]
fn a_bundle_of_a_session_brings_its_sub_agents_along() {
    let (home, other) = (place(), place());
    let (root, branch, before, bundle, one) = home.process(true, async |process| {
        let root = process.family().await;
        process.family().await;
        let before = process.all().await;
        assert_eq!(before.len(), 10);
        let callers = before.values().filter_map(|session| Some(session.parent.as_ref()?.session_id));
        let branch = callers.clone().find(|caller| *caller != root && before[caller].parent.is_some()).unwrap();
        assert_eq!(callers.filter(|caller| *caller == root).count(), 2);
        let branch_of = before[&branch].parent.as_ref().unwrap().session_id;
        (branch_of, branch, before, process.export(branch_of, false).await, process.export(branch, false).await)
    });
    other.process(true, async |process| {
        // In the order of the bundle: each after the session that called it.
        let made: Vec<SessionId> =
            process.import(&bundle, 100_000, false).await.unwrap().iter().map(|made| made.session_id).collect();
        assert_eq!((made.len(), made[0]), (5, root));
        let all = process.all().await;
        for (id, session) in &all {
            assert_eq!(session.parent, before[id].parent, "{id}");
        }
        // A sub-agent that is missing comes back to the session that is here.
        process.delete(branch).await;
        assert_eq!(process.all().await.len(), 2);
        let again = process.service.import_bundle(whole(&bundle, false)).await.unwrap();
        assert_eq!((again.sessions.len(), again.skipped.len()), (3, 2));
        assert_eq!(process.all().await.len(), 5);
        assert_eq!(process.all().await[&branch].parent, before[&branch].parent);

        // Under new ids it is another tree.
        let copies = process.import(&bundle, 100_000, true).await.unwrap();
        let new: BTreeMap<SessionId, SessionId> =
            copies.iter().map(|made| (made.imported_from, made.session_id)).collect();
        let all = process.all().await;
        for (was, id) in &new {
            let (then, now) = (&before[was].parent, &all[id].parent);
            assert_eq!(now.as_ref().map(|it| it.session_id), then.as_ref().map(|it| new[&it.session_id]), "{was}");
            assert_eq!(now.as_ref().map(|it| &it.call_id), then.as_ref().map(|it| &it.call_id), "{was}");
        }
        process.delete(new[&root]).await;
        assert_eq!(process.all().await.len(), 5);

        // What comes without the session that called it is nobody's.
        let alone = process.import(&one, 100_000, true).await.unwrap();
        assert_eq!(alone.len(), 3);
        let all = process.all().await;
        assert_eq!(all[&alone[0].session_id].parent, None);
        assert_eq!(all[&alone[1].session_id].parent.as_ref().unwrap().session_id, alone[0].session_id);
        process.delete(root).await;
        process.delete(alone[0].session_id).await;
        assert!(process.all().await.is_empty());
    });
}

/// Whoever writes a bundle may claim anything of a session that is here.
#[test]
fn a_bundle_puts_no_session_below_one_that_it_does_not_have() {
    let place = place();
    place.process(true, async |process| {
        let root = process.family().await;
        let children = process.all().await;
        let child = *children.iter().find(|(_, session)| session.parent.is_some()).unwrap().0;
        let bundle = process.export(child, false).await;
        let made = process.import(&bundle, 100_000, true).await.unwrap().remove(0).session_id;
        assert_eq!(process.all().await[&made].parent, None);
        process.delete(root).await;
        assert!(process.all().await.contains_key(&made));
    });
}
