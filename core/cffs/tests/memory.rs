//! The memory of a volume in use, as accounted by the volume and by the allocator: bounded by the options,
//! whatever callers do.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::file::FileDevice;
use cffs::files::{CopyOptions, Files, export};
use cffs::memory::Kind;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{AllocateMode, NewFile, NewKind, OpenOptions, SetAttr, XattrMode};
use cffs::vfs::{Amount, Caller, Quotas, Volume};
use parking_lot::{Mutex, MutexGuard};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const CACHE_BYTES: u64 = 8 << 20;
const DIRTY_BYTES: u64 = CACHE_BYTES / 2;
/// The limit of inodes, in addition to the cache.
const INODE_BYTES: u64 = CACHE_BYTES / 4;
/// The memory of an idle volume: buffers, the pool of blocks, the journal.
const FIXED_BYTES: u64 = 4 << 20;

/// The allocator counts for the whole process, so only one test may measure at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A volume on a file, and how to open it.
struct Bench {
    device: Arc<FileDevice>,
    _scratch: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    fn new() -> Bench {
        let alone = ALONE.lock();
        let scratch = tempfile::tempdir().expect("a directory");
        let device = FileDevice::create(&scratch.path().join("image"), 2 << 30).expect("created");
        mkfs::make(&device, &MkfsOptions::default()).expect("made");
        Bench { device: Arc::new(device), _scratch: scratch, _alone: alone }
    }

    fn open(&self) -> Volume {
        let options = OpenOptions {
            cache_bytes: CACHE_BYTES,
            dirty_bytes_max: DIRTY_BYTES,
            ..OpenOptions::default()
        };
        Volume::open(self.device.clone(), Arc::new(TestClock::default()), options).expect("opened")
    }

    /// Runs `work` with a volume, closes it, and checks that the memory stayed within the options.
    fn bounded(&self, what: &str, work: impl FnOnce(&Volume)) {
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let volume = self.open();
        work(&volume);
        volume.close().expect("closed");
        let took = (ALLOCATOR.peak_usage() - before) as u64;
        // Changes in memory, changes being written, and their encoded form.
        let bound = CACHE_BYTES + INODE_BYTES * 9 / 8 + 3 * DIRTY_BYTES + FIXED_BYTES;
        eprintln!("{what}: {took} bytes, at most {bound}");
        assert!(took <= bound, "{what}: {took} bytes, more than {bound}");
    }
}

/// The charge of a kind.
fn charged(volume: &Volume, kind: Kind) -> u64 {
    let uses = volume.memory();
    uses.iter().find(|use_| use_.kind == kind).expect("each kind has one").bytes
}

fn inode_bytes(volume: &Volume) -> u64 {
    [Kind::Inodes, Kind::Attributes, Kind::Extents].map(|kind| charged(volume, kind)).iter().sum()
}

/// Three attributes of 180 KB in total, whose contents identify their file.
fn attributes(number: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..3).map(move |index| {
        let name = format!("user.attribute-{index}").into_bytes();
        (name, vec![(number % 251) as u8 + index; 60_000])
    })
}

fn set_attributes(volume: &Volume, ino: InodeNo, number: u64) {
    for (name, value) in attributes(number) {
        volume.set_xattr(&Caller::ROOT, ino, &name, &value, XattrMode::Any).expect("set");
    }
}

fn check_attributes(volume: &Volume, ino: InodeNo, number: u64) {
    for (name, value) in attributes(number) {
        assert!(volume.xattr(ino, &name).expect("there") == value, "of file {number}");
    }
}

fn make(volume: &Volume, name: &str) -> InodeNo {
    let made =
        volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &new_file(NewKind::Regular));
    made.expect("made").ino
}

fn new_file(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None }
}

/// Creates `dirs` directories of a hundred small files in the root directory.
fn fill(volume: &Volume, dirs: u64) {
    for dir in 0..dirs {
        let name = format!("dir-{dir}");
        let dir = volume.make(
            &Caller::ROOT,
            InodeNo::ROOT,
            name.as_bytes(),
            &new_file(NewKind::Directory),
        );
        let dir = dir.expect("made").ino;
        for file in 0..100 {
            let name = format!("a small file {file}");
            let made =
                volume.make(&Caller::ROOT, dir, name.as_bytes(), &new_file(NewKind::Regular));
            let ino = made.expect("made").ino;
            volume
                .write(&Caller::ROOT, ino, 0, &vec![file as u8; 200 + 20 * file])
                .expect("written");
            volume.release(ino, 1);
        }
        volume.release(dir, 1);
    }
}

/// Examines and reads every file, like find(1) with cat(1); returns their number.
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

