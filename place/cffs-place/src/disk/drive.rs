//! The measured disk, and its clock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::Writable;
use crate::extents;

/// A disk, one request at a time.
pub trait Drive {
    fn size_bytes(&self) -> u64;

    /// The smallest read, in bytes; offsets and lengths are multiples of it.
    fn unit(&self) -> usize;

    /// Reads, bypassing all caches of the system.
    fn read(&mut self, offset: u64, bytes: usize) -> io::Result<Vec<u8>>;

    /// Writes, bypassing all caches of the system.
    fn write(&mut self, offset: u64, contents: &[u8]) -> io::Result<()>;

    /// Seconds since an arbitrary moment.
    fn now(&self) -> f64;

    /// Lets time pass.
    fn idle(&mut self, seconds: f64);

    /// Whether the kernel flushes this disk because it assumes a write cache; `None` for a drive
    /// without a kernel driver.
    fn is_flushed(&self) -> Option<bool> {
        None
    }

    /// The last aligned offset up to this one from which a read stays within the disk.
    fn aligned(&self, offset: u64) -> u64 {
        let unit = self.unit() as u64;
        offset.min(self.size_bytes() - (1 << 20).min(self.size_bytes())) / unit * unit
    }
}

/// A block device, or a file that stands for one.
pub struct FileDrive {
    file: File,
    size_bytes: u64,
    unit: usize,
    is_flushed: Option<bool>,
    buffer: Vec<u8>,
    since: Instant,
}

/// The longest request; also the alignment of its address in memory.
const BUFFER: usize = 64 << 10;
const ALIGNMENT: usize = 4096;
/// The size of a file that stands for a part of a disk.
const PART_BYTES: u64 = 256 << 20;

impl FileDrive {
    /// Opens a disk; a disk that is writable as a whole must not be in use.
    ///
    /// # Errors
    ///
    /// Errors of the system; [`io::ErrorKind::InvalidInput`] for a path that is neither a block
    /// device nor a file.
    pub fn open(path: &Path, writable: &Writable) -> io::Result<FileDrive> {
        let to_write = !matches!(writable, Writable::Nothing);
        let exclusive =
            if matches!(writable, Writable::Disk) { OFlags::EXCL } else { OFlags::empty() };
        let flags = (OFlags::DIRECT | exclusive).bits().cast_signed();
        let file = OpenOptions::new().read(true).write(to_write).custom_flags(flags).open(path)?;
        let kind = file.metadata()?.file_type();
        let mut is_flushed = None;
        let (size_bytes, unit) = if kind.is_block_device() {
            is_flushed = flushed_by_kernel(file.metadata()?.rdev());
            (rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?, logical_block_bytes(&file)?)
        } else if kind.is_file() {
            (file.metadata()?.len(), ALIGNMENT)
        } else {
            let why = "it is neither a block device nor a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let buffer = vec![0; BUFFER + ALIGNMENT];
        Ok(FileDrive { file, size_bytes, unit, is_flushed, buffer, since: Instant::now() })
    }

    /// A file without a name in a directory, which stands for the part of the disk where the file system puts
    /// it. This needs no privileges.
    ///
    /// # Errors
    ///
    /// Errors of the system, and too little free space: it must be four times the size of the file.
    pub fn in_directory(directory: &Path) -> io::Result<FileDrive> {
        let status = rustix::fs::statvfs(directory)?;
        let needed = 4 * PART_BYTES;
        if status.f_bavail * status.f_frsize < needed {
            let why = format!("less than {} MiB are free", needed >> 20);
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        let flags = OFlags::TMPFILE.bits().cast_signed();
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).mode(0o600).custom_flags(flags).open(directory)?;
        // Not zeros: the file system may compress them.
        let mut random: u64 = 1;
        let noise: Vec<u8> = (0..1 << 20)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 56) as u8
            })
            .collect();
        for at in (0..PART_BYTES).step_by(noise.len()) {
            file.write_all_at(&noise, at)?;
        }
        file.sync_all()?;
        FileDrive::open(
            Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())),
            &Writable::Nothing,
        )
    }

    /// The place on the device of a file that stands for a part of it: the first byte, the end, and the
    /// number of pieces.
    pub fn part(&self) -> Option<(u64, u64, usize)> {
        let extents = extents::of(&self.file, false).ok()?;
        let first = extents.iter().map(|extent| extent.physical).min()?;
        let end = extents.iter().map(extents::Extent::physical_end).max()?;
        let breaks = extents.windows(2).filter(|two| two[0].physical_end() != two[1].physical);
        Some((first, end, 1 + breaks.count()))
    }

    /// The first `bytes` of the buffer, aligned for direct I/O.
    fn aligned_buffer(&mut self, bytes: usize) -> &mut [u8] {
        let skip = self.buffer.as_ptr().align_offset(ALIGNMENT);
        &mut self.buffer[skip..skip + bytes]
    }
}

fn logical_block_bytes(file: &File) -> io::Result<usize> {
    let bytes = rustix::fs::ioctl_blksszget(file)?;
    Ok(bytes as usize)
}

/// Whether the kernel flushes a write cache of this device.
fn flushed_by_kernel(device: u64) -> Option<bool> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let at = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition uses the queue of its disk.
    let read = |queue: &str| fs::read_to_string(at.join(queue).join("write_cache")).ok();
    let said = read("queue").or_else(|| read("../queue"))?;
    Some(said.trim() == "write back")
}

impl Drive for FileDrive {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn unit(&self) -> usize {
        self.unit
    }

    fn read(&mut self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let file = self.file.try_clone()?;
        let buffer = self.aligned_buffer(bytes);
        file.read_exact_at(buffer, offset)?;
        Ok(buffer.to_vec())
    }

    fn write(&mut self, offset: u64, contents: &[u8]) -> io::Result<()> {
        let file = self.file.try_clone()?;
        let buffer = self.aligned_buffer(contents.len());
        buffer.copy_from_slice(contents);
        file.write_all_at(buffer, offset)
    }

    fn now(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }

    fn is_flushed(&self) -> Option<bool> {
        self.is_flushed
    }

    fn idle(&mut self, seconds: f64) {
        thread::sleep(Duration::from_secs_f64(seconds));
    }
}
