//! Rules for the repository's text and crates: each is a function from files to complaints.
//!
//! A complaint names its place and says what to do. The rules need no network and no tool but cargo.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::builds::{scrubbed_cargo, workspace};

/// The longest file of source, in lines.
const LINES_MAX: usize = 700;

/// The crate whose simulated disk is for tests alone.
const SIMULATED: &str = "crates/service/journal/src/lib.rs";

/// The places that compose surfaces, and test them together.
const SERVE: &str = "crates/serve/";
const CLIENT: &str = "crates/surface-rpc/client/";
const SERVE_TESTS: &str = "crates/surface-cli/tests/serve";

/// Crates and the only places that may name them; surfaces are composed in one place.
const CONFINED: [(&str, &[&str]); 18] = [
    ("meerkat_surface_rest", &["crates/surface-rest/", SERVE, SERVE_TESTS, "parity-tests/src/drivers/"]),
    ("meerkat_surface_rpc", &["crates/surface-rpc/", CLIENT, SERVE, SERVE_TESTS, "parity-tests/src/drivers/"]),
    ("meerkat_surface_mcp", &["crates/surface-mcp/", SERVE, SERVE_TESTS, "parity-tests/src/drivers/"]),
    ("meerkat_surface_acp", &["crates/surface-acp/", SERVE]),
    ("meerkat_surface_openai", &["crates/surface-openai/", SERVE, SERVE_TESTS]),
    ("agent_client_protocol_schema", &["crates/surface-acp/"]),
    (
        "axum",
        &[
            "crates/surface-openai/",
            "crates/surface-rest/",
            SERVE,
            CLIENT,
            "crates/tools/tests/servers/",
            "parity-tests/",
        ],
    ),
    // The surfaces over HTTP are tower services, so that one listener mounts them alike.
    ("tower", &["crates/surface-openai/", "crates/surface-rest/", "crates/surface-rpc/", "crates/surface-mcp/", SERVE]),
    ("tower_http", &["crates/surface-rest/", SERVE]),
    ("jsonrpsee", &["crates/surface-rpc/", CLIENT]),
    ("soketto", &[SERVE]),
    (
        "rmcp",
        &[
            "crates/surface-mcp/",
            "crates/tools/src/servers/",
            "crates/tools/tests/servers/",
            "crates/surface-cli/benches/",
            "crates/surface-cli/tests/",
            "parity-tests/src/bin/",
        ],
    ),
    ("clap", &["crates/surface-cli/"]),
    ("figment", &["crates/surface-cli/"]),
    ("reedline", &["crates/surface-cli/"]),
    ("redb", &["crates/service/journal/src/", "crates/service/src/store/directory", "crates/service/recall/src/"]),
    ("hnsw_rs", &["crates/service/recall/src/"]),
    ("genai", &["crates/service/models/src/vendors/"]),
];

