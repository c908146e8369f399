//! From a decision to a record: large bodies to blobs, then apply, then stage. Nothing else appends.

use std::time::Duration;

use crate::{
    SessionError,
    agent::actor::Actor,
    ids::{Seq, SessionId, TurnNumber},
    session::{
        View,
        event::{ChangedFile, Event, Record},
        message::{Attached, BlobRef, Block, Body, Message},
    },
    store::{BlobStore, StoreError, Ticket},
    tool::{prefix, suffix},
};

/// An event's bodies may have this many bytes of JSON together; more goes to blobs.
const EVENT_BODY_BYTES_MAX: usize = 128 * 1024;
/// A snapshot is saved once the events since the last one are this many, and this many times the messages it holds.
pub(crate) const SNAPSHOT_EVENTS_MIN: u64 = 512;
const SNAPSHOT_SHARE: u64 = 8;
/// Bytes of a blob's beginning, and of its end, that its event has at most.
const EXCERPT_BYTES_MAX: usize = 4 * 1024;

impl Actor {
    /// Records events of one turn, or of none, and does not wait until they are durable.
    pub(super) async fn record(&mut self, turn: Option<TurnNumber>, events: Vec<Event>) -> Result<(), StoreError> {
        let (_, ticket) = self.stage(turn, events).await?;
        let staged = &mut self.journalled.staged;
        staged.push_back(ticket);
        // A turn publishes little before its end, and would keep a view for each of its records.
        while let Some(durable) = staged.front_mut().and_then(Ticket::reached) {
            staged.pop_front();
            self.shared.forget_before(durable);
        }
        Ok(())
    }

    /// Records events as one batch behind deferred records; returns the last seq and its ticket.
    pub(super) async fn stage(
        &mut self,
        turn: Option<TurnNumber>,
        events: Vec<Event>,
    ) -> Result<(Seq, Ticket), StoreError> {
        let new = self.records(turn, events).await?;
        let mut batch = std::mem::take(&mut self.journalled.deferred);
        let applied = batch.len();
        batch.extend(new);
        let shared = self.shared.clone();
        let ticket = shared.show(|| {
            let view = self.apply(&batch[applied..])?;
            let ticket = self.ports.events.stage_listed(&self.lease, &batch, &view.summary)?;
            Ok((view, ticket))
        })?;
        Ok((self.session.last_seq, ticket))
    }

    /// Defers an event that the turn's end follows at once, so that one sync makes both durable. Until then only the
    /// actor knows it.
    pub(super) async fn record_with_next(&mut self, turn: TurnNumber, event: Event) -> Result<(), StoreError> {
        let new = self.records(Some(turn), vec![event]).await?;
        let shared = self.shared.clone();
        shared.show(|| Ok((self.apply(&new)?, ())))?;
        self.journalled.deferred.extend(new);
        Ok(())
    }

