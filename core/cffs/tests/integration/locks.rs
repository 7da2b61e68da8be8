//! Concurrent calls that lock several files at once. In builds with debug assertions, taking a lock out of
//! order fails, whether or not another thread holds one (`cffs::lock`); in others these calls would deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cffs::clock::TestClock;
use cffs::device::{HoldDevice, MemoryDevice, RequestKind};
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

/// Regression: a reader that had found the place of an inode reported damage if another thread removed the
/// inode from there before the reader had the lock of the directory.
#[test]
fn a_file_that_is_removed_before_a_reader_reaches_it_is_no_damage() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let root = InodeNo::ROOT;
    let device = Arc::new(HoldDevice::new(MemoryDevice::new(64 << 20)));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let open = || {
        let options = OpenOptions { cache_bytes: 64 << 10, ..OpenOptions::default() };
        Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
    };
    let volume = open();
    let make = |dir, name: &[u8], kind| {
        volume.make(&Caller::ROOT, dir, name, &new(kind)).expect("made").ino
    };
    let [dir, other] = [&b"dir"[..], b"other"].map(|name| make(root, name, NewKind::Directory));
    // More than the cache takes. The last file is in the last block.
    let names: Vec<String> = (0..1000).map(|number| format!("{number:0100}")).collect();
    let files: Vec<InodeNo> =
        names.iter().map(|name| make(dir, name.as_bytes(), NewKind::Regular)).collect();
    let (name, file) = (&names[names.len() - 1], files[files.len() - 1]);
    let neighbor = make(other, b"neighbor", NewKind::Regular);
    volume.close().expect("closed");

    let volume = open();
    assert_eq!(volume.lookup(root, b"dir").expect("found").ino, dir);
    // Reads the block of the locator table that has the place of the file as well.
    assert_eq!(volume.attr(neighbor).expect("read").ino, neighbor);
    thread::scope(|scope| {
        let held = device.hold(RequestKind::Read);
        // Locks the directory, and waits for its contents.
        let removing = scope.spawn(|| volume.unlink(&Caller::ROOT, dir, name.as_bytes()));
        assert!(device.wait_for_request(PATIENCE), "the directory is read");
        let reading = scope.spawn(|| volume.attr(file));
        // The time that the reader needs to find the place and to wait for the lock.
        thread::sleep(Duration::from_millis(200));
        drop(held);
        removing.join().expect("no panic").expect("removed");
        let read = reading.join().expect("no panic");
        assert!(matches!(read, Ok(_) | Err(Error::Stale)), "{read:?}");
    });
    volume.close().expect("closed");
}
