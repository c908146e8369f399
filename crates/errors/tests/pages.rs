//! The pages, and `docs/ERRORS.md`, which is made of them and of the table.
//!
//! The document is never edited by hand: `MEERKAT_BLESS=1 cargo test -p meerkat-errors` writes it anew.

use std::{collections::BTreeSet, fs, path::Path};

use meerkat_errors::ErrorCode;

const INTRODUCTION: &str = "\
# Errors

<!-- Made from crates/errors by `MEERKAT_BLESS=1 cargo test -p meerkat-errors`. Do not edit. -->

Every surface answers a failure with the same body:

```json
{\"code\": \"SESSION_NOT_FOUND\", \"message\": \"No such session.\", \"retryable\": false, \"details\": {}}
```

Branch on `code`. Its meaning and numbers never change; `message` is for people and may change. `retryable` says if the same request, unchanged, can succeed later. `details` holds facts about this failure; the code's page lists them, if there are any.

| surface | how the error is sent |
|---|---|
| SDK | a `SessionError`; `code()` gives the code |
| CLI | the message on standard error, the body with `--json`, and the exit code |
| REST | the HTTP status, with the body |
| JSON-RPC | the number, with the body in `error.data` |
| MCP | `isError`, with the body as structured content |

This is the answer to a request that is refused before its turn starts. A turn that has started is answered with its `TurnResult`, however it ends: its `error` holds the body, and the CLI exits with that body's exit code. The turn's idempotency key keeps that result, so send a failed turn again with a new key.

| code | HTTP | JSON-RPC | exit code | retryable | message |
|---|---|---|---|---|---|
";

#[test]
fn every_page_belongs_to_a_row() {
    let pages: BTreeSet<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/codes"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let rows: BTreeSet<String> = ErrorCode::ALL.iter().map(|code| format!("{code}.md")).collect();
    assert_eq!(pages, rows);
}

#[test]
fn every_page_says_what_happened_and_what_to_do() {
    for &code in ErrorCode::ALL {
        let page = code.page();
        assert!(page.starts_with(&format!("# {code}\n\n")), "{code}: opens with its name");
        assert!(page.contains("\n\n**What to do**\n\n- "), "{code}: says what to do");
        assert!(page.ends_with('\n'), "{code}: ends its last line");
        assert!(page.lines().skip(1).all(|line| !line.starts_with('#')), "{code}: has one heading");
        assert!((4..=12).contains(&page.lines().count()), "{code}: is short");
    }
}

#[test]
fn the_document_is_made_of_the_table_and_the_pages() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ERRORS.md");
    let document = document();
    if std::env::var_os("MEERKAT_BLESS").is_some_and(|value| value == "1") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &document).unwrap();
    }
    let written = fs::read_to_string(&path).expect("docs/ERRORS.md can be read");
    assert!(
        written == document,
        "docs/ERRORS.md is stale: run `MEERKAT_BLESS=1 cargo test -p meerkat-errors` and commit what it writes"
    );
}

fn document() -> String {
    let rows = ErrorCode::ALL.iter().map(|&code| row(code));
    let pages = ErrorCode::ALL.iter().map(|code| format!("\n#{}", code.page()));
    INTRODUCTION.to_owned() + &rows.chain(pages).collect::<String>()
}

fn row(code: ErrorCode) -> String {
    format!(
        "| [`{code}`](#{anchor}) | {http} | {rpc} | {exit} | {retryable} | {message} |\n",
        anchor = code.as_str().to_lowercase(),
        http = code.http_status(),
        rpc = code.rpc_code(),
        exit = code.exit_code(),
        retryable = if code.retry().is_retryable() { "yes" } else { "no" },
        message = code.message(),
    )
}
