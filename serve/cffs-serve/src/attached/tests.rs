//! Tests sessions over their socket, and removals without one.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::sync::Mutex as StdMutex;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions, SetAttr};
use cffs::vfs::{Caller, Volume};
use cffs::wire::{self, Call, End, Removed};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::removal::Removal;
use super::*;
use crate::access::Privileges;
use crate::shared::{Change, NoObserver};

mod hindrances;
mod making;
mod reading;
mod requests;
mod rights;
mod trees;

const ME: &Caller<'_> = &Caller::ROOT;

/// A user other than root and the one who runs the tests.
fn user_id() -> u32 {
    rustix::process::geteuid().as_raw() + 1000
}

fn volume() -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    cffs::mkfs::make(&device, &Default::default()).expect("made");
    let opened = cffs::open(device, Arc::new(SystemClock), OpenOptions::default());
    Arc::new(opened.expect("opened"))
}

fn new(kind: NewKind<'_>, permissions: u32, uid: u32) -> NewFile<'_> {
    NewFile { kind, permissions, uid, gid: uid, times: None }
}

/// Makes a file, and keeps no reference on it.
fn make(volume: &Volume, dir: InodeNo, name: &str, new: &NewFile<'_>) -> InodeNo {
    let ino = volume.make(ME, dir, name.as_bytes(), new).expect("made").ino;
    volume.release(ino, 1);
    ino
}

fn make_dir(volume: &Volume, dir: InodeNo, name: &str, permissions: u32) -> InodeNo {
    make(volume, dir, name, &new(NewKind::Directory, permissions, user_id()))
}

fn make_file(volume: &Volume, dir: InodeNo, name: &str) -> InodeNo {
    make(volume, dir, name, &new(NewKind::Regular, 0o644, user_id()))
}

/// A directory `tree` in the root with two directories and 300 files in each. Returns the directories.
fn tree(volume: &Volume) -> [InodeNo; 3] {
    let tree = make_dir(volume, InodeNo::ROOT, "tree", 0o755);
    let below = ["a", "b"].map(|name| make_dir(volume, tree, name, 0o755));
    for dir in below {
        for number in 0..300 {
            make_file(volume, dir, &number.to_string());
        }
    }
    [tree, below[0], below[1]]
}

fn is_there(volume: &Volume, dir: InodeNo, name: &str) -> bool {
    volume.lookup(dir, name.as_bytes()).map(|attr| volume.release(attr.ino, 1)).is_ok()
}

fn names(volume: &Volume, dir: InodeNo) -> usize {
    let mut count = 0;
    let visit = &mut |_: &cffs::vfs::types::DirEntry<'_>| {
        count += 1;
        true
    };
    volume.read_dir(dir, 0, false, visit).expect("listed");
    count
}

/// A program that sees no mount on a volume.
impl From<User> for Asking {
    fn from(user: User) -> Asking {
        Asking { user, are_covered: false, access: Access::ReadWrite }
    }
}

/// The user of this process, as sessions see it.
fn me(privileges: Privileges) -> User {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    User { uid: uid.as_raw(), gid: gid.as_raw(), groups: Vec::new(), privileges }
}

fn sessions(volume: &Arc<Volume>) -> Arc<Sessions> {
    Sessions::new(Current::new(Arc::clone(volume)), Box::new(NoObserver), true)
}

/// Gets a ticket for the root, and the name of the socket.
fn ticket(sessions: &Arc<Sessions>, user: User) -> (String, Ticket) {
    let uid = user.uid;
    sessions.ask(InodeNo::ROOT, 5, uid, || Ok(user.into())).expect("asked");
    let answer = sessions.answer(5, uid).expect("answered");
    match Invitation::decode(&answer) {
        Ok(Invitation::Ticket { socket, ticket }) => (socket, ticket),
        other => panic!("{other:?}"),
    }
}

fn connect(socket: &str) -> UnixStream {
    let address = SocketAddr::from_abstract_name(socket).expect("a name");
    let stream = UnixStream::connect_addr(&address).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    stream
}

/// The next answer; `None` if the connection has ended.
fn answer(mut stream: &UnixStream) -> Option<Answer> {
    let mut head = [0; wire::HEADER_BYTES];
    stream.read_exact(&mut head).ok()?;
    let (len, kind) = wire::header(head, wire::ANSWER_BYTES_MAX).expect("a header");
    let mut body = vec![0; len];
    stream.read_exact(&mut body).expect("the whole answer");
    Some(Answer::decode(kind, &body).expect("an answer"))
}

