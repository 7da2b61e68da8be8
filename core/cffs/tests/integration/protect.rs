//! Immutable and append-only files: refused and permitted operations, and the flags' permanence.

use std::sync::Arc;

use cffs::clock::{TestClock, Timestamp};
use cffs::device::{BlockDevice, CrashingDevice, MemoryDevice};
use cffs::error::Error;
use cffs::format::inode::InodeFlags;
use cffs::format::superblock::Incompat;
use cffs::fsck::{self, CheckOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Caller, NewFile, NewKind, OpenOptions, RenameMode, SetAttr, SetTime,
    Unprivileged, Volume, XattrMode, read_superblock,
};

use cffs_testing::setup::{FILE, made};

const ROOT: InodeNo = InodeNo::ROOT;
const IMMUTABLE: InodeFlags = InodeFlags::IMMUTABLE;
const APPEND_ONLY: InodeFlags = InodeFlags::APPEND_ONLY;
const NONE: InodeFlags = InodeFlags::empty();
const DIRECTORY: NewFile<'static> = NewFile { kind: NewKind::Directory, ..FILE };

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let clock = Arc::new(TestClock::default());
    cffs::open(device.clone(), clock, OpenOptions::default()).expect("open")
}

fn assert_sound(device: &dyn BlockDevice) {
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).expect("checked");
    assert!(report.problems.is_empty() && report.recovered.is_empty(), "{report:?}");
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>, what: &str) {
    assert!(matches!(result, Err(Error::NotPermitted)), "{what}: {result:?}");
}

/// All changes of a file except appending, and of its names, are refused.
fn nothing_changes(volume: &Volume, dir: InodeNo, name: &[u8], ino: InodeNo) {
    refused(volume.write(&Caller::ROOT, ino, 1, b"x"), "overwriting");
    let end = volume.attr(ino).expect("known").size;
    for mode in [
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange { keep_size: true },
        AllocateMode::ZeroRange { keep_size: false },
    ] {
        refused(volume.allocate(&Caller::ROOT, ino, 0, 10, mode), "zeros in it");
        refused(volume.allocate(&Caller::ROOT, ino, end, 10, mode), "zeros after it");
    }
    for changes in [
        SetAttr { permissions: Some(0o600), ..SetAttr::default() },
        SetAttr { uid: Some(7), ..SetAttr::default() },
        SetAttr { size: Some(0), ..SetAttr::default() },
        SetAttr { size: Some(1 << 20), ..SetAttr::default() },
        SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() },
    ] {
        refused(volume.set_attr(&Caller::ROOT, ino, &changes), "attributes");
    }
    refused(
        volume.set_xattr(&Caller::ROOT, ino, b"user.new", b"1", XattrMode::Any),
        "an attribute",
    );
    refused(volume.remove_xattr(ino, b"user.old"), "an attribute less");
    refused(volume.link(ino, ROOT, b"another name"), "a link");
    refused(volume.unlink(&Caller::ROOT, dir, name), "its name");
    let other = volume.make(&Caller::ROOT, ROOT, b"other", &FILE).expect("made").ino;
    for mode in
        [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Whiteout { no_replace: true }]
    {
        refused(volume.rename(&Caller::ROOT, dir, name, ROOT, b"new name", mode), "a new name");
    }
    refused(
        volume.rename(&Caller::ROOT, ROOT, b"other", dir, name, RenameMode::Replace),
        "being replaced",
    );
    refused(
        volume.rename(&Caller::ROOT, ROOT, b"other", dir, name, RenameMode::Exchange),
        "an exchange",
    );
    refused(
        volume
            .copy(&Caller::ROOT, (other, 0), (ino, 0), 10)
            .and_then(|_| volume.write(&Caller::ROOT, ino, 0, b"x")),
        "a copy",
    );
    volume.unlink(&Caller::ROOT, ROOT, b"other").expect("removed");
    volume.release(other, 1);
    assert_eq!(volume.lookup(dir, name).expect("there").ino, ino);
}

