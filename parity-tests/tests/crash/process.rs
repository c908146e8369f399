//! A folder with a data directory, and the real program in it as `meerkat rpc`.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::{Arc, Mutex, OnceLock, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json, value::RawValue};
use tempfile::TempDir;

use crate::{oracle::Known, shim::Shim};

/// Longer than anything here takes: what has not come by then does not come.
const PATIENCE: Duration = Duration::from_secs(100);

/// Folder of one data directory.
pub(crate) struct Stage {
    dir: TempDir,
}

/// Reason why a call has no result.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The process was killed first.
    Gone,
    /// The call was refused: the code, and the whole error.
    Refused(String, Value),
}

pub(crate) type Answer<T> = Result<T, Trouble>;

impl Stage {
    /// Makes an empty folder.
    pub(crate) fn empty() -> Self {
        let dir = meerkat_testkit::folder();
        fs::create_dir(dir.path().join("tools")).unwrap();
        Self { dir }
    }

    /// Makes a store without sessions.
    pub(crate) fn made() -> Self {
        static MADE: OnceLock<Stage> = OnceLock::new();
        let made = MADE.get_or_init(|| {
            let stage = Self::empty();
            stage.rpc(&Arc::default(), None).end();
            stage
        });
        let stage = Self::empty();
        copy(&made.data(), &stage.data());
        stage
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Returns the folder that all others are in, which is also the home folder.
    pub(crate) fn home(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the folder of the projection.
    pub(crate) fn rkat(&self) -> PathBuf {
        self.dir.path().join(".rkat")
    }

    /// Reads a file of the test tools.
    pub(crate) fn tool_lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("tools").join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&*crate::PROGRAM);
        command.args(args).current_dir(self.dir.path()).env_clear().env("HOME", self.dir.path());
        command.env("MEERKAT_DATA_DIR", self.data()).env("MEERKAT_LOG__LEVEL", "error");
        command.env("MEERKAT_TOOLS__TEST_DIR", self.dir.path().join("tools"));
        command.env("MEERKAT_PROJECTION__DIR", self.rkat()).env("MEERKAT_LIMITS__WAIT_MS", "60000");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts the program on standard input and output.
    pub(crate) fn rpc(&self, known: &Arc<Known>, shim: Option<&Shim>) -> Process {
        let mut command = self.command(&["rpc"]);
        // What is synced is as lost or kept as what is not, when only a process ends: no test waits for that.
        let harmless = Shim::new(&self.data());
        shim.unwrap_or(&harmless).attach(&mut command);
        let err = fs::File::options().create(true).append(true).open(self.dir.path().join("stderr")).unwrap();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(err).spawn().unwrap();
        let stdin = Mutex::new(child.stdin.take());
        let (out, shared) = (child.stdout.take().unwrap(), Arc::<Shared>::default());
        let (heard, known, child) = (shared.clone(), known.clone(), Arc::new(Mutex::new(child)));
        let reader = std::thread::spawn({
            let (known, child) = (known.clone(), child.clone());
            move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if heard.hear(&known, &line) == Some(0)
                        && let Ok(mut child) = child.try_lock()
                    {
                        // It may have ended.
                        child.kill().ok();
                    }
                }
                // Whoever waits learns of it by the end of its channel.
                let mut state = heard.state.lock().unwrap();
                state.is_gone = true;
                state.waiting.clear();
                state.followers.clear();
            }
        });
        Process { child, stdin, shared, known, reader: Some(reader), _shim: harmless }
    }

    /// Reads the standard error of all its processes.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }
}