/// The files whose types may derive serde.
const ENCODED: [&str; 49] = [
    "crates/errors/src/body.rs",
    "crates/service/src/agent/tests/decided.rs",
    "crates/service/src/agent/tests/plans.rs",
    "crates/tools/src/confine/mod.rs",
    "crates/tools/src/files/",
    "crates/tools/src/shell/",
    "crates/service/src/session/event.rs",
    "crates/service/src/session/event/",
    "crates/service/src/session/compactions.rs",
    "crates/service/src/session/context.rs",
    "crates/service/src/session/snapshot.rs",
    "crates/service/src/session/state.rs",
    "crates/service/src/session/turn.rs",
    "crates/service/src/upkeep/bundle/mod.rs",
    "crates/service/src/upkeep/copy.rs",
    "crates/service/src/consumers/projection/mod.rs",
    "crates/service/src/consumers/projection/transcript.rs",
    "crates/service/src/store/mod.rs",
    "crates/service/src/store/directory/",
    "crates/service/src/capability.rs",
    "crates/service/recall/src/",
    "crates/service/recall/benches/",
    "crates/service/journal/src/",
    "crates/service/words/src/",
    "crates/service/models/src/scripted/",
    "crates/service/src/tool/delegate.rs",
    "crates/service/src/tool/search.rs",
    "crates/service/src/tool/test_tools/",
    "crates/service/src/wire/",
    "crates/service/models/src/vendors/answer.rs",
    "crates/service/models/src/vendors/options.rs",
    "crates/service/models/src/vendors/prices.rs",
    "crates/service/src/runtime/pin_fact.rs",
    "crates/service/src/runtime/read_blob.rs",
    "crates/service/src/runtime/recall.rs",
    "crates/service/examples/",
    "crates/service/benches/",
    "crates/store-postgres/src/inspect.rs",
    "crates/surface-rpc/src/owner/hello.rs",
    "crates/surface-mcp/src/rounds.rs",
    "crates/surface-cli/src/config.rs",
    "crates/surface-cli/src/config/",
    "crates/surface-rpc/tests/",
    "crates/surface-rpc/src/stdio.rs",
    "crates/surface-rpc/client/src/way.rs",
    "crates/tools/src/servers/auth/store.rs",
    "crates/tools/src/servers/cache.rs",
    "crates/tools/src/servers/config.rs",
    "/src/wire.rs",
];

/// The crates of ours that each of ours may use; a composing crate may use the surfaces too.
pub(crate) const EDGES: [(&str, &[&str]); 22] = [
    ("meerkat-console", &[]),
    ("meerkat-errors", &[]),
    ("meerkat-heap", &[]),
    ("meerkat-testkit", &[]),
    ("meerkat-words", &["meerkat-errors"]),
    ("meerkat-journal", &["meerkat-words"]),
    ("meerkat-models", &["meerkat-errors", "meerkat-words"]),
    ("meerkat-recall", &["meerkat-errors", "meerkat-journal", "meerkat-models", "meerkat-words"]),
    ("meerkat-service", &["meerkat-errors", "meerkat-journal", "meerkat-models", "meerkat-recall", "meerkat-words"]),
    ("meerkat-conformance", &["meerkat-service"]),
    ("meerkat-surface-openai", &["meerkat-errors", "meerkat-service"]),
    ("meerkat-surface-acp", &["meerkat-errors", "meerkat-service"]),
    ("meerkat-surface-rest", &["meerkat-errors", "meerkat-service"]),
    ("meerkat-surface-rpc", &["meerkat-errors", "meerkat-service"]),
    ("meerkat-surface-mcp", &["meerkat-errors", "meerkat-service"]),
    ("meerkat-client", &["meerkat-conformance", "meerkat-serve", "meerkat-service"]),
    ("meerkat-serve", &["meerkat-console", "meerkat-service"]),
    ("meerkat-tools", &["meerkat-service"]),
    ("meerkat-store-postgres", &["meerkat-conformance", "meerkat-errors", "meerkat-service", "meerkat-words"]),
    (
        "meerkat-surface-cli",
        &[
            "meerkat-client",
            "meerkat-errors",
            "meerkat-heap",
            "meerkat-serve",
            "meerkat-service",
            "meerkat-store-postgres",
            "meerkat-tools",
        ],
    ),
    ("meerkat-sdk-driver", &["meerkat-errors", "meerkat-service", "meerkat-store-postgres"]),
    (
        "meerkat-parity-tests",
        &[
            "meerkat-client",
            "meerkat-errors",
            "meerkat-sdk-driver",
            "meerkat-service",
            "meerkat-store-postgres",
            "meerkat-surface-cli",
            "meerkat-testkit",
            "meerkat-tools",
        ],
    ),
];

/// The pages whose code is taken from `examples/`.
pub const EXAMPLE_PAGES: [&str; 3] = ["docs/python.md", "docs/typescript.md", "docs/testing-your-client.md"];

/// The page and its program that `cargo test` compiles and does not run there; it runs elsewhere, from its own file.
pub const PROGRAM: (&str, &str) = ("docs/rust.md", "examples/rust/shop.rs");

