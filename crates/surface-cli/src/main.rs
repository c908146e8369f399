//! The `meerkat` binary. What it does is in the library, so that tests need no process.

use std::process::ExitCode;

use meerkat_surface_cli::{Terminal, install_panic_hook, run};

/// Gives back what a busy hour needed; docs/benchmarks.md has the figures.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    install_panic_hook();
    run(std::env::args_os().collect(), Terminal::process()).into()
}
