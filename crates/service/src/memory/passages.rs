//! Passages of a message for memory: its text in parts that are short enough to be found and to be shown.
//!
//! It is pure: a message always gives the same passages, by which memory recognises those that it has.

pub use crate::tool::RECALL_TOOL;
use crate::{
    clock::Timestamp,
    memory::Passage,
    service::HistoryItem,
    session::message::{Attached, Block, Body, Message, ToolCall},
};

/// Most characters of a part.
pub const PART_CHARS_MAX: usize = 1_500;
/// Most parts of a message; of a longer one, half of them from its beginning and half from its end.
pub const PARTS_MAX: usize = 100;
/// Most characters of a call's arguments.
const ARGUMENT_CHARS_MAX: usize = 1_000;
/// Least share of a part's characters. After it, the part ends with a paragraph, a line, a sentence or a word.
const PART_SHARE_MIN: usize = 3;

/// Splits a message of this time into passages.
#[must_use]
pub fn passages(item: &HistoryItem, time: Timestamp) -> Vec<Passage> {
    let mut all = Vec::new();
    let mut add = |source: String, texts: Vec<String>| {
        for text in bounded(texts.iter().flat_map(|text| parts(text)).collect()) {
            let (part, role) = (u32::try_from(all.len()).unwrap_or(u32::MAX), item.role.clone());
            let (seq, source, text) = (item.seq, source.clone(), text.to_owned());
            all.push(Passage { seq, to_seq: seq, part, role, source, time, text });
        }
    };
    match &item.message {
        Message::User { content, blocks } => {
            let names = blocks.iter().filter_map(|block| match block {
                Attached::File(file) => Some(file.name.clone()),
                Attached::Image(_) => None,
            });
            add("user".to_owned(), texts(content).into_iter().chain(names).collect());
        }
        Message::Assistant { content } => add("assistant".to_owned(), texts(content)),
        Message::BlockAssistant { blocks, .. } => add("assistant".to_owned(), said(blocks)),
        Message::ToolResults { results } => {
            for result in results.iter().filter(|result| result.name != RECALL_TOOL) {
                add(format!("tool:{}", result.name), texts(&result.content));
            }
        }
        Message::System { .. } | Message::SystemReminder { .. } | Message::Pin { .. } => {}
    }
    all
}

/// Returns the text and calls of an answer; its reasoning belongs to the vendor.
fn said(blocks: &[Block]) -> Vec<String> {
    let mut said = Vec::new();
    for block in blocks {
        match block {
            Block::Text { text } => said.extend(texts(text)),
            Block::ToolCall(call) if call.name != RECALL_TOOL => said.push(called(call)),
            Block::Reasoning { .. } | Block::ToolCall(_) => {}
        }
    }
    // One text, so that the words before a call stay with it.
    vec![said.join("\n\n")]
}

fn called(call: &ToolCall) -> String {
    let arguments: String = call.arguments.as_str().chars().take(ARGUMENT_CHARS_MAX).collect();
    format!("{} {arguments}", call.name)
}

/// Returns a body's text; of a body in a blob, its beginning and end, which the context had.
fn texts(body: &Body) -> Vec<String> {
    match body {
        Body::Inline(text) => vec![text.clone()],
        Body::Blob(blob) => vec![blob.head.clone(), blob.tail.clone()],
    }
}

/// Keeps as many parts as a message may have.
fn bounded(mut parts: Vec<&str>) -> Vec<&str> {
    if parts.len() > PARTS_MAX {
        parts.drain(PARTS_MAX / 2..parts.len() - PARTS_MAX / 2);
    }
    parts
}

/// Splits a text into parts that are not empty. Except for white space between them, they are the text.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let window = rest.char_indices().nth(PART_CHARS_MAX).map_or(rest, |(end, _)| &rest[..end]);
        let end = if window.len() == rest.len() { rest.len() } else { end_of_part(window) };
        let (part, after) = rest.split_at(end);
        parts.push(part.trim_end());
        rest = after.trim_start();
    }
    parts
}

/// Finds the end of a part in a longer text: the best boundary that is not too near its beginning.
fn end_of_part(window: &str) -> usize {
    let least = window.ceil_char_boundary(window.len() / PART_SHARE_MIN);
    let last =
        |found: &dyn Fn(&str) -> Option<usize>| found(&window[least..]).map(|at| least + at).filter(|at| *at > 0);
    last(&|text| text.rfind("\n\n"))
        .or_else(|| last(&|text| text.rfind('\n')))
        .or_else(|| last(&end_of_sentence))
        .or_else(|| last(&|text| text.rfind(char::is_whitespace)))
        .unwrap_or(window.len())
}

/// Finds the offset after the last mark that ends a sentence: one before a blank, or one of a script without blanks.
fn end_of_sentence(text: &str) -> Option<usize> {
    let is_end = |&(at, mark): &(usize, char)| match mark {
        '。' | '！' | '？' | '।' | '۔' => true,
        '.' | '!' | '?' => text[at + 1..].starts_with(char::is_whitespace),
        _ => false,
    };
    text.char_indices().rfind(is_end).map(|(at, mark)| at + mark.len_utf8())
}

#[cfg(test)]
mod tests {
    use meerkat_testkit::cases;
    use proptest::prelude::*;

    use super::*;
    use crate::session::message::{AttachedFile, BlobRef, Image, RawJson, ToolResult};

