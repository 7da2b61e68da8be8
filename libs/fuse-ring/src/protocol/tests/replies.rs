//! Encoding of every kind of reply.

use std::time::Duration;

use rustix::io::Errno;

use super::super::{
    Attr, AttrReply, Entry, FileHandle, Full, Listing, ListingPlus, NodeId, OpenFlags, Opened,
    Statfs, StatxReply, Timestamp, decode_device, encode, encode_device,
};
use super::{Bytes, bytes};

const ATTR: Attr = Attr {
    ino: 1,
    size: 2,
    blocks: 3,
    atime: Timestamp { seconds: -4, nanoseconds: 5 },
    mtime: Timestamp { seconds: 6, nanoseconds: 7 },
    ctime: Timestamp { seconds: 8, nanoseconds: 9 },
    mode: 0o100_644,
    nlink: 10,
    uid: 11,
    gid: 12,
    rdev: encode_device(13, 300),
    blksize: 4096,
};

const ENTRY: Entry = Entry {
    node: NodeId(20),
    generation: 21,
    attr: ATTR,
    entry_ttl: Duration::new(22, 23),
    attr_ttl: Duration::new(24, 25),
};

fn attr_bytes() -> Bytes {
    let sizes = bytes().u64(1).u64(2).u64(3);
    let times = sizes.u64(4_u64.wrapping_neg()).u64(6).u64(8).u32(5).u32(7).u32(9);
    times.u32(0o100_644).u32(10).u32(11).u32(12).u32(0x0010_0d2c).u32(4096).u32(0)
}

fn entry_bytes() -> Bytes {
    bytes().u64(20).u64(21).u64(22).u64(24).u32(23).u32(25).bytes(&attr_bytes().0)
}

/// The bytes that a function writes to a buffer with room for any reply of fixed length.
fn written(encode: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut buf = [0xaa; encode::FIXED_LEN_MAX];
    let len = encode(&mut buf);
    assert!(buf[len..].iter().all(|&byte| byte == 0xaa), "wrote more than it says");
    buf[..len].to_vec()
}

#[test]
fn headers_contain_a_length_or_an_error() {
    assert_eq!(encode::header(99, Ok(8)), *bytes().u32(24).u32(0).u64(99).0);
    let error = encode::header(99, Err(Errno::NOENT));
    assert_eq!(error, *bytes().u32(16).u32(2_u32.wrapping_neg()).u64(99).0);
    // The kernel would drop a reply with an invalid error, and the caller would hang.
    let strange = encode::header(99, Err(Errno::from_raw_os_error(512)));
    assert_eq!(strange, encode::header(99, Err(Errno::IO)));
}

#[test]
fn entries() {
    assert_eq!(written(|buf| encode::entry(buf, &ENTRY)), entry_bytes().0);
    let negative = written(|buf| encode::entry(buf, &Entry::negative(Duration::from_secs(3))));
    assert_eq!(negative, bytes().u64(0).u64(0).u64(3).bytes(&[0; 104]).0);
    let opened = Opened { handle: FileHandle(30), flags: OpenFlags::KEEP_CACHE };
    let open_bytes = bytes().u64(30).u32(2).u32(0);
    assert_eq!(written(|buf| encode::opened(buf, &opened)), open_bytes.0);
    assert_eq!(
        written(|buf| encode::created(buf, &ENTRY, &opened)),
        entry_bytes().bytes(&open_bytes.0).0
    );
}

#[test]
fn attributes() {
    let reply = AttrReply { attr: ATTR, ttl: Duration::new(40, 41) };
    let expected = bytes().u64(40).u32(41).u32(0).bytes(&attr_bytes().0);
    assert_eq!(written(|buf| encode::attr(buf, &reply)), expected.0);
}

