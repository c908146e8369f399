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
    clock::Timestamp,
    ids::{Seq, SessionId},
    service::JournalCompactionReport,
    upkeep::journal_compaction::{Due, History, JournalCompactor, Pass, Trigger},
};

/// Milliseconds after which a journal is looked at again in which something was too young.
const LOOK_AGAIN_MS: u64 = 3_600_000;
/// Share of a journal that must be new before it is looked at again: a quarter. So all looks together read a few times
/// what is there, however often they are due.
const NEW_SHARE: u64 = 4;

/// A journal as the last look at it on schedule left it.
#[derive(Clone, Copy)]
struct Look {
    at: Timestamp,
    /// Last record that was looked at.
    up_to: Seq,
    kept: u64,
    /// True if more can be dropped later without a new record.
    is_early: bool,
}

impl Look {
    /// Returns true if another one, up to this record, may find more.
    fn is_over(&self, up_to: Seq, now: Timestamp) -> bool {
        let is_grown = up_to > self.up_to && (up_to - self.up_to) * NEW_SHARE >= self.kept;
        is_grown || (self.is_early && self.is_old(now))
    }

    fn is_old(&self, now: Timestamp) -> bool {
        now.as_millis().saturating_sub_unsigned(LOOK_AGAIN_MS) >= self.at.as_millis()
    }
}

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

    /// Compacts a journal on schedule, unless too little has changed since the `last` look at it. Returns the look that
    /// is the last one now.
    async fn compact_by_itself(
        &self,
        session_id: SessionId,
        pass: Pass,
        last: Option<Look>,
    ) -> Result<Option<Look>, SessionError> {
        let reach = JournalCompactor::new(self.engine(), session_id).reach(pass.trigger).await?;
        let now = self.engine().world.clock.now();
        if reach == 0 || last.is_some_and(|last| !last.is_over(reach, now)) {
            return Ok(last);
        }
        let (report, is_early) = self.compact_now(session_id, false, pass).await?;
        tracing::debug!(%session_id, ?report, "a journal was compacted");
        Ok(Some(Look { at: now, up_to: reach, kept: report.kept, is_early }))
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
        // On schedule a journal of which nothing goes is left alone: its readers and forks wait for nothing.
        if dry_run || (dropped == 0 && pass.trigger != Trigger::Request) {
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
        // The last looks, by session and by what starts a compaction.
        let (mut rolling, mut looks) = (None, HashMap::<_, Look>::new());
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
                match service.compact_by_itself(session_id, pass, looks.remove(&(session_id, pass.trigger))).await {
                    Ok(look) => looks.extend(look.map(|look| ((session_id, pass.trigger), look))),
                    // It may be deleted; otherwise it is retried the next time.
                    Err(error) => tracing::warn!(%session_id, %error, "a journal could not be compacted"),
                }
            }
            let now = engine.world.clock.now();
            looks.retain(|(session_id, _), look| {
                !look.is_old(now) || service.inner.registry.shared(*session_id).is_some()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LOOK_AGAIN_MS, Look};
    use crate::clock::Timestamp;

    #[test]
    fn a_journal_is_looked_at_again_when_it_has_grown_or_something_is_older() {
        let hour = i64::try_from(LOOK_AGAIN_MS).unwrap();
        let look = |is_early| Look { at: Timestamp::from_millis(5), up_to: 1_000, kept: 40, is_early };
        for (is_early, up_to, now, is_over) in [
            // A quarter of the forty that are left.
            (false, 1_009, 5, false),
            (false, 1_010, 5, true),
            (false, 1_000, hour * 9, false),
            (true, 1_000, hour + 4, false),
            (true, 1_000, hour + 5, true),
            // A reader that comes new begins at the beginning.
            (false, 10, 5, false),
        ] {
            let is = look(is_early).is_over(up_to, Timestamp::from_millis(now));
            assert_eq!(is, is_over, "{is_early} {up_to} {now}");
        }
        let nothing = Look { kept: 0, ..look(false) };
        assert!(!nothing.is_over(1_000, Timestamp::from_millis(5)), "nothing is new");
    }
}
