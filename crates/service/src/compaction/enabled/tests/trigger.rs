//! The trigger, and the checks of a config.

use crate::compaction::{CompactionConfig, CompactionContext, Compactor as _, DefaultCompactor};

/// A context that has room enough.
fn quiet() -> CompactionContext {
    CompactionContext { window_tokens: 10_000, ..CompactionContext::default() }
}

/// Over the threshold, before the first step of a turn; the last compaction was tried in another one.
fn tried(last: u32, current_turn: u32) -> CompactionContext {
    CompactionContext { last_compaction_turn: Some(last), current_turn, last_input_tokens: 1000, ..quiet() }
}

/// Over the threshold, so many steps after a compaction that was tried in this turn.
fn stepped(steps_since_compaction: u32) -> CompactionContext {
    CompactionContext { in_turn: true, steps_since_compaction, ..tried(7, 7) }
}

/// A request of this size to a model with this window.
fn request(window_tokens: u64, request_tokens: u64) -> CompactionContext {
    CompactionContext { window_tokens, request_tokens, ..quiet() }
}

#[test]
fn it_compacts_at_the_threshold_unless_it_just_did() {
    let request_tokens = 10_001;
    let check = |max_request_bytes, rows: &[(&str, CompactionContext, bool)]| {
        let config =
            CompactionConfig { auto_compact_threshold: 1000, max_request_bytes, ..CompactionConfig::default() };
        for (name, context, expected) in rows {
            let compactor = DefaultCompactor::new(config, context.window_tokens);
            assert_eq!(compactor.should_compact(context), *expected, "{name}");
        }
    };
    check(
        0,
        &[
            ("nothing presses", quiet(), false),
            ("input below", CompactionContext { last_input_tokens: 999, ..quiet() }, false),
            ("input", CompactionContext { last_input_tokens: 1000, ..quiet() }, true),
            ("history", CompactionContext { estimated_history_tokens: 1000, ..quiet() }, true),
            ("request", request(10_000, 1000), true),
            ("80 % of the window", request(500, 400), true),
            ("below 80 % of the window", request(500, 399), false),
            ("80 % of an odd window", request(999, 799), true),
            ("an unknown window", request(0, 999), false),
            ("the threshold with an unknown window", request(0, 1000), true),
            ("bytes without limit", CompactionContext { request_bytes: u64::MAX, ..quiet() }, false),
            ("turn guard", tried(5, 7), false),
            ("turn guard over", tried(5, 8), true),
            ("a last turn that is yet to come", tried(8, 5), false),
            ("step guard", stepped(2), false),
            ("step guard over", stepped(3), true),
            // Within a turn its steps count, and no turns before it.
            ("steps of a turn, the turn before compacted", CompactionContext { current_turn: 8, ..stepped(3) }, true),
            ("too few steps of a turn", CompactionContext { current_turn: 8, ..stepped(2) }, false),
            (
                "steps of a turn that never compacted",
                CompactionContext { last_compaction_turn: None, ..stepped(9) },
                true,
            ),
            ("no room, guarded by turns", CompactionContext { request_tokens, ..tried(6, 7) }, true),
            ("no room, guarded by steps", CompactionContext { request_tokens, ..stepped(1) }, true),
            ("just room, guarded by steps", CompactionContext { request_tokens: 10_000, ..stepped(1) }, false),
            ("no room, tried in this step", CompactionContext { request_tokens, ..stepped(0) }, false),
            ("no room, tried before the first step", CompactionContext { request_tokens, ..tried(7, 7) }, false),
        ],
    );
    check(
        50,
        &[
            ("bytes", CompactionContext { request_bytes: 50, ..quiet() }, true),
            ("fewer bytes", CompactionContext { request_bytes: 49, ..quiet() }, false),
            ("bytes are guarded too", CompactionContext { request_bytes: 50, ..tried(7, 7) }, false),
        ],
    );
}

#[test]
fn a_config_that_cannot_be_is_refused_with_its_field() {
    let check = |change: fn(&mut CompactionConfig), window| {
        let mut config = CompactionConfig::default();
        change(&mut config);
        config.check(window).map_err(|error| error.body().details["field"].as_str().unwrap().to_owned())
    };
    assert_eq!(check(|_| {}, 200_000), Ok(()));
    assert_eq!(check(|_| {}, 0), Ok(()));
    assert_eq!(check(|_| {}, 4097), Ok(()));
    assert_eq!(check(|it| it.max_summary_tokens = 16_384, 0), Ok(()));
    for (change, window, field) in [
        ((|it| it.auto_compact_threshold = 0) as fn(&mut CompactionConfig), 0, "auto_compact_threshold"),
        (|it| it.recent_turn_budget = 0, 0, "recent_turn_budget"),
        (|it| it.max_summary_tokens = 0, 0, "max_summary_tokens"),
        (|it| it.min_turns_between_compactions = 0, 0, "min_turns_between_compactions"),
        (|_| {}, 4096, "max_summary_tokens"),
        (|it| it.max_summary_tokens = 16_385, 200_000, "max_summary_tokens"),
    ] {
        assert_eq!(check(change, window), Err(format!("compaction.{field}")));
    }
}
