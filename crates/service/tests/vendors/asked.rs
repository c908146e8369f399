//! How a model is asked: the whole body of a request with each option, as its vendor documents it, and the options that
//! are refused by their names.

use meerkat_service::{
    ErrorCode,
    model::{
        ModelRequest, ModelResolver,
        vendors::{CompatibleEndpoint, Preset, VendorOptions},
    },
    options::ModelOptions,
};
use serde_json::{Value, json};

use crate::vendors::{ANTHROPIC, CHAT, COMPATIBLE, GEMINI, RESPONSES, Wire, models, replay::Reply, sent, user};

fn options(options: Value) -> ModelOptions {
    serde_json::from_value(options).unwrap()
}

/// Changes fields as RFC 7386 says: objects are merged, and `null` takes a field away.
fn merge(body: &mut Value, changes: Value) {
    let Value::Object(changes) = changes else { return *body = changes };
    for (name, change) in changes {
        match change {
            Value::Null => drop(body.as_object_mut().unwrap().remove(&name)),
            change => merge(&mut body[name], change),
        }
    }
}

/// Checks the bodies of a model: each is `body` with the changes that its options make.
async fn check(wire: Wire, body: Value, cases: impl IntoIterator<Item = (Value, Value)>) {
    for (asked, changes) in cases {
        let ask = |request: &mut ModelRequest| {
            request.system = Some("Be brief.".into());
            request.options = ModelOptions { max_output_tokens: Some(500), ..options(asked.clone()) };
        };
        let mut expected = body.clone();
        merge(&mut expected, changes);
        assert_eq!(sent(&wire, ask, vec![user("Hello.")]).await, expected, "{} {asked}", wire.model);
    }
}

fn anthropic_body(model: &str) -> Value {
    json!({
        "model": model,
        "stream": true,
        "max_tokens": 500,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "Hello.", "cache_control": {"type": "ephemeral"}},
        ]}],
    })
}

#[tokio::test]
async fn anthropic_is_asked_as_its_models_take_it() {
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let thinking = |effort: &str, max_tokens: u32| {
        let thinking = json!({"type": "adaptive", "display": "summarized"});
        json!({"thinking": thinking, "output_config": {"effort": effort}, "max_tokens": max_tokens})
    };
    let newest = [
        (json!({}), json!({})),
        (json!({"stop": ["END", "STOP"]}), json!({"stop_sequences": ["END", "STOP"]})),
        (json!({"stop": []}), json!({})),
        (json!({"effort": "low"}), thinking("low", 1_524)),
        (json!({"effort": "medium"}), thinking("medium", 8_692)),
        (json!({"effort": "high"}), thinking("high", 25_076)),
        (json!({"effort": "none"}), json!({"thinking": {"type": "between_tools"}})),
        (json!({"cache": "short"}), json!({})),
        (
            json!({"cache": "long"}),
            json!({
                "system": [{"type": "text", "text": "Be brief.", "cache_control": hour}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello.", "cache_control": hour}]}],
            }),
        ),
    ];
    check(ANTHROPIC, anthropic_body(ANTHROPIC.model), newest).await;

    for model in ["claude-opus-5", "claude-haiku-5-5"] {
        let cases = [
            (json!({"effort": "none"}), json!({"thinking": {"type": "disabled"}})),
            (json!({"effort": "high"}), thinking("high", 25_076)),
        ];
        check(Wire { model, ..ANTHROPIC }, anthropic_body(model), cases).await;
    }
    let model = "claude-fable-5-1";
    check(Wire { model, ..ANTHROPIC }, anthropic_body(model), [(json!({"effort": "low"}), thinking("low", 1_524))])
        .await;

    let model = "claude-opus-4-6";
    let cases = [
        (json!({"temperature": 0.5, "effort": "none"}), json!({"temperature": 0.5})),
        (json!({"top_p": 0.9}), json!({"top_p": 0.9})),
        (json!({"temperature": 1, "effort": "medium"}), {
            let mut changes = thinking("medium", 8_692);
            changes["temperature"] = json!(1.0);
            changes
        }),
    ];
    check(Wire { model, ..ANTHROPIC }, anthropic_body(model), cases).await;

    for model in ["claude-sonnet-4-5", "claude-opus-4-5-20251101"] {
        let budget =
            |tokens: u32| json!({"thinking": {"type": "enabled", "budget_tokens": tokens}, "max_tokens": tokens + 500});
        let cases = [
            (json!({"temperature": 0}), json!({"temperature": 0.0})),
            (json!({"effort": "none"}), json!({})),
            (json!({"effort": "low"}), budget(1_024)),
            (json!({"effort": "medium"}), budget(8_192)),
            (json!({"effort": "high"}), budget(24_576)),
        ];
        check(Wire { model, ..ANTHROPIC }, anthropic_body(model), cases).await;
    }
}

fn chat_body(model: &str) -> Value {
    json!({
        "model": model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 500,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}],
    })
}

