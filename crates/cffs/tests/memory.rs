//! The memory of a volume in use, as its allocator counts it: bounded by the size of the cache, not
//! by the number of files that were looked at.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::file::FileDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const CACHE_BYTES: u64 = 8 << 20;

fn new_file(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o755, umask: 0, uid: 0, gid: 0 }
}

/// Makes `dirs` directories of a hundred small files below the root directory.
fn fill(volume: &Volume, dirs: u64) {
    for dir in 0..dirs {
        let name = format!("dir-{dir}");
        let dir = volume.make(InodeNo::ROOT, name.as_bytes(), &new_file(NewKind::Directory));
        let dir = dir.expect("made").ino;
        for file in 0..100 {
            let name = format!("a small file {file}");
            let made = volume.make(dir, name.as_bytes(), &new_file(NewKind::Regular));
            let ino = made.expect("made").ino;
            volume.write(ino, 0, &vec![file as u8; 200 + 20 * file]).expect("written");
            volume.release(ino, 1);
        }
        volume.release(dir, 1);
    }
}

/// Looks at every file and reads it, as find(1) with cat(1) does; how many there are.
fn read_all(volume: &Volume, dir: InodeNo) -> u64 {
    let mut entries = Vec::new();
    let list = volume.read_dir(dir, 0, false, &mut |entry| {
        entries.push(entry.name.to_vec());
        true
    });
    list.expect("listed");
    let mut files = 0;
    for name in entries {
        let found = volume.lookup(dir, &name).expect("there");
        if found.file_type == cffs::format::inode::FileType::Directory {
            files += read_all(volume, found.ino);
        } else {
            let mut bytes = vec![0; found.size as usize];
            volume.read(found.ino, 0, &mut bytes).expect("read");
            files += 1;
        }
        volume.release(found.ino, 1);
    }
    files
}

/// The most memory that a volume with so many directories took while all of it was made, and while
/// all of it was read.
fn peaks(dirs: u64) -> [usize; 2] {
    let scratch = tempfile::tempdir().expect("a directory");
    let device = FileDevice::create(&scratch.path().join("image"), 1 << 30).expect("created");
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let device = Arc::new(device);
    let peak_of = |work: &dyn Fn(&Volume)| {
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let options = OpenOptions {
            cache_bytes: CACHE_BYTES,
            dirty_bytes_max: CACHE_BYTES / 2,
            ..OpenOptions::default()
        };
        let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options);
        let volume = volume.expect("opened");
        work(&volume);
        volume.close().expect("closed");
        ALLOCATOR.peak_usage() - before
    };
    let made = peak_of(&|volume| fill(volume, dirs));
    let read = peak_of(&|volume| assert_eq!(read_all(volume, InodeNo::ROOT), dirs * 100));
    [made, read]
}

#[test]
fn memory_does_not_grow_with_the_number_of_files() {
    let small = peaks(100);
    let large = peaks(1000);
    for (what, (small, large)) in ["made", "read"].into_iter().zip(small.into_iter().zip(large)) {
        eprintln!("{what}: {small} bytes for 10,000 files, {large} for 100,000");
        let bound = 2 * CACHE_BYTES as usize + (8 << 20);
        assert!(large <= bound, "{what}: {large} bytes, more than {bound}");
    }
}
