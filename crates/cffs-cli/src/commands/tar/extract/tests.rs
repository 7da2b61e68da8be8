use std::sync::Arc;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::mkfs::{self, MkfsOptions};

use super::super::create;
use super::*;

/// The most lookups per directory and its file.
const LOOKUPS_MAX: u64 = 6;

fn volume() -> Files {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let volume = cffs::open(device, Arc::new(SystemClock), Default::default()).expect("opened");
    Files::new(Arc::new(volume))
}

/// An archive of a chain of directories, each with a file.
fn deep(depth: usize) -> Vec<u8> {
    let files = volume();
    let new = |kind| NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    let mut dir = Node::root(files.volume());
    for _ in 0..depth {
        dir.make(b"file", &new(NewKind::Fifo)).expect("made");
        dir = dir.make(b"directory", &new(NewKind::Directory)).expect("made");
    }
    let mut bytes = Vec::new();
    let options = create::Options { xattrs: false, holes: false };
    assert_eq!(create::archive(&files, b"/", options, &mut bytes).expect("written"), 0);
    bytes
}

/// Each entry was looked up by its whole path, which took time quadratic in the depth.
#[test]
fn the_work_for_an_entry_does_not_depend_on_its_depth() {
    for depth in [100, 400] {
        let (bytes, target) = (deep(depth), volume());
        let options = Options { owner: false, xattrs: false };
        let before = target.volume().stats().lookups;
        let missing = archive(&target, b"/", &options, &bytes[..]).expect("extracted");
        assert_eq!(missing, 0);
        let lookups = target.volume().stats().lookups - before;
        assert!(lookups <= LOOKUPS_MAX * depth as u64, "{lookups} lookups at a depth of {depth}");
    }
}
