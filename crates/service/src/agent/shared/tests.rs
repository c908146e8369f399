//! Views while records are made.

use std::sync::Weak;

use super::*;
use crate::session::tests::{created, record, session_id};

/// A follower may have a record before `make` returns; whoever asks for the view then waits, and finds it.
#[test]
fn nobody_reads_a_view_while_records_are_made() {
    let session = Session::begin(&record(1, None, created())).unwrap();
    let shared = Shared::new(&session, Arc::new(LiveHub::new(session_id(), Weak::new())));
    let mut view = View::of(&session);
    Arc::make_mut(&mut view.summary).last_seq = 2;
    let make = || {
        assert!(shared.views.try_lock().is_err(), "the view could be read");
        Ok((view, ()))
    };
    shared.show(make).unwrap();
    assert_eq!(shared.view(2).unwrap().summary.last_seq, 2);
}