const HELLO: Call = Call::Hello { oldest: wire::VERSION, newest: wire::VERSION };

fn remove_call(ticket: Ticket, name: &str) -> Call {
    Call::Remove { ticket, name: name.into(), recursive: true }
}

/// The last answer to a call, and the failures before.
fn ask(mut stream: &UnixStream, call: &Call) -> (Option<Answer>, Vec<wire::Failure>) {
    // The server may have closed the connection already.
    let _ = stream.write_all(&call.encode());
    let mut failures = Vec::new();
    loop {
        match answer(stream) {
            Some(Answer::Progress(_)) => {}
            Some(Answer::Failed(failure)) => failures.push(failure),
            last => return (last, failures),
        }
    }
}

fn greeted(socket: &str) -> UnixStream {
    let stream = connect(socket);
    assert_eq!(ask(&stream, &HELLO).0, Some(Answer::Welcome { version: wire::VERSION }));
    stream
}

#[test]
fn a_ticket_serves_one_call_of_its_user() {
    let volume = volume();
    let dirs = tree(&volume);
    let sessions = sessions(&volume);
    let (socket, used) = ticket(&sessions, me(Privileges::ALL));
    let stream = greeted(&socket);
    let (done, failures) = ask(&stream, &remove_call(used, "tree"));
    let removed = Removed { files: 600, directories: 3 };
    assert_eq!(done, Some(Answer::Done { removed, end: End::Complete }));
    assert_eq!(failures, []);
    assert!(!is_there(&volume, InodeNo::ROOT, "tree"));
    assert!(!dirs.into_iter().any(|dir| volume.is_referenced(dir, 0)));
    let (refused, _) = ask(&stream, &remove_call(used, "tree"));
    assert!(matches!(refused, Some(Answer::Refused(_))), "{refused:?}");
    let (socket, of_other) = ticket(&sessions, User::new(user_id(), user_id(), Vec::new()));
    let (refused, _) = ask(&greeted(&socket), &remove_call(of_other, "tree"));
    assert!(matches!(refused, Some(Answer::Refused(_))), "the peer is another user: {refused:?}");
    assert_eq!(sessions.end(), Ok(()));
}

#[test]
fn tickets_are_limited_in_number_and_time() {
    let (mut tickets, now) = (Tickets::default(), Instant::now());
    let (dir, user) = ((InodeNo::ROOT, 0), User::new(user_id(), user_id(), Vec::new()));
    let late = now + Duration::from_secs(11);
    for number in 0..8 {
        tickets.add(dir, number, user_id(), Ok(user.clone().into()), now).expect("made");
    }
    assert!(
        tickets.add(dir, 8, user_id(), Ok(user.clone().into()), now).is_err(),
        "the user has too many"
    );
    for number in 1..49 {
        tickets.add(dir, number, number as u32, Err("no"), now).expect("made");
    }
    assert!(tickets.add(dir, 0, 99, Err("no"), now).is_err(), "all users have too many");
    tickets.add(dir, 0, 0, Err("no"), now).expect("some are for root");
    let first = tickets.show(0, user_id(), now).expect("shown").expect("a ticket");
    assert_eq!(tickets.show(0, user_id() + 1, now), None, "of another user");
    assert_eq!(tickets.show(0, user_id(), late), None, "too old");
    assert_eq!(tickets.show(3, 3, now), Some(Err("no")));
    assert_eq!(tickets.redeem(&first, (user_id(), 0), now), None, "of another group");
    assert_eq!(tickets.redeem(&first, (user_id(), user_id()), late), None, "too old");
    assert_eq!(tickets.redeem(&[0; 16], (user_id(), user_id()), now), None);
    let granted = tickets.redeem(&first, (user_id(), user_id()), now).expect("redeemed");
    assert_eq!((granted.directory, granted.user), (dir, user.clone()));
    assert_eq!(tickets.redeem(&first, (user_id(), user_id()), now), None, "used");
    tickets.add(dir, 0, user_id(), Ok(user.into()), late).expect("the old ones are gone");
}

