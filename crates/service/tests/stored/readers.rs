//! How long readers wait.

use meerkat_service::service::{FetchReader, WaitReader};

use crate::stored::Place;

#[test]
fn no_poll_waits_longer_than_the_service_does() {
    let mut place = Place::new();
    place.options.limits.wait_ms = 1;
    place.process(true, async |process| {
        process.register("r").await;
        let fetch = FetchReader { reader: "r".to_owned(), limit: None, wait_ms: u64::MAX };
        assert_eq!(process.service.fetch_reader(fetch).await.unwrap().items, []);
        let wait = WaitReader { reader: "r".to_owned(), session_id: process.create().await, seq: 1, wait_ms: u64::MAX };
        assert_eq!(process.service.wait_reader(wait).await.unwrap().seq, 0);
    });
}
