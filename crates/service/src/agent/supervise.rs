//! Supervision of an actor: a panic fails its turn, and a second one makes the session read-only.

use std::{panic::AssertUnwindSafe, sync::atomic::Ordering};

use futures::FutureExt as _;

use super::{
    actor::{Actor, Exit, Summary},
    decide::{Control, PROCESS_ENDED, internal},
};
use crate::{
    SessionError,
    ids::Seq,
    service::Changed,
    session::View,
    store::{
        StoreError,
        restore::{Trouble, replay},
    },
};

/// Runs an actor until the session is not needed in memory.
pub(crate) async fn supervise(mut actor: Box<Actor>) {
    let mut reloaded_at: Option<Seq> = None;
    loop {
        let exit = AssertUnwindSafe(actor.run()).catch_unwind().await;
        let (session_id, seq) = (actor.session.id, actor.session.last_seq);
        let (lost, failed) = match exit {
            Ok(Exit::Left) => return actor.depart().await,
            Ok(Exit::Discarded(StoreError::Fenced)) if actor.ports.is_stored() => return actor.be_taken_over().await,
            Ok(Exit::Discarded(error)) => (SessionError::StoreFailed, Some(error)),
            // It had lost its lease before, and was leaving.
            Err(_) if actor.departure.is_some() => return actor.be_taken_over().await,
            Err(_) => (SessionError::Internal("the session's actor panicked".to_owned()), None),
        };
        tracing::error!(%session_id, seq, %lost, "a session's actor was lost");
        actor.release_waiters(&lost);
        let reloaded = AssertUnwindSafe(Box::pin(actor.reload(failed.is_some()))).catch_unwind().await;
        if matches!(reloaded, Ok(Err(StoreError::Fenced))) && actor.ports.is_stored() {
            return actor.be_taken_over().await;
        }
        if actor.session.open_turn().is_some() || !actor.session.queue.is_empty() {
            // Callers that follow a turn by its events are notified behind everything durable. A lease that could not
            // be renewed does not know the durable seq.
            let tail = actor.ports.durable(session_id).await.unwrap_or(actor.lease.tail);
            actor.shared.live.lose(tail, &lost);
        }
        // After a panic, too, the store may fail for a moment: that damages nothing.
        let failed = match &reloaded {
            Ok(Err(error)) => Some(error.clone()),
            Ok(Ok(())) | Err(_) => failed,
        };
        // If nothing became durable since the last reload, it would repeat for ever.
        let is_stuck = reloaded_at.replace(actor.lease.tail) == Some(actor.lease.tail);
        if matches!(reloaded, Ok(Ok(()))) && !is_stuck {
            continue;
        }
        if let Some(error) = failed.filter(|_| actor.ports.is_stored()) {
            // The store may recover: until then each request tries it again, and gets its error.
            return actor.give_up(&error.into()).await;
        }
        tracing::error!(%session_id, seq, "the session is read-only now");
        actor.shared.is_read_only.store(true, Ordering::Release);
        return Box::pin(serve_refusals(&mut actor)).await;
    }
}

/// Answers every command of a read-only session.
async fn serve_refusals(actor: &mut Actor) {
    let (clock, shared) = (actor.ports.world.clock.clone(), actor.shared.clone());
    actor.release_drains();
    actor.notify_settled(Ok(()));
    loop {
        let command = tokio::select! {
            () = shared.interrupted.notified() => None,
            command = actor.mailbox.recv() => match command {
                Some(command) => Some(command),
                None => return,
            },
            () = clock.sleep(actor.idle) => {
                if actor.leaves() {
                    return actor.depart().await;
                }
                None
            }
        };
        for wish in shared.take_interrupts() {
            drop(wish.reply.send(Err(SessionError::Corrupted { session_id: shared.session_id, last_good_seq: None })));
        }
        match command {
            Some(super::command::Command::Drain { reply, .. }) => {
                let _ = reply.send(Ok(()));
            }
            Some(super::command::Command::GiveWay { .. }) => {
                let lost = actor.discard(&StoreError::Fenced);
                return actor.give_up(&lost).await;
            }
            Some(command) => actor.handle(command).await,
            None => {}
        }
        if !actor.waiting.deletions.is_empty() {
            actor.departure = actor.registry.upgrade().map(|registry| registry.depart(&shared));
            return actor.depart().await;
        }
    }
}

impl Actor {
    /// Answers everybody who waits for a turn with `error`.
    fn release_waiters(&mut self, error: &SessionError) {
        if let Some(unacknowledged) = self.waiting.unacknowledged.take() {
            drop(unacknowledged.reply.send(Err(error.clone())));
        }
        for waiter in self.waiting.waiters.drain().flat_map(|(_, waiters)| waiters) {
            waiter.send(Err(error.clone()));
        }
        for reply in self.waiting.interrupters.drain(..) {
            drop(reply.send(Err(error.clone())));
        }
        if let Some(asked) = self.running.asked.take() {
            drop(asked.reply.send(Err(error.clone())));
        }
    }

