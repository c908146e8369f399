//! A simulated disk in memory for tests. In a crash, unsynced bytes and names are lost, kept, torn at 512 bytes or
//! reordered, depending on a seed. It counts operations, and fails on request.

#![expect(clippy::expect_used, reason = "a test that names what is not there should stop there and say so")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{Arc, Mutex},
};

use super::{
    disk::{Disk, DiskFile},
    lock,
};

/// Bytes that are written atomically.
const SECTOR_BYTES: usize = 512;

/// Pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so that no caller has to unwrap it")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Failure of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power fails: this and all later operations fail.
    Crash,
    /// The operation fails; what it should have made durable may be lost.
    Eio,
    /// The disk is full; a write is cut short first.
    Full,
    /// The operation panics.
    Panic,
}

/// Counts of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes.
    pub writes: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Syncs of folders.
    pub dir_syncs: u64,
    /// Names made, moved or removed.
    pub names: u64,
    /// Bytes written.
    pub bytes: u64,
}

#[derive(Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Len(usize),
}

#[derive(Clone, Default)]
struct FileNode {
    now: Vec<u8>,
    /// Content that survives a crash.
    kept: Vec<u8>,
    /// Changes that the next sync makes durable.
    changes: Vec<Change>,
    /// Changes that no sync makes durable any more, because one failed.
    limbo: Vec<Change>,
}

#[derive(Clone, Default)]
struct DirNode {
    now: BTreeMap<String, usize>,
    kept: BTreeMap<String, usize>,
}

#[derive(Clone)]
enum Node {
    File(FileNode),
    Dir(DirNode),
}

/// Change of names that no sync has made durable yet.
#[derive(Clone)]
struct Naming {
    /// Operation that made it.
    number: u64,
    /// Removed name, with its folder.
    removed: Option<(usize, String)>,
    /// Added name, with its folder and its node.
    added: Option<(usize, String, usize)>,
    /// True if a sync of it failed.
    is_lost: bool,
}

#[derive(Clone)]
struct Sim {
    nodes: Vec<Node>,
    namings: Vec<Naming>,
    counts: Counts,
    /// Number of changes so far.
    operations: u64,
    fault: Option<(u64, Fault)>,
    is_down: bool,
    /// Bytes that all files together may have.
    capacity: Option<u64>,
    /// Files and folders that there may be.
    nodes_max: Option<usize>,
    /// Files that are unreadable from a byte on, and unlistable folders.
    unreadable: BTreeMap<usize, usize>,
    /// True if every sync, or every rename, finds the disk full.
    are_syncs_full: bool,
    are_renames_full: bool,
}

/// Simulated disk; a clone is the same disk.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<Sim>>);

impl Default for SimulatedDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimulatedDisk {
    /// Makes an empty disk.
    pub fn new() -> Self {
        let root = Node::Dir(DirNode::default());
        Self(Arc::new(Mutex::new(Sim {
            nodes: vec![root],
            namings: Vec::new(),
            counts: Counts::default(),
            operations: 0,
            fault: None,
            is_down: false,
            capacity: None,
            nodes_max: None,
            unreadable: BTreeMap::new(),
            are_syncs_full: false,
            are_renames_full: false,
        })))
    }

