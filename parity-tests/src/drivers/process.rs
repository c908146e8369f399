//! A process that is asked in lines and answers in lines, in any order.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc::Sender},
    thread,
};

use crate::{
    driver::{Answer, Pending, Place},
    run::SEED,
};

type Waiting = Arc<Mutex<HashMap<u64, Sender<Result<Answer, String>>>>>;

/// Reads the line that answers a request: the request's number and the answer.
pub(super) type ReadLine = fn(&str) -> Result<(u64, Answer), String>;

/// A process with its waiting requests.
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    waiting: Waiting,
    next: u64,
}

impl Process {
    /// Starts the process. Its standard error goes to a file in the trial's folder. Number 0 is for what it says
    /// without being asked.
    pub(super) fn start(mut command: Command, place: &Place, read: ReadLine) -> Result<(Self, Pending), String> {
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
        let (sender, unasked) = Pending::channel();
        let waiting = Waiting::new(Mutex::new(HashMap::from([(0, sender)])));
        let answers = waiting.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                deliver(&answers, read(&line));
            }
            // Who still waits learns that nothing will come.
            lock(&answers).clear();
        });
        Ok((Self { child, input, waiting, next: 0 }, unasked))
    }

    /// Sends the line that `line` makes of the request's number.
    pub(super) fn ask(&mut self, line: impl FnOnce(u64) -> String) -> Result<Pending, String> {
        self.next += 1;
        let (sender, pending) = Pending::channel();
        lock(&self.waiting).insert(self.next, sender);
        let line = format!("{}\n", line(self.next));
        self.input.write_all(line.as_bytes()).map_err(|error| format!("the process takes no more lines: {error}"))?;
        Ok(pending)
    }

    /// Waits until the process has ended by itself, and answers with its exit code.
    pub(super) fn exit_code(mut self) -> Option<i32> {
        self.child.wait().ok().and_then(|status| status.code())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn lock(waiting: &Waiting) -> std::sync::MutexGuard<'_, HashMap<u64, Sender<Result<Answer, String>>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn deliver(waiting: &Waiting, line: Result<(u64, Answer), String>) {
    let mut waiting = lock(waiting);
    match line {
        Ok((number, answer)) => {
            if let Some(sender) = waiting.remove(&number) {
                // Whoever asked may have given up.
                drop(sender.send(Ok(answer)));
            }
        }
        // A line that cannot be read cannot be anybody's alone, so that everybody hears of it.
        Err(why) => waiting.drain().for_each(|(_, sender)| drop(sender.send(Err(why.clone())))),
    }
}

/// A command of the build under test, with nothing of this process's environment.
pub(super) fn command(place: &Place, binary: &str) -> Command {
    let mut command = Command::new(place.binaries.join(binary));
    command.current_dir(&place.folder).env_clear().env("HOME", &place.folder).env(SEED.0, SEED.1);
    command
}