/// A file of the repository, by its path from the root.
#[derive(Clone, Debug)]
pub struct File {
    /// The path, with `/`.
    pub path: String,
    /// The text.
    pub text: String,
}

impl File {
    /// A file.
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    fn is_source(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Its lines of code with their numbers, from 1; comments are left out.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// A complaint for each line of code that `is_wrong` finds.
    fn complain(&self, what: &str, is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
        let wrong = self.code().filter(|(_, line)| is_wrong(line));
        wrong.map(|(number, line)| format!("{}:{number}: {what}: {}", self.path, line.trim())).collect()
    }
}

/// Every text file of the repository.
pub fn files() -> Result<Vec<File>, String> {
    let root = workspace();
    let (mut folders, mut files) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir()
                && !["target", ".git", ".hypothesis", ".schemathesis", "node_modules"].contains(&name.as_str())
            {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                files.push(File { path: relative(&root, &path), text });
            }
        }
    }
    Ok(files)
}

fn relative(root: &Path, path: &Path) -> String {
    let inner: PathBuf = path.strip_prefix(root).unwrap_or(path).to_owned();
    inner.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect::<Vec<_>>().join("/")
}

/// Each file begins with its purpose, and is not too long.
pub fn shape(file: &File) -> Vec<String> {
    let mut complaints = Vec::new();
    if file.is_source() && !file.text.starts_with("//! ") {
        complaints.push(format!("{}: open it with `//!`: what it is for, and what it must never do", file.path));
    }
    let lines = file.text.lines().count();
    if file.is_source() && lines > LINES_MAX {
        complaints.push(format!("{}: it has {lines} lines; split it, {LINES_MAX} are the most", file.path));
    }
    complaints
}

/// A confined crate is named only in its places.
pub fn confined(file: &File) -> Vec<String> {
    let is_ours = file.is_source() && file.path.starts_with("crates/");
    let strangers =
        CONFINED.iter().filter(|(_, places)| is_ours && !places.iter().any(|place| file.path.starts_with(place)));
    let names = |line: &str, name: &str| {
        let word = |(at, _): (usize, &str)| !line[..at].ends_with(|last: char| last.is_alphanumeric() || last == '_');
        line.match_indices(&format!("{name}::")).any(word) || line.trim_start().starts_with(&format!("use {name};"))
    };
    strangers
        .flat_map(|(name, places)| {
            file.complain(&format!("{name} belongs in {}", places.join(" and ")), |line| names(line, name))
        })
        .collect()
}

/// A capability is a twin: only its `mod.rs` and `capability.rs` ask for a feature.
pub fn feature_zones(file: &File, all: &[File]) -> Vec<String> {
    let folder = file.path.strip_suffix("mod.rs");
    let is_twin = |other: &File| {
        folder.is_some_and(|folder| {
            ["disabled.rs", "absent.rs"].iter().any(|name| other.path == format!("{folder}{name}"))
        })
    };
    let is_zone = file.path.ends_with("/capability.rs") || file.path == SIMULATED || all.iter().any(is_twin);
    let what =
        "only capability.rs and the mod.rs beside an absent.rs or a disabled.rs may ask for a feature; make a twin";
    file.complain(what, |line| {
        file.path.starts_with("crates/")
            && file.is_source()
            && !is_zone
            && line.contains("cfg")
            && line.contains("feature = ")
    })
}

/// Serde is derived only in its places, and never without explicit tags.
pub fn serde_zones(file: &File) -> Vec<String> {
    let is_ours = file.is_source() && file.path.starts_with("crates/");
    let is_zone = !is_ours || ENCODED.iter().any(|zone| file.path.contains(zone));
    let derives = |line: &str| {
        let is_derive = line.trim_start().starts_with("#[derive(");
        is_derive && ["Serialize", "Deserialize"].iter().any(|name| line.contains(name))
    };
    let mut complaints = file
        .complain("derive serde where bytes are made, or add the zone to the tidy tests' list", |line| {
            !is_zone && derives(line)
        });
    complaints.extend(file.complain("tags are explicit: neither flatten nor untagged", |line| {
        file.is_source()
            && line.trim_start().starts_with("#[serde(")
            && (line.contains("flatten") || line.contains("untagged"))
    }));
    complaints
}

