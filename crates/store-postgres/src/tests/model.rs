//! A model of the lease protocol, small enough to look at every state: two nodes, one session, messages that are on their
//! way for any time, and leases that end at any time. With the fences nothing goes wrong; without one of them, the trap
//! that it keeps closed is found.

use std::collections::{BTreeSet, HashSet, VecDeque};

/// Longest journal that is looked at.
const RECORDS: usize = 2;
/// Most messages that are on their way at once.
const MESSAGES: usize = 2;

/// Fences of the protocol.
#[derive(Clone, Copy)]
struct Fences {
    /// A renewal is for the node's own row.
    renewal: bool,
    /// What is given back must be of the newest epoch.
    release: bool,
    /// An append must be of the newest epoch.
    epoch: bool,
    /// An append must follow the tail.
    tail: bool,
}

/// Harm that a stalled owner does to its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Harm {
    Extends,
    Strips,
    Overwrites,
}

/// What a node has sent and the database has not done yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Renew { node: usize },
    Release { epoch: u8 },
    Append { epoch: u8, after: usize },
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// The session's row: its owner, its epoch, and the epoch that wrote each record.
    owner: Option<usize>,
    epoch: u8,
    records: Vec<u8>,
    /// True while a node's row has not ended.
    is_alive: [bool; 2],
    /// Epoch of the lease that each node believes to have.
    believes: [Option<u8>; 2],
    messages: BTreeSet<Message>,
}

impl State {
    /// Every state that can come next.
    fn next(&self, fences: Fences, epochs: u8) -> Vec<Result<Self, Harm>> {
        let mut next = Vec::new();
        for node in 0..2 {
            let mut ends = self.clone();
            ends.is_alive[node] = false;
            next.push(Ok(ends));
            if let Some(epoch) = self.believes[node] {
                let append = Message::Append { epoch, after: self.records.len() };
                for message in [Message::Renew { node }, Message::Release { epoch }, append] {
                    let mut sends = self.clone();
                    sends.messages.insert(message);
                    if let Message::Release { .. } = message {
                        sends.believes[node] = None;
                    }
                    next.push(Ok(sends));
                }
            }
            let is_free = self.owner.is_none_or(|owner| owner == node || !self.is_alive[owner]);
            if is_free && self.epoch < epochs {
                let mut leases = self.clone();
                (leases.owner, leases.epoch) = (Some(node), self.epoch + 1);
                (leases.believes[node], leases.is_alive[node]) = (Some(leases.epoch), true);
                next.push(Ok(leases));
            }
        }
        for message in &self.messages {
            let mut done = self.clone();
            let harm = done.perform(*message, fences);
            // If the answer is lost, it is sent again.
            next.push(harm.map(|()| done.clone()));
            done.messages.remove(message);
            next.push(harm.map(|()| done));
        }
        next
    }

    /// Does what a message asks for, as the statements do. What harm it does shows in the state alone.
    fn perform(&mut self, message: Message, fences: Fences) -> Result<(), Harm> {
        match message {
            Message::Renew { node } => {
                // Without the fence whoever renews extends the session's lease, whosever it is.
                let row = if fences.renewal { node } else { self.owner.unwrap_or(node) };
                self.is_alive[row] = true;
                if row == node { Ok(()) } else { Err(Harm::Extends) }
            }
            Message::Release { epoch } if fences.release && self.epoch != epoch => Ok(()),
            Message::Release { .. } => {
                let believes = self.owner.take().and_then(|owner| self.believes[owner]);
                if believes == Some(self.epoch) { Err(Harm::Strips) } else { Ok(()) }
            }
            Message::Append { epoch, after } => {
                let is_refused = fences.epoch && self.epoch != epoch || fences.tail && self.records.len() != after;
                if is_refused || after >= RECORDS {
                    return Ok(());
                }
                let is_in_place = after == self.records.len();
                self.records.truncate(after);
                self.records.push(epoch);
                if is_in_place && epoch == self.epoch { Ok(()) } else { Err(Harm::Overwrites) }
            }
        }
    }

    /// Epochs of records never fall: nobody has written behind a later owner.
    fn is_sound(&self) -> bool {
        self.records.is_sorted()
    }
}

/// Looks at every state up to an epoch; returns the harms that are met, and the number of states.
fn explore(fences: Fences, epochs: u8) -> (BTreeSet<Harm>, usize) {
    let first = State {
        owner: None,
        epoch: 0,
        records: Vec::new(),
        is_alive: [true; 2],
        believes: [None; 2],
        messages: BTreeSet::new(),
    };
    let (mut seen, mut open, mut harms) = (HashSet::from([first.clone()]), VecDeque::from([first]), BTreeSet::new());
    while let Some(state) = open.pop_front() {
        assert!(state.is_sound(), "records of an earlier owner behind those of a later one");
        for next in state.next(fences, epochs) {
            match next {
                Err(harm) => {
                    harms.insert(harm);
                }
                Ok(next) if next.messages.len() <= MESSAGES && !seen.contains(&next) => {
                    seen.insert(next.clone());
                    open.push_back(next);
                }
                Ok(_) => {}
            }
        }
    }
    (harms, seen.len())
}

#[test]
fn each_fence_closes_its_trap_and_all_of_them_close_every_one() {
    let all = Fences { renewal: true, release: true, epoch: true, tail: true };
    let (harms, states) = explore(all, 3);
    assert_eq!(harms, BTreeSet::new());
    assert!(states > 1000, "the model looks at {states} states only");
    for (fences, due) in [
        (Fences { renewal: false, ..all }, Harm::Extends),
        (Fences { release: false, ..all }, Harm::Strips),
        (Fences { epoch: false, ..all }, Harm::Overwrites),
        (Fences { tail: false, ..all }, Harm::Overwrites),
    ] {
        assert_eq!(explore(fences, 2).0, BTreeSet::from([due]));
    }
}
