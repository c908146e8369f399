//! When journals are compacted by themselves: every while those of active sessions, and those whose turn has ended.
//! Both are off unless the configuration says otherwise.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::sync::Notify;

use crate::{clock::Clock, ids::SessionId, options::JournalOptions};

/// Sessions whose turn has ended, and who waits for them.
#[derive(Default)]
pub(crate) struct Schedule {
    ended: Mutex<BTreeSet<SessionId>>,
    wake: Notify,
}

/// What is to be compacted now.
pub(crate) enum Due {
    /// Every active session.
    Active,
    /// A session whose turn has ended.
    Ended(SessionId),
}

impl Schedule {
    /// A turn has ended.
    pub(crate) fn turn_ended(&self, session_id: SessionId, options: &JournalOptions) {
        if options.end_of_run {
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).insert(session_id);
            self.wake.notify_one();
        }
    }

    fn take_ended(&self) -> Option<SessionId> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
    }

    /// Waits for what is due next. `rolling` is when active sessions are, and is set anew when they were.
    pub(crate) async fn next(
        &self,
        clock: &dyn Clock,
        options: &JournalOptions,
        rolling: &mut Option<BoxFuture<'static, ()>>,
    ) -> Due {
        loop {
            if let Some(session_id) = self.take_ended() {
                return Due::Ended(session_id);
            }
            if options.rolling_ms == 0 {
                self.wake.notified().await;
                continue;
            }
            let due = rolling.get_or_insert_with(|| clock.sleep(Duration::from_millis(options.rolling_ms)));
            tokio::select! {
                () = self.wake.notified() => {}
                () = due => {
                    *rolling = None;
                    return Due::Active;
                }
            }
        }
    }
}
