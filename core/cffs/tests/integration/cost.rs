//! Counts the requests and bytes of operations, and checks that they do not grow with the number of names in
//! a directory, or with the size of the volume.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{Counts, MemoryDevice, TraceDevice};
use cffs::error::Error;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions};
use cffs::vfs::{Caller, Volume};

const ROOT: InodeNo = InodeNo::ROOT;
const EMPTY: NewFile<'_> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };

type Device = Arc<TraceDevice<MemoryDevice>>;

fn device(size_bytes: u64) -> Device {
    Arc::new(TraceDevice::new(MemoryDevice::new(size_bytes)))
}

fn open(device: &Device) -> Volume {
    let options = OpenOptions { cache_bytes: 32 << 20, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
}

/// The requests made by `work`.
fn cost<T>(device: &Device, work: impl FnOnce() -> T) -> Counts {
    let before = device.counts();
    work();
    device.counts() - before
}

fn name(index: u64) -> Vec<u8> {
    format!("a name in a large directory {index}").into_bytes()
}

/// A volume whose root directory has this many names. The hashes of names are the same in each run: with
/// others, one new name in a hundred is the third miss in a region of 2 MiB, which is then read whole.
fn directory_of(names: u64) -> Device {
    let device = device(4 << 30);
    let options = MkfsOptions { hash_seed: Some([1; 16]), ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("made");
    let volume = open(&device);
    for index in 0..names {
        volume.make(&Caller::ROOT, ROOT, &name(index), &EMPTY).expect("made");
    }
    volume.close().expect("closed");
    device
}

/// The costs of finding a name, of looking up a missing one, of creating one and of removing one, each with a
/// cold cache and including the sync.
fn costs_of_names(names: u64) -> [Counts; 4] {
    let device = directory_of(names);
    let cold = |work: &dyn Fn(&Volume)| {
        let volume = open(&device);
        let counts = cost(&device, || {
            work(&volume);
            volume.sync().expect("synced");
        });
        volume.close().expect("closed");
        counts
    };
    let middle = name(names / 2);
    [
        cold(&|volume| assert_eq!(volume.lookup(ROOT, &middle).expect("there").nlink, 1)),
        cold(&|volume| {
            let error = volume.lookup(ROOT, b"not there").expect_err("not there");
            assert!(matches!(error, Error::NotFound), "{error}");
        }),
        cold(&|volume| {
            assert_eq!(volume.make(&Caller::ROOT, ROOT, b"new", &EMPTY).expect("made").size, 0)
        }),
        cold(&|volume| volume.unlink(&Caller::ROOT, ROOT, b"new").map(drop).expect("gone")),
    ]
}

#[test]
fn a_name_costs_the_same_among_a_thousand_and_among_a_million() {
    let small = costs_of_names(1000);
    let large = costs_of_names(1_000_000);
    for (what, (small, large)) in
        ["find", "miss", "make", "remove"].into_iter().zip(small.iter().zip(&large))
    {
        eprintln!("{what}: {small:?}, among a million {large:?}");
        // The extents of such a large directory may be in a tree outside the inode, and the search for space
        // for a new name examines up to 64 sectors, in up to five segments.
        assert!(large.requests() <= small.requests() + 5, "{what}: {small:?} {large:?}");
        let bytes = |counts: &Counts| counts.read_bytes + counts.written_bytes;
        assert!(bytes(large) <= bytes(small) + (640 << 10), "{what}: {small:?} {large:?}");
    }
}

#[test]
fn a_volume_of_16_tib_is_made_and_mounted_as_one_of_16_gib() {
    let costs = |size_bytes: u64| {
        let device = device(size_bytes);
        let made = cost(&device, || mkfs::make(&*device, &MkfsOptions::default()).expect("made"));
        let mut volume = None;
        let opened = cost(&device, || volume = Some(open(&device)));
        let volume = volume.expect("opened");
        let counted = cost(&device, || volume.stat_fs());
        let closed = cost(&device, || volume.close().expect("closed"));
        [made, opened, counted, closed]
    };
    let small = costs(16 << 30);
    let large = costs(16 << 40);
    for (what, (small, large)) in
        ["mkfs", "mount", "statfs", "umount"].into_iter().zip(small.iter().zip(&large))
    {
        eprintln!("{what}: {small:?}, of 16 TiB {large:?}");
        // Some more cylinder groups have copies of the superblock.
        assert!(large.requests() <= small.requests() + 16, "{what}: {small:?} {large:?}");
        assert!(large.read_bytes + large.written_bytes <= 1 << 20, "{what}: {large:?}");
    }
    assert_eq!(large[2], Counts::default(), "statfs asks the device for nothing");
}

#[test]
fn files_that_end_within_a_block_are_written_without_reading_it() {
    let device = device(1 << 30);
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(&device);
    volume.make(&Caller::ROOT, ROOT, b"first", &EMPTY).expect("made");
    volume.sync().expect("synced");
    let counts = cost(&device, || {
        for index in 0..1000 {
            let file = volume.make(&Caller::ROOT, ROOT, &name(index), &EMPTY).expect("made");
            volume
                .write(&Caller::ROOT, file.ino, 0, &vec![7; 1000 + index as usize * 17])
                .expect("written");
        }
        volume.sync().expect("synced");
    });
    assert_eq!(counts.reads, 0, "{counts:?}");
    volume.close().expect("closed");
}

#[test]
fn overwritten_blocks_are_not_read() {
    const FILES: u64 = 200;
    let device = device(1 << 30);
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let mut sizes = [1000, 4096, 9000, 16_384].into_iter().cycle();
    let volume = open(&device);
    for index in 0..FILES {
        let file = volume.make(&Caller::ROOT, ROOT, &name(index), &EMPTY).expect("made");
        volume
            .write(&Caller::ROOT, file.ino, 0, &vec![7; sizes.next().unwrap_or(0)])
            .expect("written");
    }
    volume.close().expect("closed");
    let volume = open(&device);
    let counts = cost(&device, || {
        for index in 0..FILES {
            let file = volume.lookup(ROOT, &name(index)).expect("found");
            volume
                .write(&Caller::ROOT, file.ino, 0, &vec![8; file.size as usize])
                .expect("written");
        }
        volume.sync().expect("synced");
    });
    // The sectors with their names and inodes are 200 KiB, the contents 1500.
    assert!(counts.read_bytes < 400 << 10, "{counts:?}");
    volume.close().expect("closed");
}

#[test]
fn files_removed_with_their_directory_are_not_written() {
    let device = device(1 << 30);
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(&device);
    let dir = NewFile { kind: NewKind::Directory, ..EMPTY };
    for d in 0..300 {
        let parent = volume.make(&Caller::ROOT, ROOT, &name(d), &dir).expect("made").ino;
        for index in 0..8 {
            let file = volume.make(&Caller::ROOT, parent, &name(index), &EMPTY).expect("made");
            volume
                .write(&Caller::ROOT, file.ino, 0, &vec![7; 1000 + index as usize * 1700])
                .expect("written");
            volume.release(file.ino, 1);
        }
        volume.release(parent, 1);
    }
    volume.sync().expect("synced");
    let counts = cost(&device, || {
        for d in 0..300 {
            let parent = volume.lookup(ROOT, &name(d)).expect("there").ino;
            for index in 0..8 {
                volume.unlink(&Caller::ROOT, parent, &name(index)).expect("gone");
            }
            volume.remove_dir(&Caller::ROOT, ROOT, &name(d)).expect("gone");
            volume.release(parent, 1);
        }
        volume.sync().expect("synced");
    });
    // Only the root directory.
    assert_eq!(counts.writes, 1, "{counts:?}");
    volume.close().expect("closed");
}

/// A walk visits a directory's subdirectories before the next directory, and they are on the device in this
/// order. A plan of only the directories would read everything between them, more than fits into the cache,
/// and again for each.
#[test]
fn a_walk_of_more_directories_than_the_cache_holds_does_not_read_them_for_each_other() {
    let device = device(1 << 30);
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(&device);
    let dir = NewFile { kind: NewKind::Directory, ..EMPTY };
    let (outer, inner) = (300, 20);
    for d in 0..outer {
        let parent = volume.make(&Caller::ROOT, ROOT, &name(d), &dir).expect("made").ino;
        for index in 0..inner {
            let child = volume.make(&Caller::ROOT, parent, &name(index), &dir).expect("made").ino;
            let file = volume.make(&Caller::ROOT, child, b"a file", &EMPTY).expect("made").ino;
            [file, child].into_iter().for_each(|ino| volume.release(ino, 1));
        }
        volume.release(parent, 1);
    }
    volume.close().expect("closed");
    let options = OpenOptions { cache_bytes: 4 << 20, ..OpenOptions::default() };
    let clock = Arc::new(TestClock::default());
    let volume = Volume::open(device.clone(), clock, options).expect("opened");
    let counts = cost(&device, || {
        for d in 0..outer {
            let parent = volume.lookup(ROOT, &name(d)).expect("there").ino;
            for index in 0..inner {
                let child = volume.lookup(parent, &name(index)).expect("there").ino;
                let file = volume.lookup(child, b"a file").expect("there").ino;
                [file, child].into_iter().for_each(|ino| volume.release(ino, 1));
            }
            volume.release(parent, 1);
        }
    });
    eprintln!("walk: {counts:?}");
    let directories = outer * (inner + 2) * 4096;
    assert!(counts.read_bytes <= 3 * directories, "{counts:?}, {directories} bytes of directories");
    volume.close().expect("closed");
}

/// The inode of the root directory is separate from the others, in the system area.
#[test]
fn an_epoch_waits_as_often_for_the_root_directory_as_for_another_one() {
    let device = device(64 << 20);
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(&device);
    let dir = NewFile { kind: NewKind::Directory, permissions: 0o755, ..EMPTY };
    let dir = volume.make(&Caller::ROOT, ROOT, b"dir", &dir).expect("made").ino;
    let waits = |parent, index| {
        let counts = cost(&device, || {
            let file = volume.make(&Caller::ROOT, parent, &name(index), &EMPTY).expect("made").ino;
            volume.write(&Caller::ROOT, file, 0, &[1; 4096]).expect("written");
            volume.sync().expect("synced");
        });
        counts.barriers + counts.syncs
    };
    // After the first file of each, both directories are in the intent log.
    let [_, root, _, other] =
        [(ROOT, 0), (ROOT, 1), (dir, 2), (dir, 3)].map(|at| waits(at.0, at.1));
    assert_eq!((root, other), (2, 2));

    // The table of external inodes must be on the device before names that refer to it.
    volume.make(&Caller::ROOT, ROOT, b"linked", &EMPTY).expect("made");
    let linked = volume.lookup(ROOT, b"linked").expect("there").ino;
    volume.sync().expect("synced");
    let counts = cost(&device, || {
        volume.link(linked, dir, b"linked").expect("linked");
        volume.sync().expect("synced");
    });
    // Its first sector, its inode, the new name, the old one: each waits for the previous one.
    assert_eq!((counts.barriers, counts.syncs), (3, 1));
}

/// The newest extents of a file are in its inode, so most appends do not write the extent tree.
#[test]
fn appends_to_a_file_with_many_extents_write_no_more_than_to_one_with_few() {
    let [few, many] = [4, 700].map(|pieces| {
        let device = device(256 << 20);
        mkfs::make(&*device, &MkfsOptions::default()).expect("made");
        let volume = open(&device);
        let file = volume.make(&Caller::ROOT, ROOT, b"file", &EMPTY).expect("made").ino;
        let append = |at: u64| {
            volume.write(&Caller::ROOT, file, at * 16_384, &[1; 4096]).expect("written");
            volume.sync().expect("synced");
        };
        (0..pieces).for_each(append);
        (pieces..pieces + 20).map(|at| cost(&device, || append(at)).writes).collect::<Vec<_>>()
    });
    assert!(many.iter().sum::<u64>() <= few.iter().sum(), "{many:?}, {few:?}");
    assert!(many.iter().filter(|writes| **writes == 2).count() >= 15, "{many:?}");
}
