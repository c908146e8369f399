//! Where the default compactor cuts. A context is written as one character for each message.

use super::{bytes, life::Life};
use crate::{
    compaction::{CompactionConfig, Compactor as _, DefaultCompactor, rebuilt::rebuild, summary_message},
    service::CompactionMode,
    session::{
        message::{Block, Message, RawJson, ToolCall, ToolResult},
        reminder::SystemReminderType,
    },
};

/// `s` system, `m` summary, `u` user, `c` a call, `r` its result, `f` its failure, `a` an answer, `x` one that was cut off, `p` pin,
/// `n` reminder.
fn context(written: &str) -> Vec<Message> {
    written.chars().enumerate().map(|(at, what)| message(at, what)).collect()
}

fn message(at: usize, what: char) -> Message {
    let text = format!("{what}{at}");
    let result = |is_error| Message::ToolResults {
        results: vec![ToolResult {
            call_id: at.wrapping_sub(1).to_string(),
            name: "tool".to_owned(),
            is_error,
            content: text.clone().into(),
            images: Vec::new(),
        }],
    };
    match what {
        's' => Message::System { content: text.into() },
        'm' => summary_message("before"),
        'u' => Message::user(text),
        'a' => Message::Assistant { content: text.into() },
        'x' => Message::cut_off(&text.into()),
        'p' => Message::Pin { n: at as u64, content: text.into() },
        'n' => Message::SystemReminder { kind: SystemReminderType::Environment, content: text.into() },
        'r' => result(false),
        'f' => result(true),
        _ => Message::BlockAssistant {
            model: "scripted".to_owned(),
            blocks: vec![Block::ToolCall(ToolCall {
                call_id: at.to_string(),
                name: "tool".to_owned(),
                arguments: RawJson::empty_object(),
                opaque: None,
            })],
        },
    }
}

/// Compares the retained part of a context, written with a dot for each message that leaves.
#[track_caller]
fn check(config: CompactionConfig, window: u64, written: &str, expected: &str) {
    let source = context(written);
    let result = DefaultCompactor::new(config, window).rebuild_history(&source, "S\u{1b}\t\n");
    let stays = |message: &&Message| expected.as_bytes()[source.iter().position(|it| it == *message).unwrap()] != b'.';
    let (kept, gone): (Vec<&Message>, Vec<&Message>) = source.iter().partition(stays);
    let is_first = |message: &&&Message| matches!(message, Message::System { .. });
    let is_state = |message: &&&Message| matches!(message, Message::Pin { .. } | Message::SystemReminder { .. });
    let summary = Message::user(format!("{}\n\nS\t\n", crate::compaction::SUMMARY_PREFIX));
    let system = kept.iter().filter(is_first).copied().cloned();
    let state = kept.iter().filter(is_state).copied().cloned();
    let said = kept.iter().filter(|it| !is_first(it) && !is_state(it)).copied().cloned();
    let whole: Vec<Message> = system.chain([summary]).chain(state).chain(said).collect();
    assert_eq!(result.messages, whole, "{written}");
    assert_eq!(result.discarded.iter().collect::<Vec<_>>(), gone, "{written}");
}

fn keeping(recent_turn_budget: usize) -> CompactionConfig {
    CompactionConfig { recent_turn_budget, ..CompactionConfig::default() }
}

#[test]
fn whole_turns_stay_and_within_the_active_one_steps() {
    for (turns, before, after) in [
        (2, "", ""),
        (2, "s", "s"),
        (2, "suauaua", "s..uaua"),
        (9, "suaua", "suaua"),
        (1, "smpnuacrua", "s.pn....ua"),
        (2, "suaucra", "suaucra"),
        (1, "suaucra", "s..ucra"),
        // The active turn is counted in steps, and its prompt stays.
        (1, "suaucrcrcr", "s..u....cr"),
        (3, "suaucrcrcr", "s..ucrcrcr"),
        (4, "suaucrcrcr", "suaucrcrcr"),
        (2, "ucrcrcrcrcr", "u......crcr"),
        // A turn that has only its prompt is no unit.
        (1, "suauau", "s..uau"),
        (2, "uauauau", "..uauau"),
        // The remainder of a former process counts as whole.
        (1, "uacrc", "u...c"),
        (1, "crcr", "..cr"),
        (1, "r", "r"),
        (1, "mu", ".u"),
        (1, "sm", "s."),
        (1, "smpn", "s.pn"),
        // A prompt that is to be answered is no summary, whatever it says.
        (1, "smcrcr", "sm..cr"),
    ] {
        check(keeping(turns), 0, before, after);
    }
}

#[test]
fn fewer_stay_where_they_do_not_fit_the_window() {
    let window = |kept: &str| {
        let kept = bytes(&context(kept)) + bytes(&[summary_message("S\t\n")]);
        // 80 % of it hold the retained messages, and not one unit more.
        kept.div_ceil(4) * 5 / 4 + 1
    };
    check(keeping(3), window("suaua"), "suauauaua", "s....uaua");
    check(keeping(3), 1, "suauauaua", "s......ua");
    check(keeping(3), 1, "suaucrcrcr", "s..u....cr");
    check(keeping(3), 1, "suauau", "s....u");
}

