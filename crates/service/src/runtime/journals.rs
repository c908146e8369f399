//! Journal compaction, on request and on the configured schedule.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
};

use tokio_util::task::AbortOnDropHandle;

use super::sessions::{Inner, Sessions};
use crate::{
    SessionError,
    agent::command::{Change, Command},
    ids::{Seq, SessionId},
    service::JournalCompactionReport,
    upkeep::journal_compaction::{Due, History, JournalCompactor, Pass},
};

impl Sessions {
    /// Compacts a journal, or reports what that would drop. Reads, streams and turns go on meanwhile.
    pub(super) async fn compact_one(
        &self,
        session_id: SessionId,
        dry_run: bool,
        pass: Pass,
    ) -> Result<JournalCompactionReport, SessionError> {
        let done = self.to_the_end(|service| async move { service.compact_now(session_id, dry_run, pass).await });
        done.await.map(|(report, _)| report)
    }

    /// Compacts a journal on schedule, unless nothing has changed since it was `settled`. Returns how far nothing more
    /// can be dropped.
    async fn compact_by_itself(
        &self,
        session_id: SessionId,
        pass: Pass,
        settled: Option<(Seq, Seq)>,
    ) -> Result<Option<(Seq, Seq)>, SessionError> {
        let reach = JournalCompactor::new(self.engine(), session_id).reach(&pass).await?;
        if reach.0 == 0 || settled == Some(reach) {
            return Ok(settled);
        }
        let (report, is_early) = self.compact_now(session_id, false, pass).await?;
        tracing::debug!(%session_id, ?report, "a journal was compacted");
        Ok((!is_early).then_some(reach))
    }

    /// Returns the report, and true if more can be dropped later without a change.
    async fn compact_now(
        &self,
        session_id: SessionId,
        dry_run: bool,
        pass: Pass,
    ) -> Result<(JournalCompactionReport, bool), SessionError> {
        let (engine, compactor) = (self.engine(), JournalCompactor::new(self.engine(), session_id));
        // The watermark is read once, and holds to the end: no reader is registered or deleted meanwhile.
        let _gate = engine.derived.readers.hold_gate().await;
        let survey = match compactor.survey(&pass).await? {
            Ok(survey) => survey,
            Err(report) => return Ok((report, false)),
        };
        let (dropped, is_early) = (survey.plan.dropped.len() as u64, survey.plan.is_early);
        if dry_run {
            return Ok((survey.report(dropped), is_early));
        }
        let mut alone = self.journal(session_id).write().await;
        *alone += 1;
        if let Some(History { pruned_to, keys_up_to }) = survey.plan.history {
            engine.events.room().await?;
            self.record(session_id, Change::SnapshotHistory { pruned_to, keys_up_to }).await?;
        }
        let report = if dropped == 0 { survey.report(0) } else { compactor.carry_out(survey).await? };
        if let Err(error) = self.drop_blobs(&compactor).await {
            tracing::warn!(%session_id, %error, "unnamed blobs stay until the next compaction");
        }
        Ok((report, is_early))
    }

    /// Drops the blobs that only dropped records named. The session's actor does it, now that the records are durably
    /// gone.
    async fn drop_blobs(&self, compactor: &JournalCompactor<'_>) -> Result<(), SessionError> {
        let (names, last_seq) = compactor.unnamed_blobs().await?;
        if names.is_empty() {
            return Ok(());
        }
        self.ask(compactor.session_id, |reply| Command::DropBlobs { names: names.clone(), last_seq, reply }).await
    }

    /// Begins to compact journals on schedule, until the service ends.
    pub(super) fn compact_on_schedule(&self) {
        let options = &self.engine().options.journal;
        if self.engine().derived.pruner.is_none() || (options.rolling_ms == 0 && !options.end_of_run) {
            return;
        }
        let task = tokio::spawn(Self::keep_schedule(Arc::downgrade(&self.inner)));
        // Settling happens once, so nobody has set it before.
        drop(self.inner.schedule.set(AbortOnDropHandle::new(task)));
    }

    async fn keep_schedule(inner: std::sync::Weak<Inner>) {
        // How far nothing more can be dropped, by session in memory and by what starts a compaction.
        let (mut rolling, mut settled) = (None, HashMap::new());
        loop {
            let Some(engine) = inner.upgrade().map(|inner| inner.engine.clone()) else { return };
            let (derived, options) = (&engine.derived, &engine.options.journal);
            let due = derived.schedule.next(engine.world.clock.as_ref(), options, &mut rolling).await;
            let Some(service) = inner.upgrade().map(Self::of) else { return };
            let (sessions, pass) = match due {
                Due::Active => (service.inner.registry.ids(), Pass::rolling(options)),
                Due::Ended(session_id) => (vec![session_id], Pass::end_of_run(options)),
            };
            for session_id in sessions {
                if engine.is_shutting_down.load(Ordering::Acquire) {
                    return;
                }
                match service.compact_by_itself(session_id, pass, settled.remove(&(session_id, pass.trigger))).await {
                    Ok(reach) => settled.extend(reach.map(|reach| ((session_id, pass.trigger), reach))),
                    // It may be deleted; otherwise it is retried the next time.
                    Err(error) => tracing::warn!(%session_id, %error, "a journal could not be compacted"),
                }
            }
            settled.retain(|(session_id, _), _| service.inner.registry.shared(*session_id).is_some());
        }
    }
}