/// Options that are sent by the same names to everything that has chat completions.
fn same() -> Vec<(Value, Value)> {
    let same = [
        json!({"temperature": 1.5}),
        json!({"top_p": 0.9}),
        json!({"stop": ["END"]}),
        json!({"seed": 4_294_967_295_u32}),
    ];
    same.into_iter().chain([json!({})]).map(|option| (option.clone(), option)).collect()
}

#[tokio::test]
async fn openai_is_asked_in_chat_completions() {
    let cases = [
        (json!({"effort": "none"}), json!({})),
        (json!({"cache": "short"}), json!({"prompt_cache_retention": "in_memory"})),
        (json!({"cache": "long"}), json!({"prompt_cache_retention": "24h"})),
    ];
    check(CHAT, chat_body(CHAT.model), same().into_iter().chain(cases)).await;
    let model = "gpt-4o";
    check(Wire { model, ..CHAT }, chat_body(model), [(json!({"cache": "short"}), json!({}))]).await;

    let model = "o3";
    let mut body = chat_body(model);
    merge(&mut body, json!({"max_tokens": null, "max_completion_tokens": 500}));
    let cases = [
        (json!({"seed": 7}), json!({"seed": 7})),
        (json!({"effort": "low"}), json!({"reasoning_effort": "low", "max_completion_tokens": 1_524})),
        (json!({"effort": "high"}), json!({"reasoning_effort": "high", "max_completion_tokens": 25_076})),
    ];
    check(Wire { model, ..CHAT }, body, cases).await;
}

fn responses_body(model: &str) -> Value {
    json!({
        "model": model,
        "stream": true,
        "store": false,
        "instructions": "Be brief.",
        "max_output_tokens": 500,
        "reasoning": null,
        "include": ["reasoning.encrypted_content"],
        "input": [{"role": "user", "content": "Hello."}],
    })
}

#[tokio::test]
async fn openai_is_asked_in_its_responses_format() {
    let cases = [
        (json!({}), json!({})),
        (json!({"effort": "none"}), json!({"reasoning": {"effort": "none"}})),
        (
            json!({"effort": "none", "temperature": 0.2, "top_p": 0.9}),
            json!({"reasoning": {"effort": "none"}, "temperature": 0.2, "top_p": 0.9}),
        ),
        (json!({"effort": "medium"}), json!({"reasoning": {"effort": "medium"}, "max_output_tokens": 8_692})),
        (json!({"cache": "short"}), json!({})),
    ];
    check(RESPONSES, responses_body(RESPONSES.model), cases).await;
    let model = "gpt-5.1";
    let cases = [
        (json!({"cache": "short"}), json!({"prompt_cache_retention": "in_memory"})),
        (json!({"cache": "long"}), json!({"prompt_cache_retention": "24h"})),
    ];
    check(Wire { model, ..RESPONSES }, responses_body(model), cases).await;
    let model = "gpt-5.5";
    let cases = [(json!({"cache": "long"}), json!({"prompt_cache_retention": "24h"}))];
    check(Wire { model, ..RESPONSES }, responses_body(model), cases).await;
}

