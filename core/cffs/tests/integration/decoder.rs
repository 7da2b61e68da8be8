//! Compares the independent decoder, which is written from `docs/FORMAT.md` alone, with the file system: both
//! must agree on every volume, and the decoder must find damage.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cffs::device::{BlockDevice, Geometry, Image, Journal, MemoryDevice};
use cffs::error::Result;
use cffs::format::superblock::State;
use cffs::format::{Layout, Superblock};
use cffs::fsck::{self, CheckOptions};
use cffs::journal::JournaledDevice;
use cffs::mkfs::MkfsOptions;
use cffs::units::{CgIndex, InodeNo};
use cffs::vfs::{Caller, NewKind, Volume, XattrMode, read_superblock};

use cffs_testing::golden::{listing, sample};

#[test]
fn an_empty_volume_has_no_problem() {
    for (name, options) in sample::kinds() {
        let image = sample::empty(&options).unwrap();
        let (_, volume) = sample::open(&image, true).unwrap();
        assert_eq!(listing::decoded(&image), listing::of(&volume).unwrap(), "{name}");
    }
}

#[test]
fn both_readers_agree_on_a_volume_with_everything() {
    for (name, options) in sample::kinds() {
        let image = sample::full(&options).unwrap();
        let (_, volume) = sample::open(&image, true).unwrap();
        let expected = listing::of(&volume).unwrap();
        assert_eq!(listing::decoded(&image), expected, "{name}");
    }
}

#[test]
fn other_geometries_are_decoded_too() {
    for (block_bytes, fragment_bytes, sector_bytes) in
        [(4096, 512, 1024), (4096, 4096, 4096), (8192, 1024, 2048), (16384, 4096, 512)]
    {
        let options = MkfsOptions {
            block_bytes,
            fragment_bytes,
            sector_bytes: Some(sector_bytes),
            ..sample::kinds().remove(0).1
        };
        let image = sample::full(&options).unwrap();
        let (_, volume) = sample::open(&image, true).unwrap();
        assert_eq!(listing::decoded(&image), listing::of(&volume).unwrap());
    }
}

/// Enough names for an index of several buckets, and enough extents for a tree of two levels.
#[test]
fn large_structures_are_decoded_too() {
    for (name, options) in sample::kinds() {
        let empty = sample::empty_of(&options, 32 << 20).unwrap();
        let (device, volume) = sample::open(&empty, false).unwrap();
        fill_large(&volume).unwrap();
        volume.close().unwrap();
        let image = device.snapshot();
        let (_, volume) = sample::open(&image, true).unwrap();
        assert_eq!(listing::decoded(&image), listing::of(&volume).unwrap(), "{name}");
    }
}

fn fill_large(volume: &Volume) -> Result<()> {
    let dir = sample::make(volume, InodeNo::ROOT, b"dir", NewKind::Directory)?;
    for number in 0..3000 {
        sample::make(volume, dir, format!("name {number}").as_bytes(), NewKind::Regular)?;
    }
    let file = sample::make(volume, InodeNo::ROOT, b"file", NewKind::Regular)?;
    for (name, len) in [("user.longest", 65_536), ("user.long", 65_535), ("user.none", 0)] {
        volume.set_xattr(&Caller::ROOT, file, name.as_bytes(), &vec![b'v'; len], XattrMode::Any)?;
    }
    for piece in (0u64..700).rev() {
        volume.write(&Caller::ROOT, file, piece * 8192, b"piece")?;
        if piece % 100 == 0 {
            volume.sync()?;
        }
    }
    Ok(())
}

