//! Decides what to do next, from the session's state and its requests. Pure: no I/O, no clock.

use std::collections::{BTreeMap, BTreeSet};

use meerkat_errors::{ErrorBody, ErrorCode};

use super::loop_guard::is_loop;
use crate::{
    SessionError,
    clock::Timestamp,
    cost::Cost,
    ids::{Seq, TurnNumber},
    model::StopReason,
    options::{Amount, Budget, TurnOptions, Unattended},
    output::OutputError,
    session::{
        CallProgress, CallState, OpenTurn, Requested, Session,
        event::{BudgetWarning, Decision, ToolOutcome},
        message::OUTCOME_UNKNOWN,
    },
    tool::{Approval, DELEGATE, Effect, Plan, SEARCH_TOOLS, ToolError, ToolRegistry, TurnAccess, is_of_server},
};

/// Text for a model that may start no sub-agents.
pub(super) const NO_AGENTS: &str = "No sub-agent can be started here. Do the work yourself.";

/// Reason for interrupting a turn that a former process left open.
pub(crate) const PROCESS_ENDED: &str = "process_ended";

/// Names of tools in the answer to a call of one that is not there.
const NAMES_MAX: usize = 64;

/// Text of a call that would do something else than was approved.
const OTHER_THAN_APPROVED: &str = "The call was approved, but what it would do has changed since, so it did not run. \
                                   Look again, and repeat the call if it is still wanted.";

/// Plans of the last answer's calls, or why a call cannot run; by call id. They are not durable: a restart plans again,
/// and so does a decision.
pub(crate) type Plans = BTreeMap<String, Result<Plan, ToolError>>;

/// Requests to a session, and which of its deadlines have passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    /// The turn to interrupt, and why. It names its turn, so that no other turn is interrupted.
    pub(crate) interrupt: Option<(TurnNumber, &'static str)>,
    /// Plans of the running turn's calls.
    pub(crate) plans: Plans,
    /// Calls that others have run before since they were planned: the files that they change may have other content.
    pub(crate) outdated: BTreeSet<String>,
    /// The model's refusal of the last request as too long, although it should have fitted.
    pub(crate) window_exceeded: Option<ErrorBody>,
    /// Failure that the running turn must end with.
    pub(crate) failure: Option<ErrorBody>,
    /// True if no further turn may start.
    pub(crate) is_draining: bool,
    /// True if a former process left the queue, which waits for the next requested turn.
    pub(crate) is_queue_held: bool,
    /// True if a former process left the turn with its calls decided, and nobody has asked for it here.
    pub(crate) is_turn_held: bool,
    /// True if the sources of tools are ready for this turn, and the reminders about the workspace are renewed.
    pub(crate) is_prepared: bool,
    /// What is wrong with the answer that the event has, by the turn's schema. It is not durable: a restart checks again.
    pub(crate) checked: Option<(Seq, Result<(), Vec<OutputError>>)>,
    /// Milliseconds since the turn started.
    pub(crate) elapsed_ms: u64,
    /// True if sub-agents did not end in time, although the turn ends.
    pub(crate) are_children_given_up: bool,
    /// True if the calls that wait for approval have waited too long.
    pub(crate) is_approval_expired: bool,
    /// The time, if calls wait for their caller.
    pub(crate) now: Timestamp,
    /// What the input of the next model call costs at least, by estimate. 0 if the turn's cost is not limited.
    pub(crate) next_cost: Cost,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Nothing, until something is asked.
    Rest,
    /// Start the first turn of the queue.
    StartQueued,
    /// Record that a budget is nearly used up.
    Warn(BudgetWarning),
    /// Compact the live context, or go on with the compaction that was asked for.
    Compact,
    /// Wait for the sources of tools, and renew the reminders about the workspace.
    Prepare,
    /// Call the model.
    CallModel,
    /// Check the answer by the turn's schema.
    CheckOutput,
    /// Let the model answer again, because of these errors.
    RefuseOutput(Vec<OutputError>),
    /// Put the steered texts that wait into the context.
    EnterSteering,
    /// Give these calls their results without running them.
    Answer(Vec<CallAnswer>),
    /// Ask the tools of these calls what they would do.
    Plan(Vec<String>),
    /// Ask for approval of these calls.
    RequestApprovals(Vec<String>),
    /// Wait for decisions.
    AwaitApproval,
    /// Deny these calls, because no decision came in time.
    ExpireApprovals(Vec<String>),
    /// Run these calls together.
    RunTools(Vec<String>),
    /// Request these calls from the session's caller.
    RequestCalls(Vec<String>),
    /// Start sub-agents for these calls, or say why not.
    Delegate(Vec<String>),
    /// Wait until their caller has answered the calls, or their sub-agents have ended.
    AwaitCalls,
    /// End the sub-agents of the turn, because it ends.
    EndChildren,
    /// Give the turn up: its calls get their results, then it fails.
    Fail(ErrorBody),
    /// End the turn.
    End(Ending),
}

