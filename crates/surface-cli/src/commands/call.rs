//! `call`, and `/call` in a chat: any operation by its public name, with parameters of its request's schema.
//!
//! Only the form of a parameter is decided here. What values an operation takes, the service decides.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{Operation, Seq, SessionError, redact::redact_key_shapes, wire::request_schema};
use serde_json::{Map, Value, json};

use super::{ask, events, run::refuse_detached, show::show};
use crate::{
    app::{App, Streams},
    args::CallArgs,
    error::{CliError, exit_code},
    input::whole,
    output::Output,
    render::table,
    wire::{Request, read},
};

/// How to write parameters.
const PARAMETERS: &str = "\
Parameters: NAME=TEXT, NAME:=JSON, or an object of several in @FILE or - (standard input). A session_id may be `last` or \
the end of an id.
";

/// Name of what follows a session's events. It answers in lines, so it is no operation.
const SUBSCRIBE: &str = "session/subscribe";
const SUBSCRIBE_SUMMARY: &str = "Follows a session's events, also those in passing, up to one of a type.";

/// What is called.
pub(crate) enum Call {
    /// An operation.
    Operation(Request),
    /// The events of a session after a seq, up to the first of a type.
    Follow { session: String, since: Seq, until: Option<String> },
}

/// Least likeness of a name that is suggested for a mistyped one.
const LIKENESS_MIN: f64 = 0.7;

/// Lists the operations, or the parameters of one, if that is what is asked for: it needs no service.
pub(crate) fn help(out: &Output, args: &CallArgs) -> Option<Result<(), CliError>> {
    match &args.operation {
        None => Some(list(out)),
        Some(name) if args.help => Some(callee(name).map_err(Into::into).and_then(|callee| describe(out, &callee))),
        Some(_) => None,
    }
}

fn list(out: &Output) -> Result<(), CliError> {
    let operations = Operation::ALL.iter().map(|operation| [operation.public_name(), operation.summary()]);
    let rows = operations.chain([[SUBSCRIBE, SUBSCRIBE_SUMMARY]]);
    if out.is_json {
        let items = rows.map(|[operation, about]| json!({ "operation": operation, "about": about }));
        let document = json!({ "items": items.collect::<Vec<_>>() });
        return Ok(out.document(document.to_string().as_bytes())?);
    }
    let rows = rows.map(|row| row.map(str::to_owned));
    out.readable(&table(["OPERATION", "WHAT IT DOES"], rows, out.width))?;
    out.note("`meerkat call OPERATION --help` lists the parameters of one.");
    Ok(())
}

fn describe(out: &Output, callee: &Callee) -> Result<(), CliError> {
    let Callee { name, summary, schema, .. } = callee;
    if out.is_json {
        return Ok(out.document(schema.to_string().as_bytes())?);
    }
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let rows = members(&schema["properties"]).map(|(name, shape)| {
        let mut kinds = Vec::new();
        collect_kinds(shape, schema, &mut kinds);
        kinds.retain(|kind| kind != "null");
        let is_required = if required.contains(&json!(name)) { "required" } else { "" };
        let about = shape["description"].as_str().unwrap_or_default();
        [name.clone(), kinds.join(" or "), is_required.to_owned(), about.to_owned()]
    });
    let rows = table(["PARAMETER", "TYPE", "", "ABOUT"], rows, out.width);
    out.readable(&format!("{summary}\n\nUsage: meerkat call {name} PARAMETER…\n\n{rows}\n{PARAMETERS}"))?;
    Ok(())
}

/// `call`: performs an operation and prints its answer.
pub(crate) async fn call(app: &App, mut streams: Streams, args: &CallArgs) -> Result<u8, CliError> {
    let request = match request(app, args, None, || streams.take_stdin())? {
        Call::Operation(request) => request,
        Call::Follow { session, since, until } => return events::follow(app, &session, since, until, false).await,
    };
    let operation = request.0;
    if is_turn(operation) {
        refuse_detached(app, request.1["wait"] == false)?;
    }
    let answer = perform(app, request).await?;
    show(app, operation, &answer)?;
    if is_turn(operation) || operation == Operation::AnswerCall { end_of_turn(app, &answer) } else { Ok(0) }
}

