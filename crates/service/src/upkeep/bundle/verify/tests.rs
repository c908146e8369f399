//! Numbers that leave room for what follows.

use super::{SEQ_MAX, TURN_MAX, is_possible};
use crate::session::{event::Record, tests::pinned};

/// The next record of an imported session has a number, too.
#[test]
fn a_seq_leaves_room_for_what_follows_it() {
    assert!(is_possible(&pinned(SEQ_MAX, "a")));
    assert!(!is_possible(&pinned(SEQ_MAX + 1, "a")) && !is_possible(&pinned(u64::MAX, "a")));
}

/// The next turn of an imported session has a number, too.
#[test]
fn a_turn_leaves_room_for_what_follows_it() {
    let of = |turn| Record { turn: Some(turn), ..pinned(SEQ_MAX, "a") };
    assert!(is_possible(&of(TURN_MAX)));
    assert!(!is_possible(&of(TURN_MAX + 1)) && !is_possible(&of(u32::MAX)));
}
