//! `sessions files` and `sessions restore-files`: what the agent changed in its workspace, from the session's events,
//! and the way back, from the copies that were kept.
//!
//! A file is put back only if its content follows from what the agent left, so that nobody else's work is lost.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use meerkat_service::{
    Seq, SessionError, SessionId, TurnNumber,
    service::{ReadBlob, ReadEvents, SessionView},
    session::event::{ChangedFile, HistorySnapshot, ToolFinished, ToolOutcome, ToolStarted},
    tool::content_of_copy,
    wire::encode,
};
use meerkat_tools::{Content, WorkspaceFiles};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::names::resolve;
use crate::{
    app::App,
    output::printable,
    wire::{SeenEvent, read},
};

/// Most bytes of a blob that is a copy; a larger one is none.
const COPY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Change of a file, with its place in the session.
struct Change {
    turn: TurnNumber,
    /// Calls that ran together, by the seq before them, and place among their changes.
    order: (Seq, u64),
    file: ChangedFile,
}

impl Change {
    fn before(&self) -> Option<&str> {
        self.file.before.as_ref().map(|before| before.sha256.as_str())
    }
}

/// Changes of a session from a turn on.
#[derive(Default)]
struct Changes {
    files: BTreeMap<String, Vec<Change>>,
    /// Sentences about what else may have been changed.
    unknown: BTreeSet<String>,
    /// The start of the turn, and the last event that may be missing.
    start: Option<Seq>,
    pruned_to: Seq,
    open: Option<TurnNumber>,
}

impl Changes {
    /// Reads the events of a session.
    async fn read(app: &App, session_id: SessionId, since: TurnNumber) -> Result<Self, SessionError> {
        let (mut changes, mut since_seq, mut group) = (Self::default(), 0, 0);
        // Files that started calls were about to change.
        let mut intended = HashMap::new();
        loop {
            let request = ReadEvents::new(session_id, since_seq);
            let page = app.service.events(request).await?;
            for line in &page.items {
                let event: SeenEvent = read(line)?;
                let (Some(seq), turn) = (event.seq, event.turn.unwrap_or(0)) else { continue };
                match event.kind.as_str() {
                    "history_snapshot" => {
                        changes.pruned_to = read::<HistorySnapshot>(line)?.pruned_to.max(changes.pruned_to);
                    }
                    "turn_started" => {
                        changes.open = Some(turn);
                        if turn == since {
                            changes.start = Some(seq);
                        }
                    }
                    "turn_completed" | "turn_failed" | "turn_interrupted" => changes.open = None,
                    "assistant_message" => group = seq,
                    "tool_started" => {
                        group = seq;
                        let started: ToolStarted = read(line)?;
                        // A repeated call may find its own work, and then intends nothing.
                        if !started.files.is_empty() {
                            intended.insert(started.call_id, started.files);
                        }
                    }
                    "tool_finished" if turn >= since => {
                        let mut finished: ToolFinished = read(line)?;
                        let intended = intended.remove(&finished.call_id).unwrap_or_default();
                        if may_have_changed(finished.outcome) && finished.files.is_empty() {
                            finished.files = intended;
                        }
                        changes.unknown.extend(unknown(turn, &finished));
                        for file in finished.files {
                            let of_path = changes.files.entry(file.path.clone()).or_default();
                            of_path.push(Change { turn, order: (group, file.order), file });
                        }
                    }
                    _ => {}
                }
            }
            if page.items.is_empty() {
                break;
            }
            since_seq = page.next_seq;
        }
        for of_path in changes.files.values_mut() {
            of_path.sort_by_key(|change| change.order);
        }
        Ok(changes)
    }

    fn note(&self, app: &App) {
        if self.pruned_to > 0 {
            app.out
                .note(&format!("Changes before event {} may be missing: their events were dropped.", self.pruned_to));
        }
        self.unknown.iter().for_each(|line| app.out.note(line));
    }
}

/// Returns true if the intent of a call with this outcome counts: the content of the files shows what became of it.
const fn may_have_changed(outcome: ToolOutcome) -> bool {
    match outcome {
        ToolOutcome::Unknown | ToolOutcome::Succeeded => true,
        ToolOutcome::Failed | ToolOutcome::NotRun => false,
    }
}