/// Prints the error of a turn that failed; returns the exit code.
pub(crate) fn end_of_turn(app: &App, answer: &[u8]) -> Result<u8, CliError> {
    let answer: Value = read(answer)?;
    let Some(error) = answer.get("error").filter(|error| !error.is_null()) else { return Ok(0) };
    let error: ErrorBody = read(error.to_string().as_bytes())?;
    app.out.error(&error);
    Ok(exit_code(&error))
}

/// Returns true if a call lets a turn that waits go on.
pub(crate) fn lets_go_on(args: &CallArgs) -> bool {
    let operations = [Operation::DecideApproval, Operation::AnswerCall];
    operations.iter().any(|operation| args.operation.as_deref() == Some(operation.public_name()))
}

/// Returns true if an operation runs a turn.
pub(crate) fn is_turn(operation: Operation) -> bool {
    matches!(operation, Operation::StartTurn | Operation::Resume)
}

/// Performs a request. A folder that it names begins at the current one.
pub(crate) async fn perform(app: &App, mut request: Request) -> Result<Vec<u8>, SessionError> {
    if let (Operation::CreateSession, Some(folder)) = (request.0, request.1["workspace"].as_str()) {
        request.1["workspace"] = json!(app.workspace(Some(Path::new(folder)))?);
    }
    ask::perform(&app.service, request).await
}

/// Makes the request of an operation. If it needs a session and none is named, it is about `session`.
pub(crate) fn request(
    app: &App,
    args: &CallArgs,
    session: Option<&str>,
    stdin: impl FnMut() -> Box<dyn BufRead + Send>,
) -> Result<Call, SessionError> {
    let callee = callee(args.operation.as_deref().unwrap_or_default())?;
    callee.operation.map_or(Ok(()), |operation| ask::require(app, operation))?;
    // A prompt may have files.
    let values = &app.config.values;
    let limit = values.limits.prompt_bytes.saturating_mul(2).max(values.serve.max_body_bytes);
    let mut params = parameters(&callee, &args.parameters, (&app.dir, limit), stdin)?;
    let needs_session = callee.schema["required"].as_array().is_some_and(|names| names.contains(&json!("session_id")));
    if let Some(session) = session.filter(|_| needs_session) {
        params.entry("session_id").or_insert_with(|| json!(session));
    }
    let Some(operation) = callee.operation else {
        let session = params.get("session_id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let since = params.get("since_seq").unwrap_or(&json!(0)).as_u64();
        let since = since.ok_or_else(|| SessionError::invalid("since_seq", "it must be a whole number, 0 or more"))?;
        let until = params.get("until").and_then(Value::as_str).map(str::to_owned);
        return Ok(Call::Follow { session, since, until });
    };
    Ok(Call::Operation((operation, params.into())))
}

/// What can be called: an operation, or the following of events.
struct Callee {
    operation: Option<Operation>,
    name: &'static str,
    summary: &'static str,
    /// Schema of its parameters.
    schema: Value,
}

impl Callee {
    fn of(operation: Operation) -> Self {
        let (name, summary) = (operation.public_name(), operation.summary());
        Self { operation: Some(operation), name, summary, schema: request_schema(operation).to_value() }
    }

    fn subscribe() -> Self {
        let schema = json!({
            "type": "object",
            "required": ["session_id"],
            "properties": {
                "session_id": { "type": "string", "description": "The session." },
                "since_seq": { "type": "integer", "description": "Only events after this seq." },
                "until": { "type": "string", "description": "The type of the last event." },
            },
        });
        Self { operation: None, name: SUBSCRIBE, summary: SUBSCRIBE_SUMMARY, schema }
    }
}

/// Finds what has a public name.
fn callee(name: &str) -> Result<Callee, SessionError> {
    if name == SUBSCRIBE {
        return Ok(Callee::subscribe());
    }
    let mut all = Operation::ALL.iter().copied();
    let found = all.find(|operation| operation.public_name() == name).map(Callee::of);
    found.ok_or_else(|| {
        let name = redact_key_shapes(name);
        let names = Operation::ALL.iter().map(|operation| operation.public_name());
        let like = nearest(&name, names.chain([SUBSCRIBE]));
        let like = like.unwrap_or_else(|| "`meerkat call` lists them.".to_owned());
        let message = format!("There is no operation {name:?}; {like}");
        let body = ErrorBody::with_message(ErrorCode::UnknownOperation, message).detail("operation", &*name);
        SessionError::Failed(Box::new(body))
    })
}

/// Asks for the name that is most like a mistyped one.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let near = names.map(|known| (strsim::jaro_winkler(name, known), known));
    let near = near.filter(|(likeness, _)| *likeness > LIKENESS_MIN).max_by(|a, b| a.0.total_cmp(&b.0));
    near.map(|(_, known)| format!("did you mean `{known}`?"))
}

