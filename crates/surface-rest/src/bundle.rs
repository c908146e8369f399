//! Bundles: an export is sent page by page as one body, an import is handed on piece by piece.
//!
//! No bundle is ever held whole or decoded here.

use std::sync::Arc;

use axum::{body::Body, http::HeaderValue, response::Response};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use meerkat_service::{
    SessionError, SessionService,
    service::{ExportSession, ImportBundle},
    wire::{decode_params, encode},
};
use tokio_util::sync::CancellationToken;

use crate::{
    App,
    wire::{self, Upload},
};

/// Bytes of a piece of an import.
const PIECE_BYTES: usize = 1024 * 1024;

/// Sends a session's bundle. A refusal comes before anything is sent. A bundle that breaks off later has no end, so that it
/// is not mistaken for a whole one.
pub(crate) async fn export(app: &Arc<App>, params: &str) -> Result<Response, SessionError> {
    let request: ExportSession = decode_params(params)?;
    let (service, session_id) = (app.service.clone(), request.session_id);
    let (first, next) = page(service.as_ref(), request).await?;
    let rest = stream::try_unfold((service, next), |(service, next)| async move {
        let Some(request) = next else { return Ok(None) };
        let (bytes, next) = page(service.as_ref(), request).await?;
        Ok::<_, SessionError>(Some((bytes, (service, next))))
    });
    let rest = rest.inspect_err(move |error| tracing::error!(%session_id, %error, "a bundle broke off"));
    let pages = stream::once(std::future::ready(Ok(first))).chain(rest);
    Ok(wire::typed(HeaderValue::from_static("application/x-tar"), Body::from_stream(pages)))
}

/// A page's bytes, and the request for the next one.
async fn page(
    service: &dyn SessionService,
    mut request: ExportSession,
) -> Result<(Bytes, Option<ExportSession>), SessionError> {
    let page = service.export_session(request.clone()).await?;
    let unreadable = |_| SessionError::Internal("a page of a bundle is not base64".to_owned());
    let bytes = BASE64_STANDARD.decode(page.data).map_err(unreadable)?;
    request.cursor = page.next_cursor;
    Ok((bytes.into(), request.cursor.is_some().then_some(request)))
}

/// Imports a bundle.
pub(crate) async fn import(app: &Arc<App>, params: &str, body: Body) -> Result<Response, SessionError> {
    let Upload { new_ids, keep_scope } = decode_params(params)?;
    let mut body = body.into_data_stream();
    // An upload cannot be continued after its request.
    let ended = CancellationToken::new();
    let _ends = ended.clone().drop_guard();
    let (mut upload, mut offset, mut piece) = (None, 0, BytesMut::new());
    loop {
        let data = body.try_next().await.map_err(|_| wire::broken_off())?;
        let is_last = data.is_none();
        piece.extend_from_slice(&data.unwrap_or_default());
        let bytes = offset + piece.len() as u64;
        wire::within(bytes, app.options.bundle_bytes_max)?;
        if !is_last && piece.len() < PIECE_BYTES {
            continue;
        }
        let data = BASE64_STANDARD.encode(&piece);
        let request = ImportBundle { upload, offset, data, is_last, new_ids, keep_scope };
        let imported = app.service.import_until(request, ended.clone()).await?;
        if is_last {
            return encode(&imported).map(wire::json);
        }
        (upload, offset) = (imported.upload, bytes);
        piece.clear();
    }
}