/// The result of a call that did not run, or whose run was lost.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallAnswer {
    /// The call.
    pub(crate) call_id: String,
    /// The tool.
    pub(crate) name: String,
    /// Its outcome.
    pub(crate) outcome: ToolOutcome,
    /// Text for the model.
    pub(crate) text: String,
    /// The failure.
    pub(crate) error: Option<ErrorBody>,
}

/// End of a turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    /// It completed.
    Completed,
    /// It failed.
    Failed(ErrorBody),
    /// It was interrupted.
    Interrupted(&'static str),
}

/// Options and tools that decisions depend on.
pub(crate) struct Rules<'a> {
    /// Options of turns.
    pub(crate) turn: &'a TurnOptions,
    /// Calls that may run together.
    pub(crate) max_parallel: usize,
    /// The tools.
    pub(crate) tools: &'a ToolRegistry,
    /// What happens to a call that needs approval when no approver is present.
    pub(crate) unattended: Unattended,
    /// Returns true if the session's compactor would compact now. Called only before a model call.
    pub(crate) wants_compaction: &'a dyn Fn() -> bool,
    /// Checks that the turn's model has a price. Called only if the turn's cost is limited.
    pub(crate) check_priced: &'a dyn Fn() -> Result<(), SessionError>,
}

/// Decides a session's next action.
#[must_use]
pub(crate) fn decide(session: &Session, control: &Control, rules: &Rules<'_>) -> Action {
    let Some(open) = session.open_turn() else {
        if session.open_compaction().is_some() {
            return Action::Compact;
        }
        let is_held = control.is_draining || control.is_queue_held;
        return if session.queue.is_empty() || is_held { Action::Rest } else { Action::StartQueued };
    };
    let is_steered = open.waiting_texts().next().is_some();
    let is_answered = open.is_answered && open.calls.is_empty();
    if is_answered && (!is_steered || is_spent(open, control)) {
        match output(open, control) {
            // The turn is answered: an interrupt that comes now is too late. A text that no budget is left for enters
            // only.
            Some(Ok(())) => return Action::End(Ending::Completed),
            None => return Action::CheckOutput,
            Some(Err(_)) if forced_ending(open, control).is_some() => {}
            Some(Err(errors)) if open.refusals < repairs(open) => return Action::RefuseOutput(errors.to_vec()),
            Some(Err(errors)) => return Action::End(Ending::Failed(misfit(errors))),
        }
    }
    let budgets = open.terms.budgets;
    if let Some(ending) = forced_ending(open, control) {
        if open.delegating().next().is_some() && !open.is_imported && !control.are_children_given_up {
            return Action::EndChildren;
        }
        let why = match &ending {
            Ending::Interrupted(PROCESS_ENDED) => "the process ended before a decision",
            Ending::Interrupted(_) => "the turn was interrupted",
            Ending::Failed(_) | Ending::Completed => "the turn ended",
        };
        let unanswered = open.calls.iter().filter_map(|call| not_run(call, why, open.is_imported));
        let unanswered: Vec<CallAnswer> = unanswered.collect();
        return match unanswered.is_empty() {
            false => Action::Answer(unanswered),
            // What was said stays in the context, however the turn ends.
            true if is_steered => Action::EnterSteering,
            true => Action::End(ending),
        };
    }
    if control.is_turn_held {
        return Action::Rest;
    }
    if let Some(body) = over_budget(open, control) {
        return Action::Fail(body);
    }
    if !open.calls.is_empty() {
        return decide_calls(session, open, control, rules);
    }
    if is_steered {
        return Action::EnterSteering;
    }
    if is_loop(&open.signatures, rules.turn.loop_repeats) {
        let body = ErrorBody::new(ErrorCode::LoopDetected)
            .detail("tool", open.last_tool.clone())
            .detail("repeats", rules.turn.loop_repeats);
        return Action::End(Ending::Failed(body));
    }
    if open.malformed_steps >= rules.turn.repair_rounds.max(1) {
        let message = format!("The model gave malformed tool arguments {} times in a row.", open.malformed_steps);
        return Action::End(Ending::Failed(
            ErrorBody::with_message(ErrorCode::TurnFailed, message).detail("reason", "malformed_arguments"),
        ));
    }
    if !control.is_prepared {
        return Action::Prepare;
    }
    if let Some(body) = unlimited_cost(open, rules) {
        return Action::End(Ending::Failed(body));
    }
    for &budget in Budget::ALL {
        let Some(limit) = budgets.limit(budget) else { continue };
        let used = used(open, control, budget);
        if is_used_up(open, control, budget) {
            return Action::End(Ending::Failed(match budget {
                Budget::Cost if used.units() < limit.units() => unaffordable(used, limit, control.next_cost),
                _ => exhausted(budget, used, limit),
            }));
        }
        let is_nearly = u128::from(used.units()) * 5 >= u128::from(limit.units()) * 4;
        if is_nearly && used.units() > 0 && !open.warned.contains(&budget) {
            return Action::Warn(BudgetWarning { budget, used, limit });
        }
    }
    if control.window_exceeded.is_some() || (rules.wants_compaction)() { Action::Compact } else { Action::CallModel }
}

