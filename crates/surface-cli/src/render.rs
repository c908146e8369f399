//! Answers as text for people: lists as tables, one session, its history. Nothing is printed here.
//!
//! Printing removes control sequences; line breaks in a table are removed here.

pub(crate) mod events;
pub(crate) mod markdown;
pub(crate) mod memory;
pub(crate) mod receipt;
pub(crate) mod tools;

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use meerkat_service::{
    Operation, SessionError, SessionId,
    clock::Timestamp,
    cost::Cost,
    service::{
        HistoryItem, Imported, Page, QueueItem, SearchHit, SessionState, SessionSummary, SessionView, ToolServerView,
        ToolView,
    },
    session::message::{Block, Body, Message},
    tool::visible,
};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::{
    commands::doctor,
    output::{aligned, bar, clean, count},
    render::receipt::billed,
    wire::read,
};

/// Digits of an id's end in a table.
const ENDING_DIGITS: usize = 8;

/// Renders the answers that have a form of their own; also returns the cursor of the next page.
pub(crate) fn answer(
    operation: Operation,
    answer: &[u8],
    width: Option<usize>,
    now: Timestamp,
) -> Result<Option<(String, Option<String>)>, SessionError> {
    Ok(match operation {
        Operation::List => {
            let page: Page<SessionSummary> = read(answer)?;
            Some((list(&page.items, width, now), page.next_cursor))
        }
        Operation::History => {
            let page: Page<HistoryItem> = read(answer)?;
            Some((page.items.iter().map(message).collect(), page.next_cursor))
        }
        Operation::SearchMemory => {
            let page: Page<SearchHit> = read(answer)?;
            let found = memory::Found { query: "", opens: false, highlights: false, width };
            Some((found.render(&page.items), None))
        }
        Operation::Tools => {
            let page: Page<ToolView> = read(answer)?;
            Some((tools::tools(&page.items, width), page.next_cursor))
        }
        Operation::ToolServers => {
            let page: Page<ToolServerView> = read(answer)?;
            Some((tools::servers(&page.items), page.next_cursor))
        }
        Operation::Diagnose => Some((doctor::render(&read(answer)?), None)),
        Operation::ImportBundle => Some((imported(&read(answer)?, width), None)),
        _ => None,
    })
}

/// Renders sessions as a table. Without a terminal, ids and times are complete.
pub(crate) fn list(sessions: &[SessionSummary], width: Option<usize>, now: Timestamp) -> String {
    if sessions.is_empty() && width.is_some() {
        return "No session was found: `meerkat run 'PROMPT'` makes one. --all-projects lists those of other folders, \
                and of this one before it was moved.\n"
            .to_owned();
    }
    let row = |session: &SessionSummary| {
        let [state, changed] = [state_of(session), changed(session, width, now)];
        [id(&session.session_id, width), state, session.turn_count.to_string(), changed, title(session)]
    };
    table(["SESSION", "STATE", "TURNS", "CHANGED", "TITLE"], sessions.iter().map(row), width)
}

/// Renders the sessions of all projects. A terminal shows only the folder's name of a project.
pub(crate) fn of_projects(sessions: &[(String, SessionSummary)], width: Option<usize>, now: Timestamp) -> String {
    let row = |(project, session): &(String, SessionSummary)| {
        let name =
            Path::new(project).file_name().map_or_else(|| project.clone(), |it| it.to_string_lossy().into_owned());
        let project = if width.is_some() { name } else { project.clone() };
        let [state, changed] = [state_of(session), changed(session, width, now)];
        [project, id(&session.session_id, width), state, changed, title(session)]
    };
    table(["PROJECT", "SESSION", "STATE", "CHANGED", "TITLE"], sessions.iter().map(row), width)
}

fn imported(imported: &Imported, width: Option<usize>) -> String {
    let sessions = imported.sessions.iter();
    let rows = sessions.map(|it| [it.session_id.to_string(), it.last_seq.to_string(), it.imported_from.to_string()]);
    let mut shown = table(["SESSION", "LAST EVENT", "IN THE BUNDLE"], rows, width);
    for skipped in &imported.skipped {
        shown.push_str(&format!("{} is here already and was passed over\n", skipped.session_id));
    }
    shown
}

/// Formats bytes in a suitable unit.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0)),
        _ => format!("{:.1} GiB", bytes as f64 / (1024.0 * 1024.0 * 1024.0)),
    }
}

/// Renders a table that fits `width`; the last column shrinks. Without a terminal nothing is cut.
pub(crate) fn table<const N: usize>(
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    width: Option<usize>,
) -> String {
    let rows: Vec<[String; N]> =
        std::iter::once(head.map(str::to_owned)).chain(rows).map(|row| row.map(|cell| one_line(&cell))).collect();
    aligned(&rows).lines().map(|line| format!("{}\n", fit(line, width).trim_end())).collect()
}

