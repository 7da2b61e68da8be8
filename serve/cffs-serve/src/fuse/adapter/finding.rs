//! Inodes that the kernel identifies only by number, or by `.` and `..`.

use cffs::error::Error;
use cffs::units::InodeNo;
use cffs::vfs::types;
use fuse_ring::protocol::NodeId;

use super::{Adapter, DOT, DOT_DOT, Result};
use crate::fuse::translate::{errno, ino};

impl Adapter {
    /// An inode by its number. An inode without a name is found as long as the kernel refers to it, as it
    /// does in a request.
    pub(super) fn find_named(&self, ino: InodeNo) -> cffs::error::Result<types::Attr> {
        let attr = self.volume().find(ino)?;
        if attr.nlink == 0 {
            self.volume().release(ino, 1);
            return Err(Error::Stale);
        }
        Ok(attr)
    }

    /// The entry after the cookie `from`, among the two that every directory has.
    pub(super) fn dot_entry(
        &self,
        dir: NodeId,
        from: u64,
    ) -> Result<(InodeNo, u64, &'static [u8])> {
        if from < DOT {
            return Ok((ino(dir), DOT, b"."));
        }
        let parent = self.on(dir, |view| view.volume.parent(ino(dir)));
        let parent = parent.map_err(errno("readdir"))?;
        Ok((parent, DOT_DOT, b".."))
    }
}
