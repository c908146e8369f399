//! From an operation and its parameters to the answer's bytes: ask for its capability, decode, call one method, encode.
//!
//! Surfaces that speak JSON use it, so that equal requests get equal answers on each.

use std::collections::BTreeMap;

use serde::{
    Deserialize as _,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Value, value::RawValue};

use crate::{
    SessionError,
    clock::Timestamp,
    operation::Operation,
    service::*,
    session::message::{JSON_KEYS_MAX, RawJson, tokens},
};
use meerkat_words::{
    given::{GivenMessage, MESSAGES_MAX},
    reply::{Reply as _, encode},
};

/// Keys of a session's creation and of a turn, all objects together: twenty for each message of the longest history.
/// The tools of a caller fit both.
const LONG_KEYS_MAX: usize = 20 * MESSAGES_MAX;

/// Decodes parameters.
///
/// # Errors
/// `INVALID_REQUEST` with the place of a missing, unknown or mistyped parameter.
pub fn decode_params<T: DeserializeOwned>(params: &str) -> Result<T, SessionError> {
    decode_within(params, JSON_KEYS_MAX)
}

/// Decodes the parameters of a `create_session`, which may have a whole history among them.
///
/// # Errors
/// Those of [`decode_params`].
pub fn decode_create(params: &str) -> Result<CreateSession, SessionError> {
    decode_within(params, LONG_KEYS_MAX)
}

/// Decodes the parameters of a `start_turn`, which may have the tools of its caller among them.
///
/// # Errors
/// Those of [`decode_params`].
pub fn decode_turn(params: &str) -> Result<StartTurn, SessionError> {
    decode_within(params, LONG_KEYS_MAX)
}

/// Decodes what was said before a new session: its messages as a JSON array.
///
/// # Errors
/// Those of [`decode_params`].
pub fn decode_history(history: &str) -> Result<Vec<GivenMessage>, SessionError> {
    decode_within(history, LONG_KEYS_MAX)
}

fn decode_within<T: DeserializeOwned>(params: &str, keys_max: usize) -> Result<T, SessionError> {
    let text = if params.trim().is_empty() { "{}" } else { params };
    let compact = RawJson::bounded_to(text, keys_max)?;
    serde_json::from_str(&compact).or_else(|error| {
        // Text that is not JSON has an error of its own.
        let at = |error| SessionError::invalid("json", format!("not valid JSON: {error}"));
        serde_json::from_str::<IgnoredAny>(text).map_err(at)?;
        let decoded = serde_json::from_str(&digits(&compact));
        // Lines and columns count in the caller's text.
        let error = serde_json::from_str::<T>(text).err().unwrap_or(error);
        decoded.map_err(|_| misformed(&compact).unwrap_or_else(|| SessionError::invalid("params", error.to_string())))
    })
}

/// Finds a parameter whose text has not the form of its kind, so that its refusal can name it.
fn misformed(params: &str) -> Option<SessionError> {
    let params: BTreeMap<String, &RawValue> = serde_json::from_str(params).ok()?;
    params.into_iter().find_map(|(name, value)| {
        let value: Value = serde_json::from_str(Some(value.get()).filter(|text| text.starts_with('"'))?).ok()?;
        let why = match name.as_str() {
            "session_id" => return value.as_str()?.parse::<crate::SessionId>().err(),
            "since" | "until" | "created_after" | "updated_after" => Timestamp::deserialize(value).err(),
            _ => None,
        };
        why.map(|why| SessionError::invalid(name, why.to_string()))
    })
}

