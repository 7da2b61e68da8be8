//! Quotas of directory trees: accounts equal a count of the tree, limits hold at the call that would exceed
//! them, and names cross no border that would make the accounts unclear.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, Counts, MemoryDevice, TraceDevice};
use cffs::error::{Error, Result};
use cffs::format::FILE_BYTES_MAX;
use cffs::format::superblock::{Compression, RoCompat};
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Amount, Caller, NewKind, OpenOptions, Quotas, RenameMode, SetAttr, Volume,
    XattrMode, own_xattr, read_superblock,
};

use cffs::waiter::Waiter;
use cffs_testing::quota;
use cffs_testing::random::Random;
use cffs_testing::setup::{DIRECTORY, FILE, made, new, open, recover};

const ROOT: InodeNo = InodeNo::ROOT;
const ME: &Caller<'static> = &Caller::ROOT;

pub(super) fn check(volume: &Volume, when: &str) {
    if let Err(why) = quota::check(volume) {
        panic!("{when}: {why}");
    }
}

pub(super) fn make_dir(volume: &Volume, dir: InodeNo, name: &str) -> InodeNo {
    let made = volume.make(ME, dir, name.as_bytes(), &DIRECTORY).expect("made").ino;
    volume.release(made, 1);
    made
}

pub(super) fn make_file(volume: &Volume, dir: InodeNo, name: &str, bytes: usize) -> InodeNo {
    let made = volume.make(ME, dir, name.as_bytes(), &FILE).expect("made").ino;
    assert_eq!(volume.write(ME, made, 0, &vec![7; bytes]).expect("written"), bytes);
    volume.release(made, 1);
    made
}

pub(super) fn bytes(bytes: u64) -> Amount {
    Amount { bytes, ..Amount::UNLIMITED }
}

pub(super) fn files(files: u64) -> Amount {
    Amount { files, ..Amount::UNLIMITED }
}

/// A volume with a directory that has a quota.
pub(super) fn with_quota(limits: Amount) -> (Arc<MemoryDevice>, Volume, InodeNo) {
    let device = made(64 << 20);
    let volume = open(device.clone(), OpenOptions::default());
    let dir = make_dir(&volume, ROOT, "q");
    Quotas::of(&volume).set(dir, limits).expect("set");
    (device, volume, dir)
}

fn rename(volume: &Volume, from: InodeNo, name: &str, to: InodeNo, new: &str) -> Result<bool> {
    volume.rename(ME, from, name.as_bytes(), to, new.as_bytes(), RenameMode::Replace)
}

#[test]
fn a_write_above_the_limit_is_refused_and_removing_a_file_frees_its_charge() {
    let (_, volume, dir) = with_quota(bytes(100 << 10));
    let file = volume.make(ME, dir, b"f", &FILE).expect("made").ino;
    let written = volume.write(ME, file, 0, &vec![1; 1 << 20]).expect("a part is written");
    assert!((80 << 10..=100 << 10).contains(&written), "{written} bytes fit");
    let more = volume.write(ME, file, written as u64, &[1; 9000]);
    assert!(matches!(more, Err(Error::QuotaExceeded(_))), "{more:?}");
    volume.write(ME, file, 0, &[2; 9000]).expect("overwriting needs no space");
    make_file(&volume, ROOT, "outside", 1 << 20);
    check(&volume, "full");
    volume.unlink(ME, dir, b"f").expect("removed");
    assert!(Quotas::of(&volume).get(dir).expect("shown").used.bytes >= written as u64);
    volume.release(file, 1);
    check(&volume, "released");
    make_file(&volume, dir, "g", 80 << 10);
    volume.close().expect("closed");
}

