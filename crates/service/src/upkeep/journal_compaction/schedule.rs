//! Schedule of journal compactions: regularly for active sessions, and after the end of a turn. Both are off by
//! default.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::Notify;

use crate::{clock::Clock, ids::SessionId, options::JournalOptions};

/// Sessions whose turn has ended, and the task that waits for them.
#[derive(Default)]
pub(crate) struct Schedule {
    ended: Mutex<BTreeSet<SessionId>>,
    wake: Notify,
}

/// Journals to compact now.
pub(crate) enum Due {
    /// Those of every active session.
    Active,
    /// That of a session whose turn has ended.
    Ended(SessionId),
}

impl Schedule {
    /// Notes that a turn has ended.
    pub(crate) fn turn_ended(&self, session_id: SessionId, options: &JournalOptions) {
        if options.end_of_run {
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).insert(session_id);
            self.wake.notify_one();
        }
    }

    fn take_ended(&self) -> Option<SessionId> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
    }

    /// Waits for the next due journals. `rolling` is the timer of active sessions, which is set again after it fired. It
    /// comes first, so that ends of turns cannot hold it up for ever; a new timer lets at least one of these in.
    pub(crate) async fn next(
        &self,
        clock: &dyn Clock,
        options: &JournalOptions,
        rolling: &mut Option<BoxFuture<'static, ()>>,
    ) -> Due {
        if options.rolling_ms > 0 {
            rolling.get_or_insert_with(|| clock.sleep(Duration::from_millis(options.rolling_ms)));
        }
        loop {
            if rolling.as_mut().is_some_and(|due| due.now_or_never().is_some()) {
                *rolling = None;
                return Due::Active;
            }
            if let Some(session_id) = self.take_ended() {
                return Due::Ended(session_id);
            }
            match rolling {
                None => self.wake.notified().await,
                Some(due) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = due => {
                        *rolling = None;
                        return Due::Active;
                    }
                },
            }
        }
    }
}
