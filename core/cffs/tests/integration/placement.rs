//! The placement of rewritten files, and of files with keys of their own.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{Counts, MemoryDevice, TraceDevice};
use cffs::format::superblock::{Compression, Policy};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::{FragRun, InodeNo};
use cffs::vfs::types::{AtimeMode, DirEntry, NewFile, NewKind, OpenOptions, XattrMode};
use cffs::vfs::{Caller, Volume};

const DIRECTORIES: usize = 12;
const FILES: usize = 10;
const FILE_BYTES: usize = 32 << 10;

/// A volume with directories of files, all created in one epoch.
fn tree() -> (Volume, Vec<Vec<InodeNo>>) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let clock = Arc::new(TestClock::default());
    let volume = Volume::open(device, clock, OpenOptions::default()).expect("opened");
    let make = |dir, name: String, kind| {
        let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
        volume.make(&Caller::ROOT, dir, name.as_bytes(), &new).expect("made").ino
    };
    let files = |d: usize| {
        let dir = make(InodeNo::ROOT, format!("directory {d}"), NewKind::Directory);
        (0..FILES).map(|i| make(dir, format!("file {i}"), NewKind::Regular)).collect()
    };
    let tree: Vec<Vec<InodeNo>> = (0..DIRECTORIES).map(files).collect();
    write(&volume, tree.iter().flatten());
    (volume, tree)
}

fn write<'a>(volume: &Volume, files: impl Iterator<Item = &'a InodeNo>) {
    for file in files {
        volume.write(&Caller::ROOT, *file, 0, &[7; FILE_BYTES]).expect("written");
    }
    volume.sync().expect("durable");
}

/// The number of places of these files.
fn places<'a>(volume: &Volume, files: impl Iterator<Item = &'a InodeNo>) -> usize {
    let pieces = files.flat_map(|file| volume.admin().explain(*file).expect("placed").pieces);
    let mut runs: Vec<FragRun> = pieces.map(|piece| piece.run).collect();
    runs.sort_by_key(|run| run.start);
    1 + runs.windows(2).filter(|two| two[0].end() != two[1].start).count()
}

#[test]
fn rewritten_directories_are_adjacent() {
    let (volume, tree) = tree();
    assert_eq!(places(&volume, tree.iter().flatten()), 1);
    for _ in 0..3 {
        write(&volume, tree.iter().flatten());
        let places = places(&volume, tree.iter().flatten());
        assert!(places <= 2, "{places} places");
    }
}

#[test]
fn directories_of_which_little_is_rewritten_have_a_place_each() {
    let (volume, tree) = tree();
    write(&volume, tree.iter().map(|files| &files[0]));
    assert_eq!(places(&volume, tree.iter().map(|files| &files[0])), DIRECTORIES);
}

/// An fsync rewrites few files, and the next one uses the holes at their old places: no run is reserved for
/// them.
#[test]
fn files_rewritten_by_an_fsync_are_adjacent_and_leave_their_holes_to_the_next() {
    let (volume, tree) = tree();
    let again = |i: usize| {
        for files in &tree {
            volume.write(&Caller::ROOT, files[i], 0, &[8; FILE_BYTES]).expect("written");
            volume.sync_file(files[i], false).expect("durable");
        }
        places(&volume, tree.iter().map(|files| &files[i]))
    };
    let before: Vec<_> = tree.iter().map(|files| run(&volume, files[0])).collect();
    assert_eq!(again(0), 1, "the first ones lie side by side");
    assert_eq!(again(1), DIRECTORIES, "the next ones each in its directory");
    let after: Vec<_> = tree.iter().map(|files| run(&volume, files[1])).collect();
    assert_eq!(before, after);
}

fn run(volume: &Volume, file: InodeNo) -> FragRun {
    volume.admin().explain(file).expect("placed").pieces[0].run
}

type Traced = Arc<TraceDevice<MemoryDevice>>;

/// Files that are made in one directory and read cold.
#[derive(Clone, Copy)]
struct Keyed {
    keys: usize,
    files_per_key: usize,
    compression: Option<Compression>,
}

impl Keyed {
    const FILE: [u8; 3000] = [7; 3000];

    fn open(device: &Traced) -> Volume {
        let options = OpenOptions { atime: AtimeMode::Never, ..OpenOptions::default() };
        Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
    }

    /// The requests and bytes of listing and reading the files, which were made key by key: the keys are
    /// those of a policy.
    fn cost(self, policy: Policy) -> Counts {
        let device = Arc::new(TraceDevice::new(MemoryDevice::new(1 << 30)));
        let Keyed { compression, .. } = self;
        let options = MkfsOptions { policy, compression, ..MkfsOptions::default() };
        mkfs::make(&*device, &options).expect("made");
        let volume = Self::open(&device);
        for key in 0..self.keys {
            for i in 0..self.files_per_key {
                self.make(&volume, policy, key, i);
            }
            if key % (self.keys / 3) == 0 {
                volume.writer().background().write_early().expect("written ahead");
            }
        }
        volume.close().expect("closed");
        Self::read_all(&device)
    }