/// Returns true if the model can still answer a text that is steered into the turn.
pub(crate) fn takes_texts(open: &OpenTurn, control: &Control) -> bool {
    let is_answered = open.is_answered && open.calls.is_empty();
    let is_over = is_answered && is_spent(open, control) || over_budget(open, control).is_some();
    // The time of a turn that is held begins when it goes on.
    forced_ending(open, control).is_none() && (control.is_turn_held || !is_over)
}

/// Returns what is known of the last answer by the turn's schema; `None` if it is not checked yet.
fn output<'a>(open: &OpenTurn, control: &'a Control) -> Option<Result<(), &'a [OutputError]>> {
    if open.terms.output.is_none() {
        return Some(Ok(()));
    }
    let (seq, checked) = control.checked.as_ref()?;
    (open.text_seq == Some(*seq)).then(|| checked.as_ref().copied().map_err(Vec::as_slice))
}

/// Answers that may go back to the model. One that it or its vendor declined would be declined again.
fn repairs(open: &OpenTurn) -> u8 {
    let is_declined = matches!(open.stop_reason, Some(StopReason::Refusal | StopReason::ContentFilter));
    open.terms.output.as_ref().filter(|_| !is_declined).map_or(0, |output| output.repairs)
}

/// The failure of a turn whose answer does not fit its schema.
fn misfit(errors: &[OutputError]) -> ErrorBody {
    let first = errors.first().map_or_else(String::new, |error| format!(": {error}"));
    let message = format!("The model's answer does not fit the schema{first}.");
    let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
    ErrorBody::with_message(ErrorCode::OutputInvalid, message).detail("paths", paths)
}

/// Returns true if no budget is left for another model call.
fn is_spent(open: &OpenTurn, control: &Control) -> bool {
    Budget::ALL.iter().any(|&budget| is_used_up(open, control, budget))
}

/// Returns true if a budget leaves no room for another model call.
fn is_used_up(open: &OpenTurn, control: &Control, budget: Budget) -> bool {
    let Some(limit) = open.terms.budgets.limit(budget) else { return false };
    let used = used(open, control, budget).units();
    match budget {
        Budget::Tokens | Budget::Steps | Budget::WallMs => used >= limit.units(),
        // The last tool call may be used: `over_budget` refuses the one after it, and a call alone starts a sub-agent.
        Budget::ToolCalls | Budget::Agents => false,
        Budget::Cost => used >= limit.units() || used.saturating_add(control.next_cost.micros()) > limit.units(),
    }
}

