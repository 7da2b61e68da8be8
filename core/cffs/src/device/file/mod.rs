//! A device that is an image file or a raw block device.
//!
//! One program at a time may write a volume, and meanwhile no other may read it: an open device holds locks
//! and claims on everything below it (module `hold`) until it is [released](FileDevice::release) or dropped.
//! The sector of an image file is 4 KiB, the page in which the host writes it; that of a block device is its
//! physical block.
//!
//! Writes go through the host's page cache unless [`OpenOptions::direct`] is set. A barrier is a sync here,
//! because the host does not order writes.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::ioctl;

use super::{BlockDevice, Control, Excluded, Geometry, Hints, total_len};

mod beneath;
mod direct;
mod hold;
mod inherit;
mod lock;
mod long;
mod loop_info;
mod open;
mod reopen;
#[cfg(test)]
mod tests;

use direct::DirectAlignment;
use hold::Hold;
pub use hold::User;
pub use inherit::{Inheritance, inherited_descriptor, keep_descriptors_from_children};
pub use lock::Process;
use lock::Span;
use long::LongRequests;
pub use loop_info::LoopInfo;
pub use open::{Access, OpenError, OpenOptions};

/// Writes of at least this length are sent to the device at once.
const LONG_WRITE_BYTES: u64 = 256 << 10;
/// The longest read of an image file. The host splits it to suit its disk.
const IMAGE_READ_BYTES: u64 = 1 << 20;
/// The most buffers that the kernel takes in one request (`IOV_MAX`).
const VECTOR_MAX: usize = 1024;

/// An image file or a raw block device, with the locks that exclude other programs.
#[derive(Debug)]
pub struct FileDevice {
    /// `None` once the device is released. Each request holds the lock, so that none is in progress when the
    /// descriptors are closed.
    descriptors: RwLock<Option<Descriptors>>,
    /// As it was when the device was opened.
    geometry: Geometry,
    /// The size to which it has grown since it was opened; 0 if it has not.
    grown_bytes: AtomicU64,
    access: Access,
    is_block_device: bool,
    /// Set if the host's page cache is bypassed.
    direct: Option<DirectAlignment>,
    /// The last field, so it is dropped last.
    hold: Hold,
}

/// An open file descriptor for reads and writes.
#[derive(Debug)]
struct Descriptors {
    file: File,
    /// The same block device for long requests that bypass the host's page cache, once a cache above controls
    /// read-ahead.
    long: OnceLock<Option<LongRequests>>,
}

impl FileDevice {
    /// Opens an existing image or block device; fails at once if another program has it.
    pub fn open(path: &Path, access: Access) -> Result<FileDevice, OpenError> {
        OpenOptions { access, ..OpenOptions::default() }.open(path)
    }

    /// Opens an existing image or block device; waits up to `timeout` for a process that has it.
    pub fn open_waiting(
        path: &Path,
        access: Access,
        timeout: Duration,
    ) -> Result<FileDevice, OpenError> {
        OpenOptions { access, wait: timeout, ..OpenOptions::default() }.open(path)
    }

    /// Makes a sparse image of `size_bytes` zeros and opens it for writing.
    ///
    /// An existing file loses its contents, unless another program has it open.
    pub fn create(path: &Path, size_bytes: u64) -> Result<FileDevice, OpenError> {
        OpenOptions::default().create(path, size_bytes)
    }

    /// The same for a path at which nothing exists yet; otherwise the error is [`OpenError::Io`], of kind
    /// `AlreadyExists`. Leaves nothing there if it fails, unless another program has opened the new file.
    pub fn create_new(path: &Path, size_bytes: u64) -> Result<FileDevice, OpenError> {
        OpenOptions::default().create_new(path, size_bytes)
    }

    /// Whether this is a raw block device, not an image file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Whether this is a block device that the kernel reports as rotational, so that each flush may wait for
    /// a rotation. False for an image file, since the device below it is unknown.
    pub fn is_rotational(&self) -> bool {
        self.is_block_device
            && self.open_descriptors().is_ok_and(|open| beneath::is_rotational(&open.file))
    }

