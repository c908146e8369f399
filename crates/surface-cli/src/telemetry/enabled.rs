//! Traces by OTLP over HTTP. The variables of the OpenTelemetry specification set the address, headers and sampling;
//! only meerkat's own spans are sent.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tokio::runtime::Runtime;
use tracing::{Dispatch, level_filters::LevelFilter};
use tracing_subscriber::{Layer, Registry, filter::Targets, layer::SubscriberExt as _};

use crate::output::Environment;

/// Longest wait for a collector's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the last traces at the end.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Exporter of traces to a collector.
pub(crate) struct Export {
    provider: SdkTracerProvider,
    logs: Dispatch,
}

impl Export {
    /// Begins to export. The exporter's own failures go to `logs`, so that they are not exported in turn.
    pub(crate) fn begin(env: &Environment, logs: &Dispatch) -> Result<Option<Self>, String> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Client::new(logs.clone())?)
            .build()
            .map_err(|error| error.to_string())?;
        let mut resource = Resource::builder();
        if env.variable("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("meerkat");
        }
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build());
        Ok(Some(Self { provider: provider.build(), logs: logs.clone() }))
    }

    /// Combines log lines and traces.
    pub(crate) fn dispatch(&self, lines: impl Layer<Registry> + Send + Sync) -> Dispatch {
        let traces = tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("meerkat"))
            .with_filter(Targets::new().with_target("meerkat", LevelFilter::INFO));
        Dispatch::new(tracing_subscriber::registry().with(lines).with(traces))
    }

    /// Sends the remaining traces.
    pub(crate) fn end(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(END_TIMEOUT) {
            tracing::dispatcher::with_default(
                &self.logs,
                || tracing::warn!(%error, "the last traces were not exported"),
            );
        }
    }
}

/// HTTP client of the models, on its own runtime: the exporter's thread has none, and the server's may have ended.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Runtime,
    logs: Dispatch,
}

impl Client {
    fn new(logs: Dispatch) -> Result<Self, String> {
        // A provider that is already installed stays.
        drop(rustls::crypto::ring::default_provider().install_default());
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(ANSWER_TIMEOUT)
            .build()
            .map_err(|error| format!("no HTTP client can be made: {error}"))?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("traces").enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        Ok(Self { http, runtime, logs })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let answer = self.runtime.spawn(async move { http.send_bytes(request).await }).await?;
        tracing::dispatcher::with_default(&self.logs, || match &answer {
            Ok(answer) if answer.status().is_success() => {}
            Ok(answer) => tracing::warn!(status = answer.status().as_u16(), "the collector refused the traces"),
            Err(error) => tracing::warn!(%error, "the collector of traces cannot be reached"),
        });
        answer
    }
}
