//! Requests in rounds: the server answers with questions, and the client sends the request again with its answers.
//!
//! A client gets only questions for which it has the capability. The state between rounds is one of a few known words; any
//! other is refused.

use rmcp::{
    ErrorData,
    model::{ClientCapabilities, InputRequiredResult, InputResponses},
};
use serde_json::{Map, Value, json};

use crate::fixtures::read;

/// The questions of a round.
struct Round {
    /// The state that comes back with the answers, if there is anything to remember.
    state: Option<&'static str>,
    /// Requests for the client, by key.
    asks: Value,
}

/// The client's part of a round.
pub(crate) struct Sent<'a> {
    pub(crate) responses: Option<&'a InputResponses>,
    pub(crate) state: Option<&'a str>,
    pub(crate) capabilities: Option<ClientCapabilities>,
}

/// End of a round.
pub(crate) enum Step {
    /// More questions.
    Ask(InputRequiredResult),
    /// The answers of the last round.
    Done(Map<String, Value>),
}

fn form(message: &str, key: &str, kind: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { key: { "type": kind } }, "required": [key] });
    json!({ "method": "elicitation/create", "params": { "message": message, "requestedSchema": schema } })
}

fn sample(text: &str, tokens_max: u32) -> Value {
    let message = json!({ "role": "user", "content": { "type": "text", "text": text } });
    json!({ "method": "sampling/createMessage", "params": { "messages": [message], "maxTokens": tokens_max } })
}

/// The rounds of a tool or prompt, in order.
fn rounds(name: &str) -> Option<Vec<Round>> {
    let roots = || json!({ "method": "roots/list", "params": {} });
    let name_form = || form("What is your name?", "name", "string");
    let confirm = || json!({ "confirm": form("Please confirm", "ok", "boolean") });
    let one = |asks: Value| vec![Round { state: None, asks }];
    let with_state = |state: &'static str, asks: Value| Round { state: Some(state), asks };
    Some(match name {
        "test_input_required_result_elicitation" => one(json!({ "user_name": name_form() })),
        "test_input_required_result_sampling" => {
            one(json!({ "capital_question": sample("What is the capital of France?", 100) }))
        }
        "test_input_required_result_list_roots" => one(json!({ "client_roots": roots() })),
        "test_input_required_result_request_state" => vec![with_state("confirming", confirm())],
        "test_input_required_result_tampered_state" => vec![with_state("guarded", confirm())],
        "test_input_required_result_multiple_inputs" => vec![with_state(
            "several",
            json!({ "user_name": name_form(), "greeting": sample("Generate a greeting", 50), "client_roots": roots() }),
        )],
        "test_input_required_result_multi_round" => vec![
            with_state("first", json!({ "step1": form("Step 1: What is your name?", "name", "string") })),
            with_state("second", json!({ "step2": form("Step 2: What is your favorite color?", "color", "string") })),
        ],
        "test_input_required_result_prompt" => {
            one(json!({ "user_context": form("What context should the prompt use?", "context", "string") }))
        }
        "test_input_required_result_capabilities" => {
            one(json!({ "user_name": name_form(), "greeting": sample("Generate a greeting", 50) }))
        }
        "test_streaming_elicitation" => one(json!({ "user_name": name_form() })),
        "test_missing_capability" => one(json!({ "greeting": sample("Generate a greeting", 50) })),
        _ => return None,
    })
}

/// The capability that a request to the client needs.
fn capability(ask: &Value) -> &str {
    ask["method"].as_str().and_then(|method| method.split('/').next()).unwrap_or_default()
}

/// The next step in the rounds of this name, if it has rounds.
pub(crate) fn step(name: &str, sent: Sent<'_>) -> Option<Result<Step, ErrorData>> {
    rounds(name).map(|rounds| go(rounds, sent))
}

fn go(mut rounds: Vec<Round>, sent: Sent<'_>) -> Result<Step, ErrorData> {
    let at = match sent.state {
        None => 0,
        Some(state) => rounds
            .iter()
            .position(|round| round.state == Some(state))
            .ok_or_else(|| ErrorData::invalid_params("this state is none that was given", None))?,
    };
    let mut remaining = rounds.drain(at..);
    while let Some(round) = remaining.next() {
        let asks = allowed(&round, &sent)?;
        let answers = asks.keys().map(|key| {
            let answer = sent.responses?.get(key).filter(|answer| answer.is_object())?;
            Some((key.clone(), answer.clone()))
        });
        let is_given_back = round.state.map(str::to_owned) == sent.state.map(str::to_owned);
        match answers.collect::<Option<Map<String, Value>>>().filter(|_| is_given_back) {
            Some(answers) if remaining.len() == 0 => return Ok(Step::Done(answers)),
            Some(_) => {}
            None => {
                return Ok(Step::Ask(InputRequiredResult::new(
                    Some(read(json!(asks))?),
                    round.state.map(str::to_owned),
                )));
            }
        }
    }
    Err(ErrorData::internal_error("there is no such round", None))
}

/// The questions of a round for which this client has the capability.
fn allowed(round: &Round, sent: &Sent<'_>) -> Result<Map<String, Value>, ErrorData> {
    let declared = json!(sent.capabilities);
    let asks = round.asks.as_object().cloned().unwrap_or_default();
    let wanted: Map<String, Value> = asks.values().map(|ask| (capability(ask).to_owned(), json!({}))).collect();
    let allowed: Map<String, Value> =
        asks.into_iter().filter(|(_, ask)| declared.get(capability(ask)).is_some()).collect();
    match allowed.is_empty() {
        true => Err(ErrorData::missing_required_client_capability(read(json!(wanted))?)),
        false => Ok(allowed),
    }
}
