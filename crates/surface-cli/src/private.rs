//! Memory of this process, which holds keys. A crash writes it to no file: that file would be in a folder where commands
//! of tools may read it.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Lets no crash leave a core file, and no other process of this user read this one's memory.
pub fn keep_memory_private() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::debug!(%error, "a crash may leave a core file");
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        tracing::debug!(%error, "other processes of this user may read this one's memory");
    }
}
