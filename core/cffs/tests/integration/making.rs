//! Files that have attributes from the beginning.

use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::fsck::{self, CheckOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Attr, Caller, NewFile, NewKind, OpenOptions, SetAttr, SetTime, make_with};

use cffs_testing::setup::{DIRECTORY, FILE, made, open};

const ROOT: InodeNo = InodeNo::ROOT;
const ME: &Caller<'static> = &Caller::ROOT;

/// Attributes that do not tell when and as which number a file was made, and whether zeros are a hole.
fn lasting(attr: &Attr) -> Attr {
    let (none, allocated_bytes) = (Timestamp::default(), 0);
    let attr = Attr { mtime: none, ctime: none, btime: none, allocated_bytes, ..*attr };
    Attr { ino: ROOT, generation: 0, change: 0, ..attr }
}

#[test]
fn a_file_that_is_made_with_attributes_equals_one_that_gets_them() {
    let device = made(16 << 20);
    let volume = open(device.clone(), OpenOptions::default());
    let dir = NewFile { permissions: 0o2777, gid: 40, ..DIRECTORY };
    let dir = volume.make(ME, ROOT, b"dir", &dir).expect("made").ino;
    let atime = Some(SetTime::To(Timestamp { seconds: 1_000_000_000, nanoseconds: 7 }));
    let owner = SetAttr { uid: Some(10), gid: Some(20), atime, ..SetAttr::default() };
    let sized = |size| SetAttr { size: Some(size), ..owner };
    let kinds = [
        (NewKind::Regular, owner),
        (NewKind::Regular, sized(0)),
        (NewKind::Regular, sized(100)),
        (NewKind::Regular, sized(100_000_000)),
        (NewKind::Directory, owner),
        (NewKind::Symlink(b"to"), owner),
        (NewKind::Fifo, owner),
    ];
    for (number, (kind, changes)) in kinds.into_iter().enumerate() {
        let new = NewFile { kind, ..FILE };
        let name = format!("at once {number}");
        let at_once = make_with(&volume, ME, dir, name.as_bytes(), &new, &changes).expect("made");
        let later = volume.make(ME, dir, format!("later {number}").as_bytes(), &new).expect("made");
        let later = volume.set_attr(ME, later.ino, &changes).expect("set");
        assert_eq!(lasting(&at_once), lasting(&later), "{kind:?}");
        if kind == NewKind::Regular {
            volume.write(ME, at_once.ino, 50, b"contents").expect("written");
        }
    }
    volume.close().expect("closed");
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(&*device, &options, &()).expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_file_that_cannot_have_its_attributes_is_not_made() {
    let volume = open(made(16 << 20), OpenOptions::default());
    let sized = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let owned = SetAttr { uid: Some(u32::MAX), ..SetAttr::default() };
    let make = |kind, changes| {
        let made = make_with(&volume, ME, ROOT, b"f", &NewFile { kind, ..FILE }, &changes);
        assert!(matches!(volume.lookup(ROOT, b"f"), Err(Error::NotFound)));
        made.expect_err("refused")
    };
    assert!(matches!(make(NewKind::Regular, sized(u64::MAX)), Error::TooLarge));
    assert!(matches!(make(NewKind::Directory, sized(1)), Error::IsDirectory));
    assert!(matches!(make(NewKind::Fifo, sized(1)), Error::Invalid(_)));
    assert!(matches!(make(NewKind::Regular, owned), Error::Invalid(_)));
}
