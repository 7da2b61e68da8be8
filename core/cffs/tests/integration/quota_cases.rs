//! Quotas where a call has two steps, and where a reader opens a volume that is in use.

use std::sync::Arc;

use cffs::device::MemoryDevice;
use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::{Amount, Caller, OpenOptions, Quotas, RenameMode};

use cffs_testing::setup::open;

use super::quotas::{bytes, check, check_closed, files, make_dir, make_file, with_quota};

const ROOT: InodeNo = InodeNo::ROOT;
const ME: &Caller<'static> = &Caller::ROOT;

/// The rename was made, and then the whiteout was refused.
#[test]
fn a_rename_that_leaves_a_whiteout_is_refused_as_a_whole_at_a_limit() {
    for full in [files(3), bytes(1)] {
        let (device, volume, dir) = with_quota(Amount::UNLIMITED);
        let file = make_file(&volume, dir, "f", 5000);
        make_file(&volume, dir, "g", 5000);
        Quotas::of(&volume).set(dir, full).expect("set");
        let rename = |to, new: &str| {
            let mode = RenameMode::Whiteout { no_replace: false };
            volume.rename(ME, dir, b"f", to, new.as_bytes(), mode)
        };
        for new in ["a name that is longer", "g"] {
            let renamed = rename(dir, new);
            assert!(matches!(renamed, Err(Error::QuotaExceeded(_))), "{renamed:?}");
            assert_eq!(volume.lookup(dir, b"f").expect("it has kept its name").ino, file);
            volume.release(file, 1);
            check(&volume, "refused");
        }
        assert!(matches!(volume.lookup(dir, b"a name that is longer"), Err(Error::NotFound)));
        // A file that leaves the quota gives its place to the whiteout.
        Quotas::of(&volume).set(dir, files(3)).expect("set");
        rename(ROOT, "outside").expect("renamed");
        assert_eq!(volume.lookup(ROOT, b"outside").expect("found").ino, file);
        let whiteout = volume.lookup(dir, b"f").expect("found");
        assert_eq!((whiteout.file_type, whiteout.device), (FileType::CharDevice, 0));
        check(&volume, "renamed");
        volume.release(file, 1);
        volume.release(whiteout.ino, 1);
        volume.close().expect("closed");
        check_closed(&device, "renamed");
    }
}

/// A reader of a volume that was not closed showed no use, or no quota: the number of a new directory is not
/// in the table on the device yet.
#[test]
fn a_reader_of_a_volume_in_use_shows_the_quotas() {
    let (device, volume, dir) = with_quota(Amount { bytes: 1 << 20, files: 10 });
    let below = make_dir(&volume, ROOT, "dir");
    let below = make_dir(&volume, below, "below");
    Quotas::of(&volume).set(below, files(5)).expect("set");
    make_file(&volume, dir, "f", 500_000);
    volume.sync().expect("durable");
    let used = Quotas::of(&volume).get(dir).expect("shown").used;
    let image = Arc::new(MemoryDevice::from_image(device.snapshot()));
    let reader = || {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let reader = open(image.clone(), options);
        let dir = reader.lookup(ROOT, b"q").expect("found").ino;
        (reader, dir)
    };
    let (shows_space, dir) = reader();
    let stat = Quotas::of(&shows_space).stat_fs(dir);
    let fragment = u64::from(stat.fragment_bytes);
    assert_eq!(stat.fragments * fragment, 1 << 20);
    assert_eq!(stat.free_fragments, ((1 << 20) - used.bytes) / fragment);
    assert_eq!((stat.inodes, stat.free_inodes), (2, 8));
    let (shows_quota, dir) = reader();
    assert_eq!(Quotas::of(&shows_quota).get(dir).expect("it has a quota").used, used);
    let (lists, _) = reader();
    let listed = Quotas::of(&lists).list().expect("listed");
    let paths: Vec<_> = listed.iter().map(|quota| quota.path.escape_ascii().to_string()).collect();
    assert_eq!(paths, ["q", "dir/below"]);
    volume.close().expect("closed");
}

/// A reader of a volume that was not closed left a quota out of its list once the directory, or one above it,
/// had left memory.
#[test]
fn a_reader_of_a_volume_in_use_lists_quotas_again_after_many_files() {
    const FILES: u32 = 8000;
    let (device, volume, _) = with_quota(bytes(1 << 20));
    let mut below = ROOT;
    for name in ["dir", "below", "lowest"] {
        below = make_dir(&volume, below, name);
    }
    Quotas::of(&volume).set(below, files(5)).expect("set");
    let many = make_dir(&volume, ROOT, "many");
    for number in 0..FILES {
        make_file(&volume, many, &number.to_string(), 0);
    }
    volume.sync().expect("durable");
    let image = Arc::new(MemoryDevice::from_image(device.snapshot()));
    let options = OpenOptions { read_only: true, cache_bytes: 1 << 20, ..OpenOptions::default() };
    let reader = open(image, options);
    let first = Quotas::of(&reader).list().expect("listed");
    let paths: Vec<&[u8]> = first.iter().map(|quota| &quota.path[..]).collect();
    assert_eq!(paths, [&b"q"[..], b"dir/below/lowest"]);
    let many = reader.lookup(ROOT, b"many").expect("found").ino;
    for number in (0..FILES).chain(0..FILES) {
        let file = reader.lookup(many, number.to_string().as_bytes()).expect("found").ino;
        reader.release(file, 1);
    }
    let vnodes = reader.stats().vnodes;
    assert!(vnodes < FILES.into(), "{vnodes} inodes are in memory");
    assert_eq!(Quotas::of(&reader).list().expect("listed"), first);
    volume.close().expect("closed");
}
