//! Excludes other programs from a device, whatever path they use.
//!
//! | path | kept apart by |
//! | --- | --- |
//! | the image by another name, link, mount or mount namespace | a lock on the range of the inode |
//! | a loop device over the image, or over a device | the same lock, on what the loop device stands on |
//! | the block device by another node, its partitions, what the device mapper made of it, a mount | the kernel's claim (`O_EXCL`), along the whole chain |
//! | a loop device over the same range that a mount or another program has claimed | the claim, which is tried |
//!
//! Nothing here waits: if a lock or claim fails, the process releases the others and may try again. Claims
//! are taken before locks. Both are released after the device's last descriptor is closed, when the kernel
//! has written its cached data.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Access;
use super::beneath::{self, Backing, Chain, loops_over};
use super::lock::{self, Process, Span, Use};
use super::reopen;

/// Locks and claims that exclude other programs as long as this value exists.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// The device's own claim, if it is a block device that is written.
    claim: Mutex<Option<File>>,
    /// The files and devices below, claimed or locked.
    beneath: Mutex<Vec<File>>,
    /// Whether everything below is claimed or locked.
    pub(super) is_whole: bool,
}

/// The process that keeps a device from being opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// A program that writes it, with the process if the system shows it.
    Writer(Option<Process>),
    /// A program that reads it, during which it must not change.
    Reader(Option<Process>),
    /// A mount by the kernel, or a program that has claimed the block device; another device over the
    /// same bytes if it is not this one.
    Claim(Option<PathBuf>),
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            User::Writer(None) => f.write_str("in use by another cffs command or mount"),
            User::Writer(Some(process)) => write!(f, "in use by {process}"),
            User::Reader(None) => f.write_str("being read by another program"),
            User::Reader(Some(process)) => write!(f, "being read by {process}"),
            User::Claim(None) => f.write_str("in use by a mount or another program"),
            User::Claim(Some(path)) => {
                write!(f, "in use through {}, by a mount or another program", path.display())
            }
        }
    }
}

/// Why a device is not held.
pub(super) enum Refusal {
    InUse(User),
    Failed(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Failed(error)
    }
}

impl Hold {
    /// Claims a block device, so that no mount and no other claim can have it.
    pub(super) fn claim(path: &Path) -> Result<Hold, Refusal> {
        let claim =
            claim(|options| options.open(path))?.ok_or(Refusal::InUse(User::Claim(None)))?;
        Ok(Hold { claim: Mutex::new(Some(claim)), ..Hold::default() })
    }

    /// Locks the file; for a block device, also the devices and the file below it.
    pub(super) fn lock(mut self, file: &File, access: Access) -> Result<Hold, Refusal> {
        take(file, Span::ALL, access)?;
        self.is_whole = true;
        let metadata = file.metadata()?;
        let mut own = Vec::new();
        let mut ground = Some((Backing::of(file)?, Span::ALL));
        if metadata.file_type().is_block_device() {
            let chain = Chain::below(file, metadata.rdev())?;
            self.hold_chain(&chain, access)?;
            ground = chain.ground();
            own = chain.devices;
        }
        if let (Access::ReadWrite, Some((backing, span))) = (access, ground) {
            let is_own = |number: u64| own.iter().any(|(device, _)| *device == number);
            let others = loops_over(backing, span).into_iter();
            for (path, _) in others.filter(|(_, number)| !is_own(*number)) {
                // The claim is released at once: it only tests whether another program has the device now.
                if claim(|options| options.open(&path)).is_ok_and(|claimed| claimed.is_none()) {
                    return Err(Refusal::InUse(User::Claim(Some(path))));
                }
            }
        }
        Ok(self)
    }

    fn hold_chain(&mut self, chain: &Chain, access: Access) -> Result<(), Refusal> {
        for number in chain.to_claim.iter().filter(|_| access == Access::ReadWrite) {
            match claim(|options| beneath::open_number_with(*number, options)) {
                Ok(Some(claimed)) => self.beneath.get_mut().push(claimed),
                Ok(None) => return Err(Refusal::InUse(User::Claim(None))),
                Err(_) => self.is_whole = false,
            }
        }
        let Some((backing, path, span)) = &chain.file else { return Ok(()) };
        // The path may be of another mount namespace, or of a file that was removed.
        let open = File::options().read(true).write(access == Access::ReadWrite).open(path);
        match open {
            Ok(file) if Backing::of(&file)? == *backing => {
                take(&file, *span, access)?;
                self.beneath.get_mut().push(file);
            }
            _ => self.is_whole = false,
        }
        Ok(())
    }

    /// Releases the claim on the device itself: the kernel claims it for a mount.
    pub(super) fn lend_claim(&self) {
        *self.claim.lock() = None;
    }

    /// Claims the device itself again.
    pub(super) fn reclaim(&self, device: &File) -> Result<(), Refusal> {
        let again = claim(|_| reopen::again(device, Access::ReadOnly, OFlags::EXCL))?;
        *self.claim.lock() = Some(again.ok_or(Refusal::InUse(User::Claim(None)))?);
        Ok(())
    }

    /// All descriptors with locks and claims, except the file's own.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        let beneath = self.beneath.lock();
        let claim = self.claim.lock();
        claim.iter().chain(beneath.iter()).map(AsRawFd::as_raw_fd).collect()
    }

    /// The hold of a program that this one has replaced.
    pub(super) fn inherited(files: Vec<File>, is_whole: bool) -> Hold {
        Hold { beneath: Mutex::new(files), is_whole, ..Hold::default() }
    }

    /// Releases everything except the lock on the file, which ends with the descriptor.
    pub(super) fn release(&self) {
        self.lend_claim();
        self.beneath.lock().clear();
    }
}

/// Locks a range, or returns the process that has locked it.
fn take(file: &File, span: Span, access: Access) -> Result<(), Refusal> {
    match lock::lock(file, span, access)? {
        None => Ok(()),
        Some(Use::Writes) => {
            Err(Refusal::InUse(User::Writer(lock::holder(file, span, Use::Writes))))
        }
        Some(Use::Reads) => Err(Refusal::InUse(User::Reader(lock::holder(file, span, Use::Reads)))),
    }
}

/// Claims a block device; `None` if another program has claimed it.
fn claim(
    open: impl FnOnce(&std::fs::OpenOptions) -> io::Result<File>,
) -> Result<Option<File>, io::Error> {
    // Without O_CREAT, O_EXCL on a block device claims it as a mount by the kernel does.
    let flags = OFlags::EXCL.bits() as i32;
    match open(File::options().read(true).custom_flags(flags)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(None),
        Err(error) => Err(error),
    }
}