#[test]
fn the_process_of_a_user_with_too_many_tickets_is_not_examined() {
    let (volume, user) = (volume(), user());
    let sessions = sessions(&volume);
    for number in 0..8 {
        sessions.ask(InodeNo::ROOT, number, user.uid, || Ok(user.clone().into())).expect("made");
    }
    let examine = || panic!("this takes long");
    assert!(sessions.ask(InodeNo::ROOT, 8, user.uid, examine).is_err());
    sessions.end().expect("ended");
}

#[test]
fn a_session_has_the_rights_of_the_program_that_asked() {
    let volume = volume();
    tree(&volume);
    let sessions = sessions(&volume);
    let user = User { groups: vec![], ..me(Privileges::default()) };
    let (socket, ticket) = ticket(&sessions, user);
    let (done, failures) = ask(&greeted(&socket), &remove_call(ticket, "tree"));
    let removed = Removed::default();
    assert_eq!(done, Some(Answer::Done { removed, end: End::Complete }));
    // Of `a` and `b`, only the files failed.
    assert_eq!(failures.len(), 600);
    assert!(failures.iter().all(|failure| failure.errno == 13), "EACCES");
    assert_eq!(failures[0].path, b"tree/a/0".to_vec(), "{}", failures[0].path.escape_ascii());
    sessions.end().expect("ended");
}

#[test]
fn a_directory_that_is_gone_is_stale() {
    let volume = volume();
    let sessions = sessions(&volume);
    let dir = make_dir(&volume, InodeNo::ROOT, "dir", 0o755);
    let user = me(Privileges::ALL);
    sessions.ask(dir, 7, user.uid, || Ok(user.clone().into())).expect("asked");
    let (socket, _) = ticket(&sessions, user);
    let granted = sessions.state.lock().tickets.show(7, me(Privileges::ALL).uid, Instant::now());
    volume.remove_dir(ME, InodeNo::ROOT, b"dir").expect("removed");
    // Its number may be that of another directory by now.
    make_dir(&volume, make_dir(&volume, InodeNo::ROOT, "other", 0o755), "x", 0o755);
    let ticket = granted.expect("shown").expect("a ticket");
    let (done, failures) = ask(&greeted(&socket), &remove_call(ticket, "x"));
    assert!(matches!(done, Some(Answer::Done { end: End::Complete, .. })), "{done:?}");
    assert_eq!(failures.iter().map(|failure| failure.errno).collect::<Vec<_>>(), [116], "ESTALE");
    sessions.end().expect("ended");
}

#[test]
fn programs_that_break_the_rules_are_cut_off_and_others_are_served() {
    let volume = volume();
    tree(&volume);
    let sessions = sessions(&volume);
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    let wrong: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 64],
        &[0xff; 64],
        &Call::Hello { oldest: wire::VERSION + 1, newest: 9 }.encode(),
        &Call::Hello { oldest: 1, newest: 1 }.encode(),
        &remove_call(ticket, "tree").encode(),
        b"\x08\0\0\0\x01\0\0\0CFFX\x01\0\x01\0",
        b"\x00\x10\0\0\x02\0\0\0",
    ];
    for bytes in wrong {
        let mut stream = connect(&socket);
        stream.write_all(bytes).expect("sent");
        match answer(&stream) {
            None => {}
            Some(Answer::Refused(_)) => assert_eq!(answer(&stream), None),
            Some(other) => panic!("{}: {other:?}", bytes.escape_ascii()),
        }
    }
    for bytes in wrong {
        let mut stream = greeted(&socket);
        stream.write_all(bytes).expect("sent");
        // The fifth is a call as it should be.
        let is_call = bytes.ends_with(b"tree");
        assert_eq!(answer(&stream).is_some(), is_call, "{}", bytes.escape_ascii());
    }
    sessions.end().expect("ended");
    assert!(!is_there(&volume, InodeNo::ROOT, "tree"));
}

#[test]
fn a_program_that_sends_byte_by_byte_is_served_or_cut_off_in_time() {
    let volume = volume();
    tree(&volume);
    let sessions = sessions(&volume);
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    let mut stream = connect(&socket);
    for byte in HELLO.encode().into_iter().chain(remove_call(ticket, "tree").encode()) {
        stream.write_all(&[byte]).expect("sent");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(answer(&stream), Some(Answer::Welcome { version: wire::VERSION }));
    assert!(matches!(ask(&stream, &HELLO).0, Some(Answer::Done { .. })));
    let mut slow = connect(&socket);
    let begun = Instant::now();
    while slow.write_all(&[0]).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(25), "it is never cut off");
        thread::sleep(Duration::from_secs(2));
    }
    sessions.end().expect("ended");
}

