//! What a session's model finds of other sessions: by the label that parts memory, and by the session's own `memory`.
//! Three users of one server each said a password; no model may ever be given another one's.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use meerkat_service::{
    Agent, AgentBuildConfig, SessionId,
    memory::MemoryOptions,
    service::{
        CreateSession, DeleteSession, ExportSession, ForkSession, ImportBundle, InterruptTurn, ListTools, MemoryScope,
        PinFact, ReadEvents, Remind, SearchMemory, SearchScope, SessionMemory, StartTurn, UpdateSession,
    },
    session::reminder::SystemReminderType,
};
use meerkat_testkit::until_asked;

use super::{Fake, config, end, options, query, search};

const ANA: Option<&str> = Some("ana");
const BOB: Option<&str> = Some("bob");
const CARLA: Option<&str> = Some("carla");
const NO_LABEL: Option<&str> = None;

fn labels(user: Option<&str>) -> BTreeMap<String, String> {
    user.map(|user| ("user".to_owned(), user.to_owned())).into_iter().collect()
}

/// An agent with a real memory, stored in a folder.
fn open(dir: &Path) -> Agent {
    let config = AgentBuildConfig::new().options(options()).store(dir.to_owned());
    config.memory(Some(dir.to_owned()), MemoryOptions::default()).build().unwrap()
}

async fn create(agent: &Agent, user: Option<&str>, memory: SessionMemory) -> SessionId {
    let request = CreateSession { labels: labels(user), memory, ..CreateSession::default() };
    agent.service().create_session(request).await.unwrap().session_id
}

/// A session of a user in which a password was said.
async fn with_password(agent: &Agent, user: Option<&str>, password: &str) -> SessionId {
    let id = create(agent, user, SessionMemory::default()).await;
    say(agent, id, &format!("@say The password is {password}.")).await;
    id
}

async fn say(agent: &Agent, id: SessionId, prompt: &str) {
    agent.service().start_turn(StartTurn::new(id, prompt)).await.unwrap();
}

