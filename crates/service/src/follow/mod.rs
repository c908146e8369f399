//! The only way to follow a session: a cursor into its journal, live events, and a turn up to its end.

pub mod below;
mod cursor;
pub(crate) mod live;
mod shown;
pub mod turn;

pub use cursor::{Follower, Lines};
pub(crate) use cursor::{check_cursor, check_end, gone_lines, missing};
pub use live::FollowedLine;
pub use shown::Shown;

#[cfg(test)]
mod tests;
