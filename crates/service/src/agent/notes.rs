//! What a turn needs before its first step: tools whose sources are ready, and reminders about the session's workspace and
//! about the agents that it may call. A reminder that a person set is never replaced.

use std::{path::Path, time::Duration};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Ports,
    actor::Actor,
    perform::{Effect, Outcome},
};
use crate::{
    session::{
        event::{Event, ReminderCleared, ReminderSet},
        reminder::SystemReminderType,
    },
    store::StoreError,
    tool::{AgentFile, ToolScope, prefix},
};

/// Longest time for the notes of one turn.
const LIMIT: Duration = Duration::from_secs(3);

/// Most bytes of the list of agents, and of what it says of one.
const LIST_BYTES_MAX: usize = 8 * 1024;
const DESCRIPTION_BYTES_MAX: usize = 500;

impl Ports {
    /// Reads the agents that a session may call; there are none if that takes too long.
    pub(super) async fn agents(&self, workspace: Option<&Path>) -> Vec<AgentFile> {
        let Some(notes) = self.notes.as_ref().filter(|_| self.options.agents.enabled) else { return Vec::new() };
        tokio::select! {
            agents = notes.agents(workspace) => return agents,
            () = self.world.clock.sleep(LIMIT) => {}
        }
        tracing::warn!("the agents' files took too long to read");
        Vec::new()
    }
}

/// Lists agents for the model; `None` if there are none.
fn list(agents: &[AgentFile]) -> Option<String> {
    let mut text = "Agents that `delegate` can start, by its argument `agent`:".to_owned();
    for (at, AgentFile { description, agent }) in agents.iter().enumerate() {
        let line = format!("\n- {}: {}", agent.name, prefix(description, DESCRIPTION_BYTES_MAX));
        if text.len() + line.len() > LIST_BYTES_MAX {
            text.push_str(&format!("\n- and {} more", agents.len() - at));
            break;
        }
        text.push_str(&line);
    }
    (!agents.is_empty()).then_some(text)
}

impl Actor {
    /// Waits for the sources of tools, and asks for the notes about the session's workspace.
    pub(super) async fn prepare(&mut self) -> Result<(), StoreError> {
        self.control.is_prepared = true;
        let workspace = self.session.workspace().map(Path::to_owned);
        let (is_enabled, delegates) = (self.ports.options.agents.enabled, self.session.may_delegate());
        let notes = self.ports.notes.clone().filter(|_| workspace.is_some() || is_enabled);
        if notes.is_some() || !self.ports.tools.has_no_sources() {
            let (ports, session_id) = (self.ports.clone(), self.session.id);
            let work = move |outcomes: mpsc::Sender<Outcome>, cancel: CancellationToken| async move {
                let scope = ToolScope { session_id, workspace: workspace.as_deref() };
                let noted = async {
                    let (notes, workspace) = (notes?, scope.workspace?);
                    tokio::select! {
                        written = notes.write(workspace, ports.world.clock.now()) => return Some(written),
                        () = ports.world.clock.sleep(LIMIT) => {}
                    }
                    tracing::info!("the notes about the workspace took too long");
                    None
                };
                let listed = async {
                    let agents = if delegates { ports.agents(scope.workspace).await } else { Vec::new() };
                    let kind = SystemReminderType::Custom("agents".to_owned());
                    [(kind, list(&agents))]
                };
                let prepared = async {
                    let (written, listed, ()) = tokio::join!(noted, listed, ports.tools.ready(&scope));
                    written.unwrap_or_default().into_iter().chain(listed).collect()
                };
                tokio::select! {
                    written = prepared => drop(outcomes.send(Outcome::Notes(written)).await),
                    () = cancel.cancelled() => {}
                }
            };
            let effect = Effect::spawn(self.running.turn_span.clone(), work);
            // Meanwhile the turn's start becomes durable.
            self.acknowledge().await?;
            self.drive(effect).await?;
        }
        if self.session.open_turn().is_some_and(|open| !open.calls.is_empty()) {
            // Calls that a former process left are looked up in the tools of today.
            self.running.tools = self.ports.tools_of(&self.session);
        }
        Ok(())
    }

    /// Records the notes that differ from the reminders.
    pub(super) async fn note(&mut self, notes: Vec<(SystemReminderType, Option<String>)>) -> Result<(), StoreError> {
        let limits = &self.ports.options.limits;
        let most = usize::try_from(limits.reminder_bytes).unwrap_or(usize::MAX);
        let mut room = limits.reminders.saturating_sub(self.session.reminders.len());
        let mut events = Vec::new();
        for (kind, text) in notes {
            // A note with a name that no reminder can have could not be read again.
            if let Err(error) = kind.check() {
                tracing::warn!(%kind, %error, "a note about the workspace is passed over");
                continue;
            }
            let text = text.map(|text| prefix(&self.ports.secrets.replace(&text), most).to_owned());
            let known = self.session.reminders.iter().find(|reminder| reminder.kind == kind);
            let is_same = known.map(|known| &known.text) == text.as_ref();
            if is_same || known.is_some_and(|known| !known.automatic) {
                continue;
            }
            match (text, known) {
                (None, _) => events.push(Event::ReminderCleared(ReminderCleared { kind })),
                (Some(text), known) => {
                    // A session that has no room for another reminder does without.
                    if known.is_none() {
                        let Some(less) = room.checked_sub(1) else { continue };
                        room = less;
                    }
                    events.push(Event::ReminderSet(ReminderSet { kind, text, automatic: true }));
                }
            }
        }
        if events.is_empty() { Ok(()) } else { self.record(None, events).await }
    }
}
