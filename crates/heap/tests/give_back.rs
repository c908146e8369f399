//! Free memory leaves the process.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

const PIECES: usize = 64 * 1024;
const PIECE_BYTES: usize = 1024;

/// Bytes of memory that the process has.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Pieces in between that are still in use keep the allocator from giving it back by itself.
#[test]
fn what_is_free_between_pieces_in_use_is_given_back() {
    let pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![1; PIECE_BYTES]).collect();
    let kept: Vec<Vec<u8>> = pieces.into_iter().step_by(64).collect();
    let before = resident();
    assert!(before > PIECES * PIECE_BYTES / 2, "the allocator gave it back by itself: {before} bytes are left");
    meerkat_heap::give_back();
    let after = resident();
    assert!(after < before - PIECES * PIECE_BYTES / 2, "{before} bytes before, {after} after");
    assert!(kept.iter().all(|piece| *piece == [1; PIECE_BYTES]));
}
