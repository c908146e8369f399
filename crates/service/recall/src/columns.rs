//! Metadata of every text, in RAM: session, role, time, length, neighbours; a few dozen bytes per text.
//!
//! It never reads the file: code that changes the file changes this after the commit.

use std::collections::HashMap;

use super::tables::{Doc, SessionRow};
use meerkat_words::ids::{Seq, SessionId};

/// Number of no text.
pub(super) const NONE: u32 = u32::MAX;

const GONE: Doc =
    Doc { session: NONE, part: 0, seq: 0, to_seq: 0, time_ms: 0, role: 0, source: 0, text: 0, words: 0, asks: false };

/// Session with its texts, ordered by position.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) row: SessionRow,
    pub(super) docs: Vec<u32>,
}

#[derive(Clone, Default)]
pub(super) struct Columns {
    /// By number; a removed text is [`GONE`].
    docs: Vec<Doc>,
    /// Numbers of terms, packed for the search; 0 for a removed text.
    lengths: Vec<u16>,
    /// Texts before and after each in its session, or [`NONE`].
    beside: Vec<[u32; 2]>,
    sessions: Vec<Option<Session>>,
    ordinals: HashMap<SessionId, u32>,
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    pub(super) live: u32,
    /// Sum of the terms of the texts that are not removed.
    pub(super) words: u64,
}

impl Columns {
    pub(super) fn next_doc(&self) -> u32 {
        u32::try_from(self.docs.len()).unwrap_or(NONE)
    }

    /// Skips the numbers of removed texts up to `next`: they are not used again.
    pub(super) fn skip_to(&mut self, next: u32) {
        let length = self.docs.len().max(next as usize);
        self.docs.resize(length, GONE);
        self.lengths.resize(length, 0);
        self.beside.resize(length, [NONE; 2]);
    }

    /// Returns the number of a text's terms; 0 if it is removed.
    pub(super) fn words_of(&self, doc: u32) -> u16 {
        self.lengths.get(doc as usize).copied().unwrap_or(0)
    }

    /// Returns a text that is not removed.
    pub(super) fn doc(&self, doc: u32) -> Option<&Doc> {
        self.docs.get(doc as usize).filter(|it| it.session != NONE)
    }

    /// Iterates over the texts that are not removed.
    pub(super) fn docs(&self) -> impl Iterator<Item = (u32, &Doc)> {
        (0..).zip(&self.docs).filter(|(_, doc)| doc.session != NONE)
    }

    pub(super) fn beside(&self, doc: u32) -> [u32; 2] {
        self.beside.get(doc as usize).copied().unwrap_or([NONE; 2])
    }

    pub(super) fn session(&self, id: SessionId) -> Option<&Session> {
        self.ordinals.get(&id).and_then(|ordinal| self.session_at(*ordinal))
    }

    pub(super) fn ordinal(&self, id: SessionId) -> Option<u32> {
        self.ordinals.get(&id).copied()
    }

    pub(super) fn session_at(&self, ordinal: u32) -> Option<&Session> {
        self.sessions.get(ordinal as usize).and_then(Option::as_ref)
    }

