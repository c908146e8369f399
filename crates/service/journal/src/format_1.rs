//! Stores of format 1, which had their marks in one file. They become format 2 when they are opened; what is not
//! finished then, the next start does again.

use std::{io, path::Path};

use bytes::Bytes;
use serde::Deserialize;

use super::{
    disk::{Disk, if_there, read_range},
    frame::{self, Parsed, parse},
    layout::{generations_of, log_unlisted, seal, segment_name, sessions_on},
    marks::{Found, write_marks},
    segment::{HEADER_BYTES, Header, HeaderFound, Mark, Reader, Rest, Step, scan},
};
use meerkat_words::{ids::SessionId, store::Registration};

/// Folder of the file with the marks.
const STORE: &str = "store";
/// Kinds of marks. A newer mark of a kind replaces what an older one says.
const ACTIVE: u16 = 1;
const IDLE: u16 = 2;
const READER: u16 = 3;
const UNREADER: u16 = 4;
const TRUSTED: u16 = 6;
const GONE: u16 = 7;

#[derive(Deserialize)]
struct Named {
    session_id: SessionId,
}

#[derive(Deserialize)]
struct Unreader {
    reader: String,
}

#[derive(Deserialize)]
struct Trusted {
    trusted: bool,
}

/// Makes a store of format 1 one of format 2. Returns true if it was known which sessions are active.
pub(super) fn upgrade(disk: &dyn Disk) -> io::Result<bool> {
    let mut found = look(disk)?;
    if !found.is_whole {
        let readers: Vec<&String> = found.readers.keys().collect();
        tracing::warn!(
            ?readers,
            "the store journal is damaged or missing: every session is looked at; register readers \
                                  that are not named here again"
        );
        found.active.extend(sessions_on(disk, &mut log_unlisted)?);
    }
    write_marks(disk, &found.active, &found.readers())?;
    seal(disk)?;
    tracing::info!("the store has format 2 now, which older versions of meerkat refuse");
    remove(disk);
    Ok(found.is_whole)
}

/// Removes what a store of format 2 does not use; what stays is removed by the next start.
pub(super) fn remove(disk: &dyn Disk) {
    let work = || -> io::Result<()> {
        let Some(names) = if_there(disk.list(Path::new(STORE)))? else { return Ok(()) };
        for (number, generations) in generations_of(&names) {
            for generation in generations {
                disk.remove(&Path::new(STORE).join(segment_name(number, generation)))?;
            }
        }
        // Nothing else was ever put there by meerkat.
        if disk.list(Path::new(STORE))?.is_empty() { disk.remove(Path::new(STORE)) } else { Ok(()) }
    };
    if let Err(error) = work() {
        tracing::debug!(%error, "what a store of format 1 left could not be removed");
    }
}

/// Reads the marks without changing anything.
pub(super) fn look(disk: &dyn Disk) -> io::Result<Found> {
    let mut found = Found::default();
    let names = if_there(disk.list(Path::new(STORE)))?.unwrap_or_default();
    let newest = generations_of(&names).first().and_then(|(_, generations)| generations.first().copied());
    let Some(generation) = newest else { return Ok(found) };
    let file = disk.open(&Path::new(STORE).join(segment_name(1, generation)), false)?;
    let (len, mut read_up_to, mut is_trusted) = (file.len()?, HEADER_BYTES, true);
    if let HeaderFound::Good(header) = Header::read(file.as_ref())? {
        let from = Mark { offset: HEADER_BYTES, place: header.place() };
        let scanned = scan(Reader::new(file.as_ref(), from, len), |_| true)?;
        found.is_whole = !matches!(scanned.rest, Rest::Corrupt | Rest::Footer);
        read_up_to = scanned.end.offset;
        let mut reader = Reader::new(file.as_ref(), from, read_up_to);
        while let Step::Frame(frame, line) = reader.next()? {
            match apply(&mut found, frame.kind, &line) {
                Ok(trusted) => is_trusted = trusted.unwrap_or(is_trusted),
                Err(_) => found.is_whole = false,
            }
        }
    }
    if !found.is_whole {
        // A surplus reader only delays the compaction of journals.
        salvage(&mut found, &read_range(file.as_ref(), read_up_to, len)?.into());
    }
    found.is_whole &= is_trusted;
    Ok(found)
}

/// Applies a mark; marks of other kinds say nothing that counts. Returns what it says of whether all readers are known.
fn apply(found: &mut Found, kind: u16, line: &[u8]) -> serde_json::Result<Option<bool>> {
    match kind {
        ACTIVE => drop(found.active.insert(serde_json::from_slice::<Named>(line)?.session_id)),
        IDLE | GONE => drop(found.active.remove(&serde_json::from_slice::<Named>(line)?.session_id)),
        READER => {
            let Registration { reader, created_at } = serde_json::from_slice(line)?;
            found.readers.entry(reader).or_insert(created_at);
        }
        UNREADER => drop(found.readers.remove(&serde_json::from_slice::<Unreader>(line)?.reader)),
        TRUSTED => return Ok(Some(serde_json::from_slice::<Trusted>(line)?.trusted)),
        _ => {}
    }
    Ok(None)
}

/// Applies the marks of readers with a good checksum anywhere in `bytes`, which begin at a multiple of 8.
fn salvage(found: &mut Found, bytes: &Bytes) {
    let mut at = 0;
    while at < bytes.len() {
        at += match parse(&bytes[at..]) {
            Parsed::Frame(frame) => {
                let start = at + frame::HEADER_BYTES;
                if [READER, UNREADER].contains(&frame.kind) {
                    // One that cannot be read says nothing.
                    drop(apply(found, frame.kind, &bytes[start..start + frame.payload]));
                }
                frame.total
            }
            Parsed::Short(_) | Parsed::Nothing => 8,
        };
    }
}
