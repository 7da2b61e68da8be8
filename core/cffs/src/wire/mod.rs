//! The messages between an attached program and the server of its mounted volume; pure functions.
//!
//! A message is a header of eight bytes, the length of the body and its kind, and the body. Numbers are
//! little-endian. The first message of each side is [`Call::Hello`] and [`Answer::Welcome`] or
//! [`Answer::Refused`]: these have the same form in every version. A later version may append fields to a
//! body; a decoder ignores what follows the fields that it knows.
//!
//! ```text
//!   program ── Hello ──▶ server        program ── Remove ──▶ server
//!           ◀── Welcome ──                     ◀── Progress, Failed … Done ──
//!
//!   program ── Attach, with a descriptor of shared memory ──▶ server
//!           ◀── Attached ──
//!           ── any Request ──▶                 ── Put, Put, Put … ──▶
//!           ◀── Reply ──                       ◀── PutFailed … Settled ──
//! ```
//!
//! After [`Call::Attach`], calls are carried out in the order in which they were sent. Each is answered once,
//! in this order, except for [`Request::Put`] and [`Request::Forget`]: the server reports a put only if it
//! fails, and says from time to time how many calls it has carried out. Contents that a program reads are in
//! the shared memory when the reply arrives.

use std::time::Duration;

use crate::vfs::types::Attr;

mod attributes;
mod fault;
mod fields;
mod handle;
mod invitation;
mod reading;
mod request;
#[cfg(test)]
mod tests;

pub use fault::Fault;
use fields::{Fields, message};
pub use handle::{Handle, Memory};
pub use invitation::{ATTRIBUTE, Invitation, TO_READ, hex};
pub use reading::{ENTRY_BYTES, Entry, Found, Outcome, Query, READ_BYTES_MAX, Step, fitting};
pub use request::{Kind, Put, Reply, Request};

/// The version of the messages. Version 1 has neither [`Query`] nor its answers, and version 2 neither
/// [`Request::MakeDir`] nor [`Request::Complete`]. Version 3 has no walks: [`Query::Descend`].
pub const VERSION: u16 = 4;
pub const HEADER_BYTES: usize = 8;
/// The longest body of a call before [`Call::Attach`]: a name and a few numbers.
pub const CALL_BYTES_MAX: usize = 1 << 10;
/// The longest body of a request: an extended attribute and its name.
pub const REQUEST_BYTES_MAX: usize = VALUE_BYTES_MAX + CALL_BYTES_MAX;
/// The longest value of an extended attribute, as in Linux.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The largest shared memory of a session. The server fills it with contents that the program reads.
pub const MEMORY_BYTES_MAX: u32 = 16 << 20;
/// The most contents that one request names.
pub const CONTENTS_BYTES_MAX: u32 = 1 << 20;
/// How long a session makes changes after its program has renewed the lease at the mount. The kernel passes
/// this on only if the mount is writable, so that a remount is obeyed after this time.
pub const LEASE: Duration = Duration::from_secs(1);
/// The most handles of a session.
pub const HANDLES_MAX: usize = 1 << 16;
/// The longest body of an answer: a path and a text.
pub const ANSWER_BYTES_MAX: usize = PATH_BYTES_MAX + TEXT_BYTES_MAX + 64;
/// The longest path in an answer.
pub const PATH_BYTES_MAX: usize = 64 << 10;
/// The longest path in a request, as in Linux.
pub const WALK_BYTES_MAX: usize = 4095;
/// The most paths of a request, and the bytes of all of them, each with its length.
pub const PATHS_MAX: usize = 1024;
pub const WALKED_BYTES_MAX: usize = 64 << 10;
/// How much of an answer entries or outcomes take, before the last one of them.
pub const LISTED_BYTES: usize = 48 << 10;
/// The longest text in an answer; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 1 << 10;

const MAGIC: &[u8; 4] = b"CFFS";

/// A secret that grants one call for a directory and a user.
pub type Ticket = [u8; 16];

/// A message of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The versions that the program knows.
    Hello { oldest: u16, newest: u16 },
    /// Remove a name from the directory of a ticket; with `recursive`, a directory with all its entries.
    Remove { ticket: Ticket, name: Vec<u8>, recursive: bool },
    /// Make the directory of a ticket the root of the session. A descriptor of the shared memory, which has
    /// this size, is sent with the first bytes. New files lose the permissions of the umask.
    Attach { ticket: Ticket, umask: u32, memory_bytes: u32 },
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The version that both sides use.
    Welcome { version: u16 },
    /// Why the server does not do it. The connection ends.
    Refused(String),
    /// The files that were removed so far.
    Progress(Removed),
    /// A file that was not removed.
    Failed(Failure),
    /// The call has ended.
    Done { removed: Removed, end: End },
    /// The root of the session, which has the handle [`Handle::ROOT`].
    Attached { root: Attr },
    /// The answer to a request.
    Reply(Reply),
    /// The put with this number among the calls of the session, counted from 1, has failed.
    PutFailed { call: u64, fault: Fault },
    /// This many calls of the session were carried out, and their puts are complete if none was reported.
    Settled { calls: u64 },
}

