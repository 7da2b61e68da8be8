//! The limits of `docs/SEMANTICS.md`: what lies within is kept, what lies beyond is refused.

#[allow(dead_code, reason = "it makes volumes for other tests too")]
#[path = "golden/sample.rs"]
mod sample;

use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::format::{FILE_BYTES_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX};
use cffs::units::InodeNo;
use cffs::vfs::{NewKind, SetAttr, SetTime, Volume, XattrMode};

const ROOT: InodeNo = InodeNo::ROOT;

/// Runs a test on a volume of each kind, and then what must be so when it was opened anew.
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
        assert_eq!(volume.write(ino, last, b"end").unwrap(), 3);
        assert!(matches!(volume.write(ino, FILE_BYTES_MAX, b"x"), Err(Error::TooLarge)));
        let larger = SetAttr { size: Some(FILE_BYTES_MAX + 1), ..SetAttr::default() };
        assert!(matches!(volume.set_attr(ino, &larger), Err(Error::TooLarge)));
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
        volume.set_xattr(ino, b"user.a", &value, XattrMode::Any).unwrap();
        let larger = volume.set_xattr(ino, b"user.b", &[0; 65_537], XattrMode::Any);
        assert!(matches!(larger, Err(Error::Range)), "{larger:?}");
        for name in [b"user.b", b"user.c", b"user.d"] {
            let _ = volume.set_xattr(ino, name, &value[..65_000], XattrMode::Any);
        }
        let beyond = volume.set_xattr(ino, b"user.e", &value[..5000], XattrMode::Any);
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

#[test]
fn times_go_far_beyond_those_of_32_bits() {
    let times = [i64::MIN, -(1 << 40), -1, 1 << 31, 1 << 34, i64::MAX];
    let name = |seconds: i64| format!("{seconds}").into_bytes();
    let set = |volume: &Volume| {
        for seconds in times {
            let ino = sample::make(volume, ROOT, &name(seconds), NewKind::Regular).unwrap();
            let time = SetTime::To(Timestamp { seconds, nanoseconds: 999_999_999 });
            let changes = SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
            volume.set_attr(ino, &changes).unwrap();
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
