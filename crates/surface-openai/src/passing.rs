//! Turns that are not stored: each ends if its reader leaves, or if its calls get no outputs in time. Otherwise it would
//! ask the model again, and hold its messages, without a reader.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use meerkat_service::{
    SessionId,
    service::{InterruptTurn, TurnAccepted},
};
use tokio::{sync::oneshot, time::timeout};

use crate::{App, unfold::Unfold};

/// Most turns whose calls wait.
const WAITING_MAX: usize = 1000;

/// Turns whose calls wait for their outputs, the oldest first: one that is taken out ends, unless it was answered.
pub(crate) type Waiting = Mutex<VecDeque<(SessionId, oneshot::Sender<()>)>>;

/// Turn that is not stored. Dropping it interrupts the turn.
pub(crate) struct Passing(Option<(Arc<App>, TurnAccepted)>);

impl Passing {
    /// A turn whose calls, if it has any, were answered.
    pub(crate) fn new(app: &Arc<App>, accepted: &TurnAccepted) -> Self {
        let mut waiting = app.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(session_id, _)| *session_id != accepted.session_id);
        Self(Some((app.clone(), accepted.clone())))
    }

    /// Its reader has the answer. If calls wait, their outputs may come for a while; the oldest turn makes room.
    pub(crate) fn answered(mut self, unfold: &Unfold) {
        let open = unfold.waiting().clone();
        let Some((app, accepted)) = self.0.take().filter(|_| !open.is_empty()) else { return };
        let (place, taken_out) = oneshot::channel();
        let mut waiting = app.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(_, place)| !place.is_closed());
        waiting.push_back((accepted.session_id, place));
        if waiting.len() > WAITING_MAX {
            waiting.pop_front();
        }
        drop(waiting);
        tokio::spawn(async move {
            // Either way its time is over.
            drop(timeout(app.options.call_time, taken_out).await);
            // Outputs that come now are taken before or after this.
            let _one_at_a_time = app.turn_of(accepted.session_id).await;
            let calls = app.options.passing.calls(&accepted.session_id).await;
            if calls.is_ok_and(|calls| calls.items.iter().any(|call| open.contains(&call.call_id))) {
                interrupt(&app, &accepted).await;
            }
        });
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let (Some((app, accepted)), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { interrupt(&app, &accepted).await });
        }
    }
}

async fn interrupt(app: &App, accepted: &TurnAccepted) {
    let request = InterruptTurn { session_id: accepted.session_id, turn: Some(accepted.turn) };
    if let Err(error) = app.options.passing.interrupt(request).await {
        tracing::debug!(%error, "a turn that is not stored had ended");
    }
}
