//! Where log lines and traces go: lines to standard error; traces to a collector, where the build has `otel` and the
//! environment names one. Nothing here knows what is logged, and nothing is ever written to standard output.

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
    config::{LogLevel, refused},
    error::CliError,
    output::{Output, Surroundings},
};

/// The variables that name a collector, for everything and for traces alone.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// The variable that asks for log lines of libraries as well: `MEERKAT_LOG=genai=debug,hyper=trace`. Their lines are
/// no messages to people, so without it there are none.
const LIBRARIES: &str = "MEERKAT_LOG";

/// Log lines and traces, for as long as it is held.
pub(crate) struct Telemetry {
    export: Option<Export>,
    _held: DefaultGuard,
}

impl Telemetry {
    /// Begins to log, and for a server to export what the environment asks for.
    ///
    /// # Errors
    /// `CONFIG_INVALID` if it asks for what cannot be done.
    pub(crate) fn begin(
        out: &Output,
        level: LogLevel,
        around: &Surroundings,
        is_server: bool,
    ) -> Result<Self, CliError> {
        let level = match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        let libraries = match around.variable(LIBRARIES).filter(|list| !list.is_empty()) {
            Some(list) => list
                .parse()
                .map_err(|_| refused(LIBRARIES, "this is no list like genai=debug,hyper=trace", "variable"))?,
            None => Targets::new(),
        };
        let wanted = libraries.with_target("meerkat", level);
        let logs = Dispatch::new(tracing_subscriber::registry().with(wanted.clone()).with(lines(out)));
        let is_wanted = ENDPOINTS.iter().any(|name| around.variable(name).is_some_and(|value| !value.is_empty()));
        let export = match is_server && is_wanted {
            true => Export::begin(around, &logs)?,
            false => None,
        };
        let all = export.as_ref().map_or(logs, |export| export.dispatch(lines(out).with_filter(wanted)));
        Ok(Self { export, _held: tracing::dispatcher::set_default(&all) })
    }

    /// Sends what has not been sent yet.
    pub(crate) fn end(self) {
        if let Some(export) = self.export {
            export.end();
        }
    }
}

/// Log lines on standard error.
fn lines<S: Subscriber + for<'span> LookupSpan<'span>>(out: &Output) -> impl Layer<S> + Send + Sync + use<S> {
    tracing_subscriber::fmt::layer().with_ansi(false).without_time().with_target(false).with_writer(out.clone())
}