/// The passwords among these that a session's model is given by its tool.
async fn recalled(agent: &Agent, id: SessionId) -> Vec<&'static str> {
    say(agent, id, r#"@call search_project_history {"query":"password"} @say Done."#).await;
    let request = ReadEvents::new(id, 0);
    let events = agent.service().events(request).await.unwrap().items;
    let mut lines = events.iter().rev().map(|line| String::from_utf8_lossy(line));
    let text = lines.find(|line| line.contains(r#""type":"tool_finished""#)).unwrap();
    ["persimmon", "quokka", "rambutan", "tamarind"].into_iter().filter(|word| text.contains(word)).collect()
}

/// The passwords that the model of a new session of a user is given.
async fn seen_by(agent: &Agent, user: Option<&str>) -> Vec<&'static str> {
    recalled(agent, create(agent, user, SessionMemory::default()).await).await
}

/// Waits until memory has a word under these labels.
async fn has(agent: &Agent, word: &str, labels: BTreeMap<String, String>) {
    finds(agent, SearchMemory { role: Some("assistant".to_owned()), labels, ..query(word) }).await;
}

async fn finds(agent: &Agent, request: SearchMemory) {
    let is_found = async || !agent.service().search_memory(request.clone()).await.unwrap().items.is_empty();
    until_asked("memory takes in what was said", is_found).await;
}

async fn labels_of(agent: &Agent, session_id: SessionId) -> BTreeMap<String, String> {
    agent.service().read(&session_id).await.unwrap().labels
}

async fn set_user(agent: &Agent, session_id: SessionId, user: Option<&str>) {
    let request = UpdateSession { session_id, title: None, labels: Some(labels(user)) };
    agent.service().update(request).await.unwrap();
}

async fn fork(agent: &Agent, session_id: SessionId, turn: Option<u32>) -> SessionId {
    agent.service().fork(ForkSession { session_id, turn }).await.unwrap().session_id
}

#[tokio::test(flavor = "multi_thread")]
async fn no_model_finds_what_was_said_under_another_value_of_the_label() {
    let dir = meerkat_testkit::folder();
    let agent = open(dir.path());
    let of_ana = with_password(&agent, ANA, "persimmon").await;
    let of_bob = with_password(&agent, BOB, "rambutan").await;
    // More than a search answers: they do not take the places of others.
    for number in 0..21 {
        say(&agent, of_bob, &format!("@say The password is rambutan, number {number}.")).await;
    }
    with_password(&agent, NO_LABEL, "quokka").await;
    for (word, user) in [("persimmon", ANA), ("rambutan", BOB), ("quokka", NO_LABEL)] {
        has(&agent, word, labels(user)).await;
    }
    assert_eq!(seen_by(&agent, ANA).await, ["persimmon"]);
    assert_eq!(seen_by(&agent, BOB).await, ["rambutan"]);
    assert_eq!(seen_by(&agent, NO_LABEL).await, ["quokka"]);
    assert!(seen_by(&agent, CARLA).await.is_empty());
    for word in ["persimmon", "rambutan", "quokka"] {
        assert!(!search(&agent, word).await.is_empty(), "the operation itself finds all");
    }

    // The value counts that the label has when the search runs.
    set_user(&agent, of_ana, CARLA).await;
    assert!(seen_by(&agent, ANA).await.is_empty(), "it is no longer hers");
    has(&agent, "persimmon", labels(CARLA)).await;
    assert_eq!(seen_by(&agent, CARLA).await, ["persimmon"]);
    // A session may change while it is asked.
    assert_eq!(recalled(&agent, of_ana).await, ["persimmon"]);
    let asking = create(&agent, BOB, SessionMemory::default()).await;
    assert_eq!(recalled(&agent, asking).await, ["rambutan"]);
    set_user(&agent, asking, NO_LABEL).await;
    assert_eq!(recalled(&agent, asking).await, ["quokka"]);

    // A fork is of the user that its session is of now, wherever it begins.
    for turn in [None, Some(0)] {
        let fork = fork(&agent, of_ana, turn).await;
        assert_eq!(labels_of(&agent, fork).await, labels(CARLA));
        assert_eq!(recalled(&agent, fork).await, ["persimmon"]);
    }
    let all = async |agent: &Agent| {
        assert!(seen_by(agent, ANA).await.is_empty());
        assert_eq!(seen_by(agent, BOB).await, ["rambutan"]);
        assert_eq!(seen_by(agent, CARLA).await, ["persimmon"]);
        assert_eq!(seen_by(agent, NO_LABEL).await, ["quokka"]);
    };
    all(&agent).await;
    agent.service().reindex_memory().await.unwrap();
    all(&agent).await;
    end(agent).await;

    // Memory is made again from the journals.
    std::fs::remove_file(dir.path().join("memory.redb")).unwrap();
    let agent = open(dir.path());
    for (word, user) in [("persimmon", CARLA), ("rambutan", BOB), ("quokka", NO_LABEL)] {
        has(&agent, word, labels(user)).await;
    }
    all(&agent).await;
    end(agent).await;
}

/// What a session's model is shown of a word by each of its tools, and by its requests, which have reminders and pins.
/// `blob` is another session's.
async fn shown(agent: &Agent, id: SessionId, word: &str, blob: &str) -> Vec<String> {
    // A blob of its own, for the tool that reads blobs.
    say(agent, id, r#"@call test_huge {"bytes":200000} @say Done."#).await;
    let tools = agent.service().tools(ListTools { session_id: Some(id), with_workspace: false }).await.unwrap().items;
    let mut prompts = vec!["@echo messages @echo tail @echo tools @echo system".to_owned()];
    for tool in tools.iter().filter(|tool| tool.left_out.is_none()) {
        prompts.extend(match tool.name.as_str() {
            "search_project_history" => ["password", "secret of the house", "a long text"]
                .map(|query| format!(r#"@call search_project_history {{"query":"{query}"}}"#))
                .to_vec(),
            "read_blob" => vec![format!(r#"@call read_blob {{"blob":"{blob}"}}"#)],
            "pin_fact" => vec![r#"@call pin_fact {"text":"I was here."}"#.to_owned()],
            test if test.starts_with("test_") => Vec::new(),
            other => panic!("say here how {other} may show what is another session's"),
        });
    }
    assert_eq!(prompts.len(), 6, "{tools:?}");
    for prompt in prompts {
        say(agent, id, &format!("{prompt} @step @echo last_result @echo tail")).await;
    }
    let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(id, 0) };
    let events = agent.service().events(request).await.unwrap().items;
    let lines = events.iter().map(|line| String::from_utf8_lossy(line).into_owned());
    lines.filter(|line| line.contains(word)).collect()
}

/// A word that one user's session has wherever a session can have one.
#[tokio::test(flavor = "multi_thread")]
async fn no_tool_and_no_reminder_shows_what_is_another_users() {
    let (dir, mut options) = (meerkat_testkit::folder(), options());
    options.tools.test_dir = Some(dir.path().to_owned());
    options.tools.pin_fact = true;
    let config = AgentBuildConfig::new().options(options).store(dir.path().join("data"));
    let agent = config.memory(Some(dir.path().join("data")), MemoryOptions::default()).build().unwrap();
    let service = agent.service();
    let long = "A long text of the persimmon. ".repeat(10_000);
    let (session_id, blob) = persimmon_of(&agent, &long).await;
    let whole = export(&agent, session_id).await;
    let copies = [fork(&agent, session_id, None).await, import(&agent, whole, (true, true)).await];
    for id in copies {
        let own = SearchMemory { scope: SearchScope::Session, session_id: Some(id), ..query("persimmon") };
        finds(&agent, own).await;
    }
    for is_again in [false, true] {
        for user in [BOB, NO_LABEL] {
            let id = create(&agent, user, SessionMemory::default()).await;
            assert_eq!(shown(&agent, id, "persimmon", &blob).await, [""; 0], "{user:?} {is_again}");
            let copy = fork(&agent, id, None).await;
            assert_eq!(shown(&agent, copy, "persimmon", &blob).await, [""; 0], "{user:?} {is_again}");
        }
        assert!(seen_by(&agent, ANA).await.contains(&"persimmon"), "she finds it herself");
        service.reindex_memory().await.unwrap();
        has(&agent, "persimmon", labels(ANA)).await;
    }
    end(agent).await;
}

/// Makes such a session of ANA; returns it, and the blob that has a long text.
async fn persimmon_of(agent: &Agent, long: &str) -> (SessionId, String) {
    let service = agent.service();
    let create = CreateSession { labels: labels(ANA), title: Some("persimmon".to_owned()), ..CreateSession::default() };
    let session_id = service.create_session(create).await.unwrap().session_id;
    let kind = SystemReminderType::ClaudeMd;
    service
        .remind(Remind { session_id, kind, text: "The secret of the house is persimmon.".to_owned() })
        .await
        .unwrap();
    service.pin(PinFact { session_id, text: "The secret of the house is persimmon.".to_owned() }).await.unwrap();
    say(agent, session_id, "@say The password is persimmon.").await;
    let turn = service.start_turn(StartTurn::new(session_id, format!("@say {long}"))).await.unwrap();
    assert!(turn.text.contains("persimmon"));
    let events = service.events(ReadEvents::new(session_id, 0)).await.unwrap().items;
    let text = events.iter().map(|line| String::from_utf8_lossy(line)).collect::<String>();
    let blob = text.split(r#""blob":""#).nth(1).unwrap().split('"').next().unwrap().to_owned();
    has(agent, "persimmon", labels(ANA)).await;
    (session_id, blob)
}

/// Memory's copy of a label may be old, and a memory of the program's own may know no labels.
#[tokio::test]
async fn what_memory_finds_is_given_only_if_the_label_still_fits() {
    for is_stored in [true, false] {
        let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
        let config = config(&memory, options());
        let config = if is_stored { config.store(dir.path().to_owned()) } else { config };
        let agent = config.build().unwrap();
        with_password(&agent, ANA, "persimmon").await;
        let of_bob = with_password(&agent, BOB, "rambutan").await;
        with_password(&agent, NO_LABEL, "quokka").await;
        assert_eq!(search(&agent, "The password is").await.len(), 6);
        assert_eq!(seen_by(&agent, ANA).await, ["persimmon"], "{is_stored}");
        assert_eq!(seen_by(&agent, NO_LABEL).await, ["quokka"], "{is_stored}");
        assert_eq!(seen_by(&agent, BOB).await, ["rambutan"], "{is_stored}");
        if is_stored {
            set_user(&agent, of_bob, CARLA).await;
            has(&agent, "rambutan", labels(CARLA)).await;
            assert!(seen_by(&agent, BOB).await.is_empty());
            assert_eq!(seen_by(&agent, CARLA).await, ["rambutan"]);
        }
        let alone = SessionMemory { scope: MemoryScope::Session, ..SessionMemory::default() };
        let alone = create(&agent, ANA, alone).await;
        assert!(recalled(&agent, alone).await.is_empty(), "{is_stored}");
        end(agent).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_may_find_itself_alone_or_nothing_and_may_stay_out_of_memory() {
    let dir = meerkat_testkit::folder();
    let agent = open(dir.path());
    let service = agent.service();
    with_password(&agent, ANA, "persimmon").await;
    let alone = create(&agent, ANA, SessionMemory { scope: MemoryScope::Session, index: true }).await;
    say(&agent, alone, "@say The password is quokka.").await;
    let hidden = create(&agent, ANA, SessionMemory { scope: MemoryScope::Project, index: false }).await;
    say(&agent, hidden, "@say The password is rambutan.").await;
    let without = create(&agent, ANA, SessionMemory { scope: MemoryScope::None, index: true }).await;
    say(&agent, without, "@say The password is tamarind.").await;
    for word in ["persimmon", "quokka", "tamarind"] {
        has(&agent, word, labels(ANA)).await;
    }

    // Its own words only, whatever the model asks for.
    assert_eq!(recalled(&agent, alone).await, ["quokka"]);
    assert_eq!(recalled(&agent, fork(&agent, alone, None).await).await, ["quokka"]);
    assert_eq!(recalled(&agent, hidden).await, ["persimmon", "quokka", "tamarind"]);

    for id in [without, fork(&agent, without, Some(0)).await] {
        let turn = StartTurn::new(id, r#"@call search_project_history {"query":"password"} @echo last_result"#);
        let text = service.start_turn(turn).await.unwrap().text;
        assert!(text.contains("There is no tool \"search_project_history\""), "{text}");
        let tools = service.tools(ListTools { session_id: Some(id), with_workspace: false }).await.unwrap().items;
        let tool = tools.iter().find(|tool| tool.name == "search_project_history").unwrap();
        assert!(tool.left_out.is_some(), "{tool:?}");
        let view = service.read(&id).await.unwrap();
        assert_eq!(view.memory, SessionMemory { scope: MemoryScope::None, index: true });
    }

    // Nothing of it is taken in: not at first, not later, not of its fork, and not when memory is made again.
    let forked = fork(&agent, hidden, None).await;
    for id in [hidden, forked] {
        say(&agent, id, "@say Again: the password is rambutan.").await;
    }
    say(&agent, alone, "@say The zebra is last.").await;
    has(&agent, "zebra", labels(ANA)).await;
    assert!(search(&agent, "rambutan").await.is_empty());
    end(agent).await;
    std::fs::remove_file(dir.path().join("memory.redb")).unwrap();
    let agent = open(dir.path());
    say(&agent, hidden, "@say Once more: the password is rambutan.").await;
    say(&agent, alone, "@say The yak is last.").await;
    for word in ["persimmon", "quokka", "tamarind", "zebra", "yak"] {
        has(&agent, word, labels(ANA)).await;
    }
    assert!(search(&agent, "rambutan").await.is_empty());
    assert_eq!(recalled(&agent, alone).await, ["quokka"]);
    end(agent).await;
}

async fn export(agent: &Agent, session_id: SessionId) -> String {
    let request = ExportSession::new(session_id);
    let page = agent.service().export_session(request).await.unwrap();
    assert_eq!(page.next_cursor, None);
    page.data
}

async fn import(agent: &Agent, data: String, (new_ids, keep_scope): (bool, bool)) -> SessionId {
    let request = ImportBundle { upload: None, offset: 0, data, is_last: true, new_ids, keep_scope };
    agent.service().import_bundle(request).await.unwrap().sessions[0].session_id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_does_not_say_whose_session_it_is() {
    let (dir, elsewhere) = (meerkat_testkit::folder(), meerkat_testkit::folder());
    let agent = open(elsewhere.path());
    let claimed = with_password(&agent, BOB, "persimmon").await;
    let whole = export(&agent, claimed).await;
    // This one takes its claim back at its end, in a turn that a new id leaves out.
    agent.service().accept_turn(StartTurn::new(claimed, "@stall")).await.unwrap();
    set_user(&agent, claimed, NO_LABEL).await;
    assert_eq!(labels_of(&agent, fork(&agent, claimed, None).await).await, labels(NO_LABEL));
    let cut = export(&agent, claimed).await;
    agent.service().interrupt(InterruptTurn { session_id: claimed, turn: None }).await.unwrap();
    end(agent).await;

    let agent = open(dir.path());
    with_password(&agent, BOB, "rambutan").await;
    with_password(&agent, NO_LABEL, "quokka").await;
    has(&agent, "rambutan", labels(BOB)).await;
    has(&agent, "quokka", labels(NO_LABEL)).await;
    for new_ids in [false, true] {
        let imported = import(&agent, whole.clone(), (new_ids, false)).await;
        let own = format!("imported:{imported}");
        assert_eq!(labels_of(&agent, imported).await, labels(Some(&own)));
        has(&agent, "persimmon", labels(Some(&own))).await;
        assert_eq!(seen_by(&agent, BOB).await, ["rambutan"], "{new_ids}");
        assert_eq!(seen_by(&agent, NO_LABEL).await, ["quokka"], "{new_ids}");
        for id in [imported, fork(&agent, imported, Some(0)).await] {
            assert_eq!(recalled(&agent, id).await, ["persimmon"], "{new_ids}");
        }
        agent.service().delete(DeleteSession { session_id: imported, force: false }).await.unwrap();
    }
    let imported = import(&agent, cut, (true, false)).await;
    assert_eq!(labels_of(&agent, imported).await, labels(NO_LABEL));
    assert_eq!(seen_by(&agent, BOB).await, ["rambutan"]);
    let own = SearchMemory { scope: SearchScope::Session, session_id: Some(imported), ..query("persimmon") };
    finds(&agent, own).await;
    assert_eq!(recalled(&agent, imported).await, ["persimmon", "quokka"]);

    // The caller of the import may say that the label is right.
    let imported = import(&agent, whole, (true, true)).await;
    assert_eq!(labels_of(&agent, imported).await, labels(BOB));
    has(&agent, "persimmon", labels(BOB)).await;
    assert_eq!(seen_by(&agent, BOB).await, ["persimmon", "rambutan"]);
    end(agent).await;
}

#[tokio::test]
async fn the_label_has_a_name() {
    let mut options = options();
    options.memory.scope_label = "tenant".to_owned();
    let agent = config(&Arc::default(), options.clone()).build().unwrap();
    with_password(&agent, ANA, "persimmon").await;
    assert_eq!(search(&agent, "persimmon").await.len(), 2);
    assert_eq!(seen_by(&agent, BOB).await, ["persimmon"], "another label parts nothing");
    end(agent).await;
    options.memory.scope_label = String::new();
    let refused = config(&Arc::default(), options).build().err().unwrap();
    assert_eq!(refused.body().details["key"], "memory.scope_label");
}
