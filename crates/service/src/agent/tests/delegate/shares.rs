//! Properties of random trees: no session of a tree passes the budgets or the rules of its root.

use meerkat_testkit::cases;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Place, Subject, check_journal};
use crate::{
    options::{Budgets, Unattended},
    service::{CreateSession, SessionService as _, StartTurn},
    tool::{Approval, TurnAccess},
};

/// Work of one session: its steps, in order.
#[derive(Clone, Debug)]
enum Step {
    Look,
    Fail,
    /// Sub-agents of one message, with budgets of tokens and steps.
    Delegate(Vec<(Option<u64>, Option<u64>, Vec<Step>)>),
}

fn work() -> impl Strategy<Value = Vec<Step>> {
    let leaf = prop::collection::vec(prop_oneof![4 => Just(Step::Look), 1 => Just(Step::Fail)], 0..4);
    leaf.prop_recursive(3, 24, 4, |below| {
        let asked = || prop::option::weighted(0.3, 1..40_u64);
        let delegate = prop::collection::vec((asked(), asked(), below), 1..6).prop_map(Step::Delegate);
        prop::collection::vec(prop_oneof![2 => delegate, 1 => Just(Step::Look)], 0..4)
    })
}

/// The script of a work. Each step uses seven tokens.
fn script(work: &[Step]) -> String {
    let mut script = String::new();
    for step in work {
        match step {
            Step::Look => script.push_str("@call look {} @usage in=5 out=2 @step "),
            Step::Fail => return script + "@fail rejected ",
            Step::Delegate(agents) => {
                for (tokens, steps, below) in agents {
                    let budget = Budgets { tokens: *tokens, steps: *steps, ..Budgets::default() };
                    let call = json!({ "prompt": self::script(below), "budget": budget });
                    script.push_str(&format!("@call delegate {call} "));
                }
                script.push_str("@usage in=5 out=2 @step ");
            }
        }
    }
    script + "@say Done. @usage in=5 out=2 "
}

/// What the journal of a session shows of its first turn.
#[derive(Debug, Default, PartialEq)]
struct Used {
    steps: u64,
    tokens: u64,
    tool_calls: u64,
    agents: u64,
}

/// Goes over a journal: no model call and no sub-agent begins beyond a limit, and what a turn and its sub-agents used is
/// what its end says. Returns what the turn itself used.
fn check_ledger(events: &[Value]) -> Used {
    let limit = |name: &str| {
        let started = events.iter().find(|event| event["type"] == "turn_started").unwrap();
        started["budgets"][name].as_u64().unwrap_or(u64::MAX)
    };
    let of = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0);
    let (mut own, mut theirs, mut kept) = (Used::default(), Used::default(), Vec::<(Value, Used)>::new());
    for event in events {
        let sum = |of: fn(&Used) -> u64, own: &Used, theirs: &Used, kept: &[(Value, Used)]| {
            of(own) + of(theirs) + kept.iter().map(|(_, kept)| of(kept)).sum::<u64>()
        };
        match event["type"].as_str().unwrap() {
            "assistant_message" => {
                assert!(kept.is_empty(), "a model call beside sub-agents");
                assert!(sum(|used| used.steps, &own, &theirs, &kept) < limit("steps"), "{events:#?}");
                assert!(sum(|used| used.tokens, &own, &theirs, &kept) < limit("tokens"), "{events:#?}");
                own.steps += 1;
                own.tokens += of(&event["usage"], "input_tokens") + of(&event["usage"], "output_tokens");
            }
            "tool_started" => own.tool_calls += 1,
            "delegate_started" => {
                own.tool_calls += 1;
                let reserved = &event["reserved"];
                let [steps, tokens, tool_calls] = ["steps", "tokens", "tool_calls"].map(|name| of(reserved, name));
                let agents = of(reserved, "agents") + 1;
                kept.push((event["call_id"].clone(), Used { steps, tokens, tool_calls, agents }));
                // The turn keeps a step.
                assert!(sum(|used| used.steps, &own, &theirs, &kept) < limit("steps"), "{events:#?}");
                assert!(sum(|used| used.tokens, &own, &theirs, &kept) <= limit("tokens"), "{events:#?}");
                assert!(sum(|used| used.tool_calls, &own, &theirs, &kept) <= limit("tool_calls"), "{events:#?}");
                assert!(sum(|used| used.agents, &own, &theirs, &kept) <= limit("agents"), "{events:#?}");
                assert!(kept.len() <= 4, "{events:#?}");
            }
            "tool_finished" => {
                let before = kept.len();
                kept.retain(|(call_id, _)| *call_id != event["call_id"]);
                let used = &event["delegated"];
                assert_eq!(kept.len() < before, !used.is_null(), "{event}");
                theirs.steps += of(used, "steps");
                theirs.tokens += of(used, "tokens");
                theirs.tool_calls += of(used, "tool_calls");
                theirs.agents += of(used, "agents");
            }
            _ => {}
        }
    }
    assert!(kept.is_empty(), "nothing is kept at the end");
    let totals = &events.last().unwrap()["totals"];
    let total = |name: &str| of(&totals["delegated"], name);
    let said = Used {
        steps: total("steps"),
        tokens: total("tokens"),
        tool_calls: total("tool_calls"),
        agents: total("agents"),
    };
    assert_eq!(said, theirs);
    own
}