/// Says what a call may have changed beyond the files that its events name.
fn unknown(turn: TurnNumber, ToolFinished { name, outcome, .. }: &ToolFinished) -> Option<String> {
    let may_change = *outcome != ToolOutcome::NotRun && (name == "shell" || name.starts_with("mcp__"));
    may_change.then(|| format!("Turn {turn} ran {name}; what that changed is not known."))
}

/// Finds the session and its folder; the folder may be missing.
async fn open(app: &App, name: &str) -> Result<(SessionView, Result<WorkspaceFiles, SessionError>), SessionError> {
    let id = resolve(&app.service, name).await?;
    let view = app.service.read(&id).await?;
    let folder = match &view.workspace {
        Some(workspace) => WorkspaceFiles::open(Path::new(workspace)),
        None => {
            let why = format!("session {id} has no workspace here; a session that was imported has lost its own");
            Err(SessionError::invalid("session", why))
        }
    };
    Ok((view, folder))
}

/// Lists the files that were changed from a turn on.
pub(super) async fn list(app: &App, name: &str, since: TurnNumber) -> Result<Vec<u8>, SessionError> {
    let (view, folder) = open(app, name).await?;
    let changes = Changes::read(app, view.session_id, since).await?;
    if let Err(error) = &folder {
        app.out.note(&format!(
            "The files cannot be compared: {error}. A session keeps its folder; if you moved it, move it back."
        ));
    }
    let items: Vec<Value> =
        changes.files.iter().map(|(path, changes)| row(path, changes, folder.as_ref().ok())).collect();
    changes.note(app);
    if items.is_empty() {
        app.out.note("No file was changed by the tools edit and write.");
    }
    encode(&json!({ "items": items, "next_cursor": null, "unknown": changes.unknown }))
}

/// A file in the list.
fn row(path: &str, changes: &[Change], folder: Option<&WorkspaceFiles>) -> Value {
    let turns: BTreeSet<TurnNumber> = changes.iter().map(|change| change.turn).collect();
    let first = changes.first().and_then(|change| change.file.before.as_ref());
    let now = folder.map(|folder| folder.content(path));
    let state = match &now {
        None => "not compared".to_owned(),
        Some(Err(error)) => reason(error.clone()),
        Some(Ok(now)) => {
            let left = changes.last().map(|change| change.file.after_sha256.as_str());
            match now.as_ref().map(|now| now.sha256.as_str()) {
                now if now == left => "as the agent left it".to_owned(),
                now if now == first.map(|before| before.sha256.as_str()) => "as it was before".to_owned(),
                None => "gone".to_owned(),
                Some(_) => "changed since by someone else".to_owned(),
            }
        }
    };
    let bytes = now.and_then(Result::ok).flatten().map(|now| now.bytes);
    json!({
        "path": path,
        "change": if first.is_some() { "changed" } else { "created" },
        "state": state,
        "turns": turns,
        "bytes": bytes,
        "copy": first.map(|before| if before.copy.is_some() { "kept" } else { "not kept" }),
    })
}

/// Files to put back.
pub(crate) struct Plan {
    session_id: SessionId,
    turn: TurnNumber,
    folder: WorkspaceFiles,
    items: Vec<Item>,
}

/// File to put back, with its content now; what replaces it is the first change's `before`.
struct Item {
    now: Option<Content>,
    first: ChangedFile,
}

impl Item {
    fn is_back(&self) -> bool {
        let before = self.first.before.as_ref().map(|before| &before.sha256);
        self.now.as_ref().map(|now| &now.sha256) == before
    }

    const fn action(&self) -> &'static str {
        if self.first.before.is_some() { "put back" } else { "deleted" }
    }
}

impl Plan {
    /// Question for the person who confirms it, if there is anything to do.
    pub(crate) fn question(&self) -> Option<String> {
        let waiting: Vec<&Item> = self.items.iter().filter(|item| !item.is_back()).collect();
        let lines: String =
            waiting.iter().map(|item| format!("  {}: {}\n", printable(&item.first.path), item.action())).collect();
        (!waiting.is_empty()).then(|| format!("As before turn {}:\n{lines}Do this?", self.turn))
    }
}

