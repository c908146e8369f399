//! Commands in the background, and the tools that read and stop them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use meerkat_service::{
    SessionError, SessionId,
    model::ToolSpec,
    tool::{Invocation, OutputSink, Plan, Tool, ToolError},
};
use serde::Deserialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::run::{self, Run};
use crate::files::spec;

/// Commands of a session that run in the background at a time.
const RUNNING_MAX: usize = 8;
/// Commands of all sessions that run in the background at a time.
const RUNNING_MAX_ALL: usize = 64;
/// Ended commands of a session that are remembered.
const ENDED_MAX: usize = 8;
/// Sessions whose ended commands are remembered.
const SESSIONS_MAX: usize = 256;
/// Bytes of output that wait to be read. Older output is dropped.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Life of a command in the background, unless its call gives a shorter one.
const LIFE: Duration = Duration::from_hours(4);
/// Time that a stopped command has to say its last.
const STOP_TIME: Duration = Duration::from_secs(6);

const SCHEMA: &str = r#"{
  "type": "object",
  "properties": {"id": {"type": "string", "description": "Id that shell returned."}},
  "required": ["id"],
  "additionalProperties": false
}"#;

/// Background commands of a service. Dropping it ends them.
#[derive(Default)]
pub(super) struct Jobs {
    sessions: Mutex<BTreeMap<SessionId, Session>>,
}

#[derive(Default)]
struct Session {
    started: u64,
    jobs: Vec<Arc<Background>>,
}

struct Background {
    id: String,
    command: String,
    stop: CancellationToken,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// Output that was not read yet.
    output: String,
    dropped_bytes: u64,
    /// Its last line, once it ended.
    end: Option<String>,
}

