//! The flags of files that decide which contents are compressed, and the figures about the use of clusters.

use std::sync::Arc;
use std::time::Duration;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::error::Error;
use cffs::files::layout::{self, ClusterUse};
use cffs::format::inode::InodeFlags;
use cffs::format::superblock::Compression;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewKind, OpenOptions, RenameMode, SetVolume, Volume};

use crate::clusters::{device, directories, is_sound, open, read, text, write};
use cffs_testing::golden::listing;
use cffs_testing::random::Random;
use cffs_testing::setup;

const ROOT: InodeNo = InodeNo::ROOT;
const COMPRESS: InodeFlags = InodeFlags::COMPRESS;
const NO_COMPRESS: InodeFlags = InodeFlags::NO_COMPRESS;
const LEN: usize = 5000;

/// A directory with a flag, and some files in it.
struct Flagged {
    dir: InodeNo,
    files: Vec<InodeNo>,
}

impl Flagged {
    fn new(volume: &Volume, name: &str, flags: InodeFlags) -> Flagged {
        let dir = setup::make(volume, ROOT, name, NewKind::Directory);
        volume.set_flags(dir, flags).expect("set");
        let files = (0..10).map(|number| {
            let ino = setup::make(volume, dir, &format!("f{number}"), NewKind::Regular);
            write(volume, ino, 0, &text(number, LEN));
            ino
        });
        Flagged { dir, files: files.collect() }
    }

    fn compressed(&self, volume: &Volume) -> usize {
        self.files.iter().filter(|ino| is_compressed(volume, **ino)).count()
    }
}

fn is_compressed(volume: &Volume, ino: InodeNo) -> bool {
    !volume.admin().explain(ino).expect("explained").clusters.is_empty()
}

fn flags(volume: &Volume, ino: InodeNo) -> InodeFlags {
    volume.attr(ino).expect("there").flags
}

#[test]
fn the_flags_of_files_decide_whether_new_contents_are_compressed() {
    // Contents are compressed ahead of their epoch, or when it closes the gate.
    let late = OpenOptions::default().early_bytes;
    let settings = [Compression::Zstd(3), Compression::Off];
    for (compression, early_bytes) in
        settings.into_iter().flat_map(|setting| [(setting, 1), (setting, late)])
    {
        let device = device();
        let epoch_interval = Duration::from_secs(3600);
        let options = OpenOptions { early_bytes, epoch_interval, ..OpenOptions::default() };
        let volume = setup::open(device.clone(), options);
        let set = SetVolume { compression: Some(compression), ..SetVolume::default() };
        volume.tune(&set).expect("set");
        let usual = Flagged::new(&volume, "usual", InodeFlags::empty());
        let never = Flagged::new(&volume, "never", NO_COMPRESS);
        let always = Flagged::new(&volume, "always", COMPRESS);
        volume.sync().expect("synced");
        let by_setting = if compression == Compression::Off { 0 } else { 10 };
        assert_eq!(usual.compressed(&volume), by_setting, "{compression}");
        assert_eq!(never.compressed(&volume), 0, "{compression}");
        assert_eq!(always.compressed(&volume), 10, "{compression}");
        let stats = volume.stats();
        assert_eq!(stats.clusters_written > 0, volume.admin().clusters().expect("read") > Some(0));

        // Written contents stay as they are until they are rewritten.
        let (kept, rewritten) = (always.files[0], always.files[1]);
        for ino in [kept, rewritten] {
            volume.set_flags(ino, NO_COMPRESS).expect("set");
        }
        volume.set_flags(never.files[0], COMPRESS).expect("set");
        for ino in [rewritten, never.files[0]] {
            write(&volume, ino, 0, &text(77, LEN));
        }
        volume.sync().expect("synced");
        assert!(is_compressed(&volume, kept));
        assert!(!is_compressed(&volume, rewritten));
        assert!(is_compressed(&volume, never.files[0]));
        volume.close().expect("closed");
        is_sound(&device);
        let volume = open(&device);
        assert!(read(&volume, rewritten) == text(77, LEN));
        assert!(read(&volume, always.files[2]) == text(2, LEN));
        volume.close().expect("closed");
    }
}

