//! The requests of an attached program that find and read files, and what the server finds.

use super::attributes;
use super::handle::{Handle, Memory, handle, handles, put_bytes, put_handles};
use super::{
    BadMessage, CONTENTS_BYTES_MAX, Fault, Fields, PATHS_MAX, Result, WALKED_BYTES_MAX, message,
};
use crate::vfs::types::Attr;

/// A request that changes nothing. It is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Gives a handle to the file at a path from a directory on. The path and its links cannot leave this
    /// directory, as if it were the root. A link at the end is followed if `follow`.
    Walk { dir: Handle, path: Vec<u8>, follow: bool, result: Handle },
    /// Reads contents of a regular file into the shared memory. The reply is their length.
    Read { node: Handle, at: u64, contents: Memory },
    /// Reads whole files at paths, as of [`Walk`](Query::Walk), into the shared memory. The reply has the
    /// outcome for some of them; the program requests the others again.
    ReadMany { dir: Handle, paths: Vec<Vec<u8>>, contents: Memory },
    /// Lists some names of a directory, after a cookie of an earlier one, or 0.
    List { dir: Handle, cookie: u64 },
    /// Reads an extended attribute.
    Xattr { node: Handle, name: Vec<u8> },
    /// Finds the first data, or with `hole` the first hole, at or after an offset.
    Seek { node: Handle, at: u64, hole: bool },
    /// Begins a walk of everything below a directory, and gives a handle to the walk.
    Descend { dir: Handle, result: Handle },
    /// Continues a walk. The reply has its next steps; the walk ends with the last ones.
    Continue { walk: Handle },
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    /// The listing continues after this entry with this cookie.
    pub cookie: u64,
    pub attr: Attr,
}

/// A step of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The number of names from the directory at which the walk began.
    pub depth: u32,
    pub found: Found,
}

/// The result of a step of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A name in the directory that contains it. If it is a directory, its entries follow.
    Entry { name: Vec<u8>, attr: Attr },
    /// The directory at this depth, or the rest of it, could not be read.
    Fault(Fault),
}

/// The outcome for one path of [`Query::ReadMany`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole contents are there.
    Contents(Memory),
    /// The contents do not fit into the memory of the request.
    TooLarge,
    Fault(Fault),
}

impl Query {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(128);
        let kind = match self {
            Query::Walk { dir, path, follow, result } => {
                put_handles(&mut body, &[dir, result]);
                body.push(u8::from(*follow));
                put_bytes(&mut body, path);
                32
            }
            Query::Read { node, at, contents } => {
                put_handles(&mut body, &[node]);
                body.extend(at.to_le_bytes());
                contents.put(&mut body);
                33
            }
            Query::ReadMany { dir, paths, contents } => {
                put_handles(&mut body, &[dir]);
                contents.put(&mut body);
                body.extend((paths.len() as u16).to_le_bytes());
                paths.iter().for_each(|path| put_bytes(&mut body, path));
                34
            }
            Query::List { dir, cookie } => {
                put_handles(&mut body, &[dir]);
                body.extend(cookie.to_le_bytes());
                35
            }
            Query::Xattr { node, name } => {
                put_handles(&mut body, &[node]);
                put_bytes(&mut body, name);
                36
            }
            Query::Seek { node, at, hole } => {
                put_handles(&mut body, &[node]);
                body.extend(at.to_le_bytes());
                body.push(u8::from(*hole));
                37
            }
            Query::Descend { dir, result } => {
                put_handles(&mut body, &[dir, result]);
                41
            }
            Query::Continue { walk } => {
                put_handles(&mut body, &[walk]);
                42
            }
        };
        message(kind, &[&body])
    }

    pub(super) fn decode(kind: u32, fields: &mut Fields<'_>) -> Result<Query> {
        Ok(match kind {
            32 => {
                let [dir, result] = handles(fields)?;
                Query::Walk {
                    dir,
                    result: result.not_root()?,
                    follow: fields.flag()?,
                    path: fields.path()?,
                }
            }
            33 => Query::Read {
                node: handle(fields)?,
                at: fields.u64()?,
                contents: Memory::decode(fields)?,
            },
            34 => {
                let (dir, contents) = (handle(fields)?, Memory::decode(fields)?);
                let count = usize::from(fields.u16()?);
                if count > PATHS_MAX {
                    return Err(BadMessage);
                }
                let paths = (0..count).map(|_| fields.path()).collect::<Result<_>>()?;
                Query::ReadMany { dir, paths, contents }
            }
            35 => Query::List { dir: handle(fields)?, cookie: fields.u64()? },
            36 => Query::Xattr { node: handle(fields)?, name: fields.xattr_name()? },
            37 => Query::Seek { node: handle(fields)?, at: fields.u64()?, hole: fields.flag()? },
            41 => {
                let [dir, result] = handles(fields)?;
                Query::Descend { dir, result: result.not_root()? }
            }
            42 => Query::Continue { walk: handle(fields)? },
            _ => return Err(BadMessage),
        })
    }
}

