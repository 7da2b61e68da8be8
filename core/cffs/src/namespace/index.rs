//! The hash index of a large directory: derived state in the directory's own file.
//!
//! A directory gets an index when it outgrows [`large_dir_bytes`](crate::tuning::Writing::large_dir_bytes).
//! The index is a linear hash table and grows by one bucket at a time, so that no single insertion pays for
//! all. If the index fails (a bad block, no space), the directory is scanned without one.

use std::sync::Arc;

use crate::cache::Block;
use crate::error::{Error, Result};
use crate::format::index;
use crate::inode::{Holder, Inode, InodeCache, VnodeGuard, VnodeState};
use crate::units::{FileBlock, FileFrag, SectorIndex};

/// The average fill of the buckets. Those that wait for their split have up to twice the share of the others,
/// and hashes vary around that: with 508 entries per block, this leaves eight standard deviations before a
/// bucket overflows and its names must be searched for in the whole directory.
const FILL_PERCENT: u32 = 35;

/// The indexes of directories.
#[derive(Clone, Copy)]
pub(super) struct DirIndex<'a> {
    pub(super) inodes: &'a InodeCache,
}

impl DirIndex<'_> {
    /// The bucket that lists all names with this hash; `None` if only a scan can find out.
    pub(super) fn find(&self, dir: &VnodeState, hash: u32) -> Result<Option<Arc<Block>>> {
        let buckets = dir.inode.bucket_count;
        if buckets == 0 {
            return Ok(None);
        }
        match self.bucket(dir, index::bucket_of(hash, buckets)) {
            Ok(bucket) if !index::overflowed(&bucket) => Ok(Some(bucket)),
            // An index that cannot be read is as good as none.
            Ok(_) | Err(Error::Corruption(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn bucket(&self, dir: &VnodeState, bucket: u32) -> Result<Arc<Block>> {
        let layout = &self.inodes.layout;
        let position = FileBlock(index::index_base(layout.block_bytes) + u64::from(bucket));
        match dir.pages.get(position) {
            Some(page) => Ok(page.clone()),
            None => self.clean_bucket(&dir.inode, bucket, position),
        }
    }

    /// The bucket as the device has it.
    fn clean_bucket(&self, dir: &Inode, bucket: u32, position: FileBlock) -> Result<Arc<Block>> {
        let (ino, generation) = (dir.ino, dir.generation);
        let fragments = self.inodes.layout.block_fragments();
        let what = "missing";
        let missing = crate::error::Corruption::IndexBlock { dir: ino, index: bucket, what };
        let number = dir.map().and_then(|map| map.block_at(position, fragments)).ok_or(missing)?;
        let block = self.inodes.contents().read_whole(number)?;
        block.verify_as(ino, |bytes| {
            index::verify(bytes, ino, generation, bucket, self.inodes.checksum)
        })?;
        Ok(block)
    }

    fn bucket_mut<'a>(&self, dir: &'a mut VnodeGuard<'_>, bucket: u32) -> Result<&'a mut Block> {
        let base = index::index_base(self.inodes.layout.block_bytes);
        let position = FileBlock(base + u64::from(bucket));
        let holder = Holder::of(dir);
        self.inodes.queue(dir.vnode);
        let (block, made_dirty) = self
            .inodes
            .dirty_page_or(dir, position, |dir| self.clean_bucket(dir, bucket, position))?;
        if made_dirty {
            self.inodes.intent_log.bucket(&holder, bucket);
        }
        debug_assert!(self.inodes.intent_log.has_bucket(&holder, bucket), "the bucket is noted");
        Ok(block)
    }

    fn add_bucket(&self, dir: &mut VnodeGuard<'_>, bucket: u32) -> Result<()> {
        self.inodes.space().promise_block(dir)?;
        let mut block = Block::zeroed(self.inodes.layout.block_bytes as usize);
        index::init(&mut block, dir.inode.ino, dir.inode.generation, bucket);
        block.trust_as(dir.inode.ino);
        self.inodes.intent_log.bucket(&Holder::of(dir), bucket);
        let base = index::index_base(self.inodes.layout.block_bytes);
        let position = FileBlock(base + u64::from(bucket));
        self.inodes.count_dirty(dir, |dir| {
            dir.pages.insert(position, Arc::new(block));
        });
        dir.inode.bucket_count = bucket + 1;
        self.inodes.mark_dirty(dir);
        Ok(())
    }

    /// Adds a new name; makes the index if the directory needs one now.
    pub(super) fn insert(
        &self,
        dir: &mut VnodeGuard<'_>,
        hash: u32,
        sector: SectorIndex,
    ) -> Result<()> {
        if dir.inode.bucket_count == 0 {
            let large = dir.inode.size > self.inodes.cache.tuning().writing.large_dir_bytes;
            return if large && self.inodes.features.dir_index {
                self.without_index_on_failure(dir, DirIndex::build)
            } else {
                Ok(())
            };
        }
        self.without_index_on_failure(dir, |own, dir| {
            own.add(dir, hash, sector)?;
            own.split_if_full(dir)
        })
    }

    fn add(&self, dir: &mut VnodeGuard<'_>, hash: u32, sector: SectorIndex) -> Result<()> {
        let bucket = index::bucket_of(hash, dir.inode.bucket_count);
        index::insert(self.bucket_mut(dir, bucket)?, hash, sector);
        Ok(())
    }

    /// Records that a name was removed.
    pub(super) fn remove(
        &self,
        dir: &mut VnodeGuard<'_>,
        hash: u32,
        sector: SectorIndex,
    ) -> Result<()> {
        let buckets = dir.inode.bucket_count;
        if buckets == 0 {
            return Ok(());
        }
        self.without_index_on_failure(dir, |own, dir| {
            let bucket = own.bucket_mut(dir, index::bucket_of(hash, buckets))?;
            index::remove(bucket, hash, sector);
            Ok(())
        })
    }

    fn build(&self, dir: &mut VnodeGuard<'_>) -> Result<()> {
        self.inodes.intent_log.index(dir.inode.ino);
        self.add_bucket(dir, 0)?;
        for sector in (0..self.inodes.containers().sector_count(dir)).map(SectorIndex) {
            let image = self.inodes.containers().sector(dir, sector)?;
            for entry in image.get().entries() {
                self.add(dir, entry.hash, sector)?;
                // One at a time here too: a single bucket could not list all names.
                self.split_if_full(dir)?;
            }
        }
        let wanted = self.buckets_wanted(dir);
        while dir.inode.bucket_count < wanted {
            self.split(dir)?;
        }
        Ok(())
    }

    fn buckets_wanted(&self, dir: &VnodeState) -> u32 {
        let capacity = index::bucket_capacity(self.inodes.layout.block_bytes) as u32;
        dir.inode.entry_count.div_ceil(capacity * FILL_PERCENT / 100)
    }

    fn split_if_full(&self, dir: &mut VnodeGuard<'_>) -> Result<()> {
        if dir.inode.bucket_count < self.buckets_wanted(dir) { self.split(dir) } else { Ok(()) }
    }

    /// Adds the next bucket and moves its entries there.
    fn split(&self, dir: &mut VnodeGuard<'_>) -> Result<()> {
        let new = dir.inode.bucket_count;
        let old = new - (new + 1).next_power_of_two() / 2;
        self.add_bucket(dir, new)?;
        let source = self.bucket_mut(dir, old)?;
        let moving: Vec<(u32, SectorIndex)> = index::entries(source)
            .filter(|(hash, _)| index::bucket_of(*hash, new + 1) == new)
            .collect();
        let overflowed = index::overflowed(source);
        for (hash, sector) in &moving {
            index::remove(source, *hash, *sector);
        }
        let target = self.bucket_mut(dir, new)?;
        for (hash, sector) in moving {
            index::insert(target, hash, sector);
        }
        if overflowed {
            // An entry that found no room may belong to either bucket; a new index lists everything.
            return Err(Error::Invalid("an overflowed bucket cannot be split"));
        }
        Ok(())
    }

    fn without_index_on_failure(
        &self,
        dir: &mut VnodeGuard<'_>,
        change: impl FnOnce(&Self, &mut VnodeGuard<'_>) -> Result<()>,
    ) -> Result<()> {
        match change(self, dir) {
            Err(Error::Corruption(_) | Error::NoSpace | Error::Invalid(_)) => self.drop_all(dir),
            other => other,
        }
    }

    /// Drops the index; the next insertion makes a new one.
    fn drop_all(&self, dir: &mut VnodeGuard<'_>) -> Result<()> {
        self.inodes.intent_log.index(dir.inode.ino);
        let layout = &self.inodes.layout;
        let base = FileBlock(index::index_base(layout.block_bytes));
        self.inodes.writer().drop_blocks(dir, base..FileBlock::END);
        let first = layout.file_frag(base);
        self.inodes.space().unmap(dir, first..FileFrag::END);
        dir.inode.bucket_count = 0;
        self.inodes.mark_dirty(dir);
        Ok(())
    }
}