    /// Makes another disk with the same content.
    pub fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(lock(&self.0).clone())))
    }

    /// Makes the disk as after a kill of the process: the system still has everything.
    pub fn revived(&self) -> Self {
        let mut sim = lock(&self.0).clone();
        (sim.fault, sim.is_down) = (None, false);
        Self(Arc::new(Mutex::new(sim)))
    }

    /// Makes the disk as after a power failure.
    pub fn crashed(&self, random: &mut Random) -> Self {
        let mut sim = lock(&self.0).clone();
        let names = [0, 50, 100][random.below(3) as usize];
        for naming in std::mem::take(&mut sim.namings) {
            if random.chance(names) {
                sim.keep(&naming);
            }
        }
        for node in &mut sim.nodes {
            match node {
                Node::Dir(dir) => dir.now = dir.kept.clone(),
                Node::File(file) => file.crash(random),
            }
        }
        (sim.counts, sim.operations, sim.fault, sim.is_down) = (Counts::default(), 0, None, false);
        Self(Arc::new(Mutex::new(sim)))
    }

    /// Fails at the change that comes `after` changes from now.
    pub fn fail(&self, after: u64, fault: Fault) {
        let mut sim = lock(&self.0);
        sim.fault = Some((sim.operations + after, fault));
    }

    /// Returns true if the power has failed.
    pub fn is_down(&self) -> bool {
        lock(&self.0).is_down
    }

    /// Returns true if a sync failed, so that something may never become durable.
    pub fn has_lost(&self) -> bool {
        let sim = lock(&self.0);
        let is_lost = |node: &Node| matches!(node, Node::File(file) if !file.limbo.is_empty());
        sim.nodes.iter().any(is_lost) || sim.namings.iter().any(|naming| naming.is_lost)
    }

    /// Number of changes so far.
    pub fn operations(&self) -> u64 {
        lock(&self.0).operations
    }

    /// Bytes that all files together may have.
    pub fn limit(&self, capacity: Option<u64>) {
        lock(&self.0).capacity = capacity;
    }

    /// So many more files and folders may be made, or as many as are wanted.
    pub fn limit_files(&self, more: Option<usize>) {
        let mut sim = lock(&self.0);
        sim.nodes_max = more.map(|more| sim.named().len() + more);
    }

    /// Makes a file unreadable from byte `from` on, or a folder unlistable.
    pub fn wear_out(&self, path: &Path, from: usize) {
        let mut sim = lock(&self.0);
        let node = sim.find(path).expect("a name");
        sim.unreadable.insert(node, from);
    }

    /// Sets if every sync and every rename finds the disk full.
    pub fn fill_late(&self, is_full: bool) {
        self.fill_syncs(is_full);
        lock(&self.0).are_renames_full = is_full;
    }

    /// Sets if every sync finds the disk full.
    pub fn fill_syncs(&self, is_full: bool) {
        lock(&self.0).are_syncs_full = is_full;
    }

    /// Returns the bytes of all files that have a name.
    pub fn used(&self) -> u64 {
        lock(&self.0).used()
    }

    /// Returns the counts, and resets them.
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut lock(&self.0).counts)
    }

    /// Returns a file's bytes.
    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        let sim = lock(&self.0);
        match &sim.nodes[sim.find(path).expect("a file")] {
            Node::File(file) => file.now.clone(),
            Node::Dir(_) => panic!("{} is a folder", path.display()),
        }
    }

    /// Replaces a file's bytes, durably.
    pub fn set_bytes(&self, path: &Path, bytes: Vec<u8>) {
        let mut sim = lock(&self.0);
        let node = sim.find(path).expect("a file");
        sim.nodes[node] = Node::File(FileNode { now: bytes.clone(), kept: bytes, ..FileNode::default() });
    }
}

impl FileNode {
    fn crash(&mut self, random: &mut Random) {
        let share = [0, 50, 90, 100][random.below(4) as usize];
        let limbo = std::mem::take(&mut self.limbo);
        for change in limbo.into_iter().chain(std::mem::take(&mut self.changes)) {
            match change {
                Change::Len(len) if random.chance(share) => self.kept.resize(len, 0),
                Change::Len(_) => {}
                Change::Write { offset, bytes } => {
                    let mut at = 0;
                    while at < bytes.len() {
                        let len = (SECTOR_BYTES - (offset + at) % SECTOR_BYTES).min(bytes.len() - at);
                        if random.chance(share) {
                            put(&mut self.kept, offset + at, &bytes[at..at + len]);
                        }
                        at += len;
                    }
                }
            }
        }
        self.now = self.kept.clone();
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Write { offset, bytes } => put(&mut self.kept, offset, &bytes),
                Change::Len(len) => self.kept.resize(len, 0),
            }
        }
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if file.len() < offset + bytes.len() {
        file.resize(offset + bytes.len(), 0);
    }
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn error(fault: Fault) -> io::Error {
    match fault {
        Fault::Crash => io::Error::other("the power failed"),
        Fault::Eio => io::Error::other("input/output error"),
        Fault::Full => io::ErrorKind::StorageFull.into(),
        Fault::Panic => panic!("the store fails"),
    }
}

