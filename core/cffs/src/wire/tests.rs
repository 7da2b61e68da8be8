use super::*;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::format::inode::{FileType, InodeFlags};
use crate::units::InodeNo;
use crate::vfs::types::{SetAttr, SetTime};

fn calls() -> Vec<Call> {
    let remove =
        |name: &[u8], recursive| Call::Remove { ticket: [9; 16], name: name.into(), recursive };
    vec![
        Call::Hello { oldest: 1, newest: 3 },
        remove(b"a", false),
        remove(&[b'x'; 255], true),
        remove(b"...", true),
        Call::Attach { ticket: [7; 16], umask: 0o027, memory_bytes: 16 << 20 },
    ]
}

fn attr() -> Attr {
    let time = |seconds| Timestamp { seconds, nanoseconds: 999_999_999 };
    Attr {
        ino: InodeNo(1 << 40),
        generation: 3,
        file_type: FileType::CharDevice,
        permissions: 0o7777,
        nlink: 4,
        uid: 5,
        gid: 6,
        device: 7 << 32 | 8,
        size: 1 << 50,
        allocated_bytes: 9,
        atime: time(-1),
        mtime: time(i64::MAX),
        ctime: time(0),
        btime: time(1),
        change: 10,
        flags: InodeFlags::SETTABLE,
    }
}

fn changes() -> SetAttr {
    SetAttr {
        permissions: Some(0o4755),
        uid: Some(0),
        gid: None,
        size: Some(u64::MAX),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(Timestamp { seconds: -5, nanoseconds: 1 })),
        ..SetAttr::default()
    }
}

fn requests() -> Vec<Request> {
    let (node, dir, result) = (Handle(1), Handle::ROOT, Handle(u32::MAX));
    let name = || b"name".to_vec();
    let put = Put {
        dir,
        name: name(),
        kind: Kind::Regular,
        permissions: 0o600,
        contents: Memory { offset: 4096, len: CONTENTS_BYTES_MAX },
        changes: changes(),
        inherits_acls: true,
    };
    let link = Put {
        kind: Kind::Symlink(b"target".into()),
        contents: Memory::default(),
        changes: SetAttr::default(),
        inherits_acls: false,
        ..put.clone()
    };
    let kinds = [
        Kind::Directory,
        Kind::Symlink(vec![b't'; 4095]),
        Kind::Fifo,
        Kind::Socket,
        Kind::CharDevice(1),
        Kind::BlockDevice(u64::MAX),
    ];
    let make = |kind| Request::Make { dir, name: name(), kind, permissions: 0o755, result };
    let value = vec![0xff; 64 << 10];
    let mut requests = vec![
        Request::Lookup { dir, name: name(), result },
        Request::Attr { node },
        Request::SetAttr { node, changes: changes() },
        Request::ReadLink { node },
        Request::Put(put),
        Request::Put(link),
        Request::Write { node, at: 1 << 40, contents: Memory { offset: 0, len: 1 } },
        Request::Link { node, dir, name: name(), result },
        Request::Unlink { dir, name: name() },
        Request::XattrNames { node },
        Request::SetXattr { node, name: b"user.a/b".into(), value },
        Request::RemoveXattr { node, name: b"user.a".into() },
        Request::Forget { node },
        Request::RemoveDir { dir, name: name() },
        Request::Rename { dir, name: name(), new_dir: node, new_name: b"new".into() },
        Request::Append { node, contents: Memory { offset: 1, len: 2 } },
        Request::Sync { node },
        Request::MakeDir { dir, name: name(), permissions: 0o1700, result },
        Request::Complete { node, changes: changes(), clears_user: true },
        Request::Complete { node, changes: SetAttr::default(), clears_user: false },
    ];
    requests.extend(kinds.map(make));
    requests.extend(queries().map(Request::Query));
    requests
}