impl Drop for Jobs {
    fn drop(&mut self) {
        for session in lock(&self.sessions).values() {
            session.jobs.iter().for_each(|job| job.stop.cancel());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// Starts a command and returns its id. It blocks, and no other command waits for that.
    pub(super) fn start(
        &self,
        session_id: SessionId,
        command: &str,
        life: Option<Duration>,
        start: impl FnOnce(CancellationToken) -> Result<Run, ToolError>,
    ) -> Result<String, ToolError> {
        let job = self.add(session_id, command)?;
        let run = start(job.stop.clone()).inspect_err(|_| self.remove(session_id, &job))?;
        let id = job.id.clone();
        tokio::spawn(async move { job.follow(run, life.unwrap_or(LIFE)).await });
        Ok(id)
    }

    /// Adds a command that is about to start.
    fn add(&self, session_id: SessionId, command: &str) -> Result<Arc<Background>, ToolError> {
        let mut sessions = lock(&self.sessions);
        let running = |session: &Session| session.jobs.iter().filter(|job| job.is_running()).count();
        let all: usize = sessions.values().map(running).sum();
        if all >= RUNNING_MAX_ALL || sessions.get(&session_id).map_or(0, running) >= RUNNING_MAX {
            let message = format!(
                "{RUNNING_MAX} commands of this session run in the background, or {RUNNING_MAX_ALL} of all sessions; \
                 stop one with shell_stop first"
            );
            return Err(ToolError::Refused(message));
        }
        if sessions.len() >= SESSIONS_MAX {
            sessions.retain(|_, session| running(session) > 0);
        }
        let session = sessions.entry(session_id).or_default();
        session.started += 1;
        let job = Arc::new(Background {
            id: format!("job-{}", session.started),
            command: command.lines().next().unwrap_or_default().to_owned(),
            stop: CancellationToken::new(),
            state: Mutex::default(),
            ended: Notify::new(),
        });
        let ended = session.jobs.iter().filter(|job| !job.is_running()).count();
        if ended >= ENDED_MAX
            && let Some(oldest) = session.jobs.iter().position(|job| !job.is_running())
        {
            session.jobs.remove(oldest);
        }
        session.jobs.push(job.clone());
        Ok(job)
    }

    /// Removes a command that did not start.
    fn remove(&self, session_id: SessionId, job: &Arc<Background>) {
        if let Some(session) = lock(&self.sessions).get_mut(&session_id) {
            session.jobs.retain(|other| !Arc::ptr_eq(other, job));
        }
    }

    fn find(&self, invocation: &Invocation) -> Result<Arc<Background>, ToolError> {
        let Arguments { id } = ToolError::decode(&invocation.arguments)?;
        let sessions = lock(&self.sessions);
        let jobs = sessions.get(&invocation.session_id).map_or(&[][..], |session| &session.jobs);
        jobs.iter().find(|job| job.id == id).cloned().ok_or_else(|| {
            let known: Vec<_> = jobs.iter().map(|job| job.id.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            ToolError::Refused(format!(
                "This session has no background command {id:?}; it has {known}. Background commands end with the service."
            ))
        })
    }
}

impl Background {
    fn is_running(&self) -> bool {
        lock(&self.state).end.is_none()
    }

    async fn follow(&self, mut run: Run, life: Duration) {
        let mut expiry = std::pin::pin!(tokio::time::sleep(life));
        let mut is_expired = false;
        loop {
            tokio::select! {
                biased;
                piece = run.pieces.recv() => match piece {
                    Some(piece) => lock(&self.state).add(&piece),
                    None => break,
                },
                () = &mut expiry, if !is_expired => {
                    is_expired = true;
                    run.stop.cancel();
                }
            }
        }
        let is_stopped = run.stop.is_cancelled();
        let end = run.end().await;
        let mut state = lock(&self.state);
        let line = match end {
            Ok(end) => {
                end.notes.iter().for_each(|note| state.add(&format!("\n{note}\n")));
                if is_expired {
                    format!("killed after {} s", life.as_secs())
                } else if is_stopped {
                    "stopped".to_owned()
                } else {
                    run::said(end.code)
                }
            }
            Err(error) => error.to_string(),
        };
        state.end = Some(line);
        drop(state);
        self.ended.notify_waiters();
    }

    /// Ends the command, and waits for its last output.
    async fn stop(&self) {
        let mut ended = std::pin::pin!(self.ended.notified());
        ended.as_mut().enable();
        self.stop.cancel();
        if self.is_running() {
            tokio::time::timeout(STOP_TIME, ended).await.ok();
        }
    }

    /// Takes the output that was not read yet, with a line about its state.
    fn report(&self) -> String {
        let mut state = lock(&self.state);
        let output = std::mem::take(&mut state.output);
        let dropped = std::mem::take(&mut state.dropped_bytes);
        let mut text = String::new();
        if dropped > 0 {
            text.push_str(&format!("({dropped} bytes before this were dropped)\n"));
        }
        text.push_str(&output);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&match &state.end {
            Some(end) => format!("{} ended: {end} ({})", self.id, self.command),
            None => format!("{} runs ({})", self.id, self.command),
        });
        text
    }
}

impl State {
    fn add(&mut self, piece: &str) {
        self.dropped_bytes += run::keep_tail(&mut self.output, piece, OUTPUT_BYTES_MAX) as u64;
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    id: String,
}

/// Makes `shell_output` and `shell_stop`.
pub(super) fn tools(jobs: &Arc<Jobs>) -> Result<[Arc<dyn Tool>; 2], SessionError> {
    let make = |name: &str, description: &str, stops| -> Result<Arc<dyn Tool>, SessionError> {
        Ok(Arc::new(Report { spec: spec(name, description, SCHEMA)?, jobs: jobs.clone(), stops }))
    };
    let output = "Returns the new output of a command in the background, and whether it still runs.";
    let stop = "Ends a command in the background with all its processes, and returns its last output.";
    Ok([make("shell_output", output, false)?, make("shell_stop", stop, true)?])
}

/// Tool that reports on a command in the background.
struct Report {
    spec: ToolSpec,
    jobs: Arc<Jobs>,
    /// True if it ends the command first.
    stops: bool,
}

#[async_trait]
impl Tool for Report {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(if self.stops { Plan::idempotent() } else { Plan::read_only() })
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let job = self.jobs.find(&invocation)?;
        if self.stops {
            job.stop().await;
        }
        output.write(&job.report()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use meerkat_testkit::until;

    use super::*;

    /// Broken once: what a command waits for before it runs was waited for by all, in every session.
    #[test]
    fn a_command_that_takes_long_to_start_holds_up_no_other() {
        let session: SessionId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
        let late = || ToolError::Failed("late".to_owned());
        let (jobs, (begin, begun), (go, gone)) = (Arc::new(Jobs::default()), channel(), channel::<()>());
        let of_first = jobs.clone();
        let first = std::thread::spawn(move || {
            of_first.start(session, "first", None, |_| {
                begin.send(()).unwrap();
                gone.recv().ok();
                Err(late())
            })
        });
        begun.recv().unwrap();
        let of_second = jobs.clone();
        let second = std::thread::spawn(move || of_second.start(session, "second", None, |_| Err(late())));
        until("the second was answered", || second.is_finished());
        assert!(!first.is_finished());
        assert!(second.join().unwrap().is_err());
        go.send(()).unwrap();
        assert!(first.join().unwrap().is_err());
        assert!(lock(&jobs.sessions)[&session].jobs.is_empty());
    }
}