    /// Makes a file, which is written in three pieces as compilers do.
    fn make(self, volume: &Volume, policy: Policy, key: usize, i: usize) -> InodeNo {
        let (name, uid) = (format!("file {key:05} {i:03}"), 1000 + key as u32);
        let caller = Caller { process: uid, ..Caller::ROOT };
        let kind = NewKind::Regular;
        let new = NewFile { kind, permissions: 0o644, uid, gid: 0, times: None };
        let file = volume.make(&caller, InodeNo::ROOT, name.as_bytes(), &new).expect("made").ino;
        if policy == Policy::Hint {
            let (hint, value) = (b"user.cffs.key", key.to_string());
            volume
                .set_xattr(&Caller::ROOT, file, hint, value.as_bytes(), XattrMode::Create)
                .expect("hinted");
        }
        for (at, piece) in (0..).step_by(1000).zip(Self::FILE.chunks(1000)) {
            volume.write(&caller, file, at, piece).expect("written");
        }
        volume.release(file, 1);
        file
    }

    fn read_all(device: &Traced) -> Counts {
        let volume = Self::open(device);
        let before = device.counts();
        let mut names = Vec::new();
        let mut list = |entry: &DirEntry<'_>| {
            names.extend((!entry.name.starts_with(b".")).then(|| entry.name.to_vec()));
            true
        };
        volume.read_dir(InodeNo::ROOT, 0, false, &mut list).expect("listed");
        names.sort();
        for name in &names {
            let file = volume.lookup(InodeNo::ROOT, name).expect("found").ino;
            let mut contents = [0; Self::FILE.len()];
            assert_eq!(volume.read(file, 0, &mut contents).expect("read"), contents.len());
            assert_eq!(contents, Self::FILE);
            volume.release(file, 1);
        }
        device.counts() - before
    }

    /// Asserts that a cold scan takes at most 1.2 times the requests and bytes that it takes by directory.
    fn is_like_a_directory(self, policies: &[Policy]) {
        let directory = self.cost(Policy::Directory);
        for policy in policies {
            let keyed = self.cost(*policy);
            let Keyed { keys, files_per_key, .. } = self;
            let what = format!("{keys} x {files_per_key}, {}: {keyed:?}", policy.name());
            eprintln!("{what}; by directory: {directory:?}");
            assert!(keyed.reads * 10 <= directory.reads * 12, "{what}; {directory:?}");
            assert!(keyed.read_bytes * 10 <= directory.read_bytes * 12, "{what}; {directory:?}");
        }
    }
}

/// Two thousand runs of one key each would span gibibytes, and a reader reads through short gaps.
#[test]
fn many_small_keys_are_placed_like_a_directory() {
    let compression = None;
    for (keys, files_per_key) in [(2000, 1), (500, 4), (200, 10), (40, 50)] {
        let keyed = Keyed { keys, files_per_key, compression };
        keyed.is_like_a_directory(&[Policy::Hint, Policy::Process, Policy::Owner]);
    }
}

/// The first files of a key are placed with those of others. When they have filled a segment, the next ones
/// get runs that are as long as all of them.
#[test]
fn a_large_key_has_few_places_although_its_files_are_made_alternately_with_others() {
    const EPOCHS: usize = 20;
    let keyed = Keyed { keys: 8, files_per_key: 200, compression: None };
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(256 << 20)));
    let policy = Policy::Owner;
    mkfs::make(&*device, &MkfsOptions { policy, ..MkfsOptions::default() }).expect("made");
    let volume = Keyed::open(&device);
    let mut files = vec![Vec::new(); keyed.keys];
    for i in 0..keyed.files_per_key {
        for (key, files) in files.iter_mut().enumerate() {
            files.push(keyed.make(&volume, policy, key, i));
        }
        if (i + 1) % (keyed.files_per_key / EPOCHS) == 0 {
            volume.sync().expect("durable");
        }
    }
    for files in &files {
        let places = places(&volume, files.iter());
        assert!(places <= EPOCHS / 2, "{places} places");
    }
}

#[test]
fn the_objects_of_a_build_are_placed_like_a_directory() {
    let build = Keyed { keys: 150, files_per_key: 1, compression: None };
    build.is_like_a_directory(&[Policy::Process]);
}

#[test]
fn clusters_hold_files_of_several_new_keys() {
    let compression = Some(Compression::Zstd(1));
    let keyed = Keyed { keys: 600, files_per_key: 1, compression };
    keyed.is_like_a_directory(&[Policy::Process]);
}
