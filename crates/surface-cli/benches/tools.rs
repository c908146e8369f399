//! What tools cost, each side by side with its floor in one interleaved run: a confined command with a bare spawn of the
//! same one, a call of a server over stdio with one over the bare library, `grep` with ripgrep; and the bytes that the sizes
//! of the context take in an event.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

mod side_by_side;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use meerkat_service::{
    SessionId,
    redact::Secrets,
    session::message::RawJson,
    store::MemoryBlobStore,
    tool::{Invocation, OutputLimits, OutputSink, Tool, ToolSource as _},
};
use meerkat_surface_cli::Terminal;
use meerkat_tools::{
    FileAccess, ShellOptions, file_tools,
    servers::{ServersOptions, servers},
    shell_tools,
};
use nix::sys::resource::{UsageWho, getrusage};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InitializeResult, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use side_by_side::{binary, median};
use tokio::{runtime::Runtime, sync::mpsc};
use tokio_util::sync::CancellationToken;

const WARM_UP: usize = 10;
const COMMANDS: usize = 200;
/// Rounds of calls over stdio, and calls of one kind in a round.
const ROUNDS: usize = 60;
const CALLS: u32 = 100;
const SEARCHES: usize = 60;
/// Searched files, and lines of each.
const FILES: usize = 4_000;
const LINES: usize = 400;
/// Files of which one has a match.
const MATCHES: usize = 50;
/// First argument of this program as a server, and as the whole meerkat.
const SERVER: &str = "server";
const PROGRAM: &str = "program";

/// What one side took in all its runs.
#[derive(Default)]
struct Cost {
    wall: Vec<Duration>,
    /// Time on a core, of its children too.
    cpu: Vec<Duration>,
}

impl Cost {
    fn of(&mut self, run: impl FnOnce()) {
        let (cpu, started) = (cpu(), Instant::now());
        run();
        self.wall.push(started.elapsed());
        self.cpu.push(self::cpu().saturating_sub(cpu));
    }
}

/// Time on a core of this process and of its children that have ended.
fn cpu() -> Duration {
    let of = |who| {
        let usage = getrusage(who).unwrap();
        [usage.user_time(), usage.system_time()]
            .map(|time| Duration::from_micros(u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap()))
    };
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].into_iter().flat_map(of).sum()
}

/// Runs both sides by turns, and prints what they took.
fn compare(name: &str, rounds: usize, per_round: u32, mut floor: impl FnMut(), mut ours: impl FnMut()) {
    let mut costs = [Cost::default(), Cost::default()];
    for round in 0..WARM_UP + rounds {
        if round == WARM_UP {
            costs = Default::default();
        }
        costs[0].of(&mut floor);
        costs[1].of(&mut ours);
    }
    let [floor, ours] = costs.map(|Cost { mut wall, mut cpu }| {
        let least = *wall.iter().min().unwrap();
        [median(&mut wall), least, median(&mut cpu)].map(|time| time / per_round)
    });
    println!("{name}");
    for (what, floor, ours) in
        [("median", floor[0], ours[0]), ("minimum", floor[1], ours[1]), ("time on a core", floor[2], ours[2])]
    {
        let ratio = ours.as_secs_f64() / floor.as_secs_f64();
        println!("    {what}: {ours:.2?}, floor {floor:.2?}; {ratio:.2} x, {:.2?} more", ours.saturating_sub(floor));
    }
}

/// Calls a tool as the engine does.
async fn call(tool: &dyn Tool, workspace: Option<&Path>, arguments: &Value) -> String {
    let (progress, mut texts) = mpsc::channel(64);
    let session_id = "01900000-0000-7000-8000-000000000001".parse::<SessionId>().unwrap();
    let blobs = Arc::new(MemoryBlobStore::default());
    let sink = OutputSink::new(OutputLimits::default(), blobs, session_id, Secrets::default().stream(), progress);
    let invocation = Invocation {
        session_id,
        turn: 1,
        call_id: "call".to_owned(),
        arguments: RawJson::parse(&arguments.to_string()).unwrap(),
        workspace: workspace.map(Path::to_owned),
        is_approved: false,
        search_path: None,
        cancel: CancellationToken::new(),
    };
    let mut running = tool.call(invocation, &sink);
    loop {
        tokio::select! {
            Some(_) = texts.recv() => {}
            result = &mut running => break result.unwrap(),
        }
    }
    sink.finish().await.unwrap().excerpt().into_owned()
}

fn command(runtime: &Runtime) {
    // Not beneath /tmp, which a command gets its own of.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let workspace = folder.path().canonicalize().unwrap();
    let options = ShellOptions { environment: std::env::vars().collect(), ..ShellOptions::default() };
    let tools = shell_tools(options).unwrap();
    let shell = tools.iter().find(|tool| tool.spec().name == "shell").unwrap();
    let line = "/bin/true; exit 0";
    let bare = || {
        let mut command = Command::new("/bin/bash");
        command.args(["-c", line]).env_clear().current_dir(&workspace).stdin(Stdio::null());
        assert!(command.output().unwrap().status.success());
    };
    let ours = || {
        let output = runtime.block_on(call(shell.as_ref(), Some(&workspace), &json!({ "command": line })));
        assert_eq!(output.trim(), "exit code 0");
    };
    compare("a confined command, beside a bare spawn", COMMANDS, 1, bare, ours);
}