#[test]
fn the_limit_of_files_holds_for_all_types() {
    let (_, volume, dir) = with_quota(files(5));
    make_file(&volume, dir, "f", 10);
    make_dir(&volume, dir, "d");
    volume.make(ME, dir, b"l", &new(NewKind::Symlink(b"target"))).expect("made");
    volume.release(volume.make(ME, dir, b"p", &new(NewKind::Fifo)).expect("made").ino, 1);
    for kind in [NewKind::Regular, NewKind::Directory, NewKind::Symlink(b"x"), NewKind::Socket] {
        let refused = volume.make(ME, dir, b"more", &new(kind));
        assert!(matches!(refused, Err(Error::QuotaExceeded(_))), "{refused:?}");
    }
    assert!(matches!(volume.make_unnamed(ME, dir, &FILE), Err(Error::QuotaExceeded(_))));
    assert!(matches!(volume.lookup(dir, b"more"), Err(Error::NotFound)));
    let file = volume.lookup(dir, b"f").expect("found").ino;
    volume.link(file, dir, b"another name").expect("a name is no file");
    volume.release(file, 2);
    volume.unlink(ME, dir, b"p").expect("removed");
    volume.release(volume.make(ME, ROOT, b"elsewhere", &FILE).expect("made").ino, 1);
    check(&volume, "at the limit");
}

#[test]
fn allocation_truncation_and_copies_are_charged() {
    let (_, volume, dir) = with_quota(bytes(200 << 10));
    let file = make_file(&volume, dir, "f", 0);
    let reserve = |len| volume.allocate(ME, file, 0, len, AllocateMode::ReserveKeepSize);
    assert!(matches!(reserve(1 << 20), Err(Error::QuotaExceeded(_))));
    check(&volume, "refused");
    reserve(100 << 10).expect("it fits");
    check(&volume, "reserved");
    let long = make_file(&volume, ROOT, "long", 300 << 10);
    let copied = volume.copy(ME, (long, 0), (file, 0), 300 << 10).expect("a part is copied");
    assert!((150 << 10..=200 << 10).contains(&copied), "{copied} bytes fit");
    check(&volume, "copied");
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    volume.set_attr(ME, file, &size(1000)).expect("truncated");
    check(&volume, "truncated");
    volume.set_attr(ME, file, &size(1 << 30)).expect("a hole needs no space");
    volume.allocate(ME, file, 0, 1 << 20, AllocateMode::PunchHole).expect("freed");
    check(&volume, "freed");
}

/// The room that a reservation takes was found by looking at each of its blocks, of which there can be 2^36.
#[test]
fn the_longest_reservation_is_refused_at_once() {
    let (_, volume, dir) = with_quota(bytes(1 << 20));
    let file = make_file(&volume, dir, "f", 50_000);
    let reserve = |mode| volume.allocate(ME, file, 0, FILE_BYTES_MAX, mode);
    for mode in [AllocateMode::Reserve, AllocateMode::ZeroRange { keep_size: true }] {
        let refused = reserve(mode);
        assert!(matches!(refused, Err(Error::QuotaExceeded(_))), "{refused:?}");
    }
    check(&volume, "refused");
    Quotas::of(&volume).set(dir, Amount::UNLIMITED).expect("set");
    assert!(matches!(reserve(AllocateMode::Reserve), Err(Error::NoSpace)));
    check(&volume, "no space");
}

#[test]
fn a_file_moves_with_its_charge_and_a_directory_does_not_move_across_a_border() {
    let (_, volume, dir) = with_quota(bytes(100 << 10));
    let other = make_dir(&volume, ROOT, "other");
    Quotas::of(&volume).set(other, Amount::UNLIMITED).expect("set");
    make_file(&volume, ROOT, "small", 50 << 10);
    make_file(&volume, other, "large", 200 << 10);
    rename(&volume, ROOT, "small", dir, "small").expect("it fits");
    check(&volume, "moved in");
    assert!(matches!(rename(&volume, other, "large", dir, "large"), Err(Error::QuotaExceeded(_))));
    volume.release(volume.lookup(other, b"large").expect("it is where it was").ino, 1);
    rename(&volume, dir, "small", other, "large").expect("moved, and one replaced");
    check(&volume, "moved out");
    make_dir(&volume, dir, "d");
    assert!(matches!(rename(&volume, dir, "d", ROOT, "d"), Err(Error::OtherQuota)));
    rename(&volume, dir, "d", dir, "e").expect("within");
    rename(&volume, ROOT, "q", other, "q").expect_err("a directory with a quota");
    let inner = make_dir(&volume, ROOT, "inner");
    rename(&volume, ROOT, "q", inner, "q").expect("it keeps its quota");
    assert_eq!(Quotas::of(&volume).get(dir).expect("shown").path, b"inner/q");
    let exchange = volume.rename(ME, dir, b"e", other, b"large", RenameMode::Exchange);
    assert!(matches!(exchange, Err(Error::OtherQuota)), "{exchange:?}");
    check(&volume, "at the end");
}

