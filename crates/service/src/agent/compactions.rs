//! Requests about a session's compactions: to compact now, to preview that, and to undo one.

use meerkat_errors::{ErrorBody, ErrorCode};
use tokio_util::sync::CancellationToken;

use super::{
    actor::{Actor, AskedCompaction},
    command::Reply,
    compact::interrupted,
    render::tool_bytes,
};
use crate::{
    SessionError,
    compaction::{CompactionConfig, CompactionContext, SharedCompactor},
    ids::Seq,
    service::{Changed, CompactionReceipt},
    session::event::{CompactionUndone, Event},
    store::{
        ReadLimit, StoreError,
        restore::{decode, replay_whole},
    },
};

/// Frames that are read at a time.
const FRAMES_READ: usize = 256;

impl Actor {
    /// Begins a compaction, or refuses it; the caller is answered when it has ended.
    pub(super) async fn compact_now(
        &mut self,
        config: Option<CompactionConfig>,
        cancel: &CancellationToken,
        reply: Reply<CompactionReceipt>,
    ) -> Result<(), StoreError> {
        if cancel.is_cancelled() {
            drop(reply.send(Err(failed(interrupted()))));
            return Ok(());
        }
        match self.check_compact(config).await {
            Err(error) => drop(reply.send(Err(error))),
            Ok((compactor, context)) => {
                self.running.asked = Some(AskedCompaction { compactor, reply, cancel: cancel.child_token() });
                self.begin_compaction(&context).await?;
            }
        }
        Ok(())
    }

    async fn check_compact(
        &mut self,
        config: Option<CompactionConfig>,
    ) -> Result<(SharedCompactor, CompactionContext), SessionError> {
        // Permanent refusals come before temporary ones.
        let (compactor, context) = self.compactor_asked(config)?;
        self.check_free()?;
        self.ports.held.check_room()?;
        self.ports.events.room().await?;
        self.check_compacts(&*compactor, &context).map_err(failed)?;
        Ok((compactor, context))
    }

    /// Returns the receipt of a compaction that would run now.
    pub(super) fn preview_compaction(
        &self,
        config: Option<CompactionConfig>,
    ) -> Result<CompactionReceipt, SessionError> {
        let (compactor, context) = self.compactor_asked(config)?;
        self.previewed(&*compactor, &context).map_err(failed)
    }

    fn compactor_asked(
        &self,
        config: Option<CompactionConfig>,
    ) -> Result<(SharedCompactor, CompactionContext), SessionError> {
        self.ports.check_settings(config.is_some())?;
        if config.is_some_and(|config| !config.enabled) {
            let why = "it says when a turn compacts, and this request compacts at once; leave it out";
            return Err(SessionError::invalid("compaction.enabled", why));
        }
        let model = self.answering()?;
        if let Some(config) = &config {
            config.check(self.window(&model))?;
        }
        let compactor = self.ports.compactor(config, &self.session, self.window(&model))?;
        Ok((compactor, self.compaction_context(&model)))
    }

    /// Nothing runs or waits, and the session can be changed.
    fn check_free(&self) -> Result<(), SessionError> {
        self.shared.check_writable()?;
        self.check_takes_work()?;
        match self.session.pending_turn() {
            Some(turn) => Err(self.session.busy_with(turn)),
            None if self.session.open_compaction().is_some() => Err(SessionError::Compacting),
            None => Ok(()),
        }
    }

    /// Returns true if the requested compaction should end without a summary.
    pub(super) fn is_given_up(&self) -> bool {
        self.running.asked.as_ref().is_some_and(|asked| asked.cancel.is_cancelled())
    }

    /// Runs the requested compaction, and answers its caller.
    pub(super) async fn compact_as_asked(&mut self) -> Result<(), StoreError> {
        self.running.turn_started = self.ports.world.clock.elapsed();
        let compactor = self.running.asked.as_ref().map(|asked| asked.compactor.clone());
        let done = match (compactor, self.answering()) {
            (Some(compactor), Ok(model)) => {
                let context = self.compaction_context(&model);
                self.run_compaction(&*compactor, &context, false).await?
            }
            (_, Err(error)) => Err(self.compaction_failed(error.body()).await?),
            (None, Ok(_)) => Err(self.compaction_failed(interrupted()).await?),
        };
        if self.store_failure.is_some() {
            // Callers are answered when it is known what the journal holds.
            return Ok(());
        }
        let seq = self.session.last_seq;
        for reply in self.waiting.interrupters.drain(..) {
            drop(reply.send(Ok(Changed { session_id: self.session.id, seq })));
        }
        if let Some(asked) = self.running.asked.take() {
            drop(asked.reply.send(done.map_err(failed)));
        }
        Ok(())
    }

