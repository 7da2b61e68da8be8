//! Tests of what needs no server.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::door::Door;
use super::ring::Ring;
use super::session::Session;
use crate::clock::SystemClock;
use crate::device::MemoryDevice;
use crate::error::Error;
use crate::files::{CopyOptions, Node, import_file, import_into};
use crate::format::inode::FileType;
use crate::units::InodeNo;
use crate::vfs::errno;
use crate::vfs::types::Attr;
use crate::wire::{
    self, Answer, Fault, Found, HEADER_BYTES, Handle, LEASE, Memory, Outcome, PATHS_MAX, Query,
    REQUEST_BYTES_MAX, Reply, Request, Step,
};
use crate::{mkfs, open};

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
    assert_eq!(ring.take(50, 6), Some(0), "it begins again when no range is in use");
    ring.settle(6);
    assert_eq!(ring.take(50, 7), Some(0));
}

/// A connection with a server that has sent these answers, and has gone. The program has asked at this time.
fn answered_by(answers: &[Answer], asked: Instant) -> Connection {
    let (stream, mut server) = UnixStream::pair().expect("made");
    for answer in answers {
        server.write_all(&answer.encode()).expect("sent");
    }
    stream.set_nonblocking(true).expect("set");
    let door = Door::asked_at(File::open("/").expect("opened").into(), asked);
    Connection::new(door, stream).expect("made")
}

/// Regression: files that the server had made were reported as failed.
#[test]
fn calls_that_were_settled_before_the_end_have_been_made() {
    // Sending fails in the first case; in the second, asking again, since "/" is no mount of a volume.
    for asked in [Some(Instant::now()), Instant::now().checked_sub(LEASE)] {
        are_settled(asked.expect("the machine has run for longer"));
    }
}

fn are_settled(asked: Instant) {
    let fault = Fault::from(&Error::TooManyLinks);
    let answers = [Answer::PutFailed { call: 2, fault }, Answer::Settled { calls: 2 }];
    let mut connection = answered_by(&answers, asked);
    for call in 1..=3 {
        let begun = connection.begin(&removal());
        assert_eq!(begun.expect("noted"), call);
    }
    assert!(matches!(connection.finish(3), Err(Error::Detached(_))));
    connection.finish(1).expect("it was made");
    assert!(matches!(connection.finish(2), Err(Error::TooManyLinks)), "its own error");
    assert!(matches!(connection.finish(3), Err(Error::Detached(_))), "it may not have been made");
    let error = connection.begin(&removal()).expect_err("it has ended");
    assert!(error.is_final() && errno(&error) > 0, "{error}");
}

/// Carries out no request, but answers each as if it had. Returns the requests.
fn pretend(mut stream: UnixStream, attr: Attr) -> Vec<Request> {
    let (mut requests, mut head) = (Vec::new(), [0; HEADER_BYTES]);
    while stream.read_exact(&mut head).is_ok() {
        let (len, kind) = wire::header(head, REQUEST_BYTES_MAX).expect("a header");
        let mut body = vec![0; len];
        stream.read_exact(&mut body).expect("received");
        let request = Request::decode(kind, &body).expect("a request");
        let reply = match request {
            Request::Forget { .. } => None,
            Request::Make { .. } | Request::Lookup { .. } => Some(Reply::Attr(attr)),
            _ => Some(Reply::Done),
        };
        requests.push(request);
        let settled = Answer::Settled { calls: requests.len() as u64 };
        for answer in reply.map(Answer::Reply).into_iter().chain([settled]) {
            // The program does not wait for what it has forgotten.
            let _ = stream.write_all(&answer.encode());
        }
    }
    requests
}

