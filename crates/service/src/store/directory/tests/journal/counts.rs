//! What each thing costs, exactly.

use super::common::{Rig, SMALL, long, of, session};
use crate::{
    session::{event::Record, tests::pinned},
    store::EventStore as _,
    store::directory::journal::simulated::{Counts, SimulatedDisk},
    wire::encode_event,
};

fn counts(writes: u64, syncs: u64, dir_syncs: u64, names: u64) -> Counts {
    Counts { writes, syncs, dir_syncs, names, bytes: 0 }
}

fn took(rig: &Rig) -> Counts {
    while rig.steps.step() {}
    Counts { bytes: 0, ..rig.disk.take_counts() }
}

/// A record whose line is as long as any other's, however long its seq is: it says its seq twice.
fn even(seq: u64, bytes: usize) -> Record {
    long(session(1), seq, bytes - 2 * seq.to_string().len())
}

#[test]
fn the_ten_thousandth_turn_writes_and_syncs_to_the_byte_what_the_tenth_did() {
    let rig = Rig::new();
    let lease = rig.filled(session(1), 1);
    took(&rig);
    let turn = |n: u64| {
        let seq = 3 * n - 1;
        rig.append(&lease, &[even(seq, 500)]).unwrap();
        rig.append(&lease, &[even(seq + 1, 1000), even(seq + 2, 200)]).unwrap();
        while rig.steps.step() {}
        rig.disk.take_counts()
    };
    let counted: Vec<Counts> = (1..=10_000).map(turn).collect();
    let tenth = counted[9];
    assert_eq!(Counts { bytes: 0, ..tenth }, counts(2, 2, 0, 0));
    assert_eq!(counted[9_999], tenth);
    // The others, too, but for those that end a segment or begin one, and those cost that alone.
    let others: Vec<Counts> = counted.into_iter().filter(|turn| *turn != tenth).collect();
    let rolls = 10_000 * tenth.bytes / (8 * 1024 * 1024);
    assert!(rolls > 1 && others.len() as u64 <= 2 * rolls);
    let more = |of: fn(&Counts) -> u64| others.iter().map(|turn| of(turn) - of(&tenth)).sum::<u64>();
    let all: [fn(&Counts) -> u64; 5] = [|it| it.writes, |it| it.syncs, |it| it.dir_syncs, |it| it.names, |it| it.bytes];
    let (footer, header) = (48, 128);
    assert_eq!(all.map(more), [rolls, rolls, rolls, rolls, rolls * (footer + header)]);
    rig.append(&lease, &[]).unwrap();
    assert_eq!(took(&rig), Counts::default());
}

#[test]
fn what_gathers_while_a_sync_runs_is_one_batch() {
    let rig = Rig::new();
    let lease = rig.filled(session(1), 1);
    took(&rig);
    let tickets: Vec<_> = (2..=9).map(|seq| rig.store.stage(&lease, &[of(session(1), seq)]).unwrap()).collect();
    for (ticket, seq) in tickets.into_iter().zip(2..) {
        assert_eq!(rig.wait(ticket), Ok(seq));
    }
    assert_eq!(took(&rig), counts(1, 1, 0, 0));
}

#[test]
fn an_activation_adds_one_sync_and_a_release_adds_none() {
    let rig = Rig::new();
    let lease = rig.filled(session(1), 1);
    took(&rig);
    rig.release(lease);
    // The mark's name goes.
    assert_eq!(took(&rig), counts(0, 0, 0, 1));
    let rig = rig.killed();
    took(&rig);
    let lease = rig.lease(session(1)).unwrap();
    assert_eq!(took(&rig), counts(0, 0, 0, 0));
    rig.append(&lease, &[of(session(1), 2)]).unwrap();
    // Beside the write and its sync the mark: a file that is moved, and the sync of its folder.
    assert_eq!(took(&rig), counts(1, 1, 1, 2));
}

#[test]
fn a_create_makes_a_folder_and_a_file_and_moves_it() {
    let rig = Rig::new();
    took(&rig);
    let lease = rig.lease(session(1)).unwrap();
    rig.append(&lease, &[of(session(1), 1)]).unwrap();
    // Beside it the mark: a file that is moved, and the sync of its folder.
    assert_eq!(took(&rig), counts(1, 1, 2 + 1, 3 + 2));
}

#[test]
fn a_rollover_costs_a_sync_and_a_name_after_the_answer_and_none_before_the_next() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = rig.filled(session(1), 1);
    took(&rig);
    rig.append(&lease, &[long(session(1), 2, 9000)]).unwrap();
    assert_eq!(took(&rig), counts(1 + 1, 1 + 1, 1, 1));
    rig.append(&lease, &[of(session(1), 3)]).unwrap();
    assert_eq!(took(&rig), counts(1, 1, 0, 0));
}

#[test]
fn a_first_blob_makes_its_folder_and_the_next_does_not() {
    let rig = Rig::new();
    rig.filled(session(1), 1);
    took(&rig);
    rig.blob(session(1), b"first").unwrap();
    // The file and its folder are made, then the file is moved.
    assert_eq!(took(&rig), counts(1, 1, 2, 3));
    rig.blob(session(1), b"second").unwrap();
    // That the folder is there is found out by asking to make it.
    assert_eq!(took(&rig), counts(1, 1, 1, 3));
}

#[test]
fn a_delete_is_one_name_and_both_its_folders() {
    let rig = Rig::new();
    rig.filled(session(1), 1);
    took(&rig);
    rig.steps.drive(rig.store.delete(session(1))).unwrap();
    assert_eq!(Counts { bytes: 0, ..rig.disk.take_counts() }, counts(0, 0, 2, 1));
    assert_eq!(took(&rig), counts(0, 0, 0, 1));
}

#[test]
fn a_text_turn_takes_no_more_than_a_tenth_more_than_its_events() {
    let rig = Rig::new();
    let lease = rig.filled(session(1), 1);
    rig.disk.take_counts();
    // 512 bytes in, 2 KiB out, and the turn's end.
    let turn: Vec<_> = [512, 2048, 200]
        .into_iter()
        .zip(2..)
        .map(|(bytes, seq)| Record { session_id: session(1), ..pinned(seq, &"x".repeat(bytes)) })
        .collect();
    rig.append(&lease, &turn[..1]).unwrap();
    rig.append(&lease, &turn[1..]).unwrap();
    let encoded: usize = turn.iter().map(|record| encode_event(record).unwrap().len()).sum();
    let written = rig.disk.take_counts().bytes;
    assert!(written * 10 <= encoded as u64 * 11, "{written} for {encoded}");
}
