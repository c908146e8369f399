//! Journals are compacted: when somebody asks for it, and by themselves where the configuration says so.

use std::sync::{Arc, atomic::Ordering};

use tokio_util::task::AbortOnDropHandle;

use super::sessions::{Inner, Sessions};
use crate::{
    SessionError,
    agent::command::Change,
    journal_compaction::{CompactionPolicy, Due, survey},
    service::{CompactJournal, JournalCompactionReport},
};

impl<Home: 'static> Sessions<Home> {
    /// Compacts a journal, or says what that would drop. Reads, streams and turns go on meanwhile.
    pub(super) async fn compact_one(
        &self,
        request: CompactJournal,
        policy: CompactionPolicy,
    ) -> Result<JournalCompactionReport, SessionError> {
        let service = self.clone();
        Self::to_the_end(async move { service.compact_now(request, policy).await }).await
    }

    async fn compact_now(
        &self,
        request: CompactJournal,
        policy: CompactionPolicy,
    ) -> Result<JournalCompactionReport, SessionError> {
        let engine = self.engine();
        let Some(derived) = &engine.derived else { return Err(SessionError::NotFound(request.session_id)) };
        // What the readers are done with is asked once; until it is carried out no reader comes or goes.
        let _gate = derived.readers.hold_gate().await;
        let survey = match survey(engine, derived, &request, policy).await? {
            Ok(survey) => survey,
            Err(report) => return Ok(report),
        };
        let dropped = survey.plan.dropped.len() as u64;
        if request.dry_run || dropped == 0 {
            return Ok(survey.report(dropped));
        }
        let _alone = self.journal(request.session_id).write().await;
        if let Some(history) = survey.plan.history {
            engine.events.room().await?;
            self.record(request.session_id, Change::SnapshotHistory(history)).await?;
        }
        survey.carry_out(engine, derived).await
    }

    /// Compacts journals by themselves from now on, as long as the service is there.
    pub(super) fn compact_on_schedule(&self) {
        let options = &self.engine().options.journal;
        if self.engine().derived.is_none() || (options.rolling_ms == 0 && !options.end_of_run) {
            return;
        }
        let task = tokio::spawn(Self::keep_schedule(Arc::downgrade(&self.inner)));
        // Settling happens once, so nobody has set it before.
        drop(self.inner.schedule.set(AbortOnDropHandle::new(task)));
    }

    async fn keep_schedule(inner: std::sync::Weak<Inner>) {
        let mut rolling = None;
        loop {
            let Some(engine) = inner.upgrade().map(|inner| inner.engine.clone()) else { return };
            let (Some(derived), options) = (&engine.derived, &engine.options.journal) else { return };
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
                let request = CompactJournal { session_id, dry_run: false, drop_history: false };
                match service.compact_one(request, policy).await {
                    Ok(report) => tracing::debug!(%session_id, ?report, "a journal was compacted"),
                    // It may be gone; and what fails is tried again the next time.
                    Err(error) => tracing::warn!(%session_id, %error, "a journal could not be compacted"),
                }
            }
        }
    }
}