/// Formats an id for a table: on a terminal its last digits.
fn id(id: &SessionId, width: Option<usize>) -> String {
    if width.is_some() { ending(id) } else { id.to_string() }
}

/// Returns the last digits of an id, by which a command finds it.
pub(crate) fn ending(id: &SessionId) -> String {
    let id = id.to_string();
    id[id.len() - ENDING_DIGITS..].to_owned()
}

/// Returns the title, else the first label.
pub(crate) fn title(session: &SessionSummary) -> String {
    let label = || session.labels.iter().next().map(|(name, value)| format!("{name}={value}"));
    session.title.clone().or_else(label).unwrap_or_else(|| "-".to_owned())
}

/// Formats the state of a listed session.
pub(crate) fn state_of(session: &SessionSummary) -> String {
    if session.archived { "archived" } else { state(session.state) }.to_owned()
}

/// Formats the time of a session's last change: on a terminal its age.
fn changed(session: &SessionSummary, width: Option<usize>, now: Timestamp) -> String {
    if width.is_some() { age(session.updated_at, now) } else { minute(session.updated_at) }
}

const fn state(state: SessionState) -> &'static str {
    match state {
        SessionState::Idle => "idle",
        SessionState::Running => "running",
        SessionState::Queued => "queued",
        SessionState::Waiting => "waiting",
    }
}

/// Formats a time to its minute, in UTC.
fn minute(time: Timestamp) -> String {
    format!("{} UTC", time.to_string().get(..16).unwrap_or_default().replace('T', " "))
}

/// Formats the age of a time; its day, if that is long ago or in the future.
fn age(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_millis().saturating_sub(time.as_millis()).div_euclid(1000);
    let (number, unit) = match seconds {
        0..60 => return "just now".to_owned(),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        86_400..2_592_000 => (seconds / 86_400, "day"),
        _ => return time.to_string().get(..10).unwrap_or_default().to_owned(),
    };
    format!("{} ago", count(number.unsigned_abs(), unit))
}

fn one_line(text: &str) -> String {
    clean(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Cuts a line to the width.
fn fit(line: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| line.width() > *width) else { return line.to_owned() };
    let (mut cut, mut columns) = (String::new(), 1);
    for char in line.chars() {
        columns += char.width().unwrap_or(0);
        if columns > width {
            break;
        }
        cut.push(char);
    }
    format!("{}…", cut.trim_end())
}

/// Renders one session; `used` are the tokens of its last model call.
pub(crate) fn session(view: &SessionView, used: Option<u64>) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<10}  {}", one_line(&value));
    };
    row("session", view.session_id.to_string());
    row("title", view.title.clone().unwrap_or_else(|| "-".to_owned()));
    let archived = if view.archived { ", archived" } else { "" };
    row("state", format!("{}{archived}", state(view.state)));
    row("model", view.model.clone());
    row("turns", format!("{}, {} messages, last event {}", view.turn_count, view.message_count, view.last_seq));
    let context = &view.context;
    let [messages, tokens, window] = [context.messages, context.estimated_tokens, context.window_tokens];
    row("context", format!("{messages} messages, about {tokens} of {window} tokens"));
    if let Some(used) = used.filter(|_| window > 0) {
        let percent = used.saturating_mul(100) / window;
        row("window", format!("{} {percent} %, the last model call had {used} tokens", bar(used, window)));
    }
    row("used", billed(view.usage));
    row("cost", cost(view.cost));
    row("created", view.created_at.to_string());
    row("updated", view.updated_at.to_string());
    if let Some(parent) = &view.parent {
        row("sub-agent", format!("of session {}, turn {}, call {}", parent.session_id, parent.turn, parent.call_id));
    }
    if let Some(parent) = view.forked_from {
        row("forked from", parent.to_string());
    }
    if let Some(labels) = labels(&view.labels) {
        row("labels", labels);
    }
    view.reminders.iter().for_each(|reminder| row("reminder", format!("{}: {}", reminder.kind, reminder.text)));
    view.pins.iter().for_each(|pin| row("pin", format!("{} {}", pin.seq, pin.text)));
    view.queue.iter().for_each(|item| row("queued", format!("turn {}: {}", item.turn, queued(item))));
    let calls = &view.pending_approvals;
    calls.iter().for_each(|call| {
        let asked = call.form.as_ref().map_or_else(
            || call.arguments.clone(),
            |form| format!("the server {} asks: {}", form.server, form.message.replace('\n', " ")),
        );
        row("approval", visible(&format!("{} of {}, turn {}: {asked}", call.call_id, call.name, call.turn)))
    });
    text
}