/// The peak memory of a volume with `dirs` directories: while everything was created, and while everything
/// was read.
fn peaks(dirs: u64) -> [usize; 2] {
    let _alone = ALONE.lock();
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

#[test]
fn attributes_are_a_cache_when_clean_and_start_an_epoch_when_dirty() {
    const FILES: u64 = 400;
    let bench = Bench::new();
    let name = |number: u64| format!("file-{number}");
    bench.bounded("attributes set", |volume| {
        for number in 0..FILES {
            let ino = make(volume, &name(number));
            set_attributes(volume, ino, number);
            volume.release(ino, 1);
            assert!(inode_bytes(volume) <= DIRTY_BYTES + INODE_BYTES * 9 / 8, "file {number}");
        }
        assert!(volume.stats().epochs > FILES * 180_000 / DIRTY_BYTES / 2);
    });
    bench.bounded("looked at", |volume| {
        for number in 0..FILES {
            let ino = volume.lookup(InodeNo::ROOT, name(number).as_bytes()).expect("there").ino;
            volume.release(ino, 1);
        }
        assert_eq!(charged(volume, Kind::Attributes), 0, "attributes were never read");
        let read = volume.stats().device_read_bytes;
        assert!(read < 4 << 20, "{read} bytes were read to look at {FILES} files");
    });
    bench.bounded("attributes read", |volume| {
        for number in 0..FILES {
            let ino = volume.lookup(InodeNo::ROOT, name(number).as_bytes()).expect("there").ino;
            check_attributes(volume, ino, number);
            assert!(inode_bytes(volume) <= INODE_BYTES * 9 / 8, "file {number}");
        }
    });
    bench.bounded("modes changed", |volume| {
        for number in 0..FILES {
            let ino = volume.lookup(InodeNo::ROOT, name(number).as_bytes()).expect("there").ino;
            check_attributes(volume, ino, number);
            let changes = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
            volume.set_attr(&Caller::ROOT, ino, &changes).expect("set");
            assert!(inode_bytes(volume) <= DIRTY_BYTES + INODE_BYTES * 9 / 8, "file {number}");
        }
    });
}

#[test]
fn attributes_are_charged_to_the_byte() {
    let bench = Bench::new();
    let volume = bench.open();
    let ino = make(&volume, "file");
    assert_eq!(charged(&volume, Kind::Attributes), 0);
    let before = charged(&volume, Kind::Inodes);
    volume.set_xattr(&Caller::ROOT, ino, b"user.one", &[1; 1000], XattrMode::Any).expect("set");
    volume.set_xattr(&Caller::ROOT, ino, b"user.two", &[2; 50_000], XattrMode::Any).expect("set");
    assert_eq!(charged(&volume, Kind::Attributes), 2 * (96 + 8) + 51_000);
    volume.set_xattr(&Caller::ROOT, ino, b"user.two", &[2; 10], XattrMode::Any).expect("set");
    assert_eq!(charged(&volume, Kind::Attributes), 2 * (96 + 8) + 1010);
    volume.remove_xattr(ino, b"user.one").expect("removed");
    volume.remove_xattr(ino, b"user.two").expect("removed");
    assert_eq!(charged(&volume, Kind::Attributes), 0);
    volume.write(&Caller::ROOT, ino, 0, &[3; 8192]).expect("written");
    assert_eq!(charged(&volume, Kind::Pages) % 4096, 0);
    volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"file").expect("gone");
    volume.release(ino, 1);
    volume.sync().expect("synced");
    assert_eq!(charged(&volume, Kind::InFlight), 0);
    assert!(charged(&volume, Kind::Inodes) < before, "the vnode is gone");
}

#[test]
fn files_without_a_name_keep_no_attributes_in_memory() {
    const FILES: u64 = 300;
    let bench = Bench::new();
    bench.bounded("files without a name", |volume| {
        let unnamed = |number: u64| {
            let ino = match number % 2 {
                0 => volume.make_unnamed(&Caller::ROOT, InodeNo::ROOT, &new_file(NewKind::Regular)),
                _ => volume.make(
                    &Caller::ROOT,
                    InodeNo::ROOT,
                    b"short-lived",
                    &new_file(NewKind::Regular),
                ),
            };
            let ino = ino.expect("made").ino;
            set_attributes(volume, ino, number);
            if number % 2 == 1 {
                volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"short-lived").expect("gone");
            }
            assert!(inode_bytes(volume) <= DIRTY_BYTES + INODE_BYTES * 9 / 8, "file {number}");
            ino
        };
        let files: Vec<InodeNo> = (0..FILES).map(unnamed).collect();
        for (number, ino) in (0..).zip(&files) {
            check_attributes(volume, *ino, number);
            assert!(inode_bytes(volume) <= DIRTY_BYTES + INODE_BYTES * 9 / 8, "file {number}");
        }
        // A file that gets a name still has them, also when it is read again.
        volume.sync().expect("synced");
        volume.link(files[0], InodeNo::ROOT, b"kept").expect("linked");
        files.iter().for_each(|ino| volume.release(*ino, 1));
    });
    bench.bounded("the file that got a name", |volume| {
        let kept = volume.lookup(InodeNo::ROOT, b"kept").expect("there");
        check_attributes(volume, kept.ino, 0);
    });
}

