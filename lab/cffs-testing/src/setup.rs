//! Devices with a new volume, volumes, and files.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, MemoryDevice};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, OpenOptions, Volume};

/// A regular file that belongs to root.
pub const FILE: NewFile<'static> = new(NewKind::Regular);
/// A directory that belongs to root.
pub const DIRECTORY: NewFile<'static> = NewFile { permissions: 0o755, ..new(NewKind::Directory) };

/// A file that belongs to root.
pub const fn new(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o644, uid: 0, gid: 0, times: None }
}

/// A device in memory with a new volume.
pub fn made(size_bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size_bytes));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    device
}

/// Options with a cache of one MiB.
pub fn small_cache() -> OpenOptions {
    OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() }
}

/// Opens a volume without recovery.
pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Volume {
    Volume::open(device, Arc::new(TestClock::default()), options).expect("opened")
}

/// Opens a volume, after recovery if necessary.
pub fn recover(device: Arc<dyn BlockDevice>, options: OpenOptions) -> cffs::error::Result<Volume> {
    cffs::open(device, Arc::new(TestClock::default()), options)
}

pub fn make(volume: &Volume, dir: InodeNo, name: &str, kind: NewKind<'_>) -> InodeNo {
    volume.make(&Caller::ROOT, dir, name.as_bytes(), &new(kind)).expect("made").ino
}

/// Creates a regular file in the root directory with these contents, and releases it.
pub fn make_with(volume: &Volume, name: &str, contents: &[u8]) -> InodeNo {
    let attr = volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &FILE).expect("made");
    assert_eq!(
        volume.write(&Caller::ROOT, attr.ino, 0, contents).expect("written"),
        contents.len()
    );
    volume.release(attr.ino, 1);
    attr.ino
}
