//! One compaction of one journal: the survey that a plan needs, and the plan carried out. The steps have the
//! specification's numbers.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Pass, Trigger,
    plan::{Bounds, Brief, Plan, plan},
};
use crate::{
    SessionError,
    agent::record::{attached, bodies, files},
    clock::Timestamp,
    consumers::projection::READER,
    engine::{Derived, Engine},
    ids::{Seq, SessionId},
    service::{CompactionPolicy, CompactionSkipped, JournalCompactionReport},
    session::{
        event::{ChangedFile, Event},
        message::Body,
    },
    store::{JournalPruner, ReadLimit, StoreError, restore::decode},
};

/// Frames to read at once.
const FRAMES_READ: usize = 512;

/// The compactor of one journal: the specification's `DefaultJournalCompactor`.
pub(crate) struct JournalCompactor<'a> {
    engine: &'a Engine,
    derived: &'a Derived,
    pub(crate) session_id: SessionId,
}

/// Survey of a journal before anything is dropped.
pub(crate) struct Survey {
    pruner: Arc<dyn JournalPruner>,
    /// Last record that was looked at.
    up_to: Seq,
    older_than: Timestamp,
    scanned: u64,
    pub(crate) plan: Plan,
}

/// Finds the end of the last sealed part that ends at `seq` or before it.
fn sealed_up_to(parts: &[(Seq, Seq)], seq: Seq) -> Seq {
    let ends = parts.split_last().into_iter().flat_map(|(_, sealed)| sealed).map(|(_, to)| *to);
    ends.take_while(|to| *to <= seq).last().unwrap_or(0)
}

impl<'a> JournalCompactor<'a> {
    pub(crate) fn new(engine: &'a Engine, session_id: SessionId) -> Self {
        Self { engine, derived: &engine.derived, session_id }
    }

    /// Returns the seq up to which the journal may be compacted on schedule, 0 if it may not.
    pub(crate) async fn reach(&self, trigger: Trigger) -> Result<Seq, StoreError> {
        let Some(pruner) = &self.derived.pruner else { return Ok(0) };
        let parts = pruner.parts(self.session_id).await?;
        if trigger == Trigger::Rolling && sealed_up_to(&parts, Seq::MAX) == 0 {
            return Ok(0);
        }
        let watermark = self.derived.readers.watermark(self.session_id).await?.unwrap_or(0);
        Ok(up_to(&parts, watermark, trigger))
    }

    /// Surveys the journal and changes nothing. `Ok(Err(_))` is the report if there is nothing to compact.
    pub(crate) async fn survey(&self, pass: &Pass) -> Result<Result<Survey, JournalCompactionReport>, SessionError> {
        let Self { engine, derived, session_id } = *self;
        let nothing =
            |safe_up_to, skipped| JournalCompactionReport { scanned: 0, dropped: 0, kept: 0, safe_up_to, skipped };
        // Step 1: the safe watermark.
        let Some(safe_up_to) = derived.readers.watermark(session_id).await? else {
            return Ok(Err(nothing(0, Some(CompactionSkipped::NoReader))));
        };
        let Some(pruner) = derived.pruner.clone() else {
            return Ok(Err(nothing(safe_up_to, Some(CompactionSkipped::NoPruner))));
        };
        let session = engine.restore(session_id).await?.ok_or(SessionError::NotFound(session_id))?;
        let parts = pruner.parts(session_id).await?;
        let up_to = up_to(&parts, safe_up_to, pass.trigger);
        // Step 2: one pass over the records, each classified by `Brief::of`.
        let records = self.outline(up_to).await?;
        let now = engine.world.clock.now();
        // Memory without turns takes in discarded messages from the records before their compaction.
        let reads_back = derived.memory.is_some() && !engine.options.memory.index_turns;
        let is_read_back = reads_back && session.context.floor() >= Some(safe_up_to);
        let keep_last_replies = pass.policy.keep_last_replies.filter(|_| !is_read_back);
        let policy = CompactionPolicy { keep_last_replies, ..pass.policy };
        let bounds = Bounds { policy, now, parts: &parts, is_sparing: pass.trigger != Trigger::Request };
        // Step 3: what to keep.
        let mut plan = plan(&records, &session, &bounds);
        // A turn that leaves the context is history from then on, and what memory has read is held back no longer.
        plan.is_early |= pass.policy.keep_last_replies.is_some();
        let (older_than, scanned) = (bounds.older_than(), records.len() as u64);
        Ok(Ok(Survey { pruner, up_to, older_than, scanned, plan }))
    }

