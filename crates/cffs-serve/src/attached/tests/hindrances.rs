//! Programs that try to hinder the server and other programs.

use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use rustix::net::sockopt::set_socket_linger;

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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(stream, &[io::IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("sent");
}

/// The outcome of something that must not take longer than this.
fn within<T: Send + 'static>(seconds: u64, what: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, outcome) = mpsc::channel();
    thread::spawn(move || sender.send(what()));
    outcome.recv_timeout(Duration::from_secs(seconds)).expect("it takes too long")
}

#[test]
fn a_descriptor_whose_closing_waits_hinders_neither_other_programs_nor_the_end() {
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
    let sessions = Sessions::new(Current::new(Arc::clone(&volume)), observer);
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
    let sessions = Sessions::new(Current::new(Arc::clone(&volume)), Box::new(Panicking));
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
    assert_eq!(sessions.sharing.until.load(Ordering::SeqCst), u64::MAX);
    sessions.end().expect("ended");
    assert!(sessions.sharing.is_on(), "for a while");
    assert_ne!(sessions.sharing.until.load(Ordering::SeqCst), u64::MAX);
}
