use std::sync::Arc;

use super::*;
use crate::clock::TestClock;
use crate::device::{BlockDevice, MemoryDevice};
use crate::fsck::{self, CheckOptions};
use crate::mkfs::{self, MkfsOptions};
use crate::vfs::OpenOptions;

const FILE: NewFile<'static> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };

fn device() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(16 << 20);
    mkfs::make(&device, &MkfsOptions::default()).expect("mkfs");
    Arc::new(device)
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let clock = Arc::new(TestClock::default());
    Volume::open(Arc::clone(device) as Arc<dyn BlockDevice>, clock, OpenOptions::default())
        .expect("open")
}

fn names(volume: &Volume, directory: InodeNo) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let visit = &mut |entry: &crate::vfs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    volume.read_dir(directory, 0, false, visit).expect("listed");
    names
}

fn read(volume: &Volume, ino: InodeNo) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 20_000];
    let len = volume.read(ino, 0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Each of them was unlinked while in use, and is in use still after the handover; then it goes with its
/// last reference.
#[test]
fn files_without_a_name_outlive_the_volume_that_had_them_open() {
    let device = device();
    let volume = open(&device);
    let kept = volume.make(&Caller::ROOT, InodeNo::ROOT, b"kept", &FILE).expect("made").ino;
    volume.sync().expect("synced");
    let free = volume.stat_fs().free_fragments;
    let tiny = volume.make(&Caller::ROOT, InodeNo::ROOT, b"tiny", &FILE).expect("made").ino;
    let long = volume.make(&Caller::ROOT, InodeNo::ROOT, b"long", &FILE).expect("made").ino;
    let unnamed = volume.make_unnamed(&Caller::ROOT, InodeNo::ROOT, &FILE).expect("made").ino;
    for (ino, contents) in [(tiny, &b"tiny"[..]), (long, &[7; 20_000]), (unnamed, b"no name")] {
        volume.write(&Caller::ROOT, ino, 0, contents).expect("written");
    }
    volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"tiny").expect("unlinked");
    volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"long").expect("unlinked");
    let mtime = volume.attr(InodeNo::ROOT).expect("there").mtime;
    let handover = Handover::close(&volume).expect("closed");
    assert!(handover.has_nameless);
    let report = fsck::check(&*device, &CheckOptions { force: true, ..Default::default() }, &());
    assert!(report.expect("checked").problems.is_empty());

    let successor = open(&device);
    handover.succeed(&successor).expect("taken over");
    assert_eq!(names(&successor, InodeNo::ROOT), [b"kept"]);
    assert_eq!(successor.attr(InodeNo::ROOT).expect("there").mtime, mtime);
    for (ino, contents) in [(tiny, &b"tiny"[..]), (long, &[7; 20_000]), (unnamed, b"no name")] {
        assert_eq!(successor.attr(ino).expect("in use").nlink, 0);
        assert_eq!(read(&successor, ino).expect("in use"), contents);
        successor.release(ino, 1);
        assert!(matches!(read(&successor, ino), Err(Error::Stale)), "inode {ino}");
    }
    successor.sync().expect("synced");
    assert_eq!(successor.stat_fs().free_fragments, free);
    successor.unlink(&Caller::ROOT, InodeNo::ROOT, b"kept").expect("unlinked");
    assert_eq!(read(&successor, kept).expect("in use"), b"");
    successor.release(kept, 1);
    assert!(matches!(read(&successor, kept), Err(Error::Stale)));
    successor.close().expect("closed");
}

#[test]
fn a_removed_directory_is_gone_after_a_handover() {
    let device = device();
    let volume = open(&device);
    let new = NewFile { kind: NewKind::Directory, ..FILE };
    let gone = volume.make(&Caller::ROOT, InodeNo::ROOT, b"d", &new).expect("made").ino;
    volume.remove_dir(&Caller::ROOT, InodeNo::ROOT, b"d").expect("removed");
    let handover = Handover::close(&volume).expect("closed");
    let successor = open(&device);
    handover.succeed(&successor).expect("taken over");
    assert!(matches!(successor.attr(gone), Err(Error::Stale)));
    successor.release(gone, 1);
    assert_eq!(names(&successor, InodeNo::ROOT), Vec::<Vec<u8>>::new());
    successor.close().expect("closed");
}

/// The successor never came, so its names are still there at the next handover.
#[test]
fn remains_of_an_unfinished_handover_are_removed_by_the_next() {
    let device = device();
    for round in 0..3 {
        let volume = open(&device);
        assert_eq!(names(&volume, InodeNo::ROOT).len(), usize::from(round > 0));
        volume.make_unnamed(&Caller::ROOT, InodeNo::ROOT, &FILE).expect("made");
        Handover::close(&volume).expect("closed");
        let volume = open(&device);
        let directory = volume.lookup(InodeNo::ROOT, DIRECTORY).expect("there").ino;
        assert_eq!(names(&volume, directory).len(), 1);
        volume.close().expect("closed");
    }
}

#[test]
fn a_directory_of_a_user_is_not_mistaken_for_that_of_a_handover() {
    let device = device();
    let volume = open(&device);
    let new = NewFile { kind: NewKind::Directory, ..FILE };
    volume.make(&Caller::ROOT, InodeNo::ROOT, DIRECTORY, &new).expect("made");
    volume.make_unnamed(&Caller::ROOT, InodeNo::ROOT, &FILE).expect("made");
    assert!(matches!(Handover::close(&volume), Err(Error::Exists)));
    volume.make(&Caller::ROOT, InodeNo::ROOT, b"still open", &FILE).expect("made");
    volume.close().expect("closed");
}