#[test]
fn new_files_inherit_the_flags_of_compression_and_keep_them() {
    let device = device();
    let volume = open(&device);
    let made = |dir, name: &str, kind| setup::make(&volume, dir, name, kind);
    for (name, flag) in [("never", NO_COMPRESS), ("always", COMPRESS)] {
        let dir = made(ROOT, name, NewKind::Directory);
        volume.set_flags(dir, flag | InodeFlags::APPEND_ONLY).expect("set");
        let below = made(dir, "below", NewKind::Directory);
        let file = made(below, "file", NewKind::Regular);
        assert_eq!([below, file].map(|ino| flags(&volume, ino)), [flag; 2]);
        for kind in [NewKind::Symlink(b"target"), NewKind::Fifo] {
            let other = made(below, &format!("{kind:?}"), kind);
            assert_eq!(flags(&volume, other), InodeFlags::empty());
        }
        volume
            .rename(&Caller::ROOT, below, b"file", ROOT, name.as_bytes(), RenameMode::Exchange)
            .expect_err("the directory is append-only");
        volume
            .rename(&Caller::ROOT, below, b"file", ROOT, b"moved", RenameMode::Replace)
            .expect("moved");
        assert_eq!(flags(&volume, file), flag, "a new name changes no flag");
    }
    // A crash: what is durable is recovered.
    volume.sync().expect("synced");
    let crashed = Arc::new(MemoryDevice::from_image(device.snapshot()));
    volume.close().expect("closed");
    for device in [device, crashed] {
        let clock = Arc::new(TestClock::default());
        let volume = cffs::open(device.clone(), clock, OpenOptions::default()).expect("open");
        for (name, flag) in [("never", NO_COMPRESS), ("always", COMPRESS)] {
            let dir = volume.lookup(ROOT, name.as_bytes()).expect("there").ino;
            let below = volume.lookup(dir, b"below").expect("there");
            assert_eq!(flags(&volume, dir), flag | InodeFlags::APPEND_ONLY);
            assert_eq!(below.flags, flag);
        }
        volume.close().expect("closed");
        is_sound(&device);
        let expected = listing::of(&open(&device)).expect("listed");
        assert_eq!(listing::decoded(&device.snapshot()), expected);
    }
}

#[test]
fn flags_of_compression_that_make_no_sense_are_refused() {
    let volume = open(&device());
    let file = setup::make(&volume, ROOT, "file", NewKind::Regular);
    let link = setup::make(&volume, ROOT, "link", NewKind::Symlink(b"target"));
    let set = |ino, flags| volume.set_flags(ino, flags);
    assert!(matches!(set(file, COMPRESS | NO_COMPRESS), Err(Error::Invalid(_))));
    assert!(matches!(set(link, COMPRESS), Err(Error::NotSupported)));
    assert!(matches!(set(file, InodeFlags::INLINE), Err(Error::NotSupported)));
    let before = volume.attr(file).expect("there");
    set(file, COMPRESS).expect("set");
    let after = volume.attr(file).expect("there");
    assert!(after.ctime > before.ctime && after.mtime == before.mtime);
    assert!(after.change > before.change);
    // A protected file keeps its flags of compression until it is no longer protected.
    for protection in [InodeFlags::IMMUTABLE, InodeFlags::APPEND_ONLY] {
        set(file, protection | COMPRESS).expect("set");
        assert!(matches!(set(file, protection | NO_COMPRESS), Err(Error::NotPermitted)));
        assert!(matches!(set(file, protection), Err(Error::NotPermitted)));
        assert_eq!(flags(&volume, file), protection | COMPRESS);
        set(file, NO_COMPRESS).expect("set");
    }
    volume.close().expect("closed");

    let volume = open(&setup::made(16 << 20));
    let file = setup::make(&volume, ROOT, "file", NewKind::Regular);
    for flag in [COMPRESS, NO_COMPRESS] {
        assert!(matches!(volume.set_flags(file, flag), Err(Error::NotSupported)));
    }
    volume.set_flags(file, InodeFlags::empty()).expect("nothing to set");
    volume.close().expect("closed");
}

fn survey(device: &Arc<MemoryDevice>, dir: InodeNo) -> ClusterUse {
    layout::survey(device.clone(), dir).expect("surveyed").clusters
}

/// Files of 5,000 bytes take five fragments each.
#[test]
fn the_layout_tells_what_is_dead_in_clusters() {
    const FRAGMENTS: u64 = 5 * 1024;
    let device = device();
    let volume = open(&device);
    let dirs = directories(&volume);
    let name = |number: u64| format!("f{number}");
    for dir in &dirs {
        for number in 0..100 {
            let ino = setup::make(&volume, *dir, &name(number), NewKind::Regular);
            write(&volume, ino, 0, &text(number, LEN));
        }
    }
    volume.sync().expect("synced");
    let file = volume.lookup(dirs[0], b"f50").expect("there").ino;
    let placed = volume.admin().explain(file).expect("explained").clusters;
    let [cluster] = placed[..] else { panic!("{placed:?}") };
    assert!(cluster.other_parts > 5 && cluster.stored_bytes > 0);
    assert_eq!(cluster.expanded_bytes, Some((cluster.other_parts + 1) * FRAGMENTS));
    volume.close().expect("closed");

    let fresh = survey(&device, ROOT);
    assert_eq!((fresh.bytes, fresh.incomplete), (300 * FRAGMENTS, 0));
    assert_eq!((fresh.dead_bytes, fresh.shared_bytes), (0, 0));
    assert!(fresh.ratio() > Some(1.5), "{fresh:?}");
    let volume = open(&device);
    assert_eq!(volume.admin().clusters().expect("counted"), Some(fresh.clusters));
    // Directories that are made together share clusters, of which the report of one directory has a part.
    let parts: Vec<ClusterUse> = dirs.iter().map(|dir| survey(&device, *dir)).collect();
    assert!(parts.iter().all(|part| part.bytes == 100 * FRAGMENTS && part.dead_bytes == 0));
    let sum = |of: fn(&ClusterUse) -> u64| parts.iter().map(of).sum::<u64>();
    let (clusters, incomplete) = (sum(|part| part.clusters), sum(|part| part.incomplete));
    assert!(incomplete > clusters - fresh.clusters && clusters > fresh.clusters, "{parts:?}");

    // Each cluster keeps some of its files.
    for dir in &dirs {
        for number in (0..100).filter(|number| number % 3 > 0) {
            volume.unlink(&Caller::ROOT, *dir, name(number).as_bytes()).expect("unlinked");
        }
    }
    volume.close().expect("closed");
    let sparse = survey(&device, ROOT);
    assert_eq!(sparse.bytes, 3 * 34 * FRAGMENTS);
    assert_eq!(sparse.dead_bytes, fresh.bytes - sparse.bytes);
    assert_eq!((sparse.clusters, sparse.stored_bytes), (fresh.clusters, fresh.stored_bytes));
    is_sound(&device);
}

