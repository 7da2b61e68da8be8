//! Several threads on one volume: each has its own directory, whose state it knows completely, and all of
//! them change a shared one, while others commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::error::Error;
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, OpenOptions, RenameMode, Volume};

use cffs_testing::model::runner::pattern;
use cffs_testing::random::Random;

const THREADS: u64 = 4;
const CHANGES: u64 = 600;
const PATIENCE: Duration = Duration::from_secs(120);
const ROOT: InodeNo = InodeNo::ROOT;

type Files = BTreeMap<Vec<u8>, (InodeNo, Vec<u8>)>;

fn new_file(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o644, uid: 0, gid: 0, times: None }
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = OpenOptions {
        cache_bytes: 256 << 10,
        dirty_bytes_max: 512 << 10,
        ..OpenOptions::default()
    };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

/// Changes of one thread: in its own directory, where every outcome is known, and in the shared one, where
/// another thread may have been faster.
fn change(volume: &Volume, own: InodeNo, shared: InodeNo, seed: u64) -> Files {
    let mut random = Random(seed);
    let mut files = Files::new();
    for step in 0..CHANGES {
        let name = format!("name {}", random.below(30)).into_bytes();
        let other = format!("name {}", random.below(30)).into_bytes();
        match random.below(6) {
            0 | 1 if !files.contains_key(&name) => {
                let ino = volume
                    .make(&Caller::ROOT, own, &name, &new_file(NewKind::Regular))
                    .expect("make")
                    .ino;
                let bytes = pattern(step as u8, 0, random.below(9000) as usize);
                volume.write(&Caller::ROOT, ino, 0, &bytes).expect("write");
                files.insert(name, (ino, bytes));
            }
            0..=2 => {
                let Some((ino, bytes)) = files.get_mut(&name) else { continue };
                let at = random.below(bytes.len() as u64 + 1) as usize;
                let piece = pattern(step as u8, 0, 1 + random.below(3000) as usize);
                volume.write(&Caller::ROOT, *ino, at as u64, &piece).expect("write");
                bytes.resize(bytes.len().max(at + piece.len()), 0);
                bytes[at..at + piece.len()].copy_from_slice(&piece);
            }
            3 => {
                let known = files.remove(&name);
                let found =
                    volume.rename(&Caller::ROOT, own, &name, own, &other, RenameMode::Replace);
                assert_eq!(found.is_ok(), known.is_some(), "{found:?}");
                let Some(known) = known else { continue };
                let replaced = files.insert(other, known);
                replaced.into_iter().for_each(|(ino, _)| volume.release(ino, 1));
            }
            4 => {
                let known = files.remove(&name);
                assert_eq!(volume.unlink(&Caller::ROOT, own, &name).is_ok(), known.is_some());
                known.into_iter().for_each(|(ino, _)| volume.release(ino, 1));
            }
            _ => change_shared(volume, shared, &name, &other, &mut random),
        }
        if let Some((ino, bytes)) = files.values().nth(random.below(30) as usize) {
            let mut out = vec![0; bytes.len() + 1];
            let len = volume.read(*ino, 0, &mut out).expect("read");
            assert!(out[..len] == bytes[..], "a file of this thread alone has other bytes");
        }
    }
    files
}

fn change_shared(volume: &Volume, shared: InodeNo, name: &[u8], other: &[u8], random: &mut Random) {
    let result = match random.below(6) {
        0 => volume.make(&Caller::ROOT, shared, name, &new_file(NewKind::Regular)).map(|attr| {
            volume.release(attr.ino, 1);
        }),
        1 => volume.unlink(&Caller::ROOT, shared, name),
        2 => {
            volume.rename(&Caller::ROOT, shared, name, shared, other, RenameMode::Replace).map(drop)
        }
        3 => volume
            .rename(&Caller::ROOT, shared, name, shared, other, RenameMode::Exchange)
            .map(drop),
        4 => volume.lookup(shared, name).and_then(|attr| {
            let linked = volume.link(attr.ino, shared, other).map(|attr| {
                volume.release(attr.ino, 1);
            });
            volume.release(attr.ino, 1);
            linked
        }),
        _ => volume.read_dir(shared, 0, true, &mut |entry| {
            volume.release(entry.ino, 1);
            true
        }),
    };
    match result {
        Ok(()) | Err(Error::NotFound | Error::Exists | Error::Stale) => {}
        Err(error) => panic!("in the shared directory: {error}"),
    }
}