/// Functions that sleep by a clock which the tests that use them have paused: their file, and the beginning of their line.
const SLEEPERS: [(&str, &str); 3] = [
    ("crates/service/src/agent/tests/plans.rs", "async fn plan("),
    ("crates/service/src/agent/tests/stored.rs", "async fn put("),
    ("crates/service/tests/models.rs", "async fn stream_response("),
];

const BUSY: &str = "a busy machine is slower: prove it by what happens, or wait with meerkat_testkit";

const RELEASED: &str = "the port may be another test's by now: use refusing_address";

/// Least seconds of a deadline in a test.
const SECONDS_MIN: u64 = 60;

/// What no line of a test may have, in pieces, and why.
const HURRIES: [(&[&str], &str); 6] = [
    (&["timeout(", "Duration::from_millis("], BUSY),
    (&["elapsed() < ", "Duration::from_"], BUSY),
    (&["elapsed().as_", "() < "], BUSY),
    (&["TcpListener::bind(", "local_addr()"], RELEASED),
    (&["fn until(", "bool"], "meerkat_testkit has the one wait, with a pause and patience"),
    (&["spin_loop("], "it takes the core from what it waits for: use meerkat_testkit"),
];

/// Tests run, depend on no clock, and exceptions to lints are expected ones.
pub fn test_manners(file: &File) -> Vec<String> {
    let is_test = file.is_source() && (file.path.contains("/tests") || file.path.contains("tests/"));
    let mut complaints =
        file.complain("a test runs, or goes", |line| file.is_source() && line.trim_start().starts_with("#[ignore"));
    complaints.extend(file.complain("use #[expect(…, reason = \"…\")]", |line| {
        let is_product = file.path.contains("/src/") && !is_test;
        file.is_source()
            && is_product
            && line.trim_start().trim_start_matches("#!").trim_start_matches('#').starts_with("[allow(")
    }));
    // This file says what is forbidden.
    if is_test && !file.path.ends_with("src/tidy.rs") {
        complaints.extend(haste(file));
    }
    complaints
}

/// Complaints about tests that sleep, spin or hurry.
fn haste(file: &File) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut complaints = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let sleeps = ["thread::sleep", "time::sleep("].iter().any(|sleep| line.contains(sleep));
        let yields = line.contains("yield_now()");
        let hurry = hurry(line).or_else(|| releases(&lines, at).then_some(RELEASED));
        if !sleeps && !yields && hurry.is_none() {
            continue;
        }
        let around = Around::of(&lines, at);
        let is_sleeper = SLEEPERS.iter().any(|(path, head)| *path == file.path && around.function.starts_with(head));
        let why = match hurry {
            _ if around.is_paused => None,
            _ if sleeps && !is_sleeper => Some("a test waits for what is meant, or pauses its clock"),
            _ if yields && around.is_repeated => Some("it takes the core from what it waits for: use meerkat_testkit"),
            hurry => hurry,
        };
        complaints.extend(why.map(|why| format!("{}:{}: {why}: {}", file.path, at + 1, line.trim())));
    }
    complaints
}

/// Whether a line drops a listener whose port somebody goes on to use.
fn releases(lines: &[&str], at: usize) -> bool {
    let Some((name, _)) = lines[at].trim_start().strip_prefix("drop(").and_then(|rest| rest.split_once(')')) else {
        return false;
    };
    let binding = format!("let {name} = ");
    let binds = |line: &&str| line.contains(&binding) && line.contains("TcpListener::bind(");
    lines[..at].iter().rev().take_while(|line| !line.starts_with('}')).any(binds)
}