#[test]
fn protected_files_stay_as_they_are() {
    let device = made(32 << 20);
    let volume = open(&device);
    for (name, size) in [(&b"tiny"[..], 100), (b"large", 300_000)] {
        let ino = volume.make(&Caller::ROOT, ROOT, name, &FILE).expect("made").ino;
        volume.write(&Caller::ROOT, ino, 0, &vec![5; size]).expect("written");
        volume.set_xattr(&Caller::ROOT, ino, b"user.old", b"1", XattrMode::Any).expect("set");
        for protection in [IMMUTABLE, APPEND_ONLY] {
            volume.set_flags(ino, protection).expect("protected");
            assert_eq!(volume.attr(ino).expect("known").flags, protection);
            let before = volume.attr(ino).expect("attr");
            nothing_changes(&volume, ROOT, name, ino);
            let end = before.size;
            if protection == IMMUTABLE {
                refused(volume.write(&Caller::ROOT, ino, end, b"more"), "appending");
                for mode in [AllocateMode::Reserve, AllocateMode::ReserveKeepSize] {
                    refused(volume.allocate(&Caller::ROOT, ino, end, 9000, mode), "space");
                }
                assert_eq!(volume.attr(ino).expect("attr"), before);
            } else {
                assert_eq!(volume.write(&Caller::ROOT, ino, end, b"more").expect("appended"), 4);
                assert_eq!(volume.attr(ino).expect("attr").size, end + 4);
            }
        }
        volume.set_flags(ino, NONE).expect("free");
        volume.write(&Caller::ROOT, ino, 0, b"changed").expect("written");
        volume.unlink(&Caller::ROOT, ROOT, name).expect("removed");
        volume.release(ino, 1);
    }
    volume.close().expect("closed");
    assert_sound(&*device);
}

/// Regression: fallocate(2) without flags and with `FALLOC_FL_KEEP_SIZE` was refused. Linux permits both.
#[test]
fn space_is_reserved_in_an_append_only_file() {
    let device = made(32 << 20);
    let volume = open(&device);
    for (name, size) in [(&b"tiny"[..], 100), (b"large", 300_000)] {
        let ino = volume.make(&Caller::ROOT, ROOT, name, &FILE).expect("made").ino;
        volume.write(&Caller::ROOT, ino, 0, &vec![5; size]).expect("written");
        volume.set_flags(ino, APPEND_ONLY).expect("protected");
        let reserve = |from, len, mode| {
            volume.allocate(&Caller::ROOT, ino, from, len, mode).expect("reserved");
            volume.attr(ino).expect("known").size
        };
        let end = size as u64;
        assert_eq!(reserve(end, 1 << 20, AllocateMode::ReserveKeepSize), end);
        assert_eq!(reserve(0, 50, AllocateMode::Reserve), end);
        assert_eq!(reserve(10, end, AllocateMode::Reserve), end + 10);
        let mut contents = vec![1; size + 10];
        volume.read(ino, 0, &mut contents).expect("read");
        assert_eq!(contents, [vec![5; size], vec![0; 10]].concat());
    }
    volume.close().expect("closed");
    assert_sound(&*device);
}