/// The ending that nothing of the turn can put off.
fn forced_ending(open: &OpenTurn, control: &Control) -> Option<Ending> {
    let interrupt = control.interrupt.filter(|(turn, _)| *turn == open.turn);
    let failed = || control.failure.clone().map(Ending::Failed);
    interrupt.map(|(_, reason)| Ending::Interrupted(reason)).or_else(failed)
}

/// Finds a budget that leaves no room for the turn's next action.
fn over_budget(open: &OpenTurn, control: &Control) -> Option<ErrorBody> {
    if let Some(limit) = open.terms.budgets.wall_ms
        && control.elapsed_ms >= limit
    {
        return Some(exhausted(Budget::WallMs, Amount::Number(limit), Amount::Number(limit)));
    }
    let is_settled = |call: &CallState| matches!(call.progress, CallProgress::Proposed | CallProgress::Finished(_));
    let proposed = open.calls.iter().filter(|call| call.progress == CallProgress::Proposed).count();
    let limit = open.terms.budgets.tool_calls?;
    let used = used(open, control, Budget::ToolCalls).units();
    let wanted = used.saturating_add(proposed as u64);
    (wanted > limit && open.calls.iter().all(is_settled))
        .then(|| exhausted(Budget::ToolCalls, Amount::Number(used), Amount::Number(limit)))
}

/// Finds the reason that a turn's budget of cost can be kept no longer, if it has one.
fn unlimited_cost(open: &OpenTurn, rules: &Rules<'_>) -> Option<ErrorBody> {
    let limit = open.terms.budgets.cost?;
    if Cost::sum(open.totals.cost, open.delegated().cost).is_none() {
        let message = format!(
            "The turn may cost {limit}, but what a model call of it cost is not known: the server sent no bill, or a \
             part of it has no price in `model.prices`."
        );
        let body = ErrorBody::with_message(ErrorCode::TurnFailed, message).detail("reason", "cost_unknown");
        return Some(body);
    }
    (rules.check_priced)().err().map(|error| error.body())
}

fn decide_calls(session: &Session, open: &OpenTurn, control: &Control, rules: &Rules<'_>) -> Action {
    if open.requested().next().is_some() {
        // All else of the message was decided or run before, or waits for them.
        let late: Vec<CallAnswer> = open.calls.iter().filter_map(|call| unanswered(call, control.now)).collect();
        return if late.is_empty() { Action::AwaitCalls } else { Action::Answer(late) };
    }
    if open.delegating().next().is_some() {
        return Action::AwaitCalls;
    }
    let is_waiting = |call: &CallState| matches!(call.progress, CallProgress::Waiting(_));
    let waiting = ids(open, is_waiting);
    if control.is_prepared {
        if let Some(action) = before_decisions(session, open, control, rules) {
            return action;
        }
    } else if waiting.is_empty() {
        // A turn that a former process left waiting needs its tools only when all is decided.
        return Action::Prepare;
    }
    if !waiting.is_empty() {
        return if control.is_approval_expired { Action::ExpireApprovals(waiting) } else { Action::AwaitApproval };
    }
    // Nothing has run since the last decision: from here on the world is as the approved calls find it.
    let unplanned = ids(open, |call| call.is_approved() && !control.plans.contains_key(&call.call.call_id));
    if !unplanned.is_empty() {
        return Action::Plan(unplanned);
    }
    let plan = |call: &CallState| control.plans.get(&call.call.call_id).and_then(|plan| plan.as_ref().ok());
    let mut group: Vec<String> = Vec::new();
    let is_finished = |call: &CallState| matches!(call.progress, CallProgress::Finished(_));
    let is_of_client = |call: &CallState| rules.tools.is_of_client(&call.call.name);
    for call in open.calls.iter().filter(|call| !is_finished(call)) {
        if is_of_client(call) {
            if group.is_empty() {
                return Action::RequestCalls(ids(open, |call| !is_finished(call) && is_of_client(call)));
            }
            break;
        }
        if call.call.name == DELEGATE {
            if group.is_empty() {
                return Action::Delegate(ids(open, |call| !is_finished(call) && call.call.name == DELEGATE));
            }
            break;
        }
        let is_once = plan(call).is_none_or(|plan| plan.effect == Effect::Once);
        if is_once && group.is_empty() {
            group.push(call.call.call_id.clone());
        }
        // A `once` call runs alone; the calls after it run after it.
        if is_once || group.len() == rules.max_parallel.max(1) {
            break;
        }
        group.push(call.call.call_id.clone());
    }
    let outdated: Vec<String> = group.iter().filter(|call_id| control.outdated.contains(*call_id)).cloned().collect();
    if outdated.is_empty() { Action::RunTools(group) } else { Action::Plan(outdated) }
}

