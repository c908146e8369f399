//! A process that is asked in lines and answers in lines, in any order.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
};

use serde_json::Value;

use crate::{
    driver::{Answer, PATIENCE, Pending, Place},
    run::SEED,
};

/// A message: the number of a request and its answer, or nothing that is waited for.
pub(super) type Read = Result<Option<(u64, Answer)>, String>;

type Senders = HashMap<u64, Sender<Result<Answer, String>>>;

/// Requests that wait for their answers, by number.
#[derive(Clone, Default)]
pub(super) struct Waiting(Arc<Mutex<Senders>>);

impl Waiting {
    /// An answer that will come under this number.
    pub(super) fn expect(&self, number: u64) -> Pending {
        let (sender, pending) = Pending::channel();
        self.lock().insert(number, sender);
        pending
    }

    /// Delivers an answer to its caller.
    pub(super) fn deliver(&self, read: Read) {
        match read {
            Ok(Some((number, answer))) => {
                if let Some(sender) = self.lock().remove(&number) {
                    // The caller may have given up.
                    drop(sender.send(Ok(answer)));
                }
            }
            Ok(None) => {}
            // Nobody knows whose answer an unreadable message is, so all requests fail.
            Err(why) => self.lock().drain().for_each(|(_, sender)| drop(sender.send(Err(why.clone())))),
        }
    }

    /// Fails all waiting requests.
    pub(super) fn end(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Senders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process with its waiting requests.
pub(super) struct Process {
    child: Child,
    /// `None` once it is closed.
    input: Option<ChildStdin>,
    waiting: Waiting,
    next: u64,
}

impl Process {
    /// Starts the process. Its standard error goes to a file in the trial's folder. Number 0 is for its first message, which
    /// answers no request.
    pub(super) fn start(
        mut command: Command,
        place: &Place,
        read: impl Fn(&str) -> Read + Send + 'static,
    ) -> Result<(Self, Pending), String> {
        let log = File::options().append(true).create(true).open(place.folder.join("stderr.txt"));
        let log = log.map_err(|error| format!("stderr.txt: {error}"))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{} could not be started: {error}", command.get_program().display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the process has no pipes".to_owned());
        };
        let waiting = Waiting::default();
        let unasked = waiting.expect(0);
        let answers = waiting.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                answers.deliver(read(&line));
            }
            answers.end();
        });
        Ok((Self { child, input: Some(input), waiting, next: 0 }, unasked))
    }

    /// Sends the line that `line` makes of the request's number.
    pub(super) fn ask(&mut self, line: impl FnOnce(u64) -> String) -> Result<Pending, String> {
        self.next += 1;
        let pending = self.waiting.expect(self.next);
        self.tell(line(self.next))?;
        Ok(pending)
    }

    /// Sends a line that nothing answers.
    pub(super) fn tell(&mut self, line: String) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("its input is closed")?;
        let sent = input.write_all((line + "\n").as_bytes());
        sent.map_err(|error| format!("the process takes no more lines: {error}"))
    }

    /// Ends the process as its user would, by closing its input, and with `SIGTERM` if it reads none.
    pub(super) fn end(mut self, is_reading: bool) -> Result<(), String> {
        let output = self.waiting.expect(u64::MAX);
        self.input = None;
        if !is_reading {
            let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
            told.map_err(|error| format!("kill: {error}"))?;
        }
        if !output.is_over() {
            return Err("the process does not end".to_owned());
        }
        match self.exit_code() {
            Some(0) => Ok(()),
            code => Err(format!("the process should end with exit code 0, but ends with {code:?}")),
        }
    }

    /// Waits until the process has ended by itself, and answers with its exit code.
    pub(super) fn exit_code(mut self) -> Option<i32> {
        let id = self.child.id();
        patiently(id, || self.child.wait()).ok().and_then(|status| status.code())
    }
}

/// Waits for a process, and kills it if that takes too long.
fn patiently<T>(id: u32, wait: impl FnOnce() -> T) -> T {
    let (ended, is_ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        if is_ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            // It may have ended meanwhile.
            drop(Command::new("kill").args(["-KILL", &id.to_string()]).status());
        }
    });
    let done = wait();
    drop(ended);
    done
}

/// The output of a command, which reads nothing.
pub fn output(command: &mut Command) -> Result<Output, String> {
    output_with(command, Stdio::null())
}

/// The output of a command that would wait for ever if it read its standard input.
pub fn output_of_open(command: &mut Command) -> Result<Output, String> {
    let (reader, _writer) = std::io::pipe().map_err(|error| error.to_string())?;
    output_with(command, reader.into())
}

fn output_with(command: &mut Command, stdin: Stdio) -> Result<Output, String> {
    let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| format!("{} could not be started: {error}", command.get_program().display()))?;
    let output = patiently(child.id(), || child.wait_with_output()).map_err(|error| error.to_string())?;
    match output.status.code() {
        Some(_) => Ok(output),
        None => Err(format!("the command does not end within {} s", PATIENCE.as_secs())),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A command of the build under test, with nothing of this process's environment.
pub(super) fn command(place: &Place, binary: &str) -> Command {
    let mut command = Command::new(place.binaries.join(binary));
    command.current_dir(&place.folder).env_clear().env("HOME", &place.folder);
    if !place.is_plain {
        // Each node makes ids of its own.
        command.env(SEED.0, (SEED.1 + u64::from(place.node())).to_string());
    }
    command
}

/// `meerkat --json`, with the scenario's options and a data directory of the trial's own; a plain one has none of these.
pub(super) fn meerkat(place: &Place) -> Command {
    let mut command = meerkat_for_people(place);
    if !place.is_plain {
        command.arg("--json");
    }
    command
}

/// The same without `--json`.
pub fn meerkat_for_people(place: &Place) -> Command {
    let mut command = command(place, "meerkat");
    if !place.is_plain {
        command.env("MEERKAT_DATA_DIR", place.data_dir());
    }
    for (section, values) in &place.config {
        configure(&mut command, &format!("MEERKAT_{}", section.to_uppercase()), values);
    }
    if let Some(database) = &place.database {
        configure(&mut command, "MEERKAT_STORE", &Value::Object(database.keys()));
    }
    command
}

/// Writes a value as it is in a file of the configuration.
fn written(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{key} = {}", written(value));
            format!("{{ {} }}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Sets the variables of a section, deeper keys by more `__`.
fn configure(command: &mut Command, name: &str, value: &Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                configure(command, &format!("{name}__{}", key.to_uppercase()), member);
            }
        }
        Value::String(text) => drop(command.env(name, text)),
        other => drop(command.env(name, written(other))),
    }
}
