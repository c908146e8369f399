//! The vendors' bills, in the fields that their documentation gives them, and the one way in which they are counted:
//! the input includes what was read from a cache and what was written to one, the output includes the reasoning.

use meerkat_service::{
    clock::Timestamp,
    cost::{Cost, Price},
    model::{ModelResolver as _, Usage, vendors::VendorOptions},
    options::CacheTime,
};
use serde_json::json;

use crate::vendors::{ANTHROPIC, CHAT, COMPATIBLE, GEMINI, RESPONSES, Wire, models, replay::Reply};

/// What every bill below is about, unless it says otherwise.
const WHOLE: Usage = Usage {
    input_tokens: 1_500,
    output_tokens: 420,
    cached_tokens: 1_000,
    cache_write_tokens: 300,
    reasoning_tokens: 256,
};

/// Plays the vendor's text with other bills, each in place of one that the text has.
async fn billed(wire: &'static Wire, bills: &[(&str, &str)]) -> Usage {
    let mut story = wire.on_wire(wire.text);
    for (from, to) in bills {
        assert_eq!(story.matches(from).count(), 1, "{}: {from}", wire.model);
        story = story.replace(from, to);
    }
    wire.hear(move || Reply::stream(story.clone())).await.unwrap().answer.usage
}

/// Bill of the stories of chat completions.
const CHAT_BILL: &str = r#"{"prompt_tokens":135,"completion_tokens":42,"total_tokens":177,"prompt_tokens_details":{"cached_tokens":100,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}"#;