impl Sim {
    fn find(&self, path: &Path) -> io::Result<usize> {
        path.iter().try_fold(0, |node, name| match &self.nodes[node] {
            Node::Dir(dir) => dir.now.get(&*name.to_string_lossy()).copied().ok_or(io::ErrorKind::NotFound.into()),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        })
    }

    fn place(&self, path: &Path) -> io::Result<(usize, String)> {
        let parent = self.find(path.parent().expect("a parent"))?;
        Ok((parent, path.file_name().expect("a name").to_string_lossy().into_owned()))
    }

    fn dir(&mut self, node: usize) -> &mut DirNode {
        match &mut self.nodes[node] {
            Node::Dir(dir) => dir,
            Node::File(_) => panic!("no folder"),
        }
    }

    fn file(&mut self, node: usize) -> &mut FileNode {
        match &mut self.nodes[node] {
            Node::File(file) => file,
            Node::Dir(_) => panic!("no file"),
        }
    }

    /// Lists the files and folders that have a name.
    fn named(&self) -> BTreeSet<usize> {
        let mut named = BTreeSet::new();
        for node in &self.nodes {
            if let Node::Dir(dir) = node {
                named.extend(dir.now.values().copied());
            }
        }
        named
    }

    /// Returns how many more files and folders may be made.
    fn free_nodes(&self) -> usize {
        self.nodes_max.map_or(usize::MAX, |max| max.saturating_sub(self.named().len()))
    }

    fn used(&self) -> u64 {
        let len = |node: &usize| match &self.nodes[*node] {
            Node::File(file) => file.now.len() as u64,
            Node::Dir(_) => 0,
        };
        self.named().iter().map(len).sum()
    }

    /// Fails if the power is off.
    fn check(&self) -> io::Result<()> {
        if self.is_down { Err(error(Fault::Crash)) } else { Ok(()) }
    }

    /// Counts a change; returns its failure, if any.
    fn begin(&mut self) -> io::Result<Option<Fault>> {
        self.check()?;
        let at = self.operations;
        self.operations += 1;
        let fault = self.fault.filter(|(when, _)| *when == at).map(|(_, fault)| fault);
        assert_ne!(fault, Some(Fault::Panic), "the store fails");
        self.is_down |= fault == Some(Fault::Crash);
        Ok(fault)
    }

    /// Makes a file or a folder; returns its node.
    fn make(&mut self, path: &Path, node: Node) -> io::Result<usize> {
        let fault = self.begin()?;
        self.changed(fault)?;
        let (dir, name) = self.place(path)?;
        if self.dir(dir).now.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if self.free_nodes() == 0 {
            return Err(error(Fault::Full));
        }
        self.nodes.push(node);
        let node = self.nodes.len() - 1;
        self.name(None, Some((dir, name, node)));
        self.check().map(|()| node)
    }

    /// Changes names now; a crash may undo it.
    fn name(&mut self, removed: Option<(usize, String)>, added: Option<(usize, String, usize)>) {
        if let Some((dir, name)) = &removed {
            self.dir(*dir).now.remove(name);
        }
        if let Some((dir, name, node)) = &added {
            self.dir(*dir).now.insert(name.clone(), *node);
        }
        self.namings.push(Naming { number: self.operations, removed, added, is_lost: false });
    }

