//! The requests of a program that is attached to a directory, and the replies.

use super::attributes;
use super::{
    BadMessage, CONTENTS_BYTES_MAX, Fault, Fields, REQUEST_BYTES_MAX, Result, VALUE_BYTES_MAX,
    message,
};
use crate::vfs::types::{Attr, NewKind, SetAttr};

/// A number that the program chose for a file: it can use the file before it knows whether it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u32);

impl Handle {
    /// The directory of the ticket.
    pub const ROOT: Handle = Handle(0);
}

/// A range of the shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub offset: u32,
    /// At most [`CONTENTS_BYTES_MAX`].
    pub len: u32,
}

/// The kind of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Regular,
    Directory,
    Symlink(Vec<u8>),
    Fifo,
    Socket,
    CharDevice(u64),
    BlockDevice(u64),
}

/// A whole file that is not a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub dir: Handle,
    pub name: Vec<u8>,
    pub kind: Kind,
    /// The permissions until the contents are written, without set-id bits.
    pub permissions: u32,
    /// The contents, if it is a regular file.
    pub contents: Memory,
    /// The attributes that it gets afterwards.
    pub changes: SetAttr,
    /// Whether it keeps the ACLs that it inherits from its directory.
    pub inherits_acls: bool,
}

/// A call after [`Call::Attach`](super::Call::Attach). `result` is the handle that it gives to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Lookup {
        dir: Handle,
        name: Vec<u8>,
        result: Handle,
    },
    Attr {
        node: Handle,
    },
    SetAttr {
        node: Handle,
        changes: SetAttr,
    },
    ReadLink {
        node: Handle,
    },
    Make {
        dir: Handle,
        name: Vec<u8>,
        kind: Kind,
        /// Without set-id bits.
        permissions: u32,
        result: Handle,
    },
    /// Makes a file, in place of another one of the name. If that fails, no file has the name, with two
    /// exceptions: a file whose directory refuses the new one stays, and so does a new file that another
    /// program has changed meanwhile. It is not answered.
    Put(Put),
    /// Writes contents of the shared memory to a regular file.
    Write {
        node: Handle,
        at: u64,
        contents: Memory,
    },
    Link {
        node: Handle,
        dir: Handle,
        name: Vec<u8>,
        result: Handle,
    },
    Unlink {
        dir: Handle,
        name: Vec<u8>,
    },
    XattrNames {
        node: Handle,
    },
    SetXattr {
        node: Handle,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    RemoveXattr {
        node: Handle,
        name: Vec<u8>,
    },
    /// Gives up a handle. It is not answered.
    Forget {
        node: Handle,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    Attr(Attr),
    /// The target of a link, or names, each with a zero byte.
    Bytes(Vec<u8>),
    Fault(Fault),
}

impl Request {
    /// Whether an answer follows, whatever the outcome.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Request::Put(_) | Request::Forget { .. })
    }

    /// Whether it changes the volume, so that the mount must be writable.
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Request::Lookup { .. }
                | Request::Attr { .. }
                | Request::ReadLink { .. }
                | Request::XattrNames { .. }
                | Request::Forget { .. }
        )
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(128);
        let kind = match self {
            Request::Lookup { dir, name, result } => {
                put_handles(&mut body, &[dir, result]);
                put_bytes(&mut body, name);
                16
            }
            Request::Attr { node } => {
                put_handles(&mut body, &[node]);
                17
            }
            Request::SetAttr { node, changes } => {
                put_handles(&mut body, &[node]);
                body.extend(attributes::encode_changes(changes));
                18
            }
            Request::ReadLink { node } => {
                put_handles(&mut body, &[node]);
                19
            }
            Request::Make { dir, name, kind, permissions, result } => {
                put_handles(&mut body, &[dir, result]);
                put_bytes(&mut body, name);
                kind.put(&mut body);
                body.extend(permissions.to_le_bytes());
                20
            }
            Request::Put(put) => {
                put.put(&mut body);
                21
            }
            Request::Write { node, at, contents } => {
                put_handles(&mut body, &[node]);
                body.extend(at.to_le_bytes());
                contents.put(&mut body);
                22
            }
            Request::Link { node, dir, name, result } => {
                put_handles(&mut body, &[node, dir, result]);
                put_bytes(&mut body, name);
                23
            }
            Request::Unlink { dir, name } => {
                put_handles(&mut body, &[dir]);
                put_bytes(&mut body, name);
                24
            }
            Request::XattrNames { node } => {
                put_handles(&mut body, &[node]);
                25
            }
            Request::SetXattr { node, name, value } => {
                put_handles(&mut body, &[node]);
                put_bytes(&mut body, name);
                body.extend((value.len() as u32).to_le_bytes());
                body.extend(value);
                26
            }
            Request::RemoveXattr { node, name } => {
                put_handles(&mut body, &[node]);
                put_bytes(&mut body, name);
                27
            }
            Request::Forget { node } => {
                put_handles(&mut body, &[node]);
                28
            }
        };
        debug_assert!(body.len() <= REQUEST_BYTES_MAX, "the caller checks names and values");
        message(kind, &[&body])
    }

    pub fn decode(kind: u32, body: &[u8]) -> Result<Request> {
        let fields = &mut Fields(body);
        Ok(match kind {
            16 => {
                let [dir, result] = handles(fields)?;
                Request::Lookup { dir, result: result.not_root()?, name: fields.name()? }
            }
            17 => Request::Attr { node: handle(fields)? },
            18 => Request::SetAttr {
                node: handle(fields)?,
                changes: attributes::decode_changes(fields)?,
            },
            19 => Request::ReadLink { node: handle(fields)? },
            20 => {
                let [dir, result] = handles(fields)?;
                let (name, kind) = (fields.name()?, Kind::decode(fields)?);
                let permissions = fields.permissions_of_new()?;
                Request::Make { dir, name, kind, permissions, result: result.not_root()? }
            }
            21 => Request::Put(Put::decode(fields)?),
            22 => Request::Write {
                node: handle(fields)?,
                at: fields.u64()?,
                contents: Memory::decode(fields)?,
            },
            23 => {
                let [node, dir, result] = handles(fields)?;
                Request::Link { node, dir, name: fields.name()?, result: result.not_root()? }
            }
            24 => Request::Unlink { dir: handle(fields)?, name: fields.name()? },
            25 => Request::XattrNames { node: handle(fields)? },
            26 => {
                let (node, name) = (handle(fields)?, fields.xattr_name()?);
                let len = fields.u32()? as usize;
                if len > VALUE_BYTES_MAX {
                    return Err(BadMessage);
                }
                Request::SetXattr { node, name, value: fields.take(len)?.to_vec() }
            }
            27 => Request::RemoveXattr { node: handle(fields)?, name: fields.xattr_name()? },
            28 => Request::Forget { node: handle(fields)?.not_root()? },
            _ => return Err(BadMessage),
        })
    }
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Done => message(7, &[]),
            Reply::Attr(attr) => message(8, &[&attributes::encode(attr)]),
            Reply::Bytes(bytes) => message(9, &[bytes]),
            Reply::Fault(fault) => message(10, &[&fault.to_bytes()]),
        }
    }

    pub(super) fn decode(kind: u32, fields: &mut Fields<'_>) -> Result<Reply> {
        Ok(match kind {
            7 => Reply::Done,
            8 => Reply::Attr(attributes::decode(fields)?),
            9 => Reply::Bytes(fields.rest().to_vec()),
            10 => Reply::Fault(Fault::decode(fields)?),
            _ => return Err(BadMessage),
        })
    }
}