/// The reason why a line may be in no test whose clock runs.
fn hurry(line: &str) -> Option<&'static str> {
    let number = |before: &str, after: char| -> Option<u64> {
        let (_, rest) = line.split_once(before)?;
        rest.split([after, ' ']).next()?.replace('_', "").parse().ok()
    };
    let seconds = number("Duration::from_secs(", ')');
    if line.contains("timeout(") && seconds.is_some_and(|seconds| seconds < SECONDS_MIN) {
        return Some(BUSY);
    }
    // What asks without waiting has no deadline.
    let wait_ms = number("wait_ms: ", ',').filter(|wait_ms| *wait_ms > 0);
    if line.contains("WaitReader {") && wait_ms.is_some_and(|wait_ms| wait_ms < SECONDS_MIN * 1_000) {
        return Some(BUSY);
    }
    let forbidden = HURRIES.iter().find(|(pieces, _)| pieces.iter().all(|piece| line.contains(piece)));
    forbidden.map(|(_, why)| *why)
}

/// The page on architecture is short, and each file and folder that it names is there.
pub fn names_exist(file: &File, files: &[File]) -> Vec<String> {
    if file.path != "ARCHITECTURE.md" {
        return Vec::new();
    }
    let is_there = |name: &str| {
        let inner = format!("/{}", name.trim_end_matches('/'));
        files
            .iter()
            .map(|it| format!("/{}", it.path))
            .any(|path| path.ends_with(&inner) || path.contains(&(inner.clone() + "/")))
    };
    let is_path = |name: &&str| name.contains(['/', '.']) && !name.contains([' ', '<', '*', '(', ':', '{']);
    let is_file = |name: &&str| name.contains('/') || [".rs", ".toml", ".md"].iter().any(|end| name.ends_with(end));
    let names = file.text.split('`').skip(1).step_by(2).filter(is_path).filter(is_file).filter(|name| !is_there(name));
    let mut complaints: Vec<String> = names.map(|name| format!("{}: there is no {name}", file.path)).collect();
    let lines = file.text.lines().count();
    complaints.extend((lines > 200).then(|| format!("{}: {lines} lines; at most 200", file.path)));
    complaints
}

/// Words that say in two words what one would, or send the reader in a circle.
const CIRCUITOUS: [&str; 7] = [" nobody", "nobody ", "somebody", "whoever", " mend", " anew", " is no "];
/// The same letters in plain English.
const PLAIN: [&str; 3] = ["here is no ", " is no longer ", " is no more "];

/// Messages are in plain English. What a person or a model reads is in quotes, outside of tests and comments.
pub fn plain_words(file: &File) -> Vec<String> {
    let is_product = file.is_source()
        && file.path.starts_with("crates/")
        && !["/tests", "/benches/", "/examples/", "conformance/", "crates/testkit/", "tests.rs"]
            .iter()
            .any(|part| file.path.contains(part));
    if !is_product {
        return Vec::new();
    }
    let own = file.text.find("\nmod tests {").map_or(&*file.text, |end| &file.text[..end]);
    let mut is_inside = false;
    let mut complaints = Vec::new();
    for (at, line) in own.lines().enumerate() {
        if !is_inside && line.trim_start().starts_with("//") {
            continue;
        }
        let pieces: Vec<&str> = line.split('"').collect();
        let first = usize::from(!is_inside);
        let plain = |piece: &&str| PLAIN.iter().fold(format!(" {piece} "), |text, plain| text.replace(plain, ""));
        let said = pieces.iter().skip(first).step_by(2).map(plain);
        let found: Vec<&str> =
            said.flat_map(|piece| CIRCUITOUS.iter().copied().filter(move |word| piece.contains(word))).collect();
        is_inside = (pieces.len() % 2 == usize::from(is_inside)) && line.ends_with('\\');
        complaints
            .extend(found.first().map(|word| format!("{}:{}: say it without `{}`", file.path, at + 1, word.trim())));
    }
    complaints
}

