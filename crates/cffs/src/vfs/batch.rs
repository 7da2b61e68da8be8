//! The vnodes of an epoch: those that were changed, in the order in which their files are to lie.

use std::sync::Arc;

use super::placing::Rank;
use crate::inode::Vnode;

/// The vnodes of an epoch, each once.
#[derive(Default)]
pub(super) struct Batch(Vec<(Rank, Arc<Vnode>)>);

impl Batch {
    /// Adds vnodes, of which the batch may have some. They mostly come in the order in which they are to
    /// lie, for which this sort takes little.
    pub(super) fn add(&mut self, more: Vec<(Rank, Arc<Vnode>)>) {
        if !more.is_empty() {
            self.0.extend(more);
            self.0.sort_by_key(|(rank, _)| *rank);
            self.0.dedup_by_key(|(rank, _)| *rank);
        }
    }

    /// All of them.
    pub(super) fn vnodes(&self) -> impl Iterator<Item = &Arc<Vnode>> {
        self.0.iter().map(|(_, vnode)| vnode)
    }

    /// Those whose pages are sectors or derived state: directories and what is the volume's own. Files are
    /// many more, and are not looked at.
    pub(super) fn containers(&self) -> impl Iterator<Item = &Arc<Vnode>> {
        let is_container = |(rank, vnode): &&(Rank, Arc<Vnode>)| {
            let (_, is_file, _) = *rank;
            is_file == 0 || vnode.ino.is_system()
        };
        self.0.iter().filter(is_container).map(|(_, vnode)| vnode)
    }
}
