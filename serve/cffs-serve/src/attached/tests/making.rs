//! Requests that make trees.

use cffs::vfs::types::{SetTime, XattrMode};
use cffs::wire::{Handle, Kind, Memory, Put, Reply, Request};

use super::requests::Program;
use super::*;

const DIR: Handle = Handle(1);
const OTHER: Handle = Handle(2);
/// An ACL that gives a user all permissions.
const ACL: &[u8] = b"\x02\0\0\0\
    \x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\xea\x03\0\0\x04\0\0\0\xff\xff\xff\xff\
    \x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

fn make_dir_request(dir: Handle, name: &str, result: Handle) -> Request {
    Request::MakeDir { dir, name: name.into(), permissions: 0o700, result }
}

#[test]
fn a_directory_is_made_or_found_and_other_files_are_refused() {
    let volume = volume();
    let sessions = sessions(&volume);
    let program = Program::new(&sessions, Privileges::default());
    let made = |request: &Request| match program.ask(request) {
        Reply::Attr(attr) => attr,
        other => panic!("{request:?}: {other:?}"),
    };
    let theirs = make_dir(&volume, InodeNo::ROOT, "theirs", 0o755);
    make_file(&volume, InodeNo::ROOT, "file");
    let shared = make_dir(&volume, InodeNo::ROOT, "shared", 0o1777);
    assert_eq!(made(&make_dir_request(Handle::ROOT, "theirs", DIR)).ino, theirs);
    let denied = program.fails(&make_dir_request(DIR, "new", OTHER));
    assert!(matches!(denied, Error::AccessDenied), "{denied}");
    let file = program.fails(&make_dir_request(Handle::ROOT, "file", OTHER));
    assert!(matches!(file, Error::NotDirectory), "{file}");
    let below = program.fails(&make_dir_request(OTHER, "below", Handle(3)));
    assert!(matches!(below, Error::Stale), "{below}");
    assert_eq!(made(&make_dir_request(Handle::ROOT, "shared", DIR)).ino, shared);
    let new = made(&make_dir_request(DIR, "new", OTHER));
    assert_eq!((new.permissions, new.uid), (0o700, me(Privileges::ALL).uid));
    assert_eq!(made(&make_dir_request(DIR, "new", Handle(3))).ino, new.ino, "it is there");
    sessions.end().expect("ended");
    assert!(![theirs, shared, new.ino].into_iter().any(|ino| volume.is_referenced(ino, 0)));
}

#[test]
fn a_complete_directory_has_its_attributes_and_no_others() {
    let volume = volume();
    let sessions = sessions(&volume);
    let shared = make_dir(&volume, InodeNo::ROOT, "shared", 0o777);
    let inherited = b"system.posix_acl_default";
    volume.set_xattr(ME, shared, inherited, ACL, XattrMode::Any).expect("set");
    let program = Program::new(&sessions, Privileges::default());
    assert!(matches!(program.ask(&make_dir_request(Handle::ROOT, "shared", DIR)), Reply::Attr(_)));
    let Reply::Attr(made) = program.ask(&make_dir_request(DIR, "new", OTHER)) else {
        panic!("not made");
    };
    let names = || volume.xattr_names(made.ino).expect("listed");
    assert_eq!(names().len(), 2, "it has inherited both ACLs");
    volume.set_xattr(ME, made.ino, b"user.a", b"value", XattrMode::Any).expect("set");
    let time = cffs::clock::Timestamp { seconds: 5, nanoseconds: 6 };
    let changes =
        SetAttr { permissions: Some(0o555), mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    let complete = |node, clears_user| Request::Complete { node, changes, clears_user };
    assert_eq!(program.ask(&complete(OTHER, false)), Reply::Done);
    assert_eq!(names(), [b"user.a".to_vec()]);
    let attr = volume.attr(made.ino).expect("read");
    assert_eq!((attr.permissions, attr.mtime), (0o555, time));
    assert_eq!(program.ask(&complete(OTHER, true)), Reply::Done);
    assert!(names().is_empty());
    // The directory of another user keeps what it has.
    let error = program.fails(&complete(DIR, true));
    assert!(matches!(error, Error::NotPermitted), "{error}");
    assert_eq!(volume.xattr_names(shared).expect("listed").len(), 1);
    sessions.end().expect("ended");
}

#[test]
fn nothing_is_made_in_a_directory_that_was_not_made() {
    let volume = volume();
    let sessions = sessions(&volume);
    make_file(&volume, InodeNo::ROOT, "name");
    let program = Program::new(&sessions, Privileges::ALL);
    let put = Put {
        dir: DIR,
        name: b"name".to_vec(),
        kind: Kind::Regular,
        permissions: 0o600,
        contents: Memory::default(),
        changes: SetAttr::default(),
        inherits_acls: false,
    };
    let requests = [make_dir_request(Handle::ROOT, "name", DIR), Request::Put(put)];
    let bytes: Vec<u8> = requests.iter().flat_map(Request::encode).collect();
    (&program.stream).write_all(&bytes).expect("sent");
    let failed = |answer| match answer {
        Some(Answer::Reply(Reply::Fault(fault)) | Answer::PutFailed { call: 2, fault }) => {
            Error::from(fault)
        }
        other => panic!("{other:?}"),
    };
    let answers = || loop {
        match answer(&program.stream) {
            Some(Answer::Settled { .. }) => {}
            other => return other,
        }
    };
    assert!(matches!(failed(answers()), Error::NotDirectory));
    assert!(matches!(failed(answers()), Error::Stale));
    sessions.end().expect("ended");
}
