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
    service::{CompactJournal, JournalCompactionReport},
    upkeep::journal_compaction::{CompactionPolicy, Due, History, reach, survey, unnamed_blobs},
};

impl Sessions {
    /// Compacts a journal, or reports what that would drop. Reads, streams and turns go on meanwhile.
    pub(super) async fn compact_one(
        &self,
        request: CompactJournal,
        policy: CompactionPolicy,
    ) -> Result<JournalCompactionReport, SessionError> {
        self.to_the_end(|service| async move { service.compact_now(&request, policy).await.map(|(report, _)| report) })
            .await
    }

    /// Compacts a journal on schedule, unless nothing has changed since it was last compacted up to `settled`. Returns
    /// the seq up to which nothing more can be dropped.
    pub(super) async fn compact_by_itself(
        &self,
        session_id: SessionId,
        policy: CompactionPolicy,
        settled: Option<Seq>,
    ) -> Result<Option<Seq>, SessionError> {
        let reach = reach(&self.engine().derived, session_id).await?;
        if reach == 0 || settled == Some(reach) {
            return Ok(settled);
        }
        let request = CompactJournal { session_id, dry_run: false, drop_history: false };
        let (report, is_early) = self.compact_now(&request, policy).await?;
        tracing::debug!(%session_id, ?report, "a journal was compacted");
        Ok((!is_early).then_some(reach))
    }

    /// Returns the report, and true if more can be dropped later without a change.
    async fn compact_now(
        &self,
        request: &CompactJournal,
        policy: CompactionPolicy,
    ) -> Result<(JournalCompactionReport, bool), SessionError> {
        let (engine, session_id) = (self.engine(), request.session_id);
        let derived = &engine.derived;
        // The watermark is read once, and holds to the end: no reader is registered or deleted meanwhile.
        let _gate = derived.readers.hold_gate().await;
        let survey = match survey(engine, derived, request, policy).await? {
            Ok(survey) => survey,
            Err(report) => return Ok((report, false)),
        };
        let (dropped, is_early) = (survey.plan.dropped.len() as u64, survey.plan.is_early);
        if request.dry_run {
            return Ok((survey.report(dropped), is_early));
        }
        let mut alone = self.journal(request.session_id).write().await;
        *alone += 1;
        if let Some(History { pruned_to, keys_up_to }) = survey.plan.history {
            engine.events.room().await?;
            self.record(session_id, Change::SnapshotHistory { pruned_to, keys_up_to }).await?;
        }
        let report = if dropped == 0 { survey.report(0) } else { survey.carry_out(engine, derived).await? };
        if let Err(error) = self.drop_blobs(session_id).await {
            tracing::warn!(%session_id, %error, "unnamed blobs stay until the next compaction");
        }
        Ok((report, is_early))
    }

    /// Drops the blobs that only dropped records named. The session's actor does it, now that the records are durably
    /// gone.
    async fn drop_blobs(&self, session_id: SessionId) -> Result<(), SessionError> {
        let (names, last_seq) = unnamed_blobs(self.engine(), session_id).await?;
        if names.is_empty() {
            return Ok(());
        }
        self.ask(session_id, |reply| Command::DropBlobs { names: names.clone(), last_seq, reply }).await
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
        // The seqs up to which nothing more can be dropped, by session in memory.
        let (mut rolling, mut settled) = (None, HashMap::new());
        loop {
            let Some(engine) = inner.upgrade().map(|inner| inner.engine.clone()) else { return };
            let (derived, options) = (&engine.derived, &engine.options.journal);
            let due = derived.schedule.next(engine.world.clock.as_ref(), options, &mut rolling).await;
            let Some(service) = inner.upgrade().map(Self::of) else { return };
            let (sessions, policy) = match due {
                Due::Active => (service.inner.registry.ids(), CompactionPolicy::rolling(options)),
                Due::Ended(session_id) => (vec![session_id], CompactionPolicy::end_of_run(options)),
            };
            for session_id in sessions {
                if engine.is_shutting_down.load(Ordering::Acquire) {
                    return;
                }
                match service.compact_by_itself(session_id, policy, settled.remove(&session_id)).await {
                    Ok(seq) => settled.extend(seq.map(|seq| (session_id, seq))),
                    // It may be deleted; otherwise it is retried the next time.
                    Err(error) => tracing::warn!(%session_id, %error, "a journal could not be compacted"),
                }
            }
            settled.retain(|session_id, _| service.inner.registry.shared(*session_id).is_some());
        }
    }
}