async fn check_tree(steps: u64, tokens: u64, work: Vec<Step>) {
    let place = Place::new();
    let subject = Subject::new(place.process(|rig| {
        rig.options.agents.depth = 2;
        rig.options.turn.loop_repeats = 0;
    }))
    .await;
    let budgets = Budgets { steps: Some(steps), tokens: Some(tokens), agents: Some(12), ..Budgets::default() };
    let turn = StartTurn { budgets, ..StartTurn::new(subject.session_id, script(&work)) };
    let done = subject.service.start_turn(turn).await.unwrap();
    let children = subject.children().await;
    let mut sum = Used { agents: children.len() as u64, ..Used::default() };
    for child in children.iter().map(|child| child.session_id).chain([subject.session_id]) {
        let events = subject.other(child).events().await;
        check_journal(&events);
        let own = check_ledger(&events);
        sum.steps += own.steps;
        sum.tokens += own.tokens;
        sum.tool_calls += own.tool_calls;
    }
    let theirs = done.delegated.unwrap_or(crate::service::Delegated::NOTHING);
    let told = Used {
        steps: theirs.steps + u64::from(done.steps),
        tokens: theirs.tokens + done.usage.total(),
        tool_calls: theirs.tool_calls + u64::from(done.tool_calls),
        agents: theirs.agents,
    };
    assert_eq!(told, sum, "what came back is what was used");
    assert!(sum.steps <= steps && sum.agents <= 12, "{sum:?}");
    // Each session may pass its share by its last answer.
    assert!(sum.tokens < tokens + 7 * (1 + sum.agents), "{sum:?}");
}

/// The calls that ran in a session, or in those below it.
async fn ran(subject: &Subject, sessions: impl IntoIterator<Item = crate::SessionId>) -> Vec<String> {
    let mut ran = Vec::new();
    for session in sessions {
        let events = subject.other(session).events().await;
        let started = events.iter().filter(|event| event["type"] == "tool_started");
        ran.extend(started.map(|event| event["name"].as_str().unwrap().to_owned()));
    }
    ran.sort();
    ran.dedup();
    ran
}

/// Rules of a session and its turn.
#[derive(Clone, Debug)]
struct Rules {
    tools: Option<Vec<&'static str>>,
    asked: Option<Vec<&'static str>>,
    access: Option<TurnAccess>,
    allow: Vec<&'static str>,
    configured: Vec<(&'static str, Approval)>,
}

fn rules() -> impl Strategy<Value = Rules> {
    let named = || prop::option::of(prop::sample::subsequence(vec!["delegate", "edit", "look"], 0..=3));
    let access = prop::option::of(prop_oneof![Just(TurnAccess::Read), Just(TurnAccess::Ask)]);
    let approval = prop_oneof![Just(Approval::Allow), Just(Approval::Ask), Just(Approval::Deny)];
    let rule = (prop_oneof![Just("edit"), Just("look"), Just("*")], approval);
    let configured = prop::collection::vec(rule, 0..3);
    let allow = prop::sample::subsequence(vec!["edit", "look"], 0..=2);
    (named(), named(), access, allow, configured).prop_map(|(tools, asked, access, allow, configured)| Rules {
        tools,
        asked,
        access,
        allow,
        configured,
    })
}

async fn check_rules(rules: Rules) {
    let place = Place::new();
    let service = place.process(|rig| {
        rig.options.agents.depth = 2;
        rig.options.approval.unattended = Unattended::Deny;
        rig.options.tools.approval = rules.configured.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect();
    });
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let create = || CreateSession { tools: rules.tools.as_deref().map(owned), ..CreateSession::default() };
    let turn = |session_id, prompt: String| StartTurn {
        access: rules.access,
        allow: owned(&rules.allow),
        ..StartTurn::new(session_id, prompt)
    };
    let calls = "@call look {} @call edit {} @call look {} @say Done.";
    // What the session may do itself.
    let session_id = service.create_session(create()).await.unwrap().session_id;
    let alone = Subject { service: service.clone(), session_id };
    service.start_turn(turn(session_id, calls.to_owned())).await.unwrap();
    let may = ran(&alone, [session_id]).await;
    // What it does through others.
    let session_id = service.create_session(create()).await.unwrap().session_id;
    let subject = Subject { service: service.clone(), session_id };
    let narrow = json!({ "prompt": calls, "tools": rules.asked });
    let narrow = if rules.asked.is_some() { narrow } else { json!({ "prompt": calls }) };
    let child = format!("@call delegate {narrow} {calls}");
    let wide = json!({ "prompt": child });
    let done =
        service.start_turn(turn(session_id, format!("@call delegate {wide} @call delegate {narrow} @say Done.")));
    done.await.unwrap();
    let below = subject.children().await.into_iter().map(|child| child.session_id);
    let did = ran(&subject, below).await;
    assert!(did.iter().all(|name| may.contains(name)), "{rules:?}: it may {may:?}, and through others it did {did:?}");
}

/// Runs a case on a scheduler of its own, whose time passes when nothing else happens.
fn on_its_own(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(case);
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn no_model_call_of_a_tree_begins_beyond_its_roots_budget(
        steps in 1..60_u64,
        tokens in 1..300_u64,
        work in work(),
    ) {
        on_its_own(check_tree(steps, tokens, work));
    }

    #[test]
    fn no_descendant_has_an_effect_that_its_root_may_not_have(rules in rules()) {
        on_its_own(check_rules(rules));
    }
}
