//! Bodies over REST that are stored as they come. One that is lost or comes too slowly keeps no place, and nothing of it
//! stays: nobody can continue it.

use std::{fs, io::Write as _, net::TcpStream, path::Path};

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

/// Begins a request whose body is announced, and sends this much of it.
fn begin(server: &Server, path: &str, announced: usize, body: &str) -> TcpStream {
    let mut stream = server.connect();
    let headers = server.headers_with_token(&[]);
    write!(stream, "POST {path} HTTP/1.1\r\n{headers}content-length: {announced}\r\n\r\n{body}").unwrap();
    stream
}

/// Sixteen of them shut uploads for all.
#[test]
fn bodies_that_come_byte_by_byte_are_ended_and_leave_their_places() {
    let server = Server::start(&[("MEERKAT_SERVE__HEADER_TIMEOUT_MS", "2000")]);
    let uploads = format!("/v1/sessions/{}/blobs", server.session());
    // Of an import, so much comes at once that it takes its place.
    let begun = "x".repeat(1_200_000);
    for (path, places) in [(uploads.as_str(), 16), ("/v1/bundles", 4)] {
        let slow: Vec<_> = (0..places).map(|_| begin(&server, path, 100_000_000, &begun)).collect();
        until("each is answered, although its next byte always comes", || {
            let goes_on = |mut stream: &TcpStream| {
                stream.set_nonblocking(true).unwrap();
                let is_answered = stream.peek(&mut [0]).is_ok();
                stream.set_nonblocking(false).unwrap();
                !is_answered && stream.write_all(b"x").is_ok()
            };
            slow.iter().filter(|stream| goes_on(stream)).count() == 0
        });
        for stream in slow {
            assert_eq!(read(stream).refusal(), refusal(400, "INVALID_REQUEST"), "{path}");
        }
        until("their places are free", || server.send_with_token("POST", path, &[], "whole").status != 429);
    }
}

#[test]
fn an_upload_that_a_session_has_no_room_for_is_refused_before_its_body_comes() {
    let server = Server::start(&[("MEERKAT_SERVE__HEADER_TIMEOUT_MS", "600000")]);
    let path = format!("/v1/sessions/{}/blobs", server.session());
    for upload in 100..164 {
        assert_eq!(server.send_with_token("POST", &path, &[], &upload.to_string()).status, 200);
    }
    assert_eq!(read(begin(&server, &path, 4, "")).refusal(), refusal(429, "QUEUE_FULL"));
}
