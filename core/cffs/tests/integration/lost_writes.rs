//! A device that acknowledges a flush and loses the data is detected if the rest of the volume reveals it:
//! each case restores the old contents of one place, as such a device might, and opens the volume. Nothing is
//! written then, and the message says what to do.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, Image, MemoryDevice};
use cffs::format::Layout;
use cffs::fsck::{self, CheckOptions, Code, Repair};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::{BlockNo, CgIndex, InodeNo};
use cffs::vfs::{Caller, NewFile, NewKind, OpenOptions, Volume, read_superblock};

use cffs_testing::setup::FILE;

struct Run {
    device: Arc<MemoryDevice>,
    volume: Volume,
}

impl Run {
    fn new() -> Run {
        let device = Arc::new(MemoryDevice::new(32 << 20));
        mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
        let volume = open(&device).expect("opened");
        Run { device, volume }
    }

    /// Creates files, with an epoch for each.
    fn make(&self, names: Range<u32>) {
        for name in names {
            let name = format!("a file with the number {name}");
            let file = self
                .volume
                .make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &FILE)
                .expect("made");
            self.volume.write(&Caller::ROOT, file.ino, 0, &[7; 9000]).expect("written");
            self.volume.release(file.ino, 1);
            self.volume.sync().expect("synced");
        }
    }

    /// Creates directories, with an epoch for each: each adds an entry to the intent log.
    fn make_directories(&self, count: u32) {
        let kind = NewFile { kind: NewKind::Directory, ..FILE };
        for dir in 0..count {
            let name = format!("directory {dir}");
            let dir = self
                .volume
                .make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &kind)
                .expect("made")
                .ino;
            self.volume.make(&Caller::ROOT, dir, b"in it", &FILE).expect("made");
            self.volume.sync().expect("synced");
        }
    }

    fn layout(&self) -> Layout {
        Layout::new(&read_superblock(&*self.device).expect("superblock"))
    }

    fn blocks(&self, first: BlockNo, count: u64) -> Range<u64> {
        let layout = self.layout();
        layout.block_offset(first)..layout.block_offset(BlockNo(first.0 + count))
    }

    fn log(&self) -> Range<u64> {
        let layout = self.layout();
        self.blocks(layout.intent_log(), 2 * u64::from(layout.intent_log_half_blocks))
    }

    fn bitmap(&self) -> Range<u64> {
        let layout = self.layout();
        self.blocks(layout.cg_header(CgIndex(0)), 1 + u64::from(layout.bitmap_blocks()))
    }
}

fn open(device: &Arc<MemoryDevice>) -> Result<Volume, cffs::error::Error> {
    cffs::open(device.clone(), Arc::new(TestClock::default()), OpenOptions::default())
}

/// The current device, except for a range that has its old contents from `before`.
fn lose(device: &MemoryDevice, before: Image, range: Range<u64>) -> Arc<MemoryDevice> {
    let lost = Arc::new(MemoryDevice::from_image(device.snapshot()));
    let mut bytes = vec![0; (range.end - range.start) as usize];
    MemoryDevice::from_image(before).read_at(range.start, &mut bytes).expect("read");
    lost.write_at(range.start, &[IoSlice::new(&bytes)]).expect("written");
    lost
}

fn assert_noticed(device: &Arc<MemoryDevice>, what: &str) {
    let bytes = |device: &MemoryDevice| {
        let mut bytes = vec![0; 32 << 20];
        device.read_at(0, &mut bytes).expect("read");
        bytes
    };
    let before = bytes(device);
    let error = open(device).err().unwrap_or_else(|| panic!("{what}: opened quietly")).to_string();
    for part in ["CF0109", what, "flush", "cffs fsck -y", "Check the device"] {
        assert!(error.contains(part), "{what}: {error}");
    }
    assert!(bytes(device) == before, "{what}: something was written");
    let check = |repair| {
        let options = CheckOptions { repair, force: true, ..CheckOptions::default() };
        fsck::check(&**device, &options, &()).expect("checked")
    };
    let options = CheckOptions { repair: Repair::Preen, ..CheckOptions::default() };
    let preened = fsck::check(&**device, &options, &()).expect("checked");
    assert_eq!(preened.exit_code(), 4, "{what}");
    assert!(preened.problems.iter().any(|p| p.code == Code::WritesLost), "{what}");
    check(Repair::Yes);
    assert!(check(Repair::No).problems.is_empty(), "{what}");
    let volume = open(device).unwrap_or_else(|error| panic!("{what}, mended: {error}"));
    volume.close().expect("closed");
    open(device).expect("opened again");
}

