//! Opening a device: the kind of file, its geometry, and the exclusion of other programs.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;
use rustix::ioctl;

use super::direct::DirectAlignment;
use super::hold::{Hold, Refusal, User};
use super::{Descriptors, FileDevice, Geometry};

const IMAGE_SECTOR_BYTES: u32 = 4096;

/// The mode of an image that is made. A user who may read an image can read all files in it.
const IMAGE_MODE: u32 = 0o600;

/// The longest wait for a program that reads the device.
const READER_PATIENCE: Duration = Duration::from_secs(2);
/// The shortest wait for a claimed block device: a program that opens another device over the same bytes
/// claims it for a moment.
const CLAIM_PATIENCE: Duration = Duration::from_millis(200);

const RETRY_INTERVAL: Duration = Duration::from_millis(10);
const RETRY_INTERVAL_MAX: Duration = Duration::from_millis(160);

/// The purpose for which a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading. Others may read at the same time.
    ReadOnly,
    /// Reading and writing, exclusively.
    #[default]
    ReadWrite,
}

/// How to open a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// The purpose.
    pub access: Access,
    /// Whether to bypass the host's page cache (`O_DIRECT`).
    pub direct: bool,
    /// How long to wait for a program that writes the device; zero fails at once. The wait for one that reads
    /// it is at most two seconds.
    pub wait: Duration,
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another program has the volume open.
    #[error("{}: {by}", path.display())]
    InUse {
        /// The path to open.
        path: PathBuf,
        /// The process that has it.
        by: User,
    },
    /// The device, or the file system on which the image is, cannot be written.
    #[error("{}: write-protected", path.display())]
    WriteProtected {
        /// The path to open.
        path: PathBuf,
    },
    /// The path is neither a file nor a block device.
    #[error("{}: neither an image file nor a block device", path.display())]
    NotADevice {
        /// The path to open.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path to open.
        path: PathBuf,
        /// Why it was refused.
        source: io::Error,
    },
}

impl Refusal {
    /// The error of opening this path.
    pub(super) fn at(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Refusal::InUse(by) => OpenError::InUse { path, by },
            Refusal::Failed(source) => OpenError::Io { path, source },
        }
    }
}

/// The error as an [`io::Error`] of the fitting kind, with the path still in its text.
impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        let kind = match &error {
            OpenError::InUse { .. } => io::ErrorKind::ResourceBusy,
            OpenError::NotADevice { .. } => io::ErrorKind::InvalidInput,
            OpenError::WriteProtected { .. } => io::ErrorKind::ReadOnlyFilesystem,
            OpenError::Io { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}

impl From<OpenError> for crate::error::Error {
    fn from(error: OpenError) -> crate::error::Error {
        crate::error::Error::Io(error.into())
    }
}

impl OpenOptions {
    /// Opens an existing image or block device.
    pub fn open(&self, path: &Path) -> Result<FileDevice, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let file_type = std::fs::metadata(path).map_err(failed)?.file_type();
        let is_block_device = file_type.is_block_device();
        if !is_block_device && !file_type.is_file() {
            return Err(OpenError::NotADevice { path: path.to_owned() });
        }
        let (file, hold) = self.open_held(path, is_block_device, false)?;
        if is_block_device {
            // Another host, or a program that wrote the file of a loop device, may have changed it since the
            // kernel last read it. Only a hint: cached pages may stay.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
        self.finish(file, hold, is_block_device).map_err(failed)
    }

    /// Makes a sparse image of `size_bytes` zeros and opens it. See [`FileDevice::create`].
    pub fn create(&self, path: &Path, size_bytes: u64) -> Result<FileDevice, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(OpenError::NotADevice { path: path.to_owned() });
        }
        let options = OpenOptions { access: Access::ReadWrite, ..*self };
        let (file, hold) = options.open_held(path, false, true)?;
        // An impossible size fails before the file loses its contents. Its length is 0 for a moment, so that
        // every byte reads as zero.
        [size_bytes, 0, size_bytes]
            .into_iter()
            .try_for_each(|len| file.set_len(len))
            .map_err(failed)?;
        options.finish(file, hold, false).map_err(failed)
    }

    /// The same for a path at which nothing exists yet. Leaves nothing there if it fails. See
    /// [`FileDevice::create_new`].
    pub fn create_new(&self, path: &Path, size_bytes: u64) -> Result<FileDevice, OpenError> {
        let mut options = File::options();
        let made = options.write(true).create_new(true).mode(IMAGE_MODE).open(path);
        drop(made.map_err(|error| refused_to_write(error, path))?);
        let created = self.create(path, size_bytes);
        // If another program has opened the file meanwhile, it belongs to that.
        if matches!(&created, Err(error) if !matches!(error, OpenError::InUse { .. })) {
            let _ = std::fs::remove_file(path);
        }
        created
    }

    fn finish(&self, file: File, hold: Hold, is_block_device: bool) -> io::Result<FileDevice> {
        let geometry = Geometry::of(&file, is_block_device)?;
        let direct = match self.direct {
            true => Some(DirectAlignment::of(&file, is_block_device)?),
            false => None,
        };
        Ok(FileDevice {
            descriptors: RwLock::new(Some(Descriptors::of(file))),
            geometry,
            grown_bytes: AtomicU64::new(0),
            access: self.access,
            is_block_device,
            direct,
            hold,
        })
    }

    /// Tries to open and lock the device until it succeeds or the time is over. Waits for a writer as long as
    /// requested, but for a reader only briefly, since any user who may read the device can hold a lock for
    /// reading.
    fn open_held(&self, path: &Path, is_block_device: bool, create: bool) -> OpenResult {
        let begun = Instant::now();
        let mut interval = RETRY_INTERVAL;
        loop {
            let refused = match self.try_open_held(path, is_block_device, create) {
                Err(OpenError::InUse { path, by }) => OpenError::InUse { path, by },
                outcome => return outcome,
            };
            let patience = match &refused {
                OpenError::InUse { by: User::Reader(_), .. } => self.wait.min(READER_PATIENCE),
                OpenError::InUse { by: User::Claim(_), .. } => self.wait.max(CLAIM_PATIENCE),
                _ => self.wait,
            };
            if begun.elapsed() >= patience {
                return Err(refused);
            }
            std::thread::sleep(interval);
            interval = (interval * 2).min(RETRY_INTERVAL_MAX);
        }
    }

    fn try_open_held(&self, path: &Path, is_block_device: bool, create: bool) -> OpenResult {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        let refused = |refusal: Refusal| refusal.at(path);
        let writing = self.access == Access::ReadWrite;
        // The device is claimed before it is opened for writing: udev reads a block device
        // again each time a program that may have written it closes it.
        let hold = match is_block_device && writing {
            true => Hold::claim(path).map_err(refused)?,
            false => Hold::default(),
        };
        let mut flags = OFlags::empty();
        flags.set(OFlags::DIRECT, self.direct);
        let file = File::options()
            .read(true)
            .write(writing)
            .create(create)
            .mode(IMAGE_MODE)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(|error| if writing { refused_to_write(error, path) } else { failed(error) })?;
        // The kernel opens a read-only device for writing, and refuses only the writes.
        if is_block_device && writing && is_read_only(&file).map_err(failed)? {
            return Err(OpenError::WriteProtected { path: path.to_owned() });
        }
        let hold = hold.lock(&file, self.access).map_err(refused)?;
        Ok((file, hold))
    }
}

