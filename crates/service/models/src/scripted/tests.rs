//! Tests of scripts: what the model plays, and what it refuses.

use futures::{FutureExt, StreamExt};

use super::{grammar::FORMS, *};
use crate::{AnswerBlock, ModelAnswer, ModelPart, StopReason, ToolSpec};
use meerkat_words::message::{BlobRef, Block, RawJson, ToolResult};

fn user(text: &str) -> Message {
    Message::user(text)
}

fn request(messages: Vec<Message>) -> ModelRequest {
    ModelRequest {
        model: "scripted".to_owned(),
        messages: messages.into_iter().map(Arc::new).collect(),
        ..ModelRequest::default()
    }
}

fn results(ids: &[&str]) -> Message {
    let result = |id: &&str| ToolResult {
        call_id: (*id).to_owned(),
        name: "t".to_owned(),
        is_error: false,
        content: format!("result of {id}").into(),
        images: Vec::new(),
    };
    Message::ToolResults { results: ids.iter().map(result).collect() }
}

fn calls(ids: &[&str]) -> Message {
    let call = |id: &&str| {
        Block::ToolCall(meerkat_words::message::ToolCall {
            call_id: (*id).to_owned(),
            name: "t".to_owned(),
            arguments: RawJson::empty_object(),
            opaque: None,
        })
    };
    Message::BlockAssistant { model: "scripted".to_owned(), blocks: ids.iter().map(call).collect() }
}

/// Result of a call: each part as it was streamed, and the whole answer, if any.
struct Heard {
    parts: Vec<String>,
    answer: Option<ModelAnswer>,
}

/// Calls the model until its stream ends, fails or stalls.
fn hear(request: ModelRequest) -> Result<Heard, ModelError> {
    let mut stream = ScriptedModel.stream_response(request).now_or_never().expect("the model does not wait")?;
    let mut heard = Heard { parts: Vec::new(), answer: None };
    loop {
        // The first poll yields; a part that is missing at the second one never comes.
        let part = match stream.next().now_or_never() {
            None => stream.next().now_or_never(),
            some => some,
        };
        match part {
            Some(Some(Ok(ModelPart::Text(text)))) => heard.parts.push(text),
            Some(Some(Ok(ModelPart::Reasoning(text)))) => heard.parts.push(format!("think:{text}")),
            Some(Some(Ok(ModelPart::Hidden(bytes)))) => heard.parts.push(format!("hidden:{bytes}")),
            Some(Some(Ok(ModelPart::End(answer)))) => heard.answer = Some(answer),
            Some(Some(Err(error))) => heard.parts.push(format!("error:{}", error.code)),
            Some(None) => return Ok(heard),
            None => {
                heard.parts.push("stall".to_owned());
                return Ok(heard);
            }
        }
    }
}

/// An answer on one line: its blocks, then why it stopped.
fn line(answer: &ModelAnswer) -> String {
    let blocks = answer.blocks.iter().map(|block| match block {
        AnswerBlock::Text(text) => format!("say:{text}"),
        AnswerBlock::Reasoning { text, .. } => format!("think:{text}"),
        AnswerBlock::ToolCall(call) => format!("{}{}", call.name, call.arguments.as_str()),
    });
    blocks.chain([format!("{:?}", answer.stop_reason)]).collect::<Vec<_>>().join("|")
}

/// Plays a prompt as the engine would, with a result for every call, and compares the answers.
#[track_caller]
fn check(prompt: &str, expected: &[&str]) {
    let mut messages = vec![user("before"), Message::Assistant { content: "answer".into() }, user(prompt)];
    let mut answers = Vec::new();
    loop {
        let heard = hear(request(messages.clone())).unwrap();
        let answer = heard.answer.expect("the answer is whole");
        answers.push(line(&answer));
        if answer.stop_reason != StopReason::ToolUse {
            break;
        }
        let ids: Vec<String> = (0..answer.blocks.len()).map(|n| format!("{}-{n}", answers.len())).collect();
        let blocks = answer.blocks.into_iter().zip(&ids).filter_map(|(block, id)| match block {
            AnswerBlock::ToolCall(call) => {
                Some(Block::ToolCall(meerkat_words::message::ToolCall { call_id: id.clone(), ..call }))
            }
            _ => None,
        });
        let answered = Message::BlockAssistant { model: "scripted".to_owned(), blocks: blocks.collect() };
        let ids: Vec<&str> = answered.tool_calls().map(|call| call.call_id.as_str()).collect();
        let results = results(&ids);
        messages.extend([answered, results]);
    }
    assert_eq!(answers, expected, "{prompt}");
}

