//! A reading of records without `Session`, which `apply` is compared with.

use meerkat_errors::ErrorCode;

use crate::{
    ids::{Seq, TurnNumber},
    session::{
        event::{ContextRebuilt, Event, Record, ToolOutcome},
        message::{Attached, AttachedFile, BlobRef, Block, Body, Image, Message, ToolResult},
    },
};

/// The context, read from the records without `Session`.
#[derive(Default)]
pub(super) struct Naive {
    pub(super) summary: Option<Message>,
    pub(super) entries: Vec<(Seq, TurnNumber, Message)>,
    /// Bytes of each entry.
    pub(super) sizes: Vec<u64>,
    pub(super) count: u64,
    /// Text of an answer that was cut off, while its turn does not go on.
    partial: Option<(Seq, Message)>,
}

impl Naive {
    pub(super) fn read(records: &[Record]) -> Self {
        Self::without(records, None)
    }

    /// Like `read`, as if one more compaction were undone. An undone compaction never happened.
    pub(super) fn without(records: &[Record], one_more: Option<Seq>) -> Self {
        let undone = records.iter().filter_map(|record| match &record.event {
            Event::CompactionUndone(undone) => Some(undone.compaction),
            _ => None,
        });
        let undone: Vec<Seq> = undone.chain(one_more).collect();
        let mut naive = Self::default();
        for (at, record) in records.iter().enumerate() {
            naive.partial(record);
            match &record.event {
                Event::HistoryGiven(given) => {
                    let turn = Some(u32::MAX - given.exchange);
                    naive.say(&Record { turn, ..record.clone() }, Some(given.message.clone()));
                }
                Event::TurnStarted(started) => {
                    let queued = started.queued.map(|seq| &records[usize::try_from(seq).unwrap() - 1].event);
                    let (prompt, blocks) = match queued {
                        Some(Event::TurnQueued(queued)) => (Some(queued.prompt.clone()), &queued.blocks),
                        Some(Event::TurnEdited(edited)) => (edited.prompt.clone(), &edited.blocks),
                        _ => (started.prompt.clone(), &started.blocks),
                    };
                    let is_taken_over = |entry: &&mut (Seq, TurnNumber, Message)| Some(entry.1) == started.continues;
                    naive.entries.iter_mut().filter(is_taken_over).for_each(|entry| entry.1 = record.turn.unwrap());
                    naive.say(record, prompt.map(|content| user(content, blocks)));
                }
                Event::SteeringEntered(entered) => {
                    let Event::TurnSteered(steered) = &records[usize::try_from(entered.steered).unwrap() - 1].event
                    else {
                        panic!("a text enters that was not steered");
                    };
                    naive.say(record, Some(user(steered.prompt.clone(), &steered.blocks)));
                }
                Event::AssistantMessage(answer) => {
                    let (model, blocks) = (answer.model.clone(), answer.blocks.clone());
                    naive.say(record, Some(Message::BlockAssistant { model, blocks }));
                }
                Event::ToolFinished(_) => naive.say(record, results(&naive.entries, &records[..=at])),
                Event::TurnFailed(failed) if failed.error.code == ErrorCode::ContextOverflow => {
                    naive.drop_turn(record.turn.unwrap());
                }
                Event::ContextRebuilt(rebuilt) if !undone.contains(&rebuilt.compaction) => naive.rebuild(rebuilt),
                _ => {}
            }
        }
        naive.sizes = naive.entries.iter().map(|(_, _, message)| size(message)).collect();
        naive
    }

    /// A turn that does not complete ends with what had come of its last answer, and a steered text comes behind it.
    fn partial(&mut self, record: &Record) {
        let content = |text: &Body| match text {
            Body::Inline(text) => Body::Inline(format!("{} [cut off]", text.trim_end()).trim_start().to_owned()),
            Body::Blob(blob) => {
                let tail = format!("{} [cut off]", blob.tail.trim_end()).trim_start().to_owned();
                Body::Blob(BlobRef { tail, ..blob.clone() })
            }
        };
        match &record.event {
            Event::PartialText(partial) => {
                self.partial = Some((record.seq, Message::Assistant { content: content(&partial.text) }));
            }
            Event::SteeringEntered(_) | Event::TurnFailed(_) | Event::TurnInterrupted(_) => {
                if let Some((seq, message)) = self.partial.take() {
                    self.say(&Record { seq, ..record.clone() }, Some(message));
                }
            }
            Event::AssistantMessage(_) | Event::ToolFinished(_) | Event::ContextRebuilt(_) => self.partial = None,
            _ => {}
        }
    }

