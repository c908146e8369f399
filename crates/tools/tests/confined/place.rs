//! A folder with a workspace, and the tools over it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, LazyLock},
};

use meerkat_service::{
    SessionId,
    redact::Secrets,
    session::message::RawJson,
    store::MemoryBlobStore,
    tool::{Access, Ask, Invocation, Network, OutputLimits, OutputSink, Plan, Tool, ToolError, check_schema},
};
use meerkat_tools::{HandsOptions, ShellOptions, shell_tools, workspace_tools};
use serde_json::{Value, json};
use tokio::{runtime::Runtime, sync::mpsc};
use tokio_util::sync::CancellationToken;

/// The longest time that a command may have: a busy machine is slow.
const PATIENCE_MS: u64 = 600_000;

pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Returns true where the kernel gives a command its own namespaces.
pub(crate) fn has_namespaces() -> bool {
    std::env::var_os(super::WITHOUT_NAMESPACES).is_none()
}

/// Returns true where it also gives a session a network of its own.
pub(crate) fn has_networks() -> bool {
    has_namespaces() && std::env::var_os(super::WITHOUT_NETWORKS).is_none()
}

/// Workspace beside files of its owner that no command may reach.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) workspace: PathBuf,
    /// Number of the session that calls.
    pub(crate) session: u32,
    /// `PATH` of the turn.
    pub(crate) search_path: Option<String>,
    tools: Vec<Arc<dyn Tool>>,
}

/// Output of a call and its result.
pub(crate) type Called = (String, Result<(), ToolError>);

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(Network::Ask)
    }

    pub(crate) fn with(network: Network) -> Self {
        let folder = tempfile::tempdir_in(super::WORKSPACES).unwrap();
        Self::over(folder, network)
    }

    /// A place whose owner has this home folder.
    pub(crate) fn at_home(home: &Path) -> Self {
        let place = Self::new();
        let mut options = options(place.folder.path(), Network::Ask);
        options.environment.retain(|(name, _)| !["HOME", "CARGO_HOME"].contains(&name.as_str()));
        options.environment.push(("HOME".to_owned(), home.to_str().unwrap().to_owned()));
        Self { tools: shell_tools(options).unwrap(), ..place }
    }

    /// A place whose owner has this home folder, and lets commands read all of it.
    pub(crate) fn reading(home: &Path) -> Self {
        let place = Self::new();
        let mut options = options(place.folder.path(), Network::Ask);
        options.environment.retain(|(name, _)| !["HOME", "CARGO_HOME"].contains(&name.as_str()));
        options.environment.push(("HOME".to_owned(), home.to_str().unwrap().to_owned()));
        options.readable.push(home.to_owned());
        Self { tools: shell_tools(options).unwrap(), ..place }
    }

    /// A place whose owner's secrets of cargo lie in the workspace.
    pub(crate) fn with_credentials() -> Self {
        let place = Self::new();
        let file = place.workspace.join("cargo/credentials.toml");
        fs::create_dir(place.workspace.join("cargo")).unwrap();
        fs::write(&file, "owner's\n").unwrap();
        let mut options = options(place.folder.path(), Network::Ask);
        options.hidden.push(file);
        Self { tools: shell_tools(options).unwrap(), ..place }
    }

    pub(crate) fn over(folder: tempfile::TempDir, network: Network) -> Self {
        let workspace = folder.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        fs::write(folder.path().join("outside"), "owner's\n").unwrap();
        fs::write(folder.path().join("data/token"), "owner's\n").unwrap();
        let tools = shell_tools(options(folder.path(), network)).unwrap();
        assert_eq!(tools.len(), 3, "the launcher is the first line of main");
        let is_good = |tool: &Arc<dyn Tool>| check_schema(&tool.spec().schema).is_ok();
        assert!(tools.iter().all(is_good), "a start does not check the schemas");
        Self { folder, workspace, session: 1, search_path: None, tools }
    }

    /// Makes all tools of a workspace, as sessions have them.
    pub(crate) fn all_tools(&self, ask: Ask) -> Vec<Arc<dyn Tool>> {
        let shell = options(self.folder.path(), Network::Ask);
        workspace_tools(HandsOptions { access: Access::Write, ask, shell }).unwrap()
    }

    /// Returns the confinement that a call of the shell had.
    pub(crate) fn confinement(&self, arguments: &Value) -> Option<String> {
        let (sink, _texts) = sink(&self.invocation(arguments));
        RUNTIME.block_on(self.tool("shell").call(self.invocation(arguments), &sink)).ok();
        sink.confinement()
    }

    /// Makes a repository in the workspace.
    pub(crate) fn git(&self) -> &Self {
        for arguments in [&["init", "-q"][..], &["config", "user.name", "a"], &["config", "user.email", "a@b"]] {
            assert!(Command::new("git").args(arguments).current_dir(&self.workspace).status().unwrap().success());
        }
        self
    }

    pub(crate) fn invocation(&self, arguments: &Value) -> Invocation {
        Invocation {
            session_id: format!("01900000-0000-7000-8000-{:012}", self.session).parse::<SessionId>().unwrap(),
            turn: 1,
            call_id: "call".to_owned(),
            arguments: RawJson::parse(&arguments.to_string()).unwrap(),
            workspace: Some(self.workspace.clone()),
            is_approved: false,
            search_path: self.search_path.clone(),
            cancel: CancellationToken::new(),
        }
    }

    pub(crate) fn tool(&self, name: &str) -> &Arc<dyn Tool> {
        self.tools.iter().find(|tool| tool.spec().name == name).unwrap()
    }

    pub(crate) fn plan(&self, arguments: &Value) -> Result<Plan, ToolError> {
        RUNTIME.block_on(self.tool("shell").plan(&self.invocation(arguments)))
    }

    pub(crate) fn call(&self, name: &str, arguments: &Value) -> Called {
        RUNTIME.block_on(call(self.tool(name), self.invocation(arguments)))
    }

    /// Runs a command and returns what it printed, with the line of its end.
    pub(crate) fn shell(&self, command: &str) -> String {
        let (output, result) = self.call("shell", &json!({"command": command, "timeout_ms": PATIENCE_MS}));
        result.unwrap_or_else(|error| panic!("{command}: {error}\n{output}"));
        output
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(crate) fn succeeds(&self, command: &str) -> String {
        let output = self.shell(command);
        let text = output.strip_suffix("exit code 0");
        text.unwrap_or_else(|| panic!("{command} failed:\n{output}")).to_owned()
    }

    /// Runs a command that must fail.
    #[track_caller]
    pub(crate) fn fails(&self, command: &str) -> String {
        let output = self.shell(command);
        assert!(!output.ends_with("exit code 0"), "{command} succeeded:\n{output}");
        output
    }

    /// Runs a command that may change what git obeys, and that must succeed.
    #[track_caller]
    pub(crate) fn succeeds_with_git(&self, command: &str) -> String {
        let arguments = json!({"command": command, "git": true, "timeout_ms": PATIENCE_MS});
        let (output, result) = self.call("shell", &arguments);
        let is_good = result.is_ok() && output.ends_with("exit code 0");
        assert!(is_good, "{command} failed: {result:?}\n{output}");
        output
    }

    /// Runs git outside of any confinement, as the owner.
    pub(crate) fn owners_git(&self, arguments: &str) {
        let mut command = Command::new("git");
        command.args(arguments.split(' ')).current_dir(&self.workspace).stderr(std::process::Stdio::null());
        assert!(command.status().unwrap().success(), "git {arguments}");
    }

    /// Compiles a C program in the workspace and returns its path.
    pub(crate) fn compile(&self, name: &str, source: &str) -> String {
        fs::write(self.workspace.join(format!("{name}.c")), source).unwrap();
        self.succeeds(&format!("cc -w -o {name} {name}.c"));
        format!("./{name}")
    }

    /// Checks that nothing outside of the workspace changed.
    #[track_caller]
    pub(crate) fn is_untouched(&self) {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["data", "outside", "workspace"]);
        for file in ["outside", "data/token"] {
            assert_eq!(fs::read_to_string(self.folder.path().join(file)).unwrap(), "owner's\n");
        }
    }
}

