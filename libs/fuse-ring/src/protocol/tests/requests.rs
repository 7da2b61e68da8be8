//! Decoding of every operation.

use super::super::{
    CopyFileRange, Create, Dialect, Fallocate, FileHandle, Ioctl, LockOwner, Malformed, NodeId,
    Opcode, Open, Operation, Read, Release, Rename, SetAttr, SetTime, SetXattr, Timestamp, Unique,
    Write,
};
use super::{Bytes, DIALECT, bytes, decode, message, operation};

#[track_caller]
fn decodes(opcode: Opcode, body: Bytes, expected: Operation<'_>) {
    assert_eq!(operation(opcode, &body).unwrap(), expected);
}

#[track_caller]
fn fails(opcode: Opcode, body: Bytes, expected: Malformed) {
    assert_eq!(operation(opcode, &body), Err(expected));
}

#[test]
fn the_header_names_the_caller_and_the_node() {
    let message = message(1, &bytes().bytes(b"a\0"), 0);
    let request = decode(&message, DIALECT).unwrap();
    assert_eq!(request.node, NodeId(77));
    assert_eq!(request.context.unique, Unique(99));
    assert_eq!((request.context.uid, request.context.gid, request.context.pid), (11, 22, 33));
    assert_eq!(request.operation, Operation::Lookup { name: b"a" });
}

#[test]
fn names_are_terminated_bytes() {
    decodes(Opcode::Lookup, bytes().bytes(b"\xff\x01\0"), Operation::Lookup { name: b"\xff\x01" });
    decodes(Opcode::Lookup, bytes().bytes(b"..\0"), Operation::Lookup { name: b".." });
    fails(Opcode::Lookup, bytes().bytes(b"a"), Malformed::Unterminated);
    fails(Opcode::Lookup, bytes(), Malformed::Unterminated);
    fails(Opcode::Lookup, bytes().bytes(b"\0"), Malformed::Name);
    fails(Opcode::Unlink, bytes().bytes(b"a/b\0"), Malformed::Name);
    fails(Opcode::RmDir, bytes().bytes(b"a\0b"), Malformed::Trailing(1));
}

#[test]
fn names_of_xattrs_may_contain_slashes() {
    let body = bytes().u32(4096).u32(0).bytes(b"user.a/b\0");
    decodes(Opcode::GetXattr, body, Operation::GetXattr { name: b"user.a/b", size: 4096 });
    decodes(
        Opcode::RemoveXattr,
        bytes().bytes(b"user.a\0"),
        Operation::RemoveXattr { name: b"user.a" },
    );
    decodes(Opcode::ListXattr, bytes().u32(7).u32(0), Operation::ListXattr { size: 7 });
}

#[test]
fn forgets() {
    decodes(Opcode::Forget, bytes().u64(5), Operation::Forget { lookups: 5 });
    let message = message(42, &bytes().u32(2).u32(0).u64(3).u64(1).u64(4).u64(9), 0);
    let request = decode(&message, DIALECT).unwrap();
    assert!(!request.wants_reply());
    let Operation::BatchForget(forgets) = request.operation else { panic!("{request:?}") };
    assert!(forgets.eq([(NodeId(3), 1), (NodeId(4), 9)]));
    fails(Opcode::BatchForget, bytes().u32(2).u32(0).u64(3).u64(1), Malformed::Count("count"));
    fails(Opcode::BatchForget, bytes().u32(u32::MAX).u32(0), Malformed::Count("count"));
    let ragged = bytes().u32(1).u32(0).u64(3).u64(1).u32(0);
    fails(Opcode::BatchForget, ragged, Malformed::Count("count"));
}

#[test]
fn attributes() {
    let with = Operation::GetAttr { handle: Some(FileHandle(8)) };
    decodes(Opcode::GetAttr, bytes().u32(1).u32(0).u64(8), with);
    let without = Operation::GetAttr { handle: None };
    decodes(Opcode::GetAttr, bytes().u32(0).u32(0).u64(8), without);
    decodes(
        Opcode::Statx,
        bytes().u32(1).u32(0).u64(8).u32(0x6000).u32(0xfff),
        Operation::Statx { handle: Some(FileHandle(8)), flags: 0x6000, mask: 0xfff },
    );
}

