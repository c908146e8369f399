//! What stands around an actor: it turns a panic into a failed turn, and a second one into a read-only session.

use std::{panic::AssertUnwindSafe, sync::atomic::Ordering};

use futures::FutureExt as _;

use super::{
    actor::{Actor, Exit},
    decide::{Control, internal},
};
use crate::{SessionError, ids::Seq, session::CallProgress, store::StoreError, wire::decode_event};

/// How the supervision of a session ended.
pub(crate) enum Ended {
    /// Nobody needs the session.
    Left,
    /// It can no longer be served from here.
    Lost,
}

/// Runs an actor until nobody needs it.
pub(crate) async fn supervise(mut actor: Actor) -> Ended {
    let mut panicked_at: Option<Seq> = None;
    loop {
        let exit = AssertUnwindSafe(actor.run()).catch_unwind().await;
        let seq = actor.session.last_seq();
        let again = match exit {
            Ok(Exit::Left) => return Ended::Left,
            Ok(Exit::Discarded) => actor.reload().await,
            Err(_) if panicked_at == Some(seq) => {
                tracing::error!(session_id = %actor.session.id(), seq, "a session failed twice at the same place and is read-only now");
                actor.shared.is_read_only.store(true, Ordering::Release);
                actor.release_waiters(&SessionError::Corrupted(actor.session.id()));
                return serve_refusals(actor).await;
            }
            Err(_) => {
                tracing::error!(session_id = %actor.session.id(), seq, "a session's actor panicked; its turn fails");
                panicked_at = Some(seq);
                actor.recover().await
            }
        };
        if let Err(error) = again {
            tracing::error!(session_id = %actor.session.id(), %error, "a session could not be loaded again");
            return Ended::Lost;
        }
    }
}

/// Answers every command of a read-only session.
async fn serve_refusals(mut actor: Actor) -> Ended {
    let shared = actor.shared.clone();
    loop {
        let command = tokio::select! {
            () = shared.interrupted.notified() => None,
            command = actor.mailbox.recv() => match command {
                Some(command) => Some(command),
                None => return Ended::Left,
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

    /// After a failure of the store: those who wait learn that the outcome is unknown, and the journal says what stands.
    async fn reload(&mut self) -> Result<(), StoreError> {
        self.release_waiters(&SessionError::StoreFailed);
        self.is_discarded = false;
        self.control = Control { is_draining: self.control.is_draining, ..Control::default() };
        self.catch_up().await?;
        self.fail_open_turn().await
    }

    /// After a panic: those who wait learn of it, and the turn that ran has failed.
    async fn recover(&mut self) -> Result<(), StoreError> {
        self.release_waiters(&SessionError::Internal("the session's actor panicked".to_owned()));
        self.control = Control { is_draining: self.control.is_draining, ..Control::default() };
        self.catch_up().await?;
        self.fail_open_turn().await
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

    /// The open turn has failed: its calls get their results, and it its end, by the ordinary way.
    async fn fail_open_turn(&mut self) -> Result<(), StoreError> {
        if let Some(open) = self.session.open_turn() {
            let lost = open.calls.iter().filter(|call| call.progress == CallProgress::Started).count();
            tracing::warn!(turn = open.turn, lost, "a turn fails because its actor was lost");
            self.control.failure = Some(internal("the session's actor was lost while the turn ran"));
        }
        Ok(())
    }
}
