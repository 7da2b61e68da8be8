//! The vnodes of an epoch: the changed ones.

use std::sync::Arc;

use super::placing::{Rank, put_in_order};
use crate::inode::Vnode;

/// The vnodes of an epoch, each once.
#[derive(Default)]
pub(crate) struct Batch(Vec<(Rank, Arc<Vnode>)>);

impl Batch {
    /// Adds vnodes, some of which the batch may have. They mostly come in the order of their ranks,
    /// which makes this sort cheap.
    pub(crate) fn add(&mut self, more: Vec<(Rank, Arc<Vnode>)>) {
        if !more.is_empty() {
            self.0.extend(more);
            self.0.sort_by_key(|(rank, _)| *rank);
            self.0.dedup_by_key(|(rank, _)| *rank);
        }
    }

    /// All of them, in the order in which their files are to be placed.
    pub(crate) fn in_order(&self) -> Vec<&Arc<Vnode>> {
        let mut vnodes: Vec<&(Rank, Arc<Vnode>)> = self.0.iter().collect();
        put_in_order(&mut vnodes, |(rank, vnode)| (*rank, vnode));
        vnodes.into_iter().map(|(_, vnode)| vnode).collect()
    }

    /// All of them, by rank.
    pub(crate) fn vnodes(&self) -> impl Iterator<Item = &Arc<Vnode>> {
        self.0.iter().map(|(_, vnode)| vnode)
    }

    /// The vnodes whose pages are sectors or derived state: directories and system inodes. Regular files are
    /// many more, and are not locked.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &Arc<Vnode>> {
        let is_container = |(rank, vnode): &&(Rank, Arc<Vnode>)| {
            let (_, is_file, _) = *rank;
            is_file == 0 || vnode.ino.is_system()
        };
        self.0.iter().filter(is_container).map(|(_, vnode)| vnode)
    }
}
