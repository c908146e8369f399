//! Tables of what people look at: calls that wait, steps and turns.

use meerkat_service::{
    service::{OpenApproval, StepKind, StepView, TurnStatus, TurnView},
    tool::visible,
};

use super::{id, table};

pub(super) fn approvals(calls: &[OpenApproval], width: Option<usize>) -> String {
    let row = |call: &OpenApproval| {
        let asks = call.approval.preview.as_deref().unwrap_or(&call.approval.arguments);
        let first = visible(asks.lines().next().unwrap_or_default());
        [id(&call.session_id, width), call.approval.call_id.clone(), call.approval.name.clone(), first]
    };
    table(["SESSION", "CALL", "TOOL", "ASKS"], calls.iter().map(row), width)
}

pub(super) fn steps(steps: &[StepView], width: Option<usize>) -> String {
    let row = |step: &StepView| {
        let place = step.turn.zip(step.step).map_or_else(|| "-".to_owned(), |(turn, step)| format!("{turn}.{step}"));
        let kind = match step.kind {
            StepKind::ModelCall => "model call",
            StepKind::Compaction => "compaction",
            StepKind::CompactionFailed => "compaction failed",
            StepKind::CompactionUndone => "compaction undone",
        };
        let used = match (&step.receipt, &step.error, step.usage) {
            (Some(receipt), ..) => format!("{} to {} tokens", receipt.tokens_before, receipt.tokens_after),
            (None, Some(error), _) => error.code.to_string(),
            (None, None, Some(usage)) => format!("{} in, {} out", usage.input_tokens, usage.output_tokens),
            (None, None, None) => "-".to_owned(),
        };
        let free =
            step.context.and_then(|context| context.free).map_or_else(|| "-".to_owned(), |free| free.to_string());
        [step.seq.to_string(), place, kind.to_owned(), free, used]
    };
    table(["EVENT", "STEP", "KIND", "FREE", "TOKENS"], steps.iter().map(row), width)
}

pub(super) fn turns(turns: &[TurnView], width: Option<usize>) -> String {
    let row = |turn: &TurnView| {
        let status = match turn.status {
            Some(TurnStatus::Completed) => "completed",
            Some(TurnStatus::Interrupted) => "interrupted",
            Some(TurnStatus::Failed) => "failed",
            None => "runs",
        };
        let used =
            [turn.usage.input_tokens, turn.usage.cached_tokens, turn.usage.output_tokens].map(|it| it.to_string());
        let [input, cached, output] = used;
        [turn.turn.to_string(), status.to_owned(), turn.steps.to_string(), input, cached, output, turn.model.clone()]
    };
    table(["TURN", "STATUS", "STEPS", "INPUT", "CACHED", "OUTPUT", "MODEL"], turns.iter().map(row), width)
}
