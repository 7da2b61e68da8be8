//! The cost of charging a file for contents that are being placed.

use std::cell::Cell;
use std::sync::Arc;

use crate::clock::TestClock;
use crate::device::MemoryDevice;
use crate::format::superblock::Compression;
use crate::mkfs::{self, MkfsOptions};
use crate::units::InodeNo;
use crate::vfs::{Amount, Caller, NewFile, NewKind, OpenOptions, Quotas, Volume};

std::thread_local! {
    /// How many changed pages this thread has looked at to count the space of files.
    pub(super) static PAGES_COUNTED: Cell<u64> = const { Cell::new(0) };
}

/// The changed pages that this thread looks at to count space while a file of this many pages is placed in
/// clusters.
fn counted_while_placing(pages: u64) -> u64 {
    const ME: &Caller<'static> = &Caller::ROOT;
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let compression = Some(Compression::Zstd(1));
    mkfs::make(&*device, &MkfsOptions { compression, ..MkfsOptions::default() }).expect("made");
    let options = OpenOptions::default();
    let volume = Volume::open(device, Arc::new(TestClock::default()), options).expect("opened");
    Quotas::of(&volume).set(InodeNo::ROOT, Amount::UNLIMITED).expect("set");
    let kind = NewKind::Regular;
    let new = NewFile { kind, permissions: 0o644, uid: 0, gid: 0, times: None };
    let file = volume.make(ME, InodeNo::ROOT, b"file", &new).expect("made").ino;
    for page in 0..pages {
        let text = [&page.to_le_bytes()[..], &[7; 4088]].concat();
        volume.write(ME, file, page * 4096, &text).expect("written");
    }
    let before = PAGES_COUNTED.get();
    volume.sync().expect("synced");
    let counted = PAGES_COUNTED.get() - before;
    let clusters = volume.stats().clusters_written;
    assert!(clusters >= pages / 100, "{clusters} clusters");
    counted
}

/// Regression: for each cluster that a large file got, all of its changed pages were looked at, with the gate
/// closed.
#[test]
fn placing_a_file_in_clusters_looks_at_its_pages_a_few_times() {
    for pages in [1000, 4000] {
        let counted = counted_while_placing(pages);
        assert!(counted <= 2 * pages, "{counted} looks at {pages} pages");
    }
}
