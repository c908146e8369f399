//! Tools that read and change a folder and run commands in it, confined, and the tools of servers.

mod confine;
mod files;
mod hands;
mod launcher;
mod obeyed;
pub mod servers;
mod shell;

pub mod agents;
pub mod notes;
pub mod workspace;

pub use confine::{Confinement, GitGuard};
pub use files::{Content, FileAccess, WorkspaceFiles, file_tools};
pub use hands::{HandsOptions, hands, workspace_tools};
pub use launcher::launcher;
pub use shell::{ShellOptions, shell_tools};
