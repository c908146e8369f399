//! Retries of failed model calls, and the waits before them.
//!
//! The engine (`agent/perform/model.rs`) retries only if nothing of the step has become visible or run.

use std::time::Duration;

use meerkat_errors::ErrorCode;

use super::ModelError;
use meerkat_words::clock::IdSource;

/// Number and pace of retries.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Calls in all, including the first.
    pub attempts: u32,
    /// Longest wait before the second call; it doubles for each further one. The wait is a random time from half of it.
    pub base: Duration,
    /// Longest wait; if the vendor asks for more, the call fails at once.
    pub max: Duration,
}

/// The policy of memory's embedder. Turns have the numbers of `[turn]`.
impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 4, base: Duration::from_millis(500), max: Duration::from_secs(30) }
    }
}

impl RetryPolicy {
    /// Returns the wait before another call after `failed` ones, or `None` if there should be none.
    #[must_use]
    pub fn wait(&self, error: &ModelError, failed: u32, ids: &dyn IdSource) -> Option<Duration> {
        let is_transient = matches!(
            error.code,
            ErrorCode::ModelRateLimited
                | ErrorCode::ModelOverloaded
                | ErrorCode::ModelTimeout
                | ErrorCode::ModelStreamIncomplete
        );
        if !is_transient || error.is_lasting || failed >= self.attempts {
            return None;
        }
        let spread = |within: Duration| {
            Duration::from_millis(ids.jitter(u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1)))
        };
        if let Some(asked) = error.retry_after {
            // Never sooner than asked, and not all at the same moment.
            return (asked <= self.max).then(|| asked.saturating_add(spread(self.base)).min(self.max));
        }
        let grown = self.base.saturating_mul(1_u32.checked_shl(failed.saturating_sub(1)).unwrap_or(u32::MAX));
        let half = grown.min(self.max) / 2;
        Some(half.saturating_add(spread(half)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meerkat_words::{SessionId, clock::Timestamp};

    /// Jitter at either end of its range.
    struct Spread {
        is_most: bool,
    }

    impl IdSource for Spread {
        fn next_session_id(&self, _: Timestamp) -> SessionId {
            unreachable!("a wait needs no id")
        }

        fn follow(&self, _: SessionId) {}

        fn jitter(&self, bound: u64) -> u64 {
            if self.is_most { bound - 1 } else { 0 }
        }
    }

    /// Returns the shortest and the longest wait in milliseconds after `failed` calls that ended with `code`.
    fn waits(code: ErrorCode, asked: Option<u64>, failed: u32) -> Option<(u128, u128)> {
        let error = ModelError { retry_after: asked.map(Duration::from_millis), ..ModelError::new(code, "") };
        let wait = |is_most| RetryPolicy::default().wait(&error, failed, &Spread { is_most });
        let bounds = wait(false).zip(wait(true));
        bounds.map(|(least, most)| (least.as_millis(), most.as_millis()))
    }

    #[test]
    fn a_wait_doubles_up_to_its_limit_and_is_spread_over_its_second_half() {
        let after = |failed| waits(ErrorCode::ModelOverloaded, None, failed);
        assert_eq!((after(1), after(2), after(3)), (Some((250, 499)), Some((500, 999)), Some((1_000, 1_999))));
        let patient = RetryPolicy { attempts: u32::MAX, ..RetryPolicy::default() };
        let error = ModelError::new(ErrorCode::ModelOverloaded, "");
        for failed in [7, 32, 33, 1_000_000] {
            let wait = patient.wait(&error, failed, &Spread { is_most: true });
            assert_eq!(wait, Some(Duration::from_millis(29_999)), "after {failed}");
        }
    }

    #[test]
    fn only_transient_failures_are_tried_again_and_only_so_often() {
        let transient = [
            ErrorCode::ModelRateLimited,
            ErrorCode::ModelOverloaded,
            ErrorCode::ModelTimeout,
            ErrorCode::ModelStreamIncomplete,
        ];
        for code in ErrorCode::ALL {
            assert_eq!(waits(*code, None, 1).is_some(), transient.contains(code), "{code}");
            assert_eq!(waits(*code, None, 4), None, "{code}");
        }
    }

    #[test]
    fn the_vendors_wait_is_kept_or_the_call_fails_at_once() {
        let asked = |wait| waits(ErrorCode::ModelRateLimited, Some(wait), 1);
        assert_eq!(asked(0), Some((0, 499)));
        assert_eq!(asked(7_000), Some((7_000, 7_499)));
        assert_eq!(asked(30_000), Some((30_000, 30_000)));
        assert_eq!(asked(30_001), None);
    }

    #[test]
    fn what_lasts_is_not_tried_again() {
        let error = ModelError { is_lasting: true, ..ModelError::new(ErrorCode::ModelRateLimited, "") };
        assert_eq!(RetryPolicy::default().wait(&error, 1, &Spread { is_most: true }), None);
    }
}