    fn say(&mut self, record: &Record, message: Option<Message>) {
        let Some(message) = message else { return };
        self.entries.push((record.seq, record.turn.unwrap(), message));
        self.count += 1;
    }

    /// Of a turn that did not fit the heads of its prompt and of what was added are left, and a line for each call.
    fn drop_turn(&mut self, turn: TurnNumber) {
        let (dropped, kept) = std::mem::take(&mut self.entries).into_iter().partition(|(_, of, _)| *of == turn);
        self.entries = kept;
        let dropped: Vec<(Seq, TurnNumber, Message)> = dropped;
        let cut = |text: &str| {
            let line = text[..text.floor_char_boundary(120)].replace(|c: char| c.is_control(), " ");
            if text.len() > 120 { format!("{line} ...") } else { line }
        };
        let mut lines = Vec::new();
        for (at, (.., message)) in dropped.iter().enumerate() {
            let Message::ToolResults { results } = message else { continue };
            for (result, call) in results.iter().zip(dropped[at - 1].2.tool_calls()) {
                let outcome = match (result.is_error, says_unknown(result)) {
                    (false, _) => "succeeded",
                    (true, true) => "outcome unknown; verify before repeating",
                    (true, false) => "failed",
                };
                lines.push(format!("- {} {}: {outcome}", result.name, cut(call.arguments.as_str())));
            }
        }
        let head = |whole: &str| {
            let head = &whole[..whole.floor_char_boundary(1024)];
            format!("{head}{}", if head == whole { "" } else { " [...]" })
        };
        let mut added = Vec::new();
        for (.., message) in dropped.iter().skip(1) {
            if let Message::User { content, blocks } = message {
                added.push(head(&said(content, blocks)));
            }
        }
        while added.iter().map(String::len).sum::<usize>() > 4096 {
            added.remove(0);
        }
        let is_empty = lines.is_empty() && !dropped.iter().skip(1).any(|(.., it)| matches!(it, Message::User { .. }));
        let Some((seq, _, first)) = dropped.first().filter(|_| !is_empty) else { return };
        let bytes: u64 = dropped.iter().map(|(.., message)| size(message)).sum();
        let room = usize::try_from(bytes / 3).unwrap().min(16 * 1024);
        let mut left_out = 0;
        while lines[left_out..].iter().map(|line| line.len() + 1).sum::<usize>() > room {
            left_out += 1;
        }
        let mut text = String::new();
        if let Message::User { content, blocks } = first {
            text = format!("{}\n\n", head(&said(content, blocks)));
        }
        added.iter().for_each(|said| text += &format!("[Added while it ran:]\n{said}\n\n"));
        text += match lines.is_empty() {
            true => "[This turn did not fit the model's window, and the rest of it left the context.]",
            false => "[This turn did not fit the model's window, and the rest of it left the context. It had called:]",
        };
        if left_out > 0 {
            text += &format!("\n[{left_out} older calls]");
        }
        lines[left_out..].iter().for_each(|line| text += &format!("\n{line}"));
        self.entries.push((*seq, turn, Message::user(text)));
    }

    fn rebuild(&mut self, rebuilt: &ContextRebuilt) {
        self.entries.retain(|(seq, ..)| rebuilt.retained.iter().any(|(from, to)| from <= seq && seq <= to));
        for (seq, _, message) in &mut self.entries {
            let Message::ToolResults { results } = message else { continue };
            for result in results.iter_mut().filter(|_| rebuilt.masked.contains(seq)) {
                if !result.content.excerpt().starts_with("[masked: ") && !says_unknown(result) {
                    let bytes = result.content.len();
                    result.content = format!("[masked: {bytes} bytes, in event {seq} of the history]").into();
                }
            }
        }
        if let Some(summary) = &rebuilt.summary {
            // The specification's words.
            let prefix = "[Context compacted] A previous context produced the following summary of work so far. The \
                          current tool and session state is preserved. Use this summary to continue without \
                          duplicating work:";
            self.summary = Some(Message::user(format!("{prefix}\n\n{}", summary.excerpt())));
        }
    }

