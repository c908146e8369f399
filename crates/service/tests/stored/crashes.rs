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
        let session_id = place.process(is_clean, |process| async move {
            let session_id = process.create().await;
            drop(process.service.begin_turn(StartTurn::new(session_id, "@stall")).await.unwrap());
            for n in 1..3 {
                let waiting = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, format!("@say Q{n}.")) };
                assert_eq!(process.service.accept_turn(waiting).await.unwrap().turn, n);
            }
            session_id
        });
        place.process(true, |process| async move {
            in_time("the queue goes on", process.until(session_id, "turn_completed")).await;
            let last = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "@echo messages") };
            let last = process.service.start_turn(last).await.unwrap();
            let (turn, text) = (last.turn, last.text.as_str());
            assert_eq!((turn, text), (3, "messages: 6"), "clean: {is_clean}: the queue ran in its order before");
        });
    }
}
