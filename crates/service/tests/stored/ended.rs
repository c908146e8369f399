//! How a turn ended is the same whether one waited for it or reads it from its events.

use meerkat_service::{
    ErrorCode,
    follow::turn,
    options::{Overflow, Policy},
    service::{CancelQueued, StartTurn, TurnStatus},
};

use crate::stored::Place;

#[test]
fn the_events_of_a_turn_say_how_it_ended() {
    let mut place = Place::new();
    place.options.context.overflow = Overflow::Slide;
    place.process(true, async |process| {
        let (session_id, service) = (process.create().await, process.service.as_ref());
        for (prompt, status) in [
            ("@say One. @say Two.", TurnStatus::Completed),
            (r#"@say Before. @call test_echo {"text":"hi"} @chunks 65536 @long 300000"#, TurnStatus::Completed),
            (r#"@call test_echo {"text":"hi"} @fail rejected"#, TurnStatus::Failed),
            ("@say Part. @stall", TurnStatus::Interrupted),
        ] {
            let begun = process.begin(session_id, prompt).await;
            let interrupt = async {
                if status == TurnStatus::Interrupted {
                    process.interrupt(session_id, None).await;
                }
            };
            let (awaited, followed, ()) =
                tokio::join!(begun.result, turn::result(service, begun.accepted.clone()), interrupt);
            let awaited = awaited.unwrap();
            assert_eq!((awaited.status, followed.unwrap()), (status, awaited.clone()), "{prompt}");
            // Long after its end as well.
            assert_eq!(turn::result(service, begun.accepted).await.unwrap(), awaited, "{prompt}");
        }

        let running = process.begin(session_id, "@stall").await;
        let waiting = |prompt: &str| StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, prompt) };
        let queued = service.begin_turn(waiting("@say Queued.")).await.unwrap();
        let cancelled = service.begin_turn(waiting("@say Never.")).await.unwrap();
        service.cancel_queued(CancelQueued { session_id, turn: cancelled.accepted.turn }).await.unwrap();
        process.interrupt(session_id, Some(running.accepted.turn)).await;
        let (awaited, followed) = tokio::join!(queued.result, turn::result(service, queued.accepted));
        assert_eq!((followed.unwrap(), "Queued."), (awaited.clone().unwrap(), awaited.unwrap().text.as_str()));
        let (awaited, followed) = tokio::join!(cancelled.result, turn::result(service, cancelled.accepted));
        let awaited = awaited.unwrap_err().body();
        assert_eq!((awaited.code, followed.unwrap_err().body()), (ErrorCode::TurnInterrupted, awaited));
    });
}
