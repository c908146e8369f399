//! Reminders about a session's workspace, renewed at the start of each turn. A reminder that a person set is never
//! replaced.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    actor::Actor,
    perform::{Effect, Outcome},
};
use crate::{
    session::{
        event::{Event, ReminderCleared, ReminderSet},
        reminder::SystemReminderType,
    },
    store::StoreError,
    tool::prefix,
};

/// Longest time for the notes of one turn.
const LIMIT: Duration = Duration::from_secs(3);

impl Actor {
    /// Asks for the notes about the session's workspace.
    pub(super) async fn take_notes(&mut self) -> Result<(), StoreError> {
        self.control.has_notes = true;
        let (Some(notes), Some(workspace)) = (self.ports.notes.clone(), self.session.workspace()) else {
            return Ok(());
        };
        let (ports, workspace) = (self.ports.clone(), workspace.to_owned());
        let work = move |outcomes: mpsc::Sender<Outcome>, cancel: CancellationToken| async move {
            let written = async { notes.write(&workspace, ports.world.clock.now()).await };
            tokio::select! {
                written = written => drop(outcomes.send(Outcome::Notes(written)).await),
                () = cancel.cancelled() => {}
                () = ports.world.clock.sleep(LIMIT) => tracing::info!("the notes about the workspace took too long"),
            }
        };
        self.drive(Effect::spawn(self.running.turn_span.clone(), work)).await
    }

    /// Records the notes that differ from the reminders.
    pub(super) async fn note(&mut self, notes: Vec<(SystemReminderType, Option<String>)>) -> Result<(), StoreError> {
        let limits = &self.ports.options.limits;
        let most = usize::try_from(limits.reminder_bytes).unwrap_or(usize::MAX);
        let mut room = limits.reminders.saturating_sub(self.session.reminders().len());
        let mut events = Vec::new();
        for (kind, text) in notes {
            let text = text.map(|text| prefix(&self.ports.secrets.replace(&text), most).to_owned());
            let known = self.session.reminders().iter().find(|reminder| reminder.kind == kind);
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
        if events.is_empty() { Ok(()) } else { self.record(None, events).await.map(drop) }
    }
}
