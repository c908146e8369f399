//! Walk of a workspace's files by several threads: hidden and ignored ones are left out, and no link is followed.
//!
//! Folders are opened from the workspace's handle, files from their folder's. Files with rules (`.gitignore`,
//! `.ignore`, `.git/info/exclude`) are a project's, so none is read that is a link, a pipe or too large.

use std::{
    ffi::{OsStr, OsString},
    io::Read as _,
    os::fd::{AsFd, OwnedFd},
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use meerkat_service::tool::ToolError;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use tokio_util::sync::CancellationToken;

use super::path::{Inside, Workspace, open_plain};

/// Threads of one walk.
const THREADS_MAX: usize = 8;
/// Files of one folder that a thread takes at a time.
const FILES_TAKEN: usize = 64;
/// Bytes of a file with rules; a larger one counts for nothing.
const RULES_BYTES_MAX: u64 = 256 * 1024;
/// Files with rules, the strongest last.
const RULES: &[&str] = &[".gitignore", ".ignore"];

/// Visitor of files; each thread has one.
pub(super) trait Visit: Send {
    /// Visits a file by its folder's handle, its name, and its path from the workspace on.
    fn file(&mut self, folder: &OwnedFd, name: &OsStr, path: &Inside);

    /// Takes note of a folder that cannot be read.
    fn unreadable(&mut self);
}

/// Visits the files of a folder, or one file, with as many threads as are useful.
pub(super) fn walk<V: Visit>(
    workspace: &Workspace,
    start: &Inside,
    cancel: &CancellationToken,
    visitor: impl Fn() -> V,
) -> Result<Vec<V>, ToolError> {
    if let Some((parent, name)) = start.split() {
        let folder = workspace.folder(&parent)?;
        if is_file(&folder, name) {
            let mut only = visitor();
            only.file(&folder, name, start);
            return Ok(vec![only]);
        }
    }
    // Its errors say what is wrong with the path.
    drop(workspace.folder(start)?);
    let walk = Walk { workspace, cancel, queue: Queue::default() };
    walk.queue.push([Job::Folder { path: start.clone(), rules: outer_rules(workspace, start) }]);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let mut visitors: Vec<V> = (0..threads).map(|_| visitor()).collect();
    std::thread::scope(|scope| {
        for visitor in &mut visitors {
            scope.spawn(|| walk.run(visitor));
        }
    });
    if cancel.is_cancelled() { Err(ToolError::Cancelled) } else { Ok(visitors) }
}

fn is_file(folder: &OwnedFd, name: &OsStr) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

struct Walk<'a> {
    workspace: &'a Workspace,
    cancel: &'a CancellationToken,
    queue: Queue,
}

enum Job {
    Folder { path: Inside, rules: Option<Arc<Rules>> },
    Files { folder: Arc<OwnedFd>, path: Inside, names: Vec<OsString> },
}

impl Walk<'_> {
    fn run(&self, visitor: &mut impl Visit) {
        while let Some((job, _busy)) = self.queue.next() {
            if self.cancel.is_cancelled() {
                // The other jobs are taken and dropped the same way.
                continue;
            }
            match job {
                Job::Folder { path, rules } => {
                    if self.folder(&path, rules, visitor).is_none() {
                        visitor.unreadable();
                    }
                }
                Job::Files { folder, path, names } => self.files(&folder, &path, &names, visitor),
            }
        }
    }

    /// Visits a folder's files, and leaves its folders and most of many files to whichever thread is free.
    fn folder(&self, path: &Inside, rules: Option<Arc<Rules>>, visitor: &mut impl Visit) -> Option<()> {
        let folder = self.workspace.folder(path).ok()?;
        let (mut folders, mut names, mut own_rules) = (Vec::new(), Vec::new(), false);
        for entry in Dir::read_from(&folder).ok()? {
            let entry = entry.ok()?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name.as_bytes().first() == Some(&b'.') {
                own_rules |= name == ".git" || RULES.iter().any(|rules| name == *rules);
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                kind => kind,
            };
            match kind {
                FileType::RegularFile => names.push(name.to_owned()),
                FileType::Directory => folders.push(name.to_owned()),
                _ => {}
            }
        }
        let rules =
            if own_rules { Rules::of(&folder, &self.workspace.root().join(path.as_path()), rules) } else { rules };
        if let Some(rules) = &rules {
            let folder = self.workspace.root().join(path.as_path());
            names.retain(|name| !rules.ignore(&folder.join(name), false));
            folders.retain(|name| !rules.ignore(&folder.join(name), true));
        }
        self.queue.push(folders.into_iter().map(|name| Job::Folder { path: path.join(&name), rules: rules.clone() }));
        let rest = names.split_off(names.len().min(FILES_TAKEN));
        let folder = Arc::new(folder);
        self.queue.push(rest.chunks(FILES_TAKEN).map(|names| Job::Files {
            folder: folder.clone(),
            path: path.clone(),
            names: names.to_vec(),
        }));
        self.files(&folder, path, &names, visitor);
        Some(())
    }

    fn files(&self, folder: &OwnedFd, path: &Inside, names: &[OsString], visitor: &mut impl Visit) {
        for name in names {
            if self.cancel.is_cancelled() {
                return;
            }
            visitor.file(folder, name, &path.join(name));
        }
    }
}