/// Waits for a condition; fails if it takes more than half a minute.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_thousand_connections_leave_room_and_end_with_the_server() {
    let volume = volume();
    tree(&volume);
    let sessions = sessions(&volume);
    let (socket, _) = ticket(&sessions, me(Privileges::ALL));
    let descriptors = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: descriptors.maximum, ..descriptors });
    let mut open = Vec::new();
    for _ in 0..1000 {
        open.push(connect(&socket));
        assert!(sessions.state.lock().sessions.len() <= SESSIONS_OF_USER_MAX);
    }
    open.clear();
    wait_until("sessions end", || sessions.state.lock().sessions.is_empty());
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    let waiting = greeted(&socket);
    assert!(matches!(
        ask(&greeted(&socket), &remove_call(ticket, "tree")).0,
        Some(Answer::Done { .. })
    ));
    assert!(sessions.sharing.is_on());
    let begun = Instant::now();
    sessions.end().expect("ended");
    assert!(begun.elapsed() < Duration::from_secs(5), "it waits for an idle program");
    assert_eq!(answer(&waiting), None);
    let address = SocketAddr::from_abstract_name(&socket).expect("a name");
    assert!(UnixStream::connect_addr(&address).is_err(), "nothing listens");
}

#[test]
fn an_interruption_ends_sessions_and_tickets_and_allows_others() {
    let volume = volume();
    tree(&volume);
    let sessions = sessions(&volume);
    let (socket, old) = ticket(&sessions, me(Privileges::ALL));
    let idle = greeted(&socket);
    sessions.interrupt().expect("ended");
    assert_eq!(answer(&idle), None);
    let address = SocketAddr::from_abstract_name(&socket).expect("a name");
    assert!(UnixStream::connect_addr(&address).is_err(), "nothing listens");
    let (socket, new) = ticket(&sessions, me(Privileges::ALL));
    let answered = |ticket| ask(&greeted(&socket), &remove_call(ticket, "tree")).0;
    assert!(matches!(answered(old), Some(Answer::Refused(_))));
    assert!(matches!(answered(new), Some(Answer::Done { end: End::Complete, .. })));
    sessions.end().expect("ended");
}

#[test]
fn descriptors_that_come_with_a_message_are_closed() {
    let volume = volume();
    let sessions = sessions(&volume);
    let (socket, _) = ticket(&sessions, me(Privileges::ALL));
    let stream = connect(&socket);
    let (sent, kept) = UnixStream::pair().expect("a pair");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [sent.as_fd(), sent.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let hello = HELLO.encode();
    let message = [io::IoSlice::new(&hello)];
    sendmsg(&stream, &message, &mut control, SendFlags::empty()).expect("sent");
    assert_eq!(answer(&stream), Some(Answer::Welcome { version: wire::VERSION }));
    drop(sent);
    kept.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    assert_eq!((&kept).read(&mut [0]).expect("closed by all"), 0);
    sessions.end().expect("ended");
}

#[test]
fn a_paused_server_has_no_session_and_serves_again_after_it() {
    let volume = volume();
    let dirs = tree(&volume);
    let sessions = sessions(&volume);
    let (socket, old) = ticket(&sessions, me(Privileges::ALL));
    let stream = greeted(&socket);
    sessions.pause().expect("paused");
    assert_eq!(answer(&stream), None);
    let user = me(Privileges::ALL);
    assert!(sessions.ask(InodeNo::ROOT, 1, user.uid, || Ok(user.into())).is_err(), "it is paused");
    sessions.go_on();
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    let refused = ask(&greeted(&socket), &remove_call(old, "tree")).0;
    assert!(matches!(refused, Some(Answer::Refused(_))), "tickets end with a pause");
    let done = ask(&greeted(&socket), &remove_call(ticket, "tree")).0;
    assert!(matches!(done, Some(Answer::Done { .. })), "{done:?}");
    assert!(!dirs.into_iter().any(|dir| volume.is_referenced(dir, 0)));
    sessions.end().expect("ended");
}

/// Removes a name from the root for a user. `watch` gets the number of each step. Returns the failures as
/// text.
fn remove_while(
    volume: &Volume,
    observer: &dyn Observer,
    user: &User,
    name: &str,
    mut watch: impl FnMut(u32),
) -> (Removed, Vec<String>) {
    let (mut steps, mut failures) = (0, Vec::new());
    let mut step = |failed: Option<removal::Failed<'_>>, _: &Removed| {
        if let Some(removal::Failed { path, error }) = failed {
            failures.push(format!("{}: {error}", path.escape_ascii()));
        }
        steps += 1;
        watch(steps);
        std::ops::ControlFlow::Continue(())
    };
    volume.find(InodeNo::ROOT).expect("the root");
    let removal = Removal::new(volume, observer, user, &mut step);
    let removed = removal.run(InodeNo::ROOT, name.as_bytes(), true);
    (removed, failures)
}