fn options(folder: &Path, network: Network) -> ShellOptions {
    // A program below /tmp would keep a command from getting its own.
    let elsewhere = |path: String| path.split(':').filter(|it| !it.starts_with("/tmp")).collect::<Vec<_>>().join(":");
    let environment = std::env::vars()
        .filter(|(name, _)| ["HOME", "PATH", "CARGO_HOME", "RUSTUP_HOME", "PYENV_ROOT"].contains(&name.as_str()))
        .map(|(name, value)| if name == "PATH" { (name, elsewhere(value)) } else { (name, value) })
        .chain([("API_KEY".to_owned(), "secret".to_owned()), ("SSH_AUTH_SOCK".to_owned(), "/x".to_owned())])
        .collect();
    ShellOptions { network, readable: Vec::new(), hidden: vec![folder.join("data")], environment }
}

fn sink(invocation: &Invocation) -> (OutputSink, mpsc::Receiver<String>) {
    let (progress, texts) = mpsc::channel(64);
    let limits =
        OutputLimits { inline_bytes: 8 * 1024 * 1024, hard_cap_bytes: 8 * 1024 * 1024, ..OutputLimits::default() };
    let blobs = Arc::new(MemoryBlobStore::default());
    (OutputSink::new(limits, blobs, invocation.session_id, Secrets::default().stream(), progress), texts)
}

/// Calls a tool and returns its whole output.
pub(crate) async fn call(tool: &Arc<dyn Tool>, invocation: Invocation) -> Called {
    call_heard(tool, invocation, |_| ()).await
}

/// Calls a tool, does something with each text while it runs, and returns its whole output.
pub(crate) async fn call_heard(
    tool: &Arc<dyn Tool>,
    invocation: Invocation,
    hear: impl Fn(String) + Send + 'static,
) -> Called {
    let (sink, mut texts) = sink(&invocation);
    let drain = tokio::spawn(async move {
        while let Some(text) = texts.recv().await {
            hear(text);
        }
    });
    let result = tool.call(invocation, &sink).await;
    let output = sink.finish().await.unwrap().excerpt().into_owned();
    drop(sink);
    drain.await.unwrap();
    (output, result)
}
