//! Performs the requests of operations, on every transport.

use std::{
    future::ready,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::FutureExt as _;
use jsonrpsee::{
    server::ResponsePayload,
    types::{Extensions, Params},
};
use meerkat_service::{
    ErrorBody, Operation, SessionError, SessionService,
    operation::OperationEffect,
    wire::{Room, begin_for_command, call, decode_create, decode_params, encode, in_span, span_of, within},
};
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    RpcOptions,
    error::{Failure, too_many_bytes},
    table::{Method, find},
    wire,
};

/// State that all connections share.
pub(crate) struct Rpc {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) options: RpcOptions,
    /// Cancelled to end all connections.
    pub(crate) stop: CancellationToken,
    /// Subscriptions that have not sent their last message.
    pub(crate) following: TaskTracker,
}

/// A client's connection: a WebSocket or a pair of pipes. A request over HTTP has none.
pub(crate) struct Connection {
    /// Places for requests under way.
    pub(crate) requests: Arc<Semaphore>,
    /// Bytes of requests under way.
    bytes: Arc<Semaphore>,
    bytes_max: usize,
    /// Places for reads, whose answers may be large: a client that asks for many and takes none holds few.
    reads: Arc<Semaphore>,
    /// Places for subscriptions.
    pub(crate) subscriptions: Arc<Semaphore>,
    /// `PATH` of the command at the other end, if it sent one.
    search_path: Option<String>,
}

/// Reads of one connection at the same time. An attached `serve` sends those of all its clients over one.
const READS_MAX: usize = 4;
const READS_MAX_OF_COMMAND: usize = 64;

/// Bytes of a request whose bytes are not counted.
const SHORT_BYTES: usize = 1024;

/// Longest messages whose bytes the requests of a connection may have together.
const MESSAGES_HELD: usize = 4;

impl Connection {
    pub(crate) fn new(options: &RpcOptions, search_path: Option<String>) -> Arc<Self> {
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        let bytes_max = options.message_bytes.saturating_mul(MESSAGES_HELD);
        let reads = if options.is_for_commands { READS_MAX_OF_COMMAND } else { READS_MAX };
        Arc::new(Self {
            requests: places(options.concurrent_requests),
            bytes: places(bytes_max),
            bytes_max,
            reads: places(reads),
            subscriptions: places(options.subscriptions),
            search_path,
        })
    }

    /// Takes the bytes of a request, which is kept as long as its turn runs. A short one takes none, so that a turn can be
    /// interrupted.
    pub(crate) fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ErrorBody> {
        let bytes = if bytes <= SHORT_BYTES { 0 } else { bytes };
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.bytes.clone().try_acquire_many_owned(permits).map_err(|_| too_many_bytes(self.bytes_max))
    }

    /// Waits until a request may be performed, if it is a read that answers at once.
    pub(crate) async fn read(&self, method: &str, params: Option<&RawValue>) -> Option<OwnedSemaphorePermit> {
        let is_read = matches!(
            find(method),
            Some(Method::Operation(operation)) if operation.effect() == OperationEffect::Reads
        );
        let answers_at_once = is_read && !wire::waits(params.map_or("{}", RawValue::get));
        if answers_at_once { self.reads.clone().acquire_owned().await.ok() } else { None }
    }
}

/// The places of a request on a WebSocket. They are free again when the answer waits to be written.
#[derive(Clone)]
pub(crate) struct Places(pub(crate) Arc<Vec<OwnedSemaphorePermit>>);

/// The room that the answers to a request over HTTP take until they are written.
#[derive(Clone, Default)]
pub(crate) struct Rooms(Arc<Mutex<Vec<Room>>>);

impl Rooms {
    fn rooms(&self) -> MutexGuard<'_, Vec<Room>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.rooms().len()
    }

    /// Gives back all but so many: the answer that came last is not sent.
    pub(crate) fn give_back_after(&self, count: usize) {
        self.rooms().truncate(count);
    }
}

impl Rpc {
    pub(crate) fn new(service: Arc<dyn SessionService>, options: RpcOptions) -> Self {
        Self { service, options, stop: CancellationToken::new(), following: TaskTracker::new() }
    }

    /// Performs an operation. If this is dropped, reads are cancelled; everything else is performed.
    pub(crate) async fn answer(
        self: Arc<Self>,
        operation: Operation,
        params: &Params<'static>,
        extensions: &Extensions,
    ) -> ResponsePayload<'static, Box<RawValue>> {
        let search_path = extensions.get::<Arc<Connection>>().and_then(|connection| connection.search_path.clone());
        let params = params.as_str().unwrap_or_default().to_owned();
        let rooms = extensions.get().cloned();
        let performed = AssertUnwindSafe(self.perform(operation, params, search_path, rooms)).catch_unwind().await;
        let answer = match performed.unwrap_or_else(|_| Err(panicked(operation))).and_then(wire::raw) {
            Ok(answer) => ResponsePayload::success(answer),
            Err(error) => ResponsePayload::error(Failure::from(error)),
        };
        let Some(Places(places)) = extensions.get().cloned() else { return answer };
        let (answer, sent) = answer.notify_on_completion();
        tokio::spawn(async move {
            // If it was not sent, the connection is closed.
            sent.await.ok();
            drop(places);
        });
        answer
    }

    async fn perform(
        self: Arc<Self>,
        operation: Operation,
        params: String,
        search_path: Option<String>,
        rooms: Option<Rooms>,
    ) -> Result<Vec<u8>, SessionError> {
        // A command reads the answers of its turns without a store too.
        let is_for_all = operation == Operation::Blob && self.options.is_for_commands;
        let admitted = if is_for_all { Ok(()) } else { self.service.capabilities().admit(operation) };
        if let Err(refusal) = admitted.and_then(|()| wire::by_name(&params)) {
            return in_span("rpc", operation, &params, ready(Err(refusal))).await;
        }
        if operation.effect() == OperationEffect::Reads {
            let read = async {
                let Some(rooms) = rooms else { return self.call(operation, &params).await };
                let answer = self.options.answers.call(self.service.as_ref(), operation, &params).await?;
                let (answer, room) = answer.into_parts();
                rooms.rooms().extend(room);
                Ok(answer)
            };
            return in_span("rpc", operation, &params, read).await;
        }
        // In its own task, so it is performed even if the caller leaves.
        let span = span_of("rpc", operation, &params);
        let performed = tokio::spawn(async move {
            let work = async {
                let params = params;
                let begun = match operation {
                    Operation::StartTurn | Operation::Resume => {
                        let is_resume = operation == Operation::Resume;
                        begin_for_command(self.service.as_ref(), is_resume, &params, search_path).await?
                    }
                    _ => return self.call(operation, &params).await,
                };
                // While it waits for the end of the turn, the prompt is not kept.
                drop(params);
                begun.answer().await
            };
            within(span, work).await
        });
        performed.await.unwrap_or_else(|_| Err(panicked(operation)))
    }

    async fn call(&self, operation: Operation, params: &str) -> Result<Vec<u8>, SessionError> {
        match operation {
            Operation::Blob if self.options.is_for_commands => {
                encode(&self.service.answer_blob(decode_params(params)?).await?)
            }
            // A command may name the folder that its user stands in.
            Operation::CreateSession if self.options.is_for_commands => {
                encode(&self.service.create_session(decode_create(params)?).await?)
            }
            operation => call(self.service.as_ref(), operation, params).await,
        }
    }
}

fn panicked(operation: Operation) -> SessionError {
    tracing::error!(operation = operation.name(), "a request panicked");
    SessionError::Internal("the request panicked".to_owned())
}
