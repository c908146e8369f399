//! Commands in the workspace: `shell`, and `shell_output` and `shell_stop` for those in the background.
//!
//! A command is confined, or a person is asked each time. Nothing of one call is left for the next but files.

mod configs;
mod jobs;
mod named;
mod networks;
mod obeyed;
mod place;
mod rule;
mod run;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use meerkat_service::{
    SessionError, SessionId,
    model::ToolSpec,
    tool::{Invocation, Network, OutputSink, Plan, Tool, ToolError, is_unseen, shell_commands},
};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::{
    confine::{self, Confinement, Guard, Job, Network as SessionNetwork, Reach},
    files::{blocking, shown, spec},
    launcher,
};
use jobs::Jobs;
use networks::Networks;
use obeyed::{Found, Obeyed};
use place::Place;
pub use place::ShellOptions;
use run::{End, Run};

/// Time that a command may take, in milliseconds, unless a call says otherwise.
const TIMEOUT_MS: u64 = 120_000;
/// Longest time that a call may ask for, in milliseconds.
const TIMEOUT_MS_MAX: u64 = 600_000;
/// Time beyond a command's own that the engine waits, so that the tool can say what happened.
const SLACK: Duration = Duration::from_secs(10);
/// Bytes at the end of the output that are searched for a failure of the network.
const TAIL_BYTES: usize = 8 * 1024;
/// Bytes of a command: a person is shown all of it.
const COMMAND_BYTES_MAX: usize = 12 * 1024;

const DESCRIPTION: &str = "Runs a command with bash (or sh) in the workspace and returns what it printed and its exit \
    code. Each call starts afresh: a change of folder, a variable or a started process does not last to the next call, \
    so join steps with && or pass cwd. Standard input is empty and there is no terminal. The command may write in the \
    workspace and in $TMPDIR, and may read the system's and toolchains' folders. Unless said otherwise .git is read-only, \
    and the network is 127.0.0.1 alone, which this session's commands share and no one else. What still runs at the end of \
    a call is killed; use background for servers and long builds.";
const SCHEMA: &str = r#"{
  "type": "object",
  "properties": {
    "command": {"type": "string", "minLength": 1, "description": "Command for the shell."},
    "cwd": {"type": "string", "description": "Folder in the workspace that it starts in. The workspace by default."},
    "timeout_ms": {"type": "integer", "minimum": 1, "maximum": 600000, "description": "Time after which it is killed, in milliseconds. 120000 by default."},
    "background": {"type": "boolean", "description": "True returns an id at once and leaves the command running, for shell_output and shell_stop."},
    "network": {"type": "boolean", "description": "True asks a person for a run with the machine's network, in which servers of other commands are not."},
    "git": {"type": "boolean", "description": "True asks a person for a run that may change .git, as git commit does."}
  },
  "required": ["command"],
  "additionalProperties": false
}"#;

const OWN_NETWORK: &str = "127.0.0.1 is of this session alone: only servers that its commands started are there.\n";
const GIT_HINT: &str = "What git and other programs obey is read-only to commands. Pass git: true to ask a person for a run \
    that may change it.\n";
/// What a person is asked for a command that may change a repository.
const GIT_OPEN: &str = "with .git open (git later runs its hooks and what its config names), and files that other programs \
    obey";

/// Makes `shell`, `shell_output` and `shell_stop`. It returns none if the program's `main` does not begin with
/// [`launcher`](crate::launcher()).
///
/// # Errors
/// Returns an error if a schema is not valid.
pub fn shell_tools(options: ShellOptions) -> Result<Vec<Arc<dyn Tool>>, SessionError> {
    tools(options).map(|(tools, _)| tools)
}

/// Tools, with what they know of git's configuration.
pub(crate) type Informed = (Vec<Arc<dyn Tool>>, Option<Named>);

/// Makes the tools.
pub(crate) fn tools(options: ShellOptions) -> Result<Informed, SessionError> {
    if !launcher::is_installed() {
        return Ok((Vec::new(), None));
    }
    let jobs = Arc::new(Jobs::default());
    let spec = spec("shell", DESCRIPTION, SCHEMA)?;
    let network = options.network;
    let place = Arc::new(Place::new(options));
    let named = Named { place: place.clone(), obeyed: Arc::default() };
    let networks = Arc::default();
    let shell = Shell { spec, network, place, networks, jobs: jobs.clone(), named: named.clone() };
    let mut tools: Vec<Arc<dyn Tool>> = vec![Arc::new(shell)];
    tools.extend(jobs::tools(&jobs)?);
    Ok((tools, Some(named)))
}

/// Paths in a workspace that git's configuration names, found once for each session.
#[derive(Clone)]
pub(crate) struct Named {
    place: Arc<Place>,
    obeyed: Arc<Obeyed>,
}