/// Writes whole numbers in digits: to JSON `2.0` and `2e0` are the 2 that they are to a caller, and no parameter has
/// a fraction. The arguments of calls that are given stay as a model wrote them.
fn digits(json: &str) -> String {
    let whole = |number: f64| number.fract() == 0.0 && (0.0..u64::MAX as f64).contains(&number);
    let in_digits = |token: &str| match token.parse::<f64>() {
        Ok(number) if whole(number) && token.parse::<u64>().is_err() => (number as u64).to_string(),
        _ => token.to_owned(),
    };
    let (mut former, mut depth, mut outside) = ("", 0_usize, None);
    tokens(json)
        .map(|token| {
            match token {
                "{" | "[" => {
                    outside = outside.or((former == r#""arguments""#).then_some(depth));
                    depth += 1;
                }
                "}" | "]" => depth = depth.saturating_sub(1),
                _ => {}
            }
            outside = outside.filter(|outside| depth > *outside);
            // A name is followed by a colon.
            former = if token == ":" { former } else { token };
            if outside.is_some() { token.to_owned() } else { in_digits(token) }
        })
        .collect()
}

/// Asks a service for one row of the table.
macro_rules! ask {
    ($service:ident.$method:ident(), $params:ident, $request:ident) => {{
        let $request {} = decode_params($params)?;
        $service.$method().await
    }};
    ($service:ident.$method:ident(session_id), $params:ident, $request:ident) => {
        $service.$method(&decode_params::<$request>($params)?.session_id).await
    };
    ($service:ident.$method:ident(request), $params:ident, $request:ident) => {
        $service.$method(decode_params::<$request>($params)?).await
    };
}

macro_rules! declare {
    ($(
        $docs:tt $operation:ident $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty, $request:ident;
    )*) => {
        /// Performs one operation and returns its answer as JSON.
        ///
        /// # Errors
        /// Those of the operation.
        pub async fn call(
            service: &dyn SessionService,
            operation: Operation,
            params: &str,
        ) -> Result<Vec<u8>, SessionError> {
            service.capabilities().admit(operation)?;
            match operation {
                Operation::CreateSession => encode(&create_session(service, params).await?),
                Operation::StartTurn => begin_turn(service, params).await?.answer().await,
                Operation::Resume => begin_resume(service, params).await?.answer().await,
                Operation::Capabilities => {
                    let Nothing {} = decode_params(params)?;
                    encode(&service.capabilities().view())
                }
                Operation::Errors => {
                    let ListErrors { code } = decode_params(params)?;
                    encode(&ErrorList::of(code))
                }
                $( Operation::$operation => ask!(service.$name($( $argument )*), params, $request)?.write(), )*
            }
        }
    };
}

crate::operations!(plain declare);

/// Makes the session of a `create_session`, for callers that read the answer; the request's span names the session.
/// Whoever asks in JSON may be anybody, and names a workspace as the configuration does.
///
/// # Errors
/// Those of the operation, and `INVALID_REQUEST` for a workspace that is a path.
pub async fn create_session(service: &dyn SessionService, params: &str) -> Result<SessionCreated, SessionError> {
    let request = decode_create(params)?;
    if request.workspace.as_deref().is_some_and(|folder| folder.contains('/')) {
        let message = "name a folder as tools.folders does; only a command on the server's machine may give a path";
        return Err(SessionError::invalid("workspace", message));
    }
    let created = service.create_session(request).await?;
    tracing::Span::current().record("session_id", tracing::field::display(created.session_id));
    Ok(created)
}

/// Begins the turn of a `start_turn`, for callers that follow it or stop it before its answer.
///
/// # Errors
/// Those of the operation.
pub async fn begin_turn(service: &dyn SessionService, params: &str) -> Result<TurnHandle, SessionError> {
    service.begin_turn(decode_turn(params)?).await
}

/// Begins the turn of a `resume`.
///
/// # Errors
/// Those of the operation.
pub async fn begin_resume(service: &dyn SessionService, params: &str) -> Result<TurnHandle, SessionError> {
    let (session_id, request) = decode_params::<ResumeParams>(params)?.request();
    service.begin_resume(&session_id, request).await
}

/// Begins the turn of a `start_turn` or a `resume` of a command on this machine, whose own `PATH` counts.
///
/// # Errors
/// Those of the operation.
pub async fn begin_for_command(
    service: &dyn SessionService,
    is_resume: bool,
    params: &str,
    search_path: Option<String>,
) -> Result<TurnHandle, SessionError> {
    if is_resume {
        let (session_id, request) = decode_params::<ResumeParams>(params)?.request();
        return service.begin_resume(&session_id, ResumeTurn { search_path, ..request }).await;
    }
    service.begin_turn(StartTurn { search_path, ..decode_turn(params)? }).await
}