#[test]
fn a_file_has_all_its_names_in_one_quota() {
    let (_, volume, dir) = with_quota(Amount::UNLIMITED);
    let sub = make_dir(&volume, dir, "sub");
    let file = make_file(&volume, sub, "f", 9000);
    assert!(matches!(volume.link(file, ROOT, b"f"), Err(Error::OtherQuota)));
    volume.link(file, dir, b"f").expect("linked");
    volume.release(file, 1);
    check(&volume, "linked");
    assert!(matches!(rename(&volume, dir, "f", ROOT, "f"), Err(Error::OtherQuota)));
    // The directory that the inode remembers goes.
    volume.unlink(ME, sub, b"f").expect("removed");
    volume.remove_dir(ME, dir, b"sub").expect("removed");
    volume.write(ME, file, 9000, &[1; 50_000]).expect("written");
    check(&volume, "one name left");
    let outside = make_file(&volume, ROOT, "two", 100);
    let other = make_dir(&volume, ROOT, "other");
    volume.link(outside, other, b"two").expect("linked");
    volume.release(outside, 1);
    let refused = Quotas::of(&volume).set(other, Amount::UNLIMITED);
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    assert!(Quotas::of(&volume).get(other).is_err());
}

/// Such a file kept the directory as its parent, and was charged to its quota.
#[test]
fn a_file_that_left_a_directory_before_it_had_a_quota_is_not_charged() {
    let kinds = [true, false].map(|embed| MkfsOptions { embed, ..MkfsOptions::default() });
    for options in &kinds {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        mkfs::make(&device, options).expect("made");
        let mut volume = open(device.clone(), OpenOptions::default());
        let dir = make_dir(&volume, ROOT, "q");
        let sub = make_dir(&volume, dir, "sub");
        let other = make_dir(&volume, ROOT, "other");
        let leave = |volume: &Volume, from, name: &str| {
            let file = make_file(volume, from, name, 50_000);
            for new in ["a", "b"] {
                volume.link(file, other, format!("{name} {new}").as_bytes()).expect("linked");
                volume.release(file, 1);
            }
            volume.unlink(ME, from, name.as_bytes()).expect("removed");
            file
        };
        let files = [leave(&volume, dir, "f"), leave(&volume, dir, "g"), leave(&volume, sub, "h")];
        let inside = make_file(&volume, dir, "inside", 50_000);
        volume.link(inside, sub, b"inside").expect("linked");
        volume.release(inside, 1);
        for round in 0..2 {
            let before = Quotas::of(&volume).set(dir, bytes(90_000)).expect("set").used;
            volume.write(ME, files[0], 0, &[1; 60_000]).expect("no limit holds");
            let size = Some(0);
            volume.set_attr(ME, files[1], &SetAttr { size, ..SetAttr::default() }).expect("empty");
            volume.write(ME, files[2], 0, &[1; 60_000]).expect("no limit holds");
            assert!(Quotas::of(&volume).get(files[0]).is_err(), "it has no quota");
            assert_eq!(Quotas::of(&volume).get(inside).expect("shown").used, before);
            check(&volume, "changed");
            // The second time, the inodes come from the device.
            Quotas::of(&volume).remove(dir).expect("removed");
            if round == 0 {
                volume.close().expect("closed");
                volume = open(device.clone(), OpenOptions::default());
            }
        }
        // With a name in the directory again, all names would have to be there.
        let refused = Quotas::of(&volume).set(other, Amount::UNLIMITED);
        refused.expect("all names are in it");
        check(&volume, "the other directory");
        volume.close().expect("closed");
    }
}

