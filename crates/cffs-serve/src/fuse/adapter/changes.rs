//! Changes: of whom, since the last part of the space is kept for some users, and what the kernel learns.

use cffs::error::Error;
use cffs::vfs::AsUser;
use fuse_ring::Errno;
use fuse_ring::protocol::{Context, NodeId, UNKNOWN_ID};

use super::{Adapter, Result};
use crate::fuse::credentials;
use crate::fuse::guarded::Guarded;
use crate::fuse::translate::{errno, ino};
use crate::shared::{Change, Observer};

impl Adapter {
    /// Changes the volume as the caller, who may have a part in the reserve. What the kernel writes back of a
    /// mapped file is root's, wherever it comes from: no caller could learn that there is no space for it.
    pub(super) fn as_caller<T>(
        &self,
        cx: &Context<'_>,
        what: &'static str,
        act: impl Fn(&AsUser<'_>) -> cffs::error::Result<T>,
    ) -> Result<T> {
        let volume = self.volume.to_write().ok_or(Errno::ROFS)?;
        let guarded = |uid, gid| Guarded::new(volume.as_user(uid, gid), &self.closing);
        let done = match act(&guarded(cx.uid, cx.gid)) {
            // Only here it matters who that is.
            Err(Error::NoSpace) if cx.uid == UNKNOWN_ID => {
                let caller = guarded(credentials::uid(cx), credentials::gid(cx));
                if caller.has_reserve() { act(&caller) } else { Err(Error::NoSpace) }
            }
            done => done,
        };
        done.map_err(errno(what))
    }

    /// The kernel is to ask again for the attributes of a file.
    pub(super) fn attributes_changed(&self, node: NodeId) {
        self.caches.changed(Change::Attributes(ino(node)));
    }
}
