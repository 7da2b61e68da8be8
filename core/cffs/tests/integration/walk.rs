//! Walks over a tree whose directories have grown alternately, each in a few places: a plan includes nearby
//! files of the next directories; with read-ahead threads, the next directory is requested while one is read;
//! and the metadata needed for listings is read in one sweep. Reading files of many directories that share a
//! hint is no walk.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cffs::clock::TestClock;
use cffs::device::{MemoryDevice, TraceDevice, TraceEvent};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{AtimeMode, DirEntry, NewFile, NewKind, OpenOptions, XattrMode};
use cffs::vfs::{Caller, Volume};

const FILE_BYTES: usize = 128 << 10;
const DIRECTORIES: usize = 32;
const FILES: usize = 48;

type Device = Arc<TraceDevice<MemoryDevice>>;

fn open(device: &Device) -> Volume {
    let options = OpenOptions { atime: AtimeMode::Never, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
}

fn formatted() -> Device {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(512 << 20)));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    device
}

fn make(volume: &Volume, dir: InodeNo, name: String, kind: NewKind<'_>) -> InodeNo {
    let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    volume.make(&Caller::ROOT, dir, name.as_bytes(), &new).expect("made").ino
}

fn make_directories(volume: &Volume) -> Vec<InodeNo> {
    (0..DIRECTORIES)
        .map(|d| make(volume, InodeNo::ROOT, format!("d{d:02}"), NewKind::Directory))
        .collect()
}

/// A tree whose directories alternately get four files each, with a sync after each round.
fn grown_by_turns() -> Device {
    let device = formatted();
    let volume = open(&device);
    let dirs = make_directories(&volume);
    for turn in 0..FILES / 4 {
        for (d, dir) in dirs.iter().enumerate() {
            for i in turn * 4..turn * 4 + 4 {
                let file = make(&volume, *dir, format!("f{i:02}"), NewKind::Regular);
                volume
                    .write(&Caller::ROOT, file, 0, &vec![(d * FILES + i) as u8; FILE_BYTES])
                    .expect("written");
            }
        }
        volume.sync().expect("durable");
    }
    volume.close().expect("closed");
    device
}

/// Reads the first files of a directory, in listing order.
fn read(volume: &Volume, dir: &str, files: usize) {
    let dir = volume.lookup(InodeNo::ROOT, dir.as_bytes()).expect("there").ino;
    let mut names = Vec::new();
    volume
        .read_dir(dir, 0, false, &mut |entry| {
            names.extend((!entry.name.starts_with(b".")).then(|| entry.name.to_vec()));
            true
        })
        .expect("listed");
    let mut buffer = vec![0; FILE_BYTES];
    for name in names.iter().take(files) {
        let file = volume.lookup(dir, name).expect("there").ino;
        assert_eq!(volume.read(file, 0, &mut buffer).expect("read"), FILE_BYTES);
        volume.release(file, 1);
    }
    volume.release(dir, 1);
}

