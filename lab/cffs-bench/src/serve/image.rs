//! A FUSE file system with one file, `disk`, whose reads and writes take an emulated disk's time.
//!
//! Requests reach this server as the kernel's block layer split them: the file is opened for direct I/O with
//! parallel writes, so that nothing is cached, merged or serialized on the way from a loop device. Data is
//! copied while the emulated disk has the request, as a disk transfers it after the command. If it were
//! copied before, a short request could overtake a long one.

use std::sync::Arc;
use std::time::Duration;

use fuse_ring::protocol::{
    Attr, AttrReply, Context, Entry, FileHandle, Listing, NodeId, Open, OpenFlags, Opened, Read,
    SetAttr, Write,
};
use fuse_ring::{Errno, Handler};

use super::media::Media;
use super::pacer::Pacer;
use crate::disk::{Request, Run};

/// The name of the only file.
pub const FILE_NAME: &str = "disk";

const NODE: NodeId = NodeId(2);
const TTL: Duration = Duration::from_secs(86_400);

/// The file system.
pub struct Image {
    pacer: Arc<Pacer>,
    media: Arc<Media>,
}

impl Image {
    /// A disk with the timing of this pacer, and with its data on media of the same size.
    pub fn new(pacer: Arc<Pacer>, media: Arc<Media>) -> Image {
        Image { pacer, media }
    }

    fn attr(&self, node: NodeId) -> Result<Attr, Errno> {
        let (mode, size) = match node {
            NodeId::ROOT => (0o040_755, 0),
            NODE => (0o100_600, self.pacer.size()),
            _ => return Err(Errno::NOENT),
        };
        let blocks = size / 512;
        Ok(Attr { ino: node.0, size, blocks, mode, nlink: 1, blksize: 4096, ..Attr::default() })
    }
}

impl Handler for Image {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        if parent != NodeId::ROOT || name != FILE_NAME.as_bytes() {
            return Err(Errno::NOENT);
        }
        let attr = self.attr(NODE)?;
        Ok(Entry { node: NODE, generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL })
    }

    fn getattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        Ok(AttrReply { attr: self.attr(node)?, ttl: TTL })
    }

    /// The disk keeps its size; times and other attributes are ignored.
    fn setattr(&self, _: &Context<'_>, node: NodeId, set: &SetAttr) -> Result<AttrReply, Errno> {
        if set.size.is_some_and(|size| size != self.pacer.size()) {
            return Err(Errno::PERM);
        }
        Ok(AttrReply { attr: self.attr(node)?, ttl: TTL })
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<Opened, Errno> {
        let flags = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
        Ok(Opened { handle: FileHandle(0), flags })
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        _: NodeId,
        read: &Read,
        listing: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        if read.offset == 0 {
            // One entry always fits.
            let _ = listing.push(NODE.0, 0o100_000, 1, FILE_NAME.as_bytes());
        }
        Ok(())
    }

    fn read(
        &self,
        _: &Context<'_>,
        _: NodeId,
        read: &Read,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        let left = self.pacer.size().saturating_sub(read.offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if len > 0 {
            let id = self.pacer.submit(Request::Read(Run::of_bytes(read.offset, len as u64)));
            let copied = self.media.read(read.offset, &mut buf[..len]);
            self.pacer.wait(id);
            copied.map_err(|_| Errno::IO)?;
        }
        Ok(len)
    }

    fn write(&self, _: &Context<'_>, _: NodeId, write: &Write<'_>) -> Result<usize, Errno> {
        let len = write.data.len() as u64;
        if write.offset.checked_add(len).is_none_or(|end| end > self.pacer.size()) {
            return Err(Errno::NOSPC);
        }
        let id = self.pacer.submit(Request::Write(Run::of_bytes(write.offset, len)));
        let copied = self.media.write(write.offset, write.data);
        self.pacer.wait(id);
        copied.map_err(|_| Errno::IO)?;
        Ok(write.data.len())
    }

    fn fsync(&self, _: &Context<'_>, _: NodeId, _: FileHandle, _: bool) -> Result<(), Errno> {
        self.pacer.perform(Request::Flush);
        self.media.flush();
        Ok(())
    }
}
