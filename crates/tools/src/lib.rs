//! Tools that read and change a folder and run commands in it, confined, and tools of other programs' servers.

mod launcher;
pub mod servers;

pub use launcher::launcher;