/// The error of a file that cannot be opened for writing.
fn refused_to_write(error: io::Error, path: &Path) -> OpenError {
    let path = path.to_owned();
    match Errno::from_io_error(&error) {
        // The latter is the error for an immutable image.
        Some(Errno::ROFS | Errno::PERM) => OpenError::WriteProtected { path },
        _ => OpenError::Io { path, source: error },
    }
}

impl Geometry {
    /// The present geometry of an open image or block device.
    pub(super) fn of(file: &File, is_block_device: bool) -> io::Result<Geometry> {
        Ok(match is_block_device {
            true => Geometry {
                size_bytes: block_device_size(file)?,
                sector_bytes: rustix::fs::ioctl_blkpbszget(file)?,
            },
            false => {
                Geometry { size_bytes: file.metadata()?.len(), sector_bytes: IMAGE_SECTOR_BYTES }
            }
        })
    }
}

pub(super) fn is_block_device(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.file_type().is_block_device())
}

type OpenResult = Result<(File, Hold), OpenError>;

fn is_read_only(device: &File) -> io::Result<bool> {
    const BLKROGET: ioctl::Opcode = ioctl::opcode::none(0x12, 94);
    // SAFETY: BLKROGET writes one int through its argument.
    let flag = unsafe { ioctl::ioctl(device, ioctl::Getter::<BLKROGET, i32>::new())? };
    Ok(flag != 0)
}

pub(super) fn block_device_size(file: &File) -> io::Result<u64> {
    const BLKGETSIZE64: ioctl::Opcode = ioctl::opcode::read::<usize>(0x12, 114);
    // SAFETY: BLKGETSIZE64 writes one u64, the size in bytes, through its argument. Its opcode
    // encodes a size_t, which is what the kernel's headers do, too.
    let size_bytes = unsafe { ioctl::ioctl(file, ioctl::Getter::<BLKGETSIZE64, u64>::new())? };
    Ok(size_bytes)
}

/// The longest request in bytes that the kernel sends to a block device.
pub(super) fn longest_request(file: &File) -> io::Result<u64> {
    const BLKSECTGET: ioctl::Opcode = ioctl::opcode::none(0x12, 103);
    const SECTOR_BYTES: u64 = 512;
    // SAFETY: BLKSECTGET writes one unsigned short, a number of sectors, through its argument.
    let sectors = unsafe { ioctl::ioctl(file, ioctl::Getter::<BLKSECTGET, u16>::new())? };
    Ok(u64::from(sectors) * SECTOR_BYTES)
}