/// Server of one tool, which answers with its text.
struct Echo;

impl ServerHandler for Echo {
    fn get_info(&self) -> InitializeResult {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
        let schema = Arc::new(schema.as_object().unwrap().clone());
        Ok(ListToolsResult::with_all_items(vec![rmcp::model::Tool::new("echo", "Answers with its text.", schema)]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let text = request.arguments.as_ref().and_then(|all| all["text"].as_str()).unwrap_or_default();
        Ok(CallToolResult::success(vec![ContentBlock::text(text.to_owned())]).into())
    }
}

fn stdio(runtime: &Runtime) {
    let program = std::env::current_exe().unwrap();
    let mut process = runtime.block_on(async {
        let mut process = tokio::process::Command::new(&program);
        process.arg(SERVER).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    });
    let pipes = (process.stdout.take().unwrap(), process.stdin.take().unwrap());
    let bare = runtime.block_on(().serve(pipes)).unwrap();
    let config = serde_json::from_value(json!({ "command": program, "args": [SERVER] })).unwrap();
    let options = ServersOptions { servers: BTreeMap::from([("t".to_owned(), config)]), ..ServersOptions::default() };
    let pool = servers(options).unwrap();
    runtime.block_on(pool.ready());
    let echo = pool.offered().1.into_iter().next().unwrap();
    let arguments = json!({ "text": "some text of ordinary length" });
    let floor = || {
        for _ in 0..CALLS {
            let call = CallToolRequestParams::new("echo").with_arguments(arguments.as_object().unwrap().clone());
            runtime.block_on(bare.call_tool(call)).unwrap();
        }
    };
    let ours = || {
        for _ in 0..CALLS {
            let output = runtime.block_on(call(echo.as_ref(), None, &arguments));
            assert!(output.contains("ordinary length"), "{output}");
        }
    };
    compare("a call over stdio, beside the bare library", ROUNDS, CALLS, floor, ours);
    runtime.block_on(pool.shut_down());
}

fn grep(runtime: &Runtime) {
    let is_there = |program: &str| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there("rg") {
        println!("grep is not measured: ripgrep (rg) is not on this machine");
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let workspace = folder.path().canonicalize().unwrap();
    for number in 0..FILES {
        let folder = workspace.join(format!("folder_{}", number / 40));
        std::fs::create_dir_all(&folder).unwrap();
        let mut text = String::new();
        for line in 0..LINES {
            writeln!(text, "    let value_{line} = compute(number_{number}, \"some text\");").unwrap();
        }
        if number % MATCHES == 0 {
            text.push_str("// needle_42\n");
        }
        std::fs::write(folder.join(format!("file_{number}.rs")), text).unwrap();
    }
    let tools = file_tools(FileAccess::Write).unwrap();
    let grep = tools.iter().find(|tool| tool.spec().name == "grep").unwrap();
    let pattern = "needle_[0-9]+";
    let count = FILES / MATCHES;
    let ripgrep = || {
        let output = Command::new("rg").args(["-n", "--no-heading", pattern, "."]).current_dir(&workspace).output();
        assert_eq!(output.unwrap().stdout.iter().filter(|byte| **byte == b'\n').count(), count);
    };
    let ours = || {
        let output = runtime.block_on(call(grep.as_ref(), Some(&workspace), &json!({ "pattern": pattern })));
        assert!(output.contains(&format!("[{count} matching lines in {count} files.")), "{output}");
    };
    compare("grep, beside ripgrep", SEARCHES, 1, ripgrep, ours);
}

/// Bytes of an `assistant_message` with and without the sizes of the context.
fn context() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.args(["--ephemeral", "run", "hello", "--events"]).env_clear().env("HOME", folder.path());
    let output = command.current_dir("/").stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("\"type\":\"assistant_message\"")).unwrap();
    let mut event: Value = serde_json::from_str(line).unwrap();
    let context = event.as_object_mut().unwrap().remove("context").unwrap();
    let bytes = format!(",\"context\":{context}").len();
    println!("assistant_message of a short answer: {} bytes, {} without its context", line.len(), line.len() - bytes);
}

fn main() {
    meerkat_tools::launcher();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let runtime = Runtime::new().unwrap();
    if arguments.get(1).is_some_and(|first| first == SERVER) {
        runtime.block_on(async {
            let server = Echo.serve((tokio::io::stdin(), tokio::io::stdout())).await.unwrap();
            server.waiting().await.unwrap();
        });
    } else if arguments.get(1).is_some_and(|first| first == PROGRAM) {
        // Never used: a command's launcher is this program, which has to be as large as the one that users get.
        std::process::exit(i32::from(meerkat_surface_cli::run(arguments, Terminal::process())));
    } else {
        command(&runtime);
        stdio(&runtime);
        grep(&runtime);
        context();
    }
}
