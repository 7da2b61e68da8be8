//! Finds the devices and files below a block device, and the loop devices over a file.
//!
//! ```text
//!   /dev/loop0p1 ──part of──▶ /dev/loop0 ──loop──▶ disk.img          a file: its bytes are locked
//!   /dev/loop2 ──loop──▶ /dev/sdb2 ──part of──▶ /dev/sdb             a device: it is claimed
//! ```
//!
//! The kernel excludes claims of a partition and of its whole disk from each other, and those of a device and
//! of the device mapper's devices over it. It does not do this for a loop device and its file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};
use rustix::ioctl;

use super::lock::Span;
use super::loop_info::LoopInfo;

/// The unit of the kernel's offsets and sizes of partitions, in bytes.
const SYSFS_SECTOR_BYTES: u64 = 512;
/// The most levels of devices, such as loop devices over partitions of loop devices.
const DEPTH_MAX: usize = 16;

/// The file or device directly below a block device.
#[derive(Debug)]
pub(super) enum Beneath {
    /// Nothing relevant: it is a disk, or the kernel protects the devices below.
    Nothing,
    /// This range of the disk of which it is a partition. A claim of one of the two covers the other.
    Disk(u64, Span),
    /// This range of another block device.
    Device(u64, Span),
    /// This range of a file, at this path as far as the kernel reports one.
    File(Backing, PathBuf, Span),
}

/// A file, identified by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backing {
    /// The number of the device, or of the inode's file system.
    pub(super) device: u64,
    /// The inode; `None` for a block device.
    pub(super) inode: Option<u64>,
}

impl Backing {
    /// The file, or the block device to which it refers.
    pub(super) fn of(file: &File) -> io::Result<Backing> {
        let metadata = file.metadata()?;
        Ok(match metadata.rdev() {
            0 => Backing { device: metadata.dev(), inode: Some(metadata.ino()) },
            device => Backing { device, inode: None },
        })
    }
}

/// Finds the file or device below the range of an open block device.
pub(super) fn beneath(device: &File, number: u64, span: Span) -> io::Result<Beneath> {
    let sysfs = sysfs(number);
    if let Some(start) = number_in(&sysfs.join("start")) {
        let parent = sysfs.canonicalize()?.join("../dev");
        let Some(whole) = device_number(&fs::read_to_string(parent)?) else {
            return Ok(Beneath::Nothing);
        };
        let len = number_in(&sysfs.join("size")).map(|sectors| sectors * SYSFS_SECTOR_BYTES);
        let part = Span { start: start * SYSFS_SECTOR_BYTES, len };
        return Ok(Beneath::Disk(whole, part.part(span.start, span.len)));
    }
    let Ok(path) = fs::read(sysfs.join("loop/backing_file")) else { return Ok(Beneath::Nothing) };
    let status = LoopInfo::of(device)?;
    let span = status.span().part(span.start, span.len);
    let backing = status.backing();
    Ok(match backing.inode {
        None => Beneath::Device(backing.device, span),
        Some(_) => {
            use std::os::unix::ffi::OsStringExt;
            let path = path.strip_suffix(b"\n").unwrap_or(&path).to_vec();
            Beneath::File(backing, std::ffi::OsString::from_vec(path).into(), span)
        }
    })
}

/// The chain of block devices below one, with the range of each; ends at a disk or a file.
pub(super) struct Chain {
    pub(super) devices: Vec<(u64, Span)>,
    /// Those that are not covered by the claim of the device above them.
    pub(super) to_claim: Vec<u64>,
    pub(super) file: Option<(Backing, PathBuf, Span)>,
}

impl Chain {
    pub(super) fn below(device: &File, number: u64) -> io::Result<Chain> {
        let devices = vec![(number, Span::ALL)];
        let mut chain = Chain { devices, to_claim: Vec::new(), file: None };
        let mut next = beneath(device, number, Span::ALL)?;
        while chain.devices.len() < DEPTH_MAX {
            let (number, span) = match next {
                Beneath::Nothing => return Ok(chain),
                Beneath::File(backing, path, span) => {
                    chain.file = Some((backing, path, span));
                    return Ok(chain);
                }
                Beneath::Disk(number, span) => (number, span),
                Beneath::Device(number, span) => {
                    chain.to_claim.push(number);
                    (number, span)
                }
            };
            chain.devices.push((number, span));
            next = beneath(&open_number(number)?, number, span)?;
        }
        Err(io::Error::other("too many loop devices over one another"))
    }

    /// The file or disk at the bottom.
    pub(super) fn ground(&self) -> Option<(Backing, Span)> {
        let device = || {
            let (device, span) = *self.devices.last()?;
            Some((Backing { device, inode: None }, span))
        };
        self.file.as_ref().map(|(backing, _, span)| (*backing, *span)).or_else(device)
    }
}

/// The loop devices over any part of this range of a file or a device.
pub(super) fn loops_over(ground: Backing, span: Span) -> Vec<(PathBuf, u64)> {
    let Ok(found) = fs::read_dir("/sys/block") else { return Vec::new() };
    let stands_there = |name: &std::ffi::OsStr| {
        let sysfs = Path::new("/sys/block").join(name);
        if !sysfs.join("loop").exists() {
            return None;
        }
        let number = device_number(&fs::read_to_string(sysfs.join("dev")).ok()?)?;
        // Another user's devices cannot be opened; a process that may open them finds the same conflict.
        let device = open_number(number).ok()?;
        let status = LoopInfo::of(&device).ok()?;
        let is_there = status.backing() == ground && status.span().overlaps(span);
        is_there.then(|| (Path::new("/dev").join(name), number))
    };
    found.flatten().filter_map(|entry| stands_there(&entry.file_name())).collect()
}

/// Opens a block device by its number, for reading: the node of the kernel's name for it.
pub(super) fn open_number(number: u64) -> io::Result<File> {
    open_number_with(number, File::options().read(true))
}

/// The same, with other options.
pub(super) fn open_number_with(number: u64, options: &fs::OpenOptions) -> io::Result<File> {
    let uevent = fs::read_to_string(sysfs(number).join("uevent"))?;
    let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let name = name.ok_or(io::ErrorKind::NotFound)?;
    let file = options.open(Path::new("/dev").join(name))?;
    if file.metadata()?.rdev() == number { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Whether the kernel reports the block device, or the disk of a partition, as rotational.
pub(super) fn is_rotational(device: &File) -> bool {
    let Ok(metadata) = device.metadata() else { return false };
    let whole = sysfs(metadata.rdev());
    let of_disk = [whole.join("queue"), whole.join("../queue")];
    of_disk.iter().find_map(|queue| number_in(&queue.join("rotational"))) == Some(1)
}

fn sysfs(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)))
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// From `7:0`.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

impl LoopInfo {
    fn of(device: &File) -> io::Result<LoopInfo> {
        const LOOP_GET_STATUS64: ioctl::Opcode = 0x4c05;
        // SAFETY: LOOP_GET_STATUS64 writes one struct loop_info64 through its argument, of which
        // LoopInfo has the layout; every value of its fields is valid.
        let status =
            unsafe { ioctl::ioctl(device, ioctl::Getter::<LOOP_GET_STATUS64, LoopInfo>::new())? };
        Ok(status)
    }

    fn span(&self) -> Span {
        let len = Some(self.size_limit).filter(|limit| *limit > 0);
        Span { start: self.offset, len }
    }

    fn backing(&self) -> Backing {
        match self.rdevice {
            0 => Backing { device: self.device, inode: Some(self.inode) },
            device => Backing { device, inode: None },
        }
    }
}
