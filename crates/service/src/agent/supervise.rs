//! What stands around an actor: it turns a panic into a failed turn, and a second one into a read-only session.

use std::{panic::AssertUnwindSafe, sync::atomic::Ordering};

use futures::FutureExt as _;

use super::{
    actor::{Actor, Exit},
    decide::{Control, internal},
};
use crate::{
    SessionError,
    ids::Seq,
    session::{Session, event::Record},
    store::{Frame, StoreError},
    wire::decode_event,
};

/// Runs an actor until nobody needs it.
pub(crate) async fn supervise(mut actor: Actor) {
    let mut failed_at: Option<Seq> = None;
    loop {
        let exit = AssertUnwindSafe(actor.run()).catch_unwind().await;
        let (session_id, seq) = (actor.session.id(), actor.session.last_seq());
        let lost = match exit {
            Ok(Exit::Left) => return,
            Ok(Exit::Discarded) => SessionError::StoreFailed,
            Err(_) => SessionError::Internal("the session's actor panicked".to_owned()),
        };
        tracing::error!(%session_id, seq, %lost, "a session's actor was lost");
        // A second failure at the same place would go on for ever.
        let is_stuck = failed_at.replace(seq) == Some(seq);
        actor.release_waiters(&lost);
        let is_loaded = !is_stuck && matches!(AssertUnwindSafe(actor.reload()).catch_unwind().await, Ok(Ok(())));
        if !is_loaded {
            tracing::error!(%session_id, seq, "the session is read-only now");
            actor.shared.is_read_only.store(true, Ordering::Release);
            return serve_refusals(actor).await;
        }
    }
}

/// Answers every command of a read-only session.
async fn serve_refusals(mut actor: Actor) {
    let (clock, shared) = (actor.engine.world.clock.clone(), actor.shared.clone());
    actor.release_drains();
    loop {
        let command = tokio::select! {
            () = shared.interrupted.notified() => None,
            command = actor.mailbox.recv() => match command {
                Some(command) => Some(command),
                None => return,
            },
            () = clock.sleep(actor.idle) => {
                if actor.leaves() {
                    return;
                }
                None
            }
        };
        for wish in shared.take_interrupts() {
            drop(wish.reply.send(Err(SessionError::Corrupted(shared.session_id))));
        }
        match command {
            Some(super::command::Command::Drain { reply, .. }) => {
                let _ = reply.send(());
            }
            Some(command) => actor.handle(command).await,
            None => {}
        }
    }
}

impl Actor {
    /// Those who wait for a turn get this answer.
    fn release_waiters(&mut self, error: &SessionError) {
        for waiter in self.waiters.drain().flat_map(|(_, waiters)| waiters) {
            drop(waiter.send(Err(error.clone())));
        }
        for reply in self.interrupters.drain(..) {
            drop(reply.send(Err(error.clone())));
        }
    }

    /// Starts over from what the journal holds. The open turn has failed: its calls get their results, and it
    /// its end, by the ordinary way.
    async fn reload(&mut self) -> Result<(), StoreError> {
        self.is_discarded = false;
        self.control = Control { is_draining: self.control.is_draining, ..Control::default() };
        self.catch_up().await?;
        if self.session.open_turn().is_some() {
            self.control.failure = Some(internal("the session's actor was lost while the turn ran"));
        }
        Ok(())
    }

    /// The session as it began.
    async fn first(&self) -> Result<Session, StoreError> {
        let page = self.engine.events.read(self.session.id(), 0, 1).await?;
        let frame = page.and_then(|page| page.frames.into_iter().next());
        let frame = frame.ok_or_else(|| StoreError::Failed("the journal has no beginning".to_owned()))?;
        Session::begin(&decode(&frame)?).map_err(|error| StoreError::Failed(error.to_string()))
    }

    /// Applies what the journal holds beyond the session in memory.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        self.lease = self.engine.events.lease(self.session.id()).await?;
        if self.lease.tail < self.session.last_seq() {
            // What was applied never became durable: the journal alone says what the session is.
            self.session = self.first().await?;
        }
        loop {
            let page = self.engine.events.read(self.session.id(), self.session.last_seq(), 64).await?;
            let frames = page.map(|page| page.frames).unwrap_or_default();
            if frames.is_empty() {
                self.publish();
                return Ok(());
            }
            for frame in frames {
                let record = decode(&frame)?;
                self.session.apply(&record).map_err(|error| StoreError::Failed(error.to_string()))?;
            }
        }
    }
}

fn decode(frame: &Frame) -> Result<Record, StoreError> {
    let line = std::str::from_utf8(&frame.line).map_err(|error| StoreError::Failed(error.to_string()))?;
    decode_event(line).map_err(|error| StoreError::Failed(error.to_string()))
}