/// Renders the prompt of a queued turn, behind a line for each image and file.
fn queued(item: &QueueItem) -> String {
    Message::User { content: item.prompt.clone(), blocks: item.blocks.clone() }.text()
}

fn labels(labels: &BTreeMap<String, String>) -> Option<String> {
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    (!labels.is_empty()).then(|| labels.join(", "))
}

/// Renders one message of a history, under a line with its place.
fn message(item: &HistoryItem) -> String {
    let turn = item.turn.map(|turn| format!(" turn {turn}")).unwrap_or_default();
    let mut text = format!("[{}]{turn} {}\n", item.seq, item.role);
    let mut part = |name: String, body: &str| {
        text += &name;
        text += body.trim_end_matches('\n');
        text.push('\n');
    };
    let excerpt = |body: &Body| body.excerpt().into_owned();
    match &item.message {
        Message::System { content }
        | Message::Assistant { content }
        | Message::SystemReminder { content, .. }
        | Message::Pin { content, .. } => {
            part(String::new(), &excerpt(content));
        }
        Message::User { .. } => part(String::new(), &item.message.text()),
        Message::BlockAssistant { blocks, .. } => {
            for block in blocks {
                match block {
                    Block::Text { text } => part(String::new(), &excerpt(text)),
                    Block::Reasoning { text, .. } if text.is_empty() => {}
                    Block::Reasoning { text, .. } => part("(thinks) ".to_owned(), &excerpt(text)),
                    Block::ToolCall(call) => part(format!("-> {} ", call.name), call.arguments.as_str()),
                }
            }
        }
        Message::ToolResults { results } => {
            for result in results {
                let failed = if result.is_error { " failed" } else { "" };
                part(format!("<- {}{failed}: ", result.name), &excerpt(&result.content));
            }
        }
    }
    text.push('\n');
    text
}

