//! The reserve: which users may use the last part of the space, and that every user can free some.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::error::Error;
use cffs::format::superblock::Reserve;
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Caller, NewFile, NewKind, OpenOptions, SetAttr, SetVolume, Volume, XattrMode,
};

const ROOT: InodeNo = InodeNo::ROOT;
const MIB: u64 = 1 << 20;
const USER: u32 = 1000;
const GROUP: u32 = 100;
const CALLER: Caller<'static> = Caller { uid: USER, gid: GROUP, ..Caller::ROOT };
const FILE: NewFile<'static> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, uid: USER, gid: GROUP, times: None };

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = OpenOptions { cache_bytes: MIB, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

fn volume(reserve_bytes: u64) -> (Volume, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(64 * MIB));
    let options = MkfsOptions { reserve_bytes, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("mkfs");
    (open(&device), device)
}

fn close(volume: &Volume, device: &Arc<MemoryDevice>) {
    volume.close().expect("closed");
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(&**device, &options, &()).expect("checked");
    assert!(report.problems.is_empty() && report.recovered.is_empty(), "{report:?}");
}

/// Writes a file until there is no space; returns its size.
fn fill(volume: &Volume, user: &Caller<'_>, name: &str) -> u64 {
    let ino = match volume.make(user, ROOT, name.as_bytes(), &FILE) {
        Ok(attr) => attr.ino,
        Err(Error::NoSpace) => return 0,
        Err(error) => panic!("{error}"),
    };
    let piece = vec![7; 64 << 10];
    let mut at = 0;
    loop {
        match volume.write(user, ino, at, &piece) {
            Ok(len) => at += len as u64,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    volume.release(ino, 1);
    at
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, Error>, what: &str) {
    assert!(matches!(result, Err(Error::NoSpace)), "{what}: {result:?}");
}

#[test]
fn users_leave_the_reserve_and_root_uses_it() {
    let (volume, device) = volume(16 * MIB);
    let user = &CALLER;
    let filled = fill(&volume, user, "user");
    let full = volume.stat_fs();
    let bytes = |fragments: u64| fragments * u64::from(full.fragment_bytes);
    assert!((40 * MIB..48 * MIB).contains(&filled), "{filled}");
    assert!(bytes(full.available_fragments) < 256 << 10, "{full:?}");
    assert!(bytes(full.free_fragments) >= 16 * MIB, "{full:?}");

    // All operations that take space.
    is_refused(volume.make(user, ROOT, b"more", &FILE), "a file");
    is_refused(volume.make_unnamed(user, ROOT, &FILE), "a file without a name");
    let long = NewFile { kind: NewKind::Symlink(&[b'x'; 3000]), ..FILE };
    is_refused(volume.make(user, ROOT, b"link", &long), "a symbolic link");
    let ino = volume.lookup(ROOT, b"user").expect("there").ino;
    is_refused(volume.allocate(user, ino, 60 * MIB, MIB, AllocateMode::Reserve), "space ahead");
    is_refused(volume.copy(user, (ino, 0), (ino, 60 * MIB), MIB), "a copy");
    let other = volume.make(&Caller::ROOT, ROOT, b"other", &FILE).expect("made").ino;
    let value = [1; 60_000];
    let mut set = Ok(());
    for name in ["user.a", "user.b", "user.c", "user.d"] {
        set = set.and(volume.set_xattr(user, other, name.as_bytes(), &value, XattrMode::Any));
    }
    is_refused(set, "attributes");

    // Data can be overwritten in place, and removed.
    assert_eq!(volume.write(user, ino, 5 * MIB, b"overwritten").expect("in place"), 11);
    let taken = fill(&volume, &Caller::ROOT, "root");
    assert!(taken > 14 * MIB, "{taken}");
    assert!(bytes(volume.stat_fs().free_fragments) < 2 * MIB);
    is_refused(volume.make(user, ROOT, b"more", &FILE), "a file");
    volume
        .rename(&Caller::ROOT, ROOT, b"user", ROOT, b"mine", cffs::vfs::RenameMode::Replace)
        .expect("renamed");
    let size = Some(MIB);
    volume
        .set_attr(&Caller::ROOT, ino, &SetAttr { size, ..SetAttr::default() })
        .expect("truncated");
    volume.release(ino, 1);
    assert_eq!(volume.write(user, other, 0, &[3; 9000]).expect("there is space again"), 9000);
    volume.unlink(&Caller::ROOT, ROOT, b"mine").expect("removed");
    volume.make(user, ROOT, b"more", &FILE).expect("there is space again");
    close(&volume, &device);
}

#[test]
fn a_user_and_a_group_may_use_the_reserve_too() {
    let (volume, device) = volume(16 * MIB);
    fill(&volume, &CALLER, "user");
    let reserve = volume.writer().superblock.get().reserve;
    is_refused(volume.make(&CALLER, ROOT, b"more", &FILE), "a user");
    for (uid, gid, expected) in
        [(USER, 0, [true, true, false]), (0, GROUP, [true, false, true]), (0, 0, [false; 3])]
    {
        let reserve = Some(Reserve { uid, gid, ..reserve });
        volume.tune(&SetVolume { reserve, ..SetVolume::default() }).expect("tuned");
        let users = [(USER, GROUP), (USER, 1), (USER + 1, GROUP)];
        for ((uid, gid), expected) in users.into_iter().zip(expected) {
            let made = volume.make(&Caller { uid, gid, ..CALLER }, ROOT, b"more", &FILE);
            assert_eq!(made.is_ok(), expected, "{uid} {gid}: {made:?}");
            if made.is_ok() {
                volume.unlink(&Caller::ROOT, ROOT, b"more").expect("removed");
            }
        }
    }
    close(&volume, &device);
}

/// It applies as soon as it is set, and after the volume is reopened.
#[test]
fn a_reserve_can_be_set_later_and_is_kept() {
    let (volume, device) = volume(0);
    let reserve = Some(Reserve { fragments: 20 << 10, uid: 0, gid: 0 });
    let before = volume.stat_fs();
    volume.tune(&SetVolume { reserve, ..SetVolume::default() }).expect("tuned");
    let after = volume.stat_fs();
    assert_eq!(after.available_fragments, before.available_fragments - (20 << 10));
    assert_eq!((after.free_fragments, after.fragments), (before.free_fragments, before.fragments));
    close(&volume, &device);
    let volume = open(&device);
    assert_eq!(volume.stat_fs().available_fragments, after.available_fragments);
    let filled = fill(&volume, &CALLER, "user");
    assert!((36 * MIB..44 * MIB).contains(&filled), "{filled}");
    let reserve = Some(Reserve::default());
    volume.tune(&SetVolume { reserve, ..SetVolume::default() }).expect("tuned");
    assert!(fill(&volume, &CALLER, "more") > 18 * MIB);
    close(&volume, &device);
}

#[test]
fn more_than_half_is_refused() {
    let device = MemoryDevice::new(64 * MIB);
    let options = MkfsOptions { reserve_bytes: 33 * MIB, ..MkfsOptions::default() };
    assert!(matches!(mkfs::make(&device, &options), Err(Error::Unsupported(_))));
    let (volume, device) = volume(0);
    let reserve = Some(Reserve { fragments: 33 << 10, uid: 0, gid: 0 });
    let tuned = volume.tune(&SetVolume { reserve, ..SetVolume::default() });
    assert!(matches!(tuned, Err(Error::Unsupported(_))), "{tuned:?}");
    assert_eq!(volume.writer().superblock.get().reserve, Reserve::default());
    close(&volume, &device);
}
