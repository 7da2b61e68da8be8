//! The arguments of the procedures (3.3).

use super::{HANDLE_BYTES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX, Time};
use crate::xdr::{Malformed, Reader, Result};

/// The bits of [`Call::Access`].
#[derive(Clone, Copy, Debug)]
pub struct Access;

impl Access {
    /// Read a file, or a directory's names.
    pub const READ: u32 = 0x01;
    /// Look up names in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Overwrite contents, or change a directory's names.
    pub const MODIFY: u32 = 0x04;
    /// Write new contents, or make names.
    pub const EXTEND: u32 = 0x08;
    /// Remove names.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's time.
    Now,
    /// This time.
    To(Time),
}

/// Attributes to set (`sattr3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The mode.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of the contents.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
}

/// When written data must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// At the next COMMIT.
    Unstable = 0,
    /// The contents, before the reply.
    DataSync = 1,
    /// All of it, before the reply.
    FileSync = 2,
}

/// A name in a directory (`diropargs3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The name.
    pub name: &'a [u8],
}

/// How CREATE treats a name that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The existing file is used.
    Unchecked(SetAttributes),
    /// CREATE fails.
    Guarded(SetAttributes),
    /// CREATE fails unless the file was created with this verifier.
    Exclusive([u8; 8]),
}

/// The kind of node that MKNOD makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNode {
    /// A character device, major and minor.
    CharDevice(SetAttributes, (u32, u32)),
    /// A block device, major and minor.
    BlockDevice(SetAttributes, (u32, u32)),
    /// A socket.
    Socket(SetAttributes),
    /// A named pipe.
    Fifo(SetAttributes),
    /// A kind that has its own procedure.
    Other,
}