/// The names that were removed, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub files: u64,
    pub directories: u64,
}

/// A file that was not removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its path from the directory of the ticket.
    pub path: Vec<u8>,
    pub errno: u16,
    pub text: String,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All files were visited.
    Complete,
    /// The program ended it.
    Cancelled,
    /// The volume was being unmounted, or its server restarted.
    Closing,
}

/// A message that does not follow the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of this protocol")]
pub struct BadMessage;

impl From<BadMessage> for std::io::Error {
    fn from(bad: BadMessage) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, bad)
    }
}

type Result<T> = std::result::Result<T, BadMessage>;

/// A header: the length of the body, at most `bytes_max`, and its kind.
pub fn header(bytes: [u8; HEADER_BYTES], bytes_max: usize) -> Result<(usize, u32)> {
    let mut fields = Fields(&bytes);
    let (len, kind) = (fields.u32()? as usize, fields.u32()?);
    if len > bytes_max { Err(BadMessage) } else { Ok((len, kind)) }
}

impl Call {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Call::Hello { oldest, newest } => {
                message(1, &[MAGIC, &oldest.to_le_bytes(), &newest.to_le_bytes()])
            }
            Call::Remove { ticket, name, recursive } => {
                let len = name.len() as u16;
                message(2, &[ticket, &[u8::from(*recursive)], &len.to_le_bytes(), name])
            }
            Call::Attach { ticket, umask, memory_bytes } => {
                message(3, &[ticket, &umask.to_le_bytes(), &memory_bytes.to_le_bytes()])
            }
        }
    }

    pub fn decode(kind: u32, body: &[u8]) -> Result<Call> {
        let mut fields = Fields(body);
        match kind {
            1 if fields.take(MAGIC.len())? == MAGIC => {
                Ok(Call::Hello { oldest: fields.u16()?, newest: fields.u16()? })
            }
            2 => {
                let ticket = fields.array()?;
                let recursive = fields.flag()?;
                Ok(Call::Remove { ticket, name: fields.name()?, recursive })
            }
            3 => Ok(Call::Attach {
                ticket: fields.array()?,
                umask: fields.permissions()?,
                memory_bytes: fields.u32()?,
            }),
            _ => Err(BadMessage),
        }
    }
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Welcome { version } => message(1, &[&version.to_le_bytes()]),
            Answer::Refused(text) => message(2, &[cut(text)]),
            Answer::Progress(removed) => message(3, &[&removed.to_bytes()]),
            Answer::Failed(Failure { path, errno, text }) => {
                let len = path.len() as u32;
                message(4, &[&errno.to_le_bytes(), &len.to_le_bytes(), path, cut(text)])
            }
            Answer::Done { removed, end } => {
                let end = match end {
                    End::Complete => 0,
                    End::Cancelled => 1,
                    End::Closing => 2,
                };
                message(5, &[&removed.to_bytes(), &[end]])
            }
            Answer::Attached { root } => message(6, &[&attributes::encode(root)]),
            Answer::Reply(reply) => reply.encode(),
            Answer::PutFailed { call, fault } => {
                message(11, &[&call.to_le_bytes(), &fault.to_bytes()])
            }
            Answer::Settled { calls } => message(12, &[&calls.to_le_bytes()]),
        }
    }

    pub fn decode(kind: u32, body: &[u8]) -> Result<Answer> {
        let mut fields = Fields(body);
        match kind {
            1 => Ok(Answer::Welcome { version: fields.u16()? }),
            2 => Ok(Answer::Refused(fields.text()?)),
            3 => Ok(Answer::Progress(fields.removed()?)),
            4 => {
                let (errno, len) = (fields.u16()?, fields.u32()? as usize);
                let path = fields.take(len)?.to_vec();
                Ok(Answer::Failed(Failure { path, errno, text: fields.text()? }))
            }
            5 => {
                let removed = fields.removed()?;
                let end = match fields.u8()? {
                    0 => End::Complete,
                    1 => End::Cancelled,
                    2 => End::Closing,
                    _ => return Err(BadMessage),
                };
                Ok(Answer::Done { removed, end })
            }
            6 => Ok(Answer::Attached { root: attributes::decode(&mut fields)? }),
            7..=10 | 13..=16 => Reply::decode(kind, &mut fields).map(Answer::Reply),
            11 => Ok(Answer::PutFailed { call: fields.u64()?, fault: Fault::decode(&mut fields)? }),
            12 => Ok(Answer::Settled { calls: fields.u64()? }),
            _ => Err(BadMessage),
        }
    }
}

impl Removed {
    fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.files.to_le_bytes());
        bytes[8..].copy_from_slice(&self.directories.to_le_bytes());
        bytes
    }
}

/// A text of at most [`TEXT_BYTES_MAX`].
fn cut(text: &str) -> &[u8] {
    let most = text.len().min(TEXT_BYTES_MAX);
    let end = (0..=most).rev().find(|&at| text.is_char_boundary(at));
    &text.as_bytes()[..end.unwrap_or(0)]
}
