//! `/dev/fuse`: the file through which a connection to the kernel is made.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::io::{Errno, IoSlice, writev};
use rustix::ioctl::{Setter, ioctl, opcode};

/// An open `/dev/fuse`, bound to a connection once that is mounted.
///
/// The connection lives while any descriptor of it is open. When the last is closed the kernel
/// fails what is pending and all that follows with `ENOTCONN`, so that no program hangs on a server
/// that has died.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

/// The result of waiting for a message.
pub(crate) enum Received {
    /// A message of this length.
    Message(usize),
    /// Nothing: a signal came, or the device was [set not to wait](Device::set_nonblocking).
    Nothing,
    /// The file system was unmounted or the connection aborted.
    Ended,
}

impl Device {
    /// Opens the device, as yet without a connection.
    pub(crate) fn open() -> io::Result<Device> {
        Ok(Device(open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Takes a descriptor that another program has opened and mounted.
    pub(crate) fn from_fd(fd: OwnedFd) -> Device {
        Device(fd)
    }

    /// Its descriptor.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Another descriptor of the same connection, with a list of its own of requests in work, so
    /// that threads do not contend. A request must be answered where it was read.
    pub(crate) fn try_clone(&self) -> io::Result<Device> {
        const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
        let clone = Device::open()?;
        let number = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: `FUSE_DEV_IOC_CLONE` reads a `u32` through its argument, despite the direction
        // in its number, and nothing else.
        unsafe { ioctl(&clone.0, Setter::<CLONE, u32>::new(number)) }?;
        Ok(clone)
    }

    /// Makes [`receive`](Device::receive) return instead of waiting.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        Ok(fcntl_setfl(&self.0, OFlags::RDWR | OFlags::NONBLOCK)?)
    }

    /// Takes the next message, and waits for it if need be, until a signal comes.
    pub(crate) fn receive(&self, buf: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&self.0, &mut *buf) {
                Ok(len) => return Ok(Received::Message(len)),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Ended),
                // `ENOENT`: the request was withdrawn while it was copied.
                Err(Errno::NOENT) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Answers a request.
    pub(crate) fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), Errno> {
        writev(&self.0, &[IoSlice::new(header), IoSlice::new(payload)]).map(drop)
    }

    /// Sends a notification, which has more parts. The kernel wants all of it in one call.
    pub(crate) fn send_parts(&self, parts: &[&[u8]; 4]) -> Result<(), Errno> {
        writev(&self.0, &parts.map(IoSlice::new)).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
