//! Conditions of changes hold at the moment of the change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::{Attr, Caller, NewKind, RenameMode, SetAttr, Volume, XattrMode};

use cffs_testing::setup::make;

const ROOT: InodeNo = InodeNo::ROOT;

fn volume() -> Volume {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    cffs::mkfs::make(&device, &Default::default()).expect("made");
    cffs::open(device, Arc::new(SystemClock), Default::default()).expect("opened")
}

fn owner(uid: u32) -> SetAttr {
    SetAttr { uid: Some(uid), ..SetAttr::default() }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..owner(7) }
}

/// A change of `name` in the root by a caller with a condition.
type Change = fn(&Volume, InodeNo, &Caller<'_>) -> Result<()>;

/// The effect of a change on the names of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Stay,
    Go,
    Come,
}

use Names::{Come, Go, Stay};

/// The capabilities of a program. A change of its size removes them, and must not do so before the condition
/// is checked.
const CAPABILITY: &[u8] = b"security.capability";

/// Each change.
const CHANGES: [(&str, NewKind<'static>, Names, Change); 12] = [
    ("attributes", NewKind::Regular, Stay, |v, ino, caller| {
        v.set_attr(caller, ino, &owner(7)).map(|attr| assert_eq!(attr.uid, 7))
    }),
    ("a size in the inode", NewKind::Regular, Stay, |v, ino, caller| {
        v.set_attr(caller, ino, &size(10)).map(|attr| assert_eq!(attr.uid, 7))
    }),
    ("a size with blocks", NewKind::Regular, Stay, |v, ino, caller| {
        v.set_attr(caller, ino, &size(1 << 20)).map(|attr| assert_eq!(attr.uid, 7))
    }),
    ("an attribute", NewKind::Regular, Stay, |v, ino, caller| {
        v.set_xattr(caller, ino, b"user.a", b"value", XattrMode::Any)
    }),
    ("an attribute that is removed", NewKind::Regular, Stay, |v, ino, caller| {
        v.remove_xattr_by(caller, ino, CAPABILITY)
    }),
    ("contents in the inode", NewKind::Regular, Stay, |v, ino, caller| {
        v.write(caller, ino, 0, b"contents").map(|written| assert_eq!(written, 8))
    }),
    ("contents in blocks", NewKind::Regular, Stay, |v, ino, caller| {
        v.write(caller, ino, 100_000, b"contents").map(|written| assert_eq!(written, 8))
    }),
    ("another name", NewKind::Regular, Come, |v, ino, caller| {
        v.link_by(caller, ino, ROOT, b"link").map(|attr| v.release(attr.ino, 1))
    }),
    ("a name", NewKind::Regular, Go, |v, _, caller| v.unlink(caller, ROOT, b"name")),
    ("a directory", NewKind::Directory, Go, |v, _, caller| v.remove_dir(caller, ROOT, b"name")),
    ("a name that is changed", NewKind::Regular, Go, |v, _, caller| {
        v.rename(caller, ROOT, b"name", ROOT, b"new", RenameMode::Replace).map(drop)
    }),
    ("a name that is replaced", NewKind::Regular, Go, |v, ino, caller| {
        if v.lookup(ROOT, b"another").is_err() {
            make(v, ROOT, "another", NewKind::Regular);
        }
        let condition = caller.condition.expect("given");
        let of_replaced = |file: &Attr, dir: Option<&Attr>| file.ino != ino || condition(file, dir);
        let caller = Caller { condition: Some(&of_replaced), ..*caller };
        v.rename(&caller, ROOT, b"another", ROOT, b"name", RenameMode::Replace).map(drop)
    }),
];

/// A volume with a file for a change.
fn with_file(what: &str, kind: NewKind<'_>) -> (Volume, InodeNo) {
    let volume = volume();
    let ino = make(&volume, ROOT, "name", kind);
    // Removing them is a change of its own before contents are written.
    if matches!(kind, NewKind::Regular) && !what.starts_with("contents") {
        volume.set_xattr(&Caller::ROOT, ino, CAPABILITY, b"all", XattrMode::Any).unwrap();
    }
    (volume, ino)
}

#[test]
fn without_its_condition_a_change_is_not_made() {
    for (what, kind, names, change) in CHANGES {
        let (volume, ino) = with_file(what, kind);
        let (file, root) = (volume.attr(ino).unwrap(), volume.attr(ROOT).unwrap());
        let expected = Attr { allocated_bytes: 0, ..file };
        let is_other = |attr: &Attr, dir: Option<&Attr>| {
            assert_eq!(dir.is_some(), names != Stay, "{what}");
            *attr != expected
        };
        let caller = Caller { condition: Some(&is_other), ..Caller::ROOT };
        assert!(matches!(change(&volume, ino, &caller), Err(Error::Unmet)), "{what}");
        assert_eq!(volume.attr(ino).unwrap(), file, "{what}");
        if what != "a name that is replaced" {
            assert_eq!(volume.attr(ROOT).unwrap(), root, "{what}");
        }
        assert_eq!(volume.lookup(ROOT, b"name").unwrap().ino, ino, "{what}");
        let is_same = |attr: &Attr, _: Option<&Attr>| *attr == expected;
        let caller = Caller { condition: Some(&is_same), ..Caller::ROOT };
        change(&volume, ino, &caller).unwrap();
        let now = volume.lookup(ROOT, b"name").ok();
        assert_ne!(now, Some(file), "{what}");
        assert_eq!(now.is_some_and(|attr| attr.ino == ino), names != Go, "{what}");
    }
}

/// The condition stays true until the change is made: another caller that would invalidate it waits, and
/// changes the file afterwards, if it still exists.
#[test]
fn no_change_comes_between_a_condition_and_its_change() {
    for (what, kind, names, change) in CHANGES {
        let (volume, ino) = with_file(what, kind);
        let (asked, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let uid_seen_after = thread::scope(|scope| {
            let other = scope.spawn(|| {
                while asked.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                let is_over = |_: &Attr, _: Option<&Attr>| is_over.load(Ordering::Acquire);
                let caller = Caller { condition: Some(&is_over), ..Caller::ROOT };
                volume.set_attr(&caller, ino, &owner(8))
            });
            let may = |_: &Attr, _: Option<&Attr>| {
                asked.fetch_add(1, Ordering::Release);
                // Long enough for the other caller to be first, if it could.
                thread::sleep(Duration::from_millis(50));
                is_over.store(true, Ordering::Release);
                true
            };
            let caller = Caller { condition: Some(&may), ..Caller::ROOT };
            change(&volume, ino, &caller).unwrap();
            other.join().unwrap()
        });
        match uid_seen_after {
            Ok(attr) => assert_eq!(attr.uid, 8, "{what}"),
            Err(Error::Stale) if names == Go => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

/// A size and a mode are two changes: another caller that changes the owner in between must not get the mode
/// that the former owner wanted.
#[test]
fn a_mode_is_not_set_after_the_owner_has_changed() {
    for turn in 0..40 {
        let (volume, ino) = with_file("a size", NewKind::Regular);
        let given = SetAttr { permissions: Some(0o600), ..owner(8) };
        let wanted = SetAttr { permissions: Some(0o4777), uid: None, ..size(turn % 2 * 100_000) };
        let asked = AtomicUsize::new(0);
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                while asked.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                volume.set_attr(&Caller::ROOT, ino, &given).unwrap();
            });
            let is_not_given = |file: &Attr, _: Option<&Attr>| {
                asked.fetch_add(1, Ordering::Release);
                // The other caller waits for the file, and gets it between the two changes or after them.
                thread::sleep(Duration::from_millis(5));
                file.uid != 8
            };
            let caller = Caller { condition: Some(&is_not_given), ..Caller::ROOT };
            let set = volume.set_attr(&caller, ino, &wanted);
            assert!(matches!(set, Ok(_) | Err(Error::Unmet)), "{set:?}");
            other.join().unwrap();
        });
        let now = volume.attr(ino).unwrap();
        assert_eq!((now.uid, now.permissions), (8, 0o600), "turn {turn}");
    }
}

/// Regression: a call that set the size alone could fail with the size set.
#[test]
fn a_size_alone_is_set_or_its_condition_did_not_hold() {
    for turn in 0..40 {
        let (volume, ino) = with_file("a size", NewKind::Regular);
        let bytes = 10 + turn % 2 * 100_000;
        let wanted = SetAttr { size: Some(bytes), ..SetAttr::default() };
        let asked = AtomicUsize::new(0);
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                while asked.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                volume.set_attr(&Caller::ROOT, ino, &owner(8)).unwrap();
            });
            let is_not_given = |file: &Attr, _: Option<&Attr>| {
                asked.fetch_add(1, Ordering::Release);
                // As in the test above.
                thread::sleep(Duration::from_millis(5));
                file.uid != 8
            };
            let caller = Caller { condition: Some(&is_not_given), ..Caller::ROOT };
            let set = volume.set_attr(&caller, ino, &wanted);
            other.join().unwrap();
            let size = volume.attr(ino).unwrap().size;
            match set {
                Ok(_) => assert_eq!(size, bytes),
                Err(Error::Unmet) => assert_eq!(size, 0),
                Err(error) => panic!("{error}"),
            }
        });
    }
}

