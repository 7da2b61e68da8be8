//! When a file is charged for contents that are being placed.

use std::sync::Arc;

use crate::clock::TestClock;
use crate::device::MemoryDevice;
use crate::format::superblock::Compression;
use crate::mkfs::{self, MkfsOptions};
use crate::units::InodeNo;
use crate::vfs::{Amount, Caller, NewFile, NewKind, OpenOptions, Quotas, Volume};

/// Regression: for each cluster that a large file got, all of its changed pages were looked at, with the gate
/// closed, to charge the file with its present space.
#[test]
fn a_file_is_charged_with_its_space_when_its_last_changed_page_is_placed() {
    const ME: &Caller<'static> = &Caller::ROOT;
    const WRONG: u64 = 512;
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let compression = Some(Compression::Zstd(1));
    mkfs::make(&*device, &MkfsOptions { compression, ..MkfsOptions::default() }).expect("made");
    let options = OpenOptions::default();
    let volume = Volume::open(device, Arc::new(TestClock::default()), options).expect("opened");
    Quotas::of(&volume).set(InodeNo::ROOT, Amount::UNLIMITED).expect("set");
    let kind = NewKind::Regular;
    let new = NewFile { kind, permissions: 0o644, uid: 0, gid: 0, times: None };
    let file = volume.make(ME, InodeNo::ROOT, b"file", &new).expect("made").ino;
    for page in 0..1000u64 {
        let text = [&page.to_le_bytes()[..], &[7; 4088]].concat();
        volume.write(ME, file, page * 4096, &text).expect("written");
    }
    let inodes = volume.inodes();
    let vnode = inodes.get(file).expect("found");
    {
        let mut state = vnode.state.write();
        state.quota.charged = Some(WRONG);
        state.settle_placed(&inodes.layout);
        assert_eq!(state.quota.charged, Some(WRONG), "pages still wait");
    }
    volume.sync().expect("synced");
    assert!(volume.stats().clusters_written > 10);
    let state = vnode.state.read();
    assert_eq!(state.quota.charged, Some(state.charge(&inodes.layout)));
}
