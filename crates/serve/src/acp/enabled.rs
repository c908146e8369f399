//! Build with `acp`.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response};
use hyper_util::rt::TokioIo;
use meerkat_service::{SessionError, SessionService};
use meerkat_surface_acp::{lines, serve};
use tokio_util::sync::CancellationToken;

use super::{
    Acp, AcpOptions,
    websocket::{handshake, messages},
};

/// True if the protocol is built in.
pub(crate) const IS_BUILT: bool = true;

impl From<AcpOptions> for meerkat_surface_acp::AcpOptions {
    fn from(options: AcpOptions) -> Self {
        let AcpOptions { message_bytes, workspaces, access, has_full, models, search_path } = options;
        Self { message_bytes, workspaces, access, has_full, models, search_path }
    }
}

/// Speaks the Agent Client Protocol until the input ends or `stop` is cancelled.
///
/// # Errors
/// If reading or writing fails.
pub async fn acp(
    service: Arc<dyn SessionService>,
    options: AcpOptions,
    stop: CancellationToken,
) -> Result<(), SessionError> {
    let lines = lines(tokio::io::stdin(), tokio::io::stdout(), options.message_bytes);
    let served = serve(service, options.into(), lines, stop);
    served.await.map_err(|error| SessionError::Internal(format!("standard input or output failed: {error}")))
}

/// Answers the handshake of a WebSocket, on which the protocol is spoken from then on.
pub(crate) fn upgrade<B>(acp: &Acp, mut request: Request<B>) -> Response<Body> {
    if acp.stop.is_cancelled() {
        return crate::listen::refusal(&SessionError::ShuttingDown.body());
    }
    let Some(answer) = handshake(&request) else {
        let message = "a WebSocket is opened by GET, with Sec-WebSocket-Key and Sec-WebSocket-Version 13";
        return crate::listen::refusal(&SessionError::invalid("Upgrade", message).body());
    };
    let upgraded = hyper::upgrade::on(&mut request);
    let (service, options, silence, stop) = (acp.service.clone(), acp.options.clone(), acp.silence, acp.stop.clone());
    acp.websockets.spawn(async move {
        let served = async {
            let connection = TokioIo::new(upgraded.await.map_err(std::io::Error::other)?);
            let messages = messages(connection, options.message_bytes, silence);
            serve(service, options.into(), messages, stop).await
        };
        if let Err(error) = served.await {
            tracing::debug!(%error, "a WebSocket ended early");
        }
    });
    answer.map(|()| Body::empty())
}
