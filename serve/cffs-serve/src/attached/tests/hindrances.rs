//! Programs that try to hinder the server and other programs.

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use cffs::wire::{Handle, Kind, Query, Reply, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_socket_linger;

use super::requests::Program;
use super::*;

/// A connection whose closing waits for a minute, since its peer takes no bytes.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    let full = TcpStream::connect(address).expect("connected");
    let (peer, _) = listener.accept().expect("accepted");
    full.set_nonblocking(true).expect("set");
    while (&full).write(&[0; 64 << 10]).is_ok() {}
    full.set_nonblocking(false).expect("set");
    set_socket_linger(&full, Some(Duration::from_secs(60))).expect("set");
    (full, peer)
}

/// Sends a message with a descriptor.
pub(super) fn send_with(stream: &UnixStream, bytes: &[u8], descriptor: impl AsFd) {
    send_flagged(stream, bytes, descriptor, SendFlags::empty()).expect("sent");
}

fn send_flagged(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: impl AsFd,
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(stream, &[io::IoSlice::new(bytes)], &mut control, flags)
}

/// The outcome of something that must not take longer than this.
fn within<T: Send + 'static>(seconds: u64, what: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, outcome) = mpsc::channel();
    thread::spawn(move || sender.send(what()));
    outcome.recv_timeout(Duration::from_secs(seconds)).expect("it takes too long")
}

#[test]
fn a_descriptor_that_is_slow_to_close_delays_no_program_and_no_unmount() {
    let volume = volume();
    let sessions = sessions(&volume);
    let (socket, _) = ticket(&sessions, me(Privileges::ALL));
    let hostile = 4 + SESSIONS_OF_USER_MAX;
    // No session begins before all messages are sent: some are read, and others closed unread.
    let state = sessions.state.lock();
    let kept: Vec<_> = (0..hostile)
        .map(|_| {
            let (stream, (full, peer)) = (connect(&socket), lingering());
            send_with(&stream, &HELLO.encode(), full);
            (stream, peer)
        })
        .collect();
    drop(state);
    let count = || sessions.state.lock().sessions.len();
    wait_until("sessions begin", || count() >= SESSIONS_OF_USER_MAX);
    let refused = within(20, move || answer(&connect(&socket)));
    assert!(matches!(refused, Some(Answer::Refused(_))), "{refused:?}");
    let ending = Arc::clone(&sessions);
    within(5, move || ending.pause()).expect("paused");
    sessions.go_on();
    drop(kept);
    wait_until("sessions end", || count() < SESSIONS_OF_USER_MAX);
    let (socket, _) = ticket(&sessions, me(Privileges::ALL));
    greeted(&socket);
    within(5, move || sessions.end()).expect("ended");
}

/// An observer that waits until a sender is dropped.
struct Stuck(StdMutex<mpsc::Receiver<()>>);

impl Observer for Stuck {
    fn changed(&self, _: Change<'_>) {
        let _ = self.0.lock().expect("whole").recv();
    }

    fn broken(&self) {}
}