    /// Leaves memory: a stored session is settled; a deleted one, or one that is not stored, is dropped.
    async fn depart(&mut self) {
        let (ports, session_id, seq) = (self.ports.clone(), self.session.id, self.session.last_seq);
        let is_asked = !self.waiting.deletions.is_empty();
        let below = if is_asked { self.delete_children().await } else { Ok(()) };
        let is_deleted = is_asked && below.is_ok();
        let done = if ports.is_stored() && !is_deleted {
            if self.journalled.snapshot_seq < seq && !self.shared.is_read_only.load(Ordering::Acquire) {
                self.save_snapshot().await;
            }
            // The next start, or another node, loads a session with something to do: a turn's deadline comes, and the
            // queue goes on.
            match self.session.open_turn().is_some() || !self.session.queue.is_empty() {
                true => ports.events.give_up(self.lease).await,
                false => ports.observer.rests(&ports, self.lease),
            }
            Ok(())
        } else {
            // From here on, listing a session removes its row again.
            self.shared.is_deleted.store(true, Ordering::Release);
            ports.observer.delete(&ports, session_id, is_deleted.then_some(&*self.shared.live)).await
        };
        if let Err(error) = &done {
            self.shared.is_deleted.store(false, Ordering::Release);
            tracing::error!(%session_id, %error, "a session could not leave as it should");
        }
        for reply in self.waiting.deletions.drain(..) {
            let done = below.clone().and_then(|()| Ok(done.clone()?));
            drop(reply.send(done.map(|()| Changed { session_id, seq })));
        }
        for (turn, waiters) in self.waiting.waiters.drain() {
            let error = if is_deleted { SessionError::Interrupted { turn } } else { SessionError::ShuttingDown };
            waiters.into_iter().for_each(|waiter| waiter.send(Err(error.clone())));
        }
        self.shared.close();
        self.departure = None;
        self.release_drains();
    }

    /// Leaves memory because another owner has the session by now, and records nothing: what is left of its work is the
    /// other's to end. Callers that wait are notified, and ask or follow the session again wherever it is.
    async fn be_taken_over(&mut self) {
        let session_id = self.session.id;
        tracing::warn!(%session_id, seq = self.session.last_seq, "a session was taken over by another owner");
        let lost = self.discard(&StoreError::Fenced);
        if self.session.open_turn().is_some() || !self.session.queue.is_empty() {
            let tail = self.ports.durable(session_id).await.unwrap_or(self.lease.tail);
            // First: a caller that is released below may follow the session at once.
            self.shared.live.lose(tail, &lost);
        }
        self.release_waiters(&lost);
        for wish in self.shared.take_interrupts() {
            drop(wish.reply.send(Err(lost.clone())));
        }
        self.give_up(&lost).await;
    }

    /// Leaves memory at once: the journal has everything durable, and the next caller loads the session.
    async fn give_up(&mut self, error: &SessionError) {
        self.shared.failure.get_or_init(|| error.clone());
        // New callers that wait for a turn load the session again.
        self.departure = self.departure.take().or_else(|| Some(self.registry.upgrade()?.depart(&self.shared)));
        self.ports.events.give_up(self.lease).await;
        self.mailbox.close();
        while let Ok(command) = self.mailbox.try_recv() {
            // Nothing was done for it: its caller asks again.
            command.refuse(&SessionError::TakenOver(self.session.id));
        }
        for reply in self.waiting.deletions.drain(..) {
            drop(reply.send(Err(error.clone())));
        }
        self.notify_settled(Err(error.clone()));
        self.shared.close();
        self.departure = None;
        self.release_drains();
    }

    /// Reloads the session from its journal. An open turn fails: its calls get results, and it gets its end. But if the
    /// store has failed, a turn that outlives its process goes on.
    async fn reload(&mut self, has_store_failed: bool) -> Result<(), StoreError> {
        self.store_failure = None;
        self.journalled.deferred.clear();
        self.running.summary = Summary::None;
        self.running.summary_bill = Default::default();
        let Control { is_draining, is_queue_held, is_turn_held, .. } = self.control;
        let left_open = self.control.interrupt.filter(|(_, reason)| *reason == PROCESS_ENDED);
        self.control = Control { is_draining, is_queue_held, is_turn_held, interrupt: left_open, ..Control::default() };
        let session_id = self.session.id;
        self.lease = self.ports.events.lease(session_id).await?;
        // If applied records never became durable, only the journal is right. Where other nodes append too, a tail that
        // is as far shows nothing: it may be that of records in their place.
        let is_ahead = self.lease.tail < self.session.last_seq;
        let replayed = match is_ahead || self.ports.events.node().is_some() {
            true => Err(Trouble::Torn),
            false => replay(self.ports.events.as_ref(), session_id, &mut self.session).await,
        };
        match replayed {
            Ok(()) => {}
            Err(Trouble::Failed(error)) => return Err(error),
            Err(Trouble::Torn) => {
                self.session = self.ports.restore(session_id).await?.ok_or(StoreError::NotFound(session_id))?;
            }
        }
        // Another owner has had the lease since.
        if self.session.last_seq > self.lease.tail {
            return Err(StoreError::Fenced);
        }
        // What failed may have been the end of that turn, and be durable all the same.
        let open = self.session.open_turn().map(|open| open.turn);
        self.control.interrupt.take_if(|(turn, _)| Some(*turn) != open);
        self.shared.show_only(View::of(&self.session));
        self.publish().await;
        // What only waits for others is as good as it was before the store failed: a kill would not have ended it either.
        let is_lost = self.session.open_turn().is_some_and(|open| !has_store_failed || !open.outlives_its_process());
        if is_lost && self.control.interrupt.is_none() {
            self.control.failure = Some(internal("the session's actor was lost while the turn ran"));
        }
        Ok(())
    }
}