impl Handle {
    /// Fails for the root, which no request makes or gives up.
    fn not_root(self) -> Result<Handle> {
        if self == Handle::ROOT { Err(BadMessage) } else { Ok(self) }
    }
}

impl Memory {
    fn put(self, body: &mut Vec<u8>) {
        body.extend(self.offset.to_le_bytes());
        body.extend(self.len.to_le_bytes());
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Memory> {
        let memory = Memory { offset: fields.u32()?, len: fields.u32()? };
        let is_range = memory.offset.checked_add(memory.len).is_some();
        if is_range && memory.len <= CONTENTS_BYTES_MAX { Ok(memory) } else { Err(BadMessage) }
    }
}

impl Put {
    fn put(&self, body: &mut Vec<u8>) {
        put_handles(body, &[&self.dir]);
        put_bytes(body, &self.name);
        self.kind.put(body);
        body.extend(self.permissions.to_le_bytes());
        self.contents.put(body);
        body.push(self.inherits_acls.into());
        body.extend(attributes::encode_changes(&self.changes));
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Put> {
        let (dir, name) = (handle(fields)?, fields.name()?);
        let (kind, permissions) = (Kind::decode(fields)?, fields.permissions_of_new()?);
        let (contents, inherits_acls) = (Memory::decode(fields)?, fields.flag()?);
        let changes = attributes::decode_changes(fields)?;
        let is_possible = match kind {
            Kind::Directory => false,
            Kind::Regular => true,
            _ => contents.len == 0 && changes.size.is_none(),
        };
        let put = Put { dir, name, kind, permissions, contents, changes, inherits_acls };
        if is_possible { Ok(put) } else { Err(BadMessage) }
    }
}

impl Kind {
    /// The same for the volume.
    pub fn borrowed(&self) -> NewKind<'_> {
        match self {
            Kind::Regular => NewKind::Regular,
            Kind::Directory => NewKind::Directory,
            Kind::Symlink(target) => NewKind::Symlink(target),
            Kind::Fifo => NewKind::Fifo,
            Kind::Socket => NewKind::Socket,
            Kind::CharDevice(number) => NewKind::CharDevice(*number),
            Kind::BlockDevice(number) => NewKind::BlockDevice(*number),
        }
    }

