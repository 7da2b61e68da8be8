//! Requests that an adapter gets without a kernel.

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{NewFile, OpenOptions, Volume};
use fuse_ring::protocol::{Extensions, Unique};

use super::*;
use crate::served::Served;
use crate::shared::Current;

const NONE: FileHandle = FileHandle(0);

fn adapter(volume: &Arc<Volume>) -> Adapter {
    let current = Current::new(Arc::clone(volume));
    let served = Arc::new(Served::new(current.clone()));
    let (caches, watch) = (KernelCaches::default(), Arc::new(Watch::new(Duration::from_secs(60))));
    let sessions = Sessions::new(current, Box::new(caches.clone()), true);
    let (shown, watched, attached) =
        (Arc::clone(&served), Arc::clone(&watch), Arc::clone(&sessions));
    let closing = Arc::new(Closing::new(shown, Vec::new(), watched, attached));
    let volume = VolumeHandle::Fixed(Arc::clone(volume));
    let control = Control::new(served, Arc::default());
    Adapter::new(
        volume,
        control,
        Arc::default(),
        closing,
        watch,
        (caches, Duration::ZERO),
        sessions,
    )
}

/// Regression: allocations and copies by root kept set-id bits, even without `CAP_FSETID`. Linux 6.18 clears
/// the bits by an earlier request; a kernel that does not relies on these requests alone.
#[test]
fn allocations_and_copies_clear_set_id_bits_unless_the_caller_has_the_capability() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let clock = Arc::new(TestClock::default());
    let volume = cffs::open(device, clock, OpenOptions::default()).expect("opened");
    let volume = Arc::new(volume);
    let adapter = adapter(&volume);
    let make = |name: &str, permissions| {
        let new = NewFile { kind: NewKind::Regular, permissions, uid: 0, gid: 0, times: None };
        volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &new).expect("made").ino
    };
    let (source, allocated, target) =
        (make("source", 0o644), make("allocated", 0o6777), make("target", 0o6777));
    volume.write(&Caller::ROOT, source, 0, b"contents").expect("written");

    // No process has this number, so the caller has no capability.
    let extensions = Extensions::default();
    let root = Context { unique: Unique(1), uid: 0, gid: 0, pid: u32::MAX, extensions };
    let allocate = Fallocate { handle: NONE, offset: 0, length: 9000, mode: 0 };
    adapter.fallocate(&root, NodeId(allocated.0), &allocate).expect("allocated");
    let copy = CopyFileRange {
        handle_in: NONE,
        offset_in: 0,
        node_out: NodeId(target.0),
        handle_out: NONE,
        offset_out: 0,
        length: 8,
        flags: 0,
        wide: true,
    };
    assert_eq!(adapter.copy_file_range(&root, NodeId(source.0), &copy).expect("copied"), 8);
    for ino in [allocated, target] {
        assert_eq!(volume.attr(ino).expect("read").permissions, 0o777);
    }
}
