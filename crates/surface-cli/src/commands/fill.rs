//! How full a session's context window was, from its events: the newest ones, and never more than a few pages of them.

use std::collections::BTreeMap;

use meerkat_service::{
    Operation, Seq, SessionError, SessionId, SessionService, TurnNumber, service::SessionView, wire::call,
};
use serde_json::json;

use super::read;
use crate::{
    output::Output,
    people::fill::{Canvas, TurnFill, chart},
    wire::{EventPage, SeenEvent},
};

/// Events that are looked through at most, the newest first.
const EVENTS_MAX: u64 = 10_000;
/// Events of one page.
const PAGE_EVENTS: u64 = 500;
/// Bytes of pages after which no further one is read.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Columns where standard output is no terminal.
const COLUMNS: usize = 80;

/// The chart of a session's window, empty where no model was called.
pub(super) async fn drawn(
    service: &dyn SessionService,
    view: &SessionView,
    out: &Output,
) -> Result<String, SessionError> {
    let turns = turns(service, &view.session_id, view.last_seq).await?;
    let canvas = Canvas { columns: out.width.unwrap_or(COLUMNS), has_blocks: out.has_blocks };
    Ok(chart(&turns, view.context.window_tokens, canvas))
}

/// The newest turns, in order. The first one may have begun before the events that were read; it is left out.
async fn turns(service: &dyn SessionService, id: &SessionId, last_seq: Seq) -> Result<Vec<TurnFill>, SessionError> {
    let (mut pages, mut bytes, mut end) = (Vec::new(), 0, last_seq);
    while end > 0 && last_seq - end < EVENTS_MAX && bytes < BYTES_MAX {
        let since = end.saturating_sub(PAGE_EVENTS);
        let params = json!({ "session_id": id, "since_seq": since, "limit": end - since });
        let answer = call(service, Operation::Events, &params.to_string()).await?;
        bytes += answer.len();
        let page: EventPage<SeenEvent> = read(&answer)?;
        pages.push(page.items.into_iter().filter(|event| event.seq <= end).collect::<Vec<_>>());
        end = since;
    }
    Ok(folded(pages.into_iter().rev().flatten(), end == 0))
}

fn folded(events: impl Iterator<Item = SeenEvent>, is_whole: bool) -> Vec<TurnFill> {
    let mut turns: BTreeMap<TurnNumber, TurnFill> = BTreeMap::new();
    let mut newest = None;
    for event in events {
        newest = event.turn.or(newest);
        // What happens between two turns stands with the one before.
        let Some(turn) = newest else { continue };
        let column = turns.entry(turn).or_insert_with(|| TurnFill { turn, ..TurnFill::default() });
        match (event.kind.as_str(), event.usage) {
            ("assistant_message", Some(usage)) => column.input_tokens = usage.input_tokens,
            ("compaction_completed", _) => column.compactions += 1,
            ("compaction_undone", _) => column.undone += 1,
            _ => {}
        }
    }
    turns.into_values().skip(usize::from(!is_whole)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lines: &[&str]) -> Vec<SeenEvent> {
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn the_last_call_of_a_turn_counts_and_what_is_between_turns_stands_with_the_one_before() {
        let events = || {
            seen(&[
                r#"{"seq":1,"turn":null,"type":"session_created"}"#,
                r#"{"seq":2,"turn":0,"type":"turn_started"}"#,
                r#"{"seq":3,"turn":0,"type":"assistant_message","usage":{"input_tokens":10,"output_tokens":1}}"#,
                r#"{"seq":4,"turn":0,"type":"assistant_message","usage":{"input_tokens":20,"output_tokens":1}}"#,
                r#"{"seq":5,"turn":null,"type":"compaction_completed"}"#,
                r#"{"seq":6,"turn":1,"type":"turn_started"}"#,
                r#"{"seq":7,"turn":1,"type":"compaction_completed"}"#,
                r#"{"seq":8,"turn":1,"type":"compaction_undone"}"#,
            ])
        };
        let first = TurnFill { turn: 0, input_tokens: 20, compactions: 1, undone: 0 };
        let second = TurnFill { turn: 1, input_tokens: 0, compactions: 1, undone: 1 };
        assert_eq!(folded(events().into_iter(), true), [first, second]);
        assert_eq!(folded(events().into_iter(), false), [second]);
    }
}