    /// Whether the device was opened for writing.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Lends the claim on a block device to the kernel, which needs it to mount the volume. The locks
    /// stay, and keep other programs of C-FFS away. Does nothing on an image.
    pub fn lend_claim(&self) {
        self.hold.lend_claim();
    }

    /// Takes the claim back after the kernel did not mount the volume; fails if something else has
    /// claimed the device meanwhile.
    pub fn reclaim(&self) -> Result<(), OpenError> {
        match self.is_block_device && self.access == Access::ReadWrite {
            true => {
                let given_back = |source| OpenError::Io { path: "the device".into(), source };
                let open = self.open_descriptors().map_err(given_back)?;
                self.hold.reclaim(&open.file).map_err(|refusal| refusal.at(&path_of(&open.file)))
            }
            false => Ok(()),
        }
    }

    /// Closes the device, to be called when the volume on it is closed: other programs may open it from now
    /// on, and the disk can be removed or the file system of the image unmounted. Waits for the requests in
    /// progress; later ones fail with `ESTALE`.
    pub fn release(&self) -> io::Result<()> {
        let Some(open) = self.descriptors.write().take() else { return Ok(()) };
        // A child that has not executed its program yet has a copy of the descriptor, and so the lock.
        let unlocked = lock::unlock(&open.file, Span::ALL);
        drop(open);
        self.hold.release();
        unlocked
    }

    /// Another descriptor of the same image or device, without the lock.
    pub fn reopen(&self) -> io::Result<File> {
        reopen::again(&self.open_descriptors()?.file, self.access, OFlags::empty())
    }

    /// The device, which stays open for as long as the guard lives.
    fn open_descriptors(&self) -> io::Result<MappedRwLockReadGuard<'_, Descriptors>> {
        RwLockReadGuard::try_map(self.descriptors.read(), Option::as_ref)
            .map_err(|_| Errno::STALE.into())
    }

    fn open_for_writing(&self) -> io::Result<MappedRwLockReadGuard<'_, Descriptors>> {
        match self.access {
            Access::ReadWrite => self.open_descriptors(),
            Access::ReadOnly => Err(Errno::ROFS.into()),
        }
    }
}

impl Descriptors {
    fn of(file: File) -> Descriptors {
        Descriptors { file, long: OnceLock::new() }
    }

    fn long(&self) -> Option<&LongRequests> {
        self.long.get()?.as_ref()
    }

    /// Starts sending a long write to the device while the next one is copied; the next barrier waits for it
    /// at the latest. Its pages need not stay in the host's page cache, since the cache above has the data.
    fn begin_writing(&self, offset: u64, len: u64) {
        if let Some(long) = NonZeroU64::new(len).filter(|_| len >= LONG_WRITE_BYTES) {
            // A hint: a file system that ignores it writes later.
            let _ = rustix::fs::fadvise(&self.file, offset, Some(long), Advice::DontNeed);
        }
    }
}