#[test]
fn a_quota_that_is_refused_leaves_the_volume_to_earlier_programs() {
    let device = made(64 << 20);
    let volume = open(device.clone(), OpenOptions::default());
    let file = make_file(&volume, ROOT, "f", 1);
    let dir = make_dir(&volume, ROOT, "d");
    volume.link(file, dir, b"f").expect("linked");
    volume.release(file, 1);
    let set = |dir| Quotas::of(&volume).set(dir, Amount::UNLIMITED);
    assert!(matches!(set(file), Err(Error::NotDirectory)));
    assert!(matches!(set(dir), Err(Error::Unsupported(_))));
    let gone = volume.make(ME, ROOT, b"gone", &DIRECTORY).expect("made").ino;
    volume.remove_dir(ME, ROOT, b"gone").expect("removed");
    assert!(matches!(set(gone), Err(Error::NotFound)));
    volume.release(gone, 1);
    volume.close().expect("closed");
    let superblock = read_superblock(&*device).expect("read");
    assert!(!superblock.ro_compat.contains(RoCompat::QUOTAS));
}

/// Such a directory gave its charge back to the quota that it had had.
#[test]
fn the_charge_of_a_removed_directory_with_a_quota_is_returned_to_its_parent() {
    let volume = open(made(64 << 20), OpenOptions::default());
    let above = make_dir(&volume, ROOT, "above");
    let dir = make_dir(&volume, above, "dir");
    let quotas = Quotas::of(&volume);
    quotas.set(dir, Amount::UNLIMITED).expect("set");
    make_file(&volume, dir, "f", 1000);
    volume.unlink(ME, dir, b"f").expect("removed");
    quotas.remove(dir).expect("removed");
    quotas.set(above, Amount::UNLIMITED).expect("set");
    volume.remove_dir(ME, above, b"dir").expect("removed");
    check(&volume, "removed");
    assert_eq!(quotas.get(above).expect("shown").used.files, 1);
}

#[test]
fn a_name_that_exists_is_reported_before_a_full_quota_or_a_border() {
    let (_, volume, dir) = with_quota(Amount::UNLIMITED);
    let file = make_file(&volume, dir, "f", 1);
    let outside = make_file(&volume, ROOT, "outside", 1);
    Quotas::of(&volume).set(dir, Amount { bytes: 1, files: 1 }).expect("set");
    for kind in [NewKind::Regular, NewKind::Directory] {
        let made = volume.make(ME, dir, b"f", &new(kind));
        assert!(matches!(made, Err(Error::Exists)), "{made:?}");
    }
    assert!(matches!(volume.link(file, dir, b"f"), Err(Error::Exists)));
    assert!(matches!(volume.link(outside, dir, b"f"), Err(Error::Exists)));
    assert!(matches!(volume.link(outside, dir, b"g"), Err(Error::OtherQuota)));
    let renamed = volume.rename(ME, ROOT, b"outside", dir, b"f", RenameMode::NoReplace);
    assert!(matches!(renamed, Err(Error::Exists)), "{renamed:?}");
    assert!(matches!(volume.make(ME, dir, b"g", &FILE), Err(Error::QuotaExceeded(_))));
}

/// The copy ended at the first directory with a full quota.
#[test]
fn a_copy_continues_after_files_that_exceed_a_quota() {
    assert!(!Error::QuotaExceeded(None).is_final() && Error::NoSpace.is_final());
}

