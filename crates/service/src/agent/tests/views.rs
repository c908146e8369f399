//! Views of a session: readers find the durable state while a turn runs, and older states are not kept.

use std::sync::{Arc, Weak};

use tokio::sync::mpsc;

use super::Rig;
use crate::{
    agent::{actor::Actor, shared::Shared},
    follow::live::LiveHub,
    session::{
        Session,
        event::{Event, Pinned},
        tests::{created, record, session_id},
    },
    store::Stores,
};

/// Broken once: a turn of 50 calls kept 153 views, each with its own summary.
#[tokio::test]
async fn a_turn_does_not_keep_the_views_that_newer_ones_replaced() {
    let ports = Rig::new(Vec::new()).engine(Stores::in_memory(u64::MAX, &Arc::default()), true).ports;
    let first = record(1, None, created());
    let session = Session::begin(&first).unwrap();
    let lease = ports.events.lease(session_id()).await.unwrap();
    ports.events.stage(&lease, &[first]).unwrap().durable().await.unwrap();
    let shared = Shared::new(&session, Arc::new(LiveHub::new(session_id(), Weak::new())));
    let (_mailbox, commands) = mpsc::channel(1);
    let mut actor = Actor::new(session, lease, ports, shared.clone(), Weak::new(), commands);
    for _ in 0..50 {
        let pin = Event::Pinned(Pinned { text: "a fact".to_owned() });
        actor.record(None, vec![pin]).await.unwrap();
        // Each view shares the reminders with the session.
        let views = Arc::strong_count(&actor.session.reminders) - 1;
        assert!(views <= 2, "{views} views are kept");
    }
    assert_eq!(shared.view(actor.session.last_seq).unwrap().pins.len(), 50);
}