/// A call with its arguments. Handles are those that the client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the standard")]
pub enum Call<'a> {
    Null,
    GetAttr { file: &'a [u8] },
    SetAttr { file: &'a [u8], changes: SetAttributes, guard: Option<Time> },
    Lookup(DirEntry<'a>),
    Access { file: &'a [u8], wanted: u32 },
    ReadLink { file: &'a [u8] },
    Read { file: &'a [u8], offset: u64, count: u32 },
    Write { file: &'a [u8], offset: u64, stability: Stability, data: &'a [u8] },
    Create { at: DirEntry<'a>, how: How },
    MakeDir { at: DirEntry<'a>, attributes: SetAttributes },
    Symlink { at: DirEntry<'a>, attributes: SetAttributes, target: &'a [u8] },
    MakeNode { at: DirEntry<'a>, node: NewNode },
    Remove(DirEntry<'a>),
    RemoveDir(DirEntry<'a>),
    Rename { from: DirEntry<'a>, to: DirEntry<'a> },
    Link { file: &'a [u8], to: DirEntry<'a> },
    ReadDir { dir: &'a [u8], cookie: u64, verifier: [u8; 8], bytes_max: u32 },
    ReadDirPlus { dir: &'a [u8], cookie: u64, verifier: [u8; 8], names_max: u32, bytes_max: u32 },
    FsStat { root: &'a [u8] },
    FsInfo { root: &'a [u8] },
    PathConf { file: &'a [u8] },
    Commit { file: &'a [u8], offset: u64, count: u32 },
}

impl<'a> Call<'a> {
    /// Decodes the arguments of a procedure; `None` if there is no such procedure.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn decode(procedure: u32, arguments: &'a [u8]) -> Result<Option<Call<'a>>> {
        let mut r = Reader::new(arguments);
        let r = &mut r;
        let call = match procedure {
            0 => Call::Null,
            1 => Call::GetAttr { file: handle(r)? },
            2 => Call::SetAttr {
                file: handle(r)?,
                changes: set_attributes(r)?,
                guard: r.optional(time)?,
            },
            3 => Call::Lookup(dir_entry(r)?),
            4 => Call::Access { file: handle(r)?, wanted: r.u32()? },
            5 => Call::ReadLink { file: handle(r)? },
            6 => Call::Read { file: handle(r)?, offset: r.u64()?, count: r.u32()? },
            7 => write(r)?,
            8 => Call::Create { at: dir_entry(r)?, how: how(r)? },
            9 => Call::MakeDir { at: dir_entry(r)?, attributes: set_attributes(r)? },
            10 => Call::Symlink {
                at: dir_entry(r)?,
                attributes: set_attributes(r)?,
                target: r.opaque(PATH_BYTES_MAX)?,
            },
            11 => Call::MakeNode { at: dir_entry(r)?, node: new_node(r)? },
            12 => Call::Remove(dir_entry(r)?),
            13 => Call::RemoveDir(dir_entry(r)?),
            14 => Call::Rename { from: dir_entry(r)?, to: dir_entry(r)? },
            15 => Call::Link { file: handle(r)?, to: dir_entry(r)? },
            16 => Call::ReadDir {
                dir: handle(r)?,
                cookie: r.u64()?,
                verifier: r.array()?,
                bytes_max: r.u32()?,
            },
            17 => Call::ReadDirPlus {
                dir: handle(r)?,
                cookie: r.u64()?,
                verifier: r.array()?,
                names_max: r.u32()?,
                bytes_max: r.u32()?,
            },
            18 => Call::FsStat { root: handle(r)? },
            19 => Call::FsInfo { root: handle(r)? },
            20 => Call::PathConf { file: handle(r)? },
            21 => Call::Commit { file: handle(r)?, offset: r.u64()?, count: r.u32()? },
            _ => return Ok(None),
        };
        r.end().map(|()| Some(call))
    }

    /// Whether executing the call twice may differ from executing it once: it may fail, or undo a change in
    /// between.
    pub fn must_not_repeat(&self) -> bool {
        matches!(
            self,
            Call::SetAttr { .. }
                | Call::Create { .. }
                | Call::MakeDir { .. }
                | Call::Symlink { .. }
                | Call::MakeNode { .. }
                | Call::Remove(_)
                | Call::RemoveDir(_)
                | Call::Rename { .. }
                | Call::Link { .. }
        )
    }
}

fn handle<'a>(r: &mut Reader<'a>) -> Result<&'a [u8]> {
    r.opaque(HANDLE_BYTES_MAX)
}

fn dir_entry<'a>(r: &mut Reader<'a>) -> Result<DirEntry<'a>> {
    Ok(DirEntry { dir: handle(r)?, name: r.opaque(NAME_BYTES_MAX)? })
}

fn time(r: &mut Reader<'_>) -> Result<Time> {
    Ok(Time { seconds: r.u32()?, nanoseconds: r.u32()? })
}

fn set_time(r: &mut Reader<'_>) -> Result<Option<SetTime>> {
    match r.u32()? {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now)),
        2 => time(r).map(|time| Some(SetTime::To(time))),
        other => Err(Malformed::Discriminant(other)),
    }
}

fn set_attributes(r: &mut Reader<'_>) -> Result<SetAttributes> {
    Ok(SetAttributes {
        mode: r.optional(Reader::u32)?,
        uid: r.optional(Reader::u32)?,
        gid: r.optional(Reader::u32)?,
        size: r.optional(Reader::u64)?,
        atime: set_time(r)?,
        mtime: set_time(r)?,
    })
}

fn write<'a>(r: &mut Reader<'a>) -> Result<Call<'a>> {
    let (file, offset, count) = (handle(r)?, r.u64()?, r.u32()?);
    let stability = match r.u32()? {
        0 => Stability::Unstable,
        1 => Stability::DataSync,
        2 => Stability::FileSync,
        other => return Err(Malformed::Discriminant(other)),
    };
    // The count is sent twice. The length of the data decides, since no more can be written.
    let data = r.opaque(u32::MAX)?;
    let data = &data[..data.len().min(count as usize)];
    Ok(Call::Write { file, offset, stability, data })
}

fn how(r: &mut Reader<'_>) -> Result<How> {
    match r.u32()? {
        0 => set_attributes(r).map(How::Unchecked),
        1 => set_attributes(r).map(How::Guarded),
        2 => r.array().map(How::Exclusive),
        other => Err(Malformed::Discriminant(other)),
    }
}

fn new_node(r: &mut Reader<'_>) -> Result<NewNode> {
    let device = |r: &mut Reader<'_>| Ok((set_attributes(r)?, (r.u32()?, r.u32()?)));
    match r.u32()? {
        3 => device(r).map(|(attributes, number)| NewNode::BlockDevice(attributes, number)),
        4 => device(r).map(|(attributes, number)| NewNode::CharDevice(attributes, number)),
        6 => set_attributes(r).map(NewNode::Socket),
        7 => set_attributes(r).map(NewNode::Fifo),
        1 | 2 | 5 => Ok(NewNode::Other),
        other => Err(Malformed::Discriminant(other)),
    }
}
