//! Pieces of a response: those that are shown live, and those of its record.

use meerkat_service::{
    Seq,
    clock::Timestamp,
    session::{
        event::{CallRequested, PartialText, ReasoningDelta, TextDelta, TurnInterrupted, TurnTotals},
        message::{RawJson, ToolCall},
    },
    tool::Effect,
};

use super::*;

/// A response whose turn has started.
fn started() -> Unfold {
    let session_id = "01900000-0000-7000-8000-000000000001".parse().unwrap();
    let mut unfold = Unfold { id: ResponseId { session_id, seq: 2 }, ..Unfold::default() };
    assert!(unfold.take(record(2, Event::TurnStarted(TurnStarted::default()))).is_empty());
    unfold
}

fn record(seq: Seq, event: Event) -> Record {
    let session_id = "01900000-0000-7000-8000-000000000001".parse().unwrap();
    Record { session_id, seq, turn: Some(0), time: Timestamp::from_millis(0), event }
}

fn text(text: &str) -> Block {
    Block::Text { text: text.into() }
}

fn thought(text: &str) -> Block {
    Block::Reasoning { text: text.into(), opaque: None, vendor: "a".to_owned() }
}

fn call() -> Block {
    let (call_id, name) = ("call_3_0".to_owned(), "weather".to_owned());
    Block::ToolCall(ToolCall { call_id, name, arguments: RawJson::parse("{}").unwrap(), opaque: None })
}

fn message(blocks: Vec<Block>) -> Record {
    let (step, model, stop_reason) = (0, "scripted".to_owned(), StopReason::EndTurn);
    let (usage, cost, tools, context) = Default::default();
    record(
        3,
        Event::AssistantMessage(AssistantMessage { step, model, blocks, stop_reason, usage, cost, tools, context }),
    )
}

/// The live lines of a message's blocks, each text in two pieces, as they are counted there: texts on both sides of a
/// call are one block.
fn lines(blocks: &[Block]) -> Vec<LiveEvent> {
    let (mut lines, mut runs) = (Vec::new(), Vec::<(bool, u64)>::new());
    for block in blocks {
        let (is_reasoning, text) = match block {
            Block::Text { text: Body::Inline(text) } => (false, text),
            Block::Reasoning { text: Body::Inline(text), .. } => (true, text),
            _ => continue,
        };
        if runs.last().is_none_or(|(last, _)| *last != is_reasoning) {
            runs.push((is_reasoning, 0));
        }
        let (begin, end) = text.split_at(text.len() / 2);
        for piece in [begin, end] {
            let (step, block) = (0, u32::try_from(runs.len() - 1).unwrap());
            let (_, offset) = runs.last_mut().unwrap();
            lines.push(match is_reasoning {
                true => {
                    LiveEvent::ReasoningDelta(ReasoningDelta { step, block, offset: *offset, text: piece.to_owned() })
                }
                false => LiveEvent::TextDelta(TextDelta { step, block, offset: *offset, text: piece.to_owned() }),
            });
            *offset += piece.len() as u64;
        }
    }
    lines
}

/// What each item is and says, by the pieces alone: more of an item comes after it was opened and before it was closed.
fn said(unfold: &Unfold, pieces: &[Piece]) -> Vec<(Kind, String)> {
    let mut said: Vec<(String, bool)> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Opened(index) => {
                assert_eq!(*index, said.len(), "items are opened in order");
                said.push((String::new(), true));
            }
            Piece::More(index, more) => {
                assert!(said[*index].1, "it was closed before its text was whole: {pieces:?}");
                said[*index].0.push_str(more);
            }
            Piece::Closed(index) => assert!(std::mem::take(&mut said[*index].1), "it is closed once"),
        }
    }
    assert!(said.iter().all(|(_, is_open)| !is_open), "{pieces:?}");
    let said: Vec<(Kind, String)> =
        unfold.items.iter().zip(said).map(|(item, (text, _))| (item.kind.clone(), text)).collect();
    let whole: Vec<(Kind, String)> = unfold.items.iter().map(|item| (item.kind.clone(), item.text.clone())).collect();
    assert_eq!(said, whole, "the pieces are the items");
    said
}

/// The order of pieces, without their texts: with it the numbers of a stream's events agree.
fn order(pieces: &[Piece]) -> Vec<(char, usize)> {
    let mut order: Vec<(char, usize)> = pieces
        .iter()
        .map(|piece| match piece {
            Piece::Opened(index) => ('o', *index),
            Piece::More(index, _) => ('m', *index),
            Piece::Closed(index) => ('c', *index),
        })
        .collect();
    order.dedup();
    order
}

