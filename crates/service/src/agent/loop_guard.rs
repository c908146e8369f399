//! Finds a model that repeats itself: the same calls with the same results, step after step. The calls of one step
//! count together, even if some are equal.

/// The longest cycle that is looked for, in steps.
const CYCLE_STEPS_MAX: usize = 4;

/// Returns true if the newest signatures are `repeats` rounds of one cycle of up to four steps.
#[must_use]
pub(crate) fn is_loop(signatures: &[u64], repeats: u32) -> bool {
    let repeats = repeats as usize;
    if repeats < 2 {
        return false;
    }
    (1..=CYCLE_STEPS_MAX).any(|cycle| {
        let Some(start) = signatures.len().checked_sub(cycle * repeats) else { return false };
        let newest = &signatures[start..];
        newest.chunks_exact(cycle).all(|round| round == &newest[..cycle])
    })
}

#[cfg(test)]
mod tests {
    use super::is_loop;

    #[test]
    fn three_identical_steps_are_a_loop_and_two_are_not() {
        assert!(!is_loop(&[7, 7], 3));
        assert!(is_loop(&[7, 7, 7], 3));
        assert!(is_loop(&[1, 2, 7, 7, 7], 3));
    }

    #[test]
    fn a_cycle_of_up_to_four_steps_is_a_loop() {
        assert!(is_loop(&[1, 2, 1, 2, 1, 2], 3));
        assert!(is_loop(&[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4], 3));
        assert!(!is_loop(&[1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 3));
        assert!(!is_loop(&[1, 2, 1, 2, 1, 3], 3));
    }

    #[test]
    fn progress_between_the_rounds_is_no_loop() {
        assert!(!is_loop(&[7, 7, 8, 7], 3));
        assert!(!is_loop(&[], 3));
    }
}
