//! Tools that read and change a folder and run commands in it, confined.

pub mod notes;
pub mod workspace;