    /// Iterates over all sessions, with their ordinals.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (u32, &Session)> {
        (0..).zip(&self.sessions).filter_map(|(ordinal, session)| Some((ordinal, session.as_ref()?)))
    }

    pub(super) fn next_ordinal(&self) -> u32 {
        u32::try_from(self.sessions.len()).unwrap_or(NONE)
    }

    pub(super) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }

    pub(super) fn number_of(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    pub(super) fn add_name(&mut self, name: String) {
        self.numbers.insert(name.clone(), u32::try_from(self.names.len()).unwrap_or(NONE));
        self.names.push(name);
    }

    /// Finds the text at a position of a session.
    pub(super) fn at(&self, session: &Session, place: (Seq, u32)) -> Option<u32> {
        let found = session.docs.binary_search_by_key(&place, |doc| self.place(*doc)).ok()?;
        session.docs.get(found).copied()
    }

    /// Returns a text's position in its session.
    pub(super) fn place(&self, doc: u32) -> (Seq, u32) {
        self.docs.get(doc as usize).map_or((0, 0), Doc::place)
    }

    pub(super) fn set_session(&mut self, ordinal: u32, row: SessionRow) {
        self.ordinals.insert(row.id, ordinal);
        if self.sessions.len() <= ordinal as usize {
            self.sessions.resize(ordinal as usize + 1, None);
        }
        if let Some(slot) = self.sessions.get_mut(ordinal as usize) {
            let docs = slot.take().map_or_else(Vec::new, |session| session.docs);
            *slot = Some(Session { row, docs });
        }
    }

    /// Adds a text with the next number or a later one.
    pub(super) fn push(&mut self, number: u32, doc: Doc) {
        self.skip_to(number);
        self.docs.push(doc);
        self.lengths.push(doc.words);
        self.beside.push([NONE; 2]);
        self.live += 1;
        self.words += u64::from(doc.words);
        let Some(Some(session)) = self.sessions.get_mut(doc.session as usize) else { return };
        let at = session
            .docs
            .partition_point(|other| self.docs.get(*other as usize).is_some_and(|other| other.place() < doc.place()));
        session.docs.insert(at, number);
        let before = at.checked_sub(1).and_then(|at| session.docs.get(at)).copied();
        let after = session.docs.get(at + 1).copied();
        self.link(before, Some(number));
        self.link(Some(number), after);
    }

    fn link(&mut self, before: Option<u32>, after: Option<u32>) {
        if let Some(slot) = before.and_then(|doc| self.beside.get_mut(doc as usize)) {
            slot[1] = after.unwrap_or(NONE);
        }
        if let Some(slot) = after.and_then(|doc| self.beside.get_mut(doc as usize)) {
            slot[0] = before.unwrap_or(NONE);
        }
    }

    /// Removes texts. Their sessions stay.
    pub(super) fn remove(&mut self, numbers: &[u32]) {
        let mut touched: Vec<u32> = Vec::new();
        for number in numbers {
            let Some(slot) = self.docs.get_mut(*number as usize).filter(|doc| doc.session != NONE) else { continue };
            let doc = std::mem::replace(slot, GONE);
            self.live -= 1;
            self.words -= u64::from(doc.words);
            touched.push(doc.session);
            self.lengths[*number as usize] = 0;
            let [before, after] = std::mem::replace(&mut self.beside[*number as usize], [NONE; 2]);
            self.link(Some(before).filter(|doc| *doc != NONE), Some(after).filter(|doc| *doc != NONE));
        }
        touched.sort_unstable();
        touched.dedup();
        for ordinal in touched {
            if let Some(Some(session)) = self.sessions.get_mut(ordinal as usize) {
                session.docs.retain(|doc| self.docs.get(*doc as usize).is_some_and(|doc| doc.session != NONE));
            }
        }
    }

    /// Gives the texts new numbers: `kept` has the old number of each that is kept, in order, and `numbers` the new one
    /// of each old one.
    pub(super) fn renumber(&mut self, kept: &[u32], numbers: &[u32]) {
        let new = |old: u32| numbers.get(old as usize).copied().unwrap_or(NONE);
        for (at, old) in kept.iter().enumerate() {
            self.docs.swap(at, *old as usize);
            self.lengths.swap(at, *old as usize);
            self.beside[at] = self.beside[*old as usize].map(new);
        }
        self.docs.truncate(kept.len());
        self.docs.shrink_to_fit();
        self.lengths.truncate(kept.len());
        self.lengths.shrink_to_fit();
        self.beside.truncate(kept.len());
        self.beside.shrink_to_fit();
        for session in self.sessions.iter_mut().flatten() {
            session.docs.iter_mut().for_each(|doc| *doc = new(*doc));
        }
    }

    /// Removes a session whose texts are removed already.
    pub(super) fn remove_session(&mut self, id: SessionId) {
        if let Some(slot) = self.ordinals.remove(&id).and_then(|ordinal| self.sessions.get_mut(ordinal as usize)) {
            *slot = None;
        }
    }
}