fn user() -> User {
    User::new(user_id(), user_id(), Vec::new())
}

/// A tree of a user in a directory of that user, so that the user may remove it.
fn root_of_user(volume: &Volume) {
    let changes = SetAttr { permissions: Some(0o777), ..SetAttr::default() };
    volume.set_attr(ME, InodeNo::ROOT, &changes).expect("set");
}

#[test]
fn a_change_of_a_mode_is_obeyed_as_soon_as_it_has_returned() {
    let volume = volume();
    let [_, first, _] = tree(&volume);
    root_of_user(&volume);
    let closing = |step| {
        if step == 100 {
            let changes = SetAttr { permissions: Some(0o555), ..SetAttr::default() };
            volume.set_attr(ME, first, &changes).expect("set");
        }
    };
    let (removed, failures) = remove_while(&volume, &NoObserver, &user(), "tree", closing);
    // The steps before are the two directories that were entered, and 98 files.
    assert_eq!(removed, Removed { files: 98 + 300, directories: 1 });
    assert_eq!((failures.len(), names(&volume, first)), (202, 202));
    assert!(failures.iter().all(|failure| failure.ends_with("permission denied")), "{failures:?}");
}

#[test]
fn a_tree_deeper_than_the_limit_stays_from_there_on() {
    let volume = volume();
    root_of_user(&volume);
    let mut dir = make_dir(&volume, InodeNo::ROOT, "tree", 0o755);
    // Each directory has files before and after the one that is entered.
    for depth in 0..200 {
        for number in 0..3 {
            make_file(&volume, dir, &format!("{depth}-{number}"));
        }
        let below = make_dir(&volume, dir, "below", 0o755);
        for number in 3..6 {
            make_file(&volume, dir, &format!("{depth}-{number}"));
        }
        dir = below;
    }
    let (removed, failures) = remove_while(&volume, &NoObserver, &user(), "tree", |_| {});
    assert_eq!((removed, failures), (Removed { files: 1200, directories: 201 }, vec![]));
    let name = "n".repeat(250);
    let mut dir = make_dir(&volume, InodeNo::ROOT, "tree", 0o755);
    for _ in 0..300 {
        dir = make_dir(&volume, dir, &name, 0o755);
    }
    let (removed, failures) = remove_while(&volume, &NoObserver, &user(), "tree", |_| {});
    assert_eq!(removed, Removed::default(), "none is empty");
    assert_eq!(failures.len(), 1);
    assert!(
        failures[0].ends_with("file name too long") && failures[0].len() < wire::PATH_BYTES_MAX
    );
}

#[test]
fn a_directory_with_files_that_stay_is_left_with_them() {
    let volume = volume();
    root_of_user(&volume);
    let sticky = NewFile { uid: 1, ..new(NewKind::Directory, 0o1777, user_id()) };
    let dir = make(&volume, InodeNo::ROOT, "sticky", &sticky);
    for number in 0..400 {
        let uid = if number % 2 == 0 { user_id() } else { 2 };
        make(&volume, dir, &number.to_string(), &new(NewKind::Regular, 0o666, uid));
    }
    let (removed, failures) = remove_while(&volume, &NoObserver, &user(), "sticky", |_| {});
    assert_eq!(removed, Removed { files: 200, directories: 0 });
    assert_eq!((failures.len(), names(&volume, dir)), (200, 200));
    assert!(failures.iter().all(|failure| failure.ends_with("operation not permitted")));
    let owner = User { privileges: Privileges { fowner: true, ..Privileges::default() }, ..user() };
    let (removed, _) = remove_while(&volume, &NoObserver, &owner, "sticky", |_| {});
    assert_eq!(removed, Removed { files: 200, directories: 1 });
}