impl Named {
    /// Returns the paths; none where nothing can confine git while it reads its configuration.
    pub(crate) async fn of(&self, session_id: SessionId, workspace: &Path) -> Result<Vec<PathBuf>, ToolError> {
        Ok(self.found(session_id, workspace).await?.paths)
    }

    async fn found(&self, session_id: SessionId, workspace: &Path) -> Result<Found, ToolError> {
        // It starts a process once.
        let confinement = tokio::task::spawn_blocking(confine::probe).await;
        if !confinement.is_ok_and(Confinement::is_whole) {
            return Ok(Found::default());
        }
        self.obeyed.of(&self.place, session_id, workspace).await
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    command: String,
    cwd: Option<String>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    background: bool,
    #[serde(default)]
    network: bool,
    #[serde(default)]
    git: bool,
}

/// `shell`.
struct Shell {
    spec: ToolSpec,
    network: Network,
    place: Arc<Place>,
    networks: Arc<Networks>,
    jobs: Arc<Jobs>,
    named: Named,
}

/// Command that may run.
struct Prepared {
    job: Job,
    arguments: Arguments,
    confinement: Confinement,
    timeout: Duration,
}

impl Shell {
    async fn prepare(&self, invocation: &Invocation) -> Result<Prepared, ToolError> {
        let arguments: Arguments = ToolError::decode(&invocation.arguments)?;
        let timeout = arguments.timeout_ms.unwrap_or(TIMEOUT_MS);
        if !(1..=TIMEOUT_MS_MAX).contains(&timeout) {
            let message = format!("timeout_ms is {timeout}; it must be 1 to {TIMEOUT_MS_MAX}");
            return Err(ToolError::Arguments(message));
        }
        if arguments.command.trim().is_empty() || arguments.command.contains('\0') {
            return Err(ToolError::Arguments("command is empty or holds a NUL; give a command line".to_owned()));
        }
        if let Some(char) = arguments.command.chars().find(|char| is_unseen(*char) && !"\n\t".contains(*char)) {
            let code = u32::from(char);
            let message = format!(
                "command holds the character U+{code:04X}, which no person would see; write it as an escape of the shell: \
                 $'\\U{code:08X}'"
            );
            return Err(ToolError::Arguments(message));
        }
        if arguments.command.len() > COMMAND_BYTES_MAX {
            let message = format!("command is longer than {COMMAND_BYTES_MAX} bytes; write it to a file and run that");
            return Err(ToolError::Arguments(message));
        }
        let reach = match (self.network, arguments.network) {
            (Network::Deny, true) => {
                let message = "The configuration refuses the network to commands (tools.network = \"deny\").";
                return Err(ToolError::Refused(message.to_owned()));
            }
            (Network::Deny | Network::Ask, false) => Reach::Nothing,
            (Network::Ask, true) | (Network::Allow, _) => Reach::Machine,
        };
        let Some(workspace) = invocation.workspace.clone() else {
            let message = "This session has no workspace, so no command can run; start one in a folder.";
            return Err(ToolError::Refused(message.to_owned()));
        };
        let (place, command, cwd) = (self.place.clone(), arguments.command.clone(), arguments.cwd.clone());
        let (search_path, git) = (invocation.search_path.clone(), arguments.git);
        // It looks at files, and once starts a process.
        let job = blocking(move || {
            let job = place.job((&workspace, search_path), cwd.as_deref(), command, (reach, git));
            job.map_err(ToolError::Refused)
        });
        let mut job = job.await?;
        let confinement = job.confinement;
        // Where nothing can protect them, every command asks.
        let found = self.named.found(invocation.session_id, &job.workspace).await?;
        let (place, workspace) = (self.place.clone(), job.workspace.clone());
        let looked = blocking(move || {
            let shadows = confinement.is_whole().then(|| place.shadows(&workspace, &found.harmless));
            let obeyed = confine::obeyed(&workspace, found.paths).map_err(ToolError::Failed)?;
            Ok((obeyed, shadows.unwrap_or_default()))
        });
        (job.obeyed, job.shadows) = looked.await?;
        if arguments.background && !job.has_namespace() {
            let message = "This system gives a command no processes of its own, so none runs in the background; run it \
                           without background.";
            return Err(ToolError::Refused(message.to_owned()));
        }
        Ok(Prepared { job, arguments, confinement, timeout: Duration::from_millis(timeout) })
    }
}

#[async_trait]
impl Tool for Shell {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::once().ask())
    }

    async fn plan(&self, invocation: &Invocation) -> Result<Plan, ToolError> {
        let Prepared { job, arguments, confinement, timeout } = self.prepare(invocation).await?;
        let mut plan = Plan::once().ask();
        // No rule allows what nothing confines, and a person decides about each use of the network and about what git
        // obeys later, outside of the confinement.
        let asks_for_network = arguments.network && self.network == Network::Ask;
        plan.always_asks = !confinement.is_whole() || asks_for_network || arguments.git;
        if !plan.always_asks {
            let commands = shell_commands(&arguments.command).unwrap_or_default();
            plan.rule = rule::propose(&commands);
            plan.subjects = commands.iter().map(|words| words.join(" ")).collect();
        }
        let folder = shown(&job.folder);
        let kind = if arguments.background { ", in the background" } else { "" };
        let held = match (confinement.is_whole(), job.reach == Reach::Machine, job.git) {
            (true, true, false) => "confined but with the network".to_owned(),
            (true, false, true) => format!("confined but {GIT_OPEN}"),
            (true, true, true) => format!("confined but with the network and {GIT_OPEN}"),
            (true, false, false) | (false, _, _) => confinement.to_string(),
        };
        plan.preview = Some(format!("In {folder}{kind}; {held}:\n{}", arguments.command));
        plan.timeout = Some(timeout + SLACK);
        Ok(plan)
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let Prepared { mut job, arguments, timeout, confinement } = self.prepare(&invocation).await?;
        let own = self.own_network(&mut job, invocation.session_id).await?;
        let network = job.reach == Reach::Machine;
        let mut held = confinement.names(network);
        if job.git && confinement.is_whole() {
            held.push_str("; git open");
        }
        let guarded = job.clone();
        let guard = blocking(move || Guard::take(&guarded).map_err(ToolError::Failed)).await?;
        let (place, starting) = (self.place.clone(), job.clone());
        let start = move |stop| Run::start(&place, &starting, (own, Some(guard)), stop);
        if arguments.background {
            let life = arguments.timeout_ms.map(|_| timeout);
            let jobs = self.jobs.clone();
            let started = move || jobs.start(invocation.session_id, &arguments.command, life, start);
            let id = blocking(started).await?;
            output.set_confinement(Some(held));
            let text = format!(
                "{id} runs in the background. shell_output {{\"id\": \"{id}\"}} has its output, shell_stop ends it."
            );
            return output.write(&text).await;
        }
        let mut run = blocking(|| start(CancellationToken::new())).await?;
        output.set_confinement(Some(held));
        let mut deadline = std::pin::pin!(tokio::time::sleep(timeout));
        let mut has_line_end = true;
        let mut tail = String::new();
        let mut stopped = None;
        loop {
            let piece = tokio::select! {
                biased;
                piece = run.pieces.recv() => piece,
                () = invocation.cancel.cancelled(), if stopped.is_none() => {
                    stopped = Some(ToolError::Cancelled);
                    run.stop.cancel();
                    continue;
                }
                () = &mut deadline, if stopped.is_none() => {
                    stopped = Some(ToolError::Failed(format!(
                        "The command was killed after {} ms. Pass a larger timeout_ms (at most {TIMEOUT_MS_MAX}), or \
                         background: true.",
                        timeout.as_millis(),
                    )));
                    run.stop.cancel();
                    continue;
                }
            };
            let Some(piece) = piece else { break };
            has_line_end = piece.ends_with('\n');
            run::keep_tail(&mut tail, &piece, TAIL_BYTES);
            output.progress(piece.as_str());
            if let Err(error) = output.write(&piece).await {
                // The rest is read, so that the command's end is seen, and not kept.
                stopped.get_or_insert(error);
                run.stop.cancel();
            }
        }
        let End { code, notes } = run.end().await.inspect_err(|_| output.set_confinement(None))?;
        let mut last = String::new();
        if !has_line_end {
            last.push('\n');
        }
        for note in notes {
            last.push_str(&note);
            last.push('\n');
        }
        match stopped {
            // What changed is said also after a cancel. A full output takes nothing more.
            Some(error) => {
                output.write(&last).await.ok();
                Err(error)
            }
            None => {
                if code != 0 && !network && rule::wants_network(&tail) {
                    if job.reach == Reach::Session {
                        last.push_str(OWN_NETWORK);
                    }
                    last.push_str(self.network_hint());
                }
                if code != 0 && !job.git && rule::wants_git(&tail, &job.obeyed) {
                    last.push_str(GIT_HINT);
                }
                last.push_str(&run::said(code));
                output.write(&last).await
            }
        }
    }
}

impl Shell {
    /// Gives a command that reaches no network that of its session, if there is one.
    async fn own_network(
        &self,
        job: &mut Job,
        session_id: SessionId,
    ) -> Result<Option<Arc<SessionNetwork>>, ToolError> {
        if job.reach != Reach::Nothing || !job.confinement.is_whole() {
            return Ok(None);
        }
        let networks = self.networks.clone();
        // It may start a process.
        let own = blocking(move || Ok(networks.of(session_id))).await?;
        if own.is_some() {
            job.reach = Reach::Session;
        }
        Ok(own)
    }

    const fn network_hint(&self) -> &'static str {
        match self.network {
            Network::Deny => "The network is closed to commands (tools.network = \"deny\").\n",
            Network::Ask | Network::Allow => {
                "The network is closed to commands. Pass network: true to ask a person for it; they can open it for all \
                 with tools.network = \"allow\".\n"
            }
        }
    }
}
