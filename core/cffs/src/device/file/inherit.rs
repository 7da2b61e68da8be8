//! Hands an open device to the program that replaces this one in the same process (`exec`).
//!
//! The locks and claims belong to open descriptors, which can survive `exec`. The device therefore stays
//! locked all the time, and the new program needs no permission to open it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

use parking_lot::RwLock;
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};

use super::hold::Hold;
use super::{Access, Descriptors, FileDevice, Geometry};

/// A device as one program hands it to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inheritance {
    /// The descriptor through which it is read and written.
    pub file: RawFd,
    /// Those that keep others away.
    pub hold: Vec<RawFd>,
    /// Whether everything below is claimed or locked.
    pub is_whole: bool,
}

impl FileDevice {
    /// Makes all descriptors of the device survive an `exec`, or not.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)`; `ESTALE` once the device was [released](FileDevice::release).
    pub fn outlive_exec(&self, outlive: bool) -> io::Result<Inheritance> {
        let open = self.open_descriptors()?;
        let inheritance = Inheritance {
            file: open.file.as_raw_fd(),
            hold: self.hold.descriptors(),
            is_whole: self.hold.is_whole,
        };
        let flags = if outlive { FdFlags::empty() } else { FdFlags::CLOEXEC };
        for number in inheritance.hold.iter().chain([&inheritance.file]) {
            // SAFETY: the descriptors are those of `self`, and `open` keeps them open.
            let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
            fcntl_setfd(descriptor, flags)?;
        }
        Ok(inheritance)
    }

    /// The device that the previous program left open, with its current geometry.
    ///
    /// # Errors
    ///
    /// `EBADF` if a descriptor is not open, and those of looking at the device.
    pub fn inherit(inheritance: &Inheritance, access: Access) -> io::Result<FileDevice> {
        let take = |number: &RawFd| inherited_descriptor(*number).map(File::from);
        let file = take(&inheritance.file)?;
        let hold = inheritance.hold.iter().map(take).collect::<Result<_, _>>()?;
        let is_block_device = super::open::is_block_device(&file)?;
        Ok(FileDevice {
            geometry: Geometry::of(&file, is_block_device)?,
            descriptors: RwLock::new(Some(Descriptors::of(file))),
            access,
            is_block_device,
            grown_bytes: AtomicU64::new(0),
            direct: None,
            hold: Hold::inherited(hold, inheritance.is_whole),
        })
    }
}

/// Takes over the descriptor that the previous program left open under this number. To be called once for it,
/// before anything else is opened.
///
/// # Errors
///
/// `EBADF` if there is none.
pub fn inherited_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the number is not -1, and the kernel is only asked whether it is open.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // SAFETY: it is open, and nothing else in this program uses it, since it was open before all else.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&descriptor, flags | FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

/// Prevents programs that this one starts from inheriting its descriptors, except standard input, output and
/// error. Otherwise they would inherit the descriptors with which this program was started, and the locks on
/// their files.
///
/// # Errors
///
/// Those of reading `/proc/self/fd`.
pub fn keep_descriptors_from_children() -> io::Result<()> {
    const STANDARD_ERROR: RawFd = 2;
    let entries = std::fs::read_dir("/proc/self/fd")?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|number: &RawFd| *number > STANDARD_ERROR) {
        // SAFETY: the number is not -1, and the kernel is only asked to set a flag. If the descriptor was
        // closed meanwhile, that fails.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
    Ok(())
}