    fn item(role: &str, message: Message) -> HistoryItem {
        HistoryItem { seq: 7, turn: Some(0), role: role.to_owned(), message }
    }

    fn of(item: &HistoryItem) -> Vec<(u32, String, String)> {
        let passages = passages(item, Timestamp::from_millis(5));
        assert!(passages.iter().all(|it| (it.seq, it.to_seq, it.time) == (7, 7, Timestamp::from_millis(5))));
        passages.into_iter().map(|it| (it.part, it.source, it.text)).collect()
    }

    fn call(name: &str, arguments: &str) -> Block {
        let arguments = RawJson::parse(arguments).unwrap();
        Block::ToolCall(ToolCall { call_id: "c".to_owned(), name: name.to_owned(), arguments, opaque: None })
    }

    fn result(name: &str, text: &str) -> ToolResult {
        ToolResult {
            call_id: "c".to_owned(),
            name: name.to_owned(),
            is_error: false,
            content: text.into(),
            images: Vec::new(),
        }
    }

    #[test]
    fn an_answer_is_what_it_says_and_calls_and_not_what_was_thought() {
        let thought = Block::Reasoning { text: "secretly".into(), opaque: None, vendor: "v".to_owned() };
        let blocks = vec![thought, Block::Text { text: " I look. ".into() }, call("grep", r#"{"for":"quokka"}"#)];
        let message = Message::BlockAssistant { model: "m".to_owned(), blocks };
        let text = "I look. \n\ngrep {\"for\":\"quokka\"}".to_owned();
        assert_eq!(of(&item("assistant", message)), [(0, "assistant".to_owned(), text)]);
    }

    #[test]
    fn each_result_is_a_passage_of_its_tool_and_what_was_recalled_is_none() {
        let results =
            vec![result("ls", "a.txt"), result(RECALL_TOOL, "old news"), result("cat", "b"), result("cat", " ")];
        let passages = of(&item("tool_results", Message::ToolResults { results }));
        assert_eq!(
            passages,
            [(0, "tool:ls".to_owned(), "a.txt".to_owned()), (1, "tool:cat".to_owned(), "b".to_owned())]
        );
        let blocks = vec![call(RECALL_TOOL, r#"{"query":"old"}"#)];
        assert!(of(&item("assistant", Message::BlockAssistant { model: "m".to_owned(), blocks })).is_empty());
    }

    #[test]
    fn a_body_in_a_blob_is_its_beginning_and_its_end() {
        let blob = BlobRef { blob: "0".to_owned(), bytes: 9_000, head: "head".to_owned(), tail: "tail".to_owned() };
        let texts = of(&item("user", Message::User { content: Body::Blob(blob), blocks: Vec::new() }));
        assert_eq!(texts.iter().map(|it| it.2.as_str()).collect::<Vec<_>>(), ["head", "tail"]);
    }

    #[test]
    fn of_a_file_memory_has_the_name() {
        let [name, media_type, blob] = ["notes.txt", "text/plain", "b10b"].map(str::to_owned);
        let file = Attached::File(AttachedFile { name, media_type, blob, bytes: 3, pages: None });
        let [media_type, blob] = ["image/png", "b10b"].map(str::to_owned);
        let image = Attached::Image(Image { media_type, blob, bytes: 3, width: 1, height: 1 });
        let texts = of(&item("user", Message::User { content: "Look.".into(), blocks: vec![image, file] }));
        assert_eq!(texts.iter().map(|it| it.2.as_str()).collect::<Vec<_>>(), ["Look.", "notes.txt"]);
    }

    #[test]
    fn a_part_ends_where_a_paragraph_does_else_a_line_a_sentence_a_word() {
        for (end, next) in [("\n\n", "Then"), ("\n", "Then"), (". ", "Then"), (" ", "then"), ("。", "次")] {
            let first = format!("{}{}", "x".repeat(PART_CHARS_MAX - 10), end.trim_end());
            let text = format!("{first}{}{next}{}", &end[end.trim_end().len()..], "y".repeat(100));
            assert_eq!(parts(&text)[0], first, "{end:?}");
        }
        // A boundary near the beginning is none, and without one a part ends where it must.
        let text = format!("a\n\n{}", "x".repeat(PART_CHARS_MAX * 2));
        assert_eq!(parts(&text).iter().map(|part| part.chars().count()).max(), Some(PART_CHARS_MAX));
    }

    #[test]
    fn of_a_very_long_message_beginning_and_end_are_kept() {
        let text: String = (0..300).map(|n| format!("{n:04}{}\n\n", "z".repeat(PART_CHARS_MAX - 4))).collect();
        let passages = of(&item("user", Message::user(text)));
        let numbers: Vec<usize> = passages.iter().map(|it| it.2[..4].parse().unwrap()).collect();
        assert_eq!(numbers, (0..50).chain(250..300).collect::<Vec<_>>());
        assert_eq!(passages.iter().map(|it| it.0).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn parts_are_the_text(words in prop::collection::vec("[a-zé。.\n]{0,12}| |\n\n|[x]{400}", 0..60)) {
            let text = words.join(" ");
            let parts = parts(&text);
            prop_assert!(parts.iter().all(|part| !part.is_empty() && part.chars().count() <= PART_CHARS_MAX));
            let squeeze = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(squeeze(&parts.concat()), squeeze(&text));
        }
    }
}