/// Regression: touch(1) of an append-only file was refused, and so was an append by a user to one with a
/// set-id bit. Linux refuses only explicit times.
#[test]
fn an_append_only_file_can_be_touched_and_loses_set_id_bits() {
    let device = made(32 << 20);
    let volume = open(&device);
    let now = Some(SetTime::Now);
    let past = Some(SetTime::To(Timestamp { seconds: 7, nanoseconds: 0 }));
    let touch = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
    let clear_privileges = Some(Unprivileged::Stranger);
    let program = NewFile { permissions: 0o6755, ..FILE };
    for (name, new) in [(&b"log"[..], program), (b"logs", DIRECTORY)] {
        let ino = volume.make(&Caller::ROOT, ROOT, name, &new).expect("made").ino;
        volume
            .set_attr(&Caller::ROOT, ino, &SetAttr { mtime: past, ..touch })
            .expect("not protected");
        volume.set_flags(ino, APPEND_ONLY).expect("protected");
        for times in [
            SetAttr { mtime: past, ..touch },
            SetAttr { atime: past, ..touch },
            SetAttr { mtime: None, ..touch },
            SetAttr { atime: None, ..touch },
            SetAttr { uid: Some(7), ..touch },
        ] {
            refused(volume.set_attr(&Caller::ROOT, ino, &times), "other changes than a touch");
        }
        let touched = volume.set_attr(&Caller::ROOT, ino, &touch).expect("touched");
        assert_ne!(touched.mtime.seconds, 7);
        let cleared = SetAttr { clear_privileges, ..SetAttr::default() };
        volume.set_attr(&Caller::ROOT, ino, &cleared).expect("as an append does");
        volume.set_flags(ino, IMMUTABLE).expect("protected");
        refused(volume.set_attr(&Caller::ROOT, ino, &touch), "a touch of what is immutable");
        refused(volume.set_attr(&Caller::ROOT, ino, &cleared), "a change of what is immutable");
    }
    assert_eq!(volume.lookup(ROOT, b"log").expect("found").permissions, 0o755);
    volume.close().expect("closed");
    assert_sound(&*device);
}

#[test]
fn a_changed_size_or_owner_removes_capabilities() {
    const CAPABILITY: &[u8] = b"security.capability";
    let device = made(32 << 20);
    let volume = open(&device);
    let clear_privileges = Some(Unprivileged::Member);
    let cases = [
        (SetAttr { size: Some(1), ..SetAttr::default() }, false),
        (SetAttr { uid: Some(7), clear_privileges, ..SetAttr::default() }, false),
        (SetAttr { permissions: Some(0o700), ..SetAttr::default() }, true),
    ];
    for (index, (changes, stays)) in cases.iter().enumerate() {
        let name = format!("program {index}");
        let ino = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("made").ino;
        volume.set_xattr(&Caller::ROOT, ino, b"user.note", b"kept", XattrMode::Any).expect("set");
        volume.set_xattr(&Caller::ROOT, ino, CAPABILITY, b"all", XattrMode::Any).expect("set");
        volume.set_attr(&Caller::ROOT, ino, changes).expect("changed");
        let names = volume.xattr_names(ino).expect("names");
        assert!(names.iter().any(|name| name == b"user.note"));
        assert_eq!(names.iter().any(|name| name == CAPABILITY), *stays, "{changes:?}");
    }
    let ino = volume.lookup(ROOT, b"program 2").expect("found").ino;
    volume.allocate(&Caller::ROOT, ino, 0, 4096, AllocateMode::Reserve).expect("allocated");
    assert_eq!(volume.xattr_names(ino).expect("names"), [b"user.note"]);
    volume.close().expect("closed");
    assert_sound(&*device);
}

