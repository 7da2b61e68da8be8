//! Messages from the server to the kernel about data that the kernel caches.

use std::io;
use std::sync::Weak;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::protocol::{NodeId, wire};
use crate::transport::device::Device;

/// Sends notifications to the kernel. Can be cloned and used from any thread while the session serves; does
/// not keep the session alive.
///
/// **Deadlocks.** To drop a name or data, and to store data, the kernel takes locks of the named directory or
/// inode, which a request in progress may hold. So a handler's method must not send these about its own
/// arguments, nor may they be sent under a lock that a handler needs. Only
/// [`inval_inode`](Notifier::inval_inode) with [`CachedData::Keep`] takes no lock and can be sent from
/// anywhere.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Weak<Device>,
}

/// The part of an inode's cached data to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedData {
    /// None: only the attributes.
    Keep,
    /// From an offset on.
    From(u64),
    /// This many bytes from an offset on.
    Range(u64, u64),
}

/// How to change a cached name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedName {
    /// Drop it.
    Invalidate,
    /// Look it up again before its next use, and keep mounts below it.
    Expire,
}

impl Notifier {
    pub(crate) fn new(device: Weak<Device>) -> Notifier {
        Notifier { device }
    }

    /// Drops the cached attributes of an inode, and some of its data.
    ///
    /// `Ok(false)`: the kernel does not know the inode.
    pub fn inval_inode(&self, node: NodeId, data: CachedData) -> io::Result<bool> {
        let clip = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        // A negative offset keeps the data; a length of zero reaches to the end.
        let (off, len) = match data {
            CachedData::Keep => (-1, 0),
            CachedData::From(offset) => (clip(offset), 0),
            CachedData::Range(_, 0) => (-1, 0),
            CachedData::Range(offset, len) => (clip(offset), clip(len)),
        };
        let out = wire::NotifyInvalInodeOut { ino: node.0, off, len };
        self.send(wire::NOTIFY_INVAL_INODE, &out, &[])
    }

    /// Drops or expires a cached name, which has been removed or refers to another inode.
    pub fn inval_entry(&self, parent: NodeId, name: &[u8], how: CachedName) -> io::Result<bool> {
        let flags = match how {
            CachedName::Invalidate => 0,
            CachedName::Expire => wire::INVAL_ENTRY_EXPIRE_ONLY,
        };
        let out = wire::NotifyInvalEntryOut { parent: parent.0, namelen: len_u32(name)?, flags };
        self.send(wire::NOTIFY_INVAL_ENTRY, &out, name)
    }

    /// Reports that a name of an inode was deleted. Unlike an invalidation, this is visible to `inotify`, and
    /// to programs whose working directory it was.
    pub fn delete(&self, parent: NodeId, child: NodeId, name: &[u8]) -> io::Result<bool> {
        let out = wire::NotifyDeleteOut {
            parent: parent.0,
            child: child.0,
            namelen: len_u32(name)?,
            padding: 0,
        };
        self.send(wire::NOTIFY_DELETE, &out, name)
    }

    /// Puts data of an inode into the page cache before it is requested.
    pub fn store(&self, node: NodeId, offset: u64, data: &[u8]) -> io::Result<bool> {
        let out = wire::NotifyStoreOut { nodeid: node.0, offset, size: len_u32(data)?, padding: 0 };
        self.send(wire::NOTIFY_STORE, &out, data)
    }

    /// A notification is encoded like a reply to request 0 with its code in place of the error. A name is
    /// followed by a NUL that its length does not include.
    fn send(
        &self,
        code: i32,
        body: &(impl IntoBytes + Immutable),
        tail: &[u8],
    ) -> io::Result<bool> {
        let Some(device) = self.device.upgrade() else { return Err(Errno::NOTCONN.into()) };
        let nul: &[u8] = match code {
            wire::NOTIFY_INVAL_ENTRY | wire::NOTIFY_DELETE => &[0],
            _ => &[],
        };
        let len = size_of::<wire::OutHeader>() + body.as_bytes().len() + tail.len() + nul.len();
        let len = u32::try_from(len).map_err(|_| Errno::MSGSIZE)?;
        let header = wire::OutHeader { len, error: code, unique: 0 };
        match device.send_parts(&[header.as_bytes(), body.as_bytes(), tail, nul]) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn len_u32(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| Errno::MSGSIZE.into())
}
