//! From a decision to a record: large bodies to blobs, then stage, then apply. Nothing else appends.

use std::time::Duration;

use crate::{
    SessionError,
    agent::actor::Actor,
    ids::{Seq, TurnNumber},
    session::{
        event::{Event, Record},
        message::{BlobRef, Block, Body},
    },
    store::{BlobStore, StoreError, Ticket},
    tool::{prefix, suffix},
};

/// An event's bodies may have this many bytes of JSON together; more goes to blobs.
const EVENT_BODY_BYTES_MAX: usize = 128 * 1024;
/// Bytes of a blob's beginning, and of its end, that stand in the event.
const EXCERPT_BYTES: usize = 4 * 1024;

impl Actor {
    /// Records events of one turn, or of none, as one batch; answers with the last one's seq and its ticket.
    pub(super) async fn record(
        &mut self,
        turn: Option<TurnNumber>,
        events: Vec<Event>,
    ) -> Result<(Seq, Ticket), StoreError> {
        let mut batch = Vec::with_capacity(events.len());
        for mut event in events {
            self.externalise(&mut event).await?;
            let seq = self.session.last_seq() + 1 + batch.len() as u64;
            batch.push(Record { session_id: self.session.id(), seq, turn, time: self.engine.world.clock.now(), event });
        }
        let ticket = self.engine.events.stage(&self.lease, &batch)?;
        for record in &batch {
            self.session.apply(record).map_err(|error| StoreError::Failed(error.to_string()))?;
        }
        Ok((self.session.last_seq(), ticket))
    }

    /// Records, waits until it is durable, and publishes.
    pub(super) async fn record_durably(
        &mut self,
        turn: Option<TurnNumber>,
        events: Vec<Event>,
    ) -> Result<Seq, StoreError> {
        let (seq, ticket) = self.record(turn, events).await?;
        ticket.durable().await?;
        self.publish();
        Ok(seq)
    }

    async fn externalise(&self, event: &mut Event) -> Result<(), StoreError> {
        let mut bodies = bodies(event);
        let bytes = |body: &Body| match body {
            // Escapes make JSON up to six times as long as its text.
            Body::Inline(text) => serde_json::to_string(text).map_or(text.len() * 6, |json| json.len()),
            Body::Blob(_) => 2 * EXCERPT_BYTES,
        };
        // Most events are short; only a long one pays for counting its escapes.
        let short = bodies.iter().all(|body| body.len() * 6 <= (EVENT_BODY_BYTES_MAX / bodies.len().max(1)) as u64);
        if short {
            return Ok(());
        }
        let mut sizes: Vec<usize> = bodies.iter().map(|body| bytes(body)).collect();
        while sizes.iter().sum::<usize>() > EVENT_BODY_BYTES_MAX {
            let Some(largest) = (0..sizes.len()).max_by_key(|&at| sizes[at]) else { break };
            if let Body::Inline(text) = &*bodies[largest] {
                let stored = store(self.engine.blobs.as_ref(), self.session.id(), text).await?;
                *bodies[largest] = Body::Blob(stored);
            }
            sizes[largest] = 0;
        }
        Ok(())
    }

    /// The failure of the store as those who wait see it.
    pub(super) fn store_failed(error: &StoreError) -> SessionError {
        tracing::error!(%error, "a session could not be written");
        SessionError::StoreFailed
    }

    /// Milliseconds since some moment of the monotonic clock.
    pub(super) fn millis_since(&self, moment: Duration) -> u64 {
        u64::try_from(self.engine.world.clock.elapsed().saturating_sub(moment).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Puts a text into a blob.
pub(crate) async fn store(
    blobs: &dyn BlobStore,
    session_id: crate::SessionId,
    text: &str,
) -> Result<BlobRef, StoreError> {
    let mut writer = blobs.writer(session_id);
    writer.write(text.as_bytes()).await?;
    let (blob, bytes) = writer.finish().await?;
    Ok(BlobRef {
        blob,
        bytes,
        head: prefix(text, EXCERPT_BYTES).to_owned(),
        tail: suffix(text, EXCERPT_BYTES).to_owned(),
    })
}

/// The bodies of an event that may be long.
fn bodies(event: &mut Event) -> Vec<&mut Body> {
    match event {
        Event::SessionCreated(created) => created.system_prompt.iter_mut().collect(),
        Event::TurnQueued(queued) => vec![&mut queued.prompt],
        Event::TurnStarted(started) => started.prompt.iter_mut().collect(),
        Event::AssistantMessage(answer) => answer
            .blocks
            .iter_mut()
            .filter_map(|block| match block {
                Block::Text { text } | Block::Reasoning { text, .. } => Some(text),
                Block::ToolCall(_) => None,
            })
            .collect(),
        Event::ToolFinished(finished) => vec![&mut finished.output],
        Event::PartialText(partial) => vec![&mut partial.text],
        _ => Vec::new(),
    }
}

/// Makes the first record of a session, with a long system prompt in a blob.
pub(crate) async fn first_record(engine: &super::Engine, mut record: Record) -> Result<Record, StoreError> {
    for body in bodies(&mut record.event) {
        if let Body::Inline(text) = body
            && text.len() * 6 > EVENT_BODY_BYTES_MAX
        {
            *body = Body::Blob(store(engine.blobs.as_ref(), record.session_id, text).await?);
        }
    }
    Ok(record)
}
