//! `docs/capabilities.md`: the answer of each operation in each build, and its spelling on each surface. It is generated from
//! the tables; the trials test that the programs do what it says.

#![expect(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::{fmt::Write as _, fs};

use meerkat_errors::ErrorCode;
use meerkat_parity_tests::{
    builds::{self, workspace},
    contract::contract,
    expect::{ABSENCES, absence},
};
use meerkat_service::{Capability, Operation};
use meerkat_surface_mcp::tools::{Spelling, spelling};
use meerkat_surface_rpc::{METHODS, Method};

const INTRODUCTION: &str = "\
# Capabilities

<!-- Made from the tables by `MEERKAT_BLESS=1 cargo test -p meerkat-parity-tests --test capabilities`. Do not edit. -->

An operation has the same shape in every build. Where its capability is absent, it answers with that capability's code, on
every surface, before it looks at anything else of the request. `capabilities` says what a service has; one that has a
store and is run with `store.enabled = false` answers as a build without it.

";

/// The feature of a capability.
const fn feature(capability: Capability) -> &'static str {
    match capability {
        Capability::SessionStore => "session-store",
        Capability::MemoryStore => "memory-store",
        Capability::SessionCompaction => "session-compaction",
    }
}

/// The answer of each operation in each build.
fn answers(document: &mut String) {
    let builds = builds::all().unwrap();
    document.push_str("## What each build answers\n\n| operation |");
    builds.iter().for_each(|build| write!(document, " {} |", build.name).unwrap());
    document.push_str("\n|---|");
    builds.iter().for_each(|_| document.push_str("---|"));
    for operation in Operation::ALL {
        write!(document, "\n| `{}` |", operation.name()).unwrap();
        for build in &builds {
            match operation.needs().map(feature).filter(|needs| !build.has(needs)) {
                None => document.push_str(" answers |"),
                Some(needs) => write!(document, " `{}` |", absence(needs).unwrap().code).unwrap(),
            }
        }
    }
    document.push_str("\n\n");
}

/// How the absence of each capability looks on each surface.
fn absences(document: &mut String) {
    document.push_str(
        "## How an absence looks\n\n| code | SDK | CLI | REST | JSON-RPC | MCP | message |\n|---|---|---|---|---|---|---|\n",
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

/// The words of the command line; a decision is one of two.
fn words(spelt: &str) -> String {
    let decisions: &[&str] = if spelt.contains("$decision") { &["approve", "deny"] } else { &[""] };
    let each: Vec<String> = decisions.iter().map(|it| format!("`{}`", spelt.replace("$decision", it))).collect();
    each.join(", ")
}

/// How each operation is spelt.
fn spellings(document: &mut String) {
    document.push_str(
        "## How it is spelt\n\nA line of `chat` begins with `/`. The SDK has a method of the operation's name on \
         `SessionService`.\n\n| operation | CLI | `chat` | REST | JSON-RPC | MCP |\n|---|---|---|---|---|---|\n",
    );
    for &operation in Operation::ALL {
        let (command, in_chat, _) = contract().words(operation.name()).unwrap();
        let routes: Vec<String> = meerkat_surface_rest::table()
            .iter()
            .filter(|route| route.operation == operation)
            .map(|route| {
                let switch = route.switch.map(|(name, value)| format!("?{name}={value}")).unwrap_or_default();
                format!("`{} {}{switch}`", route.method, route.full_path())
            })
            .collect();
        let method = METHODS.iter().find(|(_, method)| *method == Method::Operation(operation)).unwrap().0;
        let tool = match spelling(operation) {
            Spelling::Tool { name, .. } => format!("`{name}`"),
            Spelling::NoTool { reason } => reason.to_owned(),
        };
        let (command, in_chat, routes) = (words(&command), words(in_chat), routes.join(", "));
        writeln!(document, "| `{}` | {command} | {in_chat} | {routes} | `{method}` | {tool} |", operation.name())
            .unwrap();
    }
}

#[test]
fn the_document_is_made_of_the_tables() {
    let mut document = INTRODUCTION.to_owned();
    answers(&mut document);
    absences(&mut document);
    spellings(&mut document);
    let path = workspace().join("docs/capabilities.md");
    if std::env::var_os("MEERKAT_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, &document).unwrap();
    }
    let written = fs::read_to_string(&path).expect("docs/capabilities.md can be read");
    assert!(
        written == document,
        "docs/capabilities.md is stale: run `MEERKAT_BLESS=1 cargo test -p meerkat-parity-tests --test capabilities` and \
         commit it"
    );
}