#[test]
fn a_directory_that_takes_the_place_of_another_one_stays() {
    let volume = volume();
    root_of_user(&volume);
    let [tree, ..] = tree(&volume);
    let swap = |step| {
        if step == 200 {
            use cffs::vfs::RenameMode;
            let root = InodeNo::ROOT;
            volume.rename(ME, tree, b"a", root, b"saved", RenameMode::Replace).expect("moved");
            let other = make_dir(&volume, tree, "a", 0o755);
            make_file(&volume, other, "precious");
        }
    };
    let (_, failures) = remove_while(&volume, &NoObserver, &user(), "tree", swap);
    assert_eq!(failures, ["tree/a: stale file handle"]);
    let other = volume.lookup(tree, b"a").expect("there").ino;
    volume.release(other, 1);
    assert!(is_there(&volume, other, "precious") && is_there(&volume, InodeNo::ROOT, "saved"));
}

/// An observer that remembers the changes.
#[derive(Default)]
struct Heard(StdMutex<Vec<String>>);

impl Observer for Heard {
    fn changed(&self, change: Change<'_>) {
        self.0.lock().expect("whole").push(match change {
            Change::Attributes(ino) => format!("attributes {ino}"),
            Change::Contents(ino, ..) => format!("contents {ino}"),
            Change::Name(..) => String::from("name"),
            Change::Removed(dir, name) => format!("removed {dir} {}", name.escape_ascii()),
        });
    }

    fn broken(&self) {}
}

#[test]
fn the_kernel_is_notified_only_of_files_that_it_knows() {
    let volume = volume();
    root_of_user(&volume);
    let [tree, first, _] = tree(&volume);
    let known = [(tree, InodeNo::ROOT, "tree"), (first, tree, "a")];
    for (_, dir, name) in known {
        volume.lookup(dir, name.as_bytes()).expect("there");
    }
    let file = volume.lookup(first, b"7").expect("there").ino;
    let heard = Heard::default();
    let (removed, failures) = remove_while(&volume, &heard, &user(), "tree", |_| {});
    assert_eq!((removed, failures), (Removed { files: 600, directories: 3 }, vec![]));
    let root = InodeNo::ROOT;
    let expected = [
        format!("removed {first} 7"),
        format!("attributes {file}"),
        format!("removed {tree} a"),
        format!("contents {first}"),
        format!("removed {root} tree"),
        format!("contents {tree}"),
        format!("contents {root}"),
    ];
    assert_eq!(*heard.0.lock().expect("whole"), expected);
    [tree, first, file].into_iter().for_each(|ino| volume.release(ino, 1));
    assert!(![tree, first, file].into_iter().any(|ino| volume.is_referenced(ino, 0)));
}

/// An observer that takes its time.
struct Slow;

impl Observer for Slow {
    fn changed(&self, _: Change<'_>) {
        thread::sleep(Duration::from_millis(10));
    }

    fn broken(&self) {}
}

/// Sessions of a volume with a tree that takes about twelve seconds to remove.
fn slow_sessions(volume: &Arc<Volume>) -> Arc<Sessions> {
    for dir in tree(volume) {
        volume.read_dir(dir, 0, true, &mut |_| true).expect("referenced");
    }
    Sessions::new(Current::new(Arc::clone(volume)), Box::new(Slow), true)
}

#[test]
fn a_program_that_closes_its_side_ends_its_call() {
    let volume = volume();
    let sessions = slow_sessions(&volume);
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    let mut stream = greeted(&socket);
    stream.write_all(&remove_call(ticket, "tree").encode()).expect("sent");
    stream.shutdown(Shutdown::Write).expect("closed");
    let last = std::iter::from_fn(|| answer(&stream)).last();
    let Some(Answer::Done { removed, end: End::Cancelled }) = last else { panic!("{last:?}") };
    assert!((1..600).contains(&removed.files), "{removed:?}");
    assert!(is_there(&volume, InodeNo::ROOT, "tree"));
    sessions.end().expect("ended");
}

#[test]
fn an_unmount_ends_a_call_and_says_so() {
    let volume = volume();
    let sessions = slow_sessions(&volume);
    let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
    let mut stream = greeted(&socket);
    stream.write_all(&remove_call(ticket, "tree").encode()).expect("sent");
    assert!(matches!(answer(&stream), Some(Answer::Progress(_))));
    sessions.end().expect("ended");
    let last = std::iter::from_fn(|| answer(&stream)).last();
    assert!(matches!(last, Some(Answer::Done { end: End::Closing, .. })), "{last:?}");
}
