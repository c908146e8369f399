//! One connection to the process that serves: jsonrpsee's client, and facts about the other side.
//!
//! Results and events are handed on to the letter. Nothing here waits for a reader: a subscription whose lines are not
//! taken is ended by the library, and its follower subscribes again from its cursor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use jsonrpsee::{
    async_client::{Client, ClientBuilder, PingConfig, RpcService},
    core::{
        ClientError,
        client::{ClientT as _, Subscription, SubscriptionClientT as _, TransportReceiverT, TransportSenderT},
        middleware::RpcServiceBuilder,
    },
};
use meerkat_service::{Capabilities, ErrorBody, SessionError, TurnNumber, service::ReadEvents};
use meerkat_surface_rpc::owner::Readiness;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use tokio::time::timeout;

use crate::wire::{Params, body_of};

/// The method that follows a session.
const SUBSCRIBE: &str = "session/subscribe";

/// The method that ends a subscription.
const UNSUBSCRIBE: &str = "session/unsubscribe";

/// Requests that wait to be written.
const REQUESTS_MAX: usize = 1024;

/// Bytes of a request besides its parameters. The other side cannot say which request was too long.
const ENVELOPE_BYTES: usize = 256;

/// Lines of a subscription that wait to be taken.
const LINES_MAX: usize = 256;

/// A turn waits for as long as it runs, and the library for no longer than this.
const ANSWER_LIMIT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How long to wait for the end of a process that refuses because it ends.
const ENDING_LIMIT: Duration = Duration::from_secs(10);

/// Facts about the other side, known when the connection is opened.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) capabilities: Capabilities,
    pub(crate) readiness: Readiness,
    /// It owns a data directory, and takes this process for a command of its own.
    pub(crate) is_owner: bool,
    /// Bytes of the parameters that it takes in one message; a longer one could close the connection for everybody.
    pub(crate) message_bytes: Arc<AtomicUsize>,
    /// True when it has said that it ends: what it has not answered by then, it has not begun.
    pub(crate) said_goodbye: Arc<AtomicBool>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It was refused.
    Refused(Box<ErrorBody>),
    /// The other side ended without beginning it.
    Unasked,
    /// The connection was closed before the answer came; nobody knows if the request was performed.
    Lost,
}

/// A connection to a process that serves.
#[derive(Debug)]
pub struct Connection {
    rpc: Arc<Client<RpcService>>,
    pub(crate) found: Found,
}

impl Connection {
    /// Begins to speak over a transport. With `ping`, a server that is silent counts as gone.
    pub(crate) fn start(
        sender: impl TransportSenderT + Send,
        receiver: impl TransportReceiverT + Send,
        ping: Option<PingConfig>,
        found: Found,
    ) -> Self {
        let builder = ClientBuilder::new()
            .request_timeout(ANSWER_LIMIT)
            .max_concurrent_requests(REQUESTS_MAX)
            .max_buffer_capacity_per_subscription(LINES_MAX);
        let builder = match ping {
            Some(ping) => builder.enable_ws_ping(ping),
            None => builder,
        };
        // The library's default would write each message once more for its log.
        let builder = builder.set_rpc_middleware(RpcServiceBuilder::new());
        Self { rpc: Arc::new(builder.build_with_tokio(sender, receiver)), found }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.rpc.is_connected()
    }

    /// Waits for the end of a connection whose other side ends; returns whether it came.
    pub(crate) async fn ends(&self) -> bool {
        timeout(ENDING_LIMIT, self.rpc.on_disconnect()).await.is_ok()
    }

    /// Sends a request, and waits for the answer's bytes.
    pub(crate) async fn request(&self, method: &str, params: Box<RawValue>) -> Result<Bytes, Failed> {
        let bytes = params.get().len();
        self.check(bytes + ENVELOPE_BYTES)?;
        let answer: Result<Box<RawValue>, _> = self.rpc.request(method, Params(params)).await;
        let answer = match answer.map_err(|error| self.failed(error)) {
            Ok(answer) => answer,
            Err(Failed::Lost) => {
                // The connection may have been closed because this was too long, or another request.
                self.check(bytes)?;
                return Err(Failed::Lost);
            }
            Err(failed) => return Err(failed),
        };
        Ok(String::from(Box::<str>::from(answer)).into())
    }

    /// Refuses a message that the other side does not take.
    fn check(&self, bytes: usize) -> Result<(), Failed> {
        let limit = self.found.message_bytes.load(Ordering::Relaxed);
        if bytes <= limit {
            return Ok(());
        }
        let error = SessionError::PayloadTooLarge { what: "message", bytes: bytes as u64, limit: limit as u64 };
        Err(Failed::Refused(Box::new(error.body())))
    }

    /// Follows a session from after the request's cursor, for a caller that waits for `turn` if there is one.
    pub(crate) async fn subscribe(
        &self,
        request: &ReadEvents,
        turn: Option<TurnNumber>,
    ) -> Result<Subscription<Box<RawValue>>, Failed> {
        let ReadEvents { session_id, since_seq, skip_damage, .. } = request;
        let mut params = json!({ "session_id": session_id, "since_seq": since_seq, "skip_damage": skip_damage });
        // Only an owner lets a command wait as if it ran the turn.
        if self.found.is_owner {
            params["turn"] = turn.into();
        }
        let params = to_raw_value(&params).map_err(|error| self.failed(error.into()))?;
        // In a task of its own: what a caller that leaves has begun is dropped when it is there, and only then the library
        // ends it on the other side.
        let rpc = self.rpc.clone();
        let begun = tokio::spawn(async move { rpc.subscribe(SUBSCRIBE, Params(params), UNSUBSCRIBE).await });
        begun.await.map_err(|_| Failed::Lost)?.map_err(|error| self.failed(error))
    }

    /// Why a request has no answer. Not before the connection is closed, if that is the reason.
    fn failed(&self, error: ClientError) -> Failed {
        match error {
            ClientError::Call(error) => Failed::Refused(body_of(&error)),
            error => {
                tracing::info!(%error, "the connection to the process that serves broke");
                let has_begun_nothing = self.found.said_goodbye.load(Ordering::Acquire);
                if has_begun_nothing { Failed::Unasked } else { Failed::Lost }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending};

    use jsonrpsee::core::client::ReceivedMessage;

    use super::*;

    /// Takes everything and says nothing.
    struct Silent;

    impl TransportSenderT for Silent {
        type Error = Infallible;

        async fn send(&mut self, _: String) -> Result<(), Infallible> {
            Ok(())
        }
    }

    impl TransportReceiverT for Silent {
        type Error = Infallible;

        async fn receive(&mut self) -> Result<ReceivedMessage, Infallible> {
            pending().await
        }
    }

    /// A request over a connection whose other machine had vanished once waited for ever.
    #[tokio::test]
    async fn a_server_that_becomes_silent_is_given_up() {
        let found = Found {
            capabilities: Capabilities::compiled(),
            readiness: Readiness::default(),
            is_owner: false,
            message_bytes: Arc::new(1024.into()),
            said_goodbye: Arc::default(),
        };
        let moment = Duration::from_millis(1);
        let ping = PingConfig::new().ping_interval(moment).inactive_limit(moment);
        let connection = Connection::start(Silent, Silent, Some(ping), found);
        let params = RawValue::from_string("{}".to_owned()).unwrap();
        assert!(matches!(connection.request("errors/list", params).await, Err(Failed::Lost)));
        assert!(!connection.is_open());
    }
}
