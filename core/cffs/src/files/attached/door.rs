//! Asks the server of a mounted volume for a ticket, through the kernel, and connects to it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags, XattrFlags, getxattr, openat, setxattr};
use rustix::io::Errno;

use crate::device::Access;
use crate::error::Error;
use crate::wire::{ATTRIBUTE, BadMessage, Invitation, TO_READ, Ticket};

/// Why a program was not attached, or its call was not completed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The directory is on another file system, or its server is of an older version.
    #[error(
        "not in a mounted C-FFS volume, or its server is of a version that attaches no programs"
    )]
    NotMounted,
    /// The mount is read-only.
    #[error("the volume is mounted read-only")]
    ReadOnly,
    /// The server attaches no programs like this one.
    #[error("the volume's server does not attach this program: {0}")]
    Refused(String),
    /// The server is ending sessions, or has made too many tickets.
    #[error("the volume's server is ending, or too many programs are attaching; try again")]
    Busy,
    /// The socket of the server is in another network namespace.
    #[error("the volume's server cannot be reached from this network namespace")]
    Unreachable,
    /// The server has ended the session.
    #[error("the volume was unmounted, or its server restarted, before all was done")]
    Closing,
    /// The directory or the connection failed.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

impl From<Errno> for AttachError {
    fn from(errno: Errno) -> AttachError {
        match errno {
            Errno::NODATA | Errno::OPNOTSUPP => AttachError::NotMounted,
            Errno::ROFS => AttachError::ReadOnly,
            Errno::BUSY => AttachError::Busy,
            errno => AttachError::Failed(errno.into()),
        }
    }
}

impl From<AttachError> for Error {
    fn from(error: AttachError) -> Error {
        match error {
            AttachError::ReadOnly => Error::ReadOnly,
            AttachError::Failed(error) => Error::Io(error),
            AttachError::Busy => Error::InUse(error.to_string()),
            AttachError::Closing => Error::Detached(error.to_string()),
            AttachError::NotMounted | AttachError::Unreachable | AttachError::Refused(_) => {
                Error::Unsupported(error.to_string())
            }
        }
    }
}

/// A directory of a mounted volume, at which this program requests a ticket.
pub(super) struct Door {
    /// Opened with O_PATH: the program need not have permission to list it.
    directory: OwnedFd,
    /// A random number, by which the server knows the program.
    number: u64,
    asked: Instant,
    access: Access,
}

impl Door {
    /// Requests a ticket at a directory. For reading only, it requests nothing yet, so that the mount may be
    /// read-only.
    ///
    /// # Errors
    ///
    /// [`AttachError::NotMounted`]; [`AttachError::ReadOnly`]; [`AttachError::Busy`];
    /// [`AttachError::Failed`].
    pub fn open(directory: &Path, access: Access) -> Result<Door, AttachError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, directory, flags, Mode::empty()).map_err(io::Error::from)?;
        let mut number = [0; 8];
        rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
        let number = u64::from_le_bytes(number);
        let mut door = Door { directory, number, asked: Instant::now(), access };
        if access == Access::ReadWrite {
            door.ask()?;
        }
        Ok(door)
    }

    /// The directory, as if this program had asked.
    #[cfg(test)]
    pub fn asked_at(directory: OwnedFd, asked: Instant) -> Door {
        Door { directory, number: 1, asked, access: Access::ReadWrite }
    }

    /// Requests a ticket, or renews the lease: the kernel passes this on as long as the mount is writable.
    ///
    /// # Errors
    ///
    /// Those of [`Door::open`].
    pub fn ask(&mut self) -> Result<(), AttachError> {
        let number = self.number.to_string();
        setxattr(self.path(), ATTRIBUTE, number.as_bytes(), XattrFlags::empty())?;
        self.asked = Instant::now();
        Ok(())
    }

    /// The directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The time of the last request.
    pub fn asked(&self) -> Instant {
        self.asked
    }

    /// Connects to the server, to use the ticket.
    ///
    /// # Errors
    ///
    /// [`AttachError::Refused`]; [`AttachError::Unreachable`]; those of [`Door::open`].
    pub fn connect(&self) -> Result<(Ticket, UnixStream), AttachError> {
        let mut value = vec![0; 4096];
        let end = if self.access == Access::ReadOnly { TO_READ } else { "" };
        let name = format!("{ATTRIBUTE}.{}{end}", self.number);
        let len = getxattr(self.path(), name, &mut value)?;
        let invitation = Invitation::decode(&value[..len]);
        let (socket, ticket) = match invitation.map_err(|bad: BadMessage| io::Error::from(bad))? {
            Invitation::Ticket { socket, ticket } => (socket, ticket),
            Invitation::Refused(why) => return Err(AttachError::Refused(why)),
        };
        let address = SocketAddr::from_abstract_name(socket)?;
        let stream = UnixStream::connect_addr(&address).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => AttachError::Unreachable,
            _ => error.into(),
        })?;
        Ok((ticket, stream))
    }

    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.directory.as_raw_fd())
    }
}