#[tokio::test]
async fn gemini_is_asked_in_levels_or_in_tokens() {
    let body = json!({
        "generationConfig": {"maxOutputTokens": 500, "thinkingConfig": {"includeThoughts": true}},
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "Hello."}]}],
    });
    let config = |changes: Value| json!({"generationConfig": changes});
    let level = |level: &str, tokens: u32| {
        config(json!({"thinkingConfig": {"thinkingLevel": level}, "maxOutputTokens": tokens}))
    };
    let newest = [
        (json!({}), json!({})),
        (json!({"stop": ["a", "b", "c", "d"]}), config(json!({"stopSequences": ["a", "b", "c", "d"]}))),
        (json!({"seed": 2_147_483_647}), config(json!({"seed": 2_147_483_647}))),
        (json!({"effort": "low"}), level("LOW", 1_524)),
        (json!({"effort": "medium"}), level("MEDIUM", 8_692)),
        (json!({"effort": "high"}), level("HIGH", 25_076)),
    ];
    check(GEMINI, body.clone(), newest).await;
    let older = [
        (json!({"temperature": 2, "top_p": 0.9}), config(json!({"temperature": 2.0, "topP": 0.9}))),
        (
            json!({"effort": "medium"}),
            config(json!({"thinkingConfig": {"thinkingBudget": 8_192}, "maxOutputTokens": 8_692})),
        ),
        // Thoughts are not asked for where there are none: the vendor refuses that.
        (json!({"effort": "none"}), config(json!({"thinkingConfig": {"includeThoughts": null, "thinkingBudget": 0}}))),
    ];
    check(Wire { model: "gemini-2.5-flash", ..GEMINI }, body, older).await;
}

/// A server of this kind, with a window of 32,768 tokens.
fn kind(options: fn(String) -> VendorOptions) -> Wire {
    Wire { options, ..COMPATIBLE }
}

fn server(base_url: String, preset: Option<Preset>) -> VendorOptions {
    let (name, window_tokens) = ("local".to_owned(), Some(32_768));
    let compatible = vec![CompatibleEndpoint { name, base_url, preset, window_tokens, ..Default::default() }];
    VendorOptions { compatible, ..VendorOptions::default() }
}

#[tokio::test]
async fn servers_are_asked_in_the_words_of_openai() {
    let cases = [
        (json!({"effort": "none"}), json!({"reasoning_effort": "none"})),
        (json!({"effort": "low"}), json!({"reasoning_effort": "low", "max_tokens": 1_524})),
        // An eighth of the window: a server would refuse an answer beyond it.
        (json!({"effort": "high"}), json!({"reasoning_effort": "high", "max_tokens": 4_596})),
    ];
    let body = || chat_body("qwen/qwen-max");
    for wire in [COMPATIBLE, kind(|url| server(url, Some(Preset::Ollama))), kind(|url| server(url, Some(Preset::Vllm)))]
    {
        check(wire, body(), same().into_iter().chain(cases.clone())).await;
    }
    check(kind(|url| server(url, Some(Preset::LmStudio))), body(), same()).await;
}

/// A server behind OpenRouter ignores what it does not have, unless the request says that it must have it.
#[tokio::test]
async fn a_router_chooses_only_servers_that_have_every_option() {
    let must = json!({"require_parameters": true});
    let cases = [
        (json!({}), json!({})),
        (json!({"seed": 7}), json!({"seed": 7, "provider": must})),
        (
            json!({"effort": "none", "temperature": 0.5}),
            json!({"reasoning": {"effort": "none"}, "temperature": 0.5, "provider": must}),
        ),
        (json!({"effort": "low"}), json!({"reasoning": {"effort": "low"}, "provider": must, "max_tokens": 1_524})),
    ];
    check(kind(|url| server(url, Some(Preset::OpenRouter))), chat_body("qwen/qwen-max"), cases).await;
}

