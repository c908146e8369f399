//! Sub-agents of a followed turn, with theirs: what they do as it comes, wherever they run.

use std::{future::pending, sync::Arc, time::Duration};

use futures::{
    StreamExt as _,
    stream::{BoxStream, SelectAll, unfold},
};

use super::Follower;
use crate::{
    ErrorCode, SessionError,
    clock::{Clock as _, SystemClock},
    ids::SessionId,
    service::SessionService,
    session::event::{Event, Record},
    wire::decode_event,
};

/// Pause before a sub-agent is looked for again whose session is not made yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Sub-agents of one turn, and the records of their sessions.
pub struct Below {
    service: Arc<dyn SessionService>,
    agents: Vec<SubAgent>,
    records: SelectAll<BoxStream<'static, Record>>,
}

/// Sub-agent of a turn, or of one of its sub-agents.
#[derive(Clone, Debug)]
pub struct SubAgent {
    /// Its session.
    pub session_id: SessionId,
    /// The call of the turn that it works for, by itself or through other sub-agents.
    pub call_id: String,
    /// Its name for people: that of its agent, or the end of its id.
    pub name: String,
}

impl Below {
    /// Follows the sub-agents of a turn, of which there are none yet.
    #[must_use]
    pub fn new(service: Arc<dyn SessionService>) -> Self {
        Self { service, agents: Vec::new(), records: SelectAll::new() }
    }

    /// Takes a record of the turn: the sub-agent that it starts is followed from its beginning.
    pub fn take(&mut self, record: &Record) {
        let Event::DelegateStarted(started) = &record.event else { return };
        let session_id = started.child;
        let call_id = self.get(record.session_id).map_or(&started.call_id, |above| &above.call_id).clone();
        let id = session_id.to_string();
        let ending = || id.get(id.len().saturating_sub(8)..).unwrap_or(&id).to_owned();
        let name = started.agent.as_ref().map_or_else(ending, |agent| agent.name.clone());
        self.agents.push(SubAgent { session_id, call_id, name });
        self.records.push(records(self.service.clone(), session_id).boxed());
    }

    /// Returns the sub-agent with this session.
    #[must_use]
    pub fn get(&self, session_id: SessionId) -> Option<&SubAgent> {
        self.agents.iter().find(|agent| agent.session_id == session_id)
    }

    /// The next record of a sub-agent. Without one it waits for ever; it can be dropped and called again.
    pub async fn next(&mut self) -> (SubAgent, Record) {
        while let Some(record) = self.records.next().await {
            self.take(&record);
            if let Some(agent) = self.get(record.session_id) {
                return (agent.clone(), record);
            }
        }
        pending().await
    }
}

/// Records of a sub-agent's session, which may not be made yet. They end where they cannot be read.
fn records(service: Arc<dyn SessionService>, child: SessionId) -> impl futures::Stream<Item = Record> {
    unfold(None, move |follower: Option<Follower>| {
        let service = service.clone();
        async move {
            let mut follower = match follower {
                Some(follower) => follower,
                None => begin(service.as_ref(), child).await.ok()?,
            };
            loop {
                let line = follower.next().await.ok()??;
                if line.seq.is_some() {
                    let record = decode_event(std::str::from_utf8(&line.line).ok()?).ok()?;
                    return Some((record, Some(follower)));
                }
            }
        }
    })
}

async fn begin(service: &dyn SessionService, child: SessionId) -> Result<Follower, SessionError> {
    loop {
        match service.follow(&child, 0).await {
            Err(error) if error.code() == ErrorCode::SessionNotFound => SystemClock::new().sleep(PAUSE).await,
            found => return found,
        }
    }
}
