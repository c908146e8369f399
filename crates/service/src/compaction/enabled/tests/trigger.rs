//! When it compacts, and what a config may say.

use crate::compaction::{CompactionConfig, CompactionContext, Compactor as _, DefaultCompactor};

/// A config that compacts at 1000 tokens, and a context that has room enough.
fn quiet() -> (CompactionConfig, CompactionContext) {
    let config = CompactionConfig { auto_compact_threshold: 1000, ..CompactionConfig::default() };
    (config, CompactionContext { window_tokens: 10_000, ..CompactionContext::default() })
}

#[test]
fn it_compacts_at_the_threshold_unless_it_just_did() {
    type Change = fn(&mut CompactionConfig, &mut CompactionContext);
    let table: &[(&str, Change, bool)] = &[
        ("nothing presses", |_, _| {}, false),
        ("input below", |_, it| it.last_input_tokens = 999, false),
        ("input", |_, it| it.last_input_tokens = 1000, true),
        ("history", |_, it| it.estimated_history_tokens = 1000, true),
        ("request", |_, it| it.request_tokens = 1000, true),
        ("80 % of the window", |_, it| (it.window_tokens, it.request_tokens) = (500, 400), true),
        ("below 80 % of the window", |_, it| (it.window_tokens, it.request_tokens) = (500, 399), false),
        ("80 % of an odd window", |_, it| (it.window_tokens, it.request_tokens) = (999, 799), true),
        ("an unknown window", |_, it| (it.window_tokens, it.request_tokens) = (0, 999), false),
        ("the threshold with an unknown window", |_, it| (it.window_tokens, it.request_tokens) = (0, 1000), true),
        ("bytes without limit", |_, it| it.request_bytes = u64::MAX, false),
        ("bytes", |of, it| (of.max_request_bytes, it.request_bytes) = (50, 50), true),
        ("fewer bytes", |of, it| (of.max_request_bytes, it.request_bytes) = (50, 49), false),
        ("turn guard", |_, it| tried(it, 5, 7), false),
        ("turn guard over", |_, it| tried(it, 5, 8), true),
        ("a last turn that is yet to come", |_, it| tried(it, 8, 5), false),
        ("step guard", |_, it| stepped(it, 2), false),
        ("step guard over", |_, it| stepped(it, 3), true),
        // Within a turn its steps count, and no turns before it.
        ("steps of a turn, the turn before compacted", |_, it| (stepped(it, 3), tried(it, 6, 7)).0, true),
        ("too few steps of a turn, the turn before compacted", |_, it| (stepped(it, 2), tried(it, 6, 7)).0, false),
        ("steps of a turn that never compacted", |_, it| (it.in_turn, it.last_input_tokens) = (true, 1000), true),
        (
            "bytes are guarded too",
            |of, it| {
                tried(it, 7, 7);
                of.max_request_bytes = 1;
                it.request_bytes = 2
            },
            false,
        ),
        (
            "no room, guarded by turns",
            |_, it| {
                tried(it, 6, 7);
                it.request_tokens = 10_001
            },
            true,
        ),
        (
            "no room, guarded by steps",
            |_, it| {
                stepped(it, 1);
                it.request_tokens = 10_001
            },
            true,
        ),
        (
            "just room, guarded by steps",
            |_, it| {
                stepped(it, 1);
                it.request_tokens = 10_000
            },
            false,
        ),
        (
            "no room, tried in this step",
            |_, it| {
                stepped(it, 0);
                it.request_tokens = 10_001
            },
            false,
        ),
        (
            "no room, tried before the first step",
            |_, it| {
                tried(it, 7, 7);
                it.request_tokens = 10_001
            },
            false,
        ),
    ];
    for (name, change, expected) in table {
        let (mut config, mut context) = quiet();
        change(&mut config, &mut context);
        let compactor = DefaultCompactor::new(config, context.window_tokens);
        assert_eq!(compactor.should_compact(&context), *expected, "{name}");
    }
}

/// Over the threshold, before the first step of a turn; the last compaction was tried in another one.
fn tried(context: &mut CompactionContext, last: u32, current: u32) {
    (context.last_compaction_turn, context.current_turn, context.last_input_tokens) = (Some(last), current, 1000);
}

/// Over the threshold, so many steps after a compaction that was tried in this turn.
fn stepped(context: &mut CompactionContext, steps: u32) {
    tried(context, 7, 7);
    (context.in_turn, context.steps_since_compaction) = (true, steps);
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
