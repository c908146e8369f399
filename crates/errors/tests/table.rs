//! What must hold for every row of the table, so that no surface has to check it.
//!
//! Single codes and their numbers are never repeated here: they stand in the rows, and one that is changed or gone shows
//! as a diff of `docs/ERRORS.md`.

use std::{collections::BTreeSet, fmt::Debug};

use meerkat_errors::{ErrorBody, ErrorCode};
use serde_json::{Value, json};

/// A client error has one of these statuses; 400 is for what a schema forbids, and is checked apart.
const CLIENT_STATUSES: &[u16] = &[401, 403, 404, 405, 409, 413, 429];

#[test]
fn names_are_unique_screaming_snake_case_and_come_back() {
    assert_unique("name", ErrorCode::as_str);
    for &code in ErrorCode::ALL {
        let name = code.as_str();
        assert!(is_screaming_snake_case(name), "{name}");
        assert_eq!(ErrorCode::from_wire(name), Some(code));
        assert_eq!(code.to_string(), name);
        assert_eq!(serde_json::to_value(code).unwrap(), json!(name));
        assert_eq!(serde_json::from_value::<ErrorCode>(json!(name)).unwrap(), code);
    }
}

#[test]
fn an_unknown_name_is_no_code() {
    for name in ["", "NO_SUCH_CODE", "session_not_found", "SESSION_NOT_FOUND "] {
        assert_eq!(ErrorCode::from_wire(name), None, "{name:?}");
        assert!(serde_json::from_value::<ErrorCode>(json!(name)).is_err(), "{name:?}");
    }
}

#[test]
fn rpc_numbers_are_unique_and_in_their_block() {
    assert_unique("RPC number", ErrorCode::rpc_code);
    for &code in ErrorCode::ALL {
        let number = code.rpc_code();
        match code {
            ErrorCode::UnknownOperation => assert_eq!(number, -32601),
            ErrorCode::InvalidRequest => assert_eq!(number, -32602),
            _ => assert!((-32099..=-32030).contains(&number), "{code}: {number}"),
        }
    }
}

#[test]
fn exit_codes_are_unique_and_in_their_block() {
    assert_unique("exit code", ErrorCode::exit_code);
    for &code in ErrorCode::ALL {
        let number = code.exit_code();
        match code {
            ErrorCode::InvalidRequest => assert_eq!(number, 2),
            ErrorCode::TurnInterrupted => assert_eq!(number, 130),
            _ => assert!((10..=125).contains(&number), "{code}: {number}"),
        }
    }
}

#[test]
fn http_statuses_are_those_that_clients_know() {
    for &code in ErrorCode::ALL {
        let status = code.http_status();
        if code == ErrorCode::InvalidRequest {
            assert_eq!(status, 400);
        } else {
            assert!(CLIENT_STATUSES.contains(&status) || (500..=599).contains(&status), "{code}: {status}");
        }
    }
}

#[test]
fn messages_are_one_line_and_end_in_a_full_stop() {
    for &code in ErrorCode::ALL {
        let message = code.message();
        assert!(message.ends_with('.') && !message.contains('\n') && message.trim() == message, "{code}: {message:?}");
    }
}

#[test]
fn an_absent_capability_says_the_canonical_text() {
    let canonical = [
        (ErrorCode::SessionPersistenceDisabled, "Session persistence is disabled (build without 'session-store')."),
        (ErrorCode::SessionCompactionDisabled, "Session compaction is disabled (build without 'session-compaction')."),
        (ErrorCode::MemoryStoreDisabled, "Semantic memory is disabled (build without 'memory-store')."),
    ];
    for (code, text) in canonical {
        assert_eq!(code.message(), text);
        assert!(!code.retry().is_retryable(), "{code}");
    }
    let not_implemented: Vec<_> = ErrorCode::ALL.iter().copied().filter(|code| code.http_status() == 501).collect();
    assert_eq!(not_implemented, canonical.map(|(code, _)| code));
}

#[test]
fn a_body_has_exactly_its_four_members() {
    for &code in ErrorCode::ALL {
        let body = ErrorBody::new(code);
        let expected = json!({
            "code": code.as_str(),
            "message": code.message(),
            "retryable": code.retry().is_retryable(),
            "details": {},
        });
        let sent = serde_json::to_value(&body).unwrap();
        assert_eq!(sent, expected);
        assert_eq!(serde_json::from_value::<ErrorBody>(sent).unwrap(), body);
    }
}

#[test]
fn a_body_keeps_its_own_message_and_details() {
    let body = ErrorBody::with_message(ErrorCode::CursorOutOfRange, "There is no event 12.")
        .detail("oldest_seq", 1)
        .detail("last_seq", 9);
    let line = r#"{"code":"CURSOR_OUT_OF_RANGE","message":"There is no event 12.","retryable":false,"details":{"oldest_seq":1,"last_seq":9}}"#;
    let expected: Value = serde_json::from_str(line).unwrap();
    assert_eq!(serde_json::to_value(body).unwrap(), expected);
}

fn assert_unique<T: Ord + Debug>(what: &str, column: fn(ErrorCode) -> T) {
    let mut seen = BTreeSet::new();
    for &code in ErrorCode::ALL {
        let value = column(code);
        assert!(!seen.contains(&value), "{code} has the {what} of another code: {value:?}");
        seen.insert(value);
    }
}

fn is_screaming_snake_case(name: &str) -> bool {
    name.split('_').all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase()))
}
