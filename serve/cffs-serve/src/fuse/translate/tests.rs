use cffs::clock::Timestamp;
use cffs::format::inode::{FileType, InodeFlags};
use cffs::units::InodeNo;
use cffs::vfs::types::{self, AllocateMode, Attr, NewKind, RenameMode, SeekFor, StatFs, XattrMode};
use fuse_ring::Errno;
use fuse_ring::protocol::{self, NodeId, SetTime};

use std::time::Duration;

use super::{allocate_mode, entry, new_kind, rename_mode, seek_for, set_attr, statfs, xattr_mode};

fn device_file() -> Attr {
    let time = |seconds| Timestamp { seconds, nanoseconds: 5 };
    Attr {
        ino: InodeNo(77),
        generation: 9,
        file_type: FileType::CharDevice,
        permissions: 0o4750,
        nlink: 3,
        uid: 1,
        gid: 2,
        device: 0x123 << 32 | 0x45678,
        size: 0,
        allocated_bytes: 1024,
        atime: time(-1),
        mtime: time(1 << 33),
        ctime: time(3),
        btime: time(4),
        change: 0,
        flags: InodeFlags::default(),
    }
}

#[test]
fn an_entry_contains_the_whole_inode_number() {
    const TTL: Duration = Duration::from_secs(7);
    let entry = entry(&device_file(), 4096, TTL);
    assert_eq!((entry.node, entry.generation), (NodeId(77), 9));
    assert_eq!((entry.entry_ttl, entry.attr_ttl), (TTL, TTL));
    assert_eq!(entry.attr.mode, 0o024_750);
    assert_eq!((entry.attr.ino, entry.attr.nlink, entry.attr.blocks), (77, 3, 2));
    assert_eq!(entry.attr.atime.seconds, -1);
    assert_eq!(entry.attr.mtime.seconds, 1 << 33);
    assert_eq!(protocol::decode_device(entry.attr.rdev), (0x123, 0x45678));
}

#[test]
fn a_device_number_survives_conversion() {
    let rdev = protocol::encode_device(0x123, 0x45678);
    let kind = new_kind(0o020_644, rdev).expect("a device");
    assert_eq!(kind, NewKind::CharDevice(device_file().device));
    assert_eq!(new_kind(0o644, 0), Ok(NewKind::Regular));
    assert_eq!(new_kind(0o040_755, 0), Err(Errno::INVAL));
}

#[test]
fn meaningless_flags_are_refused() {
    assert_eq!(rename_mode(0), Ok(RenameMode::Replace));
    assert_eq!(rename_mode(2), Ok(RenameMode::Exchange));
    assert_eq!(rename_mode(5), Ok(RenameMode::Whiteout { no_replace: true }));
    // An exchange cannot be combined with a refusal to replace.
    assert_eq!(rename_mode(3), Err(Errno::INVAL));
    assert_eq!(allocate_mode(0), Ok(AllocateMode::Reserve));
    assert_eq!(allocate_mode(1), Ok(AllocateMode::ReserveKeepSize));
    assert_eq!(allocate_mode(3), Ok(AllocateMode::PunchHole));
    assert_eq!(allocate_mode(0x11), Ok(AllocateMode::ZeroRange { keep_size: true }));
    // A hole that changes the size, and collapsing a range.
    assert_eq!(allocate_mode(2), Err(Errno::OPNOTSUPP));
    assert_eq!(allocate_mode(8), Err(Errno::OPNOTSUPP));
    assert_eq!((seek_for(3), seek_for(4)), (Ok(SeekFor::Data), Ok(SeekFor::Hole)));
    assert_eq!(seek_for(0), Err(Errno::INVAL));
    assert_eq!((xattr_mode(1), xattr_mode(2)), (Ok(XattrMode::Create), Ok(XattrMode::Replace)));
    assert_eq!(xattr_mode(3), Err(Errno::INVAL));
}

#[test]
fn attributes_that_are_not_named_do_not_change() {
    let change = protocol::SetAttr {
        mode: Some(0o107_755),
        mtime: Some(SetTime::Now),
        ..protocol::SetAttr::default()
    };
    let expected = types::SetAttr {
        permissions: Some(0o7755),
        mtime: Some(types::SetTime::Now),
        ..types::SetAttr::default()
    };
    assert_eq!(set_attr(&change), expected);
}

#[test]
fn free_space_is_reported_in_fragments() {
    let stat = statfs(&StatFs {
        fragment_bytes: 1024,
        block_bytes: 4096,
        fragments: 1000,
        free_fragments: 500,
        available_fragments: 400,
        inodes: 10,
        free_inodes: 90,
        name_bytes_max: 255,
    });
    assert_eq!((stat.frsize, stat.blocks, stat.bfree, stat.bavail), (1024, 1000, 500, 400));
    assert_eq!((stat.files, stat.ffree, stat.namelen), (100, 90, 255));
}