/// What is asked of every model, one option after the other.
const ASKED: [(&str, &str); 13] = [
    ("max_output_tokens", r#"{"max_output_tokens":1}"#),
    ("temperature", r#"{"temperature":0.5}"#),
    ("top_p", r#"{"top_p":0.9}"#),
    ("stop", r#"{"stop":["END"]}"#),
    ("no stop", r#"{"stop":[]}"#),
    ("seed", r#"{"seed":7}"#),
    ("large seed", r#"{"seed":2147483648}"#),
    ("none", r#"{"effort":"none"}"#),
    ("low", r#"{"effort":"low"}"#),
    ("medium", r#"{"effort":"medium"}"#),
    ("high", r#"{"effort":"high"}"#),
    ("short", r#"{"cache":"short"}"#),
    ("long", r#"{"cache":"long"}"#),
];

fn lacks(vendors: &VendorOptions, name: &str, asked: &str) -> Option<&'static str> {
    let resolved = models(vendors).unwrap().resolve(name).unwrap();
    resolved.client.lacks(&resolved.vendor_model, &serde_json::from_str(asked).unwrap())
}

fn keyed() -> VendorOptions {
    VendorOptions::from_env(|name| name.ends_with("_API_KEY").then(|| "k".to_owned()))
}

/// A name that is not known gets what holds for its vendor's newest models: nothing is left out in silence.
#[test]
fn every_model_says_which_options_it_does_not_have() {
    for (names, expected) in [
        // Anthropic has no seeds; since 4.7 no temperature and `top_p`; and its newest models always think.
        ("claude-sonnet-5-5 claude-opus-5 claude-sonnet-5 claude-haiku-5-5", "temperature top_p seed large-seed"),
        ("claude-opus-4-7 claude-opus-4-8", "temperature top_p seed large-seed"),
        ("claude-opus-5-5 claude-fable-5-1 claude-mythos-5 claude-next-9", "temperature top_p seed large-seed none"),
        ("anthropic/next", "temperature top_p seed large-seed none"),
        ("claude-opus-4-6 claude-sonnet-4-6 claude-haiku-4-5 claude-opus-4-20250514", "seed large-seed"),
        ("claude-3-7-sonnet-20250219", "seed large-seed"),
        ("claude-3-5-haiku-20241022 claude-2.1", "seed large-seed low medium high"),
        // Chat completions of models that do not think.
        ("gpt-3.5-turbo gpt-4-turbo", "low medium high short long"),
        ("gpt-4o chatgpt-4o-latest gpt-4.1-nano", "low medium high long"),
        ("gpt-4.1 gpt-4.1-2025-04-14", "low medium high"),
        ("openai/next", "none low medium high short long"),
        // The others.
        ("o1 o3 o3-mini o4-mini", "temperature top_p stop none long"),
        ("o1-mini", "temperature top_p stop seed large-seed none low medium high long"),
        ("gpt-5 gpt-5-2025-08-07 gpt-5-codex gpt-5.1-codex-mini", "temperature top_p stop seed large-seed none"),
        ("gpt-5-mini gpt-5-nano", "temperature top_p stop seed large-seed none long"),
        ("gpt-5-pro", "temperature top_p stop seed large-seed none low medium short long"),
        ("gpt-5.4-pro", "temperature top_p stop seed large-seed none low short long"),
        ("gpt-5.5-pro", "temperature top_p stop seed large-seed none low short"),
        ("gpt-5.1-chat-latest", "temperature top_p stop seed large-seed none low medium high long"),
        ("gpt-5.1 gpt-5.2 gpt-5.4", "temperature top_p stop seed large-seed"),
        ("gpt-5.5", "temperature top_p stop seed large-seed short"),
        ("gpt-5.6-terra gpt-5.4-mini gpt-6-luna gpt-6-sol", "temperature top_p stop seed large-seed long"),
        ("gpt-6-astra gpt-6.1-sol gpt-6.2-sol gpt-7 gpt-5.9", "temperature top_p stop seed large-seed none long"),
        // Gemini keeps what it has read as it likes.
        ("gemini-3.8-flash gemini-3.6-flash gemini-3.5-flash-lite", "temperature top_p large-seed none short long"),
        ("gemini-3.1-pro-preview gemini-3-flash-preview gemini-3.5-flash", "large-seed none short long"),
        ("gemini-2.5-pro", "large-seed none short long"),
        ("gemini-2.5-flash gemini-2.5-flash-lite", "large-seed short long"),
        ("gemini-2.0-flash", "large-seed low medium high short long"),
        ("gemini-4-flash gemini/next", "temperature top_p large-seed none low medium high short long"),
        // Servers.
        ("ollama/qwen3 vllm/qwen3 llama.cpp/qwen3 openrouter/qwen/qwen3", "short long"),
        ("lmstudio/qwen3", "none low medium high short long"),
    ] {
        for name in names.split(' ') {
            let refused = ASKED.iter().filter_map(|(label, asked)| Some((*label, lacks(&keyed(), name, asked)?)));
            let refused: Vec<_> = refused.collect();
            let labels: Vec<_> = refused.iter().map(|(label, _)| label.replace(' ', "-")).collect();
            assert_eq!(labels.join(" "), expected, "{name}");
            for (label, option) in refused {
                let of_label = match label {
                    "none" | "low" | "medium" | "high" => "effort",
                    "short" | "long" => "cache",
                    "large seed" => "seed",
                    label => label,
                };
                assert_eq!(option, of_label, "{name}");
            }
        }
    }
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    for (name, asked, expected) in [
        ("claude-sonnet-4-5", r#"{"temperature":1.1}"#, Some("temperature")),
        ("claude-sonnet-4-5", r#"{"temperature":1,"top_p":1}"#, Some("top_p")),
        ("claude-sonnet-4-5", r#"{"temperature":1,"effort":"low"}"#, None),
        ("claude-sonnet-4-5", r#"{"temperature":0.9,"effort":"low"}"#, Some("temperature")),
        ("claude-sonnet-4-5", r#"{"temperature":0.9,"effort":"none"}"#, None),
        ("claude-opus-4-6", r#"{"top_p":0.94,"effort":"high"}"#, Some("top_p")),
        ("claude-opus-4-6", r#"{"top_p":0.95,"effort":"high"}"#, None),
        ("claude-opus-5", r#"{"temperature":1,"effort":"none"}"#, Some("temperature")),
        ("gpt-5.4", r#"{"temperature":0,"top_p":0.9,"effort":"none"}"#, None),
        ("gpt-5.4", r#"{"temperature":0,"effort":"low"}"#, Some("temperature")),
        ("gpt-5.4", r#"{"top_p":1,"effort":"low"}"#, Some("top_p")),
        ("gpt-5", r#"{"temperature":0,"effort":"low"}"#, Some("temperature")),
        ("gpt-4.1", r#"{"temperature":2,"top_p":1,"seed":4294967295}"#, None),
    ] {
        assert_eq!(lacks(&keyed(), name, asked), expected, "{name} {asked}");
    }
}

/// A turn that waited may meet another configuration.
#[tokio::test]
async fn a_request_with_an_option_that_its_model_does_not_have_is_not_sent() {
    let call = ANTHROPIC.start(|_| Reply::stream(ANTHROPIC.text)).await;
    let mut request = call.request(vec![user("Hello.")]);
    request.options = options(json!({"stop": ["END"], "seed": 7}));
    let error = call.send(request.clone()).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::ModelRejected);
    assert_eq!(error.message, "anthropic: claude-sonnet-5-5 does not have the option seed");
    assert!(call.bodies.lock().unwrap().is_empty());
    request.options.seed = None;
    assert_eq!(call.send(request).await.unwrap().text, "Grüße, 世界 🦦");
}
