//! A bundle as an archive like any, to be taken apart and put together wrongly. It shares nothing with what it tests.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// A file of an archive.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) header: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl Entry {
    fn text(&self, at: usize, len: usize) -> String {
        let field = &self.header[at..at + len];
        String::from_utf8(field.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap()
    }

    /// Its name within its section.
    pub(super) fn name(&self) -> String {
        self.text(0, 100)
    }

    /// The folder of its section.
    pub(super) fn folder(&self) -> String {
        self.text(345, 155)
    }

    /// Writes a field of the header, and the new checksum.
    pub(super) fn with(mut self, at: usize, len: usize, text: &str) -> Self {
        self.header[at..at + len].fill(0);
        self.header[at..at + text.len()].copy_from_slice(text.as_bytes());
        self.header[148..156].fill(b' ');
        let sum: u32 = self.header.iter().map(|byte| u32::from(*byte)).sum();
        self.header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self
    }

    pub(super) fn named(self, name: &str) -> Self {
        self.with(0, 100, name)
    }

    /// Another body, with its length in the header.
    pub(super) fn of(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        let bytes = self.body.len();
        self.with(124, 12, &format!("{bytes:011o}"))
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

/// Puts the right lengths and hashes into each manifest, so that what is wrong has to be found elsewhere.
pub(super) fn seal(entries: &mut [Entry]) {
    let mut rows = Vec::new();
    for entry in entries {
        if entry.name() == "manifest.json" {
            let mut manifest: Value = serde_json::from_slice(&entry.body).unwrap();
            manifest["files"] = Value::from(std::mem::take(&mut rows));
            *entry = entry.clone().of(serde_json::to_vec(&manifest).unwrap());
        } else {
            let hash: String = Sha256::digest(&entry.body).iter().map(|byte| format!("{byte:02x}")).collect();
            rows.push(json!({ "name": entry.name(), "bytes": entry.body.len(), "sha256": hash }));
        }
    }
}

/// A piece as it is sent.
pub(super) fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}
