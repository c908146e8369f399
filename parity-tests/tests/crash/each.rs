//! Every place that a script has, tried several at a time.

use std::sync::atomic::{AtomicU64, Ordering};

use meerkat_testkit::{campaigns::Part, seed};

/// A short campaign tries every fifth place.
const STRIDE: u64 = 5;

/// Tries each place from 1 on, until `is_there` says that there are no more; in a short campaign each fifth, from a
/// first one that the seed of the run decides. Returns how many places there are, up to the distance between two.
pub(crate) fn each(part: Part, is_there: impl Fn(u64) -> bool + Sync) -> u64 {
    let stride = if part.is_whole() { 1 } else { STRIDE };
    let (next, end) = (AtomicU64::new(1 + seed() % stride), AtomicU64::new(u64::MAX));
    let work = || loop {
        let at = next.fetch_add(stride, Ordering::Relaxed);
        if at > end.load(Ordering::Relaxed) {
            return;
        }
        if !is_there(at) {
            end.fetch_min(at, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    end.into_inner() - 1
}
