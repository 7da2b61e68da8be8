//! Tests of what needs no server.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;

use super::connection::Connection;
use super::door::Door;
use super::ring::Ring;
use crate::error::Error;
use crate::vfs::errno;
use crate::wire::{Answer, Fault, Handle, Request};

#[test]
fn a_range_of_the_ring_is_taken_again_after_its_call() {
    let mut ring = Ring::new(100);
    assert_eq!(ring.take(40, 1), Some(0));
    assert_eq!(ring.take(40, 2), Some(40));
    assert_eq!(ring.take(30, 3), None, "the rest is too short, and the beginning is in use");
    assert_eq!(ring.first_call(), Some(1));
    ring.settle(1);
    assert_eq!(ring.take(30, 3), Some(0));
    assert_eq!(ring.take(0, 4), Some(0), "nothing needs no range");
    assert_eq!(ring.take(20, 5), None);
    ring.settle(3);
    assert_eq!(ring.first_call(), None);
    assert_eq!(ring.take(50, 6), Some(30));
}

/// A connection with a server that has sent these answers, and has gone.
fn answered_by(answers: &[Answer]) -> Connection {
    let (stream, mut server) = UnixStream::pair().expect("made");
    for answer in answers {
        server.write_all(&answer.encode()).expect("sent");
    }
    stream.set_nonblocking(true).expect("set");
    let door = Door::unasked(File::open("/").expect("opened").into());
    Connection::new(door, stream).expect("made")
}

/// Regression: files that the server had made were reported as failed.
#[test]
fn calls_that_were_settled_before_the_end_have_been_made() {
    let fault = Fault::from(&Error::TooManyLinks);
    let answers = [Answer::PutFailed { call: 2, fault }, Answer::Settled { calls: 2 }];
    let mut connection = answered_by(&answers);
    for call in 1..=3 {
        let begun = connection.begin(&Request::Forget { node: Handle(1) });
        assert_eq!(begun.expect("noted"), call);
    }
    assert!(matches!(connection.finish(3), Err(Error::Detached(_))));
    connection.finish(1).expect("it was made");
    assert!(matches!(connection.finish(2), Err(Error::TooManyLinks)), "its own error");
    assert!(matches!(connection.finish(3), Err(Error::Detached(_))), "it may not have been made");
    let error = connection.begin(&Request::Forget { node: Handle(1) }).expect_err("it has ended");
    assert!(error.is_final() && errno(&error) > 0, "{error}");
}