/// Its input is what no cache had: what was read and what was written come beside it. The end repeats the bill, and only
/// there is the reasoning.
#[tokio::test]
async fn anthropic_bills_its_cache_beside_the_input_and_its_thinking_at_the_end() {
    let begin =
        r#"{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}"#;
    let whole = [
        (
            begin,
            r#"{"input_tokens":200,"cache_creation_input_tokens":300,"cache_read_input_tokens":1000,"cache_creation":{"ephemeral_5m_input_tokens":300,"ephemeral_1h_input_tokens":0},"output_tokens":3,"service_tier":"standard"}"#,
        ),
        (
            r#"{"output_tokens":42}"#,
            r#"{"input_tokens":200,"cache_creation_input_tokens":300,"cache_read_input_tokens":1000,"output_tokens":420,"output_tokens_details":{"thinking_tokens":256}}"#,
        ),
    ];
    assert_eq!(billed(&ANTHROPIC, &whole).await, WHOLE);

    // Older models' end has the output alone.
    let short = [whole[0], (r#"{"output_tokens":42}"#, r#"{"output_tokens":420}"#)];
    assert_eq!(billed(&ANTHROPIC, &short).await, Usage { reasoning_tokens: 0, ..WHOLE });
}

#[tokio::test]
async fn openai_bills_parts_of_the_input_and_of_the_output() {
    let chat = r#"{"prompt_tokens":1500,"completion_tokens":420,"total_tokens":1920,"prompt_tokens_details":{"cached_tokens":1000,"cache_write_tokens":300,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":256,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}"#;
    assert_eq!(billed(&CHAT, &[(CHAT_BILL, chat)]).await, WHOLE);

    let begun = r#"{"input_tokens":135,"input_tokens_details":{"cached_tokens":100},"output_tokens":42,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":177}"#;
    let responses = r#"{"input_tokens":1500,"input_tokens_details":{"cached_tokens":1000,"cache_write_tokens":300},"output_tokens":420,"output_tokens_details":{"reasoning_tokens":256},"total_tokens":1920}"#;
    assert_eq!(billed(&RESPONSES, &[(begun, responses)]).await, WHOLE);
}

/// Its thoughts come beside the candidates, and a tool's input beside the prompt. It bills no writing to its cache.
#[tokio::test]
async fn gemini_bills_its_thoughts_beside_the_answer() {
    let begun = r#"{"promptTokenCount":135,"cachedContentTokenCount":100,"candidatesTokenCount":12,"thoughtsTokenCount":30,"totalTokenCount":177}"#;
    let whole = r#"{"promptTokenCount":1400,"cachedContentTokenCount":1000,"toolUsePromptTokenCount":100,"candidatesTokenCount":164,"thoughtsTokenCount":256,"totalTokenCount":1920}"#;
    let expected = Usage { cache_write_tokens: 0, ..WHOLE };
    assert_eq!(billed(&GEMINI, &[(begun, whole)]).await, expected);

    let thoughts_alone = r#"{"promptTokenCount":1500,"thoughtsTokenCount":256,"totalTokenCount":1756}"#;
    let expected = Usage { input_tokens: 1_500, output_tokens: 256, reasoning_tokens: 256, ..Usage::default() };
    assert_eq!(billed(&GEMINI, &[(begun, thoughts_alone)]).await, expected);
}

/// Compatible servers differ: OpenRouter bills as OpenAI does, xAI has the reasoning beside the answer and in the total,
/// Ollama and llama.cpp count no parts, and some send a bill that names nothing.
#[tokio::test]
async fn a_compatible_server_is_counted_by_its_own_sums() {
    let openrouter = r#"{"prompt_tokens":1500,"completion_tokens":420,"total_tokens":1920,"cost":0.01,"prompt_tokens_details":{"cached_tokens":1000,"cache_write_tokens":300},"completion_tokens_details":{"reasoning_tokens":256}}"#;
    assert_eq!(billed(&COMPATIBLE, &[(CHAT_BILL, openrouter)]).await, WHOLE);

    let beside = r#"{"prompt_tokens":1500,"completion_tokens":164,"total_tokens":1920,"prompt_tokens_details":{"cached_tokens":1000,"text_tokens":1500},"completion_tokens_details":{"reasoning_tokens":256}}"#;
    let expected = Usage { cache_write_tokens: 0, ..WHOLE };
    assert_eq!(billed(&COMPATIBLE, &[(CHAT_BILL, beside)]).await, expected);

    let plain = r#"{"prompt_tokens":1500,"completion_tokens":420,"total_tokens":1920}"#;
    let expected = Usage { input_tokens: 1_500, output_tokens: 420, ..Usage::default() };
    assert_eq!(billed(&COMPATIBLE, &[(CHAT_BILL, plain)]).await, expected);

    assert_eq!(billed(&COMPATIBLE, &[(CHAT_BILL, "{}")]).await, Usage::default());
}

/// A part may be more than the whole, or below zero: a bill that cannot be is counted as it is, and breaks nothing.
#[tokio::test]
async fn a_bill_that_cannot_be_breaks_nothing() {
    let odd = r#"{"prompt_tokens":-5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":9},"completion_tokens_details":{"reasoning_tokens":7}}"#;
    let expected = Usage { output_tokens: 1, cached_tokens: 9, reasoning_tokens: 7, ..Usage::default() };
    assert_eq!(billed(&CHAT, &[(CHAT_BILL, odd)]).await, expected);
}

/// What a bill costs by the built-in prices, or by one that is configured, in millionths of a dollar.
fn micros(wire: &Wire, model: &str, price: Option<Price>, usage: Usage, cache: CacheTime, day: &str) -> Option<u64> {
    let url = "http://localhost:1/v1/".to_owned();
    let options = VendorOptions { prices: price.into_iter().collect(), ..(wire.options)(url) };
    let resolved = models(&options).unwrap().resolve(model).unwrap();
    let at: Timestamp = serde_json::from_value(json!(format!("{day}T12:00:00.000Z"))).unwrap();
    resolved.cost(usage, Some(cache), at).map(Cost::micros)
}

/// Prices are dollars for a million tokens, so that a token costs as many millionths of a dollar. The sums are worked out
/// by hand from config/prices.toml and the bills above.
#[tokio::test]
async fn each_vendors_bill_costs_what_its_price_list_says() {
    use CacheTime::{Long, Short};

    let begin =
        r#"{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}"#;
    let end = r#"{"output_tokens":42}"#;
    let anthropic = [
        (
            begin,
            r#"{"input_tokens":200,"cache_creation_input_tokens":300,"cache_read_input_tokens":1000,"output_tokens":3}"#,
        ),
        (end, r#"{"output_tokens":420,"output_tokens_details":{"thinking_tokens":256}}"#),
    ];
    let anthropic = billed(&ANTHROPIC, &anthropic).await;
    let begun = r#"{"input_tokens":135,"input_tokens_details":{"cached_tokens":100},"output_tokens":42,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":177}"#;
    let whole = r#"{"input_tokens":1500,"input_tokens_details":{"cached_tokens":1000,"cache_write_tokens":300},"output_tokens":420,"output_tokens_details":{"reasoning_tokens":256},"total_tokens":1920}"#;
    let openai = billed(&RESPONSES, &[(begun, whole)]).await;
    let begun = r#"{"promptTokenCount":135,"cachedContentTokenCount":100,"candidatesTokenCount":12,"thoughtsTokenCount":30,"totalTokenCount":177}"#;
    let thinking =
        r#"{"promptTokenCount":1500,"candidatesTokenCount":164,"thoughtsTokenCount":256,"totalTokenCount":1920}"#;
    let gemini = billed(&GEMINI, &[(begun, thinking)]).await;
    let cached = r#"{"promptTokenCount":1500,"cachedContentTokenCount":1000,"candidatesTokenCount":164,"thoughtsTokenCount":256,"totalTokenCount":1920}"#;
    let gemini_cached = billed(&GEMINI, &[(begun, cached)]).await;
    let plain = r#"{"prompt_tokens":1500,"completion_tokens":420,"total_tokens":1920}"#;
    let compatible = billed(&COMPATIBLE, &[(CHAT_BILL, plain)]).await;

    let long = Usage {
        input_tokens: 300_000,
        cached_tokens: 200_000,
        cache_write_tokens: 50_000,
        output_tokens: 1_000,
        reasoning_tokens: 0,
    };

    let (sonnet, haiku) = ("anthropic/claude-sonnet-5-5", "anthropic/claude-haiku-5-5");
    for (wire, model, usage, cache, day, expected) in [
        // 200 × 2 + 1000 × 0.20 + 300 × 2.50 + 420 × 10 = 400 + 200 + 750 + 4200
        (&ANTHROPIC, sonnet, anthropic, Short, "2026-10-06", Some(5_550)),
        // Cached input costs half of that since: 400 + 100 + 750 + 4200.
        (&ANTHROPIC, sonnet, anthropic, Short, "2026-10-07", Some(5_450)),
        // Writing to the long cache costs 4: 400 + 100 + 1200 + 4200.
        (&ANTHROPIC, sonnet, anthropic, Long, "2026-10-07", Some(5_900)),
        // 200 × 0.10 + 1000 × 0.01 + 300 × 0.125 + 420 × 0.50 = 20 + 10 + 37.5 + 210 = 277.5, rounded half up
        (&ANTHROPIC, haiku, anthropic, Short, "2026-11-30", Some(278)),
        (&ANTHROPIC, "anthropic/claude-unheard-of", anthropic, Short, "2026-11-30", None),
        // 200 × 1 + 1000 × 0.05 + 300 × 1.25 + 420 × 5 = 200 + 50 + 375 + 2100; reasoning is output
        (&RESPONSES, "openai/gpt-6.1-terra", openai, Short, "2026-11-30", Some(2_725)),
        // 200 × 2 + 1000 × 0.20 + 300 × 2.50 + 420 × 12 = 400 + 200 + 750 + 5040
        (&RESPONSES, "openai/gpt-5.6-terra", openai, Short, "2026-11-30", Some(6_390)),
        // It has no price for a long cache, nor any before its first day.
        (&RESPONSES, "openai/gpt-5.6-terra", openai, Long, "2026-11-30", None),
        (&RESPONSES, "openai/gpt-5.6-terra", openai, Short, "2026-07-29", None),
        // 1500 × 0.75 + 420 × 3.75 = 1125 + 1575; thinking is output
        (&GEMINI, "gemini/gemini-3.8-flash", gemini, Short, "2026-12-31", Some(2_700)),
        // 1500 × 1.50 + 420 × 7.50 = 2250 + 3150
        (&GEMINI, "gemini/gemini-3.8-flash", gemini, Short, "2027-01-01", Some(5_400)),
        // 1500 × 0.30 + 420 × 2.50 = 450 + 1050
        (&GEMINI, "gemini/gemini-3.5-flash-lite", gemini, Short, "2026-11-30", Some(1_500)),
        // 500 × 0.75 + 1000 × 0.075 + 420 × 3.75 = 375 + 75 + 1575
        (&GEMINI, "gemini/gemini-3.8-flash", gemini_cached, Short, "2026-11-30", Some(2_025)),
        // 500 × 1.50 + 1000 × 0.15 + 420 × 7.50 = 750 + 150 + 3150
        (&GEMINI, "gemini/gemini-3.8-flash", gemini_cached, Short, "2027-01-01", Some(4_050)),
        // 500 × 1.50 + 1000 × 0.15 + 420 × 9 = 750 + 150 + 3780
        (&GEMINI, "gemini/gemini-3.5-flash", gemini_cached, Short, "2026-11-30", Some(4_680)),
        // 500 × 0.30 + 1000 × 0.03 + 420 × 2.50 = 150 + 30 + 1050
        (&GEMINI, "gemini/gemini-3.5-flash-lite", gemini_cached, Short, "2026-11-30", Some(1_230)),
        // 50,000 × 4 + 200,000 × 0.40 + 50,000 × 5 + 1000 × 18 = 200,000 + 80,000 + 250,000 + 18,000
        (&RESPONSES, "openai/gpt-5.6-terra", long, Short, "2026-11-30", Some(548_000)),
        (&COMPATIBLE, "local/qwen/qwen-max", compatible, Short, "2026-11-30", None),
    ] {
        assert_eq!(micros(wire, model, None, usage, cache, day), expected, "{model} {cache:?} {day}");
    }

    // 1500 × 0.10 + 420 × 0.40 = 150 + 168
    let price = json!({ "model": "local/qwen/qwen-max", "input": "0.10", "output": "0.40" });
    let price = Some(serde_json::from_value(price).unwrap());
    assert_eq!(micros(&COMPATIBLE, "local/qwen/qwen-max", price, compatible, Short, "2026-11-30"), Some(318));
}
