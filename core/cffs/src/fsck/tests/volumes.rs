//! Volumes that the core wrote are clean; those that it left in the middle are recovered.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::TestClock;
use crate::device::{BlockDevice, Geometry, MemoryDevice};
use crate::format::Layout;
use crate::format::superblock::Policy;
use crate::fsck::{CheckOptions, Repair, Report, check};
use crate::mkfs::{self, MkfsOptions};
use crate::units::{CgIndex, InodeNo};
use crate::vfs::{Caller, NewFile, NewKind, OpenOptions, RenameMode, Volume, XattrMode};

pub(super) const ROOT: InodeNo = InodeNo::ROOT;

pub(super) fn new_file(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None }
}

pub(super) fn contents(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect()
}

/// Every combination of the switches that mkfs has.
pub(super) fn variants() -> Vec<MkfsOptions> {
    let mut variants = Vec::new();
    for (embed, inline) in [(true, true), (true, false), (false, true), (false, false)] {
        for policy in [Policy::Directory, Policy::None, Policy::Scattered] {
            for sector_bytes in [512, 4096] {
                let sector_bytes = Some(sector_bytes);
                let default = MkfsOptions::default();
                variants.push(MkfsOptions { embed, inline, policy, sector_bytes, ..default });
            }
        }
    }
    // The key of a file only affects its placement.
    for policy in [Policy::Owner, Policy::Time, Policy::Process, Policy::Access, Policy::Hint] {
        variants.push(MkfsOptions { policy, ..MkfsOptions::default() });
    }
    variants
}

pub(super) fn make(options: &MkfsOptions) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, options).expect("mkfs");
    device
}

pub(super) fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

pub(super) fn run(device: &MemoryDevice, repair: Repair) -> Report {
    let options =
        CheckOptions { repair, force: true, contents: true, threads: 2, ..CheckOptions::default() };
    check(device, &options, &()).expect("check")
}

fn assert_clean(device: &MemoryDevice, what: &str) {
    let report = run(device, Repair::No);
    assert!(report.problems.is_empty(), "{what}: {:#?}", report.problems);
    assert!(report.consistent && !report.recovery, "{what}");
    assert_eq!((report.exit_code(), report.rounds), (0, 1), "{what}");
}

/// Some of everything: files of all sizes, trees, links, special files, attributes, holes.
pub(super) fn populate(volume: &Volume, files: usize) {
    let mut dirs = vec![ROOT];
    for d in 0..4 {
        let parent = dirs[d / 2];
        let name = format!("dir{d}");
        dirs.push(
            volume
                .make(&Caller::ROOT, parent, name.as_bytes(), &new_file(NewKind::Directory))
                .unwrap()
                .ino,
        );
    }
    for index in 0..files {
        let dir = dirs[index % dirs.len()];
        let name = format!("file-{index}");
        let ino = volume
            .make(&Caller::ROOT, dir, name.as_bytes(), &new_file(NewKind::Regular))
            .unwrap()
            .ino;
        let len = [0, 5, 300, 700, 1500, 5000, 20_000, 70_000][index % 8];
        volume.write(&Caller::ROOT, ino, 0, &contents(index as u64, len)).unwrap();
        if index % 10 == 3 {
            let name = format!("link-{index}");
            volume.link(ino, dirs[(index + 1) % dirs.len()], name.as_bytes()).unwrap();
        }
        if index % 10 == 4 {
            volume
                .set_xattr(&Caller::ROOT, ino, b"user.a", &contents(3, 20), XattrMode::Any)
                .unwrap();
        }
        if index % 10 == 5 {
            volume
                .set_xattr(&Caller::ROOT, ino, b"user.b", &contents(4, 9000), XattrMode::Any)
                .unwrap();
        }
        if index % 10 == 6 {
            volume.write(&Caller::ROOT, ino, 1 << 30, b"behind a hole").unwrap();
        }
        if index % 10 == 7 {
            let new = format!("moved-{index}");
            let to = dirs[(index + 2) % dirs.len()];
            volume
                .rename(
                    &Caller::ROOT,
                    dir,
                    name.as_bytes(),
                    to,
                    new.as_bytes(),
                    RenameMode::Replace,
                )
                .unwrap();
        }
        if index % 10 == 8 {
            volume.unlink(&Caller::ROOT, dir, name.as_bytes()).unwrap();
        }
        volume.release(ino, 1);
    }
    let target = contents(1, 900).iter().map(|b| b | 1).collect::<Vec<u8>>();
    volume.make(&Caller::ROOT, dirs[1], b"short", &new_file(NewKind::Symlink(b"a/b"))).unwrap();
    volume.make(&Caller::ROOT, dirs[1], b"long", &new_file(NewKind::Symlink(&target))).unwrap();
    volume.make(&Caller::ROOT, dirs[2], b"pipe", &new_file(NewKind::Fifo)).unwrap();
    volume
        .make(&Caller::ROOT, dirs[2], b"device", &new_file(NewKind::CharDevice(1 << 32 | 3)))
        .unwrap();
}

