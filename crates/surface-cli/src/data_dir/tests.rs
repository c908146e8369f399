//! Two processes on one data directory, with a real lock and a real socket. A service in memory that outlives them stands
//! in for the disk.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use clap::Parser as _;
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    AgentBuildConfig, SessionError, SessionId, SessionService,
    follow::Follower,
    service::{CreateSession, InterruptTurn, Remind, StartTurn},
    session::reminder::SystemReminderType,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::mpsc,
};

use meerkat_client::{Client, Defaults, Place, Server, Speaker, Way as _};

use super::DataDir;
use crate::{args::Cli, config::Config, output::Environment};

/// Pid that the lock names.
const PID: u32 = 4711;

/// Data directory.
struct Stage {
    dir: TempDir,
    data_dir: PathBuf,
    service: Arc<dyn SessionService>,
}

/// Process that may hold the lock.
struct Process {
    data_dir: DataDir,
    lock: Arc<Mutex<Option<File>>>,
}

impl Stage {
    fn new() -> Self {
        Self::named("data")
    }

    fn named(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join(name);
        std::fs::create_dir_all(&data_dir).unwrap();
        Self { data_dir, dir, service: AgentBuildConfig::new().build().unwrap().service().clone() }
    }

    /// A process with these variables.
    fn process(&self, env: &[(&str, &str)]) -> Process {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), value.into()));
        let env = Environment { variables: env.collect::<BTreeMap<_, _>>(), dir: self.dir.path().to_owned() };
        let globals = Cli::parse_from(["meerkat", "rpc"]).globals;
        let config = Config::load(&env, &globals).unwrap_or_else(|_| panic!("the configuration"));
        let (lock, service, path) = (Arc::default(), self.service.clone(), self.data_dir.join("lock"));
        let held: Arc<Mutex<Option<File>>> = Arc::clone(&lock);
        let open = move || {
            let file = File::create(&path).unwrap();
            file.try_lock().map_err(|_| {
                SessionError::Remote(Box::new(ErrorBody::new(ErrorCode::StoreLocked).detail("pid", PID)))
            })?;
            *held.lock().unwrap() = Some(file);
            Ok(service.clone())
        };
        let data_dir = DataDir {
            open: Arc::new(open),
            place: Place::new(self.data_dir.clone()),
            settings: config.settings().into(),
            search_path: None,
            agrees: Arc::new(move |settings| config.agrees(settings)),
            owner: Arc::default(),
        };
        Process { data_dir, lock }
    }

    async fn session(&self) -> SessionId {
        self.service.create_session(CreateSession::default()).await.unwrap().session_id
    }
}

impl Process {
    async fn own(&self) -> super::Owner {
        match self.data_dir.find().await.unwrap() {
            Server::Here(_) => self.data_dir.owner.lock().await.take().unwrap(),
            Server::There(_) => panic!("there was an owner"),
        }
    }

    async fn attach(&self) -> Client {
        match self.data_dir.find().await.unwrap() {
            Server::There(connection) => Client::over(self.data_dir.clone(), connection, Defaults::default()),
            Server::Here(_) => panic!("there was no owner"),
        }
    }

    async fn refused(&self) -> ErrorBody {
        match self.data_dir.find().await {
            Err(error) => error.body(),
            Ok(_) => panic!("it was let in"),
        }
    }

    /// Gives the lock back, as the end of a process does.
    fn unlock(&self) {
        *self.lock.lock().unwrap() = None;
    }
}

async fn lines(follower: &mut Follower, last_seq: u64) -> Vec<String> {
    let mut lines = Vec::new();
    while follower.cursor() < last_seq {
        let line = follower.next().await.unwrap().unwrap();
        // Deltas depend on when one looks.
        lines.extend(line.seq.map(|_| String::from_utf8(line.line.to_vec()).unwrap()));
    }
    lines
}

/// The owner says if it accepts new work, and why not.
#[tokio::test]
async fn an_attached_command_is_as_ready_as_the_owner() {
    let stage = Stage::new();
    let first = stage.process(&[]);
    let owner = first.own().await;
    let remote = stage.process(&[]).attach().await;
    assert!(remote.check_ready().await.unwrap());
    owner.end().await;

    let listener = UnixListener::bind(stage.data_dir.join("socket")).unwrap();
    let settling = json!({ "is_ready": false, "trouble": null });
    let full = json!({ "is_ready": false, "trouble": ErrorBody::new(ErrorCode::StoreFull) });
    // The first greeting finds the new owner, or asks if it is ready, like every other.
    tokio::spawn(async move {
        let mut open = Vec::new();
        for number in 0.. {
            let readiness = if number < 2 { &settling } else { &full };
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            stream.read_line(&mut String::new()).await.unwrap();
            let welcome = json!({ "speaker": Speaker::own(), "refusal": null, "readiness": readiness });
            let answer = json!({ "jsonrpc": "2.0", "id": 0, "result": welcome });
            stream.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            open.push(stream);
        }
    });
    // Perhaps only the greeting notices that the former owner has ended.
    let mut answers = vec![remote.check_ready().await.map_err(|error| error.code())];
    while answers.last() != Some(&Err(ErrorCode::StoreFull)) {
        answers.push(remote.check_ready().await.map_err(|error| error.code()));
    }
    assert!(
        answers.len() >= 2 && answers[..answers.len() - 1].iter().all(|answer| *answer == Ok(false)),
        "{answers:?}"
    );
}

