//! Files that are not to change: `chattr +i` and `chattr +a`.
//!
//! Offers the checks that the operations make ([`Protections`]). On a FUSE mount, the kernel does not enforce
//! these flags, so they are enforced here, for all users: even root has to clear them first.
//!
//! | | immutable | append-only |
//! | --- | --- | --- |
//! | contents | do not change | grow at their end; space is reserved anywhere |
//! | attributes | do not change | do not change, but both times can be set to now |
//! | its names | none is added, removed or changed | the same |
//! | names in it (of a directory) | none is added or removed | are added, not removed |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::write::Start;
use super::{AllocateMode, SetAttr, SetTime};
use crate::error::{Error, Result};
use crate::format::inode::InodeFlags;
use crate::inode::Vnode;
use crate::namespace::{Names, Namespace};

/// The protections of the files of a volume.
#[derive(Debug)]
pub(super) struct Protections {
    /// Whether any file may be protected. On most volumes none is, and this check is cheap.
    any: AtomicBool,
}

impl Protections {
    pub(super) fn new(any: bool) -> Protections {
        Protections { any: AtomicBool::new(any) }
    }

    /// Whether any file may be protected.
    pub(super) fn are_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Notes that files may be protected from now on.
    pub(super) fn expect_some(&self) {
        self.any.store(true, Ordering::Release);
    }

    fn of(&self, vnode: &Vnode) -> InodeFlags {
        if self.are_any() {
            vnode.state.read().inode.flags & InodeFlags::PROTECTION
        } else {
            InodeFlags::empty()
        }
    }

    /// Fails if the file may not change except by appends.
    pub(super) fn check_unprotected(&self, vnode: &Vnode) -> Result<()> {
        refuse_if(!self.of(vnode).is_empty())
    }

    /// Fails if these attributes may not change. An append sets an append-only file's times and clears its
    /// set-id bits, so a call may do this without an append.
    pub(super) fn check_set_attr(&self, vnode: &Vnode, changes: &SetAttr) -> Result<()> {
        let now = Some(SetTime::Now);
        let touch = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
        let clear = SetAttr { clear_privileges: changes.clear_privileges, ..SetAttr::default() };
        self.check_append(vnode, || *changes == touch || *changes == clear)
    }

    /// Fails if contents may not be written there.
    pub(super) fn check_write(&self, vnode: &Vnode, start: Start) -> Result<()> {
        self.check_append(vnode, || match start {
            Start::At(offset) => offset >= vnode.state.read().inode.size,
            Start::End => true,
        })
    }

    /// Fails if a range may not be changed in this way. Reserving does not change existing contents: on
    /// Linux, it is permitted anywhere in an append-only file.
    pub(super) fn check_allocate(&self, vnode: &Vnode, mode: AllocateMode) -> Result<()> {
        self.check_append(vnode, || match mode {
            AllocateMode::Reserve | AllocateMode::ReserveKeepSize => true,
            AllocateMode::PunchHole | AllocateMode::ZeroRange { .. } => false,
        })
    }

    /// Fails if the file is immutable, or if it is append-only and the change is not an append.
    fn check_append(&self, vnode: &Vnode, is_append: impl FnOnce() -> bool) -> Result<()> {
        let protection = self.of(vnode);
        let may_grow = protection == InodeFlags::APPEND_ONLY && is_append();
        refuse_if(!protection.is_empty() && !may_grow)
    }

    /// Fails if no name may be added to the directory.
    pub(super) fn check_new_name(&self, dir: &Vnode) -> Result<()> {
        refuse_if(self.of(dir).contains(InodeFlags::IMMUTABLE))
    }

    /// Fails if this name may not be removed, because of its directory or its file.
    pub(super) fn check_old_name(
        &self,
        namespace: &Namespace,
        dir: &Arc<Vnode>,
        name: &[u8],
    ) -> Result<()> {
        if !self.are_any() {
            return Ok(());
        }
        match namespace.lookup(dir, name) {
            Ok(vnode) => refuse_if(!(self.of(dir) | self.of(&vnode)).is_empty()),
            Err(Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Fails if a rename removes or adds a name that must not be.
    pub(super) fn check_rename(&self, namespace: &Namespace, names: &Names<'_>) -> Result<()> {
        self.check_old_name(namespace, names.from, names.name)?;
        self.check_old_name(namespace, names.to, names.new_name)?;
        self.check_new_name(names.to)
    }
}

fn refuse_if(protected: bool) -> Result<()> {
    if protected { Err(Error::NotPermitted) } else { Ok(()) }
}
