//! Changes to the volume, with their callers, since some users have reserved space; and notifications to the
//! kernel.

use cffs::error::Error;
use cffs::vfs::types::Access;
use cffs::vfs::{Caller, Groups, NewKind, Volume};
use fuse_ring::Errno;
use fuse_ring::protocol::{Context, Entry, NodeId, UNKNOWN_ID, Write};

use super::{Adapter, Result};
use crate::fuse::credentials;
use crate::fuse::panic_guard::PanicGuard;
use crate::fuse::privileges;
use crate::fuse::translate::{self, errno, ino};
use crate::shared::{Change, Observer};

const O_APPEND: u32 = 0o2000;
const O_DIRECT: u32 = 0o40_000;
const O_NOATIME: u32 = 0o1_000_000;

impl Adapter {
    /// Whether a read through a file that was opened with these flags sets its access time.
    pub(super) fn access(&self, flags: u32) -> Access {
        match flags & O_NOATIME != 0 || self.caches.was_read_only() {
            true => Access::Unnoted,
            false => Access::Noted,
        }
    }

    /// Changes the volume for the caller, which may use reserved space. Write-back of a mapped file counts as
    /// root's, since no caller would learn of missing space.
    pub(super) fn as_caller<T>(
        &self,
        cx: &Context<'_>,
        what: &'static str,
        act: impl Fn(&Volume, &Caller<'_>) -> cffs::error::Result<T>,
    ) -> Result<T> {
        let volume = self.volume.to_write().ok_or(Errno::ROFS)?;
        let volume = PanicGuard::new(&**volume, &self.closing);
        let may_set_gid = privileges::may_set_gid(cx);
        let caller = Caller { groups: Groups::Asked(&may_set_gid), ..privileges::caller(cx) };
        let done = match act(&volume, &caller) {
            // The caller's identity matters only on a full volume.
            Err(Error::NoSpace) if cx.uid == UNKNOWN_ID => {
                let (uid, gid) = (credentials::uid(cx), credentials::gid(cx));
                let caller = Caller { uid, gid, ..caller };
                if volume.has_reserve(&caller) {
                    act(&volume, &caller)
                } else {
                    Err(Error::NoSpace)
                }
            }
            done => done,
        };
        done.map_err(errno(what))
    }

    /// Writes to a file that is open with `O_APPEND` at its end, wherever the kernel believes that to be: it
    /// does not ask for the size before such a write, and another front end may have changed it. Parts of one
    /// uncached write arrive in any order, so they stay where they are.
    pub(super) fn write_or_append(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        write: &Write<'_>,
    ) -> Result<usize> {
        let is_append = write.flags & (O_APPEND | O_DIRECT) == O_APPEND && !write.from_cache;
        let is_append = is_append && self.caches.is_shared();
        // Returns how many bytes were written, and where.
        let write_from = |done: usize| {
            let (data, offset) = (&write.data[done..], write.offset + done as u64);
            self.as_caller(cx, "write", |volume, caller| match is_append {
                true => volume
                    .append(caller, ino(node), data)
                    .map(|(written, end)| (written, end - written as u64)),
                false => volume.write(caller, ino(node), offset, data).map(|all| (all, offset)),
            })
        };
        let (mut written, start) = write_from(0)?;
        let mut is_elsewhere = start != write.offset;
        // If the space for all users ended within this write, the caller may use the reserve for the rest.
        if written < write.data.len()
            && let Ok((rest, at)) = write_from(written)
        {
            // Another program may have appended between the two.
            is_elsewhere |= at != start + written as u64;
            written += rest;
        }
        if is_elsewhere {
            self.caches.drop_cached(vec![ino(node)], start.min(write.offset));
        }
        Ok(written)
    }

    /// Creates a file with a name.
    pub(super) fn make(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        kind: NewKind<'_>,
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        let new = translate::new_file(cx, kind, mode);
        let made = self.as_caller(cx, "create", |volume, caller| {
            volume.make(&Caller { umask, ..*caller }, ino(parent), name, &new)
        });
        Ok(self.entry(&made?))
    }

    /// Clears set-id bits of a file whose contents change. The kernel does not ask for the mode again, and
    /// would otherwise still honour the bits.
    pub(super) fn clear_privileges(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        clear: fn(&Volume, &Context<'_>, NodeId) -> Result<bool>,
    ) -> Result<()> {
        if clear(&self.volume(), cx, node)? {
            self.attributes_changed(node);
        }
        Ok(())
    }

    /// Ends the sessions of attached programs, and fails while a clone or a regrouping changes the volume.
    /// Only for root and the user who mounted it.
    pub(super) fn end_changes(&self, uid: u32) -> cffs::error::Result<()> {
        fuse_ring::will_wait();
        self.control.check_unchanged(uid)?;
        self.sessions.interrupt()
    }

    /// Makes the kernel drop the cached attributes of a file.
    pub(super) fn attributes_changed(&self, node: NodeId) {
        self.caches.changed(Change::Attributes(ino(node)));
    }
}
