//! Gives memory that is free again back to the system. It is a crate of its own because no other may say `unsafe`.

/// Gives the free pages of the heap back. The C library keeps them otherwise: of many sessions that were busy at once, it
/// keeps as much as all of them needed. Elsewhere than in glibc this does nothing.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the one call of the C library")]
    // SAFETY: it takes a number, may be called from any thread, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