/// Plans to put files back as they were before a turn, without those of `except`. It is refused as a whole if somebody
/// else's work would be lost.
pub(crate) async fn plan(app: &App, name: &str, turn: TurnNumber, except: &[String]) -> Result<Plan, SessionError> {
    let (view, folder) = open(app, name).await?;
    let (session_id, folder) = (view.session_id, folder?);
    let mut changes = Changes::read(app, session_id, turn).await?;
    if let Some(turn) = changes.open {
        return Err(SessionError::Busy { turn });
    }
    match changes.start {
        None if changes.pruned_to == 0 => return Err(SessionError::ItemNotFound("turn")),
        start if start.unwrap_or(0) <= changes.pruned_to && changes.pruned_to > 0 => {
            return Err(SessionError::HistoryPruned);
        }
        _ => changes.note(app),
    }
    for path in except {
        // A misspelt path would have the file put back that is to stay.
        if changes.files.remove(path).is_none() {
            let why = format!(
                "the agent changed no file {} since turn {turn}; `meerkat sessions files` lists the paths",
                printable(path)
            );
            return Err(SessionError::invalid("--except", why));
        }
    }
    let (mut items, mut refusals) = (Vec::new(), Vec::new());
    for (path, changes) in changes.files {
        match folder.content(&path).and_then(|now| item(&path, changes, now)) {
            Ok(item) => items.extend(item),
            Err(error) => refusals.push(reason(error)),
        }
    }
    for item in items.iter().filter(|item| !item.is_back()) {
        if let Err(error) = copy(app, session_id, &item.first).await {
            refusals.push(reason(error));
        }
    }
    if refusals.is_empty() {
        return Ok(Plan { session_id, turn, folder, items });
    }
    let why = format!("nothing was put back: {}; leave a file as it is with --except PATH", refusals.join("; "));
    Err(SessionError::invalid("workspace", why))
}

/// Why a file cannot be compared or put back, without the field that the whole refusal names.
fn reason(error: SessionError) -> String {
    let why = match error {
        SessionError::InvalidRequest { message, .. } => message,
        error => error.to_string(),
    };
    // The sentence goes on.
    why.trim_end_matches('.').to_owned()
}

/// Follows the changes of a file back from its content now, the newest first.
fn item(path: &str, changes: Vec<Change>, now: Option<Content>) -> Result<Option<Item>, SessionError> {
    let Some(then) = changes.first().map(Change::before) else { return Ok(None) };
    let (mut content, mut earlier) = (now.as_ref().map(|now| now.sha256.as_str()), changes.as_slice());
    while content != then {
        let newest = earlier.iter().rposition(|change| Some(change.file.after_sha256.as_str()) == content);
        let Some((newest, rest)) = newest.and_then(|at| earlier[..=at].split_last()) else {
            let what = if now.is_some() { "was changed by someone else" } else { "was deleted" };
            return Err(SessionError::invalid("workspace", format!("{} {what} since", printable(path))));
        };
        (content, earlier) = (newest.before(), rest);
    }
    Ok(changes.into_iter().next().map(|first| Item { now, first: first.file }))
}

/// Why a change without a copy cannot be undone, and what to do.
const NOT_KEPT: &str = "was not kept, because the file was too large; name a later turn with --turn, or take the file from \
                        your version control";

/// Reads what a file held before a change; `None` if there was none.
async fn copy(app: &App, session_id: SessionId, file: &ChangedFile) -> Result<Option<Vec<u8>>, SessionError> {
    let Some(before) = &file.before else { return Ok(None) };
    let lost = |why: &str| SessionError::invalid("workspace", format!("the copy of {} {why}", printable(&file.path)));
    let blob = before.copy.clone().ok_or_else(|| lost(NOT_KEPT))?;
    let (mut bytes, mut offset) = (Vec::new(), Some(0));
    while let Some(at) = offset.filter(|_| bytes.len() < COPY_BYTES_MAX) {
        let request = ReadBlob { session_id, blob: blob.clone(), offset: at, limit: None };
        let page = app.service.answer_blob(request).await.map_err(|error| lost(&format!("cannot be read: {error}")))?;
        bytes.extend(page.bytes().ok_or_else(|| lost("is damaged"))?);
        offset = page.next_offset;
    }
    let content = content_of_copy(&bytes).ok_or_else(|| lost("is damaged"))?;
    let found: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    if found == before.sha256 { Ok(Some(content.to_owned())) } else { Err(lost("is damaged")) }
}

