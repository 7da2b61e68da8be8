//! The program's side: asks for a ticket, and calls the server.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::{ATTRIBUTE, Invitation};
use crate::wire::{self, ANSWER_BYTES_MAX, Answer, Call, End, Failure, Removed, Ticket, VERSION};

/// How often a call looks whether it should end.
const INTERVAL: Duration = Duration::from_millis(50);

/// A name to remove.
#[derive(Clone, Copy, Debug)]
pub struct RemoveRequest<'a> {
    /// The directory, on a mounted volume.
    pub directory: &'a Path,
    pub name: &'a [u8],
    /// Whether a directory is removed with all that it has.
    pub recursive: bool,
}

/// Why a call was not made, or not to its end.
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
    /// The sockets of the server are those of another network namespace.
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

/// Removes a name at the server of a mounted volume. Calls `progress` often, with the files removed so far,
/// until it breaks, and `failed` for each file that stays. Returns whether the server visited all files.
///
/// # Errors
///
/// The server is not asked, or ends before it has visited all.
pub fn remove(
    request: &RemoveRequest<'_>,
    progress: &mut dyn FnMut(Removed) -> ControlFlow<()>,
    failed: &mut dyn FnMut(Failure),
) -> Result<(Removed, bool), AttachError> {
    let (ticket, mut connection) = attach(request.directory)?;
    let (name, recursive) = (request.name.to_vec(), request.recursive);
    connection.call(&Call::Remove { ticket, name, recursive })?;
    let (mut removed, mut is_cancelled) = (Removed::default(), false);
    loop {
        let answer = connection.answer()?;
        match answer {
            Some(Answer::Progress(so_far)) => removed = so_far,
            Some(Answer::Failed(failure)) => failed(failure),
            Some(Answer::Done { removed, end }) => {
                return match end {
                    End::Complete => Ok((removed, true)),
                    End::Cancelled => Ok((removed, false)),
                    End::Closing => {
                        let _ = progress(removed);
                        Err(AttachError::Closing)
                    }
                };
            }
            Some(Answer::Refused(why)) => return Err(AttachError::Refused(why)),
            Some(Answer::Welcome { .. }) => return Err(bad().into()),
            None => {}
        }
        if progress(removed).is_break() && !is_cancelled {
            is_cancelled = true;
            // Ends the call: the server answers how far it came.
            connection.stream.shutdown(Shutdown::Write)?;
        }
    }
}

/// Gets a ticket for a directory, and connects to its server.
fn attach(directory: &Path) -> Result<(Ticket, Connection), AttachError> {
    let number = u64::from_le_bytes(*super::tickets::random()?.first_chunk().unwrap_or(&[0; 8]));
    setxattr(directory, ATTRIBUTE, number.to_string().as_bytes(), XattrFlags::empty())?;
    let mut value = vec![0; 4096];
    let len = getxattr(directory, format!("{ATTRIBUTE}.{number}"), &mut value)?;
    let (socket, ticket) = match serde_json::from_slice(&value[..len]).map_err(io::Error::from)? {
        Invitation::Ticket { socket, ticket } => (socket, ticket),
        Invitation::Refused(why) => return Err(AttachError::Refused(why)),
    };
    let ticket = from_hex(&ticket).ok_or_else(bad)?;
    let address = SocketAddr::from_abstract_name(socket)?;
    let stream = UnixStream::connect_addr(&address).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => AttachError::Unreachable,
        _ => error.into(),
    })?;
    stream.set_read_timeout(Some(INTERVAL))?;
    let mut connection = Connection { stream, received: Vec::new() };
    // If the server has closed the connection, its answer says why.
    let _ = connection.call(&Call::Hello { oldest: VERSION, newest: VERSION });
    loop {
        match connection.answer()? {
            Some(Answer::Welcome { version: VERSION }) => return Ok((ticket, connection)),
            Some(Answer::Refused(why)) => return Err(AttachError::Refused(why)),
            Some(_) => return Err(bad().into()),
            None => {}
        }
    }
}

fn bad() -> io::Error {
    wire::BadMessage.into()
}

fn from_hex(text: &str) -> Option<Ticket> {
    let mut ticket = Ticket::default();
    if text.len() != 2 * ticket.len() {
        return None;
    }
    for (at, byte) in ticket.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(ticket)
}

struct Connection {
    stream: UnixStream,
    /// The bytes that do not form a whole answer yet.
    received: Vec<u8>,
}

impl Connection {
    fn call(&mut self, call: &Call) -> io::Result<()> {
        self.stream.write_all(&call.encode())
    }

    /// The next answer; `None` if none arrived for a while.
    fn answer(&mut self) -> Result<Option<Answer>, AttachError> {
        loop {
            if let Some((head, rest)) = self.received.split_first_chunk() {
                let (len, kind) = wire::header(*head, ANSWER_BYTES_MAX).map_err(io::Error::from)?;
                if let Some(body) = rest.get(..len) {
                    let answer = Answer::decode(kind, body).map_err(io::Error::from)?;
                    self.received.drain(..wire::HEADER_BYTES + len);
                    return Ok(Some(answer));
                }
            }
            let mut more = [0; 16 << 10];
            match self.stream.read(&mut more) {
                Ok(0) => return Err(AttachError::Closing),
                Ok(len) => self.received.extend_from_slice(&more[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The server has closed the connection with calls unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(AttachError::Closing);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