fn setattr(valid: u32) -> Bytes {
    let numbers = bytes().u32(valid).u32(0).u64(1).u64(2).u64(3);
    let times = numbers.u64(u64::MAX).u64(5).u64(6).u32(7).u32(8).u32(u32::MAX);
    times.u32(0o100_644).u32(0).u32(10).u32(11).u32(0)
}

#[test]
fn setattr_sets_only_valid_fields() {
    decodes(Opcode::SetAttr, setattr(0), Operation::SetAttr(SetAttr::default()));
    let everything = SetAttr {
        handle: Some(FileHandle(1)),
        mode: Some(0o100_644),
        uid: Some(10),
        gid: Some(11),
        size: Some(2),
        // A time before 1970, and too many nanoseconds.
        atime: Some(SetTime::At(Timestamp { seconds: -1, nanoseconds: 7 })),
        mtime: Some(SetTime::At(Timestamp { seconds: 5, nanoseconds: 8 })),
        ctime: Some(Timestamp { seconds: 6, nanoseconds: 999_999_999 }),
        lock_owner: Some(LockOwner(3)),
        kill_suid_sgid: true,
    };
    decodes(Opcode::SetAttr, setattr(0b1110_0111_1111), Operation::SetAttr(everything));
    let now =
        SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    decodes(Opcode::SetAttr, setattr(0b1_1011_0000), Operation::SetAttr(now));
}

#[test]
fn making() {
    let body = bytes().bytes(b"link\0to/there\0");
    decodes(Opcode::Symlink, body, Operation::Symlink { name: b"link", target: b"to/there" });
    decodes(
        Opcode::MkNod,
        bytes().u32(0o10_600).u32(0x801).u32(0o22).u32(0).bytes(b"n\0"),
        Operation::MkNod { name: b"n", mode: 0o10_600, rdev: 0x801, umask: 0o22 },
    );
    decodes(
        Opcode::MkDir,
        bytes().u32(0o755).u32(0o22).bytes(b"d\0"),
        Operation::MkDir { name: b"d", mode: 0o755, umask: 0o22 },
    );
    decodes(
        Opcode::Link,
        bytes().u64(5).bytes(b"l\0"),
        Operation::Link { target: NodeId(5), name: b"l" },
    );
    let create = Create { flags: 0o102, mode: 0o100_644, umask: 0o22, kill_suid_sgid: true };
    let arguments = || bytes().u32(0o102).u32(0o100_644).u32(0o22).u32(1);
    decodes(Opcode::Create, arguments().bytes(b"f\0"), Operation::Create { name: b"f", create });
    // The name in `TMPFILE` is internal to the kernel.
    decodes(Opcode::TmpFile, arguments().bytes(b"/\0"), Operation::TmpFile { create });
}

#[test]
fn renaming() {
    let rename = |flags| {
        Operation::Rename(Rename { name: b"a", new_parent: NodeId(5), new_name: b"b", flags })
    };
    decodes(Opcode::Rename, bytes().u64(5).bytes(b"a\0b\0"), rename(0));
    decodes(Opcode::Rename2, bytes().u64(5).u32(2).u32(0).bytes(b"a\0b\0"), rename(2));
    fails(Opcode::Rename, bytes().u64(5).bytes(b"a\0b"), Malformed::Unterminated);
    fails(Opcode::Rename, bytes().u64(5).bytes(b"a\0"), Malformed::Unterminated);
}

#[test]
fn opening_and_releasing() {
    let open = Open { flags: 0o1002, kill_suid_sgid: true };
    decodes(Opcode::Open, bytes().u32(0o1002).u32(1), Operation::Open(open));
    decodes(Opcode::OpenDir, bytes().u32(0o1002).u32(1), Operation::OpenDir(open));
    let release = Release {
        handle: FileHandle(4),
        flags: 2,
        flush: true,
        flock_unlock: true,
        lock_owner: LockOwner(6),
    };
    let body = || bytes().u64(4).u32(2).u32(3).u64(6);
    decodes(Opcode::Release, body(), Operation::Release(release));
    decodes(Opcode::ReleaseDir, body(), Operation::ReleaseDir(release));
    let flush = Operation::Flush { handle: FileHandle(4), lock_owner: LockOwner(6) };
    decodes(Opcode::Flush, bytes().u64(4).u32(0).u32(0).u64(6), flush);
}

