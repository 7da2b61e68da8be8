//! Conditions of changes hold in the moment of the change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::{Attr, NewKind, RenameMode, SetAttr, Volume};

use crate::setup::make;

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

/// A change of `name` in the root, on a condition about a file.
type Change = fn(&Volume, InodeNo, &dyn Fn(&Attr) -> bool) -> Result<()>;

/// Each change, and whether it takes a name of the file.
const CHANGES: [(&str, NewKind<'static>, bool, Change); 7] = [
    ("attributes", NewKind::Regular, false, |v, ino, may| {
        v.provided(may).set_attr(ino, &owner(7)).map(drop)
    }),
    ("a size in the inode", NewKind::Regular, false, |v, ino, may| {
        v.provided(may).set_attr(ino, &size(10)).map(drop)
    }),
    ("a size with blocks", NewKind::Regular, false, |v, ino, may| {
        v.provided(may).set_attr(ino, &size(1 << 20)).map(drop)
    }),
    ("a name", NewKind::Regular, true, |v, _, may| {
        v.provided(|_: &Attr, file: &Attr| may(file)).unlink(ROOT, b"name")
    }),
    ("a directory", NewKind::Directory, true, |v, _, may| {
        v.provided(|_: &Attr, file: &Attr| may(file)).remove_dir(ROOT, b"name")
    }),
    ("a name that is changed", NewKind::Regular, true, |v, _, may| {
        let volume = v.provided(|_: &Attr, file: &Attr| may(file));
        volume.rename(ROOT, b"name", ROOT, b"new", RenameMode::Replace).map(drop)
    }),
    ("a name that is replaced", NewKind::Regular, true, |v, ino, may| {
        if v.lookup(ROOT, b"another").is_err() {
            make(v, ROOT, "another", NewKind::Regular);
        }
        let volume = v.provided(|_: &Attr, file: &Attr| file.ino != ino || may(file));
        volume.rename(ROOT, b"another", ROOT, b"name", RenameMode::Replace).map(drop)
    }),
];

#[test]
fn without_its_condition_a_change_is_not_made() {
    for (what, kind, takes_name, change) in CHANGES {
        let volume = volume();
        let ino = make(&volume, ROOT, "name", kind);
        let (file, root) = (volume.attr(ino).unwrap(), volume.attr(ROOT).unwrap());
        let seen = |attr: &Attr| *attr != file;
        assert!(matches!(change(&volume, ino, &seen), Err(Error::Unmet)), "{what}");
        assert_eq!(volume.attr(ino).unwrap(), file, "{what}");
        if what != "a name that is replaced" {
            assert_eq!(volume.attr(ROOT).unwrap(), root, "{what}");
        }
        assert_eq!(volume.lookup(ROOT, b"name").unwrap().ino, ino, "{what}");
        change(&volume, ino, &|attr| *attr == file).unwrap();
        let now = volume.lookup(ROOT, b"name").ok().map(|attr| (attr.ino, attr.uid));
        assert_eq!(now == Some((ino, 7)), !takes_name, "{what}");
    }
}

/// The file keeps what the condition was about until the change is made: another caller who wants to
/// change that waits, and its own change comes after, if there is a file left.
#[test]
fn no_change_comes_between_a_condition_and_its_change() {
    for (what, kind, takes_name, change) in CHANGES {
        let volume = volume();
        let ino = make(&volume, ROOT, "name", kind);
        let (asked, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let uid_seen_after = thread::scope(|scope| {
            let other = scope.spawn(|| {
                while asked.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
                let attr = volume.provided(|_: &Attr| is_over.load(Ordering::Acquire));
                attr.set_attr(ino, &owner(8))
            });
            let may = |_: &Attr| {
                asked.fetch_add(1, Ordering::Release);
                // Long enough for the other to be there first, if it could.
                thread::sleep(Duration::from_millis(50));
                is_over.store(true, Ordering::Release);
                true
            };
            change(&volume, ino, &may).unwrap();
            other.join().unwrap()
        });
        match uid_seen_after {
            Ok(attr) => assert_eq!(attr.uid, 8, "{what}"),
            Err(Error::Stale) if takes_name => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
}
