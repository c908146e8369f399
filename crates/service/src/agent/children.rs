//! Sub-agents as the session that called them starts them, waits for them and ends them.

use std::time::Duration;

use meerkat_words::calls::CallContent;
use tokio_util::sync::CancellationToken;

use super::{
    actor::Actor,
    calls::content,
    decide::CallAnswer,
    delegate::{ChildEnded, Ledger, check_tools, order},
};
use crate::{
    SessionError,
    service::AnswerCall,
    session::event::{DelegateStarted, Event, ToolOutcome},
    store::StoreError,
    tool::{ToolError, Wanted, prefix},
};

/// Time within which sub-agents end that were asked to.
const END: Duration = Duration::from_secs(30);

impl Actor {
    /// Starts sub-agents for these calls as far as there is room, and answers the others.
    pub(super) async fn delegate(&mut self, calls: &[String]) -> Result<(), StoreError> {
        let Some(open) = self.session.open_turn() else { return Ok(()) };
        let (turn, now) = (open.turn, self.ports.world.clock.now());
        let mut ledger = Ledger::of(&self.session, &self.control, &self.ports.options.agents);
        let wanted = open.calls.iter().map(|call| &call.call).filter(|call| calls.contains(&call.call_id));
        let events = wanted.map(|call| {
            let asked: Result<Wanted, _> = ToolError::decode(&call.arguments).map_err(|error| error.to_string());
            let checked = asked.and_then(|wanted| check_tools(&self.session, &wanted).map(|()| wanted.budget));
            let call_id = call.call_id.clone();
            match checked.and_then(|budget| ledger.reserve(&budget)) {
                Ok(reserved) => {
                    let child = self.ports.world.ids.next_session_id(now);
                    Event::DelegateStarted(DelegateStarted { call_id, child, reserved })
                }
                Err(text) => {
                    let error = Some(ToolError::Refused(String::new()).not_run_body(&text));
                    let (name, outcome) = (call.name.clone(), ToolOutcome::NotRun);
                    Event::ToolFinished(self.answer_of(CallAnswer { call_id, name, outcome, text, error }))
                }
            }
        });
        let events = events.collect();
        self.record_durably(Some(turn), events).await.map(drop)
    }

    /// Has the sub-agents of open calls work that do not work for this actor yet.
    pub(super) fn attend_children(&mut self) {
        let (Some(open), Some(attend)) = (self.session.open_turn(), self.ports.attend.get()) else { return };
        for (call, delegating) in open.delegating() {
            if self.running.children.attended.contains_key(&call.call_id) {
                continue;
            }
            let Some(order) = order(&self.session, call, (delegating.child, delegating.reserved)) else { continue };
            self.running.children.attended.insert(call.call_id.clone(), order.end.clone());
            attend(order);
        }
    }

    /// Ends the sub-agents, because the turn ends, and waits for the next of them. After a while they are given up.
    pub(super) async fn end_children(&mut self) {
        self.attend_children();
        let now = self.ports.world.clock.elapsed();
        let until = *self.running.children.until.get_or_insert(now + END);
        self.running.children.attended.values().for_each(CancellationToken::cancel);
        let command = if until > now { self.next_command(until - now).await } else { Some(None) };
        match command {
            // None is left to report an end, or there is no time left.
            Some(None) => self.control.are_children_given_up = true,
            command => self.heed(command).await,
        }
    }

    /// Takes the end of a sub-agent. One that comes again, or too late, changes nothing.
    pub(super) async fn child_ended(&mut self, ended: &ChildEnded) -> Result<(), SessionError> {
        self.shared.check_writable()?;
        let its = self.session.open_turn().and_then(|open| {
            let mut calls = open.delegating().map(|(call, delegating)| (open.turn, call, delegating));
            let (turn, call, delegating) =
                calls.find(|(_, call, at)| (&call.call_id, at.child) == (&ended.call_id, ended.child))?;
            Some((turn, call.name.clone(), delegating.time))
        });
        let Some((turn, name, since)) = its else { return Ok(()) };
        let (session_id, call_id, outcome) = (self.session.id, ended.call_id.clone(), ended.outcome);
        let most = usize::try_from(self.ports.options.tools.max_output_bytes).unwrap_or(usize::MAX);
        let text = vec![CallContent::Text(prefix(&ended.text, most).to_owned())];
        let answer = AnswerCall { session_id, call_id, outcome, content: text, wait: false };
        let mut finished = content(&self.ports, &answer, name).await?;
        finished.duration_ms = self.waited_ms(since);
        finished.delegated = ended.used;
        self.changed(Some(turn), Event::ToolFinished(finished)).await.map(drop)
    }
}
