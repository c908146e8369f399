//! Chart of how full a session's context window was, from its newest events and never more than a few pages of them.

use meerkat_service::{
    Seq, SessionError, SessionId, SessionService,
    service::{ReadEvents, SessionView},
};

use crate::{
    output::Output,
    render::window_chart::{Canvas, TurnFill, chart},
    wire::{SeenEvent, read},
};

/// Most events to look through, the newest first.
const EVENTS_MAX: u64 = 10_000;
/// Events of one stretch, which is read completely.
const STRETCH_EVENTS: u64 = 500;
/// Bytes of events after which no older stretch is read.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Columns if standard output is no terminal.
const COLUMNS: usize = 80;

/// Draws the chart of a session's window; empty if no model was called.
pub(super) async fn draw(
    service: &dyn SessionService,
    view: &SessionView,
    out: &Output,
) -> Result<String, SessionError> {
    let turns = turns(service, &view.session_id, view.last_seq).await?;
    let canvas = Canvas { columns: out.width.unwrap_or(COLUMNS), has_blocks: out.has_blocks };
    Ok(chart(&turns, view.context.window_tokens, canvas))
}

/// Reads the newest turns, in order.
async fn turns(service: &dyn SessionService, id: &SessionId, last_seq: Seq) -> Result<Vec<TurnFill>, SessionError> {
    let (mut stretches, mut bytes, mut end) = (Vec::new(), 0, last_seq);
    while end > 0 && last_seq - end < EVENTS_MAX && bytes < BYTES_MAX {
        let since = end.saturating_sub(STRETCH_EVENTS);
        let (events, read) = between(service, id, since, end).await?;
        bytes += read;
        // Before a pruned stretch there is no turn.
        end = if events.is_empty() { 0 } else { since };
        stretches.push(events);
    }
    Ok(folded(stretches.into_iter().rev().flatten()))
}

/// Reads the events after `since` up to `end`, and counts their bytes. Each page may be cut short.
async fn between(
    service: &dyn SessionService,
    id: &SessionId,
    since: Seq,
    end: Seq,
) -> Result<(Vec<SeenEvent>, usize), SessionError> {
    let (mut events, mut bytes, mut next) = (Vec::new(), 0, since);
    while next < end {
        let page = service.events(ReadEvents::new(*id, next)).await?;
        if page.next_seq <= next {
            break;
        }
        next = page.next_seq;
        for line in page.items {
            bytes += line.len();
            let event: SeenEvent = read(&line)?;
            events.extend(Some(event).filter(|event| event.seq.is_some_and(|seq| seq <= end)));
        }
    }
    Ok((events, bytes))
}

