//! The sizes of keys follow their files.

use super::*;
use crate::clock::TestClock;
use crate::device::MemoryDevice;
use crate::mkfs::{self, MkfsOptions};
use crate::vfs::{Caller, NewFile, NewKind, OpenOptions, RenameMode, SetAttr, Volume};

const FILE: [u8; 3000] = [7; 3000];
/// Many times as often as a segment has room for the file.
const SAVES: usize = 100;

fn volume() -> Volume {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, &MkfsOptions { policy: Policy::Owner, ..MkfsOptions::default() })
        .expect("made");
    let clock = Arc::new(TestClock::default());
    Volume::open(device, clock, OpenOptions::default()).expect("opened")
}

fn write(volume: &Volume, ino: InodeNo) {
    volume.write(&Caller::ROOT, ino, 0, &FILE).expect("written");
    volume.sync().expect("durable");
}

/// Makes a file of the only owner, durably.
fn make(volume: &Volume, name: &str) -> InodeNo {
    let kind = NewKind::Regular;
    let new = NewFile { kind, permissions: 0o644, uid: 1000, gid: 0, times: None };
    let made = volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &new).expect("made");
    write(volume, made.ino);
    volume.release(made.ino, 1);
    made.ino
}

/// Whether the key of a file has filled a segment.
fn has_filled(volume: &Volume, ino: InodeNo) -> bool {
    let key = volume.admin().placement_key(ino).expect("found");
    volume.inodes().alloc.key_sizes.has_filled(key)
}

#[test]
fn a_key_stays_new_while_a_file_is_truncated_and_written_again() {
    let volume = volume();
    let file = make(&volume, "file");
    for _ in 0..SAVES {
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        volume.set_attr(&Caller::ROOT, file, &empty).expect("truncated");
        write(&volume, file);
    }
    assert!(!has_filled(&volume, file));
    (0..SAVES).for_each(|number| {
        make(&volume, &number.to_string());
    });
    assert!(has_filled(&volume, file));
}

#[test]
fn a_key_stays_new_while_a_file_is_replaced_by_another() {
    let volume = volume();
    let kept = make(&volume, "kept");
    for _ in 0..SAVES {
        make(&volume, "new");
        let root = InodeNo::ROOT;
        volume
            .rename(&Caller::ROOT, root, b"new", root, b"file", RenameMode::Replace)
            .expect("renamed");
    }
    assert!(!has_filled(&volume, kept));
}

/// Regression: space that was counted while a file was small stayed counted after the deletion of the file,
/// which was large by then.
#[test]
fn a_file_that_became_large_and_was_deleted_is_not_counted() {
    let volume = volume();
    let (kept, file) = (make(&volume, "kept"), make(&volume, "file"));
    for offset in 0..3 {
        volume.write(&Caller::ROOT, file, offset << 20, &[7; 1 << 20]).expect("written");
        volume.sync().expect("durable");
    }
    volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"file").expect("removed");
    volume.sync().expect("durable");
    assert!(!has_filled(&volume, kept));
}