    pub(super) fn bytes_from(&self, start: usize) -> u64 {
        self.sizes[start..].iter().sum()
    }

    pub(super) fn start_within(&self, bytes: u64) -> usize {
        let begins = |&at: &usize| at == 0 || self.entries[at - 1].1 != self.entries[at].1;
        let starts: Vec<usize> = (0..self.entries.len()).filter(begins).collect();
        let fitting = starts.iter().find(|&&start| self.bytes_from(start) <= bytes);
        fitting.or(starts.last()).copied().unwrap_or(0)
    }
}

/// That an outcome is unknown is short, and never masked.
fn says_unknown(result: &ToolResult) -> bool {
    let text = "Outcome unknown; verify before repeating.";
    result.is_error && result.content.len() <= 128 && result.content.excerpt().starts_with(text)
}

/// Blobs are sent to the model whole, except tool results.
pub(super) fn size(message: &Message) -> u64 {
    let bodies: Vec<&Body> = match message {
        Message::User { content, .. } | Message::Assistant { content } => vec![content],
        Message::BlockAssistant { blocks, .. } => {
            let texts = blocks.iter().filter_map(|block| match block {
                Block::Text { text } | Block::Reasoning { text, .. } => Some(text),
                Block::ToolCall(_) => None,
            });
            texts.collect()
        }
        _ => Vec::new(),
    };
    let whole = bodies.into_iter().map(|body| if let Body::Blob(blob) = body { blob.bytes } else { 0 }).sum::<u64>();
    let blocks = if let Message::User { blocks, .. } = message { blocks.as_slice() } else { &[] };
    let of_block = |block: &Attached| match block {
        Attached::Image(_) => 6_400,
        Attached::File(file) if file.media_type == "application/pdf" => {
            file.pages.map_or(file.bytes.div_ceil(1 << 20), u64::from).clamp(1, 1_000) * 6_400
        }
        Attached::File(file) => file.bytes.min(65_536),
    };
    serde_json::to_vec(message).unwrap().len() as u64 + whole + blocks.iter().map(of_block).sum::<u64>()
}

/// A prompt as the context has it: no name in it can begin one of our tags.
fn user(content: Body, blocks: &[Attached]) -> Message {
    let named = |block: &Attached| match block {
        Attached::File(file) => {
            let [name, media_type] = [&file.name, &file.media_type].map(|text| text.replace("<pin", "&lt;pin"));
            Attached::File(AttachedFile { name, media_type, ..file.clone() })
        }
        Attached::Image(image) => {
            let media_type = image.media_type.replace("<pin", "&lt;pin");
            Attached::Image(Image { media_type, ..image.clone() })
        }
    };
    Message::User { content, blocks: blocks.iter().map(named).collect() }
}

/// A line for each block of these tests, before the text.
fn said(content: &Body, blocks: &[Attached]) -> String {
    let mut files = 0;
    let line = |block: &Attached| match block {
        Attached::Image(image) => format!("[Image 1: image/png, 3 x 5 pixels, {} bytes]\n", image.bytes),
        Attached::File(file) => {
            files += 1;
            format!("[File {files}: {}, {}, {} bytes]\n", file.name, file.media_type, file.bytes)
        }
    };
    let lines: String = blocks.iter().map(line).collect();
    let text = content.excerpt();
    if text.is_empty() { lines.trim_end_matches('\n').to_owned() } else { lines + &text }
}

/// The results of the last answer in call order, once the last of them is there.
fn results(entries: &[(Seq, TurnNumber, Message)], records: &[Record]) -> Option<Message> {
    let result = |call_id: &String| {
        records.iter().find_map(|record| match &record.event {
            Event::ToolFinished(finished) if finished.call_id == *call_id => Some(ToolResult {
                call_id: call_id.clone(),
                name: finished.name.clone(),
                is_error: finished.outcome != ToolOutcome::Succeeded,
                content: finished.output.clone(),
                images: finished.images.clone(),
            }),
            _ => None,
        })
    };
    let calls = entries.last().unwrap().2.tool_calls();
    calls.map(|call| result(&call.call_id)).collect::<Option<_>>().map(|results| Message::ToolResults { results })
}
