//! A bundle as an archive like any, to be taken apart and put together wrongly. It shares nothing with what it tests.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Place and length of a field of a header.
type Field = (usize, usize);
pub(super) const NAME: Field = (0, 100);
pub(super) const MODE: Field = (100, 8);
pub(super) const SIZE: Field = (124, 12);
pub(super) const KIND: Field = (156, 1);
pub(super) const LINK: Field = (157, 100);
pub(super) const OWNER: Field = (265, 32);
/// The folder of its section.
pub(super) const FOLDER: Field = (345, 155);

/// A file of an archive.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) header: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl Entry {
    pub(super) fn text(&self, (at, len): Field) -> String {
        let field = &self.header[at..at + len];
        String::from_utf8(field.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap()
    }

    pub(super) fn is_in(&self, folder: &str) -> bool {
        self.text(NAME).starts_with(folder)
    }

    /// Writes a field of the header, and the new checksum.
    pub(super) fn set(&mut self, (at, len): Field, text: &str) {
        self.header[at..at + len].fill(0);
        self.header[at..at + text.len()].copy_from_slice(text.as_bytes());
        self.header[148..156].fill(b' ');
        let sum: u32 = self.header.iter().map(|byte| u32::from(*byte)).sum();
        self.header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    /// Writes another body, with its length in the header.
    pub(super) fn fill(&mut self, body: impl Into<Vec<u8>>) {
        self.body = body.into();
        self.set(SIZE, &format!("{:011o}", self.body.len()));
    }

    /// Returns one that differs.
    pub(super) fn but(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut other = self.clone();
        change(&mut other);
        other
    }
}

/// The files of an archive.
pub(super) fn unpack(mut archive: &[u8]) -> Vec<Entry> {
    let mut entries = Vec::new();
    while !archive.is_empty() {
        let header = archive[..512].to_vec();
        let bytes = usize::from_str_radix(std::str::from_utf8(&header[124..135]).unwrap(), 8).unwrap();
        entries.push(Entry { header, body: archive[512..512 + bytes].to_vec() });
        archive = &archive[512 + bytes.next_multiple_of(512)..];
    }
    entries
}

pub(super) fn pack(entries: &[Entry]) -> Vec<u8> {
    let mut archive = Vec::new();
    for entry in entries {
        archive.extend_from_slice(&entry.header);
        archive.extend_from_slice(&entry.body);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive
}

/// Changes a manifest.
pub(super) fn describe(manifest: &mut Entry, change: impl FnOnce(&mut Value)) {
    let mut described: Value = serde_json::from_slice(&manifest.body).unwrap();
    change(&mut described);
    manifest.fill(described.to_string());
}

/// Puts the right lengths and hashes into each manifest, so that what is wrong has to be found elsewhere.
pub(super) fn seal(entries: &mut [Entry]) {
    let mut rows = Vec::new();
    for entry in entries {
        if entry.text(NAME) == "manifest.json" {
            describe(entry, |manifest| manifest["files"] = std::mem::take(&mut rows).into());
        } else {
            let hash: String = Sha256::digest(&entry.body).iter().map(|byte| format!("{byte:02x}")).collect();
            rows.push(json!({ "name": entry.text(NAME), "bytes": entry.body.len(), "sha256": hash }));
        }
    }
}
