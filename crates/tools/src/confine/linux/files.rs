//! Files that a command may reach, by Landlock.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus, Scope,
};

use super::{Job, Reach};

/// Newest version whose rights are asked for; an older kernel has fewer.
const NEWEST: ABI = ABI::V7;
/// Devices that every program expects.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Folder of shared memory, private in a namespace.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";

/// Lets this process and its children reach the job's folders only.
pub(super) fn apply(job: &Job, temporary: &Path, has_shared_memory: bool) -> Result<(), String> {
    restrict(job, temporary, has_shared_memory)
        .map_err(|error| format!("Landlock does not confine the command's files: {error}"))
}

fn restrict(job: &Job, temporary: &Path, has_shared_memory: bool) -> Result<(), Box<dyn std::error::Error>> {
    // Before its third version a file elsewhere could be emptied.
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V3))?
        .create()?;
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?;
    // Its rules are about ports, and do not know whose network they are in.
    if job.reach == Reach::Nothing {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    }
    let read = AccessFs::from_read(NEWEST);
    let write = AccessFs::from_all(NEWEST) & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let mut rules = ruleset.create()?;
    for folder in &job.readable {
        rules = allow(rules, folder, read, &job.hidden)?;
    }
    for device in DEVICES {
        rules = allow(rules, Path::new(device), AccessFs::ReadFile | AccessFs::WriteFile, &[])?;
    }
    // Without one of its own a command would write in everybody's.
    if has_shared_memory {
        rules = allow(rules, Path::new(SHARED_MEMORY), write, &[])?;
    }
    rules = allow(rules, temporary, write, &[])?;
    // Secrets beneath it are covered by mounts, because a folder whose entries are allowed one by one takes no new one.
    rules = allow(rules, &job.workspace, if job.is_read_only { read } else { write }, &[])?;
    match rules.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Err("the kernel has it switched off".into()),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

/// Allows a file or folder, but nothing hidden beneath it. A path that is not there is left out.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    hidden: &[PathBuf],
) -> Result<RulesetCreated, Box<dyn std::error::Error>> {
    let Ok(real) = path.canonicalize() else { return Ok(rules) };
    if hidden.iter().any(|hidden| real.starts_with(hidden)) {
        return Ok(rules);
    }
    let on_the_way = hidden.iter().filter_map(|hidden| hidden.strip_prefix(&real).ok()?.iter().next());
    let on_the_way: BTreeSet<&OsStr> = on_the_way.collect();
    if on_the_way.is_empty() {
        return whole(rules, &real, real.is_dir(), access);
    }
    let Ok(entries) = fs::read_dir(&real) else { return Ok(rules) };
    entries.flatten().try_fold(rules, |rules, entry| match entry.file_type() {
        // `/etc` has hundreds of entries: only what may lead to something hidden is looked at.
        Ok(kind) if !kind.is_symlink() && !on_the_way.contains(&*entry.file_name()) => {
            whole(rules, &entry.path(), kind.is_dir(), access)
        }
        _ => allow(rules, &entry.path(), access, hidden),
    })
}

/// Allows a file or folder with all that is in it.
fn whole(
    rules: RulesetCreated,
    path: &Path,
    is_folder: bool,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, Box<dyn std::error::Error>> {
    let Ok(opened) = PathFd::new(path) else { return Ok(rules) };
    let access = if is_folder { access } else { access & AccessFs::from_file(NEWEST) };
    Ok(rules.add_rule(PathBeneath::new(opened, access))?)
}
