//! `/dev/fuse`: the file that connects a server to the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::io::{Errno, IoSlice, writev};
use rustix::ioctl::{Setter, ioctl, opcode};

/// An open `/dev/fuse`, bound to a connection once the file system is mounted.
///
/// The connection lives while any descriptor of it is open. When the last is closed, the kernel
/// fails pending and later requests with `ENOTCONN`, so that no program hangs because of a dead
/// server.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

/// In the kernel's device numbers, the minor number has this many bits.
const MINOR_BITS: u32 = 20;

/// The number of the connection of a file system with this device number, as the kernel's file system for
/// controlling connections (`fusectl`) has it.
pub fn connection_number((major, minor): (u32, u32)) -> u32 {
    major << MINOR_BITS | minor
}

/// The device number of the file system that a descriptor of `/dev/fuse` serves, from its file in
/// `/proc/PID/fdinfo`.
pub fn device_number(fdinfo: &str) -> Option<(u32, u32)> {
    let connection = fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    let number: u32 = connection.trim().parse().ok()?;
    Some((number >> MINOR_BITS, number & ((1 << MINOR_BITS) - 1)))
}

/// The result of waiting for a message.
pub(crate) enum Received {
    /// A message of this length.
    Message(usize),
    /// Nothing: a signal arrived, or the device is [nonblocking](Device::set_nonblocking).
    Nothing,
    /// The file system was unmounted or the connection aborted.
    Ended,
}

impl Device {
    /// Opens the device, without a connection.
    pub(crate) fn open() -> io::Result<Device> {
        Ok(Device(open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Wraps a descriptor that another program has opened and mounted.
    pub(crate) fn from_fd(fd: OwnedFd) -> Device {
        Device(fd)
    }

    /// Its descriptor.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Another descriptor of the same connection, with its own list of requests in progress, so
    /// that threads do not contend. A request must be answered on the descriptor from which it was
    /// read.
    pub(crate) fn try_clone(&self) -> io::Result<Device> {
        const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
        let clone = Device::open()?;
        let number = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: `FUSE_DEV_IOC_CLONE` only reads a `u32` through its argument, despite the
        // direction in its number.
        unsafe { ioctl(&clone.0, Setter::<CLONE, u32>::new(number)) }?;
        Ok(clone)
    }

    /// The device number of the file system that it serves.
    pub(crate) fn number(&self) -> Option<(u32, u32)> {
        let shown = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        device_number(&std::fs::read_to_string(shown).ok()?)
    }

    /// Makes [`receive`](Device::receive) return instead of waiting.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        Ok(fcntl_setfl(&self.0, OFlags::RDWR | OFlags::NONBLOCK)?)
    }

    /// Receives the next message, waiting for it until a signal arrives.
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

    /// Sends a notification, which has more parts. The kernel requires a single call.
    pub(crate) fn send_parts(&self, parts: &[&[u8]; 4]) -> Result<(), Errno> {
        writev(&self.0, &parts.map(IoSlice::new)).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests;