/// Reads parameters; the later of two with one name counts.
fn parameters(
    Callee { name: public, schema, .. }: &Callee,
    words: &[String],
    (dir, limit): (&Path, u64),
    mut stdin: impl FnMut() -> Box<dyn BufRead + Send>,
) -> Result<Map<String, Value>, SessionError> {
    let mut params = Map::new();
    for word in words {
        if word == "-" {
            params.extend(object(word, &whole(stdin(), limit)?)?);
        } else if let Some(file) = word.strip_prefix('@') {
            let unreadable = |error| SessionError::invalid(word, format!("the file cannot be read: {error}"));
            let file = File::open(dir.join(file)).map_err(unreadable)?;
            params.extend(object(word, &whole(Box::new(BufReader::new(file)), limit)?)?);
        } else {
            let form = "write a parameter as NAME=TEXT or NAME:=JSON";
            let (name, text) =
                word.split_once('=').ok_or_else(|| SessionError::invalid(redact_key_shapes(word), form))?;
            match name.strip_suffix(':') {
                Some(name) => params.insert(name.to_owned(), json(name, text)?),
                None => params.insert(name.to_owned(), typed(name, text, schema)?),
            };
        }
    }
    let known = |name: &str| !schema["properties"][name].is_null();
    if let Some(name) = params.keys().find(|name| !known(name)) {
        let names = members(&schema["properties"]).map(|(name, _)| name.as_str());
        let like = nearest(name, names).unwrap_or_else(|| format!("`meerkat call {public} --help` lists them"));
        return Err(SessionError::invalid(redact_key_shapes(name), format!("{public} has no such parameter; {like}")));
    }
    Ok(params)
}