    /// Makes a change of names durable; earlier lost changes of the same names no longer matter.
    fn keep(&mut self, naming: &Naming) {
        let removed = naming.removed.as_ref().map(|(dir, name)| (*dir, name.clone()));
        let added = naming.added.as_ref().map(|(dir, name, _)| (*dir, name.clone()));
        for place in [removed, added].into_iter().flatten() {
            let adds = |other: &Naming| {
                other.number < naming.number
                    && other.added.as_ref().is_some_and(|(dir, name, _)| (dir, name) == (&place.0, &place.1))
            };
            self.namings.retain(|other| !adds(other));
        }
        if let Some((dir, name)) = &naming.removed {
            self.dir(*dir).kept.remove(name);
        }
        if let Some((dir, name, node)) = &naming.added {
            self.dir(*dir).kept.insert(name.clone(), *node);
        }
    }

    fn begin_sync(&mut self) -> io::Result<Option<Fault>> {
        Ok(self.begin()?.or(self.are_syncs_full.then_some(Fault::Full)))
    }

    /// Fails if a byte before `end` is unreadable.
    fn check_readable(&self, node: usize, end: usize) -> io::Result<()> {
        match self.unreadable.get(&node) {
            Some(from) if end > *from => Err(io::Error::from_raw_os_error(5)),
            _ => Ok(()),
        }
    }

    fn changed(&mut self, fault: Option<Fault>) -> io::Result<()> {
        self.counts.names += 1;
        match fault {
            // It may have happened.
            Some(Fault::Crash) | None => Ok(()),
            Some(fault) => Err(error(fault)),
        }
    }
}

