//! The cost of a subscriber, counted exactly. One test in one process, so nothing else is counted.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::alloc::System;

use axum::body::Body;
use futures::FutureExt as _;
use http::Request;
use http_body_util::BodyExt as _;
use meerkat_service::{
    AgentBuildConfig,
    service::{PinFact, Remind, Unpin},
    session::reminder::SystemReminderType,
};
use meerkat_surface_rest::{RestOptions, router};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::task::unconstrained;
use tower::ServiceExt as _;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const EVENTS: usize = 63;
/// Frames of a durable event: a head, the shared line, an end.
const PIECES: usize = 3;

#[tokio::test(flavor = "current_thread")]
async fn an_event_allocates_nothing_for_its_subscribers_and_an_idle_stream_is_small() {
    let agent = AgentBuildConfig::new().build().unwrap();
    let session_id = agent.create_session().await.unwrap().session_id;
    for _ in 1..EVENTS {
        agent.service().pin(PinFact { session_id, text: "It is blue.".to_owned() }).await.unwrap();
        let last = agent.service().pins(&session_id).await.unwrap().items.pop().unwrap().seq;
        agent.service().unpin(Unpin { session_id, pin: last }).await.unwrap();
    }
    let rest = router(agent.service().clone(), RestOptions::default());
    let open = async || {
        let request = Request::get(format!("/v1/sessions/{session_id}/events")).header("accept", "text/event-stream");
        rest.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().into_body()
    };
    // The follower reads ahead, so the events after the first one cost only their frames.
    let mut body = open().await;
    for _ in 0..PIECES {
        drop(body.frame().await.unwrap().unwrap());
    }
    let region = Region::new(ALLOCATOR);
    for _ in 1..EVENTS {
        for _ in 0..PIECES {
            drop(body.frame().await.unwrap().unwrap());
        }
    }
    assert_eq!(region.change().allocations, 0, "frames of lines that are there");

    drop(idle(&open).await);
    let region = Region::new(ALLOCATOR);
    let body = idle(&open).await;
    let change = region.change();
    let held = change.bytes_allocated - change.bytes_deallocated;
    assert!(held <= 2048, "an idle stream holds {held} bytes");
    drop(body);

    let mut bodies = [idle(&open).await, idle(&open).await, idle(&open).await];
    for _ in 0..EVENTS {
        let (kind, text) = (SystemReminderType::ClaudeMd, "It is blue.".to_owned());
        agent.service().remind(Remind { session_id, kind, text }).await.unwrap();
        let region = Region::new(ALLOCATOR);
        for body in &mut bodies {
            for _ in 0..PIECES {
                drop(unconstrained(body.frame()).now_or_never().unwrap().unwrap().unwrap());
            }
            assert!(unconstrained(body.frame()).now_or_never().is_none());
        }
        assert_eq!(region.change().allocations, 0, "subscribers that wake, send an event, and wait again");
    }
}

/// A stream that has sent everything and waits.
async fn idle(open: &impl AsyncFn() -> Body) -> Body {
    let mut body = open().await;
    while let Some(frame) = body.frame().now_or_never() {
        drop(frame.unwrap().unwrap());
    }
    body
}
