//! The `meerkat` binary. What it does is in the library, so that tests need no process.

use std::process::ExitCode;

use meerkat_surface_cli::{Terminal, install_panic_hook, run};

fn main() -> ExitCode {
    install_panic_hook();
    run(std::env::args_os().collect(), Terminal::process()).into()
}
