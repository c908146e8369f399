//! Tools that read and change a folder and run commands in it, confined, and the tools of servers.

mod confine;
mod launcher;
pub mod servers;
mod shell;

pub use confine::{Confinement, GitGuard};
pub use launcher::launcher;
pub use shell::{Network, ShellOptions, shell_tools};