fn queries() -> [Query; 10] {
    let (node, dir, result) = (Handle(1), Handle::ROOT, Handle(u32::MAX));
    let contents = Memory { offset: 15 << 20, len: CONTENTS_BYTES_MAX };
    let paths = vec![b"a/../b".into(), vec![b'/'; WALK_BYTES_MAX], Vec::new()];
    [
        Query::Walk { dir, path: b"/a/./..//b/".into(), follow: true, result },
        Query::Walk { dir, path: Vec::new(), follow: false, result },
        Query::Read { node, at: u64::MAX, contents },
        Query::ReadMany { dir, paths, contents },
        Query::ReadMany { dir, paths: vec![b"x".into(); PATHS_MAX], contents },
        Query::List { dir, cookie: u64::MAX },
        Query::Xattr { node, name: b"user.a".into() },
        Query::Seek { node, at: 1 << 40, hole: true },
        Query::Descend { dir, result },
        Query::Continue { walk: result },
    ]
}

#[test]
fn queries_that_make_no_sense_are_refused() {
    let (dir, contents) = (Handle::ROOT, Memory::default());
    let walk = |path: &[u8], result| Query::Walk { dir, path: path.into(), follow: true, result };
    for query in [
        walk(b"a", Handle::ROOT),
        walk(b"a\0b", Handle(1)),
        walk(&[b'a'; WALK_BYTES_MAX + 1], Handle(1)),
        Query::ReadMany { dir, paths: vec![b"\0".into()], contents },
        Query::ReadMany { dir, paths: vec![Vec::new(); PATHS_MAX + 1], contents },
        Query::Xattr { node: dir, name: Vec::new() },
        Query::Descend { dir, result: Handle::ROOT },
    ] {
        let message = Request::Query(query.clone()).encode();
        let (kind, body) = parts(&message, REQUEST_BYTES_MAX);
        assert_eq!(Request::decode(kind, body), Err(BadMessage), "{query:?}");
    }
}

#[test]
fn as_many_paths_are_sent_together_as_one_request_takes() {
    let long = vec![vec![b'a'; WALK_BYTES_MAX]; 20];
    let paths = |paths: &[Vec<u8>]| fitting(paths.iter().map(|path| &path[..]));
    assert_eq!(paths(&long), WALKED_BYTES_MAX / (WALK_BYTES_MAX + 2));
    assert_eq!(paths(&vec![Vec::new(); PATHS_MAX + 1]), PATHS_MAX);
    let named = long[..paths(&long)].to_vec();
    let contents = Memory::default();
    let query = Query::ReadMany { dir: Handle::ROOT, paths: named, contents };
    let message = Request::Query(query).encode();
    assert!(message.len() <= HEADER_BYTES + REQUEST_BYTES_MAX);
}

fn answers() -> Vec<Answer> {
    let removed = Removed { files: 1 << 40, directories: 3 };
    let failure = |path: &[u8], text: &str| {
        Answer::Failed(Failure { path: path.into(), errno: 13, text: text.into() })
    };
    let entry = Entry { name: vec![b'n'; 255], cookie: 1 << 50, attr: attr() };
    let found = Found::Entry { name: vec![b'n'; 255], attr: attr() };
    let step = Step { depth: u32::MAX, found };
    let fault = Step { depth: 0, found: Found::Fault(Fault::from(&Error::AccessDenied)) };
    vec![
        Answer::Welcome { version: 1 },
        Answer::Refused("no".into()),
        Answer::Progress(removed),
        failure(b"d/\xff", "permission denied"),
        failure(&[b'y'; PATH_BYTES_MAX], ""),
        Answer::Done { removed, end: End::Complete },
        Answer::Done { removed, end: End::Cancelled },
        Answer::Done { removed, end: End::Closing },
        Answer::Attached { root: attr() },
        Answer::Reply(Reply::Done),
        Answer::Reply(Reply::Attr(attr())),
        Answer::Reply(Reply::Bytes(b"user.a\0user.b\0".into())),
        Answer::Reply(Reply::Fault(Fault::from(&Error::NoSpace))),
        Answer::Reply(Reply::Count(u64::MAX)),
        Answer::Reply(Reply::Entries(Vec::new(), true)),
        Answer::Reply(Reply::Entries(vec![entry; LISTED_BYTES / (ENTRY_BYTES + 255) + 1], false)),
        Answer::Reply(Reply::Many(vec![
            (0, Outcome::Contents(Memory { offset: 1, len: 2 })),
            (u16::MAX, Outcome::TooLarge),
            (1, Outcome::Fault(Fault::from(&Error::Damaged("why".into())))),
        ])),
        Answer::Reply(Reply::Steps(vec![step; LISTED_BYTES / (ENTRY_BYTES + 255) + 1], false)),
        Answer::Reply(Reply::Steps(vec![fault], true)),
        Answer::PutFailed { call: 1 << 40, fault: Fault::from(&Error::Invalid("why")) },
        Answer::Settled { calls: u64::MAX },
    ]
}

