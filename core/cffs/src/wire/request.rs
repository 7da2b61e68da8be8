//! The requests of a program that is attached to a directory, and the replies.

use super::attributes;
use super::handle::{Handle, Memory, handle, handles, put_bytes, put_handles};
use super::reading::{Entry, Outcome, Query, Step};
use super::{BadMessage, Fault, Fields, REQUEST_BYTES_MAX, Result, VALUE_BYTES_MAX, message};
use crate::vfs::types::{Attr, NewKind, SetAttr};

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
    /// Makes a directory, or finds the one with this name.
    MakeDir {
        dir: Handle,
        name: Vec<u8>,
        /// Of a new one.
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
    /// Removes an empty directory.
    RemoveDir {
        dir: Handle,
        name: Vec<u8>,
    },
    /// Gives a file another name, in place of another file of it.
    Rename {
        dir: Handle,
        name: Vec<u8>,
        new_dir: Handle,
        new_name: Vec<u8>,
    },
    /// Writes contents of the shared memory to the end of a regular file. The reply is the new end.
    Append {
        node: Handle,
        contents: Memory,
    },
    /// Makes a file durable, or with a directory the whole volume.
    Sync {
        node: Handle,
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
    /// Removes the ACLs of a file, and with `clears_user` its attributes of `user.`, and changes attributes:
    /// then the copy of a file that has none of them is complete.
    Complete {
        node: Handle,
        changes: SetAttr,
        clears_user: bool,
    },
    /// Gives up a handle. It is not answered.
    Forget {
        node: Handle,
    },
    Query(Query),
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    Attr(Attr),
    /// The target of a link, or names, each with a zero byte.
    Bytes(Vec<u8>),
    Fault(Fault),
    Count(u64),
    /// Some entries of a directory, and whether these are the last ones.
    Entries(Vec<Entry>, bool),
    /// The outcomes for some paths, by their positions in the request.
    Many(Vec<(u16, Outcome)>),
    /// Some steps of a walk, and whether these are the last ones.
    Steps(Vec<Step>, bool),
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
                | Request::Sync { .. }
                | Request::Query(_)
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
            Request::Attr { node } => put_node(&mut body, node, 17),
            Request::SetAttr { node, changes } => {
                put_handles(&mut body, &[node]);
                body.extend(attributes::encode_changes(changes));
                18
            }
            Request::ReadLink { node } => put_node(&mut body, node, 19),
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
            Request::Unlink { dir, name } => put_name(&mut body, dir, name, 24),
            Request::XattrNames { node } => put_node(&mut body, node, 25),
            Request::SetXattr { node, name, value } => {
                put_handles(&mut body, &[node]);
                put_bytes(&mut body, name);
                body.extend((value.len() as u32).to_le_bytes());
                body.extend(value);
                26
            }
            Request::RemoveXattr { node, name } => put_name(&mut body, node, name, 27),
            Request::Forget { node } => put_node(&mut body, node, 28),
            Request::RemoveDir { dir, name } => put_name(&mut body, dir, name, 29),
            Request::Rename { dir, name, new_dir, new_name } => {
                put_handles(&mut body, &[dir, new_dir]);
                put_bytes(&mut body, name);
                put_bytes(&mut body, new_name);
                30
            }
            Request::Append { node, contents } => {
                put_handles(&mut body, &[node]);
                contents.put(&mut body);
                31
            }
            Request::Sync { node } => put_node(&mut body, node, 38),
            Request::MakeDir { dir, name, permissions, result } => {
                put_handles(&mut body, &[dir, result]);
                put_bytes(&mut body, name);
                body.extend(permissions.to_le_bytes());
                39
            }
            Request::Complete { node, changes, clears_user } => {
                put_handles(&mut body, &[node]);
                body.extend(attributes::encode_changes(changes));
                body.push(u8::from(*clears_user));
                40
            }
            Request::Query(query) => return query.encode(),
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
            29 => Request::RemoveDir { dir: handle(fields)?, name: fields.name()? },
            30 => {
                let [dir, new_dir] = handles(fields)?;
                let (name, new_name) = (fields.name()?, fields.name()?);
                Request::Rename { dir, name, new_dir, new_name }
            }
            31 => Request::Append { node: handle(fields)?, contents: Memory::decode(fields)? },
            38 => Request::Sync { node: handle(fields)? },
            39 => {
                let [dir, result] = handles(fields)?;
                let (name, permissions) = (fields.name()?, fields.permissions_of_new()?);
                Request::MakeDir { dir, name, permissions, result: result.not_root()? }
            }
            40 => Request::Complete {
                node: handle(fields)?,
                changes: attributes::decode_changes(fields)?,
                clears_user: fields.flag()?,
            },
            kind => Request::Query(Query::decode(kind, fields)?),
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
            Reply::Count(count) => message(13, &[&count.to_le_bytes()]),
            Reply::Entries(entries, is_end) => {
                let mut body = vec![u8::from(*is_end)];
                body.extend((entries.len() as u32).to_le_bytes());
                entries.iter().for_each(|entry| entry.put(&mut body));
                message(14, &[&body])
            }
            Reply::Many(outcomes) => {
                let mut body = (outcomes.len() as u32).to_le_bytes().to_vec();
                for (position, outcome) in outcomes {
                    body.extend(position.to_le_bytes());
                    outcome.put(&mut body);
                }
                message(15, &[&body])
            }
            Reply::Steps(steps, is_end) => {
                let mut body = vec![u8::from(*is_end)];
                body.extend((steps.len() as u32).to_le_bytes());
                steps.iter().for_each(|step| step.put(&mut body));
                message(16, &[&body])
            }
        }
    }

    pub(super) fn decode(kind: u32, fields: &mut Fields<'_>) -> Result<Reply> {
        Ok(match kind {
            7 => Reply::Done,
            8 => Reply::Attr(attributes::decode(fields)?),
            9 => Reply::Bytes(fields.rest().to_vec()),
            10 => Reply::Fault(Fault::decode(fields)?),
            13 => Reply::Count(fields.u64()?),
            14 => {
                let (is_end, count) = (fields.flag()?, fields.u32()?);
                let entries = (0..count).map(|_| Entry::decode(fields)).collect::<Result<_>>()?;
                Reply::Entries(entries, is_end)
            }
            15 => {
                let count = fields.u32()?;
                let outcome = |_| Ok((fields.u16()?, Outcome::decode(fields)?));
                Reply::Many((0..count).map(outcome).collect::<Result<_>>()?)
            }
            16 => {
                let (is_end, count) = (fields.flag()?, fields.u32()?);
                let steps = (0..count).map(|_| Step::decode(fields)).collect::<Result<_>>()?;
                Reply::Steps(steps, is_end)
            }
            _ => return Err(BadMessage),
        })
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

/// Appends the fields of a request that only names a file. Returns its kind.
fn put_node(body: &mut Vec<u8>, node: &Handle, kind: u32) -> u32 {
    put_handles(body, &[node]);
    kind
}

/// The same for one with a name, too.
fn put_name(body: &mut Vec<u8>, node: &Handle, name: &[u8], kind: u32) -> u32 {
    put_handles(body, &[node]);
    put_bytes(body, name);
    kind
}