#[test]
fn a_superblock_that_stayed_behind() {
    let run = Run::new();
    run.make(0..2);
    let before = run.device.snapshot();
    for names in [2..4, 4..6] {
        run.volume.writer().checkpoints().run().expect("checkpoint");
        run.make(names);
    }
    assert_noticed(&lose(&run.device, before, 0..512), "but the superblock only 1");
}

#[test]
fn a_superblock_that_missed_one_checkpoint() {
    let run = Run::new();
    run.make(0..2);
    let before = run.device.snapshot();
    run.volume.writer().checkpoints().run().expect("checkpoint");
    run.make_directories(3);
    assert_noticed(&lose(&run.device, before, 0..512), "but the superblock only 1");
}

#[test]
fn a_mark_that_did_not_stay() {
    let run = Run::new();
    run.make(0..2);
    assert!(run.volume.writer().checkpoints().mark_clean().expect("checkpoint"));
    let before = run.device.snapshot();
    run.make_directories(3);
    let lost = lose(&run.device, before.clone(), 0..512);
    assert_noticed(&lost, "several epochs are in the intent log");
    // Without the log, the system area reveals it.
    let lost = lose(&lose(&run.device, before.clone(), 0..512), before, run.log());
    assert_noticed(&lost, "the system area is of epoch");
}

#[test]
fn a_log_with_a_gap() {
    let run = Run::new();
    run.make(0..1);
    run.volume.writer().checkpoints().run().expect("checkpoint");
    run.make(1..2);
    let before = run.device.snapshot();
    run.make_directories(700);
    let layout = run.layout();
    let superblock = read_superblock(&*run.device).expect("superblock");
    let first = layout.block_offset(layout.intent_log_half(superblock.generation));
    let sector = first..first + u64::from(layout.sector_bytes);
    assert_noticed(&lose(&run.device, before, sector), "not all before it");
}

#[test]
fn a_bitmap_that_a_checkpoint_wrote() {
    let run = Run::new();
    run.make(0..2);
    let before = run.device.snapshot();
    run.volume.writer().checkpoints().run().expect("checkpoint");
    run.make(2..4);
    assert_noticed(&lose(&run.device, before, run.bitmap()), "at the last checkpoint");
}

/// Regression: the copies of a superblock are older than the intent log; a repair that continued counting
/// from a copy reached the generation of a log with several epochs, and the next check considered its
/// superblock stale.
#[test]
fn a_repair_by_a_copy_of_the_superblock_comes_after_the_log() {
    for checkpoints in 0..6 {
        let run = Run::new();
        for point in 0..checkpoints {
            run.make(point..point + 1);
            run.volume.writer().checkpoints().run().expect("checkpoint");
        }
        run.make_directories(3);
        let lost = MemoryDevice::from_image(run.device.snapshot());
        lost.write_at(0, &[IoSlice::new(&[0; 512])]).expect("written");
        let check = |repair| {
            let options = CheckOptions { repair, force: true, ..CheckOptions::default() };
            fsck::check(&lost, &options, &()).expect("checked").problems
        };
        assert!(check(Repair::Yes).iter().all(|problem| problem.fixed));
        assert_eq!(check(Repair::No), [], "after {checkpoints} checkpoints");
        open(&Arc::new(lost)).expect("opened");
    }
}
