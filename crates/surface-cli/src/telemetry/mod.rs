//! Log lines to standard error; traces to a collector, if the build has `otel` and the environment names one. This
//! module knows no log message, and nothing is ever written to standard output.

#[cfg(not(feature = "otel"))]
mod disabled;
#[cfg(feature = "otel")]
mod enabled;

use tracing::{Dispatch, Subscriber, dispatcher::DefaultGuard, level_filters::LevelFilter};
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt as _, registry::LookupSpan};

#[cfg(not(feature = "otel"))]
use self::disabled::Export;
#[cfg(feature = "otel")]
use self::enabled::Export;
use crate::{
    config::LogLevel,
    error::{CliError, refused},
    output::{Environment, Output},
};

/// Variables that name a collector, for everything and for traces alone.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Variable that turns on log lines of libraries: `MEERKAT_LOG=genai=debug,hyper=trace`. They are not written for
/// users, so they are off by default.
const LIBRARIES: &str = "MEERKAT_LOG";

/// Logging and tracing, while this is held.
pub(crate) struct Telemetry {
    export: Option<Export>,
    _held: DefaultGuard,
}

impl Telemetry {
    /// Begins to log; a server also exports traces if the environment asks for it.
    ///
    /// # Errors
    /// `CONFIG_INVALID` if the request cannot be met.
    pub(crate) fn begin(out: &Output, level: LogLevel, env: &Environment, is_server: bool) -> Result<Self, CliError> {
        let level = match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        let libraries = match env.variable(LIBRARIES).filter(|list| !list.is_empty()) {
            Some(list) => list
                .parse()
                .map_err(|_| refused(LIBRARIES, "this is not a list like genai=debug,hyper=trace", "variable"))?,
            None => Targets::new(),
        };
        let wanted = libraries.with_target("meerkat", level);
        let logs = Dispatch::new(tracing_subscriber::registry().with(wanted.clone()).with(lines(out)));
        let is_wanted = ENDPOINTS.iter().any(|name| env.variable(name).is_some_and(|value| !value.is_empty()));
        let export = match is_server && is_wanted {
            true => Export::begin(env, &logs).map_err(|why| refused(ENDPOINTS[0], &why, "variable"))?,
            false => None,
        };
        let all = export.as_ref().map_or(logs, |export| export.dispatch(lines(out).with_filter(wanted)));
        Ok(Self { export, _held: tracing::dispatcher::set_default(&all) })
    }

    /// Sends the remaining traces.
    pub(crate) fn end(self) {
        if let Some(export) = self.export {
            export.end();
        }
    }
}

/// Makes the layer for log lines on standard error.
fn lines<S: Subscriber + for<'span> LookupSpan<'span>>(out: &Output) -> impl Layer<S> + Send + Sync + use<S> {
    tracing_subscriber::fmt::layer().with_ansi(false).without_time().with_target(false).with_writer(out.clone())
}
