//! The console: a page for people, and how a browser signs in to it.
//!
//! `files` has the page's own files, which contain nothing secret and are open to everyone. `sign_in` decides which
//! browsers may ask for more. The page itself uses only the public REST API; nothing here knows a session.

mod files;
mod sign_in;

pub use files::{answer, is_file};
pub use sign_in::{SIGN_IN_SECONDS, SignIns, code, question, reply};
