//! Sample volumes for readers, with some of everything.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{Image, MemoryDevice};
use cffs::error::Result;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Caller, NewFile, NewKind, OpenOptions, RenameMode, SetAttr, SetTime, Volume,
    XattrMode,
};

/// The kinds of sample volumes: name and options.
pub fn kinds() -> Vec<(&'static str, MkfsOptions)> {
    let options = MkfsOptions {
        label: b"golden".to_vec(),
        uuid: Some(*b"C-FFS golden vol"),
        hash_seed: Some(*b"and its seed 123"),
        cg_blocks: 256,
        ..MkfsOptions::default()
    };
    vec![
        ("default", options.clone()),
        ("plain", MkfsOptions { embed: false, inline: false, ..options.clone() }),
        ("sectors-of-512", MkfsOptions { sector_bytes: Some(512), ..options }),
    ]
}

pub fn open(image: &Image, read_only: bool) -> Result<(Arc<MemoryDevice>, Volume)> {
    let device = Arc::new(MemoryDevice::from_image(image.clone()));
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    let volume = Volume::open(device.clone(), Arc::new(TestClock::default()), options)?;
    Ok((device, volume))
}

/// An image with an empty volume of 1024 blocks.
pub fn empty(options: &MkfsOptions) -> Result<Image> {
    empty_of(options, u64::from(options.block_bytes) << 10)
}

/// An image with an empty volume of `size_bytes`.
pub fn empty_of(options: &MkfsOptions, size_bytes: u64) -> Result<Image> {
    let device = MemoryDevice::new(size_bytes);
    mkfs::make(&device, options)?;
    Ok(device.snapshot())
}

/// An image with a closed volume that contains some of everything.
pub fn full(options: &MkfsOptions) -> Result<Image> {
    let (device, volume) = open(&empty(options)?, false)?;
    fill(&volume)?;
    volume.close()?;
    Ok(device.snapshot())
}

/// Creates a file and releases it.
pub fn make(volume: &Volume, dir: InodeNo, name: &[u8], kind: NewKind<'_>) -> Result<InodeNo> {
    let permissions = if kind == NewKind::Directory { 0o755 } else { 0o640 };
    let new = NewFile { kind, permissions, uid: 1000, gid: 100, times: None };
    let ino = volume.make(&Caller::ROOT, dir, name, &new)?.ino;
    volume.release(ino, 1);
    Ok(ino)
}

fn write(volume: &Volume, dir: InodeNo, name: &[u8], bytes: usize) -> Result<InodeNo> {
    let ino = make(volume, dir, name, NewKind::Regular)?;
    volume.write(&Caller::ROOT, ino, 0, &pattern(bytes))?;
    Ok(ino)
}

/// Contents that are short in a golden file but differ from place to place.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| if at % 4096 == 0 { (at / 4096) as u8 } else { b'.' }).collect()
}

/// Creates some of everything, with syncs in between, so that later changes modify data on the
/// device.
pub fn fill(volume: &Volume) -> Result<()> {
    let root = InodeNo::ROOT;
    for bytes in [0, 1, 300, 512, 513, 4096, 5000, 70_000] {
        write(volume, root, format!("file of {bytes}").as_bytes(), bytes)?;
    }
    make(volume, root, b"pipe", NewKind::Fifo)?;
    make(volume, root, b"socket", NewKind::Socket)?;
    make(volume, root, b"tty", NewKind::CharDevice(4 << 32 | 1))?;
    make(volume, root, b"disk", NewKind::BlockDevice(8 << 32 | 17))?;
    make(volume, root, b"link", NewKind::Symlink(b"file of 1"))?;
    make(volume, root, b"long link", NewKind::Symlink(&[b'x'; 3000]))?;
    make(volume, root, b"not \xff UTF-8\n", NewKind::Regular)?;
    make(volume, root, &[b'n'; 255], NewKind::Regular)?;

    let dir = make(volume, root, b"dir", NewKind::Directory)?;
    let below = make(volume, dir, b"below", NewKind::Directory)?;
    make(volume, below, b"empty", NewKind::Directory)?;
    let linked = write(volume, dir, b"first name", 100)?;
    for name in [&b"second name"[..], b"third name"] {
        volume.link(linked, below, name)?;
        volume.release(linked, 1);
    }
    sparse(volume, dir)?;
    attributes(volume, dir)?;
    volume.sync()?;

    // After the sync, so that the device has the old state of each.
    volume.unlink(&Caller::ROOT, dir, b"first name")?;
    volume.rename(&Caller::ROOT, root, b"file of 300", below, b"moved", RenameMode::Replace)?;
    volume.rename(
        &Caller::ROOT,
        root,
        b"file of 4096",
        root,
        b"file of 5000",
        RenameMode::Replace,
    )?;
    volume.rename(&Caller::ROOT, dir, b"below", root, b"above", RenameMode::Replace)?;
    volume.rename(&Caller::ROOT, root, b"pipe", root, b"socket", RenameMode::Exchange)?;
    let times = SetAttr {
        mtime: Some(SetTime::To(cffs::clock::Timestamp { seconds: -5, nanoseconds: 999_999_999 })),
        uid: Some(u32::MAX - 1),
        permissions: Some(0o6711),
        ..SetAttr::default()
    };
    volume.set_attr(&Caller::ROOT, linked, &times)?;
    large_dir(volume)
}

fn sparse(volume: &Volume, dir: InodeNo) -> Result<()> {
    let ino = make(volume, dir, b"sparse", NewKind::Regular)?;
    // More extents than fit into an inode, so that there is a tree.
    for piece in (0u64..100).rev() {
        volume.write(&Caller::ROOT, ino, piece * 32768, &[piece as u8; 10])?;
        if piece % 25 == 0 {
            volume.sync()?;
        }
    }
    volume.set_attr(
        &Caller::ROOT,
        ino,
        &SetAttr { size: Some(5_000_001), ..SetAttr::default() },
    )?;
    let reserved = make(volume, dir, b"reserved", NewKind::Regular)?;
    volume.allocate(&Caller::ROOT, reserved, 0, 20_000, AllocateMode::Reserve)?;
    volume.write(&Caller::ROOT, reserved, 8192, b"within")?;
    volume.allocate(&Caller::ROOT, reserved, 30_000, 10_000, AllocateMode::ReserveKeepSize)
}

fn attributes(volume: &Volume, dir: InodeNo) -> Result<()> {
    let ino = write(volume, dir, b"with attributes", 20)?;
    volume.set_xattr(&Caller::ROOT, ino, b"user.small", b"value", XattrMode::Any)?;
    volume.set_xattr(&Caller::ROOT, ino, b"user.empty", b"", XattrMode::Any)?;
    let ino = write(volume, dir, b"with many attributes", 20)?;
    volume.set_xattr(&Caller::ROOT, ino, b"user.large", &[b'v'; 5000], XattrMode::Any)?;
    volume.set_xattr(&Caller::ROOT, ino, b"user.small", b"value", XattrMode::Any)
}

/// A directory with an index, and with gaps of removed names.
fn large_dir(volume: &Volume) -> Result<()> {
    let dir = make(volume, InodeNo::ROOT, b"large", NewKind::Directory)?;
    let name = |number: u32| [format!("{number:03}").as_bytes(), &[b'-'; 60]].concat();
    for number in 0..150 {
        make(volume, dir, &name(number), NewKind::Symlink(&[b't'; 480]))?;
    }
    volume.sync()?;
    (0..150)
        .filter(|number| number % 10 != 0)
        .try_for_each(|n| volume.unlink(&Caller::ROOT, dir, &name(n)))
}