/// Plays an owner that says hello, and then answers each request or vanishes. It reports the requests.
async fn vanishing(listener: UnixListener, answers: Vec<Option<Value>>, seen: mpsc::UnboundedSender<String>) {
    let mut answers = answers.into_iter();
    loop {
        let (mut reader, mut writer) = listener.accept().await.unwrap().0.into_split();
        let mut requests = BufReader::new(&mut reader).lines();
        requests.next_line().await.unwrap();
        let welcome = json!({ "speaker": Speaker::own(), "refusal": null });
        let answer = json!({ "jsonrpc": "2.0", "id": 0, "result": welcome });
        writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        while let Some(request) = requests.next_line().await.unwrap() {
            let request: Value = serde_json::from_str(&request).unwrap();
            seen.send(request["method"].as_str().unwrap().to_owned()).unwrap();
            let Some(result) = answers.next().flatten() else { break };
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
            writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        }
    }
}

/// A request without a key might be performed twice, and an interrupt that names no turn might end the next one.
#[tokio::test]
async fn only_requests_that_may_be_repeated_are() {
    let stage = Stage::new();
    let id = stage.session().await;
    let held = File::create(stage.data_dir.join("lock")).unwrap();
    held.lock().unwrap();
    let listener = UnixListener::bind(stage.data_dir.join("socket")).unwrap();
    let accepted = json!({ "session_id": id, "turn": 0, "seq": 2 });
    let changed = json!({ "session_id": id, "seq": 5 });
    let made = json!({ "session_id": id, "seq": 1, "created_at": "2026-01-01T00:00:00Z" });
    let answers = vec![None, None, None, Some(accepted), None, None, Some(changed), None, Some(made)];
    let (sender, mut seen) = mpsc::unbounded_channel();
    tokio::spawn(vanishing(listener, answers, sender));
    let remote = stage.process(&[]).attach().await;
    let mut asked = |method: &str, times: usize| {
        for _ in 0..times {
            assert_eq!(seen.try_recv().unwrap(), method);
        }
        assert!(seen.try_recv().is_err(), "{method} was asked once too often");
    };

    let lost = remote.create_session(CreateSession::default()).await.unwrap_err();
    assert_eq!(lost.code(), ErrorCode::StoreFailed);
    asked("session/create", 1);
    let lost = remote.accept_turn(StartTurn::new(id, "@say One.")).await.unwrap_err();
    assert_eq!(lost.code(), ErrorCode::StoreFailed);
    asked("turn/start", 1);
    let keyed = StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(id, "@say One.") };
    assert_eq!(remote.accept_turn(keyed).await.unwrap().seq, 2);
    asked("turn/start", 2);
    let interrupt = |turn| remote.interrupt(InterruptTurn { session_id: id, turn });
    assert_eq!(interrupt(None).await.unwrap_err().code(), ErrorCode::StoreFailed);
    asked("turn/interrupt", 1);
    assert_eq!(interrupt(Some(0)).await.unwrap().seq, 5);
    asked("turn/interrupt", 2);
    let keyed = CreateSession { idempotency_key: Some("k".to_owned()), ..CreateSession::default() };
    assert_eq!(remote.create_session(keyed).await.unwrap().session_id, id);
    asked("session/create", 2);
}

/// A request that reaches an owner which has just ended is nobody's: the next owner performs it, key or not.
#[tokio::test]
async fn what_an_ending_owner_has_not_begun_is_asked_of_the_next() {
    let stage = Stage::new();
    let id = stage.session().await;
    let held = File::create(stage.data_dir.join("lock")).unwrap();
    held.lock().unwrap();
    let listener = UnixListener::bind(stage.data_dir.join("socket")).unwrap();
    tokio::spawn(async move {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        stream.read_line(&mut String::new()).await.unwrap();
        let welcome = json!({ "speaker": Speaker::own(), "refusal": null });
        let answer = json!({ "jsonrpc": "2.0", "id": 0, "result": welcome });
        stream.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        stream.read_line(&mut String::new()).await.unwrap();
        drop((held, listener));
        stream.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"owner/bye\"}\n").await.unwrap();
    });
    let next = stage.process(&[]);
    let remote = next.attach().await;
    let accepted = remote.accept_turn(StartTurn::new(id, "@say One.")).await.unwrap();
    assert_eq!((accepted.session_id, accepted.turn), (id, 0));
    assert!(next.lock.lock().unwrap().is_some(), "the command is the owner now");
}