#[test]
fn live_pieces_are_those_of_the_record() {
    for blocks in [
        vec![text("One.")],
        vec![text("One."), call(), text("Two.")],
        vec![thought("Hm."), call(), text("Grüße.")],
        vec![text("One."), thought("Hm."), text("Two."), call()],
        vec![text("One."), text("Two.")],
        vec![thought(""), text("One."), thought(""), text("Two.")],
        vec![call(), call()],
        vec![],
    ] {
        let mut recorded = started();
        let pieces = recorded.take(message(blocks.clone()));
        let wanted = said(&recorded, &pieces);
        // What of each block is said, in the order of the items.
        let all: String = blocks
            .iter()
            .filter_map(|block| match block {
                Block::Text { text: Body::Inline(text) } | Block::Reasoning { text: Body::Inline(text), .. } => {
                    Some(text.as_str())
                }
                _ => None,
            })
            .collect();
        let runs = wanted.iter().filter(|(kind, _)| !matches!(kind, Kind::Call { .. }));
        assert_eq!(runs.map(|(_, text)| text.as_str()).collect::<String>(), all);
        assert!(!wanted.iter().any(|(kind, _)| matches!(kind, Kind::Call { .. })), "none was requested: {wanted:?}");
        // However many of the live lines come before the record.
        let lines = lines(&blocks);
        for count in 0..=lines.len() {
            let mut live = started();
            let mut shown: Vec<Piece> = lines[..count].iter().flat_map(|line| live.live(Some(0), line)).collect();
            shown.extend(live.take(message(blocks.clone())));
            assert_eq!(said(&live, &shown), wanted, "{count} lines of {blocks:?}");
            assert_eq!(order(&shown), order(&pieces), "{count} lines of {blocks:?}");
            assert_eq!(
                live.items.iter().map(|item| item.at).collect::<Vec<_>>(),
                recorded.items.iter().map(|item| item.at).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn an_empty_text_of_another_kind_parts_no_run() {
    let mut live = started();
    let delta =
        |block, text: &str| LiveEvent::TextDelta(TextDelta { step: 0, block, offset: 0, text: text.to_owned() });
    let empty = LiveEvent::ReasoningDelta(ReasoningDelta { step: 0, block: 1, offset: 0, text: String::new() });
    let mut pieces: Vec<Piece> =
        [delta(0, "One."), empty, delta(2, "Two.")].iter().flat_map(|line| live.live(Some(0), line)).collect();
    pieces.extend(live.take(message(vec![text("One."), thought(""), text("Two.")])));
    assert_eq!(said(&live, &pieces), [(Kind::Message, "One.Two.".to_owned())]);
}

#[test]
fn text_that_was_cut_off_comes_once() {
    let cut = |text: &str| record(3, Event::PartialText(PartialText { step: 0, text: text.into() }));
    let end =
        || record(4, Event::TurnInterrupted(TurnInterrupted { reason: String::new(), totals: TurnTotals::default() }));
    let lines = lines(&[text("One."), thought("Hm."), text("Two.")]);
    for count in 0..=lines.len() {
        let mut live = started();
        let mut pieces: Vec<Piece> = lines[..count].iter().flat_map(|line| live.live(Some(0), line)).collect();
        pieces.extend(live.take(cut("One.Two.")));
        pieces.extend(live.take(end()));
        let texts = said(&live, &pieces).into_iter().filter(|(kind, _)| *kind == Kind::Message);
        assert_eq!(texts.map(|(_, text)| text).collect::<String>(), "One.Two.", "{count}");
        assert!(matches!(live.ending, Some(Ending::Interrupted)));
    }
}

#[test]
fn a_live_line_of_another_turn_or_of_a_gap_shows_nothing() {
    let mut live = started();
    let delta =
        |offset, text: &str| LiveEvent::TextDelta(TextDelta { step: 0, block: 0, offset, text: text.to_owned() });
    assert!(live.live(Some(1), &delta(0, "No.")).is_empty());
    let mut pieces = live.live(Some(0), &delta(0, "One"));
    pieces.extend(live.live(Some(0), &delta(5, "lost")));
    pieces.extend(live.take(message(vec![text("One. lost")])));
    assert_eq!(said(&live, &pieces), [(Kind::Message, "One. lost".to_owned())]);
}

#[test]
fn an_answer_by_a_schema_is_shown_when_it_fits() {
    let output = meerkat_service::output::OutputSpec::new(RawJson::parse(r#"{"type":"object"}"#).unwrap());
    let terms = TurnStarted { output: Some(std::sync::Arc::new(output)), ..TurnStarted::default() };
    let mut unfold = started();
    unfold.take(record(2, Event::TurnStarted(terms)));
    let delta = LiveEvent::TextDelta(TextDelta { step: 0, block: 0, offset: 0, text: "{}".to_owned() });
    assert!(unfold.live(Some(0), &delta).is_empty());
    assert!(unfold.take(message(vec![text("[]")])).is_empty());
    let refused = meerkat_service::session::event::OutputRefused { errors: Vec::new() };
    assert!(unfold.take(record(4, Event::OutputRefused(refused))).is_empty());
    assert!(unfold.take(message(vec![text("{}")])).is_empty());
    let pieces = unfold.ended(Err(SessionError::StoreFailed));
    assert_eq!(said(&unfold, &pieces), [(Kind::Message, "{}".to_owned())]);
}

/// The other call is answered here, because its arguments are wrong for example.
#[test]
fn a_call_is_an_item_once_its_caller_is_to_run_it() {
    let mut unfold = started();
    let mut pieces = unfold.take(message(vec![text("One."), call(), call()]));
    let (call_id, name) = ("call_3_1".to_owned(), "weather".to_owned());
    let (arguments, effect) = (RawJson::parse(r#"{"city":"Rome"}"#).unwrap(), Effect::Once);
    let request = CallRequested { call_id, name, arguments, effect, deadline: Timestamp::from_millis(1) };
    pieces.extend(unfold.take(record(5, Event::CallRequested(request))));
    let said = said(&unfold, &pieces);
    assert_eq!(said[0], (Kind::Message, "One.".to_owned()));
    let Kind::Call { call_id, name } = &said[1].0 else { panic!("{said:?}") };
    assert!(call_id.ends_with("_3_1"), "{call_id}");
    assert_eq!((name.as_str(), said[1].1.as_str(), said.len()), ("weather", r#"{"city":"Rome"}"#, 2));
}