    /// Takes the newest compaction back.
    pub(super) async fn undo_compaction(&mut self, asked: Option<Seq>) -> Result<Changed, SessionError> {
        self.check_free()?;
        let compaction = self.undoable(asked).await?;
        if !self.session.context_before_is_known() {
            self.learn_context_before().await?;
        }
        self.check_fits_undone()?;
        let changed = self.changed(None, Event::CompactionUndone(CompactionUndone { compaction })).await?;
        // Only this snapshot has the context from before the compaction.
        self.save_snapshot().await;
        Ok(changed)
    }

    /// Finds the compaction to undo: the newest, which must be the requested one if one was named.
    async fn undoable(&mut self, asked: Option<Seq>) -> Result<Seq, SessionError> {
        let newest = self.session.undoable().next_back();
        match (asked, newest) {
            (None, Some(newest)) => Ok(newest),
            (Some(asked), Some(newest)) if asked == newest => Ok(newest),
            (Some(asked), Some(first)) if self.session.undoable().any(|known| known == asked) => {
                Err(SessionError::NotNewest { first })
            }
            // A summary without compactions to undo comes from one that can no longer be undone.
            (None, None) if self.session.context.summary().is_some() => Err(SessionError::HistoryPruned),
            (None, None) => Err(SessionError::ItemNotFound("compaction")),
            (Some(asked), _) => Err(self.why_not_undoable(asked).await?),
        }
    }

    /// Explains why a named compaction cannot be undone: an older one that is still in effect is out of reach, and
    /// anything else is not a compaction.
    async fn why_not_undoable(&mut self, asked: Seq) -> Result<SessionError, SessionError> {
        let is_older = self.session.undoable().next().is_none_or(|oldest| asked < oldest)
            && self.session.context.summary().is_some();
        let Some(after) = asked.checked_sub(1).filter(|_| is_older) else {
            return Ok(SessionError::ItemNotFound("compaction"));
        };
        let (mut after, mut is_compaction) = (after, false);
        // From the compaction on: it may have been undone since.
        while let Some(page) = self.ports.events.read(self.session.id, after, ReadLimit::frames(FRAMES_READ)).await?
            && let Some(last) = page.frames.last()
        {
            after = last.seq;
            for frame in &page.frames {
                match decode(frame)?.event {
                    Event::CompactionCompleted(_) if frame.seq == asked => is_compaction = true,
                    Event::CompactionUndone(undone) if undone.compaction == asked => is_compaction = false,
                    _ => {}
                }
            }
            if !is_compaction {
                break;
            }
        }
        Ok(if is_compaction { SessionError::HistoryPruned } else { SessionError::ItemNotFound("compaction") })
    }

    /// Checks that the context after an undo fits the window of the session's model.
    fn check_fits_undone(&self) -> Result<(), SessionError> {
        let Ok(model) = self.answering() else { return Ok(()) };
        let window = self.window(&model);
        let tokens =
            self.session.tokens_if_undone() + tool_bytes(&self.session, &self.ports.tools_of(&self.session)) / 4;
        if tokens <= window {
            return Ok(());
        }
        let message = format!(
            "Without the compaction the next request would have an estimated {tokens} tokens, and {} has a window of \
             {window}.",
            model.name
        );
        let body = ErrorBody::with_message(ErrorCode::ContextOverflow, message);
        Err(failed(body.detail("estimated_tokens", tokens).detail("window_tokens", window)))
    }

    /// Reads the whole journal for the context before the newest compactions, which a snapshot does not have.
    async fn learn_context_before(&mut self) -> Result<(), SessionError> {
        let whole = replay_whole(self.ports.events.as_ref(), self.session.id).await.map_err(|error| {
            tracing::warn!(session_id = %self.session.id, %error, "a journal does not say what was compacted");
            SessionError::HistoryPruned
        })?;
        let same = |whole: &crate::session::Session| {
            whole.last_seq == self.session.last_seq
                && whole.context_before_is_known()
                && whole.messages() == self.session.messages()
        };
        self.session = whole.filter(same).ok_or(SessionError::HistoryPruned)?;
        Ok(())
    }
}

fn failed(body: ErrorBody) -> SessionError {
    SessionError::Failed(Box::new(body))
}