/// The 4 KiB blocks of the files of a directory.
fn blocks_of(volume: &Volume, dir: &str) -> Vec<u64> {
    let dir = volume.lookup(InodeNo::ROOT, dir.as_bytes()).expect("there").ino;
    let files =
        (0..FILES).map(|i| volume.lookup(dir, format!("f{i:02}").as_bytes()).expect("there").ino);
    let pieces = files.flat_map(|file| volume.admin().explain(file).expect("placed").pieces);
    let mut blocks: Vec<u64> = pieces
        .flat_map(|piece| (piece.run.start.0..piece.run.end().0).step_by(4).map(|at| at / 4))
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[test]
fn a_plan_includes_near_files_of_the_next_directories() {
    let device = grown_by_turns();
    let volume = open(&device);
    let places: usize = (0..DIRECTORIES)
        .map(|d| {
            let blocks = blocks_of(&volume, &format!("d{d:02}"));
            1 + blocks.windows(2).filter(|pair| pair[1] - pair[0] > 128).count()
        })
        .sum();
    volume.close().expect("closed");
    assert!(places >= 2 * DIRECTORIES, "directories lie in {places} places");
    let volume = open(&device);
    let before = device.counts();
    (0..DIRECTORIES).for_each(|d| read(&volume, &format!("d{d:02}"), FILES));
    let counts = device.counts() - before;
    let seeks = counts.reads - counts.sequential;
    assert!(seeks as usize * 5 <= places * 3, "{seeks} seeks to {places} places");
    volume.close().expect("closed");
}

const DOCUMENTS: usize = 160;
const PART_BYTES: usize = 16 << 10;

/// Documents of eight files with a common hint, each file in another directory.
fn documents() -> (Device, Vec<InodeNo>) {
    let device = formatted();
    let volume = open(&device);
    let dirs = make_directories(&volume)[..8].to_vec();
    for document in 0..DOCUMENTS {
        for dir in &dirs {
            let file = make(&volume, *dir, document_name(document), NewKind::Regular);
            let hint = document_name(document);
            volume
                .set_xattr(
                    &Caller::ROOT,
                    file,
                    b"user.cffs.key",
                    hint.as_bytes(),
                    XattrMode::Create,
                )
                .expect("hinted");
            volume
                .write(&Caller::ROOT, file, 0, &vec![document as u8; PART_BYTES])
                .expect("written");
        }
    }
    volume.close().expect("closed");
    (device, dirs)
}

fn document_name(document: usize) -> String {
    format!("p{document:03}")
}

/// The requests for reading these files, with a cache that does not fit all of them.
fn reads_of_parts(
    device: &Device,
    volume: &Volume,
    parts: impl Iterator<Item = (InodeNo, usize)>,
) -> usize {
    let mut buffer = vec![0; PART_BYTES];
    let before = device.counts();
    for (dir, document) in parts {
        let file = volume.lookup(dir, document_name(document).as_bytes()).expect("there").ino;
        assert_eq!(volume.read(file, 0, &mut buffer).expect("read"), PART_BYTES);
        volume.release(file, 1);
    }
    (device.counts() - before).reads as usize
}

fn open_with_cache(device: &Device, cache_bytes: u64) -> Volume {
    let options = OpenOptions { atime: AtimeMode::Never, cache_bytes, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
}

/// Reading ahead the next files listed in these directories would read from eight other documents.
#[test]
fn a_reader_of_documents_reads_nothing_of_others() {
    let (device, dirs) = documents();
    let volume = open_with_cache(&device, 8 << 20);
    let visits = (0..DOCUMENTS / 4).map(|visit| visit * 67 % DOCUMENTS);
    let parts = visits.flat_map(|document| dirs.iter().map(move |dir| (*dir, document)));
    let reads = reads_of_parts(&device, &volume, parts) * 4;
    assert!(reads <= DOCUMENTS * 5, "{reads} reads for {DOCUMENTS} documents");
    volume.close().expect("closed");
}

/// For a sequential reader, however, each plan is longer than the previous one, and the next directory begins
/// with the same length; never longer than the cache allows, or each plan would evict the data of the
/// previous one.
#[test]
fn a_scan_of_scattered_files_goes_as_far_as_the_cache_has_room() {
    let (device, dirs) = documents();
    for (cache_bytes, first, second) in
        [(8 << 20, 240, 240), (64 << 20, 240, 360), (256 << 20, 80, 40)]
    {
        let volume = open_with_cache(&device, cache_bytes);
        let scan =
            |dir| reads_of_parts(&device, &volume, (0..DOCUMENTS).map(|document| (dir, document)));
        let reads = [scan(dirs[0]), scan(dirs[1])];
        println!("{reads:?} reads for {DOCUMENTS} files each, with {} MiB", cache_bytes >> 20);
        assert!(reads[0] <= first && reads[1] <= second, "{reads:?}, {cache_bytes} bytes of cache");
        volume.close().expect("closed");
    }
}

#[test]
fn the_next_directory_is_requested_while_one_is_read() {
    let device = grown_by_turns();
    let volume = open(&device);
    let next = blocks_of(&volume, "d09");
    volume.close().expect("closed");
    let volume = open(&device);
    device.start_recording();
    volume.with_prefetch(2, || {
        (0..8).for_each(|d| read(&volume, &format!("d{d:02}"), FILES));
        let mut absent = next.clone();
        forget_what_was_read(&mut absent, &device);
        assert!(absent.len() * 2 > next.len(), "{} blocks of {}", absent.len(), next.len());
        // No file of the directory after this one is read.
        read(&volume, "d08", FILES / 2);
        let since = Instant::now();
        while !absent.is_empty() && since.elapsed() < Duration::from_secs(20) {
            sleep(Duration::from_millis(1));
            forget_what_was_read(&mut absent, &device);
        }
        assert!(absent.is_empty(), "{} blocks of {} were not read", absent.len(), next.len());
    });
    volume.close().expect("closed");
}

/// A directory that has grown has an extent tree, placed where there was space, and a reader that lists its
/// parent with attributes needs all of them. From then on the places of the directories are known, and they
/// are read in a few sweeps as well.
#[test]
fn the_trees_of_directories_are_read_in_one_sweep() {
    let device = formatted();
    let volume = open(&device);
    let mut dirs = make_directories(&volume);
    for turn in 0..8 {
        // In another order than they are listed.
        dirs.reverse();
        dirs.rotate_left(DIRECTORIES / 3);
        for dir in &dirs {
            for i in 0..50 {
                make(&volume, *dir, format!("file-{turn}-{i:02}"), NewKind::Regular);
            }
        }
        volume.sync().expect("durable");
    }
    volume.close().expect("closed");
    let volume = open(&device);
    volume.lookup(InodeNo::ROOT, b"nothing").expect_err("not there");
    device.start_recording();
    assert_eq!(list(&volume, InodeNo::ROOT), DIRECTORIES);
    let trees = reads(&device);
    assert!(trees.is_sorted(), "{trees:?}");
    let (Some(first), Some(last)) = (trees.first(), trees.last()) else {
        panic!("nothing was read")
    };
    let bytes = last.0 + last.1 - first.0;
    assert!(trees.len() <= 2 && bytes >= 1 << 20, "{trees:?}");
    device.start_recording();
    dirs.sort_unstable();
    dirs.iter().for_each(|dir| assert_eq!(list(&volume, *dir), 400));
    let sectors = reads(&device);
    assert!(sectors.len() <= 4, "{sectors:?}");
    volume.close().expect("closed");
}

/// The number of entries of a directory, listed with attributes.
fn list(volume: &Volume, dir: InodeNo) -> usize {
    let mut entries = 0;
    let mut count = |_: &DirEntry<'_>| {
        entries += 1;
        true
    };
    volume.read_dir(dir, 0, true, &mut count).expect("listed");
    entries
}

/// The offsets and lengths of reads since recording began.
fn reads(device: &Device) -> Vec<(u64, u64)> {
    let events = device.stop_recording().into_iter();
    let reads = events.filter_map(|event| match event {
        TraceEvent::Read { offset_bytes, len_bytes } => Some((offset_bytes, len_bytes)),
        _ => None,
    });
    reads.collect()
}

/// Removes from `blocks` those that were read since the last call.
fn forget_what_was_read(blocks: &mut Vec<u64>, device: &Device) {
    let read = reads(device);
    device.start_recording();
    for (offset_bytes, len_bytes) in read {
        let read = offset_bytes / 4096..(offset_bytes + len_bytes).div_ceil(4096);
        blocks.retain(|block| !read.contains(block));
    }
}
