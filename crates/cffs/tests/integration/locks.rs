//! Concurrent calls that lock several files at once. In builds with debug assertions, taking a lock out of
//! order fails, whether or not another thread holds one (`cffs::lock`); in others these calls would deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::error::{Error, Result};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions, RenameMode, XattrMode};
use cffs::vfs::{Attr, Caller, Volume};

const ROUNDS: u32 = 300;

fn new(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None }
}

fn open(embed: bool) -> Volume {
    let device = MemoryDevice::new(64 << 20);
    mkfs::make(&device, &MkfsOptions { embed, ..MkfsOptions::default() }).expect("made");
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    Volume::open(Arc::new(device), Arc::new(TestClock::default()), options).expect("opened")
}

/// Ignores errors that occur if another thread has removed or created the name.
fn allow_races<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::NotFound | Error::Exists | Error::Stale | Error::NotEmpty) => None,
        Err(Error::IsDirectory | Error::NotDirectory | Error::EpochNeeded) => None,
        Err(error) => panic!("{error}"),
    }
}

fn with<T>(volume: &Volume, found: Result<Attr>, work: impl FnOnce(InodeNo) -> T) -> Option<T> {
    let attr = allow_races(found)?;
    let result = work(attr.ino);
    volume.release(attr.ino, 1);
    Some(result)
}

/// Tiny files get and lose names, so that their inodes move to the external table and back, while other
/// threads write to them, list them with their attributes, and make everything durable.
fn disturb(volume: &Volume) {
    let root = InodeNo::ROOT;
    let dir = volume.make(&Caller::ROOT, root, b"dir", &new(NewKind::Directory)).expect("made").ino;
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let concurrently = |work: &'static (dyn Fn(&Volume, InodeNo) + Sync)| {
            let ended = &ended;
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    work(volume, dir);
                }
            });
        };
        concurrently(&|volume, dir| {
            let found = volume.lookup(dir, b"one");
            with(volume, found, |ino| {
                allow_races(volume.write(&Caller::ROOT, ino, 0, b"tiny").map(drop))
            });
        });
        concurrently(&|volume, dir| {
            for dir in [InodeNo::ROOT, dir] {
                let mut seen = Vec::new();
                let listed = volume.read_dir(dir, 0, true, &mut |entry| {
                    seen.push(entry.ino);
                    true
                });
                listed.expect("listed");
                seen.iter().for_each(|ino| volume.release(*ino, 1));
            }
        });
        concurrently(&|volume, dir| {
            let name = b"user.name";
            allow_races(volume.set_xattr(&Caller::ROOT, dir, name, &[1; 5000], XattrMode::Any));
            volume.sync().expect("synced");
        });
        for round in 0..ROUNDS {
            let made = volume.make(&Caller::ROOT, dir, b"one", &new(NewKind::Regular));
            with(volume, made, |ino| {
                volume.write(&Caller::ROOT, ino, 0, &round.to_le_bytes()).expect("written");
                with(volume, volume.link(ino, root, b"two"), |_| ());
            });
            let mode = RenameMode::Replace;
            allow_races(volume.rename(&Caller::ROOT, root, b"two", dir, b"three", mode));
            with(
                volume,
                volume.make(&Caller::ROOT, root, b"four", &new(NewKind::Directory)),
                |_| (),
            );
            allow_races(volume.rename(
                &Caller::ROOT,
                root,
                b"four",
                dir,
                b"one",
                RenameMode::Exchange,
            ));
            allow_races(volume.rename(&Caller::ROOT, dir, b"one", dir, b"five", mode));
            allow_races(volume.rename(
                &Caller::ROOT,
                dir,
                b"five",
                dir,
                b"a somewhat longer name",
                mode,
            ));
            for name in [&b"one"[..], b"three", b"a somewhat longer name"] {
                allow_races(volume.unlink(&Caller::ROOT, dir, name).or_else(|error| match error {
                    Error::IsDirectory => volume.remove_dir(&Caller::ROOT, dir, name),
                    error => Err(error),
                }));
            }
            allow_races(volume.unlink(&Caller::ROOT, root, b"four").or_else(|error| match error {
                Error::IsDirectory => volume.remove_dir(&Caller::ROOT, root, b"four"),
                error => Err(error),
            }));
        }
        ended.store(true, Ordering::Relaxed);
    });
    volume.close().expect("closed");
}

#[test]
fn locks_are_taken_in_order_whatever_is_called() {
    disturb(&open(true));
    disturb(&open(false));
}