impl Disk for SimulatedDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        lock(&self.0).make(path, Node::Dir(DirNode::default())).map(drop)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let node = lock(&self.0).make(path, Node::File(FileNode::default()))?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), node }))
    }

    fn open(&self, path: &Path, _: bool) -> io::Result<Arc<dyn DiskFile>> {
        let sim = lock(&self.0);
        sim.check()?;
        let node = sim.find(path)?;
        Ok(Arc::new(SimulatedFile { disk: self.clone(), node }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut sim = lock(&self.0);
        let fault = sim.begin()?.or(sim.are_renames_full.then_some(Fault::Full));
        sim.changed(fault)?;
        let (node, source, (dir, name)) = (sim.find(from)?, sim.place(from)?, sim.place(to)?);
        let replaced = sim.dir(dir).now.get(&name).copied();
        if replaced.is_some_and(|node| matches!(&sim.nodes[node], Node::Dir(dir) if !dir.now.is_empty())) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        sim.name(Some(source), Some((dir, name, node)));
        sim.check()
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut sim = lock(&self.0);
        let fault = sim.begin()?;
        sim.changed(fault)?;
        let (node, (dir, name)) = (sim.find(from)?, sim.place(to)?);
        sim.name(None, Some((dir, name, node)));
        sim.check()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut sim = lock(&self.0);
        let fault = sim.begin()?;
        sim.changed(fault.filter(|fault| *fault != Fault::Full))?;
        sim.find(path)?;
        let place = sim.place(path)?;
        sim.name(Some(place), None);
        sim.check()
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let sim = lock(&self.0);
        sim.check()?;
        let node = sim.find(path)?;
        sim.check_readable(node, usize::MAX)?;
        match &sim.nodes[node] {
            Node::Dir(dir) => Ok(dir.now.keys().cloned().collect()),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        let mut sim = lock(&self.0);
        sim.check()?;
        let node = sim.find(path)?;
        Ok(sim.file(node).now.len() as u64)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut sim = lock(&self.0);
        let fault = sim.begin_sync()?;
        sim.counts.dir_syncs += 1;
        let dir = sim.find(path)?;
        // A move is durable with its target folder.
        let is_here = |naming: &Naming| match (&naming.removed, &naming.added) {
            (_, Some((at, ..))) | (Some((at, _)), None) => *at == dir,
            (None, None) => false,
        };
        if let Some(fault) = fault {
            sim.namings.iter_mut().filter(|naming| is_here(naming)).for_each(|naming| naming.is_lost = true);
            return Err(error(fault));
        }
        let here: Vec<Naming> = sim.namings.extract_if(.., |naming| !naming.is_lost && is_here(naming)).collect();
        for naming in &here {
            sim.keep(naming);
            // What is durable of a name is not undone by what was lost before.
            let places = [
                naming.removed.as_ref().map(|(dir, name)| (*dir, name.as_str())),
                naming.added.as_ref().map(|(dir, name, _)| (*dir, name.as_str())),
            ];
            let is_same = |dir: usize, name: &str| places.contains(&Some((dir, name)));
            for lost in sim.namings.iter_mut().filter(|lost| lost.is_lost) {
                lost.removed.take_if(|(dir, name)| is_same(*dir, name));
                lost.added.take_if(|(dir, name, _)| is_same(*dir, name));
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let sim = lock(&self.0);
        sim.check()?;
        Ok(sim.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(sim.used())))
    }

    fn free_files(&self) -> io::Result<u64> {
        let sim = lock(&self.0);
        sim.check()?;
        Ok(sim.free_nodes() as u64)
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    node: usize,
}

impl DiskFile for SimulatedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut sim = lock(&self.disk.0);
        sim.check()?;
        let rest = sim.file(self.node).now.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buffer.len());
        sim.check_readable(self.node, offset as usize + len)?;
        let rest = sim.file(self.node).now.get(offset as usize..).unwrap_or_default();
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut sim = lock(&self.disk.0);
        let fault = sim.begin()?;
        sim.counts.writes += 1;
        let used = sim.capacity.map(|_| sim.used());
        let file = sim.file(self.node);
        let grows = (offset as usize + bytes.len()).saturating_sub(file.now.len()) as u64;
        let over = used.zip(sim.capacity).map_or(0, |(used, capacity)| (used + grows).saturating_sub(capacity));
        let written = match fault {
            Some(Fault::Crash) | None => bytes.len() - (over as usize).min(bytes.len()),
            // Short writes halve until one is refused.
            Some(_) => bytes.len() / 2,
        };
        if fault == Some(Fault::Full) && written > 0 {
            // The rest finds no room either.
            sim.fault = Some((sim.operations, Fault::Full));
        }
        let change = Change::Write { offset: offset as usize, bytes: bytes[..written].to_vec() };
        let file = sim.file(self.node);
        put(&mut file.now, offset as usize, &bytes[..written]);
        file.changes.push(change);
        sim.counts.bytes += written as u64;
        match fault {
            Some(Fault::Full) | None if written == 0 && !bytes.is_empty() => Err(error(Fault::Full)),
            Some(Fault::Full) | None => Ok(written),
            Some(fault) => Err(error(fault)),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut sim = lock(&self.disk.0);
        let fault = sim.begin()?;
        sim.counts.writes += 1;
        if let Some(fault @ Fault::Eio) = fault {
            return Err(error(fault));
        }
        let file = sim.file(self.node);
        file.now.resize(len as usize, 0);
        file.changes.push(Change::Len(len as usize));
        sim.check()
    }

    fn len(&self) -> io::Result<u64> {
        let mut sim = lock(&self.disk.0);
        sim.check()?;
        Ok(sim.file(self.node).now.len() as u64)
    }

    fn sync(&self) -> io::Result<()> {
        let mut sim = lock(&self.disk.0);
        let fault = sim.begin_sync()?;
        sim.counts.syncs += 1;
        let file = sim.file(self.node);
        match fault {
            None => {
                file.sync();
                Ok(())
            }
            Some(fault) => {
                // The system forgets that these bytes are unwritten.
                let lost = std::mem::take(&mut file.changes);
                file.limbo.extend(lost);
                Err(error(fault))
            }
        }
    }
}
