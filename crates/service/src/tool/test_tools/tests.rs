//! Tests of the test tools: each does its work, and none leaves its folder.

use std::{fs, os::unix::fs::symlink, path::Path};

use futures::FutureExt;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;
use crate::{
    clock::SystemClock,
    ids::SessionId,
    session::message::Body,
    store::{BlobStore as _, MemoryBlobStore},
    tool::{OutputLimits, OutputSink},
};

/// The tools with a folder of their own.
struct Bench {
    home: TempDir,
    tools: Vec<Arc<dyn Tool>>,
}

impl Bench {
    fn new() -> Self {
        let home = meerkat_testkit::folder();
        let tools = test_tools(home.path().join("tools"), Arc::new(SystemClock::new()));
        Self { home, tools }
    }

    fn dir(&self) -> PathBuf {
        self.home.path().join("tools")
    }

    fn tool(&self, name: &str) -> &dyn Tool {
        &**self.tools.iter().find(|tool| tool.spec().name == name).unwrap()
    }

    async fn run(&self, name: &str, arguments: &str, cancel: CancellationToken) -> Result<String, ToolError> {
        let limits = OutputLimits { inline_bytes: 1 << 20, hard_cap_bytes: 1 << 20, ..OutputLimits::default() };
        let sink = OutputSink::new(
            limits,
            Arc::new(MemoryBlobStore::new(Arc::default())),
            SessionId::from_uuid(Uuid::nil()),
            crate::redact::Secrets::default().stream(),
            mpsc::channel(1).0,
        );
        self.tool(name).call(invocation(arguments, cancel), &sink).await?;
        match sink.finish().await? {
            Body::Inline(text) => Ok(text),
            Body::Blob(blob) => panic!("{blob:?} is not inline"),
        }
    }

    /// Compares the output, or the error after `error: `.
    #[track_caller]
    fn check(&self, name: &str, arguments: &str, expected: &str) {
        let outcome =
            self.run(name, arguments, CancellationToken::new()).now_or_never().expect("the tool does not wait");
        assert_eq!(outcome.unwrap_or_else(|error| format!("error: {error}")), expected);
    }

    /// Expects an error of the arguments.
    #[track_caller]
    fn check_arguments(&self, name: &str, arguments: &str) {
        let outcome =
            self.run(name, arguments, CancellationToken::new()).now_or_never().expect("the tool does not wait");
        assert!(matches!(outcome, Err(ToolError::Arguments(_))), "{arguments}: {outcome:?}");
    }
}

