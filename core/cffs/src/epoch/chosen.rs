//! Files that are written ahead of their epoch.

use std::sync::Arc;

use super::placing::Rank;
use crate::inode::Vnode;
use crate::units::FileBlock;

/// A file, and its pages that are written.
pub(super) struct Chosen {
    pub(super) rank: Rank,
    pub(super) vnode: Arc<Vnode>,
    pub(super) positions: Vec<FileBlock>,
}
