//! Tools that read and change a folder and run commands in it, confined.

mod files;
pub mod workspace;

pub use files::{FileAccess, FileOptions, file_tools};