/// Makes a column for each turn that begins among the events.
fn folded(events: impl Iterator<Item = SeenEvent>) -> Vec<TurnFill> {
    let mut turns: Vec<TurnFill> = Vec::new();
    for event in events {
        if let ("turn_started", Some(turn)) = (event.kind.as_str(), event.turn) {
            turns.push(TurnFill { turn, ..TurnFill::default() });
        }
        // What happens between two turns is shown with the one before.
        let Some(column) = turns.last_mut() else { continue };
        match (event.kind.as_str(), event.usage) {
            ("assistant_message", Some(usage)) => {
                (column.input_tokens, column.context) = (usage.input_tokens, event.context);
            }
            ("compaction_completed", _) => column.compactions += 1,
            ("compaction_undone", _) => column.undone += 1,
            _ => {}
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use meerkat_service::{
        Agent, AgentBuildConfig,
        options::EngineOptions,
        service::{EventPage, Remind, StartTurn},
        session::{event::ContextTokens, reminder::SystemReminderType},
    };

    use super::*;

    fn seen(lines: &[&str]) -> Vec<SeenEvent> {
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn the_last_call_of_a_turn_counts_and_what_is_between_turns_goes_with_the_one_before() {
        let events = [
            r#"{"seq":1,"turn":null,"type":"session_created"}"#,
            r#"{"seq":2,"turn":0,"type":"turn_started"}"#,
            r#"{"seq":3,"turn":0,"type":"assistant_message","usage":{"input_tokens":10,"output_tokens":1}}"#,
            r#"{"seq":4,"turn":1,"type":"turn_queued"}"#,
            r#"{"seq":5,"turn":0,"type":"assistant_message","usage":{"input_tokens":20,"output_tokens":1},"context":{"system":1,"tools":2,"reminders":3,"pins":4,"history":5,"tool_results":6,"free":null}}"#,
            r#"{"seq":6,"turn":null,"type":"compaction_completed"}"#,
            r#"{"seq":7,"turn":1,"type":"turn_started"}"#,
            r#"{"seq":8,"turn":1,"type":"compaction_completed"}"#,
            r#"{"seq":9,"turn":1,"type":"compaction_undone"}"#,
        ];
        let split =
            ContextTokens { system: 1, tools: 2, reminders: 3, pins: 4, history: 5, tool_results: 6, free: None };
        let first = TurnFill { turn: 0, input_tokens: 20, compactions: 1, undone: 0, context: Some(split) };
        let second = TurnFill { turn: 1, compactions: 1, undone: 1, ..TurnFill::default() };
        assert_eq!(folded(seen(&events).into_iter()), [first, second]);
        assert_eq!(folded(seen(&events[2..]).into_iter()), [second]);
    }

    /// A session with a turn, a hundred reminders of `bytes`, and a turn that says it used 50 tokens.
    async fn stage(options: EngineOptions, bytes: usize) -> (Agent, SessionId, Seq) {
        let agent = AgentBuildConfig::new().options(options).build().unwrap();
        let session_id = agent.create_session().await.unwrap().session_id;
        let turn = |prompt: &str| agent.service().start_turn(StartTurn::new(session_id, prompt));
        turn("@usage in=20 @say One.").await.unwrap();
        for n in 0..100 {
            let text = format!("{n} {}", "x".repeat(bytes));
            let remind = Remind { session_id, kind: SystemReminderType::Environment, text };
            agent.service().remind(remind).await.unwrap();
        }
        let last_seq = turn("@usage in=50 @say Two.").await.unwrap().seq;
        (agent, session_id, last_seq)
    }

    /// Such pages hold fewer events than were asked for.
    #[tokio::test]
    async fn a_page_that_is_cut_by_its_bytes_hides_no_turn() {
        let mut options = EngineOptions::default();
        options.limits.reminder_bytes = 64 * 1024;
        let (agent, id, last_seq) = stage(options, 60_000).await;
        let first = events(&agent, id).await;
        assert!(first.next_seq < 100, "the page has {} events", first.next_seq);
        let column = |turn, input_tokens| TurnFill { turn, input_tokens, ..TurnFill::default() };
        assert_eq!(fills(&agent, &id, last_seq).await, [column(0, 20), column(1, 50)]);
    }

    #[tokio::test]
    async fn what_was_pruned_is_left_out_and_the_rest_is_drawn() {
        let mut options = EngineOptions::default();
        options.ephemeral.session_event_bytes = 10_000;
        let (agent, id, last_seq) = stage(options, 1_000).await;
        let page = events(&agent, id).await;
        assert!(String::from_utf8_lossy(&page.items[0]).contains(r#""type":"pruned""#));
        assert_eq!(fills(&agent, &id, last_seq).await, [TurnFill { turn: 1, input_tokens: 50, ..TurnFill::default() }]);
    }

    /// The turns, without their splits.
    async fn fills(agent: &Agent, id: &SessionId, last_seq: Seq) -> Vec<TurnFill> {
        let turns = turns(agent.service().as_ref(), id, last_seq).await.unwrap();
        assert!(turns.iter().all(|turn| turn.context.is_some()));
        turns.into_iter().map(|turn| TurnFill { context: None, ..turn }).collect()
    }

    async fn events(agent: &Agent, session_id: SessionId) -> EventPage {
        let request = ReadEvents::new(session_id, 0);
        agent.service().events(request).await.unwrap()
    }
}
