//! A compactor that is written from the specification's text alone, and nothing but its four methods.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};

use super::{Bench, SUMMARY, WINDOW, Write, patient, rig, texts};
use crate::{
    ErrorCode,
    agent::tests::Subject,
    compaction::{CompactionConfig, CompactionContext, CompactionResult, Compactor},
    service::{CompactSession, CompactionMode, CreateSession, PinFact, Remind, SessionService as _, StartTurn},
    session::message::Message,
};

const PREFIX: &str = "[Context compacted] A previous context produced the following summary of work so far. \
                      The current tool and session state is preserved. \
                      Use this summary to continue without duplicating work:";

/// Retains the newest turn, and counts its rebuilds.
#[derive(Default)]
struct Literal {
    rebuilds: AtomicU32,
}

impl Compactor for Literal {
    fn should_compact(&self, ctx: &CompactionContext) -> bool {
        let is_guarded = ctx.last_compaction_turn.is_some_and(|last| ctx.current_turn - last < 3);
        let is_large = ctx.last_input_tokens >= 1_000 || ctx.estimated_history_tokens >= 1_000;
        is_large && !is_guarded
    }

    fn compaction_prompt(&self) -> &str {
        "Summarise."
    }

    fn max_summary_tokens(&self) -> u32 {
        100
    }

    fn rebuild_history(&self, messages: &[Message], summary: &str) -> CompactionResult {
        self.rebuilds.fetch_add(1, Ordering::Relaxed);
        let system: Vec<Message> =
            messages.iter().take_while(|message| matches!(message, Message::System { .. })).cloned().collect();
        let said = &messages[system.len()..];
        let newest = said.iter().rposition(|message| matches!(message, Message::User { .. })).unwrap_or(said.len());
        let (discarded, retained) = said.split_at(newest);
        let summary = Message::user(format!("{PREFIX}{summary}"));
        let messages = system.into_iter().chain([summary]).chain(retained.iter().cloned()).collect();
        CompactionResult { messages, discarded: discarded.to_vec() }
    }
}

impl Literal {
    /// A session that it compacts, in a window of so many tokens.
    async fn bench(window_tokens: u64) -> (Arc<Self>, Bench) {
        let compactor = Arc::<Self>::default();
        let (mut rig, model) = rig(window_tokens, patient());
        rig.compaction = None;
        rig.compactor = Some(compactor.clone());
        (compactor, Bench { model, subject: Subject::new(rig.service()).await })
    }

