//! `docs/capabilities.md`: the builds, the capability that each operation needs, and its spelling on each surface. It is
//! generated from the tables; the trials test that the programs do what it says.

#![expect(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{fmt::Write as _, fs};

use meerkat_errors::ErrorCode;
use meerkat_parity_tests::{
    builds::{self, feature, workspace},
    expect::{ABSENCES, absence},
};
use meerkat_service::Operation;
use meerkat_surface_mcp::tools::{Spelling, spelling};

const INTRODUCTION: &str = "\
# Capabilities

<!-- Made from the tables by `MEERKAT_BLESS=1 cargo test -p meerkat-parity-tests --test tidy`. Do not edit. -->

Storage, memory and compaction are optional parts of meerkat, which you choose when you build it. Each is a *capability*, and
has a Cargo feature: `session-store`, `memory-store`, `session-compaction`. This page says what each build can do, what it
answers if a capability is missing, and how each operation is called on each surface: in Rust (the SDK), on the command line
(the CLI), over REST, JSON-RPC and MCP.

```sh
meerkat capabilities                            # says which build this program is, and what it has
```

Every operation exists in every build, with the same fields. If its capability is missing, the operation is refused with the
capability's code before anything else in the request is checked. Only what a server checks of every request comes earlier:
its token, its host, and the sizes of its head and of a message. Compaction that a turn or a new session asks for is
checked when the request is decoded; the command line checks its flags for that, too, before it reads files or standard
input.

";

/// The features of each build.
fn builds(document: &mut String) {
    document.push_str("## The builds\n\n| build | features |\n|---|---|\n");
    for build in builds::all().unwrap() {
        let features: Vec<String> = build.row.features.iter().map(|feature| format!("`{feature}`")).collect();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        writeln!(document, "| {} | {features} |", build.name).unwrap();
    }
    document.push_str(
        "\nThe letters are only names. FP is the default: `cargo install --path crates/surface-cli --locked` makes it. It \
         calls itself F: `postgres` is another place for sessions and `openai` another surface, and neither a capability. \
         For another build, append its features, such as `--no-default-features --features session-store` for B.\n\nIf you run \
         meerkat with `store.enabled = false` or `memory.enabled = false`, it answers as if it had been built without \
         `session-store` or `memory-store`; only the message says that the configuration is the reason.\n\n",
    );
}

/// The capability that each operation needs.
fn needs(document: &mut String) {
    document.push_str("## What an operation needs\n\n| operation | needs | answer without it |\n|---|---|---|\n");
    for operation in Operation::ALL {
        let (needs, answer) = match operation.needs().map(feature) {
            None => ("nothing".to_owned(), String::new()),
            Some(needs) => (format!("`{needs}`"), format!("`{}`", absence(needs).unwrap().code)),
        };
        writeln!(document, "| `{}` | {needs} | {answer} |", operation.name()).unwrap();
    }
    document.push_str(
        "\nWithout `session-store` a session lives as long as its process, in memory. Operations that need nothing work on it \
         all the same.\n\n",
    );
}

/// How the absence of each capability looks on each surface.
fn absences(document: &mut String) {
    document.push_str(
        "## How a missing capability looks\n\nThe code is in the error's `code` on every surface; over MCP it is in the \
         result's `structuredContent`, beside `isError`.\n\n\
         | code | SDK | CLI | REST | JSON-RPC | MCP | message |\n|---|---|---|---|---|---|---|\n",
    );
    for (_, name, message) in ABSENCES {
        let code = ErrorCode::ALL.iter().copied().find(|code| code.to_string() == name).unwrap();
        let (exit, status, number) = (code.exit_code(), code.http_status(), code.rpc_code());
        writeln!(
            document,
            "| `{name}` | `SessionError` with this `code()` | exit code {exit} | {status} | {number} | `isError` | {message} |"
        )
        .unwrap();
    }
    document.push('\n');
}

/// How each operation is spelt.
fn spellings(document: &mut String) {
    document.push_str(
        "## How an operation is called\n\n\
         - **Rust**: `SessionService` has a method of the operation's name.\n\
         - **Command line**: `meerkat call METHOD NAME=VALUE…`, where METHOD is that of JSON-RPC; `meerkat call METHOD \
         --help` lists the parameters. `/call` in `meerkat chat` is the same, about the chat's session. What people type \
         daily has commands of its own; `meerkat --help` lists them.\n\
         - **REST and JSON-RPC**: [openapi.json](openapi.json) and [openrpc.json](openrpc.json) describe the parameters.\n\
         - **MCP**: *operators only* means that there is no tool for it, because a model must not do it; use another \
         surface. `meerkat mcp` offers six of the tools; `--tools all` offers the others, and `--approve` offers `turn_approve`.\n\n\
         | operation | REST | JSON-RPC | MCP |\n|---|---|---|---|\n",
    );
    for &operation in Operation::ALL {
        let routes: Vec<String> = meerkat_surface_rest::table()
            .iter()
            .filter(|route| route.operation == operation)
            .map(|route| {
                let switch = route.switch.map(|(name, value)| format!("?{name}={value}")).unwrap_or_default();
                format!("`{} {}{switch}`", route.method, route.full_path())
            })
            .collect();
        let method = operation.public_name();
        let tool = match spelling(operation) {
            Spelling::Tool { name, .. } => format!("`{name}`"),
            Spelling::NoTool { reason } => reason.to_owned(),
        };
        let routes = routes.join(", ");
        writeln!(document, "| `{}` | {routes} | `{method}` | {tool} |", operation.name()).unwrap();
    }
}

#[test]
fn the_document_is_made_of_the_tables() {
    let mut document = INTRODUCTION.to_owned();
    builds(&mut document);
    needs(&mut document);
    absences(&mut document);
    spellings(&mut document);
    let path = workspace().join("docs/capabilities.md");
    if std::env::var_os("MEERKAT_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, &document).unwrap();
    }
    let written = fs::read_to_string(&path).expect("docs/capabilities.md can be read");
    assert!(
        written == document,
        "docs/capabilities.md is stale: run `MEERKAT_BLESS=1 cargo test -p meerkat-parity-tests --test tidy` and \
         commit it"
    );
}
