//! Performs the requests of operations, on every transport.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt as _;
use jsonrpsee::{
    server::ResponsePayload,
    types::{Extensions, Params},
};
use meerkat_service::{
    Operation, SessionError, SessionService,
    operation::OperationEffect,
    wire::{begin_for_command, call, decode_params, encode, in_span, span_of, within},
};
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    RpcOptions,
    error::Failure,
    methods::{Method, find},
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

impl Connection {
    pub(crate) fn new(options: &RpcOptions, search_path: Option<String>) -> Arc<Self> {
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        let reads = if options.is_for_commands { READS_MAX_OF_COMMAND } else { READS_MAX };
        Arc::new(Self {
            requests: places(options.concurrent_requests),
            reads: places(reads),
            subscriptions: places(options.subscriptions),
            search_path,
        })
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
pub(crate) struct Places(pub(crate) Arc<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)>);

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
        let performed = AssertUnwindSafe(self.perform(operation, params, search_path)).catch_unwind().await;
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
    ) -> Result<Vec<u8>, SessionError> {
        wire::by_name(&params)?;
        if operation.effect() == OperationEffect::Reads {
            return in_span("rpc", operation, &params, self.call(operation, &params)).await;
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
            // A command reads the answers of its turns without a store too.
            Operation::Blob if self.options.is_for_commands => {
                encode(&self.service.answer_blob(decode_params(params)?).await?)
            }
            // A command may name the folder that its user stands in.
            Operation::CreateSession if self.options.is_for_commands => {
                encode(&self.service.create_session(decode_params(params)?).await?)
            }
            operation => call(self.service.as_ref(), operation, params).await,
        }
    }
}

fn panicked(operation: Operation) -> SessionError {
    tracing::error!(operation = operation.name(), "a request panicked");
    SessionError::Internal("the request panicked".to_owned())
}