#[track_caller]
fn check_refused(messages: Vec<Message>, why: &str) {
    let Err(error) = hear(request(messages)) else { panic!("it is not refused: {why}") };
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::ModelRejected, why));
}

#[test]
fn a_script_is_played_as_it_is_written() {
    let scripts: [(&str, &[&str]); 17] = [
        ("@say Hello there", &["say:Hello there|EndTurn"]),
        // Text and reasoning are blocks in order.
        ("@think hm @say a\nb  c\n@say d", &["think:hm|say:a\nb  c|say:d|EndTurn"]),
        ("  \n@say late", &["say:late|EndTurn"]),
        // An at sign can be said, and escapes are replaced.
        ("@say mail a@b.example @@say @@ @@@", &["say:mail a@b.example @say @ @@|EndTurn"]),
        (r"@say \sa\nb\tc\\n\u{1b}\u{e9} @say \s", &["say: a\nb\tc\\n\u{1b}é|say: |EndTurn"]),
        // Calls of one step are made together.
        (
            r#"@say first @call a {"x": 1e2, "y":"} @say \" "} @call b @call c {}@say done"#,
            &[r#"say:first|a{"x":1e2,"y":"} @say \" "}|b{}|c{}|ToolUse"#, "say:done|EndTurn"],
        ),
        // A step ends at `@step`, or after its calls.
        ("@step @call a @step @call b @think x", &["a{}|ToolUse", "b{}|ToolUse", "think:x|EndTurn"]),
        ("@call a", &["a{}|ToolUse", "say:Done: the script has no further step.|EndTurn"]),
        ("@call a @step", &["a{}|ToolUse", "EndTurn"]),
        ("@repeat 2 @say go @call a @say done", &["say:go|a{}|ToolUse", "say:go|a{}|ToolUse", "say:done|EndTurn"]),
        // Malformed arguments are a string.
        (r#"@args a {"x": \\ @say done"#, &[r#"a"{\"x\": \\"|ToolUse"#, "say:done|EndTurn"]),
        ("@note remember @call a {} @note this @say ok", &["a{}|ToolUse", "say:ok|EndTurn"]),
        ("@say half @stop max_tokens", &["say:half|MaxTokens"]),
        ("@stop refusal", &["Refusal"]),
        ("@stop content_filter", &["ContentFilter"]),
        ("@call a @stop end_turn", &["a{}|EndTurn"]),
        ("@echo", &["say:messages: 3\ntail: none\ntools: none\nsystem: none|EndTurn"]),
    ];
    for (prompt, answers) in scripts {
        check(prompt, answers);
    }
}

#[test]
fn text_is_streamed_by_word_or_by_characters_and_trouble_passes_after_so_many_attempts() {
    let calls: [(&str, u32, &[&str]); 10] = [
        ("@say a  bc d", 0, &["a ", " ", "bc ", "d", "end"]),
        ("@chunks 2 @say abéde @think fgh", 0, &["ab", "éd", "e", "think:fg", "think:h", "end"]),
        ("@chunks 9 @say a @say b", 0, &["a", "b", "end"]),
        ("@say a @fail overloaded times=2 @say b", 1, &["a", "error:MODEL_OVERLOADED"]),
        ("@say a @fail overloaded times=2 @say b", 2, &["a", "b", "end"]),
        ("@say a @cut times=1", 0, &["a"]),
        ("@say a @cut times=1", 1, &["a", "end"]),
        ("@cut", u32::MAX - 1, &[]),
        ("@say a @stall times=1 @say b", 0, &["a", "stall"]),
        ("@say a @stall times=1 @say b", 1, &["a", "b", "end"]),
    ];
    for (prompt, attempt, expected) in calls {
        let heard = hear(ModelRequest { attempt, ..request(vec![user(prompt)]) }).unwrap();
        let mut parts = heard.parts;
        parts.extend(heard.answer.map(|_| "end".to_owned()));
        assert_eq!(parts, expected, "{prompt}");
    }
    let failing = ModelRequest { attempt: 2, ..request(vec![user("@fail timeout times=3 @say b")]) };
    assert_eq!(hear(failing).err().unwrap().code, ErrorCode::ModelTimeout);
}

#[test]
fn long_text_has_its_exact_size_and_is_the_same_each_time() {
    let heard = || hear(request(vec![user("@chunks 1000 @long 2500")])).unwrap().parts;
    assert_eq!(heard().iter().map(String::len).collect::<Vec<_>>(), [1000, 1000, 500]);
    assert_eq!(heard(), heard());
}

#[test]
fn usage_is_as_scripted_or_a_quarter_of_the_bytes() {
    let usage = |prompt| {
        let usage = hear(request(vec![user("x".repeat(4000).as_str()), user(prompt)])).unwrap().answer.unwrap().usage;
        (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    };
    assert_eq!(usage("@say 12345"), (3, 2, 0));
    assert_eq!(usage("@say x @usage in=100 out=20 cached=5"), (100, 20, 5));
    assert_eq!(usage("@usage out=7 @call a"), (5, 7, 0));
    assert_eq!(usage("@call abc {\"d\":1} @usage in=9"), (9, 3, 0));
    let parts = |prompt| {
        let usage = hear(request(vec![user(prompt)])).unwrap().answer.unwrap().usage;
        (usage.cache_write_tokens, usage.reasoning_tokens)
    };
    assert_eq!(parts("@say x @usage in=100 out=20 written=6 reasoning=7"), (6, 7));
    assert_eq!(parts("@think Long. @say x @usage in=100"), (0, 0));
}

#[test]
fn between_two_parts_others_can_run() {
    let prompt = request(vec![user("@say a b")]);
    let mut stream = ScriptedModel.stream_response(prompt).now_or_never().unwrap().unwrap();
    let polls: Vec<bool> = (0..8).map(|_| stream.next().now_or_never().is_some()).collect();
    assert_eq!(polls, [false, true, false, true, false, true, false, true]);
}

#[test]
fn an_echo_tells_what_the_request_holds() {
    let prompt = "@chunks 9999 @echo messages @echo first @echo tail @echo tools @echo system @echo last_result \
                  @echo results @echo attempt";
    let tool =
        |name: &str| ToolSpec { name: name.to_owned(), description: String::new(), schema: RawJson::empty_object() };
    let bare = request(vec![user(prompt)]);
    let first = format!("first: {prompt}");
    let none = ["tail: none", "tools: none", "system: none", "last_result: none", "results: none"];
    let expected = [&["messages: 1", &first], &none[..], &["attempt: 0"]].concat();
    assert_eq!(hear(bare).unwrap().parts, expected);

    let prompt = user(&format!("@call t {prompt}"));
    let messages = vec![user("s"), calls(&["0"]), results(&["0"]), prompt, calls(&["1", "2"]), results(&["1", "2"])];
    let full = ModelRequest {
        system: Some("é".repeat(61).into()),
        tail: Some("pins".into()),
        tools: vec![tool("a"), tool("b")].into(),
        attempt: 3,
        ..request(messages)
    };
    let system = format!("system: {}…", "é".repeat(60));
    let results = ["last_result: result of 2", "results: result of 1\nresult of 2"];
    let expected =
        [&["messages: 6", "first: s", "tail: pins", "tools: a b", &system], &results[..], &["attempt: 3"]].concat();
    assert_eq!(hear(full).unwrap().parts, expected);
}

#[test]
fn a_prompt_without_a_script_is_quoted_up_to_a_limit() {
    let say = |quote: &str| {
        format!("say:Hello! I am meerkat's scripted model, not a real one. You said: \"{quote}\"|EndTurn")
    };
    check("hello, mail me @home", &[&say("hello, mail me @home")]);
    check(&"é".repeat(200), &[&say(&"é".repeat(200))]);
    check(&"é".repeat(201), &[&say(&format!("{}…", "é".repeat(200)))]);
}

#[test]
fn the_place_in_the_script_survives_a_compaction_within_the_turn() {
    let script = "@call a @step @call b @step @call c @say done";
    let second = hear(request(vec![user(script), calls(&["1"]), results(&["1"])])).unwrap().answer.unwrap();
    assert_eq!(line(&second), "b{}|ToolUse");
    let blocks = second.blocks.into_iter().map(|block| match block {
        AnswerBlock::ToolCall(call) => {
            Block::ToolCall(meerkat_words::message::ToolCall { call_id: "2".to_owned(), ..call })
        }
        other => panic!("{other:?} is no call"),
    });
    let kept = Message::BlockAssistant { model: "scripted".to_owned(), blocks: blocks.collect() };
    let third = hear(request(vec![user("summary"), user(script), kept, results(&["2"])])).unwrap().answer.unwrap();
    assert_eq!(line(&third), "c{}|ToolUse");
}

/// Asks for a summary of these messages, and compares the parts that come.
#[track_caller]
fn check_summary(mut messages: Vec<Message>, attempt: u32, expected: &[&str]) {
    messages.push(user(meerkat_words::compaction::COMPACTION_PROMPT));
    let heard = match hear(ModelRequest { attempt, ..request(messages) }) {
        Ok(heard) => heard,
        Err(error) => Heard { parts: vec![format!("error:{}", error.code)], answer: None },
    };
    let whole = heard.answer.map(|answer| format!("{} {}", line(&answer), answer.usage.output_tokens));
    let parts = if whole.is_none() { heard.parts } else { Vec::new() };
    assert_eq!(parts.into_iter().chain(whole).collect::<Vec<_>>(), expected);
}

#[test]
fn a_summary_is_as_the_newest_prompt_scripts_it() {
    let script = "@say Hi @compaction @say The plan is X. @usage out=7 @step @say never";
    check(script, &["say:Hi|EndTurn"]);
    check("@call a @compaction @say x", &["a{}|ToolUse", "say:Done: the script has no further step.|EndTurn"]);
    let answered = || Message::Assistant { content: "ok".into() };
    let plan = "say:The plan is X.|EndTurn 7";
    check_summary(vec![user(script)], 0, &[plan]);
    check_summary(vec![user(script), answered(), user("and now?"), answered()], 0, &[plan]);
    check_summary(vec![user(script), answered(), user("@say a @compaction @say b")], 0, &["say:b|EndTurn 1"]);
    check_summary(vec![user(script), answered(), user("@broken @compaction @say b")], 0, &[plan]);
    check_summary(vec![user(script), calls(&["1"]), results(&["1"])], 0, &[plan]);
    check_summary(vec![user("@compaction @call test_echo {}")], 0, &["test_echo{}|ToolUse 3"]);
    check_summary(vec![user("@compaction @fail overloaded times=2 @say b")], 1, &["error:MODEL_OVERLOADED"]);
    check_summary(vec![user("@compaction @fail overloaded times=2 @say b")], 2, &["say:b|EndTurn 1"]);
    check_summary(vec![user("@compaction @say a @cut")], 0, &["a"]);
    check_summary(vec![user("@compaction @say a @stall")], 0, &["a", "stall"]);
    check_summary(vec![user("@compaction")], 0, &["EndTurn 0"]);
}

#[test]
fn a_summary_that_no_prompt_scripts_tells_what_the_prompts_begin_with() {
    let messages = vec![user("Fix it."), calls(&["1"]), results(&["1"]), user(&"é".repeat(201))];
    let summary = format!("say:Summary of 4 messages.\nFix it.\n{}…|EndTurn 109", "é".repeat(200));
    check_summary(messages, 0, &[&summary]);
    let mut many: Vec<Message> = (0..100).map(|_| user(&"x".repeat(100))).collect();
    many.push(user(meerkat_words::compaction::COMPACTION_PROMPT));
    assert_eq!(hear(request(many)).unwrap().parts.concat().chars().count(), 2001);
}

#[test]
fn a_summary_can_be_wrong_on_purpose() {
    let said = |how: &str| {
        let script = format!("@note x @compaction @summarise {how}");
        vec![user(&script), user("The key is RED. Ask Anna first. Port 80 must stay.")]
    };
    check_summary(said("drop"), 0, &["say:@note x @compaction @summarise drop. Ask Anna first.|EndTurn 13"]);
    let negated = "say:@note not x @compaction @summarise negate. The key is not RED. Ask not Anna first. \
                   Port 80 must not stay.|EndTurn 27";
    check_summary(said("negate"), 0, &[negated]);
    let paraphrased = "say:paraphrase @summarise @compaction x @note. red is key the. first anna ask. \
                       stay must 80 port.|EndTurn 24";
    check_summary(said("paraphrase"), 0, &[paraphrased]);
}

#[test]
fn a_summary_is_made_of_whole_pairs_only() {
    let asked = || user(meerkat_words::compaction::COMPACTION_PROMPT);
    let open = vec![user("x"), calls(&["1"]), user("y"), Message::Assistant { content: "z".into() }, asked()];
    check_refused(open, r#"the tool calls ["1"] have no results"#);
    let orphans = vec![results(&["1"]), user("x"), asked()];
    check_refused(orphans, r#"tool results for ["1"] follow the calls []"#);
    let system = Message::System { content: "s".into() };
    check_refused(vec![system, user("x"), asked()], "there is a system message among the messages");
}

#[test]
fn a_script_that_does_not_parse_says_where_and_what_is_allowed() {
    let known = FORMS.iter().map(|(name, _)| format!(" @{name}")).collect::<String>();
    check_refused(vec![user("@file /etc/passwd")], &format!("the script has no @file; it may have{known}"));
    check_refused(vec![user("@say a @bob")], &format!("the script has no @bob; it may have{known}"));
    check_refused(vec![user("@")], &format!("the script has no @; it may have{known}"));
    check_refused(vec![user("@call a {} b")], "the script has \"b\" where a directive should begin with @");
    check_refused(vec![user(&"@step ".repeat(1001))], "the script has more than 1000 directives");
    let refusals = [
        ("@say", "has no text"),
        (r"@say \x", r"has an unknown escape; there are \n \t \s \\ \u{HEX} and @@"),
        (r"@say \u{d800}", r"has an unknown escape; there are \n \t \s \\ \u{HEX} and @@"),
        ("@long 0", "needs a number within its range, not \"0\""),
        ("@long 16777217", "says at most 16777216 bytes in a script"),
        ("@echo all", "cannot tell \"all\""),
        ("@call", "names no tool"),
        ("@call @say x", "names no tool"),
        ("@call a [1]", "takes a JSON object; for other arguments there is @args"),
        ("@call a {", "has broken JSON: EOF while parsing an object at line 1 column 1"),
        ("@args a", "has no text"),
        ("@step 2", "takes nothing, not \"2\""),
        ("@repeat 0", "needs a number within its range, not \"0\""),
        ("@usage in=1 total=2", "does not take \"total=2\""),
        ("@usage in=-1", "needs a number within its range, not \"-1\""),
        ("@stop", "does not take \"\""),
        ("@chunks x", "needs a number within its range, not \"x\""),
        ("@fail", "does not know the class \"\""),
        ("@fail timeout once", "does not take \"once\""),
        ("@compaction now", "takes nothing, not \"now\""),
        ("@compaction @compaction", "appears more than once"),
        ("@summarise well", "does not take \"well\""),
        ("@cut retry_after_ms=1", "does not take \"retry_after_ms=1\""),
    ];
    for (script, why) in refusals {
        let name = script[1..].split(' ').next().unwrap();
        let (_, form) = FORMS.iter().find(|(known, _)| *known == name).unwrap();
        check_refused(vec![user(script)], &format!("the script's @{name} {why}; it is written {form}"));
    }
}

#[test]
fn a_context_that_a_strict_vendor_refuses_is_refused() {
    let blob = BlobRef { blob: "b".to_owned(), bytes: 9, head: "h".to_owned(), tail: "t".to_owned() };
    let system = Message::System { content: "s".into() };
    check_refused(vec![], "the request has no user message");
    check_refused(vec![user("x"), system], "there is a system message among the messages");
    check_refused(
        vec![Message::User { content: Body::Blob(blob), blocks: Vec::new() }],
        "a user message is not inline",
    );
    let open = r#"the tool calls ["1"] have no results"#;
    check_refused(vec![user("x"), calls(&["1"])], open);
    check_refused(vec![user("x"), calls(&["1"]), calls(&["2"]), results(&["2"])], open);
    let orphans = r#"tool results for ["1"] follow the calls []"#;
    check_refused(vec![user("x"), results(&["1"])], orphans);
    check_refused(vec![user("x"), calls(&["1"]), results(&["1"]), results(&["1"])], orphans);
    let both = || vec![user("x"), calls(&["1", "2"])];
    let swapped = r#"tool results for ["2", "1"] follow the calls ["1", "2"]"#;
    check_refused([both(), vec![results(&["2", "1"])]].concat(), swapped);
    let one = r#"tool results for ["1"] follow the calls ["1", "2"]"#;
    check_refused([both(), vec![results(&["1"])]].concat(), one);
    // Calls left open right before the turn.
    check_refused(vec![user("x"), calls(&["1"]), user("y")], open);
    check_refused(vec![user("x"), results(&["1"]), user("y")], orphans);
    check_refused(vec![results(&["1"]), user("y")], orphans);
    hear(request(vec![user("x"), calls(&["1"]), results(&["1"]), user("y")])).unwrap();
}

#[test]
fn the_documentation_has_every_form_with_an_example() {
    let page = include_str!("../../../../../docs/scripted-model.md");
    for (name, form) in FORMS {
        // Within a table a bar is written with a backslash.
        let row = format!("| `{}` | ", form.replace('|', r"\|"));
        let row = page.lines().find(|line| line.starts_with(&row)).unwrap_or_else(|| panic!("{form} has no row"));
        let example = row.rsplit(" | `").next().and_then(|example| example.strip_suffix("` |")).unwrap();
        assert!(example.contains(&format!("@{name}")), "{form} has no example");
        grammar::parse(example).unwrap();
    }
}