#[test]
fn reading_and_writing() {
    let body = || bytes().u64(4).u64(8192).u32(4096).u32(2).u64(6).u32(0o2).u32(0);
    let read = Read {
        handle: FileHandle(4),
        offset: 8192,
        size: 4096,
        flags: 0o2,
        lock_owner: Some(LockOwner(6)),
    };
    decodes(Opcode::Read, body(), Operation::Read(read));
    decodes(Opcode::ReadDir, body(), Operation::ReadDir(read));
    decodes(Opcode::ReadDirPlus, body(), Operation::ReadDirPlus(read));
    let head = |size, flags| bytes().u64(4).u64(8192).u32(size).u32(flags).u64(6).u32(0o2).u32(0);
    let write = Write {
        handle: FileHandle(4),
        offset: 8192,
        data: b"data",
        flags: 0o2,
        from_cache: true,
        kill_suid_sgid: true,
        lock_owner: Some(LockOwner(6)),
    };
    decodes(Opcode::Write, head(4, 7).bytes(b"data"), Operation::Write(write));
    let plain = Write { from_cache: false, kill_suid_sgid: false, lock_owner: None, ..write };
    decodes(Opcode::Write, head(4, 0).bytes(b"data"), Operation::Write(plain));
    fails(Opcode::Write, head(5, 0).bytes(b"data"), Malformed::Count("size"));
    fails(Opcode::Write, head(3, 0).bytes(b"data"), Malformed::Count("size"));
}

#[test]
fn syncing() {
    let (handle, body) = (FileHandle(4), |flags| bytes().u64(4).u32(flags).u32(0));
    decodes(Opcode::Fsync, body(0), Operation::Fsync { handle, data_only: false });
    decodes(Opcode::Fsync, body(1), Operation::Fsync { handle, data_only: true });
    decodes(Opcode::FsyncDir, body(1), Operation::FsyncDir { handle, data_only: true });
    decodes(Opcode::SyncFs, bytes().u64(0), Operation::SyncFs);
}

#[test]
fn setxattr_has_two_forms() {
    let set = SetXattr { name: b"user.a", value: b"v\0v", flags: 1, kill_sgid: true };
    decodes(
        Opcode::SetXattr,
        bytes().u32(3).u32(1).u32(1).u32(0).bytes(b"user.a\0v\0v"),
        Operation::SetXattr(set),
    );
    let short = message(21, &bytes().u32(3).u32(1).bytes(b"user.a\0v\0v"), 0);
    let request = decode(&short, Dialect { setxattr_ext: false }).unwrap();
    assert_eq!(request.operation, Operation::SetXattr(SetXattr { kill_sgid: false, ..set }));
    let body = bytes().u32(4).u32(1).u32(1).u32(0).bytes(b"user.a\0v\0v");
    fails(Opcode::SetXattr, body, Malformed::Count("size"));
}

#[test]
fn other_operations() {
    decodes(Opcode::ReadLink, bytes(), Operation::ReadLink);
    decodes(Opcode::StatFs, bytes(), Operation::StatFs);
    decodes(Opcode::Destroy, bytes(), Operation::Destroy);
    decodes(Opcode::Access, bytes().u32(4).u32(0), Operation::Access { mask: 4 });
    decodes(Opcode::Interrupt, bytes().u64(98), Operation::Interrupt { unique: Unique(98) });
    let body = bytes().u64(3).u32(512).u32(0);
    decodes(Opcode::Bmap, body, Operation::Bmap { block: 3, block_size: 512 });
    let body = bytes().u64(4).u32(0).u32(0x5401).u64(0).u32(1).u32(2).bytes(b"x");
    let ioctl = Ioctl { handle: FileHandle(4), command: 0x5401, data: b"x", out_size: 2 };
    decodes(Opcode::Ioctl, body, Operation::Ioctl(ioctl));
    let body = bytes().u64(4).u64(0).u32(0).u32(1);
    decodes(Opcode::Poll, body, Operation::Poll { handle: FileHandle(4) });
    let lock = || bytes().u64(4).u64(0).u64(0).u64(9).u32(1).u32(33).u32(0).u32(0);
    for opcode in [Opcode::GetLk, Opcode::SetLk, Opcode::SetLkW] {
        decodes(opcode, lock(), Operation::Lock);
    }
    let what = Fallocate { handle: FileHandle(4), offset: 1, length: 2, mode: 3 };
    decodes(
        Opcode::Fallocate,
        bytes().u64(4).u64(1).u64(2).u32(3).u32(0),
        Operation::Fallocate(what),
    );
    decodes(
        Opcode::Lseek,
        bytes().u64(4).u64(100).u32(3).u32(0),
        Operation::Lseek { handle: FileHandle(4), offset: 100, whence: 3 },
    );
    let copy = |wide| {
        Operation::CopyFileRange(CopyFileRange {
            handle_in: FileHandle(1),
            offset_in: 2,
            node_out: NodeId(3),
            handle_out: FileHandle(4),
            offset_out: 5,
            length: 6,
            flags: 7,
            wide,
        })
    };
    let body = || bytes().u64(1).u64(2).u64(3).u64(4).u64(5).u64(6).u64(7);
    decodes(Opcode::CopyFileRange, body(), copy(false));
    decodes(Opcode::CopyFileRange64, body(), copy(true));
    let unknown = message(4000, &bytes().bytes(b"anything"), 0);
    let request = decode(&unknown, DIALECT).unwrap();
    assert_eq!(request.operation, Operation::Unknown { opcode: 4000 });
}