    /// Events as records that follow the session's last one.
    async fn records(&mut self, turn: Option<TurnNumber>, events: Vec<Event>) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::with_capacity(events.len());
        for mut event in events {
            externalise(self.ports.blobs.as_ref(), self.session.id, &mut event).await?;
            let seq = self.session.last_seq + 1 + records.len() as u64;
            let time = self.ports.world.clock.now();
            records.push(Record { session_id: self.session.id, seq, turn, time, event });
        }
        Ok(records)
    }

    fn apply(&mut self, records: &[Record]) -> Result<View, StoreError> {
        for record in records {
            self.session.apply(record).map_err(|error| StoreError::Failed(error.to_string()))?;
        }
        self.count_resident();
        Ok(View::of(&self.session))
    }

    /// Records, waits until it is durable, and publishes.
    pub(super) async fn record_durably(
        &mut self,
        turn: Option<TurnNumber>,
        events: Vec<Event>,
    ) -> Result<Seq, StoreError> {
        let (seq, ticket) = self.stage(turn, events).await?;
        ticket.durable().await?;
        self.publish().await;
        Ok(seq)
    }

    /// Saves a snapshot if many more events were recorded since the last one than it would hold.
    pub(super) async fn take_snapshot(&mut self) {
        let since = self.session.last_seq - self.journalled.snapshot_seq;
        let held = self.session.context.entries().len() as u64;
        if since >= (held * SNAPSHOT_SHARE).max(SNAPSHOT_EVENTS_MIN) {
            self.save_snapshot().await;
        }
    }

    /// Saves a snapshot, if the session outlives the process. One that fails is no loss: the journal has it all.
    pub(super) async fn save_snapshot(&mut self) {
        if !self.ports.is_stored() {
            return;
        }
        match self.ports.snapshots.save(&self.session).await {
            Ok(()) => self.journalled.snapshot_seq = self.session.last_seq,
            Err(error) => tracing::warn!(%error, "a snapshot could not be saved"),
        }
    }

    /// Updates the service's count of bytes held in memory.
    fn count_resident(&mut self) {
        let now = self.session.resident_bytes();
        self.ports.held.grow(now.saturating_sub(self.journalled.resident_bytes));
        self.ports.held.shrink(self.journalled.resident_bytes.saturating_sub(now));
        self.journalled.resident_bytes = now;
    }

    /// The failure of the store as those who wait see it.
    pub(super) fn store_failed(error: &StoreError) -> SessionError {
        tracing::error!(%error, "a session could not be written");
        error.clone().into()
    }

    /// Milliseconds since some moment of the monotonic clock.
    pub(super) fn millis_since(&self, moment: Duration) -> u64 {
        u64::try_from(self.ports.world.clock.elapsed().saturating_sub(moment).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Puts bodies into blobs until the event is short enough.
pub(crate) async fn externalise(
    blobs: &dyn BlobStore,
    session_id: SessionId,
    event: &mut Event,
) -> Result<(), StoreError> {
    let mut bodies = bodies(event);
    let share = EVENT_BODY_BYTES_MAX / bodies.len().max(1);
    // Escapes make JSON up to six times as long as its text; only a long body pays for counting them.
    if bodies.iter().all(|body| body.len() * 6 <= share as u64) {
        return Ok(());
    }
    let bytes = |body: &Body| serde_json::to_string(body).map_or(usize::MAX, |json| json.len());
    // Head and tail, each perhaps all escapes, stay well within the share.
    let excerpt_bytes = (share / 16).min(EXCERPT_BYTES_MAX);
    let mut sizes: Vec<usize> = bodies.iter().map(|body| bytes(body)).collect();
    while sizes.iter().sum::<usize>() > EVENT_BODY_BYTES_MAX {
        let inline = (0..sizes.len()).filter(|&at| matches!(*bodies[at], Body::Inline(_)));
        let Some(largest) = inline.max_by_key(|&at| sizes[at]) else { break };
        if let Body::Inline(text) = &*bodies[largest] {
            let mut writer = blobs.writer(session_id);
            writer.write(text.as_bytes()).await?;
            let (blob, bytes) = writer.finish().await?;
            let (head, tail) = (prefix(text, excerpt_bytes).to_owned(), suffix(text, excerpt_bytes).to_owned());
            *bodies[largest] = Body::Blob(BlobRef { blob, bytes, head, tail });
        }
        sizes[largest] = bytes(bodies[largest]);
    }
    Ok(())
}

/// The files that an event says are changed.
pub(crate) fn files(event: &Event) -> &[ChangedFile] {
    if let Event::ToolStarted(started) = event {
        return &started.files;
    }
    if let Event::ToolFinished(finished) = event { &finished.files } else { &[] }
}

/// The blobs of the images and files that an event names.
pub(crate) fn attached(event: &Event) -> impl Iterator<Item = &String> {
    let images = if let Event::ToolFinished(finished) = event { finished.images.as_slice() } else { &[] };
    let blocks = match event {
        Event::TurnQueued(queued) => queued.blocks.as_slice(),
        Event::TurnEdited(edited) => &edited.blocks,
        Event::TurnStarted(started) => &started.blocks,
        Event::TurnSteered(steered) => &steered.blocks,
        _ => &[],
    };
    images.iter().map(|image| &image.blob).chain(blocks.iter().map(Attached::blob))
}

/// The bodies of an event that may be long.
pub(crate) fn bodies(event: &mut Event) -> Vec<&mut Body> {
    match event {
        Event::SessionCreated(created) => created.system_prompt.iter_mut().collect(),
        Event::HistoryGiven(given) => match &mut given.message {
            Message::ToolResults { results } => results.iter_mut().map(|result| &mut result.content).collect(),
            message => message.texts_mut().collect(),
        },
        Event::TurnQueued(queued) => vec![&mut queued.prompt],
        Event::TurnEdited(edited) => edited.prompt.iter_mut().collect(),
        Event::TurnStarted(started) => started.prompt.iter_mut().collect(),
        Event::TurnSteered(steered) => vec![&mut steered.prompt],
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
        Event::ContextRebuilt(rebuilt) => rebuilt.summary.iter_mut().collect(),
        _ => Vec::new(),
    }
}
