//! The vendors' bills, in the fields that their documentation gives them, and the one way in which they are counted:
//! the input includes what was read from a cache and what was written to one, the output includes the reasoning.

use meerkat_service::model::Usage;

use crate::vendors::{ANTHROPIC, CHAT, COMPATIBLE, GEMINI, RESPONSES, Wire, replay::Reply};

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
