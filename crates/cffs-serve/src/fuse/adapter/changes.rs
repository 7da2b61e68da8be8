//! Changes: the caller of each, since some users have a reserve of space, and notifications of the kernel.

use cffs::error::Error;
use cffs::vfs::AsUser;
use fuse_ring::Errno;
use fuse_ring::protocol::{Context, NodeId, UNKNOWN_ID};

use super::{Adapter, Result};
use crate::fuse::credentials;
use crate::fuse::panic_guard::PanicGuard;
use crate::fuse::translate::{errno, ino};
use crate::shared::{Change, Observer};

impl Adapter {
    /// Changes the volume as the caller, which may use the reserve. Write-back of a mapped file counts as
    /// root's, since no caller could learn that there is no space for it.
    pub(super) fn as_caller<T>(
        &self,
        cx: &Context<'_>,
        what: &'static str,
        act: impl Fn(&AsUser<'_>) -> cffs::error::Result<T>,
    ) -> Result<T> {
        let volume = self.volume.to_write().ok_or(Errno::ROFS)?;
        let guarded = |uid, gid| PanicGuard::new(volume.as_user(uid, gid), &self.closing);
        let done = match act(&guarded(cx.uid, cx.gid)) {
            // Only a full volume needs the caller's identity.
            Err(Error::NoSpace) if cx.uid == UNKNOWN_ID => {
                let caller = guarded(credentials::uid(cx), credentials::gid(cx));
                if caller.has_reserve() { act(&caller) } else { Err(Error::NoSpace) }
            }
            done => done,
        };
        done.map_err(errno(what))
    }

    /// Makes the kernel ask again for the attributes of a file.
    pub(super) fn attributes_changed(&self, node: NodeId) {
        self.caches.changed(Change::Attributes(ino(node)));
    }
}