#[test]
fn a_file_without_a_name_stays_charged_until_it_is_released() {
    let (_, volume, dir) = with_quota(Amount::UNLIMITED);
    let before = Quotas::of(&volume).get(dir).expect("shown").used;
    let sub = make_dir(&volume, dir, "sub");
    let unnamed = volume.make_unnamed(ME, sub, &FILE).expect("made").ino;
    let removed = make_file(&volume, sub, "f", 20_000);
    volume.release(volume.lookup(sub, b"f").expect("found").ino, 0);
    volume.unlink(ME, sub, b"f").expect("removed");
    volume.remove_dir(ME, dir, b"sub").expect("removed");
    volume.write(ME, unnamed, 0, &[1; 30_000]).expect("written");
    volume.write(ME, removed, 20_000, &[1; 30_000]).expect("written");
    let used = Quotas::of(&volume).get(dir).expect("shown").used;
    assert_eq!(used.files, before.files + 2);
    assert!(used.bytes >= before.bytes + 80_000, "{used:?}");
    volume.release(unnamed, 1);
    volume.release(removed, 1);
    check(&volume, "released");
}

#[test]
fn a_quota_is_not_nested_and_is_removed_with_its_directory() {
    let (_, volume, dir) = with_quota(Amount::UNLIMITED);
    let below = make_dir(&volume, dir, "below");
    assert!(matches!(Quotas::of(&volume).set(below, files(1)), Err(Error::Invalid(_))));
    assert!(matches!(Quotas::of(&volume).set(ROOT, files(1)), Err(Error::Invalid(_))));
    let file = make_file(&volume, ROOT, "f", 1);
    assert!(matches!(Quotas::of(&volume).set(file, files(1)), Err(Error::NotDirectory)));
    assert!(matches!(Quotas::of(&volume).remove(below), Err(Error::NoAttribute)));
    volume.remove_dir(ME, dir, b"below").expect("removed");
    volume.remove_dir(ME, ROOT, b"q").expect("removed");
    assert!(Quotas::of(&volume).list().expect("listed").is_empty());
    Quotas::of(&volume).set(ROOT, Amount::UNLIMITED).expect("set");
    check(&volume, "the root");
    Quotas::of(&volume).remove(ROOT).expect("removed");
    assert!(matches!(Quotas::of(&volume).get(ROOT), Err(Error::NoAttribute)));
    volume.close().expect("closed");
}

#[test]
fn limits_and_accounts_survive_closing_and_crashes() {
    let (device, volume, dir) = with_quota(bytes(1 << 20));
    make_file(&volume, dir, "f", 100_000);
    let before = Quotas::of(&volume).list().expect("listed");
    volume.close().expect("closed");
    assert!(read_superblock(&*device).expect("read").ro_compat.contains(RoCompat::QUOTAS));
    let volume = open(device.clone(), OpenOptions { read_only: true, ..OpenOptions::default() });
    assert_eq!(Quotas::of(&volume).list().expect("listed"), before);
    // The next opening takes the account as it is.
    let list = own_xattr(&volume, ROOT, b"trusted.cffs.quotas").expect("a list");
    let mounts = read_superblock(&*device).expect("read").mounts;
    assert_eq!(list[12..16], mounts.to_le_bytes());
    let volume = open(device.clone(), OpenOptions::default());
    assert_eq!(Quotas::of(&volume).list().expect("listed"), before);
    make_file(&volume, dir, "g", 100_000);
    volume.sync().expect("durable");
    drop(volume);
    let volume = recover(device, OpenOptions::default()).expect("recovered");
    check(&volume, "after a crash");
    assert!(Quotas::of(&volume).get(dir).expect("shown").used.bytes >= 200_000);
}

/// A volume that was not closed showed the accounts of its last closing in df(1) until another call had
/// counted the trees.
#[test]
fn df_of_a_volume_that_was_not_closed_counts_before_it_shows() {
    let (device, volume, dir) = with_quota(bytes(1 << 20));
    volume.close().expect("closed");
    let volume = open(device.clone(), OpenOptions::default());
    make_file(&volume, dir, "f", 300_000);
    volume.sync().expect("durable");
    drop(volume);
    let volume = open(device, OpenOptions { read_only: true, ..OpenOptions::default() });
    let stat = Quotas::of(&volume).stat_fs(dir);
    let left = stat.available_fragments * u64::from(stat.fragment_bytes);
    assert!(left <= (1 << 20) - 300_000, "{left} bytes are left");
}