/// The kind and the body of a message.
fn parts(message: &[u8], bytes_max: usize) -> (u32, &[u8]) {
    let (head, body) = message.split_first_chunk().expect("a header");
    let (len, kind) = header(*head, bytes_max).expect("a length");
    assert_eq!(len, body.len());
    (kind, body)
}

#[test]
fn messages_are_decoded_as_they_were_encoded() {
    for call in calls() {
        let message = call.encode();
        let (kind, body) = parts(&message, CALL_BYTES_MAX);
        assert_eq!(Call::decode(kind, body), Ok(call));
    }
    for answer in answers() {
        let message = answer.encode();
        let (kind, body) = parts(&message, ANSWER_BYTES_MAX);
        assert_eq!(Answer::decode(kind, body), Ok(answer));
    }
    for request in requests() {
        let message = request.encode();
        let (kind, body) = parts(&message, REQUEST_BYTES_MAX);
        assert_eq!(Request::decode(kind, body), Ok(request));
    }
    let socket = String::from("cffs-0a");
    let ticket = std::array::from_fn(|at| 16 * at as u8);
    for invitation in [Invitation::Ticket { socket, ticket }, Invitation::Refused("why".into())] {
        assert_eq!(Invitation::decode(&invitation.encode()), Ok(invitation));
    }
}

/// The bytes of version 1, which programs in use send.
#[test]
fn the_bytes_of_the_first_version_stay() {
    let call = Call::Remove { ticket: *b"0123456789abcdef", name: b"dir".into(), recursive: true };
    assert_eq!(call.encode(), b"\x16\0\0\0\x02\0\0\0\x30\x31\x32\x33456789abcdef\x01\x03\0dir");
    let hello = Call::Hello { oldest: 1, newest: 1 };
    assert_eq!(hello.encode(), b"\x08\0\0\0\x01\0\0\0CFFS\x01\0\x01\0");
    let failed = Failure { path: b"a/b".into(), errno: 13, text: "no".into() };
    assert_eq!(Answer::Failed(failed).encode(), b"\x0b\0\0\0\x04\0\0\0\x0d\0\x03\0\0\0a/bno");
}

