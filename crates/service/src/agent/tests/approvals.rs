//! Decisions with a scope: what they allow, where it is kept, and what refuses them.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::{
    Bench, Rig, Subject,
    faults::{Fault, Fuse},
};
use crate::{
    ErrorCode, SessionError,
    clock::SystemClock,
    service::{DecideApproval, InterruptTurn, ResumeTurn, SessionService as _, StartTurn, TurnResult},
    session::event::{Decision, Scope},
    tool::{RuleKeeper, TurnAccess, test_tools::test_tools},
};

/// Keeps rules, or fails.
#[derive(Default)]
struct Kept {
    rules: Mutex<Vec<String>>,
    fails: AtomicBool,
}

impl RuleKeeper for Kept {
    fn remember(&self, rule: &str) -> Result<(), SessionError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(SessionError::Internal("no room".to_owned()));
        }
        self.rules.lock().unwrap().push(rule.to_owned());
        Ok(())
    }
}

/// Change of a rig.
type Change = fn(&mut Rig);

impl Bench {
    async fn decide(&self, call_id: &str, decision: Decision, scope: Scope) -> Result<u64, SessionError> {
        let decided = DecideApproval { scope, ..DecideApproval::new(self.subject.session_id, call_id, decision) };
        self.subject.service.decide_approval(decided).await.map(|changed| changed.seq)
    }

    /// Runs a turn that nobody attends.
    async fn alone(&self, arguments: &str, allow: &[&str]) -> TurnResult {
        let allow = allow.iter().map(|rule| (*rule).to_owned()).collect();
        let turn = StartTurn { allow, ..StartTurn::new(self.subject.session_id, calling(arguments)) };
        self.subject.service.start_turn(turn).await.unwrap()
    }

    async fn allowed(&self) -> Vec<String> {
        self.subject.service.read(&self.subject.session_id).await.unwrap().allowed_rules
    }
}

fn calling(arguments: &str) -> String {
    format!("@call test_ask {arguments} @say Done.")
}

const LASTING: &str = r#"{"name":"log","line":"x","lasting":true}"#;

#[tokio::test]
async fn a_scope_of_the_session_allows_what_its_rule_matches_from_here_on() {
    let bench = Bench::new(|_| {}).await;
    let call_id = bench.asks(&calling(LASTING)).await;
    let asked = bench.subject.events().await.pop().unwrap();
    assert_eq!((&asked["preview"], &asked["rule"]), (&"+x".into(), &"test_ask: log".into()));
    let view = bench.subject.service.read(&bench.subject.session_id).await.unwrap();
    let pending = &view.pending_approvals[0];
    assert_eq!((pending.preview.as_deref(), pending.rule.as_deref()), (Some("+x"), Some("test_ask: log")));
    let seq = bench.decide(&call_id, Decision::Approve, Scope::Session).await.unwrap();
    let events = bench.ended().await;
    let at = usize::try_from(seq).unwrap() - 1;
    assert_eq!((&events[at]["type"], &events[at]["scope"]), (&"approval_decided".into(), &"session".into()));
    let allowed = &events[at + 1];
    assert_eq!(
        (&allowed["type"], &allowed["rule"], &allowed["call_id"]),
        (&"tool_allowed".into(), &"test_ask: log".into(), &call_id.as_str().into())
    );
    assert_eq!(bench.allowed().await, ["test_ask: log"]);
    assert_eq!(bench.alone(LASTING, &[]).await.tool_calls, 1);
    let other = r#"{"name":"other","line":"x","lasting":true}"#;
    assert_eq!(bench.alone(other, &[]).await.tool_calls, 0, "the rule is of another file");
    // The decision is one; another extent is another decision.
    assert_eq!(
        bench.decide(&call_id, Decision::Approve, Scope::Session).await.unwrap_err().code(),
        ErrorCode::ItemNotFound
    );
    let call_id = bench.asks(&calling(other)).await;
    let once = bench.decide(&call_id, Decision::Approve, Scope::Once).await.unwrap();
    assert_eq!(bench.decide(&call_id, Decision::Approve, Scope::Once).await.unwrap(), once);
    let wider = bench.decide(&call_id, Decision::Approve, Scope::Session).await.unwrap_err();
    assert_eq!(wider.code(), ErrorCode::IdempotencyConflict);
    assert_eq!(bench.allowed().await, ["test_ask: log"]);
}