#[test]
fn a_protected_directory_keeps_its_names() {
    let device = made(32 << 20);
    let volume = open(&device);
    let dir = volume.make(&Caller::ROOT, ROOT, b"dir", &DIRECTORY).expect("made").ino;
    let file = volume.make(&Caller::ROOT, dir, b"file", &FILE).expect("made").ino;
    volume.make(&Caller::ROOT, dir, b"below", &DIRECTORY).expect("made");
    volume.make(&Caller::ROOT, ROOT, b"outside", &FILE).expect("made");
    for protection in [IMMUTABLE, APPEND_ONLY] {
        volume.set_flags(dir, protection).expect("protected");
        refused(volume.unlink(&Caller::ROOT, dir, b"file"), "a name");
        refused(volume.remove_dir(&Caller::ROOT, dir, b"below"), "a directory");
        refused(
            volume.rename(&Caller::ROOT, dir, b"file", dir, b"new", RenameMode::Replace),
            "a new name",
        );
        refused(
            volume.rename(&Caller::ROOT, dir, b"file", ROOT, b"new", RenameMode::Replace),
            "a move",
        );
        refused(
            volume.rename(&Caller::ROOT, ROOT, b"outside", dir, b"file", RenameMode::Replace),
            "a replacement",
        );
        refused(
            volume.rename(&Caller::ROOT, ROOT, b"dir", ROOT, b"new", RenameMode::Replace),
            "its own name",
        );
        refused(volume.remove_dir(&Caller::ROOT, ROOT, b"dir"), "itself");
        // The files in it are not protected.
        assert_eq!(volume.write(&Caller::ROOT, file, 0, b"contents").expect("written"), 8);
    }
    volume.set_flags(dir, IMMUTABLE).expect("protected");
    refused(volume.make(&Caller::ROOT, dir, b"new", &FILE), "a file");
    refused(volume.make_unnamed(&Caller::ROOT, dir, &FILE), "a file without a name");
    refused(volume.link(file, dir, b"new"), "a link");
    refused(
        volume.rename(&Caller::ROOT, ROOT, b"outside", dir, b"new", RenameMode::Replace),
        "a name more",
    );
    volume.set_flags(dir, APPEND_ONLY).expect("protected");
    volume.make(&Caller::ROOT, dir, b"new", &FILE).expect("names come");
    volume
        .rename(&Caller::ROOT, ROOT, b"outside", dir, b"came", RenameMode::Replace)
        .expect("moved in");
    volume.close().expect("closed");
    assert_sound(&*device);
}

/// The flags are permanent, and from the first one on, programs without support for them refuse the volume.
#[test]
fn protection_lasts() {
    let device = made(32 << 20);
    let volume = open(&device);
    let ino = volume.make(&Caller::ROOT, ROOT, b"file", &FILE).expect("made").ino;
    assert!(!read_superblock(&*device).expect("read").incompat.contains(Incompat::PROTECTION));
    volume.set_flags(ino, NONE).expect("nothing to do");
    assert!(!read_superblock(&*device).expect("read").incompat.contains(Incompat::PROTECTION));
    volume.set_flags(ino, IMMUTABLE).expect("protected");
    assert!(read_superblock(&*device).expect("read").incompat.contains(Incompat::PROTECTION));
    volume.close().expect("closed");
    assert_sound(&*device);
    let volume = open(&device);
    let ino = volume.lookup(ROOT, b"file").expect("there").ino;
    assert_eq!(volume.attr(ino).expect("known").flags, IMMUTABLE);
    refused(volume.write(&Caller::ROOT, ino, 0, b"x"), "a write");
    let link = NewFile { kind: NewKind::Symlink(b"target"), ..FILE };
    let link = volume.make(&Caller::ROOT, ROOT, b"link", &link).expect("made").ino;
    assert!(matches!(volume.set_flags(link, IMMUTABLE), Err(Error::NotSupported)));
    volume.close().expect("closed");
}

/// Without the feature, no inode of the volume has a flag.
#[test]
fn a_crash_leaves_no_flag_without_the_feature() {
    let device = made(32 << 20);
    let volume = open(&device);
    let ino = volume.make(&Caller::ROOT, ROOT, b"file", &FILE).expect("made").ino;
    volume.close().expect("closed");
    for seed in 0..4 {
        let crashing = Arc::new(CrashingDevice::new(device.snapshot(), 6, seed));
        let clock = Arc::new(TestClock::default());
        let volume = cffs::open(crashing.clone(), clock, OpenOptions::default()).expect("open");
        crashing.take_images();
        volume.set_flags(ino, APPEND_ONLY).expect("protected");
        volume.sync().expect("synced");
        let mut images = crashing.take_images();
        images.push(crashing.inner().durable());
        for image in images {
            let device = Arc::new(MemoryDevice::from_image(image));
            let volume = open(&device);
            let has_feature =
                volume.writer().superblock.get().incompat.contains(Incompat::PROTECTION);
            let protection = volume.attr(ino).expect("there").flags;
            assert!(has_feature || protection == NONE);
            volume.close().expect("closed");
            assert_sound(&*device);
        }
    }
}