/// Finds what calls need although a decision on another one may be missing: an answer, a plan or a question.
fn before_decisions(session: &Session, open: &OpenTurn, control: &Control, rules: &Rules<'_>) -> Option<Action> {
    let answers: Vec<CallAnswer> =
        open.calls.iter().filter_map(|call| answer_without_running(session, call, control, rules)).collect();
    if !answers.is_empty() {
        return Some(Action::Answer(answers));
    }
    let is_proposed = |call: &CallState| call.progress == CallProgress::Proposed;
    let plan = |call: &CallState| control.plans.get(&call.call.call_id);
    let unplanned = ids(open, |call| is_proposed(call) && plan(call).is_none());
    if !unplanned.is_empty() {
        return Some(Action::Plan(unplanned));
    }
    let asks = |call: &CallState| match plan(call) {
        Some(Ok(plan)) => approval(session, call, plan, rules) == Approval::Ask,
        Some(Err(_)) | None => false,
    };
    let asking = ids(open, |call| is_proposed(call) && asks(call));
    (!asking.is_empty()).then_some(Action::RequestApprovals(asking))
}

/// Lists calls of the last answer.
fn ids(open: &OpenTurn, is_wanted: impl Fn(&CallState) -> bool) -> Vec<String> {
    open.calls.iter().filter(|call| is_wanted(call)).map(|call| call.call.call_id.clone()).collect()
}

/// The configuration's decision on a call, together with the rules that its session and its turn allow, and the turn's
/// access.
fn approval(session: &Session, call: &CallState, plan: &Plan, rules: &Rules<'_>) -> Approval {
    let of_turn = session.open_turn().into_iter().flat_map(|open| &open.terms.allow);
    let granted = session.allowed_rules.iter().chain(of_turn).map(String::as_str);
    let decide = |plan: &Plan| rules.tools.approval().decide(&call.call.name, plan, granted);
    match access(session).filter(|_| plan.effect != Effect::ReadOnly) {
        Some(TurnAccess::Read) => Approval::Deny,
        Some(TurnAccess::Ask) if plan.approval == Approval::Allow => decide(&plan.clone().ask()),
        Some(TurnAccess::Ask) | None => decide(plan),
    }
}

/// What the turn's calls may do, if that is less than the configuration allows.
fn access(session: &Session) -> Option<TurnAccess> {
    session.open_turn().and_then(|open| open.terms.access)
}

/// Returns true if the call asks, and nobody is there to decide.
fn is_left_alone(session: &Session, call: &CallState, plan: &Plan, rules: &Rules<'_>) -> bool {
    let is_attended = session.open_turn().is_some_and(|open| open.terms.attended);
    let may_wait = is_attended || rules.unattended == Unattended::Wait || call.progress != CallProgress::Proposed;
    !may_wait && approval(session, call, plan, rules) == Approval::Ask
}