/// Rules of a folder, and those of the folders that hold it.
struct Rules {
    own: Gitignore,
    outer: Option<Arc<Rules>>,
}

impl Rules {
    /// Reads the rules of a folder. Lines that are no rules count for nothing.
    fn of(folder: &OwnedFd, path: &Path, outer: Option<Arc<Self>>) -> Option<Arc<Self>> {
        let mut builder = GitignoreBuilder::new(path);
        let excluded = below(folder, ".git").and_then(|git| below(&git, "info")).map(|info| text(&info, "exclude"));
        let texts = excluded.into_iter().chain(RULES.iter().map(|name| text(folder, name)));
        for line in texts.flatten().collect::<String>().lines() {
            drop(builder.add_line(None, line));
        }
        match builder.build() {
            Ok(own) if !own.is_empty() => Some(Arc::new(Self { own, outer })),
            Ok(_) | Err(_) => outer,
        }
    }

    /// Returns true if the rule nearest to the file leaves it out.
    fn ignore(&self, path: &Path, is_folder: bool) -> bool {
        match self.own.matched(path, is_folder) {
            Match::Ignore(_) => true,
            Match::Whitelist(_) => false,
            Match::None => self.outer.as_ref().is_some_and(|outer| outer.ignore(path, is_folder)),
        }
    }
}

/// Reads the rules of the folders that hold the start: from the repository's root on, if there is one.
fn outer_rules(workspace: &Workspace, start: &Inside) -> Option<Arc<Rules>> {
    let mut rules = None;
    let holders: Vec<&Path> = workspace.root().ancestors().collect();
    let is_repository = |folder: &&Path| folder.join(".git").symlink_metadata().is_ok();
    if let Some(repository) = holders.iter().position(is_repository) {
        // The first is the workspace itself.
        for path in holders[..=repository].iter().skip(1).rev() {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
            if let Ok(folder) = rustix::fs::open(*path, flags, Mode::empty()) {
                rules = Rules::of(&folder, path, rules);
            }
        }
    }
    let mut folders: Vec<Inside> = std::iter::successors(start.split().map(|(parent, _)| parent), |folder| {
        folder.split().map(|(parent, _)| parent)
    })
    .collect();
    while let Some(folder) = folders.pop() {
        if let Ok(handle) = workspace.folder(&folder) {
            rules = Rules::of(&handle, &workspace.root().join(folder.as_path()), rules);
        }
    }
    rules
}

fn below(folder: &OwnedFd, name: &str) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    rustix::fs::openat(folder, name, flags, Mode::empty()).ok()
}

/// Reads a file with rules. One that is too large, no plain file or no text counts for nothing.
fn text(folder: impl AsFd, name: &str) -> Option<String> {
    let file = open_plain(folder, &Inside::root().join(OsStr::new(name)), OsStr::new(name)).ok()?;
    let mut bytes = Vec::new();
    file.take(RULES_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    let fits = bytes.len() as u64 <= RULES_BYTES_MAX;
    let text = String::from_utf8(bytes).ok().filter(|_| fits)?;
    Some(text.trim_start_matches('\u{feff}').to_owned() + "\n")
}

/// Jobs that wait, newest first: so a walk goes deep before it goes wide, and few wait.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: Vec<Job>,
    /// Threads with a job; each may still add others.
    busy: usize,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut state = self.lock();
        let before = state.jobs.len();
        state.jobs.extend(jobs);
        if state.jobs.len() > before {
            self.changed.notify_all();
        }
    }

    /// Waits for a job; none is left when nobody has one who could add others.
    fn next(&self) -> Option<(Job, Busy<'_>)> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop() {
                state.busy += 1;
                return Some((job, Busy(self)));
            }
            if state.busy == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Thread with a job.
struct Busy<'a>(&'a Queue);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        if state.busy == 0 && state.jobs.is_empty() {
            self.0.changed.notify_all();
        }
    }
}
