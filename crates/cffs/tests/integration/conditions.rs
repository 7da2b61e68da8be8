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

/// A change of `name` in the root by a caller with a condition.
type Change = fn(&Volume, InodeNo, &Caller<'_>) -> Result<()>;

/// Each change, and whether it removes a name of the file.
const CHANGES: [(&str, NewKind<'static>, bool, Change); 7] = [
    ("attributes", NewKind::Regular, false, |v, ino, caller| {
        v.set_attr(caller, ino, &owner(7)).map(drop)
    }),
    ("a size in the inode", NewKind::Regular, false, |v, ino, caller| {
        v.set_attr(caller, ino, &size(10)).map(drop)
    }),
    ("a size with blocks", NewKind::Regular, false, |v, ino, caller| {
        v.set_attr(caller, ino, &size(1 << 20)).map(drop)
    }),
    ("a name", NewKind::Regular, true, |v, _, caller| v.unlink(caller, ROOT, b"name")),
    ("a directory", NewKind::Directory, true, |v, _, caller| v.remove_dir(caller, ROOT, b"name")),
    ("a name that is changed", NewKind::Regular, true, |v, _, caller| {
        v.rename(caller, ROOT, b"name", ROOT, b"new", RenameMode::Replace).map(drop)
    }),
    ("a name that is replaced", NewKind::Regular, true, |v, ino, caller| {
        if v.lookup(ROOT, b"another").is_err() {
            make(v, ROOT, "another", NewKind::Regular);
        }
        let condition = caller.condition.expect("given");
        let of_replaced = |file: &Attr, dir: Option<&Attr>| file.ino != ino || condition(file, dir);
        let caller = Caller { condition: Some(&of_replaced), ..*caller };
        v.rename(&caller, ROOT, b"another", ROOT, b"name", RenameMode::Replace).map(drop)
    }),
];

#[test]
fn without_its_condition_a_change_is_not_made() {
    for (what, kind, takes_name, change) in CHANGES {
        let volume = volume();
        let ino = make(&volume, ROOT, "name", kind);
        if matches!(kind, NewKind::Regular) {
            // A change of the size removes it, and must not do so before the condition is checked.
            let capability = b"security.capability";
            volume.set_xattr(&Caller::ROOT, ino, capability, b"all", XattrMode::Any).unwrap();
        }
        let (file, root) = (volume.attr(ino).unwrap(), volume.attr(ROOT).unwrap());
        let is_other = |attr: &Attr, dir: Option<&Attr>| {
            assert_eq!(dir.is_some(), takes_name, "{what}");
            *attr != file
        };
        let caller = Caller { condition: Some(&is_other), ..Caller::ROOT };
        assert!(matches!(change(&volume, ino, &caller), Err(Error::Unmet)), "{what}");
        assert_eq!(volume.attr(ino).unwrap(), file, "{what}");
        if what != "a name that is replaced" {
            assert_eq!(volume.attr(ROOT).unwrap(), root, "{what}");
        }
        assert_eq!(volume.lookup(ROOT, b"name").unwrap().ino, ino, "{what}");
        let is_same = |attr: &Attr, _: Option<&Attr>| *attr == file;
        let caller = Caller { condition: Some(&is_same), ..Caller::ROOT };
        change(&volume, ino, &caller).unwrap();
        let now = volume.lookup(ROOT, b"name").ok().map(|attr| (attr.ino, attr.uid));
        assert_eq!(now == Some((ino, 7)), !takes_name, "{what}");
    }
}

/// The condition stays true until the change is made: another caller that would invalidate it waits, and
/// changes the file afterwards, if it still exists.
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
            Err(Error::Stale) if takes_name => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
}
