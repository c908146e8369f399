//! Compactors of others that do wrong: each wrong is a row, and so is the refusal.

use meerkat_errors::ErrorCode;

use super::{life::Life, mechanical};
use crate::{
    compaction::{
        CompactionConfig, CompactionContext, CompactionResult, Compactor, DefaultCompactor, SUMMARY_PREFIX, is_state,
        message_bytes,
        rebuilt::{planned, preview, rebuild},
        summary_message,
    },
    service::CompactionMode,
    session::message::{Body, Message},
};

/// The default compactor with a spoilt result.
struct Spoilt(fn(&mut CompactionResult));

impl Compactor for Spoilt {
    fn should_compact(&self, _: &CompactionContext) -> bool {
        true
    }

    fn compaction_prompt(&self) -> &str {
        "Summarise."
    }

    fn max_summary_tokens(&self) -> u32 {
        100
    }

    fn rebuild_history(&self, messages: &[Message], summary: &str) -> CompactionResult {
        let config = CompactionConfig { recent_turn_budget: 3, ..CompactionConfig::default() };
        let mut result = DefaultCompactor::new(config, 0).rebuild_history(messages, summary);
        (self.0)(&mut result);
        result
    }
}

/// Two long turns, a pin and a reminder, and a turn that runs with a few steps.
fn life() -> Life {
    let mut life = Life::new(Some("You are careful."));
    life.pin("The key is ORCHID-7.");
    life.turn(&"please ".repeat(100), "Yes.");
    life.remind("style", "Be short.");
    life.turn("Again.", &"well ".repeat(100));
    life.start("Now build it.");
    for nth in 0..4 {
        life.step("", &[("bash", false, format!("{nth} {}", "data ".repeat(50)))]);
    }
    life
}

fn place(result: &CompactionResult, is_it: fn(&Message) -> bool) -> usize {
    result.messages.iter().position(is_it).unwrap()
}

fn pin(result: &mut CompactionResult) -> &mut String {
    let pins = result.messages.iter_mut().filter_map(|message| match message {
        Message::Pin { content: Body::Inline(text), .. } => Some(text),
        _ => None,
    });
    pins.into_iter().next().unwrap()
}

