//! Streams of the vendors, written by hand from their documentation. Each has two stories: a text with a warm cache,
//! and reasoning that leads to two calls.

/// Frames with their kind as the event's name and as the first field of the data.
macro_rules! named {
    ($( $kind:literal $rest:literal )*) => {
        concat!($( "event: ", $kind, "\ndata: {\"type\":\"", $kind, "\"", $rest, "\n\n" ),*)
    };
}

/// Frames with data alone.
macro_rules! plain {
    ($( $data:literal )*) => { concat!($( "data: ", $data, "\n\n" ),*) };
}

/// Anthropic's messages: every kind of block, reasoning among them twice and once redacted.
pub(crate) const ANTHROPIC_TEXT: &str = named! {
    "message_start" r#","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-5-5","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}}}"#
    "content_block_start" r#","index":0,"content_block":{"type":"text","text":""}}"#
    "ping" r#"}"#
    "content_block_delta" r#","index":0,"delta":{"type":"text_delta","text":"Grüße, "}}"#
    "content_block_delta" r#","index":0,"delta":{"type":"text_delta","text":"世界 🦦"}}"#
    "content_block_stop" r#","index":0}"#
    "message_delta" r#","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":42}}"#
    "message_stop" r#"}"#
};

pub(crate) const ANTHROPIC_CALLS: &str = named! {
    "message_start" r#","message":{"id":"msg_2","type":"message","role":"assistant","model":"claude-sonnet-5-5","content":[],"stop_reason":null,"usage":{"input_tokens":135,"output_tokens":1}}}"#
    "content_block_start" r#","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#
    "content_block_delta" r#","index":0,"delta":{"type":"thinking_delta","thinking":"Two "}}"#
    "content_block_delta" r#","index":0,"delta":{"type":"thinking_delta","thinking":"files."}}"#
    "content_block_delta" r#","index":0,"delta":{"type":"signature_delta","signature":"c2ln+1="}}"#
    "content_block_stop" r#","index":0}"#
    "content_block_start" r#","index":1,"content_block":{"type":"redacted_thinking","data":"cmVk"}}"#
    "content_block_stop" r#","index":1}"#
    "content_block_start" r#","index":2,"content_block":{"type":"text","text":""}}"#
    "content_block_delta" r#","index":2,"delta":{"type":"text_delta","text":"I look."}}"#
    "content_block_stop" r#","index":2}"#
    "content_block_start" r#","index":3,"content_block":{"type":"thinking","thinking":"","signature":""}}"#
    "content_block_delta" r#","index":3,"delta":{"type":"signature_delta","signature":"c2lnMg=="}}"#
    "content_block_stop" r#","index":3}"#
    "content_block_start" r#","index":4,"content_block":{"type":"tool_use","id":"toolu_1","name":"read_file","input":{}}}"#
    "content_block_delta" r#","index":4,"delta":{"type":"input_json_delta","partial_json":""}}"#
    "content_block_delta" r#","index":4,"delta":{"type":"input_json_delta","partial_json":"{\"path\":\"a.txt\","}}"#
    "content_block_delta" r#","index":4,"delta":{"type":"input_json_delta","partial_json":"\"limit\":1e2}"}}"#
    "content_block_stop" r#","index":4}"#
    "content_block_start" r#","index":5,"content_block":{"type":"tool_use","id":"toolu_2","name":"list","input":{}}}"#
    "content_block_stop" r#","index":5}"#
    "message_delta" r#","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":42}}"#
    "message_stop" r#"}"#
};

/// Chat completions, as OpenAI's older models and compatible servers stream them.
pub(crate) const CHAT_TEXT: &str = plain! {
    r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4.1","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null}"#
    r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4.1","choices":[{"index":0,"delta":{"content":"Grüße, "},"logprobs":null,"finish_reason":null}],"usage":null}"#
    r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4.1","choices":[{"index":0,"delta":{"content":"世界 🦦"},"logprobs":null,"finish_reason":null}],"usage":null}"#
    r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4.1","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}"#
    r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4.1","choices":[],"usage":{"prompt_tokens":135,"completion_tokens":42,"total_tokens":177,"prompt_tokens_details":{"cached_tokens":100,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}"#
    r#"[DONE]"#
};

pub(crate) const CHAT_CALLS: &str = plain! {
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"reasoning_content":"Two files."},"finish_reason":null}]}"#
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"I look."},"finish_reason":null}]}"#
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"read_file","arguments":""}}]},"finish_reason":null}]}"#
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"path\":\"a.txt\","}}]},"finish_reason":null}]}"#
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"limit\":1e2}"}}]},"finish_reason":null}]}"#
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"list","arguments":""}}]},"finish_reason":null}]}"#
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#
    r#"{"id":"chatcmpl-2","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":135,"completion_tokens":42,"total_tokens":177}}"#
    r#"[DONE]"#
};