fn invocation(arguments: &str, cancel: CancellationToken) -> Invocation {
    let (session_id, call_id) = (SessionId::from_uuid(Uuid::nil()), "c".to_owned());
    let arguments = RawJson::parse(arguments).unwrap();
    Invocation {
        session_id,
        turn: 0,
        call_id,
        arguments,
        workspace: None,
        is_approved: false,
        search_path: None,
        cancel,
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn every_tool_says_what_it_is() {
    let bench = Bench::new();
    let call = invocation("{}", CancellationToken::new());
    let plan = |tool: &Arc<dyn Tool>| tool.plan(&call).now_or_never().expect("a plan is there at once").unwrap();
    let facts = bench.tools.iter().map(|tool| (tool.spec().name.as_str(), plan(tool)));
    let expected = [
        ("test_echo", Plan::read_only()),
        ("test_set", Plan::idempotent()),
        ("test_append", Plan::once()),
        ("test_ask", Plan::once().ask()),
        ("test_form", Plan::once()),
        ("test_sleep", Plan::read_only()),
        ("test_fail", Plan::read_only()),
        ("test_huge", Plan::read_only()),
        ("test_panic", Plan::read_only()),
    ];
    assert_eq!(facts.collect::<Vec<_>>(), expected);
    assert!(!bench.dir().exists(), "nothing is made before a tool writes");
}

#[test]
fn every_tool_refuses_arguments_that_are_not_its_own() {
    let bench = Bench::new();
    for tool in &bench.tools {
        bench.check_arguments(&tool.spec().name, r#"{"unknown":1}"#);
        bench.check_arguments(&tool.spec().name, r#""{\"text\":""#);
    }
    bench.check_arguments("test_append", r#"{"name":"a","line":"x\ny"}"#);
}

#[tokio::test]
async fn huge_writes_exactly_so_much_and_the_same_each_time() {
    let bench = Bench::new();
    let run = |bytes: usize| {
        let bench = &bench;
        async move { bench.run("test_huge", &format!("{{\"bytes\":{bytes}}}"), CancellationToken::new()).await }
    };
    assert_eq!(run(0).await.unwrap(), "");
    let text = run(20_000).await.unwrap();
    assert_eq!(text.len(), 20_000);
    assert_eq!(text, run(20_000).await.unwrap());
    assert!(matches!(run((1 << 20) + 1).await, Err(ToolError::OutputTooLarge { .. })));
}

#[tokio::test(start_paused = true)]
async fn sleep_sleeps_by_the_clock_and_long_work_stops_on_request() {
    let bench = Bench::new();
    let cancel = CancellationToken::new();
    cancel.cancel();
    for (name, arguments) in [("test_sleep", r#"{"ms":60000}"#), ("test_huge", r#"{"bytes":18446744073709551615}"#)] {
        let began = tokio::time::Instant::now();
        let stopped = bench.run(name, arguments, cancel.clone()).await;
        assert!(matches!(stopped, Err(ToolError::Cancelled)), "{name}: {stopped:?}");
        assert!(began.elapsed().is_zero());
    }
    for (arguments, cancel) in
        [(r#"{"ms":60000}"#, CancellationToken::new()), (r#"{"ms":60000,"ignore_cancel":true}"#, cancel)]
    {
        let began = tokio::time::Instant::now();
        assert_eq!(bench.run("test_sleep", arguments, cancel).await.unwrap(), "slept 60000 ms");
        assert_eq!(began.elapsed().as_secs(), 60);
    }
}

#[test]
fn a_name_leads_nowhere_else() {
    let bench = Bench::new();
    let long = "a".repeat(101);
    for name in ["", ".", "..", "../a", "/etc/passwd", "a/b", r"a\\b", "a.txt", r"a\u0000", "é", &long] {
        bench.check_arguments("test_set", &format!(r#"{{"name":"{name}","value":"x"}}"#));
        bench.check_arguments("test_append", &format!(r#"{{"name":"{name}","line":"x"}}"#));
    }
    assert!(!bench.dir().exists());
    bench.check("test_set", &format!(r#"{{"name":"{}","value":"x"}}"#, &long[..100]), &format!("set {}", &long[..100]));
}

#[test]
fn what_is_no_plain_file_is_refused_and_no_link_is_followed() {
    let bench = Bench::new();
    let outside = bench.home.path().join("outside");
    fs::write(&outside, "untouched").unwrap();
    fs::create_dir_all(bench.dir().join("folder")).unwrap();
    symlink(&outside, bench.dir().join("link")).unwrap();
    symlink(bench.home.path().join("new"), bench.dir().join("dangling")).unwrap();
    symlink("link", bench.dir().join("chain")).unwrap();
    let refusal = "error: the file could not be written: this name is not that of a plain file";
    for name in ["folder", "link", "dangling", "chain"] {
        bench.check("test_set", &format!(r#"{{"name":"{name}","value":"x"}}"#), refusal);
        bench.check("test_append", &format!(r#"{{"name":"{name}","line":"x"}}"#), refusal);
        bench.check("test_ask", &format!(r#"{{"name":"{name}","line":"x"}}"#), refusal);
    }
    assert_eq!(read(outside), "untouched");
    assert!(!bench.home.path().join("new").exists());
}

#[test]
fn the_folder_itself_is_no_link_and_no_file() {
    let bench = Bench::new();
    let refusal = "error: the file could not be written: the tools' folder is not a folder";
    let elsewhere = bench.home.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, bench.dir()).unwrap();
    bench.check("test_append", r#"{"name":"a","line":"x"}"#, refusal);
    assert_eq!(fs::read_dir(elsewhere).unwrap().count(), 0);
    fs::remove_file(bench.dir()).unwrap();
    fs::write(bench.dir(), "").unwrap();
    bench.check("test_append", r#"{"name":"a","line":"x"}"#, refusal);
}

/// An image whose line has no room any more is not stored: nothing would name it.
#[test]
fn an_image_without_its_line_leaves_no_blob() {
    let png = [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0"[..], &[0; 64]].concat();
    let (session_id, blobs) = (SessionId::from_uuid(Uuid::nil()), Arc::new(MemoryBlobStore::new(Arc::default())));
    let sink = |hard_cap_bytes| {
        let limits = OutputLimits { hard_cap_bytes, ..OutputLimits::default() };
        OutputSink::new(
            limits,
            blobs.clone(),
            session_id,
            crate::redact::Secrets::default().stream(),
            mpsc::channel(1).0,
        )
    };
    let stored = || blobs.list(session_id).now_or_never().unwrap().unwrap().len();
    let refused = sink(8).image(&png).now_or_never().unwrap();
    assert!(matches!(refused, Err(ToolError::OutputTooLarge { .. })), "{refused:?}");
    assert_eq!(stored(), 0);
    sink(1 << 20).image(&png).now_or_never().unwrap().unwrap();
    assert_eq!(stored(), 1);
}