fn members(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

fn json(name: &str, text: &str) -> Result<Value, SessionError> {
    serde_json::from_str(text).map_err(|error| SessionError::invalid(name, format!("not valid JSON: {error}")))
}

fn object(name: &str, text: &str) -> Result<Map<String, Value>, SessionError> {
    match json(name, text)? {
        Value::Object(members) => Ok(members),
        _ => Err(SessionError::invalid(name, "it must be a JSON object of parameters")),
    }
}

/// Reads a text as the type that the schema has for the parameter; what does not fit is left to the service to refuse.
fn typed(name: &str, text: &str, schema: &Value) -> Result<Value, SessionError> {
    let mut kinds = Vec::new();
    collect_kinds(&schema["properties"][name], schema, &mut kinds);
    let has = |kind: &str| kinds.iter().any(|found| found == kind);
    if has("string") || kinds.is_empty() {
        return Ok(text.into());
    }
    match kinds.iter().find(|kind| ["array", "object"].contains(&kind.as_str())) {
        Some(kind) => Err(SessionError::invalid(name, format!("it is an {kind}; write {name}:=JSON"))),
        None => Ok(serde_json::from_str(text).unwrap_or_else(|_| text.into())),
    }
}

/// Collects the JSON types that a schema allows.
fn collect_kinds(shape: &Value, schema: &Value, kinds: &mut Vec<String>) {
    let mut add = |kind: &str| {
        if !kinds.iter().any(|found| found == kind) {
            kinds.push(kind.to_owned());
        }
    };
    match &shape["type"] {
        Value::String(kind) => add(kind),
        several => several.as_array().into_iter().flatten().filter_map(Value::as_str).for_each(&mut add),
    }
    if let Some(name) = shape["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        collect_kinds(&schema["$defs"][name], schema, kinds);
    }
    for choices in ["anyOf", "oneOf"] {
        for choice in shape[choices].as_array().into_iter().flatten() {
            collect_kinds(choice, schema, kinds);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, io::Cursor};

    use super::*;

    fn read(operation: Operation, words: &[&str]) -> Result<Value, SessionError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let stdin = || Box::new(Cursor::new(br#"{"limit":7}"#)) as Box<dyn BufRead + Send>;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), r#"{"labels":{"a":"b"},"limit":1}"#).unwrap();
        parameters(&Callee::of(operation), &words, (dir.path(), 1000), stdin).map(Value::Object)
    }

    #[test]
    fn a_text_has_the_type_of_its_parameter() {
        for (operation, words, expected) in [
            (
                Operation::List,
                &["limit=50", "archived=true", "cursor=7"][..],
                json!({ "limit": 50, "archived": true, "cursor": "7" }),
            ),
            (Operation::Pin, &["session_id=last", "text=a=b :=c"], json!({ "session_id": "last", "text": "a=b :=c" })),
            (
                Operation::StartTurn,
                &["prompt=@say 5", "policy=queue", "wait=false"],
                json!({ "prompt": "@say 5", "policy": "queue", "wait": false }),
            ),
            (Operation::StartTurn, &["prompt=5", "allow:=[\"edit\"]"], json!({ "prompt": "5", "allow": ["edit"] })),
            (Operation::List, &["limit=many"], json!({ "limit": "many" })),
            (Operation::List, &["@file", "-"], json!({ "labels": { "a": "b" }, "limit": 7 })),
            (Operation::List, &["-", "limit:=2.0"], json!({ "limit": 2.0 })),
            (Operation::Diagnose, &[], json!({})),
        ] {
            assert_eq!(read(operation, words).unwrap(), expected, "{words:?}");
        }
    }

    #[test]
    fn what_is_mistyped_is_refused_with_what_is_near() {
        for (words, expected) in [
            (&["limt=5"][..], "limt: session/list has no such parameter; did you mean `limit`?"),
            (&["xyz=5"], "`meerkat call session/list --help` lists them"),
            (&["labels=a"], "labels: it is an object; write labels:=JSON"),
            (&["limit:=many"], "limit: not valid JSON"),
            (&["limit"], "limit: write a parameter as NAME=TEXT or NAME:=JSON"),
            (&["@none"], "@none: the file cannot be read"),
        ] {
            let error = read(Operation::List, words).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidRequest);
            assert!(error.to_string().contains(expected), "{words:?}: {error}");
        }
        let error = callee("session/lst").err().unwrap();
        assert_eq!(error.code(), ErrorCode::UnknownOperation);
        assert!(error.to_string().contains("did you mean `session/list`?"), "{error}");
        assert!(callee("frob").err().unwrap().to_string().contains("`meerkat call` lists them"));
    }

    /// Each operation can be named, and each of its parameters has a type that a person can write.
    #[test]
    fn every_operation_is_reached_by_one_name() {
        let names: BTreeSet<&str> = Operation::ALL.iter().map(|operation| operation.public_name()).collect();
        assert_eq!(names.len(), Operation::ALL.len());
        for operation in Operation::ALL.iter().copied() {
            assert_eq!(callee(operation.public_name()).unwrap().operation, Some(operation));
            let schema = request_schema(operation).to_value();
            for (name, shape) in members(&schema["properties"]) {
                let mut kinds = Vec::new();
                collect_kinds(shape, &schema, &mut kinds);
                assert!(!kinds.is_empty(), "{operation:?}: {name}: {shape}");
            }
        }
    }
}