/// The beginning of a path that no call can take is left out: the answer of a server has room for 64 KiB.
#[test]
fn a_long_path_of_a_quota_is_shown_without_its_beginning() {
    let device = made(64 << 20);
    let volume = open(device, OpenOptions::default());
    let name = "n".repeat(200);
    let dir = (0..50).fold(ROOT, |dir, _| make_dir(&volume, dir, &name));
    let path = Quotas::of(&volume).set(dir, Amount::UNLIMITED).expect("set").path;
    assert!(path.starts_with(b".../nnn"), "{}", path.escape_ascii());
    assert!((4096..5000).contains(&path.len()), "{} bytes", path.len());
}

/// The whiteout was refused after the rename was done.
#[test]
fn a_rename_that_leaves_a_whiteout_needs_room_for_one_more_file() {
    let (_, volume, dir) = with_quota(files(2));
    make_file(&volume, dir, "f", 10);
    let mode = RenameMode::Whiteout { no_replace: false };
    let renamed = volume.rename(ME, dir, b"f", dir, b"g", mode);
    assert!(matches!(renamed, Err(Error::QuotaExceeded(_))), "{renamed:?}");
    assert!(volume.lookup(dir, b"f").is_ok() && volume.lookup(dir, b"g").is_err());
    check(&volume, "refused");
    Quotas::of(&volume).set(dir, files(3)).expect("set");
    volume.rename(ME, dir, b"f", dir, b"g", mode).expect("it fits");
    assert_eq!(Quotas::of(&volume).get(dir).expect("shown").used.files, 3);
    check(&volume, "renamed");
}

/// How often threads were about to wait.
#[derive(Debug, Default)]
struct Waits(AtomicU64);

impl Waiter for Waits {
    fn about_to_wait(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call that a quota refuses waited for the deletion of files elsewhere.
#[test]
fn a_refused_call_waits_for_the_deletion_of_charged_files_alone() {
    let waits = Arc::new(Waits::default());
    let options = OpenOptions { waiter: waits.clone(), ..OpenOptions::default() };
    let volume = open(made(64 << 20), options);
    let dir = make_dir(&volume, ROOT, "q");
    Quotas::of(&volume).set(dir, files(2)).expect("set");
    let with_room = make_dir(&volume, ROOT, "r");
    Quotas::of(&volume).set(with_room, files(9)).expect("set");
    let refused = || {
        let before = waits.0.load(Ordering::Relaxed);
        let made = volume.make(ME, dir, b"more", &FILE);
        assert!(matches!(made, Err(Error::QuotaExceeded(_))), "{made:?}");
        waits.0.load(Ordering::Relaxed) - before
    };
    let inside = volume.make(ME, dir, b"inside", &FILE).expect("made").ino;
    let elsewhere = [ROOT, with_room].map(|other| {
        let outside = volume.make(ME, other, b"outside", &FILE).expect("made").ino;
        volume.unlink(ME, other, b"outside").expect("removed");
        let waits = refused();
        volume.release(outside, 1);
        waits
    });
    let elsewhere = elsewhere.into_iter().max().unwrap_or(0);
    volume.unlink(ME, dir, b"inside").expect("removed");
    let own = refused();
    assert!(
        elsewhere < 10 && own > elsewhere,
        "{elsewhere} waits for files elsewhere, {own} for its own"
    );
    volume.release(inside, 1);
    volume.release(volume.make(ME, dir, b"more", &FILE).expect("made").ino, 1);
    check(&volume, "another file");
}

#[test]
fn the_attribute_with_the_quotas_is_not_shown() {
    let (_, volume, _) = with_quota(bytes(1 << 20));
    assert!(volume.xattr_names(ROOT).expect("listed").is_empty());
    let set = volume.set_xattr(ME, ROOT, b"trusted.cffs.quotas", b"", XattrMode::Any);
    assert!(matches!(set, Err(Error::NotSupported)));
}

#[test]
fn statfs_shows_the_quota() {
    let (_, volume, dir) = with_quota(Amount { bytes: 1 << 20, files: 10 });
    let file = make_file(&volume, dir, "f", 512 << 10);
    for node in [dir, file] {
        let stat = Quotas::of(&volume).stat_fs(node);
        let fragment = u64::from(stat.fragment_bytes);
        assert_eq!(stat.fragments * fragment, 1 << 20);
        assert!(stat.available_fragments * fragment <= 512 << 10);
        assert_eq!((stat.inodes, stat.free_inodes), (2, 8));
    }
    assert_eq!(Quotas::of(&volume).stat_fs(ROOT), volume.stat_fs());
    // df(1) leaves out a file system without space.
    Quotas::of(&volume).set(dir, bytes(0)).expect("set");
    let stat = Quotas::of(&volume).stat_fs(dir);
    assert_eq!((stat.fragments, stat.available_fragments), (1, 0));
}

/// The requests of some changes on a volume, where `q` has a quota or not.
fn cost(has_quota: bool) -> Counts {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(64 << 20)));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let open = || {
        let clock = Arc::new(TestClock::default());
        Volume::open(device.clone(), clock, OpenOptions::default()).expect("opened")
    };
    let volume = open();
    let dir = make_dir(&volume, ROOT, "q");
    if has_quota {
        Quotas::of(&volume).set(dir, Amount::UNLIMITED).expect("set");
    }
    volume.close().expect("closed");
    let before = device.counts();
    let volume = open();
    for index in 0..200 {
        make_file(&volume, dir, &format!("f{index}"), 100 * index);
    }
    let sub = make_dir(&volume, dir, "sub");
    rename(&volume, dir, "f9", sub, "f9").expect("renamed");
    rename(&volume, dir, "f8", ROOT, "f8").expect("renamed");
    volume.sync().expect("durable");
    for index in 10..100 {
        volume.unlink(ME, dir, format!("f{index}").as_bytes()).expect("removed");
    }
    volume.sync().expect("durable");
    device.counts() - before
}

