//! Sub-agents of a turn: what each may use, what it may do, and its end. What a call starts, and with what share of the
//! budgets, is decided by pure functions; the journal of the session that calls is all there is to know of it.

use std::{collections::HashMap, path::Path, time::Duration};

use futures::future::BoxFuture;
use meerkat_words::{
    agents::{Delegated, Descent, Parent},
    calls::CallOutcome,
};
use tokio_util::sync::CancellationToken;

use super::{
    Ports,
    decide::{Control, NO_AGENTS, used},
};
use crate::{
    SessionError,
    ids::SessionId,
    options::{AgentOptions, Amount, Budget, Budgets, ModelOptions},
    output::OutputSpec,
    service::{CreateSession, SessionSummary, StartTurn},
    session::{Delegating, Session, event::Agent, message::ToolCall},
    tool::{AgentFile, DELEGATE, ToolError, Wanted},
};

/// Most agents that a refusal names.
const NAMED_MAX: usize = 32;

type Ask<T> = Box<dyn Fn(SessionId) -> BoxFuture<'static, Result<T, SessionError>> + Send + Sync>;

/// What an actor asks of the service for the sub-agents of its session.
pub(crate) struct Agents {
    /// Has a sub-agent work, and reports its end to the session that called.
    pub(crate) attend: Box<dyn Fn(Order) + Send + Sync>,
    /// Lists the sub-agents below a session, each after its own.
    pub(crate) below: Ask<Vec<SessionSummary>>,
    /// Deletes a sub-agent with its own, also one that works.
    pub(crate) delete: Ask<()>,
}

/// Sub-agent that is to work. Given twice, it is the same one.
pub(crate) struct Order {
    /// Its session.
    pub(crate) child: SessionId,
    pub(crate) descent: Descent,
    /// What is kept for it.
    pub(crate) reserved: Budgets,
    /// How its session is made, if it is not there yet.
    pub(crate) create: CreateSession,
    /// Its turn.
    pub(crate) start: StartTurn,
    /// Fires when it should end.
    pub(crate) end: CancellationToken,
}

/// End of a sub-agent.
#[derive(Debug)]
pub(crate) struct ChildEnded {
    pub(crate) call_id: String,
    pub(crate) child: SessionId,
    pub(crate) outcome: CallOutcome,
    /// Text for the model.
    pub(crate) text: String,
    /// `None` if it is not known: then all that was kept for it counts.
    pub(crate) used: Option<Delegated>,
}

/// Sub-agents of the running turn that work for this actor.
#[derive(Default)]
pub(super) struct Children {
    /// By their calls.
    pub(super) attended: HashMap<String, CancellationToken>,
    /// Time by the monotonic clock until which they end that were asked to.
    pub(super) until: Option<Duration>,
}

/// What a turn can still give to sub-agents.
pub(super) struct Ledger<'a> {
    settings: &'a AgentOptions,
    /// Sub-agents that work.
    open: u64,
    /// Distance of the session from the top of its tree.
    depth: u64,
    /// What is neither used nor kept for a sub-agent.
    rest: Budgets,
}

impl<'a> Ledger<'a> {
    pub(super) fn of(session: &Session, control: &Control, settings: &'a AgentOptions) -> Self {
        let depth = session.descent.as_ref().map_or(0, |descent| descent.depth);
        let open = session.open_turn();
        let rest = open.map_or_else(Budgets::default, |open| {
            let rest = |budget| {
                let limit = open.terms.budgets.limit(budget)?;
                Some(limit.units().saturating_sub(used(open, control, budget).units()))
            };
            Budgets::of(rest)
        });
        Self { settings, open: open.map_or(0, |open| open.delegating().count() as u64), depth, rest }
    }

    /// Keeps a share for one more sub-agent: what its call asks for, or of each limited budget the rest, divided by the
    /// places that are left. The turn itself keeps a step.
    ///
    /// # Errors
    /// Says why there is none, for the model.
    pub(super) fn reserve(&mut self, asked: &Budgets) -> Result<Budgets, String> {
        let AgentOptions { depth, width, .. } = *self.settings;
        let places = width.saturating_sub(self.open);
        if places == 0 {
            return Err(format!(
                "{width} sub-agents work already, and no more may at one time. Wait for their results, or do the work \
                 yourself."
            ));
        }
        if self.depth >= depth {
            return Err(NO_AGENTS.to_owned());
        }
        let mut refused = None;
        let given = Budgets::of(|budget| {
            let asked = asked.limit(budget).map(Amount::units);
            let rest = self.rest.limit(budget).map(Amount::units);
            let is_deepest = self.depth + 1 >= depth;
            let Some(rest) = rest else { return if budget == Budget::Agents { Some(0) } else { asked } };
            let free = match budget {
                // The sub-agent itself is one.
                Budget::Agents if rest == 0 => {
                    refused = Some("This turn may start no further sub-agent. Do the work yourself.".to_owned());
                    0
                }
                Budget::Agents if is_deepest => 0,
                // The turn keeps a step, and the call itself is a tool call.
                Budget::Steps | Budget::ToolCalls | Budget::Agents => rest.saturating_sub(1),
                Budget::Tokens | Budget::WallMs | Budget::Cost => rest,
            };
            let share = match budget {
                // It passes for all at the same time.
                Budget::WallMs => free,
                _ => free / places,
            };
            let given = asked.unwrap_or(share);
            if given > free || given == 0 && !budget.may_be_none() {
                let (name, free) = (budget.name(), Amount::of(budget, free));
                let asked = asked
                    .map_or_else(String::new, |asked| format!(", and {} was asked for", Amount::of(budget, asked)));
                refused.get_or_insert_with(|| {
                    format!(
                        "Of this turn's budget of {name}, {free} is left for sub-agents{asked}. Ask for less, or do the \
                         work yourself."
                    )
                });
            }
            Some(given)
        });
        if let Some(refused) = refused {
            return Err(refused);
        }
        self.open += 1;
        self.rest = Budgets::of(|budget| {
            let own = u64::from(matches!(budget, Budget::ToolCalls | Budget::Agents));
            let kept = match budget {
                Budget::WallMs => 0,
                _ => given.limit(budget).map_or(0, Amount::units) + own,
            };
            self.rest.limit(budget).map(|rest| rest.units().saturating_sub(kept))
        });
        Ok(given)
    }
}