#[test]
fn extended_attributes_of_stat() {
    let reply = StatxReply {
        attr: ATTR,
        ttl: Duration::new(40, 41),
        btime: Some(Timestamp { seconds: 50, nanoseconds: 51 }),
        attributes: 0x10,
        attributes_mask: 0x30,
    };
    let head = bytes().u64(40).u32(41).u32(0).u64(0).u64(0);
    let stat = head.u32(0xfff).u32(4096).u64(0x10).u32(10).u32(11).u32(12).u16(0o100_644).u16(0);
    let sizes = stat.u64(1).u64(2).u64(3).u64(0x30);
    let times = sizes.u64(4_u64.wrapping_neg()).u32(5).u32(0).u64(50).u32(51).u32(0);
    let times = times.u64(8).u32(9).u32(0).u64(6).u32(7).u32(0);
    let devices = times.u32(13).u32(300).u32(0).u32(0);
    assert_eq!(written(|buf| encode::statx(buf, &reply)), devices.bytes(&[0; 14 * 8]).0);
    let without = StatxReply { btime: None, ..reply };
    assert_eq!(written(|buf| encode::statx(buf, &without))[32..36], 0x7ff_u32.to_ne_bytes());
}

#[test]
fn numbers() {
    assert_eq!(written(|buf| encode::size(buf, 5)), bytes().u32(5).u32(0).0);
    assert_eq!(written(|buf| encode::offset(buf, 1 << 40)), bytes().u64(1 << 40).0);
    let statfs = Statfs {
        blocks: 1,
        bfree: 2,
        bavail: 3,
        files: 4,
        ffree: 5,
        bsize: 6,
        frsize: 7,
        namelen: 8,
    };
    let expected =
        bytes().u64(1).u64(2).u64(3).u64(4).u64(5).u32(6).u32(8).u32(7).u32(0).bytes(&[0; 24]);
    assert_eq!(written(|buf| encode::statfs(buf, &statfs)), expected.0);
}

#[test]
fn devices_are_packed_as_the_kernel_does() {
    for (major, minor) in [(0, 0), (8, 1), (259, 7), (13, 300), (0xfff, 0xf_ffff)] {
        assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
    }
    assert_eq!(encode_device(8, 1), 0x801);
}

#[test]
fn listings_are_padded_and_refuse_entries_that_do_not_fit() {
    let mut buf = [0xaa; 32 + 32 + 24];
    let mut listing = Listing::new(&mut buf);
    assert!(listing.is_empty());
    assert_eq!(listing.push(5, 0o040_755, 1, b"abc"), Ok(()));
    assert_eq!(listing.push(6, 0o100_644, 2, b"12345678"), Ok(()));
    assert_eq!((listing.len(), listing.room()), (64, 24));
    // Without a name it would fit.
    assert_eq!(listing.push(7, 0o100_644, 3, b"x"), Err(Full));
    assert_eq!(listing.len(), 64);
    let first = bytes().u64(5).u64(1).u32(3).u32(4).bytes(b"abc\0\0\0\0\0");
    let second = first.u64(6).u64(2).u32(8).u32(8).bytes(b"12345678");
    assert_eq!(buf[..64], second.0);
    assert_eq!(buf[64..], [0xaa; 24]);
}

#[test]
fn listings_with_attributes() {
    let mut buf = [0xaa; 160 + 160];
    let mut listing = ListingPlus::new(&mut buf);
    assert_eq!(listing.push(&ENTRY, 1, b"abc"), Ok(()));
    assert_eq!(listing.push_name(9, 0o040_000, 2, b"."), Ok(()));
    assert_eq!((listing.len(), listing.room()), (320, 0));
    assert_eq!(listing.push(&ENTRY, 3, b"x"), Err(Full));
    let first = entry_bytes().u64(1).u64(1).u32(3).u32(8).bytes(b"abc\0\0\0\0\0");
    // No node: the kernel does not count a lookup.
    let second = first.bytes(&[0; 128]).u64(9).u64(2).u32(1).u32(4).bytes(b".\0\0\0\0\0\0\0");
    assert_eq!(buf[..], second.0);
}