/// A volume whose UUID was changed after it was filled: its metadata keeps its original seed, including
/// copies of the superblock with the old UUID.
#[test]
fn a_seed_that_differs_from_the_uuid_is_decoded() {
    let image = sample::full(&sample::kinds().remove(0).1).unwrap();
    let (_, volume) = sample::open(&image, true).unwrap();
    let expected = listing::of(&volume).unwrap();
    let mut superblock = volume.writer().superblock.get();
    superblock.epoch = read_superblock(&MemoryDevice::from_image(image.clone())).unwrap().epoch;
    superblock.uuid = *b"another identity";
    let device = MemoryDevice::from_image(image);
    device.write_at(0, &[IoSlice::new(&superblock.encode())]).unwrap();
    let image = device.snapshot();
    assert_eq!(listing::decoded(&image), expected);
    let (_, volume) = sample::open(&image, true).unwrap();
    assert_eq!(listing::of(&volume).unwrap(), expected);
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(&MemoryDevice::from_image(image), &options, &()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// A small volume that was enlarged: the length of its intent log does not correspond to its size, and one
/// copy has the next size, from an interrupted growth.
#[test]
fn an_enlarged_volume_is_decoded_too() {
    for (name, options) in sample::kinds() {
        let small = sample::full(&options).unwrap();
        let old = read_superblock(&MemoryDevice::from_image(small.clone())).unwrap();
        let large =
            MemoryDevice::with_geometry(Geometry { size_bytes: 64 << 20, ..small.geometry() });
        let mut bytes = vec![0; small.geometry().size_bytes as usize];
        small.read(0, &mut bytes).unwrap();
        large.write_at(0, &[IoSlice::new(&bytes)]).unwrap();
        let (device, volume) = sample::open(&large.snapshot(), false).unwrap();
        let size_bytes = volume.admin().grow(Some(60 << 20)).unwrap();
        sample::make(&volume, InodeNo::ROOT, b"made after", NewKind::Regular).unwrap();
        volume.close().unwrap();
        let superblock = volume.writer().superblock.get();
        assert_eq!(superblock.intent_log_blocks, old.intent_log_blocks, "{name}");
        assert_eq!(superblock.blocks * u64::from(superblock.block_bytes), size_bytes);
        assert!(superblock.blocks > old.blocks);

        let blocks = superblock.blocks + u64::from(superblock.cg_blocks);
        let larger = Superblock { blocks, ..superblock.clone() };
        let copy = Layout::new(&superblock).superblock_copies()[0];
        let offset = Layout::new(&superblock).block_offset(copy);
        device.write_at(offset, &[IoSlice::new(&larger.encode())]).unwrap();
        let image = device.snapshot();
        let (_, volume) = sample::open(&image, true).unwrap();
        assert_eq!(listing::decoded(&image), listing::of(&volume).unwrap(), "{name}");
        let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
        let report = fsck::check(&MemoryDevice::from_image(image), &options, &()).unwrap();
        assert!(report.problems.is_empty(), "{name}: {:?}", report.problems);
    }
}

/// Only a volume in use may have blocks in its journal.
fn mark_in_use(device: &dyn BlockDevice) -> Superblock {
    let superblock = Superblock { state: State::InUse, ..read_superblock(device).unwrap() };
    device.write_at(0, &[IoSlice::new(&superblock.encode())]).unwrap();
    superblock
}

/// The block in the journal is used, not the old one at its place.
#[test]
fn a_volume_with_a_journal_is_decoded_too() {
    for (name, options) in sample::kinds() {
        let journal_bytes = 40 * u64::from(options.block_bytes);
        let image = sample::full(&MkfsOptions { journal_bytes, ..options }).unwrap();
        let (_, volume) = sample::open(&image, true).unwrap();
        let expected = listing::of(&volume).unwrap();
        assert_eq!(listing::decoded(&image), expected, "{name}");

        let device = MemoryDevice::from_image(image);
        let superblock = mark_in_use(&device);
        let layout = Layout::new(&superblock);
        // The blocks that every reader needs: the system area and the first bitmap.
        for block in [layout.system_area(), layout.cg_bitmap(CgIndex(0))] {
            let at = layout.block_offset(block);
            let mut bytes = vec![0; layout.block_bytes as usize];
            device.read_at(at, &mut bytes).unwrap();
            let (journaled, doubt) = JournaledDevice::open(&device, &superblock);
            assert_eq!(doubt, None);
            // The last image of a block is used.
            assert!(journaled.commit(&[(at, &vec![0xaa; bytes.len()])]).unwrap());
            assert!(journaled.commit(&[(at, &bytes)]).unwrap());
            drop(journaled);
            device.write_at(at, &[IoSlice::new(&vec![0xbb; bytes.len()])]).unwrap();
            assert_eq!(listing::decoded(&device.snapshot()), expected, "{name}, {block:?}");
        }
    }
}

/// A device on which each record of a journal takes so long that gaps are used.
struct Slow {
    inner: MemoryDevice,
    ticks: AtomicU64,
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.inner.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(5 * self.ticks.fetch_add(1, Ordering::Relaxed))
    }
}

#[test]
fn records_after_gaps_are_decoded_too() {
    let (name, options) = sample::kinds().remove(0);
    let journal_bytes = 40 * u64::from(options.block_bytes);
    let image = sample::full(&MkfsOptions { journal_bytes, ..options }).unwrap();
    let (_, volume) = sample::open(&image, true).unwrap();
    let expected = listing::of(&volume).unwrap();

    let device = Slow { inner: MemoryDevice::from_image(image), ticks: AtomicU64::new(0) };
    let superblock = mark_in_use(&device);
    let layout = Layout::new(&superblock);
    let at = layout.block_offset(layout.system_area());
    let mut bytes = vec![0; layout.block_bytes as usize];
    device.read_at(at, &mut bytes).unwrap();
    let (journaled, doubt) = JournaledDevice::open(&device, &superblock);
    assert_eq!(doubt, None);
    // The first two show that the device is slow; the last ones are written between other records.
    for _ in 0..14 {
        assert!(journaled.commit(&[(at, &vec![0xaa; bytes.len()])]).unwrap());
    }
    assert!(journaled.commit(&[(at, &bytes)]).unwrap());
    drop(journaled);
    device.write_at(at, &[IoSlice::new(&vec![0xbb; bytes.len()])]).unwrap();
    assert_eq!(listing::decoded(&device.inner.snapshot()), expected, "{name}");
}

/// A decoder that never reports a problem would be useless.
#[test]
fn the_decoder_detects_damage() {
    let image = sample::full(&sample::kinds().remove(0).1).unwrap();
    let damaged = |offset: u64, byte: u8| -> Image {
        let device = MemoryDevice::from_image(image.clone());
        device.write_at(offset, &[IoSlice::new(&[byte])]).unwrap();
        device.snapshot()
    };
    for (offset, byte, complaint) in [
        (300, 1, "superblock at byte 0: wrong checksum"),
        (4096 + 100, 0xaa, "inode 4 sector 0: wrong checksum"),
        (2 * 4096 + 12, 0xaa, "group 0: wrong checksum"),
        (3 * 4096 + 2, 0xaa, "group 0: wrong checksum of the bitmap"),
    ] {
        let (status, _, problems) = listing::decode(&damaged(offset, byte));
        assert_ne!(status, Some(0), "byte {offset}");
        assert!(problems.contains(complaint), "byte {offset}: {problems}");
    }
}