/// Refuses a sub-agent that may do more than the session.
pub(super) fn check_tools(session: &Session, wanted: &Wanted) -> Result<(), String> {
    let mut tools = wanted.tools.iter().flatten();
    tools.find(|name| !session.may_use(name) && *name != DELEGATE).map_or(Ok(()), |name| {
        Err(format!("You may not use the tool {name:?}, so a sub-agent may not either. Name tools of yours."))
    })
}

/// Returns the agent that a call names, with tools of the session's and a model that is configured.
pub(super) fn agent(
    ports: &Ports,
    session: &Session,
    wanted: &Wanted,
    files: &[AgentFile],
) -> Result<Option<Agent>, String> {
    let Some(name) = &wanted.agent else { return Ok(None) };
    let Some(file) = files.iter().find(|file| file.agent.name == *name) else {
        let names: Vec<&str> = files.iter().take(NAMED_MAX).map(|file| file.agent.name.as_str()).collect();
        let known = match names.is_empty() {
            true => "There are none here; leave `agent` out.".to_owned(),
            false => format!("There are {}. Name one of them, or leave `agent` out.", names.join(", ")),
        };
        return Err(format!("There is no agent {name:?}. {known}"));
    };
    let mut agent = file.agent.clone();
    agent.prompt = ports.secrets.replace(&agent.prompt).into_owned();
    if let Some(its) = &mut agent.tools {
        let asked = wanted.tools.iter().flatten();
        if let Some(other) = asked.into_iter().find(|tool| !its.contains(tool)) {
            let its = its.join(", ");
            return Err(format!("The agent {name:?} may not use the tool {other:?}. Its tools: {its}. Name fewer."));
        }
        let may_use = |tool: &String| session.may_use(tool) && ports.tools.knows(tool);
        its.retain(|tool| may_use(tool) && wanted.tools.as_ref().is_none_or(|asked| asked.contains(tool)));
    }
    if let Some(error) = agent.model.as_deref().and_then(|model| ports.models.resolve(model).err()) {
        tracing::warn!(agent = name, %error, "an agent's model is not configured: it works with the caller's");
        agent.model = None;
    }
    Ok(Some(agent))
}

/// Describes the sub-agent of a call. It may do what the session and its turn may do, or less.
pub(super) fn order(session: &Session, call: &ToolCall, delegating: &Delegating) -> Option<Order> {
    let open = session.open_turn()?;
    let Delegating { child, reserved, .. } = *delegating;
    let agent = delegating.agent.as_deref();
    let model = agent.and_then(|agent| agent.model.as_ref()).unwrap_or(&open.terms.model);
    // Of another model nothing is known that was chosen for this one.
    let options = if *model == open.terms.model { session.options.clone() } else { ModelOptions::default() };
    // The arguments were checked before the call started; without a prompt the turn is refused.
    let wanted: Wanted = ToolError::decode(&call.arguments).unwrap_or_default();
    let parent = Parent { session_id: session.id, turn: open.turn, call_id: call.call_id.clone() };
    let key = Some(format!("{}:{}:{}", parent.session_id, parent.turn, parent.call_id));
    let root = session.descent.as_ref().map_or(session.id, |descent| descent.root);
    let depth = session.descent.as_ref().map_or(0, |descent| descent.depth) + 1;
    let create = CreateSession {
        title: agent.map(|agent| agent.name.clone()),
        model: Some(model.clone()),
        system_prompt: agent.map(|agent| agent.prompt.clone()),
        labels: session.labels.clone(),
        tools: agent
            .and_then(|agent| agent.tools.clone())
            .or(wanted.tools)
            .or_else(|| session.tools.as_deref().map(<[String]>::to_vec)),
        workspace: session.workspace().and_then(Path::to_str).map(str::to_owned),
        compaction: session.compaction(),
        budgets: Budgets { agents: reserved.agents, ..Budgets::default() },
        options,
        memory: session.memory,
        idempotency_key: key.clone(),
        ..CreateSession::default()
    };
    let start = StartTurn {
        budgets: reserved,
        output: wanted.output.map(OutputSpec::new),
        attended: open.terms.attended,
        allow: open.terms.allow.clone(),
        access: open.terms.access,
        search_path: open.terms.search_path.clone(),
        wait: false,
        idempotency_key: key,
        ..StartTurn::new(child, wanted.prompt)
    };
    let (descent, end) = (Descent { parent, root, depth }, CancellationToken::new());
    Some(Order { child, descent, reserved, create, start, end })
}
