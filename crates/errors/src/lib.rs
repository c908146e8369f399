//! Every error that meerkat can answer, in one table.
//!
//! A code is a row in [`code.rs`](ErrorCode): its name on the wire, its HTTP status, its JSON-RPC
//! number, its exit code, whether a retry can help, and its message. Each surface reads its native
//! number from that row, so a failure looks the same everywhere.
//!
//! To add a code:
//! 1. add its row to `code.rs`;
//! 2. write its page, `codes/<NAME>.md` (the crate does not compile without it);
//! 3. run `MEERKAT_BLESS=1 cargo test -p meerkat-errors` to rewrite `docs/ERRORS.md`.
//!
//! This crate depends on no other crate of the workspace.

mod code;
mod table;

mod body;

pub use body::ErrorBody;
pub use code::ErrorCode;
pub use table::Retry;