/// A text behind results was steered in, or the turn before it was given up: the model has not answered the results.
#[test]
fn the_steps_before_a_text_that_nothing_answered_are_steps_of_its_turn() {
    for (turns, before, after) in [
        (1, "suaucrcrcru", "s..u....cru"),
        (2, "suaucrcrcru", "s..u..crcru"),
        (4, "suaucrcrcru", "suaucrcrcru"),
        // Of several texts all stay with the step, until a newer one counts.
        (1, "suaucrcruu", "s..u..cruu"),
        (1, "suaucrcruucr", "s..u.....ucr"),
        (2, "suaucrcruucr", "s..u..cruucr"),
        (1, "suaucrucrucr", "s..u.....ucr"),
        (1, "crcru", "..cru"),
        // The text behind an answer begins a turn as always.
        (1, "ucrcrau", "ucrcrau"),
        (1, "ucrauu", "....uu"),
    ] {
        check(keeping(turns), 0, before, after);
    }
    let window = |kept: &str| (bytes(&context(kept)) + bytes(&[summary_message("S\t\n")])).div_ceil(4) * 5 / 4 + 1;
    // The first prompt leaves before the newest step, and that before the text.
    check(keeping(4), window("ucru"), "ucrcrcru", "u....cru");
    check(keeping(4), window("cru"), "ucrcrcru", ".....cru");
    check(keeping(4), window("cru"), "ucrcrucr", ".....ucr");
    check(keeping(4), window("u"), "ucrcrcru", ".......u");
    // An anchor is looked for before the whole of the turn.
    let anchored = CompactionConfig { prefer_anchors: true, ..keeping(2) };
    let long = "ua".repeat(200);
    let stays = |kept: &str| format!("{}{kept}", ".".repeat(400));
    check(anchored, 0, &format!("{long}ucraucrcru"), &stays("ucraucrcru"));
    check(anchored, 0, &format!("{long}ucraucrcrcru"), &stays("....u..crcru"));
}

#[test]
fn the_cut_moves_back_to_the_nearest_turn_that_finished_something_or_resolved_an_error() {
    let anchored = |turns| CompactionConfig { prefer_anchors: true, ..keeping(turns) };
    let long = "ua".repeat(200);
    for (turns, before, after, anchor) in [
        (2, "ucrauauaua", "ucrauauaua", Some(0)),
        (2, "uaucrauauaua", "..ucrauauaua", Some(2)),
        (2, "uaucfcrauauaua", "..ucfcrauauaua", Some(2)),
        (2, "uaucfaucrcfauaua", "......ucrcfauaua", Some(6)),
        (2, "uaucfauauaua", "........uaua", None),
        (2, "uaucrcfauaua", "........uaua", None),
        // Nothing is finished whose answer was cut off.
        (2, "uaucrxuauaua", "........uaua", None),
        // At most the budget's number of turns is added, and none if the cut is at an anchor already.
        (2, "ucrauauauaua", "........uaua", None),
        (1, "uaucraucra", "......ucra", None),
        // Not from within the active turn.
        (1, "ucraucrcr", "....u..cr", None),
        (1, "ucraucr", "ucraucr", Some(0)),
    ] {
        // Long enough that something is left to leave, and the result smaller.
        let (before, after) = (format!("{long}{before}"), format!("{}{after}", ".".repeat(400)));
        check(anchored(turns), 0, &before, &after);
        let compactor = DefaultCompactor::new(anchored(turns), 0);
        let plan = compactor.plan(&context(&before), bytes(&[summary_message("")])).unwrap();
        assert_eq!(plan.anchor, anchor.map(|at: usize| at + 400), "{before}");
    }
    // An anchor that would win nothing is ignored.
    check(anchored(1), 0, "ucraua", "....ua");
}

#[test]
fn the_receipt_names_the_turn_that_the_cut_moved_back_to() {
    let mut life = Life::new(None);
    for nth in 0..6 {
        life.start(format!("Prompt {nth}: {}", "please ".repeat(60)));
        if nth == 3 {
            life.step("", &[("bash", false, "built".to_owned())]);
        }
        life.answer("Done.");
    }
    let config = CompactionConfig { prefer_anchors: true, ..keeping(2) };
    let compactor = DefaultCompactor::new(config, 0);
    let rebuilt = rebuild(&life.session, &compactor, "Well.", CompactionMode::Summary).unwrap();
    assert_eq!((rebuilt.event.receipt.anchor, rebuilt.event.receipt.retained), (Some(3), 8));
    // With a summary that is longer than the messages before the anchor, the cut stays.
    let long = "x".repeat(1900);
    let rebuilt = rebuild(&life.session, &compactor, &long, CompactionMode::Summary).unwrap();
    assert_eq!((rebuilt.event.receipt.anchor, rebuilt.event.receipt.retained), (None, 4));
}
