//! Removes files and trees at the server of a mounted volume.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::answers::Answers;
use super::door::{AttachError, Door};
use crate::device::Access;
use crate::wire::{self, Answer, Call, End, Failure, Removed, Ticket, VERSION};

/// How often a call looks whether it should end.
const INTERVAL: Duration = Duration::from_millis(50);

/// A name to remove.
#[derive(Clone, Copy, Debug)]
pub struct RemoveRequest<'a> {
    /// The directory, on a mounted volume.
    pub directory: &'a Path,
    /// The name in it.
    pub name: &'a [u8],
    /// Whether a directory is removed with all that it has.
    pub recursive: bool,
}

/// Removes a name at the server of a mounted volume. Calls `progress` often, with the files removed so far,
/// until it breaks, and `failed` for each file that stays. Returns whether the server visited all files.
///
/// # Errors
///
/// The server was not reached, or ended before it had visited all files.
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
            Some(_) => return Err(bad().into()),
            None => {}
        }
        if progress(removed).is_break() && !is_cancelled {
            is_cancelled = true;
            // Ends the call: the server answers with its progress.
            connection.stream.shutdown(Shutdown::Write)?;
        }
    }
}

/// Gets a ticket for a directory, and connects to its server.
fn attach(directory: &Path) -> Result<(Ticket, Connection), AttachError> {
    let (ticket, stream) = Door::open(directory, Access::ReadWrite)?.connect()?;
    stream.set_read_timeout(Some(INTERVAL))?;
    let mut connection = Connection { stream, answers: Answers::default() };
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

struct Connection {
    stream: UnixStream,
    answers: Answers,
}

impl Connection {
    fn call(&mut self, call: &Call) -> io::Result<()> {
        self.stream.write_all(&call.encode())
    }

    /// The next answer; `None` if none arrived for a while.
    fn answer(&mut self) -> Result<Option<Answer>, AttachError> {
        loop {
            if let Some(answer) = self.answers.next()? {
                return Ok(Some(answer));
            }
            let mut more = [0; 16 << 10];
            match self.stream.read(&mut more) {
                Ok(0) => return Err(AttachError::Closing),
                Ok(len) => self.answers.add(&more[..len]),
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
