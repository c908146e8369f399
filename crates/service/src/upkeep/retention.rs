//! Choice of sessions to delete: those that have not changed for too long, and the oldest if there are too many or they
//! take too much room. It only decides; sessions that run or wait always stay.

use crate::{
    clock::Timestamp,
    options::RetentionOptions,
    service::{RetentionItem, RetentionReason, SessionState, SessionSummary},
};

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Chooses from these sessions, each with its bytes; the least recently changed first.
pub(crate) fn doomed(
    mut sessions: Vec<(SessionSummary, u64)>,
    options: &RetentionOptions,
    now: Timestamp,
) -> Vec<RetentionItem> {
    sessions.sort_by_key(|(session, _)| (session.updated_at, session.session_id));
    let mut bytes_left = sessions.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    let mut left = sessions.len() as u64;
    let mut doomed = Vec::new();
    for (session, bytes) in sessions {
        let age_ms = u64::try_from(now.as_millis().saturating_sub(session.updated_at.as_millis())).unwrap_or(0);
        let is_over = |limit: u64, value: u64| limit > 0 && value > limit;
        let reason = match () {
            () if !matches!(session.state, SessionState::Idle) => continue,
            () if is_over(options.max_age_days.saturating_mul(DAY_MS), age_ms) => RetentionReason::Age,
            () if is_over(options.max_sessions, left) => RetentionReason::Count,
            () if is_over(options.max_bytes, bytes_left) => RetentionReason::Bytes,
            () => continue,
        };
        (left, bytes_left) = (left - 1, bytes_left - bytes);
        let SessionSummary { session_id, title, updated_at, .. } = session;
        doomed.push(RetentionItem { session_id, title, updated_at, bytes, reason });
    }
    doomed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Retain;
    use crate::{clock::SeededIds, ids::SessionId};

    /// Makes the n-th session, which changed so many days ago.
    fn session(n: u8, days: u64, state: SessionState) -> SessionSummary {
        let time = Timestamp::from_millis(SeededIds::wall_time().as_millis() - (days * DAY_MS) as i64);
        SessionSummary {
            session_id: SessionId::from_uuid(uuid::Uuid::from_u128(u128::from(n))),
            title: Some(format!("number {n}")),
            labels: Default::default(),
            model: "scripted".to_owned(),
            state,
            archived: n.is_multiple_of(2),
            created_at: time,
            updated_at: time,
            turn_count: 1,
            message_count: 2,
            last_seq: 4,
            usage: Default::default(),
            cost: None,
            forked_from: None,
            last_error: None,
            parent: None,
        }
    }

    /// Five sessions of 100 bytes each, which changed 1, 2, 3, 4 and 5 days ago. The one of four days ago is busy.
    #[track_caller]
    fn check(max_age_days: u64, max_bytes: u64, max_sessions: u64, expected: &[(u8, RetentionReason)]) {
        let states = [SessionState::Running, SessionState::Queued, SessionState::Waiting];
        for busy in states {
            let state = |n| if n == 4 { busy } else { SessionState::Idle };
            let sessions = [2, 5, 1, 4, 3].map(|n| (session(n, u64::from(n), state(n)), 100));
            let options = RetentionOptions { max_age_days, max_bytes, max_sessions };
            let doomed = doomed(sessions.to_vec(), &options, SeededIds::wall_time());
            let expected = expected.iter().map(|&(n, reason)| {
                let SessionSummary { session_id, title, updated_at, .. } = session(n, u64::from(n), state(n));
                RetentionItem { session_id, title, updated_at, bytes: 100, reason }
            });
            assert_eq!(doomed, expected.collect::<Vec<_>>(), "{options:?}");
        }
    }

    #[test]
    fn the_oldest_go_and_what_is_busy_stays() {
        use RetentionReason::{Age, Bytes, Count};
        check(0, 0, 0, &[]);
        check(5, 0, 0, &[]);
        check(3, 0, 0, &[(5, Age)]);
        check(1, 0, 0, &[(5, Age), (3, Age), (2, Age)]);
        check(0, 0, 5, &[]);
        check(0, 0, 3, &[(5, Count), (3, Count)]);
        check(0, 0, 1, &[(5, Count), (3, Count), (2, Count), (1, Count)]);
        check(0, 500, 0, &[]);
        check(0, 499, 0, &[(5, Bytes)]);
        check(0, 201, 0, &[(5, Bytes), (3, Bytes), (2, Bytes)]);
        check(0, 1, 0, &[(5, Bytes), (3, Bytes), (2, Bytes), (1, Bytes)]);
        check(4, 350, 4, &[(5, Age), (3, Bytes)]);
        check(u64::MAX, u64::MAX, u64::MAX, &[]);
    }

    #[test]
    fn a_request_wins_over_the_configuration() {
        let configured = RetentionOptions { max_age_days: 30, max_bytes: 1000, max_sessions: 10 };
        let request = Retain { max_age_days: Some(0), max_sessions: Some(5), ..Retain::default() };
        let options = RetentionOptions { max_age_days: 0, max_bytes: 1000, max_sessions: 5 };
        assert_eq!(request.limits(&configured), options);
        assert_eq!((options.is_off(), RetentionOptions::default().is_off()), (false, true));
    }
}