#[test]
fn quotas_cause_no_requests() {
    assert_eq!(cost(true), cost(false));
}

/// One change of a tree with three top directories. Most fail now and then.
fn change(volume: &Volume, random: &mut Random, tops: &[InodeNo]) -> Result<()> {
    let mut dirs = tops.to_vec();
    for top in tops {
        if let Ok(sub) = volume.lookup(*top, b"s") {
            volume.release(sub.ino, 1);
            dirs.push(sub.ino);
        }
    }
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"s"];
    let (dir, other) = (random.pick(&dirs), random.pick(&dirs));
    let (name, new_name) = (random.pick(&names), random.pick(&names));
    let find = |dir, name| {
        let found = volume.lookup(dir, name)?.ino;
        volume.release(found, 1);
        Ok::<_, Error>(found)
    };
    let place = random.pick(&[0, 100, 5000, 70_000, 200_000]);
    let len = random.pick(&[10, 300, 4096, 9000, 150_000]);
    match random.below(14) {
        0 | 1 => {
            let kind = if name == b"s" { NewKind::Directory } else { NewKind::Regular };
            volume.release(volume.make(ME, dir, name, &new(kind))?.ino, 1);
        }
        2 => {
            let target = vec![b'x'; 1 + random.below(2000) as usize];
            volume.release(volume.make(ME, dir, name, &new(NewKind::Symlink(&target)))?.ino, 1);
        }
        3..=5 => {
            volume.write(ME, find(dir, name)?, place, &vec![place as u8; len])?;
        }
        6 => {
            let size = Some(random.pick(&[0, 200, 5000, 66_000, 300_000]));
            volume.set_attr(ME, find(dir, name)?, &SetAttr { size, ..SetAttr::default() })?;
        }
        7 => {
            let keep_size = random.below(2) == 0;
            let mode = random.pick(&[
                AllocateMode::Reserve,
                AllocateMode::ReserveKeepSize,
                AllocateMode::PunchHole,
                AllocateMode::ZeroRange { keep_size },
            ]);
            volume.allocate(ME, find(dir, name)?, place, len as u64, mode)?;
        }
        8 => {
            let (from, to) = (find(dir, name)?, find(other, new_name)?);
            volume.copy(ME, (from, 0), (to, 0), 1 << 20)?;
        }
        9 => {
            volume.link(find(dir, name)?, other, new_name)?;
            volume.release(find(other, new_name)?, 1);
        }
        10 => volume.unlink(ME, dir, name)?,
        11 => volume.remove_dir(ME, dir, name)?,
        12 => {
            let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::Exchange];
            volume.rename(ME, dir, name, other, new_name, random.pick(&modes))?;
        }
        _ => {
            let unnamed = volume.make_unnamed(ME, dir, &FILE)?.ino;
            drop(volume.write(ME, unnamed, 0, &vec![1; len]));
            if volume.link(unnamed, other, new_name).is_ok() {
                volume.release(unnamed, 1);
            }
            volume.release(unnamed, 1);
        }
    }
    Ok(())
}

