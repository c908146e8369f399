//! Plans of calls: each tool says what its call would do. An immediate plan costs no task; the others are awaited
//! together, each for a limited time, and are dropped by an interrupt.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, CatchUnwind},
    stream,
};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Outcome;
use crate::{
    agent::{Ports, decide::internal},
    tool::{Invocation, Plan, Tool, ToolError},
};

/// Time in which a tool plans a call.
const PLAN_MS_MAX: u64 = 10_000;

/// Plan of one call, in the making.
pub(crate) struct Planning {
    call_id: String,
    plan: CatchUnwind<AssertUnwindSafe<BoxFuture<'static, Result<Plan, ToolError>>>>,
    /// Fires when nobody waits for the plan any more.
    _guard: DropGuard,
}

/// End of a [`Planning`]; `None` if it panicked.
pub(crate) type Planned = Option<Result<Plan, ToolError>>;

impl Planning {
    /// Asks a tool for the plan of a call.
    pub(crate) fn new(tool: Arc<dyn Tool>, invocation: Invocation) -> Self {
        let (call_id, guard) = (invocation.call_id.clone(), invocation.cancel.clone().drop_guard());
        let plan = async move { tool.plan(&invocation).await }.boxed();
        Self { call_id, plan: AssertUnwindSafe(plan).catch_unwind(), _guard: guard }
    }

    /// Returns the plan if it is there at once.
    pub(crate) fn at_once(&mut self) -> Option<Planned> {
        (&mut self.plan).now_or_never().map(Result::ok)
    }

    async fn within_limit(self, ports: Arc<Ports>) -> (String, Planned) {
        let Self { call_id, plan, _guard } = self;
        let planned = tokio::select! {
            biased;
            planned = plan => planned.ok(),
            () = ports.world.clock.sleep(Duration::from_millis(PLAN_MS_MAX)) => {
                let why = format!("The tool did not plan the call within {PLAN_MS_MAX} ms, so it did not run.");
                Some(Err(ToolError::Failed(why)))
            }
        };
        (call_id, planned)
    }
}

/// Awaits the plans and reports each as it comes.
pub(crate) async fn await_plans(
    ports: Arc<Ports>,
    plans: Vec<Planning>,
    outcomes: mpsc::Sender<Outcome>,
    cancel: CancellationToken,
) {
    let most = ports.options.tools.max_parallel.max(1);
    let plans = plans.into_iter().map(|plan| plan.within_limit(ports.clone()));
    let mut plans = stream::iter(plans).buffer_unordered(most);
    loop {
        let done = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            done = plans.next() => done,
        };
        let outcome = match done {
            Some((call_id, Some(plan))) => Outcome::Planned { call_id, plan },
            Some((_, None)) => Outcome::Broken(internal("a tool panicked")),
            None => return,
        };
        drop(outcomes.send(outcome).await);
    }
}