fn path_of(file: &File) -> PathBuf {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    path.unwrap_or_else(|_| PathBuf::from("the device"))
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.geometry.size_bytes.max(self.grown_bytes.load(Ordering::Acquire));
        Geometry { size_bytes, ..self.geometry }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check(offset, buf.len() as u64)?;
        let open = self.open_descriptors()?;
        match &self.direct {
            None if open.long().is_some_and(|long| long.read(offset, buf)) => Ok(()),
            None => open.file.read_exact_at(buf, offset),
            Some(alignment) => alignment.read(&open.file, self.geometry().size_bytes, offset, buf),
        }
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let open = self.open_for_writing()?;
        self.geometry().check(offset, total_len(bufs))?;
        match &self.direct {
            None => match open.long().and_then(|long| long.write(offset, bufs)) {
                Some(written) => written,
                None => {
                    write_vectored(&open.file, offset, bufs)?;
                    open.begin_writing(offset, total_len(bufs));
                    Ok(())
                }
            },
            Some(alignment) => {
                alignment.write(&open.file, self.geometry().size_bytes, offset, bufs)
            }
        }
    }

    fn barrier(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        match self.access {
            Access::ReadWrite => self.open_descriptors()?.file.sync_data(),
            Access::ReadOnly => Ok(()),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let open = self.open_for_writing()?;
        self.geometry().check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let outcome = if self.is_block_device {
            discard_on_block_device(&open.file, self.geometry.sector_bytes, offset, len)
        } else {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&open.file, flags, offset, len)
        };
        match outcome {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn hints(&self) -> Hints {
        let open = self.open_descriptors();
        let request_bytes_max = match self.is_block_device {
            true => open.ok().and_then(|open| open::longest_request(&open.file).ok()),
            false => Some(IMAGE_READ_BYTES),
        };
        let is_exclusive = self.access == Access::ReadWrite && self.hold.is_whole;
        let excludes = if is_exclusive { Excluded::OfHost } else { Excluded::None };
        Hints { request_bytes_max, excludes, ..Hints::default() }
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Control for FileDevice {
    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        let open = self.open_for_writing()?;
        let there = if self.is_block_device {
            open::block_device_size(&open.file)?
        } else {
            let there = open.file.metadata()?.len();
            if there < size_bytes {
                open.file.set_len(size_bytes)?;
            }
            there.max(size_bytes)
        };
        self.grown_bytes.fetch_max(there, Ordering::AcqRel);
        Ok(())
    }

    /// The kernel would read ahead on its own wherever it sees a pattern.
    fn expect_chosen_reads(&self) {
        let Ok(open) = self.open_descriptors() else { return };
        // A file system that ignores the hint continues to read ahead.
        let _ = rustix::fs::fadvise(&open.file, 0, None, Advice::Random);
        if self.is_block_device && self.direct.is_none() {
            // If it cannot be opened again, all requests use the page cache.
            open.long.get_or_init(|| LongRequests::of(&open.file, self.access).ok());
        }
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        let Ok(open) = self.open_descriptors() else { return };
        // Dirty pages are not dropped, and need not be: this host wrote them.
        let _ = rustix::fs::fadvise(&open.file, offset, NonZeroU64::new(len), Advice::DontNeed);
    }
}

/// Writes all buffers, in as few requests as the kernel allows; continues after a short one.
fn write_vectored(file: &File, mut offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
    for batch in bufs.chunks(VECTOR_MAX) {
        let len = total_len(batch);
        let written = loop {
            match rustix::io::pwritev(file, batch, offset) {
                Ok(written) => break written as u64,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        if written < len {
            write_rest(file, offset, batch, written)?;
        }
        offset += len;
    }
    Ok(())
}

/// Writes the rest after a short request: everything in `bufs` after the first `skip` bytes.
fn write_rest(file: &File, mut offset: u64, bufs: &[IoSlice<'_>], mut skip: u64) -> io::Result<()> {
    for buf in bufs {
        let skipped = skip.min(buf.len() as u64);
        skip -= skipped;
        file.write_all_at(&buf[skipped as usize..], offset + skipped)?;
        offset += buf.len() as u64;
    }
    Ok(())
}

/// Discards the whole sectors within the range: the kernel refuses parts of a sector.
fn discard_on_block_device(
    file: &File,
    sector_bytes: u32,
    offset: u64,
    len: u64,
) -> Result<(), Errno> {
    const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);
    let sector_bytes = u64::from(sector_bytes);
    let start = offset.next_multiple_of(sector_bytes);
    let end = (offset + len) / sector_bytes * sector_bytes;
    if start >= end {
        return Ok(());
    }
    // SAFETY: BLKDISCARD reads two u64, the start and the length in bytes, through its argument
    // and writes nothing to the caller's memory.
    unsafe {
        let request = ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([start, end - start]);
        ioctl::ioctl(file, request)
    }
}