/// Removes a quota and sets it again.
fn set_again(volume: &Volume, dir: InodeNo) {
    Quotas::of(volume).remove(dir).expect("removed");
    Quotas::of(volume).set(dir, files(6)).expect("set");
}

/// Fails if a check of a volume that was closed finds anything, above all a wrong account.
pub(super) fn check_closed(device: &MemoryDevice, when: &str) {
    let options = CheckOptions { repair: Repair::No, force: true, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).expect("checked");
    assert!(report.problems.is_empty(), "{when}: {:?}", report.problems);
}

/// Runs changes, and returns how many exceeded a quota, and how many crossed a border.
fn run_randomly(seed: u64, options: &MkfsOptions) -> [u32; 2] {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&device, options).expect("made");
    let mut volume = open(device.clone(), OpenOptions::default());
    let tops = ["one", "two", "free"].map(|name| make_dir(&volume, ROOT, name));
    let mut random = Random(seed);
    let (mut refused, mut crossed) = (0, 0);
    Quotas::of(&volume).set(tops[0], bytes(600 << 10)).expect("set");
    Quotas::of(&volume).set(tops[1], files(6)).expect("set");
    for step in 0..1500 {
        if random.below(200) == 0 {
            set_again(&volume, tops[1]);
        }
        match change(&volume, &mut random, &tops) {
            Err(Error::QuotaExceeded(_)) => refused += 1,
            Err(Error::OtherQuota) => crossed += 1,
            _ => {}
        }
        check(&volume, &format!("seed {seed}, step {step}"));
        match random.below(60) {
            0 => volume.sync().expect("durable"),
            1 => drop(volume.writer().background().write_early()),
            2 => {
                volume.close().expect("closed");
                check_closed(&device, &format!("seed {seed}, step {step}"));
                volume = open(device.clone(), OpenOptions::default());
                check(&volume, &format!("seed {seed}, opened again at step {step}"));
            }
            3 => {
                drop(volume);
                let device: Arc<dyn BlockDevice> = device.clone();
                volume = recover(device, OpenOptions::default()).expect("recovered");
                check(&volume, &format!("seed {seed}, recovered at step {step}"));
            }
            _ => {}
        }
    }
    [refused, crossed]
}

#[test]
fn accounts_equal_a_count_after_random_changes() {
    // With the latter two seeds, an epoch frees a reservation after the end of a small file.
    let counts = [0, 1, 2, 110, 116].map(|seed| run_randomly(seed, &MkfsOptions::default()));
    let total = counts.iter().fold([0, 0], |sum, run| [sum[0] + run[0], sum[1] + run[1]]);
    assert!(total[0] > 20 && total[1] > 20, "exceeded and crossed: {counts:?}");
}

#[test]
fn accounts_equal_a_count_on_other_kinds_of_volume() {
    let compression = Some(Compression::Zstd(1));
    run_randomly(10, &MkfsOptions { compression, ..MkfsOptions::default() });
    run_randomly(107, &MkfsOptions { embed: false, ..MkfsOptions::default() });
    run_randomly(12, &MkfsOptions { inline_bytes_max: 0, ..MkfsOptions::default() });
    run_randomly(13, &MkfsOptions { compression, block_bytes: 16 << 10, ..MkfsOptions::default() });
}