/// Chance has a seed that is printed and can be set.
pub fn seeds(file: &File) -> Vec<String> {
    let is_theirs = !file.is_source() || file.path.starts_with("crates/testkit/") || file.path.contains("tidy");
    let drawn = ["ProptestConfig", "with_cases(", "rng_seed", "failure_persistence", "TestRunner::default("];
    let is_test = file.path.contains("/tests");
    let mut complaints = file.complain("take the settings of a property from meerkat_testkit::cases", |line| {
        !is_theirs && drawn.iter().any(|drawn| line.contains(drawn))
    });
    complaints.extend(file.complain("take the seed from meerkat_testkit::seed", |line| {
        !is_theirs && is_test && ["getrandom", "rand::"].iter().any(|source| line.contains(source))
    }));
    let lines: Vec<&str> = file.text.lines().collect();
    let has_settings = |at: usize| lines.get(at + 1).is_some_and(|next| next.contains("#![proptest_config(cases"));
    let is_wrong = |at: usize| lines[at].trim() == "proptest! {" && !has_settings(at);
    let wrong = (0..lines.len()).filter(|at| !is_theirs && is_wrong(*at));
    complaints.extend(wrong.map(|at| {
        format!("{}:{}: a property begins with `#![proptest_config(cases(…))]` of meerkat_testkit", file.path, at + 1)
    }));
    complaints
}

/// What is around a line, as its indentation shows.
#[derive(Default)]
struct Around<'a> {
    /// The line of the innermost function, from `fn` or `async fn` on.
    function: &'a str,
    /// Whether a `while` or `loop` of that function has the line in it.
    is_repeated: bool,
    /// Whether the clock is paused in any of the functions around it.
    is_paused: bool,
}

impl<'a> Around<'a> {
    fn of(lines: &[&'a str], at: usize) -> Self {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut around = Self::default();
        let mut inner = indent(lines[at]);
        for (index, line) in lines[..at].iter().enumerate().rev() {
            let text = line.trim_start();
            if text.is_empty() || indent(line) >= inner {
                continue;
            }
            inner = indent(line);
            let begins = |word: &str| text.starts_with(word) || text.contains(&format!(" {word}"));
            around.is_repeated |= around.function.is_empty() && (begins("while ") || begins("loop {"));
            let Some(function) = ["async fn ", "fn "].iter().find_map(|word| Some(&text[text.find(word)?..])) else {
                continue;
            };
            if around.function.is_empty() {
                around.function = function;
            }
            let above = lines[..index].iter().rev().take_while(|line| line.trim_start().starts_with(['#', '/']));
            let below = lines[index..].iter().skip(1).take_while(|below| below.is_empty() || indent(below) > inner);
            let is_paused =
                |line: &&str| ["start_paused", "walk(", "time::pause()"].iter().any(|word| line.contains(word));
            around.is_paused |= above.chain(below).any(is_paused);
        }
        around
    }
}

/// No file names a folder of the machine it was written on, or a document that is not in the repository.
pub fn stays_home(file: &File, machine: &[String]) -> Vec<String> {
    let outside = [concat!("DESI", "GN "), concat!("RELIA", "BILITY "), concat!("PIT", "FALLS"), concat!("see", "ds/")];
    let lines = file.text.lines().enumerate();
    let is_wrong = |line: &str| {
        machine.iter().any(|path| line.contains(path.as_str())) || outside.iter().any(|name| line.contains(name))
    };
    lines
        .filter(|(_, line)| is_wrong(line))
        .map(|(index, line)| {
            format!("{}:{}: it names what only one machine has: {}", file.path, index + 1, line.trim())
        })
        .collect()
}

/// A page about the examples shows nothing but what is in them, so that every line of it runs in their tests.
pub fn shows_examples(file: &File, all: &[File]) -> Vec<String> {
    if !EXAMPLE_PAGES.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let unindented = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let of_examples = all.iter().filter(|other| other.path.starts_with("examples/"));
    let examples: Vec<String> = of_examples.map(|example| format!("\n{}\n", unindented(&example.text))).collect();
    let blocks = file.text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let code = blocks.map(|(_, code)| unindented(code));
    code.filter(|code| !examples.iter().any(|example| example.contains(&format!("\n{code}\n"))))
        .map(|code| format!("{}: no file in examples/ has the block:\n{code}", file.path))
        .collect()
}

/// The folders of this machine that no file may name.
pub fn machine() -> Vec<String> {
    let folders = [
        Some(workspace()),
        std::env::home_dir(),
        std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_path_buf)),
    ];
    let names = folders.into_iter().flatten().map(|folder| format!("{}/", folder.display()));
    // A root or a one-letter folder is no name.
    names.filter(|name| name.len() > 4).collect()
}

