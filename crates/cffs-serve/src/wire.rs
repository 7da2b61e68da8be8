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
//! ```

#[cfg(test)]
mod tests;

/// The version of the messages.
pub const VERSION: u16 = 1;
pub const HEADER_BYTES: usize = 8;
/// The longest body of a call: a name and a few numbers.
pub const CALL_BYTES_MAX: usize = 1 << 10;
/// The longest body of an answer: a path and a text.
pub const ANSWER_BYTES_MAX: usize = PATH_BYTES_MAX + TEXT_BYTES_MAX + 64;
/// The longest path in an answer.
pub const PATH_BYTES_MAX: usize = 64 << 10;
/// The longest text in an answer; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 1 << 10;
const NAME_BYTES_MAX: usize = 255;

const MAGIC: &[u8; 4] = b"CFFS";

/// A secret that stands for a directory and a user, for one call.
pub type Ticket = [u8; 16];

/// A message of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The versions that the program knows.
    Hello { oldest: u16, newest: u16 },
    /// Remove a name from the directory of a ticket; with `recursive`, a directory with all that it has.
    Remove { ticket: Ticket, name: Vec<u8>, recursive: bool },
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
                let recursive = match fields.u8()? {
                    0 => false,
                    1 => true,
                    _ => return Err(BadMessage),
                };
                let len = fields.u16()?.into();
                let name = fields.take(len)?;
                let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
                    && !name.iter().any(|byte| [b'/', 0].contains(byte))
                    && ![&b"."[..], b".."].contains(&name);
                let name = name.to_vec();
                if is_name { Ok(Call::Remove { ticket, name, recursive }) } else { Err(BadMessage) }
            }
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

fn message(kind: u32, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut message = Vec::with_capacity(HEADER_BYTES + len);
    message.extend_from_slice(&(len as u32).to_le_bytes());
    message.extend_from_slice(&kind.to_le_bytes());
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message
}

/// A text of at most [`TEXT_BYTES_MAX`].
fn cut(text: &str) -> &[u8] {
    let most = text.len().min(TEXT_BYTES_MAX);
    let end = (0..=most).rev().find(|&at| text.is_char_boundary(at));
    &text.as_bytes()[..end.unwrap_or(0)]
}

/// The rest of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(BadMessage)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BadMessage)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn removed(&mut self) -> Result<Removed> {
        let files = self.array().map(u64::from_le_bytes)?;
        Ok(Removed { files, directories: self.array().map(u64::from_le_bytes)? })
    }

    /// A text that ends the body.
    fn text(&mut self) -> Result<String> {
        let bytes = self.take(self.0.len())?;
        let text = std::str::from_utf8(bytes).map_err(|_| BadMessage)?;
        if text.len() > TEXT_BYTES_MAX { Err(BadMessage) } else { Ok(text.to_owned()) }
    }
}
