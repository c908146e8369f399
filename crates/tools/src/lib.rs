//! Tools that read and change a folder and run commands in it, confined.

mod confine;
mod files;
mod hands;
mod launcher;
mod shell;

pub mod notes;
pub mod workspace;

pub use confine::{Confinement, GitGuard};
pub use files::{FileAccess, FileOptions, file_tools};
pub use hands::{HandsOptions, hands};
pub use launcher::launcher;
pub use shell::{ShellOptions, shell_tools};