#[tokio::test]
async fn rules_of_a_turn_hold_for_that_turn() {
    let bench = Bench::new(|_| {}).await;
    assert_eq!(bench.alone(LASTING, &["test_ask: log"]).await.tool_calls, 1);
    assert_eq!(bench.alone(LASTING, &["test_ask: other"]).await.tool_calls, 0);
    assert_eq!(bench.alone(LASTING, &[]).await.tool_calls, 0);
    assert_eq!(bench.allowed().await, [""; 0]);
    for (rules, word) in [(vec!["no rule!".to_owned()], "no rule"), (vec!["edit".to_owned(); 65], "at most 64")] {
        let turn = StartTurn { allow: rules, ..StartTurn::new(bench.subject.session_id, "@say Never.") };
        let refused = bench.subject.service.start_turn(turn).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidRequest);
        assert!(refused.to_string().contains(word), "{refused}");
    }
}

/// The access of a turn only takes away: neither a rule of the turn nor a tool that never asks is above it.
#[tokio::test]
async fn a_turn_may_do_less_than_the_configuration_allows() {
    let bench = Bench::new(|_| {}).await;
    let session_id = bench.subject.session_id;
    let line = r#"{"name":"log","line":"x"}"#;
    for (tool, arguments, access, allow, runs) in [
        ("test_append", line, None, "", 1),
        ("test_append", line, Some(TurnAccess::Ask), "", 0),
        ("test_append", line, Some(TurnAccess::Ask), "test_append", 1),
        ("test_append", line, Some(TurnAccess::Read), "", 0),
        ("test_append", line, Some(TurnAccess::Read), "test_append", 0),
        ("test_ask", LASTING, Some(TurnAccess::Ask), "test_ask: log", 1),
        ("test_ask", LASTING, Some(TurnAccess::Read), "test_ask: log", 0),
        ("test_echo", r#"{"text":"x"}"#, Some(TurnAccess::Ask), "", 1),
        ("test_echo", r#"{"text":"x"}"#, Some(TurnAccess::Read), "", 1),
    ] {
        let allow = Some(allow.to_owned()).filter(|rule| !rule.is_empty()).into_iter().collect();
        let prompt = format!("@call {tool} {arguments} @echo last_result");
        let turn = StartTurn { access, allow, ..StartTurn::new(session_id, prompt) };
        let ended = bench.subject.service.start_turn(turn).await.unwrap();
        assert_eq!(ended.tool_calls, runs, "{tool} {access:?}: {}", ended.text);
        let says_so = ended.text.contains("This turn may change nothing");
        assert_eq!(says_so, access == Some(TurnAccess::Read) && runs == 0, "{}", ended.text);
    }
    // A person decides on a call that would run without a question otherwise.
    let prompt = format!("@call test_append {line} @say Done.");
    let turn = StartTurn { access: Some(TurnAccess::Ask), attended: true, ..StartTurn::new(session_id, prompt) };
    let turn = bench.subject.service.begin_turn(turn).await.unwrap();
    let call_id = bench.subject.asked().await;
    bench.decide(&call_id, Decision::Approve, Scope::Once).await.unwrap();
    assert_eq!(turn.result.await.unwrap().tool_calls, 1);
}

/// A turn that was begun with less access does not go on with more, but with less it may.
#[tokio::test]
async fn a_turn_that_goes_on_keeps_its_access() {
    for (begun, asked, then) in [
        (Some(TurnAccess::Read), None, "read"),
        (Some(TurnAccess::Read), Some(TurnAccess::Ask), "read"),
        (Some(TurnAccess::Ask), Some(TurnAccess::Read), "read"),
        (None, Some(TurnAccess::Ask), "ask"),
    ] {
        let bench = Bench::new(|_| {}).await;
        let (service, session_id) = (&bench.subject.service, bench.subject.session_id);
        let turn = StartTurn { access: begun, ..StartTurn::new(session_id, "@say A @stall") };
        let turn = service.begin_turn(turn).await.unwrap();
        service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
        turn.result.await.unwrap();
        let resumed = service.begin_resume(&session_id, ResumeTurn { access: asked, ..ResumeTurn::default() }).await;
        resumed.unwrap();
        let events = bench.subject.events().await;
        let started = events.iter().rfind(|event| event["type"] == "turn_started").unwrap();
        assert!(!started["continues"].is_null(), "{started}");
        assert_eq!(started["access"], then, "{begun:?} {asked:?}");
        service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    }
}

#[tokio::test]
async fn a_scope_that_cannot_be_kept_is_refused_and_the_call_waits_on() {
    let without = |rig: &mut Rig| rig.rule_keeper = Some(Arc::new(Kept::default()));
    let plain = r#"{"name":"log","line":"x"}"#;
    let (approve, deny) = (Decision::Approve, Decision::Deny);
    let nothing = |_: &mut Rig| {};
    let cases: [(&str, Change, Decision, Scope, ErrorCode, &str); 3] = [
        (plain, nothing, approve, Scope::Session, ErrorCode::InvalidRequest, "once only"),
        (LASTING, nothing, deny, Scope::Session, ErrorCode::InvalidRequest, "denial"),
        (LASTING, without, approve, Scope::Always, ErrorCode::InvalidRequest, "scope `session`"),
    ];
    for (arguments, change, decision, scope, code, word) in cases {
        let bench = Bench::new(change).await;
        assert!(!bench.subject.service.capabilities().view().keeps_rules, "so no caller need offer it");
        let call_id = bench.asks(&calling(arguments)).await;
        let refused = bench.decide(&call_id, decision, scope).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.to_string().contains(word), "{refused}");
        let events = bench.subject.events().await;
        assert_eq!(events.last().unwrap()["type"], "approval_requested", "nothing was recorded");
        bench.decide(&call_id, Decision::Deny, Scope::Once).await.unwrap();
        bench.ended().await;
    }
}

/// A rule that is kept although its decision was lost would allow more than anybody decided.
#[tokio::test]
async fn a_rule_for_always_holds_in_the_session_and_is_kept_after_the_decision() {
    for fails in [false, true] {
        let kept = Arc::new(Kept { fails: fails.into(), ..Kept::default() });
        let keeper = kept.clone();
        let bench = Bench::new(|rig| {
            rig.options.tools.remember = true;
            rig.rule_keeper = Some(keeper);
        })
        .await;
        assert!(bench.subject.service.capabilities().view().keeps_rules);
        let call_id = bench.asks(&calling(LASTING)).await;
        let seq = bench.subject.events().await.len() as u64 + 1;
        match bench.decide(&call_id, Decision::Approve, Scope::Always).await {
            Ok(decided) => assert!(decided == seq && !fails),
            Err(error) => {
                assert!(fails && error.code() == ErrorCode::ConfigInvalid, "{error}");
                let text = error.to_string();
                assert!(["is approved", "in this session", "no room"].iter().all(|word| text.contains(word)), "{text}");
            }
        }
        bench.ended().await;
        let rules: &[&str] = if fails { &[] } else { &["test_ask: log"] };
        assert_eq!(*kept.rules.lock().unwrap(), rules);
        assert_eq!(bench.allowed().await, ["test_ask: log"]);
        let again = bench.decide(&call_id, Decision::Approve, Scope::Always).await;
        assert_eq!(again.map_err(|error| error.code()), if fails { Err(ErrorCode::ConfigInvalid) } else { Ok(seq) });
        kept.fails.store(false, Ordering::Relaxed);
        assert_eq!(bench.decide(&call_id, Decision::Approve, Scope::Always).await.unwrap(), seq);
        assert_eq!(kept.rules.lock().unwrap().last().unwrap(), "test_ask: log");
        assert_eq!(bench.alone(LASTING, &[]).await.tool_calls, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_for_always_is_not_kept_if_its_decision_is_lost() {
    let kept = Arc::new(Kept::default());
    let dir = meerkat_testkit::folder();
    let mut rig = Rig::new(test_tools(dir.path().to_owned(), Arc::new(SystemClock::new())));
    rig.options.tools.remember = true;
    rig.rule_keeper = Some(kept.clone());
    // The creation, the start, the answer and the question are written.
    let subject = Subject::new(rig.faulty(Fault::LostWrite, &Fuse::new(4, 1))).await;
    let prompt = format!("@call test_ask {LASTING} @say Done.");
    subject.service.accept_turn(StartTurn::new(subject.session_id, prompt)).await.unwrap();
    let call_id = subject.asked().await;
    let decided = DecideApproval::new(subject.session_id, call_id, Decision::Approve);
    let lost = subject.service.decide_approval(DecideApproval { scope: Scope::Always, ..decided }).await.unwrap_err();
    assert_eq!(lost.code(), ErrorCode::StoreFailed);
    assert!(kept.rules.lock().unwrap().is_empty());
}
