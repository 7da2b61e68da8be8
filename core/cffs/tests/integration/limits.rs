//! The limits of `docs/SEMANTICS.md`: values within are accepted and kept, values beyond are refused.

use std::sync::Arc;

use cffs::clock::{SystemClock, Timestamp};
use cffs::error::Error;
use cffs::format::{FILE_BYTES_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, RenameMode, SetAttr, SetTime, Volume, XattrMode};

use cffs_testing::golden::sample;
use cffs_testing::setup::{FILE, made};

const ROOT: InodeNo = InodeNo::ROOT;

/// Runs a test on a volume of each kind, and a check after reopening it.
fn on_each_kind(test: impl Fn(&Volume), after: impl Fn(&Volume)) {
    for (_, options) in sample::kinds() {
        let empty = sample::empty_of(&options, 16 << 20).unwrap();
        let (device, volume) = sample::open(&empty, false).unwrap();
        test(&volume);
        volume.close().unwrap();
        let (_, volume) = sample::open(&device.snapshot(), true).unwrap();
        after(&volume);
    }
}

#[test]
fn the_largest_file_ends_where_it_should() {
    let last = FILE_BYTES_MAX - 3;
    let write = |volume: &Volume| {
        let ino = sample::make(volume, ROOT, b"large", NewKind::Regular).unwrap();
        assert_eq!(volume.write(&Caller::ROOT, ino, last, b"end").unwrap(), 3);
        assert!(matches!(
            volume.write(&Caller::ROOT, ino, FILE_BYTES_MAX, b"x"),
            Err(Error::TooLarge)
        ));
        let larger = SetAttr { size: Some(FILE_BYTES_MAX + 1), ..SetAttr::default() };
        assert!(matches!(volume.set_attr(&Caller::ROOT, ino, &larger), Err(Error::TooLarge)));
    };
    on_each_kind(write, |volume| {
        let attr = volume.lookup(ROOT, b"large").unwrap();
        assert_eq!(attr.size, 512 << 40);
        assert!(attr.allocated_bytes < 64 << 10, "{}", attr.allocated_bytes);
        let mut bytes = [1; 5];
        assert_eq!(volume.read(attr.ino, last - 2, &mut bytes).unwrap(), 5);
        assert_eq!(&bytes, b"\0\0end");
    });
}

#[test]
fn the_limits_of_names_targets_and_attributes_hold() {
    let name = [b'n'; NAME_BYTES_MAX];
    let target = [b't'; SYMLINK_BYTES_MAX];
    let value = [b'v'; 65_536];
    let make = |volume: &Volume| {
        let ino = sample::make(volume, ROOT, &name, NewKind::Regular).unwrap();
        let longer = sample::make(volume, ROOT, &[b'n'; NAME_BYTES_MAX + 1], NewKind::Regular);
        assert!(matches!(longer, Err(Error::NameTooLong)));
        sample::make(volume, ROOT, b"link", NewKind::Symlink(&target)).unwrap();
        let longer = NewKind::Symlink(&[b't'; SYMLINK_BYTES_MAX + 1]);
        assert!(matches!(sample::make(volume, ROOT, b"longer", longer), Err(Error::NameTooLong)));
        volume.set_xattr(&Caller::ROOT, ino, b"user.a", &value, XattrMode::Any).unwrap();
        let larger = volume.set_xattr(&Caller::ROOT, ino, b"user.b", &[0; 65_537], XattrMode::Any);
        assert!(matches!(larger, Err(Error::Range)), "{larger:?}");
        for name in [b"user.b", b"user.c", b"user.d"] {
            let _ = volume.set_xattr(&Caller::ROOT, ino, name, &value[..65_000], XattrMode::Any);
        }
        let beyond =
            volume.set_xattr(&Caller::ROOT, ino, b"user.e", &value[..5000], XattrMode::Any);
        assert!(matches!(beyond, Err(Error::NoSpace)), "{beyond:?}");
    };
    on_each_kind(make, |volume| {
        let ino = volume.lookup(ROOT, &name).unwrap().ino;
        assert_eq!(volume.xattr(ino, b"user.a").unwrap(), value);
        assert_eq!(volume.xattr(ino, b"user.d").unwrap().len(), 65_000);
        let link = volume.lookup(ROOT, b"link").unwrap().ino;
        assert_eq!(volume.read_link(link).unwrap(), target);
    });
}

/// Regression: they were accepted, and then the sector with such a name was refused as damaged.
#[test]
fn a_dot_and_two_dots_are_no_names() {
    let refused = |what: &str, result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::Invalid(_))), "{what}: {result:?}");
    };
    let make = |volume: &Volume| {
        let ino = sample::make(volume, ROOT, b"file", NewKind::Regular).unwrap();
        for name in [&b"."[..], b".."] {
            for kind in [NewKind::Regular, NewKind::Directory, NewKind::Symlink(b"file")] {
                refused("make", sample::make(volume, ROOT, name, kind).map(drop));
            }
            refused("link", volume.link(ino, ROOT, name).map(drop));
            for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
                let renamed = volume.rename(&Caller::ROOT, ROOT, b"file", ROOT, name, mode);
                refused("rename", renamed.map(drop));
            }
        }
        sample::make(volume, ROOT, b"...", NewKind::Regular).unwrap();
    };
    on_each_kind(make, |volume| {
        volume.lookup(ROOT, b"file").unwrap();
        volume.lookup(ROOT, b"...").unwrap();
    });
}