/// Refuses to put files back without a question.
pub(crate) fn unasked() -> SessionError {
    let why = "files would be replaced or deleted, and there is no terminal to ask in; add --yes";
    SessionError::invalid("--yes", why)
}

/// Puts the files back. If one fails, those before it stay put back, and the command can be repeated.
pub(crate) async fn restore(app: &App, plan: &Plan) -> Result<Vec<u8>, SessionError> {
    let mut items = Vec::new();
    for item in &plan.items {
        let path = &item.first.path;
        if !item.is_back() {
            let then = copy(app, plan.session_id, &item.first).await?;
            plan.folder.put_back(path, item.now.as_ref(), then.as_deref())?;
        }
        items.push(json!({ "path": path, "done": if item.is_back() { "already as it was" } else { item.action() } }));
    }
    if plan.items.iter().all(Item::is_back) {
        app.out.note(&format!("All files are as they were before turn {}.", plan.turn));
    }
    encode(&json!({ "items": items, "next_cursor": null }))
}

#[cfg(test)]
mod tests {
    use ToolOutcome::{Failed, NotRun, Succeeded, Unknown};
    use meerkat_service::session::event::FileBefore;

    use super::*;

    /// Follows a file back that has the content `now` through changes `before>after`; `-` is no file.
    #[track_caller]
    fn check(changes: &[&str], now: &str, expected: Result<bool, &str>) {
        let content = |name: &str| (name != "-").then(|| Content { sha256: name.to_owned(), bytes: 1 });
        let change = |(at, text): (usize, &&str)| {
            let (before, after) = text.split_once('>').unwrap();
            let before = content(before).map(|it| FileBefore { sha256: it.sha256, bytes: 1, copy: None });
            let file = ChangedFile { path: "a".to_owned(), before, after_sha256: after.to_owned(), order: 0 };
            Change { turn: 0, order: (at as Seq, 0), file }
        };
        let followed = item("a", changes.iter().enumerate().map(change).collect(), content(now));
        match (followed, expected) {
            (Ok(Some(item)), Ok(is_back)) => {
                assert_eq!(item.is_back(), is_back, "{changes:?} {now}");
                let before = item.first.before.map_or("-".to_owned(), |before| before.sha256);
                assert!(changes[0].starts_with(&format!("{before}>")), "{changes:?} {now}: {before}");
            }
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{changes:?} {now}: {error}"),
            (followed, _) => panic!("{changes:?} {now}: {:?}", followed.map(|item| item.map(|item| item.first))),
        }
    }

    #[test]
    fn a_file_is_followed_back_through_the_agents_changes_alone() {
        check(&["A>B", "B>C"], "C", Ok(false));
        check(&["-", "-"].map(|_| "->B"), "B", Ok(false));
        check(&["A>B", "B>C"], "A", Ok(true));
        check(&["->B", "B>C"], "-", Ok(true));
        // After later turns alone were undone.
        check(&["A>B", "B>C"], "B", Ok(false));
        check(&["A>B", "B>C"], "X", Err("changed by someone else"));
        check(&["A>B", "B>C"], "-", Err("was deleted"));
        check(&["->B"], "X", Err("changed by someone else"));
        // Somebody wrote X between the agent's changes.
        check(&["A>B", "X>C"], "C", Err("changed by someone else"));
        check(&["A>B", "X>Y", "Y>B"], "B", Err("changed by someone else"));
        // Undone, then changed again.
        check(&["A>B", "A>C"], "C", Ok(false));
        check(&["A>B", "B>A", "A>B"], "B", Ok(false));
    }

    #[test]
    fn what_else_may_have_changed_is_said() {
        let said = |name: &str, outcome| {
            let (call_id, name, output) = (String::new(), name.to_owned(), "".into());
            let finished = ToolFinished::new(call_id, name, outcome, output);
            unknown(3, &finished).unwrap_or_default()
        };
        assert_eq!(said("shell", Failed), "Turn 3 ran shell; what that changed is not known.");
        assert_eq!(said("mcp__a__b", Succeeded), "Turn 3 ran mcp__a__b; what that changed is not known.");
        let nothing =
            [("shell", NotRun), ("write", Failed), ("edit", Succeeded), ("write", Unknown), ("mcp__a__b", NotRun)];
        for (name, outcome) in nothing {
            assert_eq!(said(name, outcome), "", "{name}");
        }
    }
}
