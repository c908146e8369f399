//! The `meerkat` binary. What it does is in the library, so that tests need no process.

use std::process::ExitCode;

use meerkat_surface_cli::{Terminal, install_panic_hook, keep_memory_private, run};

fn main() -> ExitCode {
    // The tool `shell` starts this program again to confine a command.
    meerkat_tools::launcher();
    keep_memory_private();
    install_panic_hook();
    run(std::env::args_os().collect(), Terminal::process()).into()
}