/// The owner, user 7, the group, the mask and the others: tag, permissions, id.
const ACL_ENTRIES: [[u8; 8]; 5] = [
    [1, 0, 6, 0, 255, 255, 255, 255],
    [2, 0, 4, 0, 7, 0, 0, 0],
    [4, 0, 4, 0, 255, 255, 255, 255],
    [16, 0, 4, 0, 255, 255, 255, 255],
    [32, 0, 4, 0, 255, 255, 255, 255],
];

/// Regression: more names than Linux can list were accepted: then listxattr(2) failed, and so did cp and
/// rsync.
#[test]
fn names_of_attributes_are_taken_as_long_as_they_can_be_listed() {
    let name = |number: usize| format!("user.{number:03}{}", "n".repeat(247)).into_bytes();
    // Each is listed with a zero byte, and the names of the ACLs take 49 bytes.
    let most = (65_536 - 49) / 256;
    let acl = [&2_u32.to_le_bytes()[..], &ACL_ENTRIES.concat()].concat();
    let set = |volume: &Volume| {
        let ino = sample::make(volume, ROOT, b"f", NewKind::Regular).unwrap();
        for number in 0..most {
            volume.set_xattr(&Caller::ROOT, ino, &name(number), b"v", XattrMode::Any).unwrap();
        }
        let beyond = volume.set_xattr(&Caller::ROOT, ino, &name(most), b"v", XattrMode::Any);
        assert!(matches!(beyond, Err(Error::NoSpace)), "{beyond:?}");
        volume
            .set_xattr(&Caller::ROOT, ino, b"system.posix_acl_access", &acl, XattrMode::Any)
            .unwrap();
        volume.set_xattr(&Caller::ROOT, ino, &name(7), b"another value", XattrMode::Any).unwrap();
        volume.remove_xattr(ino, &name(8)).unwrap();
        volume.set_xattr(&Caller::ROOT, ino, b"user.a", b"v", XattrMode::Any).unwrap();
    };
    on_each_kind(set, |volume| {
        let ino = volume.lookup(ROOT, b"f").unwrap().ino;
        let names = volume.xattr_names(ino).unwrap();
        assert_eq!(names.len(), most + 1, "with the ACL");
        assert!(names.iter().map(|name| name.len() + 1).sum::<usize>() <= 65_536);
    });
}

#[test]
fn times_go_far_beyond_those_of_32_bits() {
    let times = [i64::MIN, -(1 << 40), -1, 1 << 31, 1 << 34, i64::MAX];
    let name = |seconds: i64| format!("{seconds}").into_bytes();
    let set = |volume: &Volume| {
        for seconds in times {
            let ino = sample::make(volume, ROOT, &name(seconds), NewKind::Regular).unwrap();
            let time = SetTime::To(Timestamp { seconds, nanoseconds: 999_999_999 });
            let changes = SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
            volume.set_attr(&Caller::ROOT, ino, &changes).unwrap();
        }
    };
    on_each_kind(set, |volume| {
        for seconds in times {
            let attr = volume.lookup(ROOT, &name(seconds)).unwrap();
            for time in [attr.atime, attr.mtime] {
                assert_eq!((time.seconds, time.nanoseconds), (seconds, 999_999_999));
            }
        }
    });
}

/// Regression: attributes that are too large were treated as a lack of space, so each attempt wrote an epoch
/// and compacted clusters.
#[test]
fn attributes_that_are_too_large_write_no_epoch() {
    let set = |volume: &Volume| {
        let ino = sample::make(volume, ROOT, b"file", NewKind::Regular).unwrap();
        let value = vec![7; 60_000];
        let epochs = volume.stats().epochs;
        let refused = (0..100).find_map(|number| {
            let name = format!("user.{number}");
            let mode = XattrMode::Any;
            volume.set_xattr(&Caller::ROOT, ino, name.as_bytes(), &value, mode).err()
        });
        assert!(matches!(refused, Some(Error::NoSpace)), "{refused:?}");
        assert_eq!(volume.stats().epochs, epochs);
    };
    on_each_kind(set, |_| ());
}

/// Regression: a program of this owner, with the set-user-ID bit, was exported as one of root: chown(2) takes
/// the number for "no change".
#[test]
fn nothing_belongs_to_a_user_or_group_of_no_number() {
    let device = made(16 << 20);
    let volume = cffs::open(device, Arc::new(SystemClock), Default::default()).expect("opened");
    let root = InodeNo::ROOT;
    for (uid, gid) in [(u32::MAX, 0), (0, u32::MAX)] {
        let new = NewFile { uid, gid, ..FILE };
        let made = volume.make(&Caller::ROOT, root, b"new", &new);
        assert!(matches!(made, Err(Error::Invalid(_))), "{made:?}");
        let unnamed = volume.make_unnamed(&Caller::ROOT, root, &new);
        assert!(matches!(unnamed, Err(Error::Invalid(_))), "{unnamed:?}");
    }
    let ino = volume.make(&Caller::ROOT, root, b"file", &FILE).expect("made").ino;
    for changes in [
        SetAttr { uid: Some(u32::MAX), ..SetAttr::default() },
        SetAttr { gid: Some(u32::MAX), ..SetAttr::default() },
    ] {
        let set = volume.set_attr(&Caller::ROOT, ino, &changes);
        assert!(matches!(set, Err(Error::Invalid(_))), "{set:?}");
    }
    // Entries for the owner, a user without a number, the group, the mask and others.
    let acl = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\xff\xff\xff\xff\
        \x04\0\0\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    let set = volume.set_xattr(&Caller::ROOT, ino, b"system.posix_acl_access", acl, XattrMode::Any);
    assert!(matches!(set, Err(Error::Invalid(_))), "{set:?}");
    volume.close().expect("closed");
}