/// Regression: a write with a condition examined each changed page of the file.
#[test]
fn a_condition_does_not_count_what_a_file_occupies() {
    let (volume, ino) = with_file("contents in blocks", NewKind::Regular);
    for page in 0..100 {
        volume.write(&Caller::ROOT, ino, page * 4096, &[1; 4096]).unwrap();
    }
    assert!(volume.attr(ino).unwrap().allocated_bytes >= 100 * 4096);
    let is_cheap = |file: &Attr, _: Option<&Attr>| file.allocated_bytes == 0;
    let caller = Caller { condition: Some(&is_cheap), ..Caller::ROOT };
    assert_eq!(volume.write(&caller, ino, 0, b"contents").unwrap(), 8);
}

/// A change of the size may violate the condition that it was made under, which is no reason not to make the
/// rest.
#[test]
fn a_condition_on_the_size_permits_the_whole_change() {
    for bytes in [10, 100_000] {
        let (volume, ino) = with_file("a size", NewKind::Regular);
        let is_empty = |file: &Attr, _: Option<&Attr>| file.size == 0;
        let caller = Caller { condition: Some(&is_empty), ..Caller::ROOT };
        let now = volume.set_attr(&caller, ino, &size(bytes)).unwrap();
        assert_eq!((now.size, now.uid), (bytes, 7));
    }
}