/// The clusters of groups that are not in memory are counted by the headers of the groups, and once.
#[test]
fn clusters_are_counted_with_and_without_their_groups_in_memory() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let compression = Some(Compression::Zstd(1));
    let options = MkfsOptions { compression, cg_blocks: 64, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("made");
    let volume = open(&device);
    let many = (0..20).map(|number| Flagged::new(&volume, &format!("d{number}"), COMPRESS));
    let many: Vec<Flagged> = many.collect();
    let large = setup::make(&volume, ROOT, "large", NewKind::Regular);
    volume.set_flags(large, NO_COMPRESS).expect("set");
    volume.sync().expect("synced");
    write(&volume, large, 0, &vec![1; 40 << 20]);
    volume.sync().expect("synced");
    let count = |volume: &Volume| volume.admin().clusters().expect("read");
    let clusters = volume.stats().clusters_written;
    assert!(clusters > 10);
    assert_eq!(count(&volume), Some(clusters));
    volume.close().expect("closed");

    let volume = open(&device);
    assert_eq!(count(&volume), None, "a call reads 128 headers at most");
    assert_eq!(count(&volume), Some(clusters));
    for Flagged { dir, .. } in &many {
        for number in 0..10 {
            volume.unlink(&Caller::ROOT, *dir, format!("f{number}").as_bytes()).expect("unlinked");
        }
    }
    volume.sync().expect("synced");
    assert_eq!(count(&volume), Some(0));
    volume.close().expect("closed");
}

#[test]
fn a_copy_is_shared_unless_it_is_not_to_be_compressed() {
    let device = device();
    let volume = open(&device);
    let made = Flagged::new(&volume, "d", InodeFlags::empty());
    volume.sync().expect("synced");
    let copied = |flag| {
        let copy = setup::make(&volume, ROOT, &format!("{flag:?}"), NewKind::Regular);
        volume.set_flags(copy, flag).expect("set");
        let bytes = volume.copy(&Caller::ROOT, (made.files[3], 0), (copy, 0), LEN as u64);
        assert_eq!(bytes.expect("copied"), LEN as u64);
        copy
    };
    let [shared, apart] = [COMPRESS, NO_COMPRESS].map(copied);
    volume.sync().expect("synced");
    assert!(is_compressed(&volume, shared) && !is_compressed(&volume, apart));
    volume.close().expect("closed");
    let used = survey(&device, ROOT);
    assert_eq!((used.bytes, used.shared_bytes), (11 * 5 * 1024, 5 * 1024));
    assert_eq!((used.incomplete, used.dead_bytes), (0, 0));
    is_sound(&device);
}

#[test]
fn units_of_an_incompressible_file_are_tried_again_from_time_to_time() {
    const UNIT: usize = 64 << 10;
    let device = device();
    let volume = open(&device);
    let file = setup::make(&volume, ROOT, "file", NewKind::Regular);
    let mut random = Random(1);
    let noise: Vec<u8> =
        (0..32 * UNIT / 8).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect();
    let text = text(1, 16 * UNIT);
    let mut len = 0;
    let mut append = |bytes: &[u8]| {
        write(&volume, file, len, bytes);
        volume.sync().expect("synced");
        len += bytes.len() as u64;
        volume.stats().compressed_bytes as usize / UNIT
    };
    assert_eq!(append(&noise), 0);
    assert_eq!(append(&text), 2, "one unit of eight is tried");
    assert_eq!(append(&text), 18, "all are tried after one became shorter");
    assert!(read(&volume, file) == [noise, text.clone(), text].concat());
    volume.close().expect("closed");
    is_sound(&device);
}
