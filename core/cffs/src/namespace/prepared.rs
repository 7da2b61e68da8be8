//! Files that get their names later in the same change: [`Prepared`].

use std::sync::Arc;

use super::Namespace;
use crate::alloc::Spender;
use crate::error::{Error, Result};
use crate::format::sector::entry_bytes;
use crate::inode::{Inode, Vnode, VnodeGuard};
use crate::units::InodeNo;

/// A new file that has its number, and promised space for its name. No other change may be in progress until
/// it gets the name or is given up.
pub struct Prepared<'a> {
    namespace: &'a Namespace,
    parent: &'a Arc<Vnode>,
    name: &'a [u8],
    vnode: Arc<Vnode>,
    /// The blocks that are promised.
    blocks: u64,
}

impl<'a> Prepared<'a> {
    /// Prepares a file for a name that the directory loses before: `build` gets its number, its generation
    /// and the directory's inode.
    pub fn new(
        namespace: &'a Namespace,
        parent: &'a Arc<Vnode>,
        name: &'a [u8],
        build: impl FnOnce(InodeNo, u32, &Inode) -> Inode,
    ) -> Result<Prepared<'a>> {
        let mut dir = VnodeGuard::new(parent);
        namespace.check_dir(&dir)?;
        let (inodes, plan) = (&namespace.inodes, namespace.inodes.space());
        // A block of sectors, of the directory and of the external table, and their extents. One more, since
        // the new name of the renamed file can add extents to the directory as well.
        let mut blocks = plan.blocks_promised_max(&dir) + 1;
        if !inodes.features.embed {
            let table = inodes.system(InodeNo::EXTERNAL)?;
            blocks += plan.blocks_promised_max(&table.state.read());
        }
        inodes.alloc.promise_blocks(blocks, Spender::Privileged)?;
        let begun = namespace.begin(&mut dir, build);
        let vnode = begun.inspect_err(|_| inodes.alloc.withdraw_blocks(blocks))?;
        let len = {
            let encoded = namespace.encode_new(&VnodeGuard::new(&vnode));
            entry_bytes(name.len(), encoded.record().len())
        };
        let prepared = Prepared { namespace, parent, name, vnode, blocks };
        // The name takes a sector that can be read.
        match namespace.room_in(&mut dir, len) {
            Ok(_) => Ok(prepared),
            Err(error) => prepared.give_up().and(Err(error)),
        }
    }

    /// Gives the file its name, which the directory must not have any more. It fails only if a block cannot
    /// be read.
    pub fn enter(self) -> Result<Arc<Vnode>> {
        let Prepared { namespace, parent, name, vnode, blocks } = self;
        namespace.inodes.alloc.withdraw_blocks(blocks);
        let hash = namespace.hash(name)?;
        let mut dir = VnodeGuard::new(parent);
        let entered = namespace.enter(&mut dir, name, hash, &vnode);
        if let Err(error) = entered {
            debug_assert!(!matches!(error, Error::NoSpace | Error::EpochNeeded), "{error}");
            namespace.give_up(&vnode)?;
            return Err(error);
        }
        namespace.recent.note(dir.inode.ino, hash, name, vnode.ino);
        Ok(namespace.inodes.insert(vnode))
    }

    /// Frees the number and the space.
    pub fn give_up(self) -> Result<()> {
        self.namespace.inodes.alloc.withdraw_blocks(self.blocks);
        self.namespace.give_up(&self.vnode)
    }
}
