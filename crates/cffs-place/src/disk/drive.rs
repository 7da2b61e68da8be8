//! The disk that is measured, and its clock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

/// A disk, one request at a time.
pub trait Drive {
    /// How long it is, in bytes.
    fn size_bytes(&self) -> u64;

    /// The least that it reads, in bytes; offsets and lengths are multiples.
    fn unit(&self) -> usize;

    /// Reads past all caches of the system.
    fn read(&mut self, offset: u64, bytes: usize) -> io::Result<Vec<u8>>;

    /// Writes past all caches of the system.
    fn write(&mut self, offset: u64, contents: &[u8]) -> io::Result<()>;

    /// Seconds since some moment.
    fn now(&self) -> f64;

    /// Lets time pass.
    fn idle(&mut self, seconds: f64);

    /// The offset, or a little before it, where a read may begin that ends on the disk.
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
    buffer: Vec<u8>,
    since: Instant,
}

/// The longest request, and what addresses in memory have to be multiples of.
const BUFFER: usize = 64 << 10;
const ALIGNMENT: usize = 4096;

impl FileDrive {
    /// Opens a disk; to be written, it must not be in use.
    ///
    /// # Errors
    ///
    /// Those of the system; [`io::ErrorKind::InvalidInput`] for what is neither a block device nor a file.
    pub fn open(path: &Path, to_write: bool) -> io::Result<FileDrive> {
        let exclusive = if to_write { OFlags::EXCL } else { OFlags::empty() };
        let flags = (OFlags::DIRECT | exclusive).bits().cast_signed();
        let file = OpenOptions::new().read(true).write(to_write).custom_flags(flags).open(path)?;
        let kind = file.metadata()?.file_type();
        let (size_bytes, unit) = if kind.is_block_device() {
            (rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?, logical_block_bytes(&file)?)
        } else if kind.is_file() {
            (file.metadata()?.len(), ALIGNMENT)
        } else {
            let why = "it is neither a block device nor a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let buffer = vec![0; BUFFER + ALIGNMENT];
        Ok(FileDrive { file, size_bytes, unit, buffer, since: Instant::now() })
    }

    /// As much of the buffer as is wanted, from where direct requests may begin.
    fn aligned_buffer(&mut self, bytes: usize) -> &mut [u8] {
        let skip = self.buffer.as_ptr().align_offset(ALIGNMENT);
        &mut self.buffer[skip..skip + bytes]
    }
}

fn logical_block_bytes(file: &File) -> io::Result<usize> {
    let bytes = rustix::fs::ioctl_blksszget(file)?;
    Ok(bytes as usize)
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

    fn idle(&mut self, seconds: f64) {
        thread::sleep(Duration::from_secs_f64(seconds));
    }
}