/// Regression: the name was looked up again, so each such file took two handles, and another program could
/// put another file there meanwhile.
#[test]
fn a_file_with_several_names_takes_one_handle() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&device, &Default::default()).expect("made");
    let volume = open(device, Arc::new(SystemClock), Default::default()).expect("opened");
    let root = volume.attr(InodeNo::ROOT).expect("read");
    let file = Attr { file_type: FileType::Regular, ..root };

    let scratch = tempfile::tempdir().expect("made");
    let source = scratch.path().join("file");
    fs::write(&source, "contents").expect("written");
    fs::hard_link(&source, scratch.path().join("other name")).expect("linked");

    let (stream, server) = UnixStream::pair().expect("made");
    stream.set_nonblocking(true).expect("set");
    let server = thread::spawn(move || pretend(server, file));
    let door = Door::asked_at(File::open("/").expect("opened").into(), Instant::now());
    let session = Session::over(Connection::new(door, stream).expect("made"), root);
    let options = CopyOptions { xattrs: false, ..CopyOptions::default() };
    let dir = Node::remote(session.root());
    let summary = import_file(&source, &dir, b"copy", &options, &()).expect("copied");
    assert_eq!((summary.files, summary.failures), (1, 0));
    drop((dir, session));
    let requests = server.join().expect("it ended");
    let gives_handle =
        |request: &&Request| matches!(request, Request::Make { .. } | Request::Lookup { .. });
    assert_eq!(requests.iter().filter(gives_handle).count(), 1, "{requests:?}");
}

/// A request that changes the volume, for which the program must have asked.
fn removal() -> Request {
    Request::Unlink { dir: Handle::ROOT, name: b"f".to_vec() }
}

/// A session without a server, and the server's side of its connection.
fn session_alone() -> (Arc<Session>, UnixStream) {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&device, &Default::default()).expect("made");
    let volume = open(device, Arc::new(SystemClock), Default::default()).expect("opened");
    let root = volume.attr(InodeNo::ROOT).expect("read");
    let (stream, server) = UnixStream::pair().expect("made");
    stream.set_nonblocking(true).expect("set");
    server.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let door = Door::asked_at(File::open("/").expect("opened").into(), Instant::now());
    (Session::over(Connection::new(door, stream).expect("made"), root), server)
}

/// The next requests of a program that waits for no answer between them.
fn receive(mut server: &UnixStream, count: usize) -> Vec<Request> {
    let request = |_| {
        let mut head = [0; HEADER_BYTES];
        server.read_exact(&mut head).expect("received in time");
        let (len, kind) = wire::header(head, REQUEST_BYTES_MAX).expect("a header");
        let mut body = vec![0; len];
        server.read_exact(&mut body).expect("received");
        Request::decode(kind, &body).expect("a request")
    };
    (0..count).map(request).collect()
}

#[test]
fn steps_of_a_walk_are_requested_before_the_last_ones_have_arrived() {
    let (session, server) = session_alone();
    let (dir, attr) = session.root();
    let server = thread::spawn(move || {
        let send = |replies: Vec<Reply>| {
            let answers = replies.into_iter().flat_map(|reply| Answer::Reply(reply).encode());
            (&server).write_all(&answers.collect::<Vec<u8>>()).expect("sent");
        };
        let begun = receive(&server, 1);
        assert!(matches!(begun[..], [Request::Query(Query::Descend { .. })]), "{begun:?}");
        send(vec![Reply::Done]);
        let requests = receive(&server, 2);
        assert!(matches!(requests[1], Request::Query(Query::Continue { .. })), "{requests:?}");
        let found = Found::Entry { name: b"name".to_vec(), attr };
        send(vec![Reply::Steps(vec![Step { depth: 1, found: found.clone() }], false)]);
        receive(&server, 1);
        // Together, since the program closes the session at the last step.
        let last = Reply::Steps(vec![Step { depth: 2, found }], true);
        send(vec![last, Reply::Fault(Fault::from(&Error::Stale))]);
    });
    let mut tree = dir.descend().expect("begun");
    for depth in [1, 2] {
        assert_eq!(tree.next().expect("a step").expect("found").depth, depth);
    }
    assert!(tree.next().is_none() && tree.next().is_none());
    drop(tree);
    session.close();
    server.join().expect("received");
}