/// The result of a call that must not run: its tool is not there, its arguments are malformed, it cannot be planned, it
/// was refused, or its run was lost.
fn answer_without_running(
    session: &Session,
    call: &CallState,
    control: &Control,
    rules: &Rules<'_>,
) -> Option<CallAnswer> {
    let answer = |code, outcome, text: String| {
        let (call_id, name) = (call.call.call_id.clone(), call.call.name.clone());
        Some(CallAnswer { call_id, name, outcome, error: Some(ErrorBody::with_message(code, text.clone())), text })
    };
    let name = &call.call.name;
    match &call.progress {
        CallProgress::Finished(_)
        | CallProgress::Waiting(_)
        | CallProgress::Requested(_)
        | CallProgress::Delegated(_) => None,
        CallProgress::Started => not_run(call, "", false),
        CallProgress::Decided(answered) if answered.decision == Decision::Deny => {
            let text = answered
                .reason
                .as_ref()
                .map_or_else(|| "The call was denied.".to_owned(), |reason| format!("The call was denied: {reason}"));
            answer(ErrorCode::ApprovalDenied, ToolOutcome::NotRun, text)
        }
        // An approved call is planned again before it runs: its tool, its rule or the world may have changed.
        CallProgress::Proposed | CallProgress::Decided(_) => {
            let Some(tool) = rules.tools.get(name).filter(|_| session.may_use(name)) else {
                if name == DELEGATE && rules.tools.get(name).is_some() && !session.may_delegate() {
                    return answer(ErrorCode::ToolNotFound, ToolOutcome::NotRun, NO_AGENTS.to_owned());
                }
                let mut known: Vec<&str> = rules
                    .tools
                    .offered(session.context.has_blobs())
                    .iter()
                    .map(|spec| spec.name.as_str())
                    .filter(|name| session.may_use(name))
                    .collect();
                // Those of servers may be many, and can be searched.
                known.sort_by_key(|name| is_of_server(name));
                let more = known.len().saturating_sub(NAMES_MAX);
                known.truncate(NAMES_MAX);
                let text = format!(
                    "There is no tool {name:?}. The tools are: {}{}.",
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") },
                    if more > 0 { format!(", and {more} more, which {SEARCH_TOOLS} finds") } else { String::new() }
                );
                return answer(ErrorCode::ToolNotFound, ToolOutcome::NotRun, text);
            };
            if !call.call.arguments.as_str().starts_with('{') {
                let text = format!(
                    "The arguments are not a JSON object, so the tool did not run. Its schema is: {}",
                    tool.spec().schema.as_str()
                );
                return answer(ErrorCode::ToolFailed, ToolOutcome::NotRun, text);
            }
            if rules.tools.approval().deny_all(name) {
                let text = format!("The configuration denies the tool {name}.");
                return answer(ErrorCode::ApprovalDenied, ToolOutcome::NotRun, text);
            }
            let refused = |error: &ToolError| {
                let text = error.why_not_run(tool.spec().schema.as_str());
                let error = Some(error.not_run_body(&text));
                let (call_id, name) = (call.call.call_id.clone(), name.clone());
                Some(CallAnswer { call_id, name, outcome: ToolOutcome::NotRun, error, text })
            };
            match control.plans.get(&call.call.call_id)? {
                Ok(plan) if approval(session, call, plan, rules) == Approval::Deny => {
                    let is_read = access(session) == Some(TurnAccess::Read) && plan.effect != Effect::ReadOnly;
                    let text = match is_read {
                        true => format!("This turn may change nothing, so this call of {name} did not run."),
                        false => format!("A rule denies this call of {name}."),
                    };
                    answer(ErrorCode::ApprovalDenied, ToolOutcome::NotRun, text)
                }
                Ok(plan) if is_left_alone(session, call, plan, rules) => {
                    answer(ErrorCode::ApprovalDenied, ToolOutcome::NotRun, nobody_to_ask(name))
                }
                Ok(plan) if is_other_than_approved(call, plan) => {
                    refused(&ToolError::Refused(OTHER_THAN_APPROVED.to_owned()))
                }
                Ok(_) => None,
                Err(error) => refused(error),
            }
        }
    }
}

/// Returns true if the call would do something else by now than a person was shown and approved.
///
/// It is not asked about again: a decision names its call, so one that comes twice would answer the second question.
fn is_other_than_approved(call: &CallState, plan: &Plan) -> bool {
    matches!(&call.progress, CallProgress::Decided(answered) if answered.preview != plan.preview)
}

/// Text about a call that asks while nobody attends its turn.
fn nobody_to_ask(name: &str) -> String {
    format!(
        "The tool {name} asks before it runs, and no person is there to ask, so it did not run. To allow it: `--allow {name}`, \
         `allow` in the turn's request, or a rule in `tools.approval`; to be asked: run the turn in a terminal, or with \
         `attended`."
    )
}