    fn put(&self, body: &mut Vec<u8>) {
        let (kind, device, target) = match self {
            Kind::Regular => (0, 0, &[][..]),
            Kind::Directory => (1, 0, &[][..]),
            Kind::Symlink(target) => (2, 0, &**target),
            Kind::Fifo => (3, 0, &[][..]),
            Kind::Socket => (4, 0, &[][..]),
            Kind::CharDevice(number) => (5, *number, &[][..]),
            Kind::BlockDevice(number) => (6, *number, &[][..]),
        };
        body.push(kind);
        body.extend(device.to_le_bytes());
        put_bytes(body, target);
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Kind> {
        let (kind, device, target) = (fields.u8()?, fields.u64()?, fields.bytes()?);
        Ok(match kind {
            0 => Kind::Regular,
            1 => Kind::Directory,
            2 => Kind::Symlink(target.to_vec()),
            3 => Kind::Fifo,
            4 => Kind::Socket,
            5 => Kind::CharDevice(device),
            6 => Kind::BlockDevice(device),
            _ => return Err(BadMessage),
        })
    }
}

impl From<NewKind<'_>> for Kind {
    fn from(kind: NewKind<'_>) -> Kind {
        match kind {
            NewKind::Regular => Kind::Regular,
            NewKind::Directory => Kind::Directory,
            NewKind::Symlink(target) => Kind::Symlink(target.to_vec()),
            NewKind::Fifo => Kind::Fifo,
            NewKind::Socket => Kind::Socket,
            NewKind::CharDevice(number) => Kind::CharDevice(number),
            NewKind::BlockDevice(number) => Kind::BlockDevice(number),
        }
    }
}

fn put_handles(body: &mut Vec<u8>, handles: &[&Handle]) {
    handles.iter().for_each(|handle| body.extend(handle.0.to_le_bytes()));
}

fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend((bytes.len() as u16).to_le_bytes());
    body.extend(bytes);
}

fn handle(fields: &mut Fields<'_>) -> Result<Handle> {
    fields.u32().map(Handle)
}

fn handles<const N: usize>(fields: &mut Fields<'_>) -> Result<[Handle; N]> {
    let mut handles = [Handle::ROOT; N];
    for one in &mut handles {
        *one = handle(fields)?;
    }
    Ok(handles)
}