#[test]
fn a_new_volume_is_clean() {
    for options in variants() {
        assert_clean(&make(&options), &format!("{options:?}"));
    }
}

#[test]
fn a_volume_that_was_closed_is_clean() {
    for options in variants() {
        let device = make(&options);
        let volume = open(&device);
        populate(&volume, 300);
        volume.close().unwrap();
        drop(volume);
        assert_clean(&device, &format!("{options:?}"));
    }
}

#[test]
fn a_volume_that_was_not_closed_is_recovered() {
    for options in variants() {
        let device = make(&options);
        let volume = open(&device);
        populate(&volume, 300);
        volume.sync().unwrap();
        drop(volume);
        let report = run(&device, Repair::Preen);
        assert!(report.problems.is_empty(), "{options:?}: {:#?}", report.problems);
        assert!(report.recovery && report.consistent);
        assert_eq!((report.exit_code(), report.rounds), (0, 1));
        assert_clean(&device, &format!("{options:?}"));
        let volume = open(&device);
        assert_eq!(volume.lookup(ROOT, b"file-0").unwrap().size, 0);
        volume.close().unwrap();
    }
}

/// Counts how often each block is read.
struct Counting<'d> {
    device: &'d MemoryDevice,
    reads: Mutex<BTreeMap<u64, u32>>,
}

impl BlockDevice for Counting<'_> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut reads = self.reads.lock();
        for block in offset / 4096..(offset + buf.len() as u64).div_ceil(4096) {
            *reads.entry(block).or_default() += 1;
        }
        self.device.read_at(offset, buf)
    }
    fn write_at(&self, _: u64, _: &[io::IoSlice<'_>]) -> io::Result<()> {
        Err(io::Error::other("a check writes nothing"))
    }
    fn barrier(&self) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::Error::other("a check discards nothing"))
    }
}

#[test]
fn a_check_reads_each_block_of_metadata_once() {
    let device = make(&MkfsOptions::default());
    let volume = open(&device);
    populate(&volume, 2000);
    let layout = Layout::new(&volume.writer().superblock.get());
    let (system_area, header) = (layout.system_area().0, layout.cg_header(CgIndex(0)).0);
    volume.close().unwrap();
    let counting = Counting { device: &device, reads: Mutex::default() };
    let options = CheckOptions { force: true, threads: 1, ..CheckOptions::default() };
    let report = check(&counting, &options, &()).expect("check");
    assert!(report.problems.is_empty() && report.inodes > 1500);
    let reads = counting.reads.into_inner();
    let (mut metadata, mut passed) = (0, 0);
    for (block, count) in reads {
        let mut bytes = [0; 4096];
        device.read_at(block * 4096, &mut bytes).expect("read");
        if bytes.starts_with(b"CF") {
            metadata += 1;
            // Lists of attributes take fragments: those of two files may share a block. A block of an
            // index and the header of the first group may be in a gap that is cheaper to read than to
            // skip.
            let shared = bytes.starts_with(b"CFxa");
            let in_gap = (bytes.starts_with(b"CFix") || block == header) && count == 2;
            passed += u64::from(in_gap);
            // What a device lost is looked for first, there too.
            let is_system = block == system_area && count == 2;
            assert!(
                count == 1 || shared || in_gap || is_system,
                "block {block} was read {count} times"
            );
        }
    }
    assert!(metadata > 100, "{metadata} blocks of metadata");
    assert!(passed * 20 < metadata, "{passed} of {metadata} blocks were read twice");
    assert!(report.read_requests < metadata, "{} requests", report.read_requests);
}