/// Renders a cost.
pub(crate) fn cost(cost: Option<Cost>) -> String {
    cost.map_or_else(|| "unknown".to_owned(), |cost| cost.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn summary(digits: &str, more: Value) -> SessionSummary {
        let mut summary = json!({
            "session_id": format!("01900000-0000-7000-8000-{digits}"), "title": null, "labels": {}, "model": "scripted",
            "state": "idle", "archived": false, "created_at": "2026-01-01T00:00:00.000Z",
            "updated_at": "2026-01-02T03:04:05.678Z", "turn_count": 3, "message_count": 7, "last_seq": 12,
            "usage": { "input_tokens": 100, "output_tokens": 20, "cached_tokens": 5 }, "forked_from": null,
        });
        summary.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(summary).unwrap()
    }

    fn sessions() -> Vec<SessionSummary> {
        vec![
            summary(
                "0000aa12abcd",
                json!({ "title": "A \u{1b}[31mlong\u{1b}[0m title\nin two lines", "turn_count": 10 }),
            ),
            summary("0000bb12abcd", json!({ "labels": { "team": "dig", "zone": "x" }, "state": "waiting" })),
            summary("0000cc12abcd", json!({ "title": "猫の会話の題名", "archived": true })),
        ]
    }

    #[test]
    fn the_list_fits_the_terminal() {
        let table = "\
SESSION   STATE     TURNS  CHANGED      TITLE
aa12abcd  idle      10     2 hours ago  A long t…
bb12abcd  waiting   3      2 hours ago  team=dig
cc12abcd  archived  3      2 hours ago  猫の会話…
";
        let now = timestamp("2026-01-02T05:05:00.000Z");
        assert_eq!(list(&sessions(), Some(49), now), table);
        for width in [10, 48, 49, 50, 60] {
            assert!(list(&sessions(), Some(width), now).lines().all(|line| line.width() <= width), "{width}");
        }
        assert!(list(&[], Some(80), now).contains("--all-projects"), "a person is told what to do");
        assert!(list(&[], None, now).starts_with("SESSION "), "a program gets the same columns");
        let whole = list(&sessions(), None, now);
        assert!(whole.contains("01900000-0000-7000-8000-0000aa12abcd  idle"), "{whole}");
        assert!(whole.contains("  2026-01-02 03:04 UTC  A long title in two lines\n"), "{whole}");
    }

    fn timestamp(text: &str) -> Timestamp {
        serde_json::from_value(json!(text)).unwrap()
    }

    #[test]
    fn an_age_is_said_in_words() {
        let now = timestamp("2026-03-02T12:00:00.000Z");
        for (time, words) in [
            ("2026-03-02T11:59:00.001Z", "just now"),
            ("2026-03-02T11:59:00.000Z", "1 minute ago"),
            ("2026-03-02T11:00:01.000Z", "59 minutes ago"),
            ("2026-03-02T11:00:00.000Z", "1 hour ago"),
            ("2026-03-01T12:00:00.000Z", "1 day ago"),
            ("2026-02-01T00:00:00.000Z", "29 days ago"),
            ("2026-01-31T12:00:00.000Z", "2026-01-31"),
            ("2031-01-01T00:00:00.000Z", "2031-01-01"),
        ] {
            assert_eq!(age(timestamp(time), now), words);
        }
    }

    fn rendered(operation: Operation, answer: &Value) -> String {
        super::answer(operation, answer.to_string().as_bytes(), Some(90), timestamp("2026-01-02T05:05:00.000Z"))
            .unwrap()
            .unwrap()
            .0
    }

    #[test]
    fn what_came_is_a_table() {
        let id = "01900000-0000-7000-8000-0000aa12abcd";
        let imported = json!({ "upload": null, "next_offset": 7, "sessions": [
            { "session_id": id, "imported_from": "01900000-0000-7000-8000-0000bb12abcd", "last_seq": 12 },
        ] });
        let table = "\
SESSION                               LAST EVENT  IN THE BUNDLE
01900000-0000-7000-8000-0000aa12abcd  12          01900000-0000-7000-8000-0000bb12abcd
";
        assert_eq!(rendered(Operation::ImportBundle, &imported), table);
        let repeated = json!({ "upload": null, "next_offset": 7, "sessions": [], "skipped": [
            { "session_id": id, "imported_from": id, "last_seq": 12 },
        ] });
        let shown = rendered(Operation::ImportBundle, &repeated);
        assert!(
            shown.ends_with("\n01900000-0000-7000-8000-0000aa12abcd is here already and was passed over\n"),
            "{shown}"
        );
    }

    #[test]
    fn a_size_has_the_unit_that_suits_it() {
        let sizes = [0, 1023, 1024, 1_048_575, 1_048_576, 1_073_741_824].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1024.0 KiB", "1.0 MiB", "1.0 GiB"]);
    }

    #[test]
    fn a_session_is_names_and_values() {
        let mut view =
            serde_json::to_value(summary("0000aa12abcd", json!({ "title": "T", "archived": true }))).unwrap();
        let more = json!({
            "context": { "messages": 5, "estimated_tokens": 250, "window_tokens": 1000 },
            "reminders": [{ "kind": "git_status", "text": "clean\nas ever", "seq": 3 }],
            "pins": [{ "seq": 4, "text": "a fact" }], "queue": [],
            "pending_approvals": [{ "call_id": "c1", "name": "write", "arguments": "{}", "turn": 2, "seq": 9 }],
        });
        view.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        view["usage"]["cache_write_tokens"] = json!(30);
        view["usage"]["reasoning_tokens"] = json!(8);
        view["cost"] = json!({ "amount": "0.012345", "currency": "USD" });
        let text = session(&serde_json::from_value(view).unwrap(), Some(250));
        for line in [
            "session     01900000-0000-7000-8000-0000aa12abcd",
            "title       T",
            "state       idle, archived",
            "turns       3, 7 messages, last event 12",
            "context     5 messages, about 250 of 1000 tokens",
            "window      [#####---------------] 25 %, the last model call had 250 tokens",
            "used        100 tokens in (5 cached, 30 written to the cache), 20 out (8 reasoning)",
            "cost        0.012345 USD",
            "reminder    git_status: clean as ever",
            "pin         4 a fact",
            "approval    c1 of write, turn 2: {}",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_history_shows_texts_calls_and_results() {
        let page = json!({ "next_cursor": "c", "items": [
            { "seq": 2, "turn": 0, "role": "user", "message": { "role": "user", "content": "Look\n\tthere." } },
            { "seq": 3, "turn": 0, "role": "assistant", "message": { "role": "block_assistant", "model": "m", "blocks": [
                { "type": "reasoning", "text": "hm", "vendor": "v" },
                { "type": "tool_call", "call_id": "c", "name": "read", "arguments": { "n": 1 } },
            ] } },
            { "seq": 5, "turn": 0, "role": "tool", "message": { "role": "tool_results", "results": [
                { "call_id": "c", "name": "read", "is_error": true, "content":
                    { "blob": "ab", "bytes": 100, "head": "begin", "tail": "end" } },
            ] } },
        ] });
        let page = page.to_string();
        let (text, next) = answer(Operation::History, page.as_bytes(), Some(10), timestamp("2026-01-02T05:05:00.000Z"))
            .unwrap()
            .unwrap();
        let expected = "[2] turn 0 user\nLook\n\tthere.\n\n\
            [3] turn 0 assistant\n(thinks) hm\n-> read {\"n\":1}\n\n\
            [5] turn 0 tool\n<- read failed: begin\n[... 92 bytes left out; the whole is blob ab ...]\nend\n\n";
        assert_eq!((text.as_str(), next.as_deref()), (expected, Some("c")));
    }
}