#[tokio::test]
async fn an_ending_owner_answers_what_it_has_begun_and_says_goodbye() {
    let stage = Stage::new();
    let owner = stage.process(&[]).own().await;
    let mut stream = BufReader::new(UnixStream::connect(stage.data_dir.join("socket")).await.unwrap());
    let hello = json!({ "speaker": Speaker::own(), "settings": [] });
    for request in [
        json!({ "jsonrpc": "2.0", "id": 0, "method": "owner/hello", "params": hello }),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "session/create", "params": {} }),
    ] {
        stream.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&answer["id"], answer["result"].is_object()), (&request["id"], true), "{answer}");
    }
    owner.end().await;
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&rest).unwrap(), json!({ "jsonrpc": "2.0", "method": "owner/bye" }));
}

#[tokio::test]
async fn an_owner_that_ends_hands_over() {
    let stage = Stage::new();
    let id = stage.session().await;
    let first = stage.process(&[]);
    let owner = first.own().await;
    let second = stage.process(&[]);
    let remote = second.attach().await;
    let mut follower = remote.follow(&id, 0).await.unwrap();
    assert_eq!(lines(&mut follower, 1).await.len(), 1);
    owner.end().await;
    assert!(!stage.data_dir.join("socket").exists());
    first.unlock();
    let ended = remote.start_turn(StartTurn::new(id, "@say Here.")).await.unwrap();
    assert_eq!(lines(&mut follower, ended.seq).await.len() as u64, ended.seq - 1);
    second.data_dir.release().await;
    assert!(!stage.data_dir.join("socket").exists());
}

#[tokio::test]
async fn a_reader_that_falls_behind_misses_nothing() {
    let stage = Stage::new();
    let id = stage.session().await;
    for number in 0..600 {
        let text = format!("number {number}");
        stage.service.remind(Remind { session_id: id, kind: SystemReminderType::GitStatus, text }).await.unwrap();
    }
    let first = stage.process(&[]);
    let _owner = first.own().await;
    let remote = stage.process(&[]).attach().await;
    let mut follower = remote.follow(&id, 0).await.unwrap();
    // Nothing is read while many more lines come than the subscription keeps.
    for _ in 0..600 {
        remote.pins(&id).await.unwrap();
    }
    let own = lines(&mut stage.service.follow(&id, 0).await.unwrap(), 601).await;
    assert_eq!(lines(&mut follower, 601).await, own);
}

#[tokio::test(start_paused = true)]
async fn if_nobody_answers_the_lock_is_named_within_two_seconds() {
    let stage = Stage::new();
    let held = File::create(stage.data_dir.join("lock")).unwrap();
    held.lock().unwrap();
    let refused = async || {
        let began = tokio::time::Instant::now();
        let body = stage.process(&[]).refused().await;
        assert_eq!(began.elapsed().as_secs(), 2);
        body
    };
    let body = refused().await;
    assert_eq!((body.code, &body.details["pid"]), (ErrorCode::StoreLocked, &json!(PID)));
    // Also if somebody listens and never says a word.
    let _listener = UnixListener::bind(stage.data_dir.join("socket")).unwrap();
    assert_eq!(refused().await, body);
}

#[tokio::test]
async fn another_version_is_refused_by_both_sides() {
    let stage = Stage::new();
    let first = stage.process(&[]);
    let _owner = first.own().await;
    let mut stream = UnixStream::connect(stage.data_dir.join("socket")).await.unwrap();
    let hello = json!({ "speaker": { "version": "9.9.9", "build": "F", "pid": 1 }, "settings": [] });
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "owner/hello", "params": hello });
    stream.write_all(format!("{hello}\n").as_bytes()).await.unwrap();
    let mut answers = BufReader::new(stream).lines();
    let answer: Value = serde_json::from_str(&answers.next_line().await.unwrap().unwrap()).unwrap();
    assert_eq!(answer["result"]["refusal"]["code"], "STORE_LOCKED");
    assert_eq!(answers.next_line().await.unwrap(), None);

    let other = Stage::new();
    let held = File::create(other.data_dir.join("lock")).unwrap();
    held.lock().unwrap();
    let listener = UnixListener::bind(other.data_dir.join("socket")).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let welcome = json!({ "speaker": { "version": "9.9.9", "build": "F", "pid": PID }, "refusal": null });
        let answer = json!({ "jsonrpc": "2.0", "id": 0, "result": welcome });
        stream.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    });
    let body = other.process(&[]).refused().await;
    assert_eq!((body.code, &body.details["pid"]), (ErrorCode::StoreLocked, &json!(PID)));
    assert!(body.message.contains("9.9.9 (build F)"), "{}", body.message);
}

/// Broken once: the socket was then in `/tmp`, in a folder that another user could make first.
#[tokio::test]
async fn the_socket_is_in_the_data_directory_however_long_its_path() {
    let stage = Stage::named(&"long/".repeat(30));
    let first = stage.process(&[]);
    std::fs::set_permissions(stage.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let owner = first.own().await;
    let files = || std::fs::read_dir(&stage.data_dir).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(files().filter(|name| name != "lock").collect::<Vec<_>>(), ["socket"]);
    let remote = stage.process(&[]).attach().await;
    assert_eq!(remote.queue(&stage.session().await).await.unwrap().items, []);
    drop(remote);
    owner.end().await;
    assert_eq!(files().filter(|name| name != "lock").count(), 0);
}
