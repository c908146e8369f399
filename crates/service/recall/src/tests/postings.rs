//! Postings come back from their blocks as they were put.

use std::collections::BTreeMap;

use redb::{Database, ReadableDatabase as _, backends::InMemoryBackend};

use super::super::{
    columns::Columns,
    postings::{BlockWriter, Found, Posting, Segment, Terms},
    tables::{Doc, POSTINGS, SessionRow},
};

fn columns(docs: u32) -> Columns {
    let mut columns = Columns::default();
    columns.set_session(0, SessionRow::with(None, &super::intake(1, Vec::new()), false));
    for number in 0..docs {
        let seq = u64::from(number);
        let doc = Doc {
            session: 0,
            part: 0,
            seq,
            to_seq: seq,
            time_ms: 0,
            role: 0,
            source: 0,
            text: seq,
            words: 1,
            asks: false,
        };
        columns.push(number, doc);
    }
    columns
}

#[test]
fn every_term_comes_back_also_one_of_many_blocks() {
    const DOCS: u32 = 20_000;
    let columns = columns(DOCS);
    let strides = [(3, 1), (4, 7), (900, 2), (901, 19_999), (7_000, 3), (u32::MAX, 1)];
    let many = (10_000..12_000).map(|term| (term, 997));
    let terms: BTreeMap<u32, Vec<Posting>> = strides
        .into_iter()
        .chain(many)
        .map(|(term, stride)| {
            let docs = (0..DOCS).filter(|doc| doc % stride == term % stride);
            (term, docs.map(|doc| Posting { doc, count: doc % 5 + 1 }).collect())
        })
        .collect();
    let mut writer = BlockWriter::new(0);
    for (term, postings) in &terms {
        writer.term(*term, postings);
    }
    writer.close();

    let database = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut table = transaction.open_table(POSTINGS).unwrap();
        for ((first, part), block) in &writer.done {
            assert!(block.len() <= 4_000);
            table.insert((5, *first, *part), &**block).unwrap();
            table.insert((6, *first, *part), &b"\xff\xff\xff\xff\xff\xff"[..]).unwrap();
        }
    }
    transaction.commit().unwrap();
    let table = database.begin_read().unwrap().open_table(POSTINGS).unwrap();
    let segment = Segment { number: 5, first_doc: 0, end_doc: DOCS, live_docs: DOCS };
    for (term, expected) in &terms {
        let found = Found::look_up(&table, &segment, *term).unwrap().unwrap();
        let mut postings = Vec::new();
        found.newest(&columns, u64::MAX, &mut postings);
        postings.sort_unstable_by_key(|posting| posting.doc);
        assert_eq!(postings, *expected, "{term}");
        let mut newest = Vec::new();
        found.newest(&columns, 1, &mut newest);
        assert_eq!(newest.last(), expected.last(), "{term}");
        assert_eq!(found.count as usize, expected.len());
    }
    for absent in [0, 5, 902, 9_999, 12_001, u32::MAX - 1] {
        assert!(Found::look_up(&table, &segment, absent).unwrap().is_none());
    }
    // Invalid blocks.
    let noise = Segment { number: 6, ..segment };
    assert!(terms.keys().all(|term| Found::look_up(&table, &noise, *term).unwrap().is_none()));

    let mut all = Terms::of(&table, &segment, &columns).unwrap();
    let mut seen = BTreeMap::new();
    while let Some(term) = all.next_term() {
        let mut postings = Vec::new();
        all.take(term, &mut postings).unwrap();
        seen.insert(term, postings);
    }
    assert!(seen == terms);
}