/// Fails the whole process if the test hangs: a deadlock would otherwise look like a slow machine.
fn watch(done: &AtomicBool) {
    let start = Instant::now();
    while !done.load(Ordering::Acquire) {
        if start.elapsed() > PATIENCE {
            eprintln!("the threads have not ended after {PATIENCE:?}: a deadlock");
            std::process::abort();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn run(options: &MkfsOptions, seed: u64) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, options).expect("mkfs");
    let volume = open(&device);
    let make_dir = |name: &[u8]| {
        volume
            .make(&Caller::ROOT, ROOT, name, &new_file(NewKind::Directory))
            .expect("a directory")
            .ino
    };
    let shared = make_dir(b"shared");
    let own: Vec<InodeNo> =
        (0..THREADS).map(|thread| make_dir(format!("own {thread}").as_bytes())).collect();
    let done = AtomicBool::new(false);
    let stop = AtomicBool::new(false);
    let known: Vec<Files> = std::thread::scope(|scope| {
        scope.spawn(|| watch(&done));
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                volume.sync().expect("sync");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let volume = &volume;
        let start = |(thread, dir): (u64, &InodeNo)| {
            let (dir, seed) = (*dir, seed * THREADS + thread);
            scope.spawn(move || change(volume, dir, shared, seed))
        };
        let threads: Vec<_> = (0..).zip(&own).map(start).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Release);
        done.store(true, Ordering::Release);
        results.into_iter().map(|files| files.expect("a thread")).collect()
    });
    volume.close().expect("close");
    let volume = open(&device);
    for (dir, files) in own.iter().zip(&known) {
        let mut found = Files::new();
        let mut inodes = Vec::new();
        let entries = volume.read_dir(*dir, 0, false, &mut |entry| {
            inodes.push((entry.name.to_vec(), entry.ino));
            true
        });
        entries.expect("read_dir");
        for (name, ino) in inodes {
            let mut bytes = vec![0; volume.attr(ino).expect("attr").size as usize];
            volume.read(ino, 0, &mut bytes).expect("read");
            found.insert(name, (ino, bytes));
        }
        assert!(found == *files, "a directory of one thread is not as that thread left it");
    }
    volume.close().expect("close");
    let options = CheckOptions { contents: true, force: true, ..CheckOptions::default() };
    let report = fsck::check(&*device, &options, &()).expect("the check runs");
    assert_eq!(report.problems, [], "fsck finds problems");
}

#[test]
fn threads_do_not_disturb_each_other() {
    let rounds = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    for seed in 0..rounds.unwrap_or(60u64) {
        let embed = seed % 2 == 0;
        let sector_bytes = Some(if seed % 4 < 2 { 4096 } else { 512 });
        run(&MkfsOptions { embed, sector_bytes, ..MkfsOptions::default() }, seed);
    }
}

/// When a thread gives a file its first name, another thread may remove the name at once: the file is then
/// deleted with its last reference, not leaked.
#[test]
fn a_file_whose_first_name_is_removed_at_once_is_deleted() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
    let volume = open(&device);
    let inodes = volume.stat_fs().inodes;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                match volume.unlink(&Caller::ROOT, ROOT, b"name") {
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for _ in 0..20_000 {
            let made = volume
                .make_unnamed(&Caller::ROOT, ROOT, &new_file(NewKind::Regular))
                .expect("made");
            match volume.link(made.ino, ROOT, b"name") {
                Ok(_) => volume.release(made.ino, 2),
                Err(Error::Exists) => volume.release(made.ino, 1),
                Err(error) => panic!("{error}"),
            }
        }
        done.store(true, Ordering::Release);
    });
    let _ = volume.unlink(&Caller::ROOT, ROOT, b"name");
    assert_eq!(volume.stat_fs().inodes, inodes, "inodes without a name are left");
    volume.close().expect("close");
}