#[test]
fn what_a_compactor_may_not_do_is_refused_and_says_so() {
    const SYSTEM: &str = "The compacted context does not begin with the unchanged system prompt, or repeats it.";
    const SUMMARY: &str = "The message after the system prompt is not a user message with the summary.";
    const STATE: &str = "The compacted context does not have the session's reminders and pins in their order.";
    const SAID: &str = "A retained message is not in the context, or is out of order.";
    const WHOLE: &str = "The retained and the discarded messages together are not the former context.";
    const PAIR: &str = "Tool calls are separated from their results.";
    const TURN: &str = "The prompt or the newest message of the running or resumable turn was discarded.";
    type Spoil = fn(&mut CompactionResult);
    let rows: &[(&str, Spoil, &str)] = &[
        ("drops a pin", |it| _ = it.messages.remove(place(it, |it| matches!(it, Message::Pin { .. }))), STATE),
        ("drops all state", |it| it.messages.retain(|message| !is_state(message)), STATE),
        ("negates a pin", |it| *pin(it) = pin(it).replace(" is ", " is not "), STATE),
        ("paraphrases a pin", |it| *pin(it) = pin(it).to_lowercase(), STATE),
        ("doubles a pin", |it| it.messages.push(it.messages[place(it, is_state)].clone()), STATE),
        (
            "swaps pin and reminder",
            |it| {
                let at = place(it, is_state);
                it.messages.swap(at, at + 1)
            },
            STATE,
        ),
        ("drops the system prompt", |it| _ = it.messages.remove(0), SYSTEM),
        ("says another system prompt", |it| it.messages[0] = Message::System { content: "x".into() }, SYSTEM),
        ("adds a system prompt", |it| it.messages.push(it.messages[0].clone()), SYSTEM),
        ("has no summary", |it| _ = it.messages.remove(1), SUMMARY),
        ("has its own kind of summary", |it| it.messages[1] = Message::user("short"), SUMMARY),
        ("invents a message", |it| it.messages.push(Message::Assistant { content: "Done.".into() }), SAID),
        ("doubles a message", |it| it.messages.extend(it.messages.last().cloned()), SAID),
        (
            "swaps two steps",
            |it| {
                let end = it.messages.len();
                it.messages[end - 4..].rotate_left(2)
            },
            SAID,
        ),
        ("forgets what left", |it| _ = it.discarded.pop(), WHOLE),
        ("says nothing left", |it| it.discarded.clear(), WHOLE),
        ("turns what left round", |it| it.discarded.reverse(), WHOLE),
        (
            "lets a step vanish",
            |it| {
                let end = it.messages.len();
                it.messages.truncate(end - 2)
            },
            WHOLE,
        ),
        (
            "parts calls from results",
            |it| {
                let call = it.messages.remove(it.messages.len() - 4);
                it.discarded.push(call)
            },
            PAIR,
        ),
        (
            "parts results from calls",
            |it| {
                let results = it.messages.remove(it.messages.len() - 3);
                it.discarded.push(results)
            },
            PAIR,
        ),
        ("drops the newest step", |it| it.discarded.extend(it.messages.split_off(it.messages.len() - 2)), TURN),
        (
            "drops the prompt",
            |it| {
                let prompt = it.messages.remove(it.messages.len() - 7);
                it.discarded.insert(4, prompt)
            },
            TURN,
        ),
    ];
    // An interrupted turn can be resumed.
    let (running, mut interrupted) = (life(), life());
    interrupted.interrupt();
    for life in [running, interrupted] {
        rebuild(&life.session, &Spoilt(|_| {}), "Two turns.", CompactionMode::Summary).unwrap();
        for (name, spoil, why) in rows {
            let error = rebuild(&life.session, &Spoilt(*spoil), "Two turns.", CompactionMode::Summary).unwrap_err();
            let code = if *why == STATE { ErrorCode::CompactionPinLost } else { ErrorCode::CompactionNoProgress };
            assert_eq!((error.code, error.message.as_str()), (code, *why), "{name}");
        }
    }
}

/// The specification says `SUMMARY_PREFIX + summary`; a compactor may put white space between the two, or none.
#[test]
fn a_summary_may_follow_its_prefix_in_any_way() {
    type Write = fn(&mut CompactionResult);
    let forms: [Write; 6] = [
        |it| it.messages[1] = Message::user(format!("{SUMMARY_PREFIX}Two turns.")),
        |it| it.messages[1] = Message::user(format!("{SUMMARY_PREFIX} Two turns.")),
        |it| it.messages[1] = Message::user(format!("{SUMMARY_PREFIX}\nTwo turns.")),
        |it| it.messages[1] = Message::user(format!("{SUMMARY_PREFIX}\n\nTwo turns.")),
        |it| it.messages[1] = Message::user(format!("{SUMMARY_PREFIX}\n\n\nTwo turns.")),
        |it| it.messages[1] = Message::user(format!("{SUMMARY_PREFIX} \n\t\r\n Two turns.")),
    ];
    for form in forms {
        let mut life = life();
        let rebuilt = rebuild(&life.session, &Spoilt(form), "Two turns.", CompactionMode::Summary).unwrap();
        assert_eq!(rebuilt.event.summary, Some("Two turns.".into()));
        // The receipt counts the context as it is then.
        let context_bytes = rebuilt.context_bytes;
        life.put(rebuilt);
        assert_eq!(life.session.messages()[1], summary_message("Two turns."));
        assert_eq!(life.session.messages().iter().map(message_bytes).sum::<u64>(), context_bytes);
    }
}

