//! The only way to follow a session: a cursor into its journal, live events, and a turn up to its end.

mod cursor;
pub(crate) mod live;
pub mod turn;

pub use cursor::{Follower, Lines};
pub(crate) use cursor::{check_cursor, gone_line};
pub use live::FollowedLine;

#[cfg(test)]
mod tests;
