//! What a process that ends in the middle of its work leaves behind, and how the next one finds it.

use meerkat_service::{options::Policy, service::StartTurn};
use meerkat_testkit::in_time;

use crate::stored::Place;

/// A process that is killed and one that ends in order leave the same queue.
#[test]
fn a_queue_outlives_its_process_and_goes_on_if_it_is_configured_to() {
    for is_clean in [false, true] {
        let mut place = Place::new();
        place.options.store.queue_goes_on = true;
        let queued =
            |session_id, prompt: &str| StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, prompt) };
        let session_id = place.process(is_clean, async |process| {
            let session_id = process.create().await;
            drop(process.begin(session_id, "@stall").await);
            for n in 1..3 {
                let waiting = queued(session_id, &format!("@say Q{n}."));
                assert_eq!(process.service.accept_turn(waiting).await.unwrap().turn, n);
            }
            session_id
        });
        place.process(true, async |process| {
            in_time("the queue goes on", process.until(session_id, "turn_completed")).await;
            let last = process.service.start_turn(queued(session_id, "@echo messages")).await.unwrap();
            let (turn, text) = (last.turn, last.text.as_str());
            assert_eq!((turn, text), (3, "messages: 6"), "clean: {is_clean}: the queue ran in its order before");
        });
    }
}