#[test]
fn a_body_that_is_cut_off_is_refused_and_one_that_is_longer_is_not() {
    for call in calls() {
        let message = call.encode();
        let (kind, body) = parts(&message, CALL_BYTES_MAX);
        for len in 0..body.len() {
            assert_eq!(Call::decode(kind, &body[..len]), Err(BadMessage), "{call:?} {len}");
        }
        assert_eq!(Call::decode(kind, &[body, b"of a later version"].concat()), Ok(call));
    }
    for request in requests() {
        let message = request.encode();
        let (kind, body) = parts(&message, REQUEST_BYTES_MAX);
        for len in 0..body.len() {
            assert_eq!(Request::decode(kind, &body[..len]), Err(BadMessage), "{kind} {len}");
        }
        assert_eq!(Request::decode(kind, &[body, b"of a later version"].concat()), Ok(request));
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let refused = |request: Request| {
        let message = request.encode();
        let (kind, body) = parts(&message, REQUEST_BYTES_MAX);
        assert_eq!(Request::decode(kind, body), Err(BadMessage), "{request:?}");
    };
    let (node, dir, name) = (Handle(1), Handle::ROOT, || b"name".to_vec());
    refused(Request::Forget { node: Handle::ROOT });
    refused(Request::Lookup { dir, name: name(), result: Handle::ROOT });
    let at = |offset, len| Request::Write { node, at: 0, contents: Memory { offset, len } };
    refused(at(u32::MAX, 1));
    refused(at(0, CONTENTS_BYTES_MAX + 1));
    let put = Put {
        dir,
        name: name(),
        kind: Kind::Directory,
        permissions: 0o700,
        contents: Memory::default(),
        changes: SetAttr::default(),
        inherits_acls: true,
    };
    refused(Request::Put(put.clone()));
    let contents = Memory { offset: 0, len: 1 };
    refused(Request::Put(Put { kind: Kind::Fifo, contents, ..put.clone() }));
    let size = SetAttr { size: Some(1), ..SetAttr::default() };
    refused(Request::Put(Put { kind: Kind::Fifo, changes: size, ..put.clone() }));
    let regular = Put { kind: Kind::Regular, ..put };
    refused(Request::Put(Put { permissions: 0o10000, ..regular.clone() }));
    // The file belongs to the program, which copies it for another user.
    for permissions in [0o4755, 0o2755] {
        refused(Request::Put(Put { permissions, ..regular.clone() }));
        let (kind, result) = (Kind::Regular, Handle(1));
        refused(Request::Make { dir, name: name(), kind, permissions, result });
        refused(Request::MakeDir { dir, name: name(), permissions, result });
    }
    let set = |changes| Request::SetAttr { node, changes };
    refused(set(SetAttr { uid: Some(u32::MAX), ..SetAttr::default() }));
    let late = Timestamp { seconds: 0, nanoseconds: 1_000_000_000 };
    refused(set(SetAttr { mtime: Some(SetTime::To(late)), ..SetAttr::default() }));
    refused(Request::RemoveXattr { node, name: b"user.\0".into() });
}

#[test]
fn an_invitation_that_is_none_is_refused() {
    for text in ["", "refused", "ticket", "ticket a", "ticket a 0", "ticket a +1", "ticket  "] {
        assert_eq!(Invitation::decode(text.as_bytes()), Err(BadMessage), "{text}");
    }
    let long = format!("ticket a {}", "00".repeat(17));
    assert_eq!(Invitation::decode(long.as_bytes()), Err(BadMessage));
    assert_eq!(Invitation::decode(b"refused \xff"), Err(BadMessage));
}

#[test]
fn a_call_names_one_file_of_its_directory() {
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; 256]] {
        let message = Call::Remove { ticket: [0; 16], name: name.into(), recursive: true }.encode();
        let (kind, body) = parts(&message, CALL_BYTES_MAX);
        assert_eq!(Call::decode(kind, body), Err(BadMessage), "{}", name.escape_ascii());
    }
}

#[test]
fn lengths_and_kinds_beyond_the_limits_are_refused() {
    let head =
        |len: u32| header([len.to_le_bytes(), [1, 0, 0, 0]].concat().try_into().unwrap(), 10);
    assert_eq!(head(10), Ok((10, 1)));
    assert_eq!(head(11), Err(BadMessage));
    assert_eq!(head(u32::MAX), Err(BadMessage));
    assert_eq!(Call::decode(4, &[0; 100]), Err(BadMessage));
    assert_eq!(Answer::decode(0, &[0; 100]), Err(BadMessage));
    let path_beyond_the_end = [&[13, 0][..], &u32::MAX.to_le_bytes(), b"abc"].concat();
    assert_eq!(Answer::decode(4, &path_beyond_the_end), Err(BadMessage));
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let message = Answer::Refused("ä".repeat(1000) + "b").encode();
    let (kind, body) = parts(&message, ANSWER_BYTES_MAX);
    assert_eq!(Answer::decode(kind, body), Ok(Answer::Refused("ä".repeat(512))));
}