    fn rebuilds(&self) -> u32 {
        self.rebuilds.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_compactor_to_the_letter_compacts_and_rebuilds_once_for_each_summary() {
    let (compactor, bench) = Literal::bench(WINDOW).await;
    bench.fill().await;
    bench.turn("@say Here.").await;
    let compacted = |turn: u32| (json!(turn), "summary".to_owned());
    assert_eq!((bench.outcomes().await, compactor.rebuilds()), (vec![compacted(2)], 1));
    // The model read all of the context and the prompt, and is told the summary from then on.
    let asked = bench.requests(true).remove(0);
    assert_eq!(asked.messages.len(), 6, "{:?}", texts(&asked));
    assert_eq!(asked.messages[5].text(), "Summarise.");
    let told = bench.requests(false).pop().unwrap();
    assert_eq!(texts(&told), [format!("{PREFIX}\n\n{SUMMARY}"), "@say Here.".to_owned()]);
    // The next one takes the place of the first, whose summary the model has read.
    bench.fill().await;
    bench.turn("@say Again.").await;
    assert_eq!((bench.outcomes().await, compactor.rebuilds()), (vec![compacted(2), compacted(5)], 2));
    assert_eq!(bench.requests(true).remove(1).messages[0].text(), format!("{PREFIX}\n\n{SUMMARY}"));
    let told = bench.requests(false).pop().unwrap();
    assert_eq!(texts(&told), [format!("{PREFIX}\n\n{SUMMARY}"), "@say Again.".to_owned()]);
    // So it is on request.
    bench.turn("@long 2400").await;
    bench.turn("@say Over.").await;
    let receipt = bench.compact().await.unwrap();
    assert_eq!((receipt.mode, receipt.retained, receipt.discarded), (CompactionMode::Summary, 2, 4));
    assert_eq!(compactor.rebuilds(), 3);
}

/// It knows no reminders and no pins, and loses none.
#[tokio::test]
async fn a_compactor_to_the_letter_keeps_reminders_and_pins() {
    let (_, bench) = Literal::bench(WINDOW).await;
    let (service, session_id) = (&bench.subject.service, bench.id());
    service.pin(PinFact { session_id, text: "a fact".to_owned() }).await.unwrap();
    let (kind, text) = ("git_status".parse().unwrap(), "a state".to_owned());
    service.remind(Remind { session_id, kind, text }).await.unwrap();
    bench.fill().await;
    bench.turn("@say Here.").await;
    assert_eq!(bench.outcomes().await, [(json!(2), "summary".to_owned())]);
    let told = bench.requests(false).pop().unwrap();
    let tail = told.tail.unwrap();
    assert!(tail.contains("a fact") && tail.contains("a state"), "{tail}");
}

#[tokio::test]
async fn a_compactor_to_the_letter_fails_as_any_does() {
    let (compactor, bench) = Literal::bench(WINDOW).await;
    assert_eq!(bench.compact().await.unwrap_err().code(), ErrorCode::CompactionNoProgress);
    assert_eq!((bench.requests(true).len(), bench.outcomes().await.len()), (0, 0), "nothing was said yet");
    bench.turn("@say Hello.").await;
    // It cannot say before that nothing would leave.
    assert_eq!(bench.compact().await.unwrap_err().code(), ErrorCode::CompactionNoProgress);
    assert_eq!(bench.outcomes().await, [(Value::Null, "COMPACTION_NO_PROGRESS".to_owned())]);
    assert_eq!((bench.requests(true).len(), compactor.rebuilds()), (1, 1));
    bench.fill().await;
    // Without a summary there is nothing to rebuild.
    bench.writes([Write::Failure(ErrorCode::ModelRejected)]);
    assert_eq!(bench.compact().await.unwrap_err().code(), ErrorCode::ModelRejected);
    assert_eq!((bench.outcomes().await.len(), compactor.rebuilds()), (2, 1));
    // A preview calls no model.
    let asked = bench.requests(true).len();
    let request = CompactSession { session_id: bench.id(), compaction: None };
    let preview = bench.subject.service.preview_compaction(request).await.unwrap();
    assert_eq!((preview.retained, preview.discarded, bench.requests(true).len()), (2, 4, asked));
    // It counts the longest summary: one of 100 tokens.
    let receipt = bench.compact().await.unwrap();
    let (summary, spare) = (SUMMARY.len() as u64, preview.tokens_after - receipt.tokens_after);
    assert!((spare + 1) * 4 >= 400 - summary && spare * 4 <= 403 - summary, "{preview:?} {receipt:?}");
}

/// Where the model writes no summary and the next request would not fit, the engine writes one. What leaves it knows
/// from one more rebuild.
#[tokio::test]
async fn a_compactor_to_the_letter_has_a_mechanical_summary_where_nothing_else_helps() {
    let (compactor, bench) = Literal::bench(1_600).await;
    bench.writes([Write::Failure(ErrorCode::ModelRejected)]);
    for prompt in ["@long 2400", "@long 4800", "@say Here."] {
        bench.turn(prompt).await;
    }
    assert_eq!((bench.outcomes().await, compactor.rebuilds()), (vec![(json!(2), "mechanical".to_owned())], 2));
    let told = bench.requests(false).pop().unwrap();
    assert!(texts(&told)[0].contains("@long 4800"), "{:?}", texts(&told));
}

/// It takes no settings, so a request that has some is refused: nobody is to think that they count.
#[tokio::test]
async fn settings_for_a_compactor_of_ones_own_are_refused() {
    let (_, bench) = Literal::bench(WINDOW).await;
    let (service, session_id) = (&bench.subject.service, bench.id());
    let compaction = Some(CompactionConfig::default());
    let refused = [
        service.create_session(CreateSession { compaction, ..CreateSession::default() }).await.unwrap_err(),
        service.start_turn(StartTurn { compaction, ..StartTurn::new(session_id, "@say Hi.") }).await.unwrap_err(),
        service.compact(CompactSession { session_id, compaction }).await.unwrap_err(),
        service.preview_compaction(CompactSession { session_id, compaction }).await.unwrap_err(),
    ];
    for error in refused {
        let body = error.body();
        assert_eq!(
            (body.code, body.details.get("field")),
            (ErrorCode::InvalidRequest, Some(&json!("compaction"))),
            "{body:?}"
        );
        assert!(body.message.contains("leave them out"), "{}", body.message);
    }
    bench.turn("@say Hello.").await;
}
