//! Opening: which kind of file it is, its geometry, and the lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::ioctl;

use super::claim::Claim;
use super::direct::DirectAlignment;
use super::{FileDevice, Geometry};

const IMAGE_SECTOR_BYTES: u32 = 4096;

/// How long a block device is waited for at least. After someone wrote to a block device, udev
/// looks at it for a moment and holds its lock meanwhile.
const UDEV_PATIENCE: Duration = Duration::from_secs(2);

const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// What a device is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading. Others may read at the same time.
    ReadOnly,
    /// Reading and writing, alone.
    #[default]
    ReadWrite,
}

/// How to open a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// What for.
    pub access: Access,
    /// Whether to bypass the host's page cache (`O_DIRECT`).
    pub direct: bool,
    /// How long to wait for a lock that another program holds; zero fails at once.
    pub wait: Duration,
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another program has the volume open.
    #[error("{}: in use by another cffs command or mount", path.display())]
    InUse {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The path leads to something other than a file or a block device.
    #[error("{}: neither an image file nor a block device", path.display())]
    NotADevice {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was to be opened.
        path: PathBuf,
        /// Why it was refused.
        source: io::Error,
    },
}

impl OpenError {
    /// Why the system refused to open `path`.
    pub(super) fn of(path: &Path, source: io::Error) -> OpenError {
        match Errno::from_io_error(&source) {
            Some(Errno::BUSY) => OpenError::InUse { path: path.to_owned() },
            _ => OpenError::Io { path: path.to_owned(), source },
        }
    }
}

/// The error as an [`io::Error`] of the fitting kind, with the path still in its text.
impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        let kind = match &error {
            OpenError::InUse { .. } => io::ErrorKind::ResourceBusy,
            OpenError::NotADevice { .. } => io::ErrorKind::InvalidInput,
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
        let failed = |source| OpenError::of(path, source);
        let file_type = std::fs::metadata(path).map_err(failed)?.file_type();
        let is_block_device = file_type.is_block_device();
        if !is_block_device && !file_type.is_file() {
            return Err(OpenError::NotADevice { path: path.to_owned() });
        }
        let opened = self.open_locked(path, is_block_device, false)?;
        self.finish(opened, is_block_device).map_err(failed)
    }

    /// Makes a sparse image of `size_bytes` zeros and opens it. See [`FileDevice::create`].
    pub fn create(&self, path: &Path, size_bytes: u64) -> Result<FileDevice, OpenError> {
        let failed = |source| OpenError::Io { path: path.to_owned(), source };
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(OpenError::NotADevice { path: path.to_owned() });
        }
        let options = OpenOptions { access: Access::ReadWrite, ..*self };
        let opened = options.open_locked(path, false, true)?;
        // Cutting the file to nothing first makes every byte of it read as zero.
        let file = &opened.file;
        file.set_len(0).and_then(|()| file.set_len(size_bytes)).map_err(failed)?;
        options.finish(opened, false).map_err(failed)
    }

    fn finish(&self, opened: Opened, is_block_device: bool) -> io::Result<FileDevice> {
        let file = opened.file;
        let geometry = if is_block_device {
            Geometry {
                size_bytes: block_device_size(&file)?,
                sector_bytes: rustix::fs::ioctl_blkpbszget(&file)?,
            }
        } else {
            Geometry { size_bytes: file.metadata()?.len(), sector_bytes: IMAGE_SECTOR_BYTES }
        };
        let direct = match self.direct {
            true => Some(DirectAlignment::of(&file, is_block_device)?),
            false => None,
        };
        Ok(FileDevice {
            file,
            geometry,
            grown_bytes: AtomicU64::new(0),
            access: self.access,
            is_block_device,
            claim: Mutex::new(opened.claim),
            released: AtomicBool::new(false),
            direct,
            long: OnceLock::new(),
        })
    }

    /// Tries to open and lock until it works or the time is over.
    fn open_locked(&self, path: &Path, is_block_device: bool, create: bool) -> OpenResult {
        let patience = if is_block_device { self.wait.max(UDEV_PATIENCE) } else { self.wait };
        let begun = Instant::now();
        loop {
            match self.try_open_locked(path, is_block_device, create) {
                Err(OpenError::InUse { .. }) if begun.elapsed() < patience => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                outcome => return outcome,
            }
        }
    }

    fn try_open_locked(&self, path: &Path, is_block_device: bool, create: bool) -> OpenResult {
        let writing = self.access == Access::ReadWrite;
        let mut flags = OFlags::empty();
        flags.set(OFlags::DIRECT, self.direct);

        let file = File::options()
            .read(true)
            .write(writing)
            .create(create)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(|error| OpenError::of(path, error))?;
        let lock = match self.access {
            Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
            Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        };
        match rustix::fs::flock(&file, lock) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse { path: path.to_owned() }),
            Err(errno) => return Err(OpenError::of(path, errno.into())),
        }
        let claim = match is_block_device && writing {
            true => Some(Claim::on(&file).map_err(|error| OpenError::of(path, error))?),
            false => None,
        };
        Ok(Opened { file, claim })
    }
}

/// An image or device that is locked, and claimed if that is needed.
struct Opened {
    file: File,
    claim: Option<Claim>,
}

type OpenResult = Result<Opened, OpenError>;

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
