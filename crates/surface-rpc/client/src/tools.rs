//! Tools that this program runs: it answers the calls of a session.

use std::{collections::HashSet, convert::Infallible};

use futures::stream::{FuturesUnordered, StreamExt as _};
use meerkat_service::{
    ErrorCode, SessionError, SessionId, SessionService as _,
    service::{AnswerCall, CallContent, CallOutcome, OpenCall},
    session::event::Event,
    wire::decode_event,
};

use crate::client::Client;

impl Client {
    /// Runs the calls of a session's tools by `run`, and answers them, until it is dropped: those that wait already, and
    /// those that come. Calls of one message run together. An `Err` of `run` is what the model reads of a call that
    /// failed. It goes on after a restart of the server, which keeps the calls that wait.
    ///
    /// A call that is dropped while it runs waits on, and the next program that serves the session runs it again.
    ///
    /// # Errors
    /// Those of following the session and of answering. A call that has its outcome meanwhile is none.
    pub async fn tools<Run, Ran>(&self, session_id: SessionId, run: Run) -> Result<Infallible, SessionError>
    where
        Run: Fn(OpenCall) -> Ran,
        Ran: Future<Output = Result<Vec<CallContent>, String>>,
    {
        // First: what comes later is seen, and what came before is in the list of calls.
        let since = match self.read(&session_id).await {
            Ok(view) => view.last_seq,
            // Without a store a session is short.
            Err(error) if error.code() == ErrorCode::SessionPersistenceDisabled => 0,
            Err(error) => return Err(error),
        };
        let mut follower = self.follow(&session_id, since).await?;
        let (mut begun, mut running, mut is_due) = (HashSet::new(), FuturesUnordered::new(), true);
        loop {
            if is_due {
                let open = self.calls(&session_id).await?.items;
                begun.retain(|call_id| open.iter().any(|call| call.call_id == *call_id));
                let new = open.into_iter().filter(|call| begun.insert(call.call_id.clone()));
                running.extend(new.map(|call| {
                    let (call_id, ran) = (call.call_id.clone(), run(call));
                    async move { self.answered(session_id, call_id, ran.await).await }
                }));
            }
            tokio::select! {
                Some(answered) = running.next() => {
                    answered?;
                    is_due = false;
                }
                line = follower.next() => {
                    let line = line?.ok_or(SessionError::NotFound(session_id))?;
                    let record = line.seq.and_then(|_| decode_event(std::str::from_utf8(&line.line).ok()?).ok());
                    is_due = record.is_some_and(|record| matches!(record.event, Event::CallRequested(_)));
                }
            }
        }
    }

    /// Answers a call, unless it has its outcome from elsewhere.
    async fn answered(
        &self,
        session_id: SessionId,
        call_id: String,
        ran: Result<Vec<CallContent>, String>,
    ) -> Result<(), SessionError> {
        let (outcome, content) = match ran {
            Ok(content) => (CallOutcome::Succeeded, content),
            Err(why) => (CallOutcome::Failed, vec![CallContent::Text(why)]),
        };
        match self.answer_call(AnswerCall { session_id, call_id, outcome, content, wait: false }).await {
            Err(error) if matches!(error.code(), ErrorCode::ItemNotFound | ErrorCode::IdempotencyConflict) => {
                tracing::warn!(%session_id, %error, "a call had its outcome before it was answered");
                Ok(())
            }
            answered => answered.map(drop),
        }
    }
}