#[test]
fn opcodes_have_their_numbers() {
    for &opcode in Opcode::ALL {
        assert_eq!(Opcode::from_number(opcode as u32), Some(opcode));
    }
    assert_eq!(Opcode::ALL.len(), 48);
    assert_eq!(Opcode::from_number(7), None);
}

#[test]
fn every_truncated_argument_is_malformed() {
    for &opcode in Opcode::ALL {
        let len = opcode.argument_len(true);
        if len > 0 {
            let body = bytes().bytes(&vec![0; len - 1]);
            fails(opcode, body, Malformed::Truncated("argument"));
        }
    }
}

#[test]
fn the_length_must_be_that_of_the_message() {
    let mut message = message(1, &bytes().bytes(b"a\0"), 0);
    message.push(0);
    let expected = Malformed::Length { stated: 42, actual: 43 };
    assert_eq!(decode(&message, DIALECT), Err(expected));
    assert_eq!(decode(&message[..39], DIALECT), Err(Malformed::Truncated("header")));
}

#[test]
fn extensions_come_last() {
    // A list of one security context, padded to 8 bytes, and a list of one group.
    let context = bytes().u32(5).u32(0).bytes(b"security.x\0label\0\0\0\0\0\0\0\0");
    assert_eq!(context.0.len(), 32);
    let contexts = bytes().u32(8 + 32).u32(1).bytes(&context.0);
    let groups = bytes().u32(16).u32(32).u32(1).u32(1000);
    let extensions = bytes().bytes(&contexts.0).bytes(&groups.0);
    let body = bytes().u32(0o755).u32(0o22).bytes(b"dir\0").bytes(&extensions.0);
    let message = message(9, &body, u16::try_from(extensions.0.len()).unwrap());
    let request = decode(&message, DIALECT).unwrap();
    assert_eq!(request.operation, Operation::MkDir { name: b"dir", mode: 0o755, umask: 0o22 });
    let extensions = request.context.extensions;
    assert_eq!(extensions.supplementary_group, Some(1000));
    let contexts: Vec<_> =
        extensions.security_contexts().map(|context| (context.name, context.value)).collect();
    assert_eq!(contexts, [(b"security.x".as_slice(), b"label".as_slice())]);
}

#[test]
fn inconsistent_extensions_are_refused() {
    let cases = [
        // Longer than the rest, shorter than its own header, a context without its NUL, fewer
        // contexts than announced, groups without a count.
        bytes().u32(24).u32(32).u32(1).u32(7),
        bytes().u32(4).u32(32).u32(1).u32(7),
        bytes().u32(24).u32(1).u32(0).u32(0).bytes(b"nameless"),
        bytes().u32(16).u32(2).u32(0).u32(0),
        bytes().u32(8).u32(32),
    ];
    for extension in cases {
        let body = bytes().bytes(b"name\0target\0").bytes(&extension.0);
        let message = message(6, &body, u16::try_from(extension.0.len()).unwrap());
        assert_eq!(decode(&message, DIALECT), Err(Malformed::Extensions), "{:?}", extension.0);
    }
    let message = message(1, &bytes().bytes(b"a\0"), 80);
    assert_eq!(decode(&message, DIALECT), Err(Malformed::Extensions));
}
