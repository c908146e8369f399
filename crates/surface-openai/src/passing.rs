//! Turns that are not stored: each ends if its reader leaves, or if its calls get no outputs in time. Otherwise it would
//! ask the model again, and hold its messages, without a reader.

use std::sync::Arc;

use meerkat_service::service::{InterruptTurn, TurnAccepted};

use crate::{App, unfold::Unfold};

/// Turn that is not stored. Dropping it interrupts the turn.
pub(crate) struct Passing(Option<(Arc<App>, TurnAccepted)>);

impl Passing {
    pub(crate) fn new(app: &Arc<App>, accepted: &TurnAccepted) -> Self {
        Self(Some((app.clone(), accepted.clone())))
    }

    /// Its reader has the answer. If calls wait, their outputs may come for a while.
    pub(crate) fn answered(mut self, unfold: &Unfold) {
        let open = unfold.waiting().clone();
        let Some((app, accepted)) = self.0.take().filter(|_| !open.is_empty()) else { return };
        tokio::spawn(async move {
            tokio::time::sleep(app.options.call_time).await;
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