#[test]
fn a_summary_that_would_not_stand_whole_in_its_event_is_refused() {
    const BLOWS_UP: fn(&mut CompactionResult) = |it| it.messages[1] = summary_message(&"word ".repeat(20_000));
    let mut life = life();
    life.answer(&"well ".repeat(100_000));
    (0..4).for_each(|_| life.turn("Go on.", "Yes."));
    let error = rebuild(&life.session, &Spoilt(BLOWS_UP), "Short.", CompactionMode::Summary).unwrap_err();
    assert_eq!(error.message, "The summary is longer than 98304 bytes.");
}

#[test]
fn of_messages_that_are_the_same_another_one_may_stay() {
    /// Keeps the first prompt and the last turn.
    const FIRST_AND_LAST: fn(&mut CompactionResult) = |it| {
        let prompt = it.discarded.remove(0);
        it.messages.insert(1 + 1, prompt);
    };
    let mut life = Life::new(Some("You are careful."));
    for nth in 0..5 {
        life.turn("Go on.", &format!("{nth} {}", "well ".repeat(100)));
    }
    let rebuilt = rebuild(&life.session, &Spoilt(FIRST_AND_LAST), "Short.", CompactionMode::Summary).unwrap();
    assert_eq!(rebuilt.event.receipt.retained, 7);
}

/// A compactor may let reminders and pins leave with the rest: the session keeps them itself.
#[test]
fn state_that_a_compactor_discards_is_kept() {
    let discards: fn(&mut CompactionResult) = |it| {
        let (state, stays): (Vec<Message>, Vec<Message>) =
            std::mem::take(&mut it.messages).into_iter().partition(is_state);
        it.messages = stays;
        drop(it.discarded.splice(1..1, state));
    };
    let mut life = life();
    let expected = rebuild(&life.session, &Spoilt(|_| {}), "Two turns.", CompactionMode::Summary).unwrap();
    let rebuilt = rebuild(&life.session, &Spoilt(discards), "Two turns.", CompactionMode::Summary).unwrap();
    assert_eq!((&rebuilt.event, rebuilt.context_bytes), (&expected.event, expected.context_bytes));
    life.put(rebuilt);
    assert_eq!(life.session.messages().iter().filter(|message| is_state(message)).count(), 2);
}

/// Of a turn whose prompt and newest step alone are there nothing can leave: no compactor is asked, and no model paid.
#[test]
fn where_nothing_can_leave_no_compactor_is_asked() {
    let compactor = Spoilt(|_| panic!("it is asked"));
    let mut life = Life::new(Some("You are careful."));
    life.start("Now build it.");
    for is_stepped in [false, true] {
        if is_stepped {
            life.step("", &[("bash", false, "data ".repeat(500))]);
        }
        assert_eq!(planned(&life.session, &compactor).map(drop).unwrap_err().code, ErrorCode::CompactionNoProgress);
        assert_eq!(preview(&life.session, &compactor).unwrap().discarded, 0);
    }
    life.step("", &[("bash", false, "data ".repeat(500))]);
    assert!(planned(&life.session, &compactor).unwrap().is_none(), "the first step may leave");
}

/// Without a plan, the engine's own summary is shorter than what leaves, too, and says nothing of what stays.
#[test]
fn a_mechanical_summary_without_a_plan_is_of_what_leaves() {
    let mut life = Life::new(Some("You are careful."));
    life.turn(&"please ".repeat(60), "Yes.");
    for _ in 0..3 {
        life.turn(&"must stay 17 ".repeat(900), &"not 18 ".repeat(900));
    }
    let compactor = Spoilt(|_| {});
    let summary = mechanical(&life.session, &compactor).unwrap();
    assert!(!summary.contains("17") && !summary.contains("18"), "{summary}");
    let rebuilt = rebuild(&life.session, &compactor, &summary, CompactionMode::Mechanical).unwrap();
    assert_eq!((rebuilt.event.receipt.retained, rebuilt.event.receipt.discarded), (6, 2));
}