/// Copies a folder.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (kind, to) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &to);
        } else if kind.is_file() {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Returns the picture that prompts show: a PNG's header, and more bytes than one block of a disk has.
pub(crate) fn picture() -> Vec<u8> {
    [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0"[..], &[7; 40_000]].concat()
}

/// Makes the request of a turn that shows the picture, and whose caller runs the tools `look` and `order`.
pub(crate) fn with_tools(session_id: &str, prompt: &str) -> Value {
    let schema = json!({ "type": "object" });
    json!({
        "session_id": session_id,
        "prompt": [
            { "type": "text", "text": prompt },
            { "type": "image", "media_type": "image/png", "data": BASE64_STANDARD.encode(picture()) },
        ],
        "client_tools": [
            { "name": "look", "description": "Looks.", "input_schema": schema, "effect": "read_only" },
            { "name": "order", "description": "Orders.", "input_schema": schema },
        ],
        "policy": "queue",
        "attended": true,
        "wait": false,
    })
}

/// Makes the request that answers a call.
pub(crate) fn answer(session_id: &str, call_id: &str, text: &str) -> Value {
    let content = json!([{ "type": "text", "text": text }]);
    json!({ "session_id": session_id, "call_id": call_id, "outcome": "succeeded", "content": content })
}

/// Document whose fields are unchanged text.
type Fields = BTreeMap<String, Box<RawValue>>;

fn fields(text: &str) -> Option<Fields> {
    serde_json::from_str(text).ok()
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ids: u64,
    is_gone: bool,
    waiting: HashMap<u64, mpsc::Sender<Answer<String>>>,
    followers: HashMap<String, Vec<mpsc::Sender<Value>>>,
    /// Events until it is killed.
    events_left: Option<u64>,
}

impl Shared {
    /// Hears a line; after an event it returns how many are left until the process is killed.
    fn hear(&self, known: &Known, line: &str) -> Option<u64> {
        // The last line of a killed process may be cut.
        let message = fields(line)?;
        let state = &mut *self.state.lock().unwrap();
        if let Some(event) = message.get("params").and_then(|params| fields(params.get())?.remove("result")) {
            let event = event.get();
            let value: Value = serde_json::from_str(event).unwrap();
            known.saw(event, &value);
            let session_id = value["session_id"].as_str().unwrap_or_default();
            if let Some(followers) = state.followers.get_mut(session_id) {
                followers.retain(|follower| follower.send(value.clone()).is_ok());
            }
            state.events_left = state.events_left.and_then(|left| left.checked_sub(1));
            return state.events_left;
        }
        let id = message.get("id").and_then(|id| id.get().parse().ok());
        let waiting = id.and_then(|id: u64| state.waiting.remove(&id))?;
        let answer = match (message.get("result"), message.get("error")) {
            (_, Some(error)) => {
                let error: Value = serde_json::from_str(error.get()).unwrap();
                Err(Trouble::Refused(error["data"]["code"].as_str().unwrap_or("none").to_owned(), error))
            }
            (result, None) => Ok(result.map_or("null", |result| result.get()).to_owned()),
        };
        // Whoever asked may have gone.
        drop(waiting.send(answer));
        None
    }
}

/// Running process.
pub(crate) struct Process {
    child: Arc<Mutex<Child>>,
    stdin: Mutex<Option<ChildStdin>>,
    shared: Arc<Shared>,
    pub(crate) known: Arc<Known>,
    reader: Option<JoinHandle<()>>,
    /// Kept while the process begins, because that opens its control file.
    _shim: Shim,
}

impl Process {
    /// Sends a request and returns the unchanged result.
    pub(crate) fn ask(&self, method: &str, params: &Value) -> Answer<String> {
        let (sender, answer) = mpsc::channel();
        let id = {
            let mut state = self.shared.state.lock().unwrap();
            if state.is_gone {
                return Err(Trouble::Gone);
            }
            state.ids += 1;
            let id = state.ids;
            state.waiting.insert(id, sender);
            id
        };
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let written = match self.stdin.lock().unwrap().as_mut() {
            Some(stdin) => stdin.write_all(format!("{request}\n").as_bytes()),
            None => Ok(()),
        };
        // A process that is killed does not read; what it answered before is read all the same.
        drop(written);
        match answer.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(Trouble::Gone),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{method} is not answered: {params}"),
        }
    }

    pub(crate) fn value(&self, method: &str, params: &Value) -> Answer<Value> {
        Ok(serde_json::from_str(&self.ask(method, params)?).unwrap())
    }

    /// Makes a session and follows it.
    pub(crate) fn create(&self) -> Answer<String> {
        self.create_with(&json!({}))
    }

    /// Makes a session by these parameters and follows it.
    pub(crate) fn create_with(&self, params: &Value) -> Answer<String> {
        self.known.creation_asked();
        let created = self.value("session/create", params)?;
        let id = created["session_id"].as_str().unwrap().to_owned();
        self.known.created(&id);
        self.follow(&id)?;
        Ok(id)
    }

    pub(crate) fn follow(&self, session_id: &str) -> Answer<()> {
        self.ask("session/subscribe", &json!({ "session_id": session_id, "since_seq": 0 })).map(drop)
    }

    /// Listens for events of a session from now on.
    pub(crate) fn listen(&self, session_id: &str) -> Listener {
        let (sender, events) = mpsc::channel();
        let mut state = self.shared.state.lock().unwrap();
        if !state.is_gone {
            state.followers.entry(session_id.to_owned()).or_default().push(sender);
        }
        Listener(events)
    }

    /// Runs a turn to its end.
    pub(crate) fn turn(&self, session_id: &str, prompt: &str) -> Answer<Value> {
        self.known.prompt_asked(prompt);
        let params = json!({ "session_id": session_id, "prompt": prompt, "policy": "queue" });
        let result = self.value("turn/start", &params)?;
        self.known.turn_ended(session_id, &result);
        Ok(result)
    }

    /// Runs a turn that compacts as often as it may, and keeps one turn.
    pub(crate) fn compacting_turn(&self, session_id: &str, prompt: &str) -> Answer<Value> {
        self.known.prompt_asked(prompt);
        let compaction = json!({
            "auto_compact_threshold": 1, "recent_turn_budget": 1, "min_turns_between_compactions": 1
        });
        let params = json!({ "session_id": session_id, "prompt": prompt, "policy": "queue", "compaction": compaction });
        let result = self.value("turn/start", &params)?;
        self.known.turn_ended(session_id, &result);
        Ok(result)
    }

    /// Compacts a session down to its newest turn.
    pub(crate) fn compact(&self, session_id: &str) -> Answer<()> {
        let params = json!({ "session_id": session_id, "compaction": { "recent_turn_budget": 1 } });
        let receipt = self.value("session/compact", &params)?;
        self.known.changed(session_id, receipt["compaction"].as_u64().unwrap(), "compaction_completed");
        Ok(())
    }

    /// Starts a turn without waiting for its end.
    pub(crate) fn accept(&self, session_id: &str, prompt: &str) -> Answer<Value> {
        self.known.prompt_asked(prompt);
        let params =
            json!({ "session_id": session_id, "prompt": prompt, "policy": "queue", "attended": true, "wait": false });
        let accepted = self.value("turn/start", &params)?;
        self.known.turn_accepted(session_id, &accepted);
        Ok(accepted)
    }

    /// Starts a turn that shows a picture and whose caller runs tools, without waiting for its end.
    pub(crate) fn accept_with_tools(&self, session_id: &str, prompt: &str) -> Answer<Value> {
        self.known.prompt_asked(prompt);
        let accepted = self.value("turn/start", &with_tools(session_id, prompt))?;
        self.known.turn_accepted(session_id, &accepted);
        Ok(accepted)
    }

    /// Answers a call with its own id and arguments: an answer that another call took would be seen.
    pub(crate) fn answer(&self, session_id: &str, call: &Value) -> Answer<()> {
        let call_id = call["call_id"].as_str().unwrap();
        let text = format!("{call_id} {}", call["arguments"]);
        self.known.answered(session_id, call_id, &text, None);
        let seq = self.value("turn/answer", &answer(session_id, call_id, &text))?["seq"].as_u64();
        self.known.answered(session_id, call_id, &text, seq);
        Ok(())
    }

    /// Approves a call that waits for it.
    pub(crate) fn approve(&self, session_id: &str, call_id: &Value) -> Answer<()> {
        let approval = json!({ "session_id": session_id, "call_id": call_id, "decision": "approve" });
        self.change("turn/approve", "approval_decided", &approval)
    }

    /// Gives the running turn another text.
    pub(crate) fn steer(&self, session_id: &str, prompt: &str) -> Answer<()> {
        self.known.prompt_asked(prompt);
        let params = json!({ "session_id": session_id, "prompt": prompt, "policy": "steer", "wait": false });
        self.change("turn/start", "turn_steered", &params)
    }

    /// Gives a waiting turn another prompt and another place.
    pub(crate) fn edit(&self, session_id: &str, turn: &Value, prompt: &str, position: usize) -> Answer<()> {
        self.known.prompt_asked(prompt);
        let params = json!({ "session_id": session_id, "turn": turn, "prompt": prompt, "position": position });
        self.change("turn/edit", "turn_edited", &params)
    }

    /// Changes a session, which one event records.
    pub(crate) fn change(&self, method: &str, kind: &'static str, params: &Value) -> Answer<()> {
        let changed = self.value(method, params)?;
        self.known.changed(params["session_id"].as_str().unwrap(), changed["seq"].as_u64().unwrap(), kind);
        Ok(())
    }

    pub(crate) fn delete(&self, session_id: &str) -> Answer<()> {
        self.known.deletion_asked(session_id);
        self.ask("session/delete", &json!({ "session_id": session_id, "force": true }))?;
        self.known.deleted(session_id);
        Ok(())
    }

    pub(crate) fn fork(&self, session_id: &str) -> Answer<String> {
        self.known.creation_asked();
        let forked = self.value("session/fork", &json!({ "session_id": session_id }))?;
        let id = forked["session_id"].as_str().unwrap().to_owned();
        self.known.created(&id);
        self.known.changed(&id, forked["seq"].as_u64().unwrap(), "session_forked");
        self.follow(&id)?;
        Ok(id)
    }

    /// Kills it; another thread may do so, too.
    pub(crate) fn kill(&self) {
        self.child.lock().unwrap().kill().unwrap();
    }

    /// Kills it as soon as so many events from now on were heard, live ones included.
    pub(crate) fn kill_at_event(&self, at: u64) {
        self.shared.state.lock().unwrap().events_left = Some(at);
    }

    /// Ends it by closing its input, and returns its exit code; `None` if it was killed.
    pub(crate) fn end(mut self) -> Option<i32> {
        drop(self.stdin.lock().unwrap().take());
        let code = self.child.lock().unwrap().wait().unwrap().code();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        code
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let mut child = self.child.lock().unwrap();
        child.kill().ok();
        child.wait().ok();
        drop(child);
        self.reader.take().map(JoinHandle::join);
    }
}

/// Events as they come.
pub(crate) struct Listener(mpsc::Receiver<Value>);

impl Listener {
    /// Waits for the next event of a kind.
    pub(crate) fn until(&self, kind: &str) -> Answer<Value> {
        loop {
            match self.0.recv_timeout(PATIENCE) {
                Ok(event) if event["type"] == kind => return Ok(event),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(Trouble::Gone),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("no {kind} comes"),
            }
        }
    }
}
