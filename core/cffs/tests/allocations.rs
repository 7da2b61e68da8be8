//! The number of allocations of frequent operations. Unlike time, it is the same on every machine,
//! and it reveals unnecessary copies and lists.

use std::num::NonZeroUsize;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::files::{CopyOptions, Files, Node, export};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::types::{AtimeMode, NewFile, NewKind, OpenOptions};
use cffs::vfs::{Caller, Volume};

const NEW: NewFile<'_> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
const FILES: u64 = 1000;

/// Allocations of `work` per file; the names were created before.
fn allocations(names: &[Vec<u8>], work: impl Fn(&[u8])) -> f64 {
    let counted = allocation_counter::measure(|| names.iter().for_each(|name| work(name)));
    counted.count_total as f64 / names.len() as f64
}

#[test]
fn hot_operations_allocate_what_they_keep() {
    let device = MemoryDevice::new(256 << 20);
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let options = OpenOptions { atime: AtimeMode::Never, ..OpenOptions::default() };
    let clock = Arc::new(TestClock::default());
    let volume = Volume::open(Arc::new(device), clock, options).expect("opened");
    let named = |kind: &str| -> Vec<Vec<u8>> {
        (0..FILES).map(|index| format!("{kind}{index}").into_bytes()).collect()
    };
    let (empty, full) = (named("empty"), named("full"));
    let root = InodeNo::ROOT;
    let mut buffer = [0; 1024];
    let make = |name: &[u8]| volume.make(&Caller::ROOT, root, name, &NEW).expect("made").ino;
    let find = |name: &[u8]| volume.lookup(root, name).expect("there").ino;

    let create = allocations(&empty, |name| volume.release(make(name), 1));
    let write = allocations(&full, |name| {
        let file = make(name);
        volume.write(&Caller::ROOT, file, 0, &[7; 1024]).expect("written");
        volume.release(file, 1);
    });
    let stat = allocations(&full, |name| volume.release(find(name), 1));
    let cell = std::cell::RefCell::new(&mut buffer);
    let read = allocations(&full, |name| {
        let file = find(name);
        volume.read(file, 0, &mut cell.borrow_mut()[..]).expect("read");
        volume.release(file, 1);
    });
    let unlink =
        allocations(&empty, |name| volume.unlink(&Caller::ROOT, root, name).expect("gone"));
    println!("create {create}, write {write}, stat {stat}, read {read}, unlink {unlink}");

    assert_eq!((stat, read), (0.0, 0.0), "what only looks allocates nothing");
    // The vnode, and occasionally a block of the directory, or a larger table.
    assert!(create < 1.7, "create: {create}");
    // In addition the page: its bytes, its header, and the list of pages.
    assert!(write < 4.6, "create and write: {write}");
    assert!(unlink < 0.2, "unlink: {unlink}");
}

/// Allocations and allocated bytes per directory for the export of a chain of directories, each with a file.
fn allocations_of_export(depth: u64) -> (f64, f64) {
    let device = MemoryDevice::new(64 << 20);
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let clock = Arc::new(TestClock::default());
    let volume = Volume::open(Arc::new(device), clock, OpenOptions::default()).expect("opened");
    let volume = Arc::new(volume);
    let mut dir = Node::root(&volume);
    for _ in 0..depth {
        dir.make(b"file", &NEW).expect("made");
        let new = NewFile { kind: NewKind::Directory, permissions: 0o755, ..NEW };
        dir = dir.make(b"directory", &new).expect("made");
    }
    let (files, host) = (Files::new(volume), tempfile::tempdir().expect("made"));
    // With one thread, the caller's does the work, and its allocations are counted.
    let options = CopyOptions { threads: NonZeroUsize::new(1), xattrs: false, owner: true };
    let counted = allocation_counter::measure(|| {
        let summary = export(&files, b"/", host.path(), &options, &()).expect("exported");
        assert_eq!((summary.directories, summary.files), (depth + 1, depth));
    });
    let per_directory = |count: u64| count as f64 / depth as f64;
    (per_directory(counted.count_total), per_directory(counted.bytes_total))
}

/// Regression: an export copied every name above each directory, which took time quadratic in the depth.
#[test]
fn an_export_allocates_as_much_for_a_deep_directory_as_for_others() {
    let (shallow, deep) = (allocations_of_export(100), allocations_of_export(400));
    println!("allocations and bytes per directory: {shallow:?}, {deep:?}");
    assert!(deep.0 < 1.1 * shallow.0, "{deep:?} allocations and bytes, {shallow:?} above");
    assert!(deep.1 < 1.1 * shallow.1, "{deep:?} allocations and bytes, {shallow:?} above");
}
