//! Reading of what is stored, slowly and again and again: a journal that nobody asks for may be damaged too, and is then
//! found while a backup still has it. Old uploads are deleted on the way. Databases have checks and sweeps of their own.

use std::{sync::Arc, time::Duration};

use tokio_util::task::AbortOnDropHandle;

use super::sessions::Sessions;
use crate::{
    ids::{Seq, SessionId},
    store::ReadLimit,
    uploads,
};

/// Time from the start to the first part, and from one part to the next.
const FIRST: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(5);
/// Time from the last part to the first one of the next round.
const REST: Duration = Duration::from_secs(24 * 60 * 60);
/// Most records of a part. It is also bounded in bytes, as every read is.
const PART_RECORDS: usize = 10_000;

impl Sessions {
    /// Begins to read all journals, until the service ends. Reading notes damage: it is logged, and nothing more is
    /// appended behind it.
    pub(super) fn scrub_now_and_then(&self) {
        if self.engine().derived.data_dir.is_none() {
            return;
        }
        let (inner, clock) = (Arc::downgrade(&self.inner), self.engine().world.clock.clone());
        let task = tokio::spawn(async move {
            let (mut at, mut pause) = ((None, 0), FIRST);
            loop {
                clock.sleep(pause).await;
                let Some(service) = inner.upgrade().map(Self::of) else { return };
                pause = service.scrub(&mut at).await;
            }
        });
        // Settling happens once, so nobody has set it before.
        drop(self.inner.scrub.set(AbortOnDropHandle::new(task)));
    }

    /// Reads the next part: of the session behind which is no part yet, or of the one after that. Returns the time to
    /// wait.
    async fn scrub(&self, (session_id, after): &mut (Option<SessionId>, Seq)) -> Duration {
        let events = &self.engine().events;
        if let (Some(id), Some(done)) = (*session_id, Some(*after).filter(|after| *after != Seq::MAX)) {
            let page = events.read(id, done, ReadLimit::frames(PART_RECORDS)).await;
            // Behind damage, and what cannot be read, there is nothing to find that is not said already.
            let last = page.ok().flatten().and_then(|page| page.frames.last().map(|frame| frame.seq));
            *after = last.unwrap_or(Seq::MAX);
            return PAUSE;
        }
        match events.sessions(*session_id, 1).await.map(|ids| ids.first().copied()) {
            Ok(Some(next)) => {
                uploads::expire(&self.engine().ports, next).await;
                (*session_id, *after) = (Some(next), 0);
                Duration::ZERO
            }
            Ok(None) | Err(_) => {
                (*session_id, *after) = (None, 0);
                REST
            }
        }
    }
}