#[test]
fn a_restart_fails_in_time_if_a_call_does_not_end_and_an_unmount_waits_for_it() {
    let volume = volume();
    let [dir, ..] = tree(&volume);
    let _ = volume.lookup(InodeNo::ROOT, b"tree").expect("referenced");
    let (held, receiver) = mpsc::channel();
    let observer = Box::new(Stuck(StdMutex::new(receiver)));
    let sessions = Sessions::new(Current::new(Arc::clone(&volume)), observer, true);
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    let mut stream = greeted(&socket);
    stream.write_all(&remove_call(ticket, "tree").encode()).expect("sent");
    wait_until("the call begins", || !is_there(&volume, InodeNo::ROOT, "tree"));
    let pausing = Arc::clone(&sessions);
    let why = within(20, move || pausing.pause()).expect_err("a call is in the volume");
    assert!(why.contains("a call of an attached program"), "{why}");
    sessions.go_on();
    let (ended, outcome) = mpsc::channel();
    let ending = Arc::clone(&sessions);
    thread::spawn(move || ended.send(ending.end()));
    assert!(outcome.recv_timeout(Duration::from_secs(2)).is_err(), "the call uses the volume");
    drop(held);
    assert_eq!(outcome.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
    volume.release(dir, 1);
    assert!(!volume.is_referenced(dir, 0));
}

/// An observer that panics.
struct Panicking;

impl Observer for Panicking {
    fn changed(&self, _: Change<'_>) {
        panic!("for the test");
    }

    fn broken(&self) {}
}

#[test]
fn a_volume_in_which_a_call_panicked_is_not_closed() {
    let volume = volume();
    tree(&volume);
    volume.lookup(InodeNo::ROOT, b"tree").expect("referenced");
    let sessions = Sessions::new(Current::new(Arc::clone(&volume)), Box::new(Panicking), true);
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    let (done, _) = ask(&greeted(&socket), &remove_call(ticket, "tree"));
    assert_eq!(done, None);
    assert!(within(20, move || sessions.end()).is_err());
}

#[test]
fn only_a_call_with_a_ticket_makes_the_volume_shared() {
    let volume = volume();
    let sessions = slow_sessions(&volume);
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    assert!(sessions.sharing.is_on(), "a ticket was made");
    sessions.sharing.until.store(0, Ordering::SeqCst);
    let mut stream = greeted(&socket);
    let (refused, _) = ask(&greeted(&socket), &remove_call([0; 16], "tree"));
    assert!(matches!(refused, Some(Answer::Refused(_))), "{refused:?}");
    assert!(!sessions.sharing.is_on(), "it was made long ago");
    stream.write_all(&remove_call(ticket, "tree").encode()).expect("sent");
    assert!(matches!(answer(&stream), Some(Answer::Progress(_))));
    assert_eq!(sessions.sharing.changes.load(Ordering::SeqCst), 1);
    sessions.end().expect("ended");
    assert!(sessions.sharing.is_on(), "for a while");
    assert_eq!(sessions.sharing.changes.load(Ordering::SeqCst), 0);
}

#[test]
fn a_session_that_waits_or_reads_does_not_make_the_volume_shared() {
    let volume = volume();
    let sessions = sessions(&volume);
    let program = Program::idle(&sessions, Privileges::ALL);
    sessions.sharing.until.store(0, Ordering::SeqCst);
    let attr = Request::Attr { node: Handle::ROOT };
    assert!(matches!(program.ask(&attr), Reply::Attr(_)));
    assert!(!sessions.sharing.is_on());
    program.made(Handle::ROOT, "file", Kind::Regular, Handle(1));
    assert!(sessions.sharing.is_on(), "it has changed the volume");
    assert_eq!(sessions.sharing.changes.load(Ordering::SeqCst), 0, "it waits");
    sessions.sharing.until.store(0, Ordering::SeqCst);
    let examine = || panic!("it has a session");
    sessions.ask(InodeNo::ROOT, 5, me(Privileges::ALL).uid, examine).expect("asked");
    assert!(sessions.sharing.is_on(), "it is about to make changes");
    sessions.end().expect("ended");
}

/// Regression: the session closed the descriptor when it received the message, as long as the program wanted.
#[test]
fn a_descriptor_that_is_sent_to_a_session_does_not_keep_it_from_ending() {
    let volume = volume();
    let sessions = sessions(&volume);
    let attr = Request::Attr { node: Handle::ROOT }.encode();
    for (begun, flags) in [(0, SendFlags::empty()), (3, SendFlags::empty()), (0, SendFlags::OOB)] {
        let program = Program::idle(&sessions, Privileges::ALL);
        let (full, peer) = lingering();
        (&program.stream).write_all(&attr[..begun]).expect("sent");
        let rest = if flags.is_empty() { &attr[begun..] } else { &attr[..1] };
        // The kernel may know no such flag of these sockets.
        if send_flagged(&program.stream, rest, full, flags).is_ok() && flags == SendFlags::OOB {
            // The byte is discarded when the next one is read, unless it is read, too.
            let _ = (&program.stream).write_all(&attr);
        }
        // Long enough for the session to receive the message.
        thread::sleep(Duration::from_millis(200));
        let interrupting = Arc::clone(&sessions);
        within(5, move || interrupting.interrupt()).expect("it has ended");
        drop(peer);
        wait_until("the session ends", || sessions.state.lock().sessions.is_empty());
    }
    sessions.end().expect("ended");
}

#[test]
fn a_session_that_waits_ends_at_an_unmount_and_at_a_remount() {
    let volume = volume();
    let sessions = sessions(&volume);
    let waiting = Program::idle(&sessions, Privileges::ALL);
    let interrupting = Arc::clone(&sessions);
    within(5, move || interrupting.interrupt()).expect("it has ended");
    assert_eq!(answer(&waiting.stream), None);
    // Its lease is over, and the request waits.
    let late = Program::idle(&sessions, Privileges::ALL);
    thread::sleep(LEASE + Duration::from_millis(100));
    let make = |name: &str| Request::Make {
        dir: Handle::ROOT,
        name: name.into(),
        kind: Kind::Regular,
        permissions: 0o644,
        result: Handle(1),
    };
    (&late.stream).write_all(&make("late").encode()).expect("sent");
    let interrupting = Arc::clone(&sessions);
    within(5, move || interrupting.interrupt()).expect("it has ended");
    assert!(!is_there(&volume, InodeNo::ROOT, "late"));
    // It takes no answers.
    let deaf = Program::idle(&sessions, Privileges::ALL);
    deaf.stream.set_nonblocking(true).expect("set");
    let attr = Request::Attr { node: Handle::ROOT }.encode().repeat(1000);
    let (mut at, mut refused) = (0, 0);
    while refused < 20 {
        match (&deaf.stream).write(&attr[at..]) {
            Ok(written) => (at, refused) = ((at + written) % attr.len(), 0),
            Err(_) => {
                refused += 1;
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    let ending = Arc::clone(&sessions);
    within(5, move || ending.end()).expect("ended");
}

/// Regression: a program that was stopped for half a minute lost its session.
#[test]
fn a_program_that_takes_its_answers_late_gets_all() {
    const REQUESTS: usize = 32;
    let volume = volume();
    tree(&volume);
    let sessions = sessions(&volume);
    let program = Program::idle(&sessions, Privileges::ALL);
    let path = b"tree/a".to_vec();
    let walk = Query::Walk { dir: Handle::ROOT, path, follow: false, result: Handle(1) };
    assert!(matches!(program.ask(&Request::Query(walk)), Reply::Attr(_)));
    // The answers are several times as long as the buffer of the socket.
    let list = Request::Query(Query::List { dir: Handle(1), cookie: 0 });
    (&program.stream).write_all(&list.encode().repeat(REQUESTS)).expect("sent");
    let session = sessions.state.lock().sessions.values().next().expect("one").1.clone();
    wait_until("the buffer is full", || {
        let mut descriptors = [PollFd::new(&*session, PollFlags::OUT)];
        poll(&mut descriptors, Some(&Default::default())).expect("polled");
        descriptors[0].revents().is_empty()
    });
    assert_eq!(session.write_timeout().expect("shown"), None);
    let answers = || std::iter::from_fn(|| answer(&program.stream));
    let lists = answers().filter(|answer| matches!(answer, Answer::Reply(Reply::Entries(..))));
    assert_eq!(lists.take(REQUESTS).count(), REQUESTS);
    drop(session);
    sessions.end().expect("ended");
}

/// Regression: calls that had been carried out were reported as failed.
#[test]
fn a_session_that_ends_sends_the_answers_to_its_calls() {
    let volume = volume();
    let sessions = sessions(&volume);
    let program = Program::idle(&sessions, Privileges::ALL);
    sessions.state.lock().leases.values_mut().for_each(|lease| {
        lease.renewed = Instant::now().checked_sub(LEASE).expect("the machine has run for longer");
    });
    make_file(&volume, InodeNo::ROOT, "file");
    let find = Request::Lookup { dir: Handle::ROOT, name: b"file".to_vec(), result: Handle(2) };
    let (name, kind) = (b"late".to_vec(), Kind::Directory);
    let late =
        Request::Make { dir: Handle::ROOT, name, kind, permissions: 0o755, result: Handle(1) };
    let before = volume.stats().lookups;
    let requests = [find.encode().repeat(3), late.encode()].concat();
    (&program.stream).write_all(&requests).expect("sent");
    wait_until("the first requests are carried out", || volume.stats().lookups == before + 3);
    sessions.broken();
    let answers: Vec<_> = std::iter::from_fn(|| answer(&program.stream)).collect();
    let is_reply = |answer: &&Answer| matches!(answer, Answer::Reply(Reply::Attr(_)));
    assert_eq!(answers.iter().filter(is_reply).count(), 3, "{answers:?}");
    assert_eq!(answers.last(), Some(&Answer::Settled { calls: 3 }));
    assert!(!is_there(&volume, InodeNo::ROOT, "late"));
}
