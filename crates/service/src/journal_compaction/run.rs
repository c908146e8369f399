//! One compaction of one journal: the gate over the readers, a look at the journal, and what is done with the plan.

use std::sync::Arc;

use super::{
    CompactionPolicy,
    plan::{Bounds, Brief, Plan, plan},
};
use crate::{
    SessionError,
    agent::{Derived, Engine},
    clock::Timestamp,
    ids::{Seq, SessionId},
    projection::READER,
    readers::Watermark,
    runtime::restore::{decode, restore},
    service::{CompactJournal, CompactionSkipped, JournalCompactionReport},
    store::{JournalPruner, ReadLimit, StoreError},
};

/// Frames that are read at a time.
const FRAMES_READ: usize = 512;

/// What is known of a journal before anything of it is dropped.
pub(crate) struct Survey {
    session_id: SessionId,
    watermark: Watermark,
    pruner: Arc<dyn JournalPruner>,
    older_than: Timestamp,
    scanned: u64,
    pub(crate) plan: Plan,
}

/// Looks at a journal. Nothing is changed by it.
///
/// # Errors
/// Where there is nothing to look at, the report that says why stands in `Ok(Err(_))`.
pub(crate) async fn survey(
    engine: &Engine,
    derived: &Derived,
    request: &CompactJournal,
    policy: CompactionPolicy,
) -> Result<Result<Survey, JournalCompactionReport>, SessionError> {
    let session_id = request.session_id;
    let nothing =
        |safe_up_to, skipped| JournalCompactionReport { scanned: 0, dropped: 0, kept: 0, safe_up_to, skipped };
    let Some(watermark) = derived.readers.watermark(session_id).await? else {
        return Ok(Err(nothing(0, Some(CompactionSkipped::NoReader))));
    };
    let Some(pruner) = derived.pruner.clone() else {
        return Ok(Err(nothing(watermark.safe_up_to, Some(CompactionSkipped::NoPruner))));
    };
    if !derived.readers.is_trusted() {
        // A reader may be forgotten, and nobody knows what it has done.
        tracing::warn!(%session_id, "no journal is compacted until somebody has looked at the readers that remain");
        return Ok(Err(nothing(0, None)));
    }
    let session = restore(engine, session_id).await?.ok_or(SessionError::NotFound(session_id))?;
    let records = outline(engine, session_id, watermark.safe_up_to).await?;
    let parts = pruner.parts(session_id).await?;
    let (now, drops_history) = (engine.world.clock.now(), request.drop_history);
    let bounds = Bounds { policy, now, parts: &parts, drops_history };
    let plan = plan(&records, &session, &bounds);
    let (older_than, scanned) = (bounds.older_than(), records.len() as u64);
    Ok(Ok(Survey { session_id, watermark, pruner, older_than, scanned, plan }))
}

/// The records up to the watermark.
async fn outline(engine: &Engine, session_id: SessionId, safe_up_to: Seq) -> Result<Vec<Brief>, StoreError> {
    let (mut records, mut after) = (Vec::new(), 0);
    while after < safe_up_to {
        let page = engine.events.read(session_id, after, ReadLimit::frames(FRAMES_READ)).await?;
        let page = page.ok_or(StoreError::NotFound(session_id))?;
        let Some(last) = page.frames.last() else { break };
        after = last.seq;
        for frame in page.frames.iter().filter(|frame| frame.seq <= safe_up_to) {
            records.push(Brief::of(&decode(frame)?));
        }
    }
    Ok(records)
}

impl Survey {
    /// Says what was dropped.
    pub(crate) const fn report(&self, dropped: u64) -> JournalCompactionReport {
        let (scanned, safe_up_to) = (self.scanned, self.watermark.safe_up_to);
        let kept = scanned.saturating_sub(dropped);
        JournalCompactionReport { scanned, dropped, kept, safe_up_to, skipped: None }
    }

    /// Drops what the plan says; what that needs besides has been recorded.
    pub(crate) async fn carry_out(
        self,
        engine: &Engine,
        derived: &Derived,
    ) -> Result<JournalCompactionReport, SessionError> {
        let session_id = self.session_id;
        let session = restore(engine, session_id).await?.ok_or(SessionError::NotFound(session_id))?;
        // The one that is stored may name records that go.
        if let Err(error) = derived.snapshots.save(&session).await {
            tracing::warn!(%session_id, %error, "a snapshot could not be saved; the journal is read from its beginning");
        }
        derived.readers.rely(session_id, self.watermark.clone()).await?;
        derived.readers.begin_anew(READER, session_id).await?;
        let safe_up_to = self.watermark.safe_up_to;
        let pruned = self.pruner.prune(session_id, safe_up_to, &self.plan.keep, self.older_than).await?;
        Ok(self.report(pruned))
    }
}