/// OpenAI's responses, as its newer models stream them.
pub(crate) const RESPONSES_TEXT: &str = named! {
    "response.created" r#","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","model":"gpt-5.6-terra","output":[],"usage":null}}"#
    "response.output_item.added" r#","sequence_number":1,"output_index":0,"item":{"id":"msg_1","type":"message","status":"in_progress","role":"assistant","content":[]}}"#
    "response.output_text.delta" r#","sequence_number":2,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"Grüße, "}"#
    "response.output_text.delta" r#","sequence_number":3,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"世界 🦦"}"#
    "response.output_item.done" r#","sequence_number":4,"output_index":0,"item":{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Grüße, 世界 🦦","annotations":[]}]}}"#
    "response.completed" r#","sequence_number":5,"response":{"id":"resp_1","object":"response","status":"completed","model":"gpt-5.6-terra","output":[],"usage":{"input_tokens":135,"input_tokens_details":{"cached_tokens":100},"output_tokens":42,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":177}}}"#
};

pub(crate) const RESPONSES_CALLS: &str = named! {
    "response.created" r#","sequence_number":0,"response":{"id":"resp_2","object":"response","status":"in_progress","model":"gpt-5.6-terra","output":[],"usage":null}}"#
    "response.output_item.done" r#","sequence_number":1,"output_index":0,"item":{"id":"rs_1","type":"reasoning","encrypted_content":"Z0FB","summary":[]}}"#
    "response.output_text.delta" r#","sequence_number":2,"item_id":"msg_2","output_index":1,"content_index":0,"delta":"I look."}"#
    "response.output_item.added" r#","sequence_number":3,"output_index":2,"item":{"id":"fc_1","type":"function_call","status":"in_progress","call_id":"call_1","name":"read_file","arguments":""}}"#
    "response.function_call_arguments.delta" r#","sequence_number":4,"item_id":"fc_1","output_index":2,"delta":"{\"path\":\"a.txt\","}"#
    "response.function_call_arguments.delta" r#","sequence_number":5,"item_id":"fc_1","output_index":2,"delta":"\"limit\":1e2}"}"#
    "response.output_item.done" r#","sequence_number":6,"output_index":2,"item":{"id":"fc_1","type":"function_call","status":"completed","call_id":"call_1","name":"read_file","arguments":"{\"path\":\"a.txt\",\"limit\":1e2}"}}"#
    "response.output_item.added" r#","sequence_number":7,"output_index":3,"item":{"id":"fc_2","type":"function_call","status":"in_progress","call_id":"call_2","name":"list","arguments":""}}"#
    "response.output_item.done" r#","sequence_number":8,"output_index":3,"item":{"id":"fc_2","type":"function_call","status":"completed","call_id":"call_2","name":"list","arguments":"{}"}}"#
    "response.completed" r#","sequence_number":9,"response":{"id":"resp_2","object":"response","status":"completed","model":"gpt-5.6-terra","output":[],"usage":{"input_tokens":135,"output_tokens":42,"total_tokens":177}}}"#
};

/// Gemini's contents; its lines end with CR and LF, and its calls come without an id.
pub(crate) const GEMINI_TEXT: &str = plain! {
    r#"{"candidates":[{"content":{"parts":[{"text":"Grüße, "}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":135,"totalTokenCount":135},"modelVersion":"gemini-3.8-flash"}"#
    r#"{"usageMetadata":{"promptTokenCount":135,"totalTokenCount":135},"modelVersion":"gemini-3.8-flash"}"#
    r#"{"candidates":[{"content":{"parts":[{"text":"世界 🦦"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":135,"totalTokenCount":135},"modelVersion":"gemini-3.8-flash"}"#
    r#"{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":135,"cachedContentTokenCount":100,"candidatesTokenCount":12,"thoughtsTokenCount":30,"totalTokenCount":177},"modelVersion":"gemini-3.8-flash"}"#
};

pub(crate) const GEMINI_CALLS: &str = plain! {
    r#"{"candidates":[{"content":{"parts":[{"text":"Two files.","thought":true}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":135,"thoughtsTokenCount":30,"totalTokenCount":165}}"#
    r#"{"candidates":[{"content":{"parts":[{"text":"I look."}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":135,"totalTokenCount":165}}"#
    r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"read_file","args":{"path":"a.txt","limit":1e2}},"thoughtSignature":"Q2lr"},{"functionCall":{"name":"list","args":{}}}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":135,"candidatesTokenCount":12,"thoughtsTokenCount":30,"totalTokenCount":177}}"#
};
