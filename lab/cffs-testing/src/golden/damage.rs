//! Damage to a volume that checksums do not detect, and operations that must handle it.
//!
//! Only bytes of metadata are changed, and their checksum is recomputed, as if a program with a bug
//! had written them. Used by the tests and by the fuzz target `volume`.

use std::ops::ControlFlow;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{Image, MemoryDevice};
use cffs::error::Result;
use cffs::format::{Checksum, Layout, Superblock, cylinder_group};
use cffs::units::{CgIndex, InodeNo};
use cffs::vfs::{Amount, Caller, Marks, NewFile, NewKind, OpenOptions, Quotas, RenameMode, Volume};

/// A region of metadata with one checksum.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The first byte on the device.
    pub start: u64,
    /// The bytes that the checksum covers.
    pub len: usize,
    /// The bytes up to the last one that is not zero.
    pub used: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Superblock,
    /// Its magic is four bytes, followed by the checksum.
    Block,
    /// The free bitmap of a group, whose checksum is in the group's header.
    Bitmap(CgIndex),
}

/// A change: the region, the byte within its used part, and the new value.
pub type Change = (u16, u16, u8);

fn read(image: &Image, start: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // Bytes outside the device read as zeros, and so are no metadata.
    let _ = image.read(start, &mut bytes);
    bytes
}

/// All metadata of a valid volume, found by their magics.
pub fn regions(image: &Image) -> Vec<Region> {
    let Ok(superblock) = Superblock::decode(&read(image, 0, 512), 0) else { return Vec::new() };
    let layout = Layout::new(&superblock);
    let block_bytes = layout.block_bytes as usize;
    let mut regions = vec![Region { start: 0, len: 512, used: 416, kind: Kind::Superblock }];
    let mut add = |start: u64, len: usize, kind: Kind| {
        let bytes = read(image, start, len);
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        regions.push(Region { start, len, used, kind });
    };
    for cg in (0..superblock.cgs_made).map(CgIndex) {
        let len = layout.bitmap_blocks() as usize * block_bytes;
        add(layout.block_offset(layout.cg_bitmap(cg)), len, Kind::Bitmap(cg));
    }
    let step = layout.fragment_bytes.min(layout.sector_bytes);
    for start in (0..layout.blocks * u64::from(layout.block_bytes)).step_by(step as usize) {
        let head = read(image, start, 32);
        match &head[..4] {
            b"CFse" => add(start, layout.sector_bytes as usize, Kind::Block),
            b"CFcg" | b"CFxt" | b"CFix" | b"CFlo" => add(start, block_bytes, Kind::Block),
            b"CFxa" => {
                let list = u32::from_le_bytes([head[20], head[21], head[22], head[23]]);
                let len = (list as usize + 32).next_multiple_of(layout.fragment_bytes as usize);
                add(start, len, Kind::Block);
            }
            _ => {}
        }
    }
    regions
}

/// The image with changes and recomputed checksums.
pub fn damaged(image: &Image, regions: &[Region], changes: &[Change]) -> Image {
    let mut image = image.clone();
    let Ok(superblock) = Superblock::decode(&read(&image, 0, 512), 0) else { return image };
    let layout = Layout::new(&superblock);
    let checksum = superblock.checksum();
    for (region, at, byte) in changes {
        let region = regions[usize::from(*region) % regions.len()];
        let mut bytes = read(&image, region.start, region.len);
        bytes[usize::from(*at) % region.used.max(1)] = *byte;
        match region.kind {
            Kind::Superblock => {
                let uuid: [u8; 16] = std::array::from_fn(|index| bytes[16 + index]);
                Checksum::new(&uuid).seal(&mut bytes, 8);
            }
            Kind::Block => checksum.seal(&mut bytes, 4),
            Kind::Bitmap(cg) => {
                let start = layout.block_offset(layout.cg_header(cg));
                let mut header = read(&image, start, layout.block_bytes as usize);
                let sum = cylinder_group::bitmap_checksum(&bytes);
                header[20..24].copy_from_slice(&sum.to_le_bytes());
                checksum.seal(&mut header, 4);
                let _ = image.write(start, &header);
            }
        }
        let _ = image.write(region.start, &bytes);
    }
    image
}

fn open(device: &Arc<MemoryDevice>, read_only: bool) -> Result<Volume> {
    let options = OpenOptions { read_only, cache_bytes: 8 << 20, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options)
}

/// Reads everything that can be reached, and counts failures.
pub fn read_all(image: &Image) -> Result<u64> {
    let volume = open(&Arc::new(MemoryDevice::from_image(image.clone())), true)?;
    let mut failures = 0;
    let mut failed = |result: Result<usize>| failures += u64::from(result.is_err());
    let mut seen = vec![InodeNo::ROOT];
    let mut next = 0;
    while let Some(ino) = seen.get(next).copied() {
        next += 1;
        failed(volume.attr(ino).map(|_| 0));
        failed(volume.parent(ino).map(|_| 0));
        let mut buf = [0; 70_000];
        let size = volume.attr(ino).map_or(0, |attr| attr.size);
        failed(volume.read(ino, 0, &mut buf));
        failed(volume.read(ino, size.saturating_sub(70_000), &mut buf));
        failed(volume.read_link(ino).map(|target| target.len()));
        failed(volume.admin().explain(ino).map(|_| 0));
        for name in volume.xattr_names(ino).unwrap_or_default() {
            failed(volume.xattr(ino, &name).map(|value| value.len()));
        }
        let mut names = Vec::new();
        let listed = volume.read_dir(ino, 0, true, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        });
        failed(listed.map(|()| 0));
        for name in names {
            match volume.lookup(ino, &name) {
                Ok(attr) if !seen.contains(&attr.ino) => seen.push(attr.ino),
                Ok(_) => {}
                Err(error) => failed(Err(error)),
            }
        }
    }
    let _ = volume.close();
    Ok(failures)
}

/// Makes some changes to the volume, each of which may fail.
pub fn change(image: &Image) -> Result<()> {
    let device = Arc::new(MemoryDevice::from_image(image.clone()));
    let volume = open(&device, false)?;
    let root = InodeNo::ROOT;
    let _ = Marks::of(&volume).set("before");
    let _ = Quotas::of(&volume).set(root, Amount::UNLIMITED);
    let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    if let Ok(file) = volume.make(&Caller::ROOT, root, b"new", &new) {
        let _ = volume.write(&Caller::ROOT, file.ino, 0, &[1; 9000]);
        let _ = volume.link(file.ino, root, b"newer");
        volume.release(file.ino, 2);
    }
    let _ =
        volume.make(&Caller::ROOT, root, b"new dir", &NewFile { kind: NewKind::Directory, ..new });
    let mut names = Vec::new();
    let _ = volume.read_dir(root, 0, false, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino));
        true
    });
    for (position, (name, ino)) in names.iter().enumerate() {
        let _ = match position % 4 {
            0 => volume.unlink(&Caller::ROOT, root, name),
            1 => volume
                .rename(&Caller::ROOT, root, name, root, b"renamed", RenameMode::Replace)
                .map(drop),
            2 => volume.remove_dir(&Caller::ROOT, root, name),
            _ => volume.write(&Caller::ROOT, *ino, 100, &[2; 5000]).map(|_| ()),
        };
    }
    let _ = Marks::of(&volume).changes(root, "before", &mut |_| ControlFlow::Continue(()));
    let _ = Quotas::of(&volume).list();
    let _ = volume.sync();
    volume.close()
}
