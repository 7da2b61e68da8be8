//! In builds with debug assertions: the fragments in sets that are being assembled or written, so that a read
//! of one of them from the device fails at once.
//!
//! Changes that are not yet on the device must be found in memory: a page in flight hides its block, and a
//! vnode keeps its attributes and its map until their epoch is on the device. A reader that reads such a
//! fragment from the device would get the data of an earlier owner.

use crate::format::Layout;
use crate::units::{BlockNo, FragRun};

#[cfg(debug_assertions)]
mod kept {
    use std::collections::HashMap;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use crate::units::BlockNo;

    /// The fragments, one bit each, by block.
    #[derive(Clone, Debug, Default)]
    pub struct Unwritten(Arc<Mutex<HashMap<BlockNo, u64>>>);

    impl Unwritten {
        pub(in crate::cache) fn expect(&self, block: BlockNo, fragments: u64) {
            *self.0.lock().entry(block).or_default() |= fragments;
        }

        pub(in crate::cache) fn clear(&self) {
            self.0.lock().clear();
        }

        pub(super) fn has(&self, block: BlockNo, fragments: u64) -> bool {
            self.0.lock().get(&block).is_some_and(|unwritten| unwritten & fragments != 0)
        }
    }
}

#[cfg(not(debug_assertions))]
mod kept {
    use crate::units::BlockNo;

    #[derive(Clone, Debug, Default)]
    pub struct Unwritten;

    impl Unwritten {
        #[inline(always)]
        pub(in crate::cache) fn expect(&self, _: BlockNo, _: u64) {}

        #[inline(always)]
        pub(in crate::cache) fn clear(&self) {}

        #[inline(always)]
        pub(super) fn has(&self, _: BlockNo, _: u64) -> bool {
            false
        }
    }
}

pub use kept::Unwritten;

/// The fragments of a block from one on, as bits.
pub(super) fn fragments(first: u64, count: u64) -> u64 {
    let all = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    all << first
}

impl Unwritten {
    /// Fails if a set that is not on the device yet covers part of this run.
    ///
    /// # Panics
    ///
    /// In builds with debug assertions, if it does.
    #[inline]
    pub fn assert_none_in(&self, layout: &Layout, run: FragRun) {
        if !cfg!(debug_assertions) || run.len == 0 {
            return;
        }
        let per_block = u64::from(layout.block_fragments());
        let (start, end) = (run.start.0, run.end().0);
        for block in start / per_block..end.div_ceil(per_block) {
            let first = start.max(block * per_block);
            let count = end.min((block + 1) * per_block) - first;
            let covered = fragments(first - block * per_block, count);
            let is_unwritten = self.has(BlockNo(block), covered);
            assert!(!is_unwritten, "{run:?} is read from the device before it is written there");
        }
    }
}