/// The result of a call that the turn's end leaves without one.
fn not_run(call: &CallState, why: &str, is_imported: bool) -> Option<CallAnswer> {
    let (outcome, text) = match call.progress {
        CallProgress::Finished(_) => return None,
        CallProgress::Started => (ToolOutcome::Unknown, OUTCOME_UNKNOWN.to_owned()),
        CallProgress::Requested(Requested { ref call, .. }) if call.effect == Effect::Once && !is_imported => {
            (ToolOutcome::Unknown, format!("{OUTCOME_UNKNOWN} No caller had answered."))
        }
        CallProgress::Delegated(_) => {
            (ToolOutcome::Unknown, format!("{OUTCOME_UNKNOWN} How its sub-agent ended is not known."))
        }
        CallProgress::Requested(_) if is_imported => {
            (ToolOutcome::NotRun, "Not run: the session was imported while it waited for its caller.".to_owned())
        }
        CallProgress::Proposed | CallProgress::Waiting(_) | CallProgress::Decided(..) | CallProgress::Requested(_) => {
            (ToolOutcome::NotRun, format!("Not run: {why}."))
        }
    };
    Some(CallAnswer { call_id: call.call.call_id.clone(), name: call.call.name.clone(), outcome, text, error: None })
}

/// The result of a call that no caller answered in time.
fn unanswered(call: &CallState, now: Timestamp) -> Option<CallAnswer> {
    let CallProgress::Requested(Requested { call: requested, .. }) = &call.progress else { return None };
    let (outcome, text) = match requested.effect {
        Effect::Once => (ToolOutcome::Unknown, format!("{OUTCOME_UNKNOWN} No caller answered in time.")),
        Effect::ReadOnly | Effect::Idempotent => {
            (ToolOutcome::NotRun, "No caller answered the call in time.".to_owned())
        }
    };
    let (call_id, name) = (call.call.call_id.clone(), call.call.name.clone());
    (requested.deadline <= now).then_some(CallAnswer { call_id, name, outcome, text, error: None })
}

/// Returns the used amount of a budget; what is kept for sub-agents counts as used.
pub(super) fn used(open: &OpenTurn, control: &Control, budget: Budget) -> Amount {
    let (own, theirs) = (&open.totals, open.delegated());
    Amount::Number(match budget {
        Budget::Tokens => own.usage.total().saturating_add(theirs.tokens),
        Budget::Steps => theirs.steps.saturating_add(own.steps.into()),
        Budget::ToolCalls => theirs.tool_calls.saturating_add(own.tool_calls.into()),
        // It passes for sub-agents at the same time.
        Budget::WallMs => control.elapsed_ms,
        Budget::Cost => {
            // An unknown cost may be any.
            let cost = Cost::sum(own.cost, theirs.cost);
            return Amount::Money(cost.unwrap_or(Cost::from_micros(u64::MAX)));
        }
        Budget::Agents => theirs.agents,
    })
}

fn exhausted(budget: Budget, used: Amount, limit: Amount) -> ErrorBody {
    out_of_budget(format!("The turn's budget of {} is used up.", limit.named(budget)), budget, used, limit)
}

/// The failure of a turn whose next model call surely costs more than its budget has left.
fn unaffordable(used: Amount, limit: Amount, next: Cost) -> ErrorBody {
    let limit_text = limit.named(Budget::Cost);
    let message = format!(
        "The turn's budget of {limit_text} has no room for the next model call: {used} is used, and the call's input \
         alone costs {next} or more."
    );
    out_of_budget(message, Budget::Cost, used, limit).detail("next", Amount::Money(next))
}

fn out_of_budget(message: String, budget: Budget, used: Amount, limit: Amount) -> ErrorBody {
    ErrorBody::with_message(ErrorCode::BudgetExhausted, message)
        .detail("budget", budget.name())
        .detail("used", used)
        .detail("limit", limit)
}

/// The body of a failure inside the engine's own parts.
pub(crate) fn internal(what: &str) -> ErrorBody {
    SessionError::Internal(what.to_owned()).body()
}
