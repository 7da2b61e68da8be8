//! Requests of programs that are attached to a directory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::mpsc;

use cffs::format::inode::InodeFlags;
use cffs::vfs::types::{Attr, SetAttr, SetTime};
use cffs::wire::{Fault, HANDLES_MAX, Handle, Kind, Memory, Put, Reply, Request};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::pwrite;

use super::hindrances::send_with;
use super::*;

const MEMORY_BYTES: u32 = 1 << 20;
const DIR: Handle = Handle(1);
const FILE: Handle = Handle(2);

fn memory(flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
    let memory = memfd_create("test", flags | MemfdFlags::ALLOW_SEALING).expect("made");
    ftruncate(&memory, MEMORY_BYTES.into()).expect("sized");
    fcntl_add_seals(&memory, seals).expect("sealed");
    memory
}

fn sealed() -> OwnedFd {
    memory(MemfdFlags::CLOEXEC, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Asks to be attached with this memory. Returns the answer, if the session does not end.
fn attach(stream: &UnixStream, ticket: Ticket, memory: impl AsFd) -> Option<Answer> {
    let call = Call::Attach { ticket, umask: 0o022, memory_bytes: MEMORY_BYTES };
    send_with(stream, &call.encode(), memory);
    answer(stream)
}

/// A program that is attached to the root.
pub(super) struct Program {
    /// Ends the thread that asks again while the program exists. Dropped before the session ends, after which
    /// the thread would ask for tickets.
    _asking: Option<mpsc::Sender<()>>,
    pub(super) stream: UnixStream,
    memory: OwnedFd,
}

impl Program {
    pub(super) fn new(sessions: &Arc<Sessions>, privileges: Privileges) -> Program {
        let program = Program::idle(sessions, privileges);
        let (asking, ended) = mpsc::channel();
        let asked = Arc::clone(sessions);
        thread::spawn(move || {
            while ended.recv_timeout(LEASE / 5) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = asked.ask(InodeNo::ROOT, 5, me(privileges).uid, || Err("no session"));
            }
        });
        Program { _asking: Some(asking), ..program }
    }

    /// A program that does not ask again.
    pub(super) fn idle(sessions: &Arc<Sessions>, privileges: Privileges) -> Program {
        Program::attached(ticket(sessions, me(privileges)))
    }

    /// A program with a ticket.
    pub(super) fn attached((socket, ticket): (String, Ticket)) -> Program {
        let (stream, memory) = (greeted(&socket), sealed());
        let attached = attach(&stream, ticket, &memory);
        assert!(matches!(attached, Some(Answer::Attached { .. })), "{attached:?}");
        Program { _asking: None, stream, memory }
    }

    /// The reply to a request. Puts before it have succeeded.
    pub(super) fn ask(&self, request: &Request) -> Reply {
        (&self.stream).write_all(&request.encode()).expect("sent");
        loop {
            match answer(&self.stream) {
                Some(Answer::Settled { .. }) => {}
                Some(Answer::Reply(reply)) => return reply,
                other => panic!("{request:?}: {other:?}"),
            }
        }
    }

    pub(super) fn fails(&self, request: &Request) -> Error {
        match self.ask(request) {
            Reply::Fault(fault) => fault.into(),
            other => panic!("{request:?}: {other:?}"),
        }
    }

    pub(super) fn made(&self, dir: Handle, name: &str, kind: Kind, result: Handle) -> Attr {
        let (name, permissions) = (name.into(), 0o777);
        match self.ask(&Request::Make { dir, name, kind, permissions, result }) {
            Reply::Attr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    /// The failures of the first `calls` calls, of which the last are puts.
    fn settled(&self, calls: u64) -> Vec<(u64, Error)> {
        let mut failures = Vec::new();
        loop {
            match answer(&self.stream) {
                Some(Answer::PutFailed { call, fault }) => failures.push((call, fault.into())),
                Some(Answer::Settled { calls: settled }) if settled == calls => return failures,
                Some(Answer::Settled { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn put(dir: Handle, name: &str, contents: Memory) -> Put {
    let changes = SetAttr { permissions: Some(0o4640), ..SetAttr::default() };
    let (name, kind) = (name.into(), Kind::Regular);
    Put { dir, name, kind, permissions: 0o600, contents, changes, inherits_acls: true }
}

fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_memory_that_is_not_sealed_is_refused() {
    let volume = volume();
    let sessions = sessions(&volume);
    let refused = |what: &str, memory: OwnedFd| {
        let (socket, ticket) = ticket(&sessions, me(Privileges::ALL));
        let stream = greeted(&socket);
        assert_eq!(attach(&stream, ticket, memory), None, "{what}");
        // The ticket was not used.
        let attached = attach(&greeted(&socket), ticket, sealed());
        assert!(matches!(attached, Some(Answer::Attached { .. })), "{what}: {attached:?}");
        until(|| sessions.state.lock().leases.is_empty());
    };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        refused("without a seal", memory(MemfdFlags::CLOEXEC, all - missing));
    }
    let short = memory(MemfdFlags::CLOEXEC, SealFlags::empty());
    ftruncate(&short, u64::from(MEMORY_BYTES) - 1).expect("cut");
    fcntl_add_seals(&short, all).expect("sealed");
    refused("too short", short);
    refused("a file", tempfile::tempfile().expect("made").into());
    refused("a device", File::open("/dev/zero").expect("opened").into());
    refused("a pipe", rustix::pipe::pipe().expect("made").0);
    refused("a socket", UnixStream::pair().expect("made").0.into());
    // Where the system has no large pages, it makes no memory of them.
    if let Ok(large) = memfd_create("large", MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING) {
        refused("large pages", large);
    }
    sessions.end().expect("ended");
}

#[test]
fn files_are_put_with_contents_and_attributes_and_one_failure_is_one() {
    let volume = volume();
    let sessions = sessions(&volume);
    let program = Program::new(&sessions, Privileges::ALL);
    pwrite(&program.memory, b"some contents", 100).expect("written");
    let dir = program.made(Handle::ROOT, "dir", Kind::Directory, DIR);
    assert_eq!(dir.permissions, 0o755, "the umask applies");
    let contents = Memory { offset: 105, len: 8 };
    let outside = Memory { offset: MEMORY_BYTES - 4, len: 8 };
    let puts = [
        put(DIR, "a", contents),
        put(FILE, "b", contents),
        put(DIR, "c", outside),
        put(DIR, "a", contents),
        put(DIR, "d", Memory::default()),
    ];
    let bytes: Vec<u8> = puts.into_iter().flat_map(|put| Request::Put(put).encode()).collect();
    (&program.stream).write_all(&bytes).expect("sent");
    let failures = program.settled(6);
    assert!(
        matches!(failures[..], [(3, Error::Stale), (4, Error::Answered { errno: 22, .. })]),
        "an unknown handle, and a range that is none: {failures:?}"
    );
    let found = volume.lookup(dir.ino, b"a").expect("found");
    let mut buffer = [0; 20];
    assert_eq!(volume.read(found.ino, 0, &mut buffer).expect("read"), 8);
    assert_eq!(&buffer[..8], b"contents");
    assert_eq!((found.permissions, found.uid), (0o4640, me(Privileges::ALL).uid));
    volume.release(found.ino, 1);
    assert!(is_there(&volume, dir.ino, "d") && !is_there(&volume, dir.ino, "b"));
    assert!(!is_there(&volume, dir.ino, "c"), "nothing was made");
    sessions.end().expect("ended");
}

#[test]
fn a_program_that_ends_leaves_no_reference() {
    let volume = volume();
    let sessions = sessions(&volume);
    let program = Program::new(&sessions, Privileges::ALL);
    let dir = program.made(Handle::ROOT, "dir", Kind::Directory, DIR).ino;
    let file = program.made(DIR, "file", Kind::Regular, FILE).ino;
    assert!(volume.is_referenced(dir, 0) && volume.is_referenced(file, 0));
    program.ask(&Request::Unlink { dir: DIR, name: b"file".into() });
    let cut = put(DIR, "never whole", Memory::default());
    let bytes = Request::Put(cut).encode();
    (&program.stream).write_all(&bytes[..bytes.len() - 1]).expect("sent");
    drop(program);
    until(|| !volume.is_referenced(dir, 0) && !volume.is_referenced(file, 0));
    assert!(volume.find(file).is_err(), "a file without a name is deleted");
    assert!(!is_there(&volume, dir, "never whole"));
    let waiting = Program::new(&sessions, Privileges::ALL);
    let handle = Handle(7);
    let request = Request::Lookup { dir: Handle::ROOT, name: b"dir".into(), result: handle };
    assert!(matches!(waiting.ask(&request), Reply::Attr(_)));
    sessions.pause().expect("paused");
    assert!(!volume.is_referenced(dir, 0), "a restart hands over no reference of a session");
    sessions.end().expect("ended");
}

#[test]
fn a_session_waits_until_its_program_has_renewed_its_lease() {
    let volume = volume();
    let sessions = sessions(&volume);
    let program = Program::idle(&sessions, Privileges::ALL);
    let uid = me(Privileges::ALL).uid;
    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let change = Request::SetAttr { node: Handle::ROOT, changes: now };
    assert_eq!(program.ask(&change), Reply::Done);
    assert_eq!(answer(&program.stream), Some(Answer::Settled { calls: 1 }));
    thread::sleep(LEASE + Duration::from_millis(100));
    let attr = Request::Attr { node: Handle::ROOT };
    assert!(matches!(program.ask(&attr), Reply::Attr(_)), "it may look");
    assert_eq!(answer(&program.stream), Some(Answer::Settled { calls: 2 }));
    (&program.stream).write_all(&change.encode()).expect("sent");
    program.stream.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    assert!((&program.stream).read(&mut [0; 8]).is_err(), "it is answered too late");
    let asks = |dir, number, uid| sessions.ask(dir, number, uid, || Err("another program"));
    let other = make_dir(&volume, InodeNo::ROOT, "other", 0o755);
    asks(InodeNo::ROOT, 6, uid).expect("asked by another number");
    asks(InodeNo::ROOT, 5, uid + 1).expect("asked by another user");
    asks(other, 5, uid).expect("asked at another directory");
    assert!((&program.stream).read(&mut [0; 8]).is_err(), "others have asked");
    asks(InodeNo::ROOT, 5, uid).expect("asked");
    program.stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    assert_eq!(answer(&program.stream), Some(Answer::Reply(Reply::Done)));
    sessions.end().expect("ended");
}

#[test]
fn a_program_that_sees_a_mount_on_a_volume_gets_no_session() {
    let volume = volume();
    let sessions = sessions(&volume);
    let user = me(Privileges::ALL);
    let uid = user.uid;
    let covered = Asking { user, are_covered: true, access: Access::ReadWrite };
    sessions.ask(InodeNo::ROOT, 5, uid, || Ok(covered)).expect("asked");
    let answer = sessions.answer(5, uid).expect("answered");
    let Ok(Invitation::Ticket { socket, ticket }) = Invitation::decode(&answer) else {
        panic!("removals need a ticket, too")
    };
    let refused = attach(&greeted(&socket), ticket, sealed());
    assert!(matches!(refused, Some(Answer::Refused(_))), "{refused:?}");
    sessions.end().expect("ended");
}

#[test]
fn a_file_that_gets_no_handle_is_not_made() {
    let volume = volume();
    let sessions = sessions(&volume);
    make_dir(&volume, InodeNo::ROOT, "dir", 0o755);
    let program = Program::new(&sessions, Privileges::ALL);
    let lookup = |handle| {
        let (dir, name) = (Handle::ROOT, b"dir".to_vec());
        Request::Lookup { dir, name, result: Handle(handle) }
    };
    let most = HANDLES_MAX as u32;
    for first in (1..most).step_by(1000) {
        let handles = first..most.min(first + 1000);
        let requests: Vec<u8> =
            handles.clone().flat_map(|handle| lookup(handle).encode()).collect();
        (&program.stream).write_all(&requests).expect("sent");
        let mut replies = 0;
        while replies < handles.len() {
            match answer(&program.stream) {
                Some(Answer::Reply(Reply::Attr(_))) => replies += 1,
                Some(Answer::Settled { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let make = |result| {
        let (name, kind) = (b"new".to_vec(), Kind::Regular);
        Request::Make { dir: Handle::ROOT, name, kind, permissions: 0o644, result: Handle(result) }
    };
    let error = program.fails(&make(most));
    assert!(matches!(error, Error::InUse(_)), "{error}");
    assert!(!is_there(&volume, InodeNo::ROOT, "new"));
    assert!(matches!(program.fails(&lookup(most)), Error::InUse(_)));
    assert!(matches!(program.ask(&make(1)), Reply::Attr(_)), "this handle is used again");
    sessions.end().expect("ended");
}

/// The kernel permits them only to a program with the capability in its first user namespace.
#[test]
fn no_program_makes_devices_and_attributes_of_the_system() {
    let volume = volume();
    let sessions = sessions(&volume);
    let program = Program::new(&sessions, Privileges::ALL);
    program.made(Handle::ROOT, "file", Kind::Regular, FILE);
    let make = |name: &str, kind| Request::Make {
        dir: Handle::ROOT,
        name: name.into(),
        kind,
        permissions: 0o600,
        result: Handle(9),
    };
    let xattr = |name: &str| Request::SetXattr { node: FILE, name: name.into(), value: vec![1] };
    for request in [
        make("disk", Kind::BlockDevice(8 << 32)),
        make("memory", Kind::CharDevice(1 << 32 | 1)),
        xattr("trusted.overlay.opaque"),
        xattr("security.selinux"),
    ] {
        let error = program.fails(&request);
        assert!(matches!(error, Error::NotPermitted), "{request:?}: {error}");
    }
    assert!(matches!(program.ask(&make("whiteout", Kind::CharDevice(0))), Reply::Attr(_)));
    assert_eq!(program.ask(&xattr("security.capability")), Reply::Done);
    sessions.end().expect("ended");
}

/// The ACL of a file whose group the user is not in takes the set-group-ID bit, as in the kernel.
#[test]
fn an_acl_and_contents_take_set_id_bits() {
    let volume = volume();
    let sessions = sessions(&volume);
    let ours = NewFile { gid: user_id(), ..new(NewKind::Regular, 0o2770, me(Privileges::ALL).uid) };
    let ino = make(&volume, InodeNo::ROOT, "file", &ours);
    let program = Program::new(&sessions, Privileges::default());
    let find = Request::Lookup { dir: Handle::ROOT, name: b"file".into(), result: FILE };
    assert!(matches!(program.ask(&find), Reply::Attr(_)));
    let undefined = u32::MAX.to_le_bytes();
    let entries = [(1u8, 7u8), (4, 5), (0x20, 5)];
    let entries = entries.map(|(tag, mode)| [&[tag, 0, mode, 0][..], &undefined].concat());
    let value = [b"\x02\0\0\0".to_vec(), entries.concat()].concat();
    let acl =
        |value| Request::SetXattr { node: FILE, name: b"system.posix_acl_access".into(), value };
    // Regression: the bit was gone.
    let error = program.fails(&acl(value[1..].to_vec())).to_string();
    assert!(error.contains("not a POSIX ACL"), "{error}");
    assert_eq!(volume.attr(ino).expect("there").permissions, 0o2770);
    assert_eq!(program.ask(&acl(value)), Reply::Done);
    assert_eq!(volume.attr(ino).expect("there").permissions, 0o755);
    let changes = SetAttr { permissions: Some(0o6755), ..SetAttr::default() };
    volume.set_attr(ME, ino, &changes).expect("set");
    let write = Request::Write { node: FILE, at: 0, contents: Memory { offset: 0, len: 4 } };
    assert_eq!(program.ask(&write), Reply::Done);
    assert_eq!(volume.attr(ino).expect("there").permissions, 0o755);
    sessions.end().expect("ended");
}

#[test]
fn a_file_that_only_grows_can_be_appended_to() {
    let volume = volume();
    let sessions = sessions(&volume);
    let ino = make_file(&volume, InodeNo::ROOT, "log");
    volume.set_flags(ino, InodeFlags::APPEND_ONLY).expect("set");
    let program = Program::new(&sessions, Privileges::ALL);
    let find = Request::Lookup { dir: Handle::ROOT, name: b"log".into(), result: FILE };
    assert!(matches!(program.ask(&find), Reply::Attr(_)));
    let write = |at| Request::Write { node: FILE, at, contents: Memory { offset: 0, len: 4 } };
    assert_eq!(program.ask(&write(0)), Reply::Done);
    assert_eq!(program.ask(&write(4)), Reply::Done);
    assert!(matches!(program.fails(&write(3)), Error::NotPermitted));
    sessions.end().expect("ended");
}

/// Regression: a file whose last name had gone got another one.
#[test]
fn a_file_without_a_name_gets_none() {
    let volume = volume();
    let sessions = sessions(&volume);
    let program = Program::new(&sessions, Privileges::ALL);
    program.made(Handle::ROOT, "file", Kind::Regular, FILE);
    let (dir, name) = (Handle::ROOT, || b"file".to_vec());
    assert_eq!(program.ask(&Request::Unlink { dir, name: name() }), Reply::Done);
    let link = Request::Link { node: FILE, dir, name: name(), result: Handle(9) };
    assert!(matches!(program.fails(&link), Error::NotFound));
    assert!(!is_there(&volume, InodeNo::ROOT, "file"));
    sessions.end().expect("ended");
}

/// The kernel refuses the same to a user without privileges.
#[test]
fn requests_have_the_rights_of_the_program() {
    let volume = volume();
    let sessions = sessions(&volume);
    let theirs = make_dir(&volume, InodeNo::ROOT, "theirs", 0o755);
    let hidden = make_dir(&volume, InodeNo::ROOT, "hidden", 0o700);
    let shared = make_dir(&volume, InodeNo::ROOT, "shared", 0o1777);
    for dir in [theirs, hidden, shared] {
        make_file(&volume, dir, "file");
    }
    let program = Program::new(&sessions, Privileges::default());
    let find =
        |dir, name: &str, result| program.ask(&Request::Lookup { dir, name: name.into(), result });
    let [theirs, hidden, shared, file] = [10, 11, 12, 13].map(Handle);
    for (name, handle) in [("theirs", theirs), ("hidden", hidden), ("shared", shared)] {
        assert!(matches!(find(Handle::ROOT, name, handle), Reply::Attr(_)), "{name}");
    }
    assert!(matches!(find(theirs, "file", file), Reply::Attr(_)));
    let denied = |request: Request| {
        let error = program.fails(&request);
        assert!(matches!(error, Error::AccessDenied), "{request:?}: {error}");
    };
    let not_permitted = |request: Request| {
        let error = program.fails(&request);
        assert!(matches!(error, Error::NotPermitted), "{request:?}: {error}");
    };
    let make = |dir, name: &str, kind| Request::Make {
        dir,
        name: name.into(),
        kind,
        permissions: 0o644,
        result: Handle(99),
    };
    denied(make(theirs, "new", Kind::Regular));
    assert!(
        matches!(program.fails(&make(theirs, "file", Kind::Directory)), Error::Exists),
        "the kernel finds the name before it asks for the right"
    );
    denied(Request::Lookup { dir: hidden, name: b"file".into(), result: Handle(99) });
    denied(Request::Unlink { dir: theirs, name: b"file".into() });
    not_permitted(Request::Unlink { dir: shared, name: b"file".into() });
    denied(Request::Write { node: file, at: 0, contents: Memory::default() });
    let changes = |changes| Request::SetAttr { node: file, changes };
    let none = SetAttr::default();
    not_permitted(changes(SetAttr { permissions: Some(0o777), ..none }));
    not_permitted(changes(SetAttr { uid: Some(me(Privileges::ALL).uid), ..none }));
    denied(changes(SetAttr { size: Some(0), ..none }));
    let link = |name: &str| Request::Link {
        node: file,
        dir: shared,
        name: name.into(),
        result: Handle(99),
    };
    not_permitted(link("link"));
    not_permitted(make(shared, "device", Kind::BlockDevice(1)));
    let xattr = |name: &str| Request::SetXattr { node: file, name: name.into(), value: vec![1] };
    denied(xattr("user.a"));
    not_permitted(xattr("trusted.a"));
    not_permitted(xattr("security.a"));
    not_permitted(xattr("system.posix_acl_access"));
    assert!(matches!(program.fails(&xattr("system.cffs.attach")), Error::NotSupported));
    let own = program.made(shared, "own", Kind::Regular, FILE);
    assert_eq!((own.uid, own.permissions), (me(Privileges::ALL).uid, 0o755));
    let read_only = SetAttr { permissions: Some(0o400), ..none };
    assert_eq!(program.ask(&Request::SetAttr { node: FILE, changes: read_only }), Reply::Done);
    let write = Request::Write { node: FILE, at: 3, contents: Memory { offset: 0, len: 4 } };
    assert_eq!(program.ask(&write), Reply::Done, "its maker may fill it");
    let given = SetAttr { uid: Some(user_id()), ..none };
    not_permitted(Request::SetAttr { node: FILE, changes: given });
    sessions.end().expect("ended");
}

/// Regression: a mode that was set may be followed by no name of a user whom it excludes.
#[test]
fn a_file_is_made_only_while_the_directory_has_the_mode_that_was_checked() {
    let volume = volume();
    let dir = make_dir(&volume, InodeNo::ROOT, "dir", 0o777);
    let user = user();
    let is_open = |dir: &Attr, _: Option<&Attr>| dir.permissions == 0o777;
    let caller = user.caller(Some(&is_open));
    make_with(&volume, &caller, dir, "before").expect("made");
    let changes = SetAttr { permissions: Some(0o700), ..SetAttr::default() };
    volume.set_attr(ME, dir, &changes).expect("set");
    assert!(matches!(make_with(&volume, &caller, dir, "after"), Err(Error::Unmet)));
    assert!(!is_there(&volume, dir, "after"));
}

fn make_with(volume: &Volume, caller: &Caller<'_>, dir: InodeNo, name: &str) -> Result<()> {
    let made = volume.make(caller, dir, name.as_bytes(), &new(NewKind::Regular, 0o644, 0))?;
    volume.release(made.ino, 1);
    Ok(())
}

#[test]
fn a_fault_arrives_as_the_error_that_it_was() {
    let errors = [Error::NoSpace, Error::ReadOnly, Error::NotFound, Error::TooManyLinks];
    for error in errors {
        let text = error.to_string();
        assert_eq!(Error::from(Fault::from(&error)).to_string(), text);
    }
    let latched = Error::from(Fault::from(&Error::Latched("why".into())));
    assert!(matches!(latched, Error::Latched(why) if why == "why"));
    let other = Error::from(Fault::from(&Error::Invalid("this")));
    assert_eq!(cffs::vfs::errno(&other), 22, "EINVAL");
    // Regression: "device error: invalid argument: this".
    assert_eq!(other.to_string(), "invalid argument: this");
    let failed = std::io::Error::from_raw_os_error(5);
    let text = Error::from(failed).to_string();
    let failed = Error::from(Fault::from(&Error::Io(std::io::Error::from_raw_os_error(5))));
    assert!(matches!(&failed, Error::Io(_)), "{failed:?}");
    assert_eq!(failed.to_string(), text);
    assert_eq!(cffs::vfs::errno(&failed), 5, "EIO");
}

/// An observer that the test asks while a server has it.
struct Told(Arc<Heard>);

impl Observer for Told {
    fn changed(&self, change: Change<'_>) {
        self.0.changed(change);
    }

    fn broken(&self) {}
}

#[test]
fn the_kernel_is_notified_of_a_file_if_it_may_know_the_file() {
    let (volume, heard) = (volume(), Arc::new(Heard::default()));
    let observer = Box::new(Told(Arc::clone(&heard)));
    let sessions = Sessions::new(Current::new(Arc::clone(&volume)), observer, true);
    let program = Program::new(&sessions, Privileges::ALL);
    let told = || std::mem::take(&mut *heard.0.lock().expect("whole"));
    let none: [&str; 0] = [];
    let dir = program.made(Handle::ROOT, "dir", Kind::Directory, DIR).ino;
    assert_eq!(told(), ["name"], "the kernel always knows the root");
    let file = program.made(DIR, "file", Kind::Regular, FILE).ino;
    let put_and_wait = |name: &str| {
        let put = Request::Put(put(DIR, name, Memory::default())).encode();
        (&program.stream).write_all(&put).expect("sent");
        assert!(matches!(program.ask(&Request::Attr { node: DIR }), Reply::Attr(_)));
    };
    put_and_wait("first");
    let changes = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
    assert_eq!(program.ask(&Request::SetAttr { node: FILE, changes }), Reply::Done);
    assert_eq!(told(), none, "only this session knows the directory");
    volume.lookup(InodeNo::ROOT, b"dir").expect("found");
    volume.lookup(dir, b"file").expect("found");
    put_and_wait("second");
    assert_eq!(told(), ["name"]);
    assert_eq!(program.ask(&Request::SetAttr { node: FILE, changes }), Reply::Done);
    let write = Request::Write { node: FILE, at: 0, contents: Memory { offset: 0, len: 1 } };
    assert_eq!(program.ask(&write), Reply::Done);
    let changed = [format!("attributes {file}"), format!("contents {file}")];
    assert_eq!(told(), changed);
    let unlink = Request::Unlink { dir: DIR, name: b"file".into() };
    assert_eq!(program.ask(&unlink), Reply::Done);
    let removed =
        [format!("removed {dir} file"), format!("attributes {file}"), format!("contents {dir}")];
    assert_eq!(told(), removed);
    for ino in [dir, file] {
        volume.release(ino, 1);
    }
    sessions.end().expect("ended");
}
