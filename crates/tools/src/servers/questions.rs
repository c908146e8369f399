//! Questions of a server to a person: to which call one belongs, and the way of its answer.
//!
//! With a session, the protocol does not say during which call a server asks. Only one of a connection's single running
//! call has an owner. Without one, a question is the answer to its call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use meerkat_service::{
    session::message::RawJson,
    tool::{Answer, Asking, OutputSink, Question},
};
use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests, InputResponses};
use serde_json::Value;
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

use super::answer::CallEnd;

/// Calls that run over one connection, each with the way to its person, as long as its [`Place`] is held.
#[derive(Default)]
pub(super) struct Askers(Mutex<Vec<(Weak<()>, mpsc::Sender<Asking>)>>);

/// Place of a call among those that run.
pub(super) type Place = Arc<()>;

impl Askers {
    /// Begins a call, whose questions go to `questions`.
    pub(super) fn begin(&self, questions: mpsc::Sender<Asking>) -> Place {
        let place = Place::default();
        self.running().push((Arc::downgrade(&place), questions));
        place
    }

    fn running(&self) -> MutexGuard<'_, Vec<(Weak<()>, mpsc::Sender<Asking>)>> {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain(|(place, _)| place.strong_count() > 0);
        calls
    }

    /// Returns the way to the person of the only running call.
    fn only(&self) -> Option<mpsc::Sender<Asking>> {
        match &self.running()[..] {
            [(_, questions)] => Some(questions.clone()),
            _ => None,
        }
    }

    /// Answers a question of `server`. Dropped, it takes the question back.
    pub(super) async fn answer(&self, server: &str, asked: ElicitRequestParams) -> ElicitResult {
        let Some(question) = read(server, asked) else { return ElicitResult::new(ElicitationAction::Decline) };
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
        result(answer.await.unwrap_or(Answer::Cancelled))
    }
}

/// Answers all questions of an answer that wants more, one after the other; these are its call's own.
///
/// # Errors
/// [`CallEnd::Failed`] if it wants what we do not offer.
pub(super) async fn answer_all(
    server: &str,
    asked: InputRequests,
    output: &OutputSink,
) -> Result<InputResponses, CallEnd> {
    let mut answers = InputResponses::new();
    for (key, asked) in asked {
        let InputRequest::Elicitation(asked) = asked else {
            return Err(CallEnd::Failed(format!("The server {server} sent a request that meerkat does not support.")));
        };
        let answer = match read(server, asked.params) {
            Some(question) => result(output.ask(question).await),
            None => ElicitResult::new(ElicitationAction::Decline),
        };
        answers.insert(key, serde_json::to_value(answer).map_err(|error| CallEnd::Failed(error.to_string()))?);
    }
    Ok(answers)
}

/// Writes a person's answer for the server.
fn result(answer: Answer) -> ElicitResult {
    match answer {
        Answer::Accepted(given) => match given.decode::<Value>() {
            Ok(given) => ElicitResult::new(ElicitationAction::Accept).with_content(given),
            Err(_) => ElicitResult::new(ElicitationAction::Cancel),
        },
        Answer::Declined => ElicitResult::new(ElicitationAction::Decline),
        Answer::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
    }
}

/// Reads a question; none if it cannot be asked.
fn read(server: &str, asked: ElicitRequestParams) -> Option<Question> {
    let question = match asked {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            serde_json::to_string(&requested_schema)
                .map_err(|error| error.to_string())
                .and_then(|schema| RawJson::parse(&schema).map_err(|error| error.to_string()))
                .and_then(|schema| Question::new(server, &message, &schema))
        }
        // The library's enum may grow.
        _ => Err("it is not a form".to_owned()),
    };
    question.inspect_err(|why| tracing::warn!(target: "servers", server, why, "a question is declined")).ok()
}