    /// Reads the records up to a seq.
    async fn outline(&self, up_to: Seq) -> Result<Vec<Brief>, StoreError> {
        let (mut records, mut after) = (Vec::new(), 0);
        while after < up_to {
            let page = self.engine.events.read(self.session_id, after, ReadLimit::frames(FRAMES_READ)).await?;
            let page = page.ok_or(StoreError::NotFound(self.session_id))?;
            let Some(last) = page.frames.last() else { break };
            after = last.seq;
            for frame in page.frames.iter().filter(|frame| frame.seq <= up_to) {
                records.push(Brief::of(&decode(frame)?, frame.line.len()));
            }
        }
        Ok(records)
    }

    /// Drops the records of the survey's plan. A history snapshot, if it needs one, is recorded already.
    pub(crate) async fn carry_out(&self, survey: Survey) -> Result<JournalCompactionReport, SessionError> {
        let Self { engine, derived, session_id } = *self;
        let session = engine.restore(session_id).await?.ok_or(SessionError::NotFound(session_id))?;
        // The stored snapshot may refer to dropped records.
        if let Err(error) = engine.snapshots.save(&session).await {
            let what = "a snapshot could not be saved; the journal is read from its beginning";
            tracing::warn!(%session_id, %error, "{what}");
        }
        derived.readers.restart(READER, session_id).await?;
        // Step 4: the rest goes. Step 5: the report.
        let pruned = survey.pruner.prune(session_id, survey.up_to, &survey.plan.keep, survey.older_than).await?;
        Ok(survey.report(pruned))
    }

    /// Lists the session's blobs that no record names, and the last record that was read.
    pub(crate) async fn unnamed_blobs(&self) -> Result<(BTreeSet<String>, Seq), StoreError> {
        let Self { engine, session_id, .. } = *self;
        // Listed first: blobs that are made later are none of them.
        let (mut names, mut after) = (engine.blobs.list(session_id).await?, 0);
        while !names.is_empty() {
            let page = engine.events.read(session_id, after, ReadLimit::frames(FRAMES_READ)).await?;
            let page = page.ok_or(StoreError::NotFound(session_id))?;
            let Some(last) = page.frames.last() else { break };
            after = last.seq;
            for frame in &page.frames {
                let mut event = decode(frame)?.event;
                if let Event::Unknown(unknown) = &event {
                    // An unknown event may name one in any way.
                    names.retain(|name| !unknown.line.as_str().contains(name));
                }
                for copy in files(&event).iter().filter_map(ChangedFile::copy) {
                    names.remove(copy);
                }
                for blob in attached(&event) {
                    names.remove(blob);
                }
                for body in bodies(&mut event) {
                    if let Body::Blob(blob) = body {
                        names.remove(&blob.blob);
                    }
                }
            }
        }
        Ok((names, after))
    }
}

/// Returns the last record to look at. On schedule that is the end of a sealed part, because it is known of whole parts
/// alone if they are worth rewriting; when a turn has ended, it may be within the part that is still written.
pub(super) fn up_to(parts: &[(Seq, Seq)], safe_up_to: Seq, trigger: Trigger) -> Seq {
    let is_in_the_last = parts.last().is_some_and(|(from, _)| *from <= safe_up_to);
    match trigger {
        Trigger::Request => safe_up_to,
        Trigger::EndOfRun if is_in_the_last => safe_up_to,
        Trigger::Rolling | Trigger::EndOfRun => sealed_up_to(parts, safe_up_to),
    }
}

impl Survey {
    /// Makes the report for a number of dropped records.
    pub(crate) const fn report(&self, dropped: u64) -> JournalCompactionReport {
        let (scanned, safe_up_to) = (self.scanned, self.up_to);
        let kept = scanned.saturating_sub(dropped);
        JournalCompactionReport { scanned, dropped, kept, safe_up_to, skipped: None }
    }
}