#[test]
fn extents_of_files_in_pieces_are_a_cache() {
    const FILES: u64 = 40;
    const PIECES: u64 = 4000;
    let bench = Bench::new();
    bench.bounded("files in pieces", |volume| {
        for number in 0..FILES {
            let ino = make(volume, &format!("file-{number}"));
            let mode = AllocateMode::Reserve;
            volume.allocate(&Caller::ROOT, ino, 0, PIECES * 8192, mode).expect("allocated");
            for piece in 0..PIECES {
                let mode = AllocateMode::PunchHole;
                volume.allocate(&Caller::ROOT, ino, piece * 8192, 4096, mode).expect("punched");
            }
            volume.release(ino, 1);
            let extents = charged(volume, Kind::Extents);
            assert!(extents > 0);
            assert!(inode_bytes(volume) <= DIRTY_BYTES + INODE_BYTES * 9 / 8, "file {number}");
        }
    });
    bench.bounded("read again", |volume| {
        for number in 0..FILES {
            let found = volume.lookup(InodeNo::ROOT, format!("file-{number}").as_bytes());
            volume.read(found.expect("there").ino, 4096, &mut [0; 4096]).expect("read");
            // With its access time changed, all of it is in use until the next epoch.
            assert!(inode_bytes(volume) <= DIRTY_BYTES + INODE_BYTES * 9 / 8, "file {number}");
        }
    });
}

#[test]
fn long_names_and_open_files_take_what_the_tables_have() {
    const FILES: u64 = 20_000;
    let bench = Bench::new();
    bench.bounded("long names", |volume| {
        let name = |number: u64| format!("{number:0>200}");
        let open: Vec<InodeNo> = (0..FILES).map(|number| make(volume, &name(number))).collect();
        for number in 0..FILES {
            volume.lookup(InodeNo::ROOT, name(number).as_bytes()).expect("there");
        }
        for use_ in volume.memory() {
            let bytes_max = use_.bytes_max.unwrap_or(1 << 20);
            assert!(use_.bytes <= bytes_max * 9 / 8, "{use_:?}");
        }
        open.iter().for_each(|ino| volume.release(*ino, 2));
    });
}

/// Regression: an export kept the paths of all directories until its end, which took memory quadratic in the
/// depth.
#[test]
fn an_export_of_a_deep_tree_keeps_no_paths() {
    const DEPTH: u64 = 300;
    const NAME: [u8; 250] = [b'd'; 250];
    let bench = Bench::new();
    let files = Files::new(Arc::new(bench.open()));
    let mut dir = InodeNo::ROOT;
    for _ in 0..DEPTH {
        let made = files
            .volume()
            .make(&Caller::ROOT, dir, &NAME, &new_file(NewKind::Directory))
            .expect("made");
        files.volume().release(made.ino, 1);
        dir = made.ino;
    }
    files.volume().sync().expect("synced");
    let out = tempfile::tempdir().expect("a directory");
    let options = CopyOptions { owner: false, ..CopyOptions::default() };
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let made = export(&files, b"/", out.path(), &options, &()).expect("exported");
    let took = (ALLOCATOR.peak_usage() - before) as u64;
    assert_eq!((made.directories, made.failures), (DEPTH + 1, 0));
    let (paths, bound) = (DEPTH * DEPTH / 2 * NAME.len() as u64, FIXED_BYTES);
    assert!(took <= bound, "{took} bytes, more than {bound}; all paths take {paths}");
    files.close().expect("closed");
}

/// Regression: a count kept the vnodes of all directories that it had found and not looked into.
#[test]
fn a_count_of_a_tree_keeps_the_numbers_of_its_directories_alone() {
    const DIRS: u64 = 40_000;
    let bench = Bench::new();
    let volume = bench.open();
    for number in 0..DIRS {
        let name = format!("dir-{number}");
        let new = new_file(NewKind::Directory);
        let made = volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &new).expect("made");
        volume.release(made.ino, 1);
    }
    volume.close().expect("closed");
    drop(volume);
    let volume = bench.open();
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let set = Quotas::of(&volume).set(InodeNo::ROOT, Amount::UNLIMITED).expect("set");
    let took = (ALLOCATOR.peak_usage() - before) as u64;
    assert_eq!(set.used.files, DIRS + 1);
    let bound = CACHE_BYTES + INODE_BYTES * 9 / 8 + FIXED_BYTES + 64 * DIRS;
    eprintln!("{took} bytes, at most {bound}");
    assert!(took <= bound, "{took} bytes, more than {bound}");
    volume.close().expect("closed");
}
