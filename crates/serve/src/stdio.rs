//! JSON-RPC, the Model Context Protocol and the Agent Client Protocol on standard input and output, for the client that
//! started the process, which needs no token.

use std::{io, sync::Arc};

use meerkat_service::SessionService;
use meerkat_surface_rpc::RpcOptions;
use tokio_util::sync::CancellationToken;

pub use crate::acp::acp;
pub use meerkat_surface_mcp::serve_stdio as mcp;

/// Speaks JSON-RPC until the input ends or `stop` is cancelled.
///
/// # Errors
/// If reading or writing fails.
pub async fn rpc(service: Arc<dyn SessionService>, message_bytes: usize, stop: CancellationToken) -> io::Result<()> {
    let options = RpcOptions { message_bytes, ..RpcOptions::default() };
    let service = meerkat_surface_rpc::service(service, options);
    let serving = service.serve_stdio(tokio::io::stdin(), tokio::io::stdout());
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return served,
        () = stop.cancelled() => {}
    }
    service.stop().await;
    serving.await
}
