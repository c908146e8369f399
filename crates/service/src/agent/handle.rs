//! Commands to an actor: each is checked against the session's current state, recorded, and answered when its record is
//! durable. Refused commands record nothing.

use std::{collections::BTreeSet, time::Duration};

use super::{
    actor::{Actor, Unacknowledged},
    command::{Change, Command, Reply},
};
use crate::{
    SessionError,
    ids::{Seq, TurnNumber},
    service::{Changed, EditQueued},
    session::{
        CONTEXT_RUNS_MAX,
        event::{
            Event, Pinned, ReminderCleared, SessionArchived, SessionUnarchived, TurnDequeued, TurnEdited, Unpinned,
        },
    },
    store::StoreError,
};

impl Actor {
    /// Handles a command; its answer goes back when the change is durable.
    pub(super) async fn handle(&mut self, command: Command) {
        if let Err(error) = self.acknowledge().await {
            // The state in memory is invalid, and must not answer the command. Nothing was done for it: its caller asks
            // again.
            self.discard(&error);
            return command.refuse(&SessionError::TakenOver(self.session.id));
        }
        match command {
            Command::StartTurn { request, hash, is_continuation, refusal, reply } => {
                match self.accept(&request, hash, is_continuation, refusal).await {
                    Ok((handle, None)) => drop(reply.send(Ok(handle))),
                    Ok((handle, Some(ticket))) => {
                        self.waiting.unacknowledged = Some(Unacknowledged { ticket, handle, reply });
                    }
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Command::GoOn { turn } if self.session.is_pending(turn) => self.release_held(),
            Command::GoOn { .. } => {}
            Command::Record { change, reply } => drop(reply.send(self.change(*change).await)),
            Command::Decide { request, reply } => drop(reply.send(self.decide_approval(*request).await)),
            Command::AnswerCall { request, hash, reply } => drop(reply.send(self.answer_call(&request, &hash).await)),
            Command::ChildEnded { ended, reply } => drop(reply.send(self.child_ended(&ended).await)),
            Command::CancelQueued { turn, reply } => drop(reply.send(self.cancel_queued(turn, "cancelled").await)),
            Command::EditQueued { request, reply } => drop(reply.send(self.edit_queued(*request).await)),
            Command::Delete { is_forced, reply } => self.delete(is_forced, reply).await,
            Command::Compact { config, cancel, reply } => {
                if let Err(error) = self.compact_now(config, &cancel, reply).await {
                    self.discard(&error);
                }
            }
            Command::PreviewCompaction { config, reply } => drop(reply.send(self.preview_compaction(config))),
            Command::UndoCompaction { compaction, reply } => drop(reply.send(self.undo_compaction(compaction).await)),
            Command::DropBlobs { names, last_seq, reply } => drop(reply.send(self.drop_blobs(&names, last_seq).await)),
            Command::GiveWay { reply } => {
                self.discard(&StoreError::Fenced);
                drop(reply);
            }
            Command::Drain { drain_ms, reply } => {
                self.control.is_draining = true;
                self.drain_until = Some(self.ports.world.clock.elapsed() + Duration::from_millis(drain_ms));
                self.waiting.drains.push(reply);
                // A queue that outlives the process needs no end.
                let is_kept = self.ports.is_stored();
                while let (false, Some(turn)) = (is_kept, self.session.queue.front().map(|queued| queued.turn)) {
                    if self.cancel_queued(turn, "shutting_down").await.is_err() {
                        break;
                    }
                }
            }
        }
    }

    /// A blob is named by a record after it was made, and made by this actor or by a call that runs.
    async fn drop_blobs(&mut self, names: &BTreeSet<String>, last_seq: Seq) -> Result<(), SessionError> {
        self.shared.check_writable()?;
        let runs_call = self.session.open_turn().is_some_and(|open| !open.calls.is_empty());
        if runs_call || self.session.last_seq != last_seq {
            // The next compaction finds them.
            return Ok(());
        }
        Ok(self.ports.blobs.remove(self.session.id, names).await?)
    }

    /// Deletes the session as soon as nothing runs.
    async fn delete(&mut self, is_forced: bool, reply: Reply<Changed>) {
        if let (false, Some(turn)) = (is_forced, self.session.pending_turn()) {
            return drop(reply.send(Err(SessionError::Busy { turn })));
        }
        if !is_forced && let Err(error) = self.check_children_rest().await {
            return drop(reply.send(Err(error)));
        }
        match &self.running.asked {
            Some(_) if !is_forced => return drop(reply.send(Err(SessionError::Compacting))),
            Some(asked) => asked.cancel.cancel(),
            None => {}
        }
        if let Some(open) = self.session.open_turn() {
            self.control.interrupt.get_or_insert((open.turn, "deleted"));
        }
        self.control.is_draining = true;
        self.waiting.deletions.push(reply);
    }

    async fn change(&mut self, change: Change) -> Result<Changed, SessionError> {
        self.shared.check_writable()?;
        self.check_archived(matches!(change, Change::Archive(_) | Change::SnapshotHistory { .. }))?;
        let limits = &self.ports.options.limits;
        let mut of_turn = None;
        let event = match change {
            Change::Remind(event, kind) => {
                if !self.session.has_reminder(&kind) && self.session.reminders.len() >= limits.reminders {
                    return Err(SessionError::QueueFull { what: "reminders", limit: limits.reminders });
                }
                *event
            }
            Change::ClearReminder(kind) => {
                if !self.session.has_reminder(&kind) {
                    return Err(SessionError::ItemNotFound("reminder"));
                }
                Event::ReminderCleared(ReminderCleared { kind })
            }
            Change::Pin { text, turn } => {
                if turn.is_some() {
                    if self.session.open_turn().map(|open| open.turn) != turn {
                        return Err(SessionError::NotRunning { turn });
                    }
                    if let Some(pin) = self.session.pins.iter().find(|pin| pin.text == text) {
                        return Ok(Changed { session_id: self.session.id, seq: pin.seq });
                    }
                }
                of_turn = turn;
                if self.session.pins.len() >= limits.pins {
                    return Err(SessionError::QueueFull { what: "pins", limit: limits.pins });
                }
                Event::Pinned(Pinned { text })
            }
            Change::Unpin(pin) => {
                if !self.session.pins.iter().any(|known| known.seq == pin) {
                    return Err(SessionError::ItemNotFound("pin"));
                }
                Event::Unpinned(Unpinned { pin })
            }
            Change::Update { title, labels } => {
                let updated = self.session.updated(title, labels);
                if updated.title == self.session.given_title && updated.labels == self.session.labels {
                    return Ok(Changed { session_id: self.session.id, seq: self.shared.shown_seq() });
                }
                Event::SessionUpdated(updated)
            }
            Change::SnapshotHistory { pruned_to, keys_up_to } => {
                let limit = SessionError::Limit { what: "runs of the context", limit: CONTEXT_RUNS_MAX as u64 };
                Event::HistorySnapshot(self.session.history_snapshot(pruned_to, keys_up_to).ok_or(limit)?)
            }
            // The state is already recorded.
            Change::Archive(is_archived) if self.session.is_archived == is_archived => {
                return Ok(Changed { session_id: self.session.id, seq: self.shared.shown_seq() });
            }
            Change::Archive(is_archived) => {
                if let Some(turn) = self.session.pending_turn() {
                    return Err(SessionError::Busy { turn });
                }
                if self.session.open_compaction().is_some() {
                    return Err(SessionError::Compacting);
                }
                match is_archived {
                    true => Event::SessionArchived(SessionArchived {}),
                    false => Event::SessionUnarchived(SessionUnarchived {}),
                }
            }
        };
        self.changed(of_turn, event).await
    }

    async fn cancel_queued(&mut self, turn: TurnNumber, reason: &str) -> Result<Changed, SessionError> {
        self.shared.check_writable()?;
        if !self.session.queue.iter().any(|queued| queued.turn == turn) {
            return Err(SessionError::ItemNotFound("turn"));
        }
        let changed = self.changed(Some(turn), Event::TurnDequeued(TurnDequeued { reason: reason.to_owned() })).await?;
        for waiter in self.waiting.waiters.remove(&turn).unwrap_or_default() {
            waiter.send(Err(SessionError::Interrupted { turn }));
        }
        Ok(changed)
    }

    async fn edit_queued(&mut self, request: EditQueued) -> Result<Changed, SessionError> {
        self.shared.check_writable()?;
        let EditQueued { session_id: _, turn, prompt, position } = request;
        let queue = &self.session.queue;
        let Some(queued) = queue.iter().find(|queued| queued.turn == turn) else {
            return Err(SessionError::ItemNotFound("turn"));
        };
        let position = position.map(|position| position.min(queue.len() - 1));
        let name = queued.terms.model.as_ref().unwrap_or(&self.session.model);
        let model = self.ports.models.resolve(name).ok();
        let (mut text, mut blocks) = (None, Vec::new());
        if let Some(prompt) = prompt {
            self.ports.held.check_room()?;
            self.ports.events.room().await?;
            let checked = self.check_blocks(&prompt, model.as_ref()).await?;
            blocks = self.attach(checked).await?;
            text = Some(self.clean_text(&prompt.text()));
        }
        self.changed(Some(turn), Event::TurnEdited(TurnEdited { prompt: text, blocks, position })).await
    }

    pub(super) async fn changed(&mut self, turn: Option<TurnNumber>, event: Event) -> Result<Changed, SessionError> {
        let seq = self.record_durably(turn, vec![event]).await.map_err(|error| self.discard(&error))?;
        Ok(Changed { session_id: self.session.id, seq })
    }

    /// An archived session is only read, and brought back.
    pub(super) fn check_archived(&self, is_archiving: bool) -> Result<(), SessionError> {
        let is_refused = self.session.is_archived && !is_archiving;
        if is_refused { Err(SessionError::Archived(self.session.id)) } else { Ok(()) }
    }
}