/// Regression: the server did nothing while the program took the contents.
#[test]
fn files_are_requested_before_the_last_ones_have_arrived() {
    let (session, mut server) = session_alone();
    let paths: Vec<Vec<u8>> = (0..100).map(|n| format!("{n}").into_bytes()).collect();
    let server = thread::spawn(move || {
        for request in receive(&server, 2) {
            let Request::Query(Query::ReadMany { paths, contents, .. }) = request else {
                panic!("{request:?}");
            };
            let empty = Outcome::Contents(Memory { offset: contents.offset, len: 0 });
            let outcomes = (0..paths.len()).map(|at| (at as u16, empty.clone())).collect();
            server.write_all(&Answer::Reply(Reply::Many(outcomes)).encode()).expect("sent");
        }
    });
    let files = Cell::new(0);
    let too_large = session.root().0.read_many(&paths, &|_, read| {
        assert_eq!(read.expect("read"), b"");
        files.set(files.get() + 1);
    });
    assert_eq!((files.get(), too_large.len()), (paths.len(), 0));
    server.join().expect("received");
}

/// Regression: the session continued as long as a child of the program had the socket.
#[test]
fn the_end_of_a_session_ends_the_connection_that_a_child_has_as_well() {
    for is_closed in [true, false] {
        let (session, mut server) = session_alone();
        let of_child = session.stream_of_child();
        if is_closed {
            session.close();
        }
        drop(session);
        assert_eq!(server.read(&mut [0]).expect("the end"), 0);
        drop(of_child);
    }
}

/// Regression: an idle program kept the space of a file that it had closed and others had removed.
#[test]
fn a_regular_file_is_forgotten_at_once() {
    let (session, server) = session_alone();
    let attr = Attr { file_type: FileType::Regular, ..session.root().1 };
    let requests = thread::spawn(move || {
        (&server).write_all(&Answer::Reply(Reply::Attr(attr)).encode()).expect("sent");
        receive(&server, 2)
    });
    let (dir, _) = session.root();
    drop(dir.lookup(b"file").expect("found"));
    let requests = requests.join().expect("received");
    assert!(matches!(requests[1], Request::Forget { .. }), "{requests:?}");
}

/// Regression: all paths of a request that had failed were sent again for each of its files.
#[test]
fn files_of_a_request_that_fails_are_requested_one_by_one() {
    let (session, server) = session_alone();
    let attr = session.root().1;
    // It answers with something else than outcomes.
    let server = thread::spawn(move || pretend(server, attr));
    let paths: Vec<Vec<u8>> = (0..3000).map(|number| format!("{number}").into_bytes()).collect();
    let failures = Cell::new(0);
    let too_large = session.root().0.read_many(&paths, &|_, read| {
        assert!(read.is_err());
        failures.set(failures.get() + 1);
    });
    assert_eq!((failures.get(), too_large.len()), (3000, 0));
    session.close();
    drop(session);
    let named = |request: &Request| match request {
        Request::Query(Query::ReadMany { paths, .. }) => paths.len(),
        _ => 0,
    };
    let sent: usize = server.join().expect("it ended").iter().map(named).sum();
    assert!((3000..3000 + 2 * PATHS_MAX).contains(&sent), "{sent} paths");
}

/// Regression: each request named 1,024 files, and its reply had room for a few.
#[test]
fn requests_name_about_as_many_files_as_their_replies_have_room_for() {
    let (session, server) = session_alone();
    let server = thread::spawn(move || answer_some(&server));
    let paths: Vec<Vec<u8>> = (0..3000).map(|number| format!("{number}").into_bytes()).collect();
    let files = Cell::new(0);
    session.root().0.read_many(&paths, &|_, read| {
        read.expect("read");
        files.set(files.get() + 1);
    });
    assert_eq!(files.get(), 3000);
    session.close();
    let (named, requests) = server.join().expect("it ended");
    // 1,500 with room for 15 files each, in 100 requests; and 1,500 with room for any number.
    assert!((3000..3600).contains(&named), "{named} paths were sent");
    assert!((100..130).contains(&requests), "{requests} requests");
}

