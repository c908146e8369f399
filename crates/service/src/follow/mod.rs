//! The only way to follow a session: a cursor into its journal, live events, and a turn up to its end.

mod cursor;
pub(crate) mod live;
pub mod turn;

pub use cursor::{FollowedLine, Follower, Lines};
pub(crate) use cursor::{check_cursor, gone_line};

#[cfg(test)]
mod tests;
