//! The bytes that a file occupies, as stat(2) reports them and quotas charge them.

use super::{Content, Mapping, VnodeState};
use crate::format::Layout;
use crate::format::inode::FileType;
use crate::format::quota::STAT_BLOCK_BYTES;
use crate::units::{FileBlock, FileFrag};

impl VnodeState {
    /// The bytes that the file occupies. Counting them visits all of its changed pages.
    pub fn allocated_bytes(&self, layout: &Layout) -> u64 {
        // An epoch must not change the sum by itself, since no front end is notified of it: contents
        // count whether they are placed or not, extent blocks and attributes do not.
        let waiting = self.promised.blocks * u64::from(layout.block_fragments());
        let fragments = self.contents_fragments(layout) + waiting;
        // Contents in the inode count too: a file with a size and no blocks is a hole for tar and others,
        // which then do not read it.
        let inline_bytes = match &self.inode.content {
            Content::Inline(bytes) if self.inode.file_type == FileType::Regular => {
                bytes.len() as u64
            }
            _ => 0,
        };
        fragments * u64::from(layout.fragment_bytes) + inline_bytes
    }

    /// The bytes that the file is to be charged with: those of `st_blocks`, which counts contents in the
    /// inode in whole units.
    pub fn charge(&self, layout: &Layout) -> u64 {
        self.allocated_bytes(layout).next_multiple_of(STAT_BLOCK_BYTES)
    }

    /// Charges the file with its present space when its last changed page is placed. Placing a small file
    /// frees a reservation after its end, and moving a file can give it the rest of its last block. While
    /// changed pages wait, counting takes a look at each: once for each cluster that gets some of them.
    pub(super) fn settle_placed(&mut self, layout: &Layout) {
        if self.pages.dirty_count() > 0 {
            return;
        }
        if let (Some(account), Some(charged)) = (&self.quota.account, self.quota.charged) {
            let now = self.charge(layout);
            account.add(now as i64 - charged as i64, 0);
            self.quota.charged = Some(now);
        }
    }

    /// The fragments of the contents, including those that changed pages will get.
    fn contents_fragments(&self, layout: &Layout) -> u64 {
        let Some(map) = self.inode.map() else { return 0 };
        if self.promised.fragments == 0 {
            return map.mapped();
        }
        let end = layout.fragments_for(self.inode.size);
        let unmapped = |page: FileBlock| {
            let fragments = layout.file_frags(page);
            let fragments = (fragments.start.0..fragments.end.0.min(end)).map(FileFrag);
            fragments.filter(|fragment| matches!(map.find(*fragment), Mapping::Hole(_))).count()
        };
        let waiting: usize = self.pages.dirty_in(FileBlock::ALL).map(unmapped).sum();
        map.mapped() + waiting as u64
    }
}

#[cfg(test)]
mod tests;