/// Answers for 15 files of each request, and for all after half of 3,000 files. Returns how many paths were
/// sent, and in how many requests.
fn answer_some(mut server: &UnixStream) -> (usize, usize) {
    let (mut named, mut requests, mut answered) = (0, 0, 0);
    let mut head = [0; HEADER_BYTES];
    while server.read_exact(&mut head).is_ok() {
        let (len, kind) = wire::header(head, REQUEST_BYTES_MAX).expect("a header");
        let mut body = vec![0; len];
        server.read_exact(&mut body).expect("received");
        let request = Request::decode(kind, &body).expect("a request");
        let Request::Query(Query::ReadMany { paths, contents, .. }) = request else {
            panic!("{request:?}");
        };
        (named, requests) = (named + paths.len(), requests + 1);
        let room = if answered < 1500 { 15 } else { PATHS_MAX };
        let taken = paths.len().min(room);
        answered += taken;
        let empty = Outcome::Contents(Memory { offset: contents.offset, len: 0 });
        let outcomes = (0..taken).map(|at| (at as u16, empty.clone())).collect();
        let reply = Answer::Reply(Reply::Many(outcomes));
        let settled = Answer::Settled { calls: requests as u64 };
        server.write_all(&[reply.encode(), settled.encode()].concat()).expect("sent");
    }
    (named, requests)
}

/// Answers the requests for the directory at which a copy begins, and all others together when as many
/// directories are complete: a program that waited for one of them would wait for ever. Returns the others.
fn answer_at_the_end(mut stream: &UnixStream, attr: Attr, directories: usize) -> Vec<Request> {
    let (mut requests, mut answers, mut calls, mut complete) = (Vec::new(), Vec::new(), 0, 0);
    let mut head = [0; HEADER_BYTES];
    while stream.read_exact(&mut head).is_ok() {
        let (len, kind) = wire::header(head, REQUEST_BYTES_MAX).expect("a header");
        let mut body = vec![0; len];
        stream.read_exact(&mut body).expect("received");
        let request = Request::decode(kind, &body).expect("a request");
        calls += 1;
        let is_first = matches!(request, Request::Query(_) | Request::Attr { .. });
        complete += usize::from(matches!(request, Request::Complete { .. }));
        let reply = match request {
            Request::Complete { .. } => Reply::Done,
            _ => Reply::Attr(attr),
        };
        if request.is_answered() {
            answers.extend(Answer::Reply(reply).encode());
        }
        if !is_first {
            requests.push(request);
        }
        if is_first || complete >= directories {
            answers.extend(Answer::Settled { calls }.encode());
            // At the end, the program does not wait for what it has forgotten.
            let _ = stream.write_all(&std::mem::take(&mut answers));
        }
    }
    requests
}

/// Regression: the copy waited for three answers for each directory.
#[test]
fn a_copy_does_not_wait_for_each_directory() {
    const DIRECTORIES: usize = 20;
    let scratch = tempfile::tempdir().expect("made");
    for number in 0..DIRECTORIES {
        let dir = scratch.path().join(format!("{}/{number}", number % 4));
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("file"), "contents").expect("written");
    }
    let (session, server) = session_alone();
    let attr = session.root().1;
    let server = thread::spawn(move || answer_at_the_end(&server, attr, DIRECTORIES + 5));
    let options = CopyOptions { threads: Some(std::num::NonZeroUsize::MIN), ..Default::default() };
    let root = Node::remote(session.root());
    let summary = import_into(&root, scratch.path(), b"", &options, &()).expect("copied");
    let made = (summary.directories, summary.files, summary.failures);
    assert_eq!(made, (DIRECTORIES as u64 + 5, DIRECTORIES as u64, 0));
    drop(root);
    session.close();
    let requests = server.join().expect("it ended");
    let count =
        |is_it: fn(&Request) -> bool| requests.iter().filter(|request| is_it(request)).count();
    let made = count(|request| matches!(request, Request::MakeDir { .. }));
    assert_eq!(made, DIRECTORIES + 4, "{requests:?}");
    assert_eq!(count(|request| matches!(request, Request::Put(_))), DIRECTORIES);
}
