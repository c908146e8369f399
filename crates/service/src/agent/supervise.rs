//! What stands around an actor: it turns a panic into a failed turn, and a second one into a read-only session.

use std::{panic::AssertUnwindSafe, sync::atomic::Ordering};

use futures::FutureExt as _;

use super::{
    actor::{Actor, Exit},
    decide::{Control, internal},
};
use crate::{SessionError, ids::Seq, store::StoreError, wire::decode_event};

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
        if is_stuck || actor.reload().await.is_err() {
            tracing::error!(%session_id, seq, "the session is read-only now");
            actor.shared.is_read_only.store(true, Ordering::Release);
            return serve_refusals(actor).await;
        }
    }
}

/// Answers every command of a read-only session.
async fn serve_refusals(mut actor: Actor) {
    let shared = actor.shared.clone();
    loop {
        let command = tokio::select! {
            () = shared.interrupted.notified() => None,
            command = actor.mailbox.recv() => match command {
                Some(command) => Some(command),
                None => return,
            },
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

    /// Applies what the journal holds beyond the session in memory.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        self.lease = self.engine.events.lease(self.session.id()).await?;
        loop {
            let page = self.engine.events.read(self.session.id(), self.session.last_seq(), 64).await?;
            let frames = page.map(|page| page.frames).unwrap_or_default();
            if frames.is_empty() {
                self.publish();
                return Ok(());
            }
            for frame in frames {
                let line = std::str::from_utf8(&frame.line).map_err(|error| StoreError::Failed(error.to_string()))?;
                let record = decode_event(line).map_err(|error| StoreError::Failed(error.to_string()))?;
                self.session.apply(&record).map_err(|error| StoreError::Failed(error.to_string()))?;
            }
        }
    }
}