/// Dependencies between our crates, and on confined crates.
pub fn edges(packages: &[Value]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages.iter().filter(|package| package["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let folder = match name.trim_start_matches("meerkat-") {
            "parity-tests" => "parity-tests/".to_owned(),
            "sdk-driver" => "parity-tests/sdk-driver/".to_owned(),
            room @ ("conformance" | "journal" | "models" | "recall" | "words") => format!("crates/service/{room}/"),
            "client" => CLIENT.to_owned(),
            crate_of_ours => format!("crates/{crate_of_ours}/"),
        };
        let Some((_, allowed)) = EDGES.iter().find(|(ours, _)| *ours == name) else {
            complaints.push(format!("{name}: say in the tidy tests' EDGES what it may depend on"));
            continue;
        };
        for edge in package["dependencies"].as_array().into_iter().flatten() {
            let dependency = edge["name"].as_str().unwrap_or_default();
            // The tests of any crate may use what tests share.
            if dependency == "meerkat-testkit" && edge["kind"] == "dev" {
                continue;
            }
            let confined =
                CONFINED.iter().find(|(confined, _)| confined.replace('_', "-") == dependency.replace('_', "-"));
            let is_wrong = match confined {
                Some((_, places)) => !places.iter().any(|place| place.starts_with(&folder)),
                None => dependency.starts_with("meerkat-") && !allowed.contains(&dependency),
            };
            if is_wrong {
                complaints.push(format!("{name} must not depend on {dependency}"));
            }
        }
    }
    complaints
}

/// Licences of the dependencies, by the list in `deny.toml`.
pub fn licences(packages: &[Value], allowed: &[String]) -> Vec<String> {
    let foreign = packages.iter().filter(|package| !package["source"].is_null());
    let wrong = foreign.filter(|package| !package["license"].as_str().is_some_and(|text| is_allowed(text, allowed)));
    wrong
        .map(|package| format!("{} has the licence {}: not in deny.toml", package["name"], package["license"]))
        .collect()
}

/// Whether a licence expression can be met with the allowed ones. `/` is an old way to write `OR`.
pub fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    // `X WITH Y` is one licence.
    let joined = spaced.split_whitespace().collect::<Vec<_>>().join(" ").replace(" WITH ", "\u{1f}WITH\u{1f}");
    let mut words = joined.split(' ').peekable();
    any_of(&mut words, allowed)
}

type Words<'a> = std::iter::Peekable<std::str::Split<'a, char>>;

fn any_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut is_met = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        is_met |= all_of(words, allowed);
    }
    is_met
}

fn all_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut is_met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        is_met &= one(words, allowed);
    }
    is_met
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> bool {
    match words.next() {
        Some("(") => {
            let is_met = any_of(words, allowed);
            words.next_if_eq(&")").is_some() && is_met
        }
        Some(name) => allowed.iter().any(|licence| *licence == name.replace('\u{1f}', " ")),
        None => false,
    }
}

/// Every package in this machine's build of the workspace, by cargo's metadata.
pub fn packages() -> Result<Vec<Value>, String> {
    let told = |arguments: &[&str]| {
        let output = scrubbed_cargo().args(arguments).output().map_err(|error| error.to_string())?;
        let failed = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(String::from_utf8_lossy(&output.stdout).into_owned()) } else { Err(failed()) }
    };
    let version = told(&["--version", "--verbose"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("cargo names no host")?;
    let text = told(&["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host])?;
    let mut metadata: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => Err("cargo tells of no packages".to_owned()),
    }
}
