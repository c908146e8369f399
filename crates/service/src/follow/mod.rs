//! The only way to follow a session: a cursor into its journal, live events, and a turn up to its end.

mod cursor;
pub(crate) mod live;
pub mod turn;

pub use cursor::{Follower, Lines};
pub(crate) use cursor::{check_cursor, check_end, gone_lines, missing};
pub use live::FollowedLine;

#[cfg(test)]
mod tests;
