//! How long a session keeps its keys: by their number, and by the time that many of them have reached.

use super::{
    apply::{at, queued},
    created, fold, record,
};
use crate::session::event::Record;

/// Uses so many keys, `k0` and so on, each at its hour; returns the numbers of those that are known afterwards.
fn known_after(hours: &[i64]) -> Vec<usize> {
    let used = hours.iter().zip(0_u32..).map(|(hour, n)| queued(*hour, u64::from(n) + 2, n, &format!("k{n}")));
    let records: Vec<Record> = std::iter::once(at(0, record(1, None, created()))).chain(used).collect();
    let session = fold(&records);
    (0..hours.len()).filter(|n| session.key(&format!("k{n}")).is_some()).collect()
}

/// The clock is days ahead or behind for some turns, fewer than the keys that stay whatever their time.
#[test]
fn a_clock_that_is_wrong_for_a_while_makes_no_key_old() {
    for wrong in [48, -48, 9000] {
        let mut hours = vec![0; 1024];
        hours[300..500].fill(wrong);
        assert_eq!(known_after(&hours), (0..1024).collect::<Vec<_>>(), "{wrong}");
    }
}

/// A key leaves when 256 later ones were used a day after it, wherever a single reading was far ahead.
#[test]
fn keys_leave_by_their_number_and_by_the_time_that_others_have_reached() {
    let mut hours = [vec![0; 300], vec![25; 211]].concat();
    hours[10] = 9000;
    assert_eq!(known_after(&hours), (0..511).collect::<Vec<_>>());
    hours.push(25);
    assert_eq!(known_after(&hours), (0..512).collect::<Vec<_>>(), "not enough of them are later");
    hours.resize(768, 25);
    let due: Vec<usize> = std::iter::once(10).chain(300..768).collect();
    assert_eq!(known_after(&hours), due);
    // A forward jump of the clock alone takes none of the last ones.
    assert_eq!(known_after(&[vec![0; 513], vec![25; 255]].concat()), (0..768).collect::<Vec<_>>());
}
