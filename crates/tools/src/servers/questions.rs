//! Questions of a server to a person: to which call one belongs, and the way of its answer.
//!
//! The protocol does not say during which call a server asks. Only one of a connection's single running call has an owner.

use std::sync::{Mutex, MutexGuard, PoisonError};

use meerkat_service::{
    session::message::RawJson,
    tool::{Answer, Asking, Question},
};
use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde_json::Value;
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

/// Calls that run over one connection, by number, each with the way to its person.
#[derive(Default)]
pub(super) struct Askers(Mutex<Running>);

#[derive(Default)]
struct Running {
    last: u64,
    calls: Vec<(u64, mpsc::Sender<Asking>)>,
}

/// Place of a call among those that run.
pub(super) struct Place<'a>(&'a Askers, u64);

impl Askers {
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call, whose questions go to `questions`.
    pub(super) fn begin(&self, questions: mpsc::Sender<Asking>) -> Place<'_> {
        let mut running = self.lock();
        running.last += 1;
        let number = running.last;
        running.calls.push((number, questions));
        Place(self, number)
    }

    /// Returns the way to the person of the only running call.
    fn only(&self) -> Option<mpsc::Sender<Asking>> {
        match &self.lock().calls[..] {
            [(_, questions)] => Some(questions.clone()),
            _ => None,
        }
    }

    /// Answers a question of `server`. Dropped, it takes the question back.
    pub(super) async fn answer(&self, server: &str, asked: ElicitRequestParams) -> ElicitResult {
        let question = match question(server, asked) {
            Ok(question) => question,
            Err(why) => {
                tracing::warn!(target: "servers", server, why, "a question is declined");
                return ElicitResult::new(ElicitationAction::Decline);
            }
        };
        let Some(questions) = self.only() else {
            tracing::warn!(target: "servers", server, "a question is declined: not exactly one call runs");
            return ElicitResult::new(ElicitationAction::Decline);
        };
        let (reply, answer) = oneshot::channel();
        match questions.try_send(Asking { question, reply }) {
            Ok(()) => {}
            // One is asked at a time, and one may wait.
            Err(TrySendError::Full(_)) => return ElicitResult::new(ElicitationAction::Decline),
            Err(TrySendError::Closed(_)) => return ElicitResult::new(ElicitationAction::Cancel),
        }
        match answer.await.unwrap_or(Answer::Cancelled) {
            Answer::Accepted(given) => match given.decode::<Value>() {
                Ok(given) => ElicitResult::new(ElicitationAction::Accept).with_content(given),
                Err(_) => ElicitResult::new(ElicitationAction::Cancel),
            },
            Answer::Declined => ElicitResult::new(ElicitationAction::Decline),
            Answer::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
        }
    }
}

impl Place<'_> {
    /// Keeps the place of a call that was stopped: its server may go on, and what it asks then is nobody else's.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.lock().calls.retain(|(number, _)| *number != self.1);
    }
}

/// Reads a question.
fn question(server: &str, asked: ElicitRequestParams) -> Result<Question, String> {
    match asked {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let schema = serde_json::to_string(&requested_schema).map_err(|error| error.to_string())?;
            Question::new(server, &message, &RawJson::parse(&schema).map_err(|error| error.to_string())?)
        }
        // The library's enum may grow.
        _ => Err("it is no form".to_owned()),
    }
}
