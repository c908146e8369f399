//! Client of a server's HTTP transport that adds the token, and refreshes it once if the server refuses it.

use std::{collections::HashMap, future::Future, sync::Arc};

use futures::stream::BoxStream;
use http::{HeaderName, HeaderValue};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage},
    transport::{
        auth::AuthError,
        streamable_http_client::{SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse},
    },
};
use sse_stream::Sse;

use super::{super::http::refused_probe, Account};

/// Failure of a request.
type Failure = StreamableHttpError<reqwest::Error>;

/// HTTP client of a server. Without an account it sends the configured headers alone.
#[derive(Clone)]
pub(in super::super) struct Authorized<C> {
    pub(in super::super) http: C,
    pub(in super::super) account: Option<Arc<Account>>,
}

impl<C> Authorized<C> {
    /// Sends a request. Only one that the server refused for its token, so that it has not run, is sent again, once.
    async fn send<T, F>(&self, send: impl Fn(Option<String>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let Some(account) = &self.account else { return send(None).await };
        let not_refreshed = |why| Failure::Auth(AuthError::TokenRefreshFailed(why));
        let token = account.token(None).await.map_err(not_refreshed)?;
        let mut sent = send(token.clone()).await;
        let refused = token.filter(|_| matches!(sent, Err(Failure::AuthRequired(_))));
        if refused.is_some()
            && let Some(fresh) = account.token(refused).await.map_err(not_refreshed)?
        {
            sent = send(Some(fresh)).await;
        }
        match &sent {
            Ok(_) => account.accept(),
            Err(Failure::AuthRequired(_)) => account.refuse(None),
            Err(Failure::InsufficientScope(error)) => account.refuse(error.get_required_scope()),
            Err(_) => {}
        }
        sent
    }
}

impl<C: StreamableHttpClient<Error = reqwest::Error> + Sync> StreamableHttpClient for Authorized<C> {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let posted = self.send(|token| {
            let (message, headers) = (message.clone(), headers.clone());
            self.http.post_message(uri.clone(), message, session.clone(), token, headers)
        });
        match &message {
            JsonRpcMessage::Request(asked) if matches!(asked.request, ClientRequest::DiscoverRequest(_)) => {
                refused_probe(asked.id.clone(), posted.await)
            }
            _ => posted.await,
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        self.send(|token| self.http.delete_session(uri.clone(), session.clone(), token, headers.clone())).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        self.send(|token| {
            let (session, last, headers) = (session.clone(), last.clone(), headers.clone());
            self.http.get_stream(uri.clone(), session, last, token, headers)
        })
        .await
    }
}