impl Entry {
    /// Appends the entry to a reply.
    pub(super) fn put(&self, body: &mut Vec<u8>) {
        put_bytes(body, &self.name);
        body.extend(self.cookie.to_le_bytes());
        body.extend(attributes::encode(&self.attr));
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Entry> {
        let (name, cookie) = (fields.name()?, fields.u64()?);
        Ok(Entry { name, cookie, attr: attributes::decode(fields)? })
    }
}

impl Step {
    /// Appends the step to a reply.
    pub(super) fn put(&self, body: &mut Vec<u8>) {
        body.extend(self.depth.to_le_bytes());
        match &self.found {
            Found::Entry { name, attr } => {
                body.push(0);
                put_bytes(body, name);
                body.extend(attributes::encode(attr));
            }
            Found::Fault(fault) => {
                body.push(1);
                put_bytes(body, &fault.to_bytes());
            }
        }
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Step> {
        let depth = fields.u32()?;
        let found = match fields.u8()? {
            0 => Found::Entry { name: fields.name()?, attr: attributes::decode(fields)? },
            1 => Found::Fault(Fault::decode(&mut Fields(fields.bytes()?))?),
            _ => return Err(BadMessage),
        };
        Ok(Step { depth, found })
    }
}

impl Outcome {
    /// The end of the contents in the shared memory, if they are there.
    pub fn contents_end(&self) -> Option<u64> {
        match self {
            Outcome::Contents(Memory { offset, len }) => Some(u64::from(*offset) + u64::from(*len)),
            Outcome::TooLarge | Outcome::Fault(_) => None,
        }
    }

    pub(super) fn put(&self, body: &mut Vec<u8>) {
        match self {
            Outcome::Contents(contents) => {
                body.push(0);
                contents.put(body);
            }
            Outcome::TooLarge => body.push(1),
            Outcome::Fault(fault) => {
                body.push(2);
                put_bytes(body, &fault.to_bytes());
            }
        }
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Outcome> {
        Ok(match fields.u8()? {
            0 => Outcome::Contents(Memory::decode(fields)?),
            1 => Outcome::TooLarge,
            2 => Outcome::Fault(Fault::decode(&mut Fields(fields.bytes()?))?),
            _ => return Err(BadMessage),
        })
    }
}

/// The paths, from the first one on, that one [`Query::ReadMany`] can name.
pub fn fitting<'a>(paths: impl Iterator<Item = &'a [u8]>) -> usize {
    let mut bytes = 0;
    let fits = |path: &&[u8]| {
        bytes += path.len() + 2;
        bytes <= WALKED_BYTES_MAX
    };
    paths.take(PATHS_MAX).take_while(fits).count()
}

/// The most bytes that an entry takes in a reply, without its name.
pub const ENTRY_BYTES: usize = 160;
/// The longest contents that one request reads.
pub const READ_BYTES_MAX: usize = CONTENTS_BYTES_MAX as usize;
