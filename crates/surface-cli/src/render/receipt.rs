//! Compactions, previews and undone compactions as text for people.

use std::fmt::Write as _;

use meerkat_service::{
    Seq,
    model::Usage,
    service::{CompactionMode, CompactionReceipt},
};

use crate::output::count;

/// Renders a compaction and how to undo it, or a preview.
pub(crate) fn receipt(receipt: &CompactionReceipt, undo: &str) -> String {
    let is_plan = receipt.compaction.is_none();
    let (before, after) = (receipt.tokens_before, receipt.tokens_after);
    let saved = before.saturating_sub(after).saturating_mul(100) / before.max(1);
    let mut text = match is_plan {
        true => "This is a plan: nothing was changed, and no model was called.\n".to_owned(),
        false => String::new(),
    };
    let mut row = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<10}  {value}");
    };
    match is_plan {
        true => row("context", format!("about {before} tokens would become about {after}, {saved} % less")),
        false => row("context", format!("about {before} tokens became about {after}, {saved} % less")),
    }
    row("by", by(receipt.mode, is_plan).to_owned());
    let would_be = if is_plan { "would be " } else { "" };
    row("messages", format!("{} {would_be}kept, {} {would_be}discarded", receipt.retained, receipt.discarded));
    row("results", format!("{} {would_be}masked", count(receipt.masked, "tool result")));
    row("carried", format!("{}, {}", count(receipt.reminders, "reminder"), count(receipt.pins, "pin")));
    let anchor = receipt.anchor.map_or_else(|| "none".to_owned(), |turn| format!("the cut is at turn {turn}"));
    row("anchor", anchor);
    if !is_plan {
        let money = receipt.cost.map(|cost| format!(", {cost}")).unwrap_or_default();
        row("cost", billed(receipt.usage) + &money);
        row("undo", undo.to_owned());
    }
    text
}

const fn by(mode: CompactionMode, is_plan: bool) -> &'static str {
    match (mode, is_plan) {
        (CompactionMode::Summary, false) => "a summary that the model wrote",
        (CompactionMode::Summary, true) => "a summary that the model would write, here as long as it may be",
        (CompactionMode::Mechanical, _) => "sentences of the discarded messages, because no summary could be made",
        (CompactionMode::Mask, _) => "masking old tool results alone",
    }
}

/// Renders an undone compaction; with its receipt, if that can still be read.
pub(crate) fn undone(compaction: Seq, receipt: Option<&CompactionReceipt>) -> String {
    let mut text = format!("Compaction {compaction} is undone");
    if let Some(receipt) = receipt {
        let messages = count(receipt.discarded, "message");
        let are = if receipt.discarded == 1 { "is" } else { "are" };
        let masked = match receipt.masked {
            0 => String::new(),
            masked => format!(", {} whole again", count(masked, "tool result")),
        };
        let _ = write!(
            text,
            ": {messages} {are} back in the context{masked}. Before the compaction it had about {} tokens",
            receipt.tokens_before
        );
    }
    text + ".\n"
}

/// Renders the tokens of a session or a summary: the parts in parentheses, those that are seldom only if there are some.
pub(crate) fn billed(usage: Usage) -> String {
    let Usage { input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens } = usage;
    let written =
        if cache_write_tokens == 0 { String::new() } else { format!(", {cache_write_tokens} written to the cache") };
    let reasoning = if reasoning_tokens == 0 { String::new() } else { format!(" ({reasoning_tokens} reasoning)") };
    format!("{input_tokens} tokens in ({cached_tokens} cached{written}), {output_tokens} out{reasoning}")
}

#[cfg(test)]
mod tests {
    use meerkat_service::cost::Cost;

    use super::*;

    fn compacted() -> CompactionReceipt {
        CompactionReceipt {
            compaction: Some(613),
            mode: CompactionMode::Summary,
            retained: 8,
            masked: 1,
            discarded: 120,
            reminders: 1,
            pins: 2,
            anchor: Some(37),
            tokens_before: 98_000,
            tokens_after: 5_200,
            usage: Usage { input_tokens: 98_200, output_tokens: 410, cached_tokens: 97_000, ..Usage::default() },
            cost: Some(Cost::from_micros(23_200)),
            rounds: 0,
            unread: 0,
        }
    }

    #[test]
    fn a_receipt_says_what_stays_what_went_what_it_cost_and_how_to_undo_it() {
        let text = "\
context     about 98000 tokens became about 5200, 94 % less
by          a summary that the model wrote
messages    8 kept, 120 discarded
results     1 tool result masked
carried     1 reminder, 2 pins
anchor      the cut is at turn 37
cost        98200 tokens in (97000 cached), 410 out, 0.023200 USD
undo        meerkat compact last --undo
";
        assert_eq!(receipt(&compacted(), "meerkat compact last --undo"), text);
        let mask = CompactionReceipt { mode: CompactionMode::Mask, anchor: None, ..compacted() };
        let text = receipt(&mask, "");
        assert!(text.contains("by          masking old tool results alone\n"), "{text}");
        assert!(text.contains("anchor      none\n"), "{text}");
    }

    #[test]
    fn a_plan_says_that_it_is_one() {
        let plan = CompactionReceipt { compaction: None, usage: Usage::default(), ..compacted() };
        let text = receipt(&plan, "meerkat compact last --undo");
        assert!(text.starts_with("This is a plan: nothing was changed, and no model was called.\n"), "{text}");
        assert!(text.contains("98000 tokens would become about 5200, 94 % less\n"), "{text}");
        assert!(text.contains("8 would be kept, 120 would be discarded\n"), "{text}");
        assert!(!text.contains("cost") && !text.contains("--undo"), "{text}");
    }

    #[test]
    fn what_is_undone_says_what_is_back() {
        let text = "Compaction 613 is undone: 120 messages are back in the context, 1 tool result whole again. Before \
                    the compaction it had about 98000 tokens.\n";
        assert_eq!(undone(613, Some(&compacted())), text);
        assert_eq!(undone(613, None), "Compaction 613 is undone.\n");
    }
}
