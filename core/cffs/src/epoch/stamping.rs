//! Stamping changes with the count of marks, so that what changed since a mark is found without a walk.
//!
//! ```text
//!   /      changed 1  below 3 ──▶ a directory with a count that is older than the mark is not entered
//!   ├ a/   changed 2  below 3
//!   │ └ f  changed 3
//!   └ b/   changed 1  below 1
//! ```
//!
//! Invariant: in each complete epoch, the count `below` of a container is at least the counts of the inodes
//! in it. After a crash the device may have a part of an epoch; recovery then records in the superblock that
//! the counts `below` are not valid for earlier marks ([`marks_walked`]).
//!
//! [`marks_walked`]: crate::format::Superblock::marks_walked

use std::collections::HashMap;
use std::sync::Arc;

use super::prepare::Preparation;
use crate::error::Result;
use crate::inode::{Vnode, VnodeGuard};
use crate::units::{Container, InodeNo};

impl Preparation<'_> {
    /// Stamps the changed inodes of the epoch, and all directories above them. Only the first change below a
    /// directory since a mark changes its inode.
    pub(crate) fn stamp(&mut self) {
        let stamp = self.inodes.stamp();
        if stamp == 0 {
            return;
        }
        let mut done = HashMap::new();
        let changed: Vec<Arc<Vnode>> = self.batch.vnodes().cloned().collect();
        for vnode in &changed {
            let (newest, container) = {
                let mut file = VnodeGuard::new(vnode);
                if !file.changes.dirty {
                    continue;
                }
                if file.inode.stamp(stamp) {
                    // An fsync includes it: the change itself may be in another sector.
                    self.inodes.mark_dirty(&mut file);
                }
                (file.inode.stamps.newest(), file.container)
            };
            if let Err(error) = self.stamp_above(container, newest, &mut done) {
                self.unread = Some(error);
            }
        }
        self.collect();
    }

    /// Raises the counts of the containers above an inode. `done` has those that are known to be high enough.
    fn stamp_above(
        &self,
        mut container: Option<Container>,
        newest: u32,
        done: &mut HashMap<InodeNo, u32>,
    ) -> Result<()> {
        while let Some(Container { file, .. }) = container.filter(|at| at.file != InodeNo::SYSTEM) {
            if done.get(&file).is_some_and(|known| *known >= newest) {
                break;
            }
            done.insert(file, newest);
            let holder = self.inodes.get(file)?;
            let mut dir = VnodeGuard::new(&holder);
            if dir.inode.stamps.below >= newest {
                break;
            }
            dir.inode.stamps.below = newest;
            self.inodes.mark_dirty(&mut dir);
            container = dir.container;
        }
        Ok(())
    }
}
