//! Imports over REST whose connection is lost: nobody can continue them, so nothing of them stays.

use std::{fs, io::Write as _, path::Path};

use meerkat_testkit::until;

use crate::drive::server::{Server, read, refusal};

/// More than two pieces of a bundle, and less than three.
const SENT: usize = 2_500_000;

/// Bytes of the unfinished files of a data directory.
fn unfinished(data: &Path) -> u64 {
    let files = fs::read_dir(data.join("new")).unwrap();
    // A file may go while it is looked at.
    files.map(|file| file.unwrap().metadata().map_or(0, |file| file.len())).sum()
}

#[test]
fn imports_that_are_cut_off_leave_nothing_and_keep_no_place() {
    let dir = meerkat_testkit::folder();
    let data = dir.path().join("data");
    // None of them is ended for its pause before all have come so far.
    let patience = ("MEERKAT_SERVE__HEADER_TIMEOUT_MS", "600000");
    let server = Server::start(&[("MEERKAT_DATA_DIR", data.to_str().unwrap()), patience]);
    let headers = server.headers_with_token(&[]).replace("application/json", "application/x-tar");
    let announced = format!("content-length: 100000000\r\n\r\n{}", "x".repeat(SENT));
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{SENT:x}\r\n{}\r\n", "x".repeat(SENT));
    for body in [announced, chunked] {
        // As many as there may be, and then again, for which they must have left their places.
        for _ in 0..2 {
            let cut_off: Vec<_> = (0..4)
                .map(|_| {
                    let mut stream = server.connect();
                    write!(stream, "POST /v1/bundles HTTP/1.1\r\n{headers}{body}").unwrap();
                    stream
                })
                .collect();
            until("two pieces of each are stored", || unfinished(&data) >= 4 * 2_000_000);
            drop(cut_off);
            until("nothing of them is left", || unfinished(&data) == 0);
        }
    }
    // One that is refused in the middle leaves as little.
    let server = Server::start(&[
        ("MEERKAT_DATA_DIR", dir.path().join("other").to_str().unwrap()),
        ("MEERKAT_LIMITS__BUNDLE_BYTES", "2000000"),
    ]);
    let headers = server.headers_with_token(&[]).replace("application/json", "application/x-tar");
    for _ in 0..5 {
        let mut stream = server.connect();
        write!(stream, "POST /v1/bundles HTTP/1.1\r\n{headers}transfer-encoding: chunked\r\n\r\n").unwrap();
        for _ in 0..3 {
            // The refusal comes before all is sent.
            drop(write!(stream, "{:x}\r\n{}\r\n", 700_000, "x".repeat(700_000)));
        }
        assert_eq!(read(stream).refusal(), refusal(413, "PAYLOAD_TOO_LARGE"));
    }
    until("nothing is left", || unfinished(&dir.path().join("other")) == 0);
}

/// A client that sends all before it reads has no other way to learn why it was refused.
#[test]
fn a_body_that_is_far_too_large_is_taken_until_its_client_reads_the_refusal() {
    let server = Server::start(&[]);
    let (right, wrong) =
        (server.headers_with_token(&[]), server.headers_with_token(&[]).replace("Bearer ", "Bearer x"));
    for (headers, expected) in [(right, refusal(413, "PAYLOAD_TOO_LARGE")), (wrong, refusal(401, "UNAUTHENTICATED"))] {
        for _ in 0..3 {
            let mut stream = server.connect();
            write!(stream, "POST /v1/sessions HTTP/1.1\r\n{headers}content-length: 100000000\r\n\r\n").unwrap();
            for _ in 0..100 {
                stream.write_all(&[b' '; 1_000_000]).unwrap();
            }
            assert_eq!(read(stream).refusal(), expected);
        }
    }
}
