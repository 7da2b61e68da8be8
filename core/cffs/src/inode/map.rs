//! The bmap: the places of a file's fragments.
//!
//! Memory has all extents of a file. On the device the newest are in the inode and the others in the leaves
//! of a tree (the bmap cache of the Solaris paper, as extents). A change of an extent in a leaf dirties the
//! leaf. When the inode has no room for more new extents, all move to their leaves, and the dirty leaves are
//! written to new places with the blocks above them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::DIRECT_EXTENTS_MIN;
use super::extents::{Extents, Kept};
use crate::error::Result;
use crate::format::extent::{Child, EXTENT_FRAGMENTS_MAX, Extent, Node, node_capacity};
use crate::units::{BlockNo, FileBlock, FileFrag, FragNo, FragRun};

/// The mapping of a fragment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// This many fragments from here on are in one piece at `start`.
    Mapped {
        /// The fragment's place.
        start: FragNo,
        /// The length of the run that begins with it.
        len: u64,
        /// Whether they were never written and read as zeros.
        unwritten: bool,
    },
    /// This many fragments from here on are in a cluster.
    InCluster {
        /// The run of the cluster.
        run: FragRun,
        /// The fragment's place in the expanded contents.
        offset: u32,
        /// The number of adjacent fragments there, including this one.
        len: u64,
    },
    /// This many fragments from here on have no place; `u64::MAX` after the last extent.
    Hole(u64),
}

/// The space that a map gave up.
#[derive(Debug, Default)]
pub struct Removed {
    /// Runs that no longer belong to a file.
    pub runs: Vec<FragRun>,
    /// Clusters that lost a reference.
    pub released: Vec<FragRun>,
    /// Clusters that gained a reference, because a hole split an extent in two. One of the two is removed
    /// before the epoch starts.
    pub shared: Vec<FragRun>,
    /// The clusters of removed extents, with the number of the map's extents that referred to each before.
    pub referred: Vec<(FragRun, u8)>,
}

impl Removed {
    /// Whether nothing changed. An extent of a cluster that became shorter frees nothing, but the intent log
    /// records it, so the inode must go with the same epoch.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.released.is_empty()
            && self.shared.is_empty()
            && self.referred.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// The leaf's block; `None` before it is first written.
    block: Option<BlockNo>,
    dirty: bool,
}

/// Approximate memory of a leaf of the tree.
const LEAF_BYTES: u64 = 48;

/// The most extents that a change of one in a cluster goes through.
const COUNTED_EXTENTS: usize = 64;

/// The extents of a file. Many files are in memory and few have a tree, so the tree is allocated separately.
#[derive(Debug, Default)]
pub struct ExtentMap {
    mapped: u64,
    /// The count of extents that are in the inode.
    direct_count: u32,
    /// The count of extents that were reserved and never written. Each write of a page reads it.
    unwritten_count: u32,
    extents: Extents,
    tree: Option<Box<Tree>>,
}

/// The blocks of the device with the extents that are not in the inode.
#[derive(Debug, Default)]
struct Tree {
    /// For a file with more than [`COUNTED_EXTENTS`], once a change needed it: the clusters to which extents
    /// refer, with the number of these extents.
    clusters: Option<BTreeMap<FragRun, u8>>,
    /// The leaves, each by the first fragment that belongs to it.
    leaves: BTreeMap<u64, Leaf>,
    /// The blocks above the leaves.
    inner: Vec<BlockNo>,
    root: Option<BlockNo>,
    depth: u8,
}

static NO_TREE: Tree =
    Tree { clusters: None, leaves: BTreeMap::new(), inner: Vec::new(), root: None, depth: 0 };

/// The services that writing a tree needs.
pub trait TreeWriter {
    /// Allocates a block.
    fn allocate(&mut self) -> Result<BlockNo>;
    /// Writes a node `depth` levels above the leaves.
    fn write(&mut self, block: BlockNo, depth: u8, node: &Node);
    /// Frees a block.
    fn free(&mut self, block: BlockNo);
}

impl ExtentMap {
    /// The extents that are in the inode.
    pub fn direct(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter().filter(|kept| kept.direct).map(|kept| &kept.extent)
    }

    /// All extents in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter().map(|kept| &kept.extent)
    }

    fn tree(&self) -> &Tree {
        self.tree.as_deref().unwrap_or(&NO_TREE)
    }

    fn tree_mut(&mut self) -> &mut Tree {
        self.tree.get_or_insert_default()
    }

    /// The root block of the tree.
    pub fn root(&self) -> Option<BlockNo> {
        self.tree().root
    }

    /// The height of the tree: 0 if its root is a leaf, or if there is none.
    pub fn depth(&self) -> u8 {
        self.tree().depth
    }

    /// The blocks of the tree.
    pub fn tree_blocks(&self) -> impl Iterator<Item = BlockNo> {
        let Tree { leaves, inner, .. } = self.tree();
        inner.iter().copied().chain(leaves.values().filter_map(|leaf| leaf.block))
    }

    /// The fragments that contents are mapped to.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// The fragments that the file occupies, its tree included.
    pub fn fragments(&self, block_fragments: u32) -> u64 {
        if self.tree.is_none() {
            return self.mapped;
        }
        self.mapped + self.tree_blocks().count() as u64 * u64::from(block_fragments)
    }

    /// The most blocks that [`ExtentMap::write_tree`] allocates after `changes` extents were added or removed
    /// since its last call.
    pub fn tree_blocks_max(&self, changes: u64, block_bytes: u32) -> u64 {
        let capacity = node_capacity(block_bytes) as u64;
        let chunk = capacity * 3 / 4;
        let leaves = self.tree().leaves.len() as u64;
        let written = if leaves == 0 {
            let extents = self.extents.len() as u64 + changes;
            if extents <= DIRECT_EXTENTS_MIN as u64 { 0 } else { extents.div_ceil(chunk) }
        } else {
            // An extent is added to one leaf and may lengthen the leaf before it. A full leaf that gains
            // extents is split into two blocks, and takes further ones for the extents that it gained.
            let moved = changes + u64::from(self.direct_count);
            let touched = (2 * moved + 1).min(leaves);
            touched + 2 * touched.min(moved) + moved / chunk
        };
        let mut level = leaves + written;
        let mut inner = 0;
        while level > 1 {
            level = level.div_ceil(capacity);
            inner += level;
        }
        if written == 0 { 0 } else { written + inner }
    }

    /// The memory of many extents, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let of_tree = |tree: &Tree| {
            let inner = tree.inner.capacity() * size_of::<BlockNo>();
            tree.leaves.len() as u64 * LEAF_BYTES + (size_of::<Tree>() + inner) as u64
        };
        self.extents.memory_bytes() + self.tree.as_deref().map_or(0, of_tree)
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.extents.len() == 0
    }

    /// Whether some extent was reserved and never written.
    pub fn has_unwritten(&self) -> bool {
        self.unwritten_count > 0
    }

    /// The last extent in the order of the file that begins before `logical`.
    pub fn last_before(&self, logical: FileFrag) -> Option<&Extent> {
        self.extents.before(logical.0).map(|kept| &kept.extent)
    }

    /// Adds an extent of the inode or of a leaf while the inode is read.
    pub(super) fn load(&mut self, extent: Extent, direct: bool) -> Result<(), &'static str> {
        let before = self.last_before(FileFrag(extent.logical));
        if before.is_some_and(|before| before.logical_end() > extent.logical) {
            return Err("it overlaps another extent of the file");
        }
        let after = self.extents.at_or_after(extent.logical);
        if after.is_some_and(|after| after.extent.logical < extent.logical_end()) {
            return Err("it overlaps another extent of the file");
        }
        self.mapped += u64::from(extent.len);
        self.put(extent, direct);
        Ok(())
    }

    /// Adds a block of the tree while the inode is read.
    pub(super) fn load_node(&mut self, block: BlockNo, depth: u8, first: Option<u64>) {
        let tree = self.tree_mut();
        match first {
            Some(first) => {
                tree.leaves.insert(first, Leaf { block: Some(block), dirty: false });
            }
            None => tree.inner.push(block),
        }
        if tree.root.is_none() {
            tree.root = Some(block);
            tree.depth = depth;
        }
    }

    /// The place of a fragment of the file.
    pub fn find(&self, logical: FileFrag) -> Mapping {
        let logical = logical.0;
        if let Some(extent) = self.last_before(FileFrag(logical.saturating_add(1)))
            && logical < extent.logical_end()
        {
            let into = logical - extent.logical;
            let len = u64::from(extent.len) - into;
            if let Some(of) = extent.cluster {
                let offset = u32::from(of.offset) + into as u32;
                return Mapping::InCluster { run: extent.run(), offset, len };
            }
            return Mapping::Mapped {
                start: FragNo(extent.start.0 + into),
                len,
                unwritten: extent.unwritten,
            };
        }
        let next = self.extents.at_or_after(logical);
        Mapping::Hole(next.map_or(u64::MAX, |next| next.extent.logical - logical))
    }

    /// The block of the volume that holds a block of the file, if one block does, as for all metadata.
    pub fn block_at(&self, position: FileBlock, block_fragments: u32) -> Option<BlockNo> {
        let per_block = u64::from(block_fragments);
        match self.find(FileFrag(position.0 * per_block)) {
            Mapping::Mapped { start, len, unwritten: false }
                if len >= per_block && start.0.is_multiple_of(per_block) =>
            {
                Some(BlockNo(start.0 / per_block))
            }
            _ => None,
        }
    }

    /// Maps fragments that are not mapped.
    pub fn insert(&mut self, logical: FileFrag, run: FragRun, unwritten: bool) {
        debug_assert!(matches!(self.find(logical), Mapping::Hole(len) if len >= run.len.into()));
        let logical = logical.0;
        self.mapped += u64::from(run.len);
        // Only an extent in the inode grows. One in a leaf would dirty the leaf with each append.
        if let Some(Kept { extent: before, direct: true }) = self.extents.before_mut(logical)
            && before.logical_end() == logical
            && before.run().end() == run.start
            && before.unwritten == unwritten
            && before.cluster.is_none()
            && before.len + run.len <= EXTENT_FRAGMENTS_MAX
        {
            before.len += run.len;
            return;
        }
        self.put(Extent { unwritten, ..Extent::new(logical, run) }, true);
    }

    /// Maps fragments that are not mapped to a part of a cluster.
    pub fn insert_in_cluster(&mut self, extent: Extent) {
        assert!(extent.cluster.is_some(), "an extent of a cluster");
        let free = self.find(FileFrag(extent.logical));
        debug_assert!(matches!(free, Mapping::Hole(len) if len >= extent.len.into()));
        self.mapped += u64::from(extent.len);
        self.put(extent, true);
    }

    /// Maps unmapped fragments to parts of clusters to which other extents refer. Returns these clusters,
    /// each with the number of the map's extents that referred to it before.
    pub fn insert_shared(&mut self, extents: &[Extent]) -> Vec<(FragRun, u8)> {
        let mut before: BTreeMap<FragRun, u8> =
            extents.iter().map(|extent| (extent.run(), 0)).collect();
        before.extend(self.clusters(extents.iter().map(Extent::run)));
        extents.iter().for_each(|extent| self.insert_in_cluster(*extent));
        before.into_iter().collect()
    }

    /// The extent of a cluster that maps both the fragment before the range and the one after it.
    pub fn cluster_around(&self, range: &Range<FileFrag>) -> Option<&Extent> {
        let extent = self.last_before(range.start)?;
        (extent.cluster.is_some() && extent.logical_end() > range.end.0).then_some(extent)
    }

    /// Splits the extent that maps a fragment and the one before it. Returns the number of the map's extents
    /// that referred to its cluster before.
    pub fn split(&mut self, at: FileFrag) -> u8 {
        let extent = *self.last_before(at).expect("an extent maps the fragment before");
        let before = self.clusters([extent.run()].into_iter());
        let direct = self.take_out(extent.logical);
        self.put_back(extent.part(extent.logical..at.0), direct);
        self.put_back(extent.part(at.0..extent.logical_end()), direct);
        before.first().map_or(0, |(_, extents)| *extents)
    }

    /// Unmaps a range and returns the runs to which it was mapped.
    pub fn remove(&mut self, range: Range<FileFrag>) -> Removed {
        assert!(range.start <= range.end, "a range of a file");
        let before = self.last_before(range.start);
        let range = range.start.0..range.end.0;
        let first = before
            .filter(|extent| extent.logical_end() > range.start)
            .map_or(range.start, |extent| extent.logical);
        let touched: Vec<Extent> =
            self.extents.range(first..range.end).map(|kept| kept.extent).collect();
        let mut removed = Removed::default();
        if touched.iter().any(|extent| extent.cluster.is_some()) {
            removed.referred = self.clusters(touched.iter().map(Extent::run));
        }
        for extent in touched {
            let from = extent.logical.max(range.start);
            let to = extent.logical_end().min(range.end);
            let direct = self.take_out(extent.logical);
            self.mapped -= to - from;
            let rest = [extent.logical..from, to..extent.logical_end()];
            let rest: Vec<_> = rest.into_iter().filter(|part| !part.is_empty()).collect();
            match (extent.cluster, rest.len()) {
                (None, _) => removed.runs.push(extent.part(from..to).run()),
                (Some(_), 0) => removed.released.push(extent.run()),
                (Some(_), 1) => {}
                (Some(_), _) => removed.shared.push(extent.run()),
            }
            for part in rest {
                self.put_back(extent.part(part), direct);
            }
        }
        removed
    }

    /// Those of these runs that are clusters, with the number of extents that refer to each.
    fn clusters(&mut self, runs: impl Iterator<Item = FragRun>) -> Vec<(FragRun, u8)> {
        let mut runs: Vec<FragRun> = runs.collect();
        runs.sort_unstable();
        runs.dedup();
        if self.extents.len() <= COUNTED_EXTENTS {
            let counts = self.count_clusters();
            return runs.into_iter().filter_map(|run| Some((run, *counts.get(&run)?))).collect();
        }
        if self.tree().clusters.is_none() {
            self.tree_mut().clusters = Some(self.count_clusters());
        }
        let counts = self.tree().clusters.as_ref();
        let count = |run: FragRun| Some((run, *counts?.get(&run)?));
        runs.into_iter().filter_map(count).collect()
    }

    /// The counts that are kept.
    fn cluster_counts(&mut self) -> Option<&mut BTreeMap<FragRun, u8>> {
        self.tree.as_mut()?.clusters.as_mut()
    }

    fn count_clusters(&self) -> BTreeMap<FragRun, u8> {
        let mut counts = BTreeMap::new();
        for extent in self.iter().filter(|extent| extent.cluster.is_some()) {
            let count: &mut u8 = counts.entry(extent.run()).or_default();
            *count = count.saturating_add(1);
        }
        counts
    }

    /// The clusters that the map refers to, with the number of extents that refer to each.
    pub fn all_clusters(&self) -> Vec<(FragRun, u8)> {
        self.count_clusters().into_iter().collect()
    }

    fn put(&mut self, extent: Extent, direct: bool) {
        if extent.cluster.is_some()
            && let Some(counts) = self.cluster_counts()
        {
            let count = counts.entry(extent.run()).or_default();
            *count = count.saturating_add(1);
        }
        self.extents.insert(Kept { extent, direct });
        self.direct_count += u32::from(direct);
        self.unwritten_count += u32::from(extent.unwritten);
    }

    fn take_out(&mut self, logical: u64) -> bool {
        let kept = self.extents.remove(logical);
        if let Some(Kept { extent, .. }) = &kept
            && extent.cluster.is_some()
            && let Some(counts) = self.cluster_counts()
            && let Some(count) = counts.get_mut(&extent.run())
        {
            *count -= 1;
            if *count == 0 {
                counts.remove(&extent.run());
            }
        }
        let direct = kept.is_some_and(|kept| kept.direct);
        self.direct_count -= u32::from(direct);
        self.unwritten_count -= u32::from(kept.is_some_and(|kept| kept.extent.unwritten));
        if !direct {
            self.dirty_leaf(logical);
        }
        direct
    }

    fn put_back(&mut self, extent: Extent, direct: bool) {
        self.put(extent, direct);
        if !direct {
            self.dirty_leaf(extent.logical);
        }
    }

    fn dirty_leaf(&mut self, logical: u64) {
        let leaves = &mut self.tree_mut().leaves;
        let at_or_before = leaves.range(..=logical).next_back().map(|(first, _)| *first);
        let key = at_or_before.or_else(|| leaves.keys().next().copied()).unwrap_or(0);
        leaves.entry(key).or_insert(Leaf { block: None, dirty: true }).dirty = true;
    }

    /// Whether the inode has room for the new extents and no leaf changed, so that
    /// [`ExtentMap::write_tree`] has nothing to do.
    pub fn fits(&self, direct_max: usize) -> bool {
        let is_changed = || self.tree().leaves.values().any(|leaf| leaf.dirty);
        self.direct_count as usize <= direct_max && !is_changed()
    }

    /// Brings the tree up to date so that at most `direct_max` extents stay in the inode.
    pub fn write_tree(
        &mut self,
        direct_max: usize,
        block_bytes: u32,
        writer: &mut dyn TreeWriter,
    ) -> Result<()> {
        if self.direct_count as usize > direct_max {
            let direct: Vec<Extent> = self.direct().copied().collect();
            for extent in direct {
                self.merge_into_tree(extent);
            }
        }
        let leaves = self.tree().leaves.iter();
        let dirty: Vec<u64> =
            leaves.filter(|(_, leaf)| leaf.dirty).map(|(first, _)| *first).collect();
        if dirty.is_empty() {
            return Ok(());
        }
        let capacity = node_capacity(block_bytes);
        for first in dirty {
            self.write_leaf(first, capacity, writer)?;
        }
        self.write_inner(capacity, writer)
    }

    fn merge_into_tree(&mut self, extent: Extent) {
        let logical = extent.logical;
        self.take_out(logical);
        self.dirty_leaf(logical);
        if let Some(Kept { extent: before, .. }) = self.extents.before_mut(logical)
            && before.logical_end() == logical
            && before.run().end() == extent.start
            && before.unwritten == extent.unwritten
            && before.cluster.is_none()
            && extent.cluster.is_none()
            && before.len + extent.len <= EXTENT_FRAGMENTS_MAX
        {
            before.len += extent.len;
            let before = before.logical;
            self.dirty_leaf(before);
        } else {
            self.put(extent, false);
        }
    }

    fn write_leaf(
        &mut self,
        first: u64,
        capacity: usize,
        writer: &mut dyn TreeWriter,
    ) -> Result<()> {
        let leaves = &mut self.tree_mut().leaves;
        if let Some(Leaf { block: Some(old), .. }) = leaves.remove(&first) {
            writer.free(old);
        }
        // The first leaf also has the extents before its key.
        let from = if leaves.range(..first).next().is_none() { 0 } else { first };
        let to = leaves.range(first + 1..).next().map_or(u64::MAX, |(next, _)| *next);
        let extents: Vec<Extent> = self
            .extents
            .range(from..to)
            .filter(|kept| !kept.direct)
            .map(|kept| kept.extent)
            .collect();
        // A leaf that overflows is split so that each part has room to grow.
        let chunk = if extents.len() <= capacity { capacity } else { capacity * 3 / 4 };
        for part in extents.chunks(chunk) {
            let block = writer.allocate()?;
            writer.write(block, 0, &Node::Leaf(part.to_vec()));
            let leaf = Leaf { block: Some(block), dirty: false };
            self.tree_mut().leaves.insert(part[0].logical, leaf);
        }
        Ok(())
    }

    fn write_inner(&mut self, capacity: usize, writer: &mut dyn TreeWriter) -> Result<()> {
        let tree = self.tree_mut();
        for block in tree.inner.drain(..) {
            writer.free(block);
        }
        let leaves = tree.leaves.iter();
        let mut level: Vec<Child> = leaves
            .filter_map(|(first, leaf)| Some(Child { logical: *first, block: leaf.block? }))
            .collect();
        tree.depth = 0;
        while level.len() > 1 {
            tree.depth += 1;
            let mut above = Vec::new();
            for children in level.chunks(capacity) {
                let block = writer.allocate()?;
                writer.write(block, tree.depth, &Node::Inner(children.to_vec()));
                tree.inner.push(block);
                above.push(Child { logical: children[0].logical, block });
            }
            level = above;
        }
        tree.root = level.first().map(|child| child.block);
        let mapped = |extent: &Extent| u64::from(extent.len);
        debug_assert_eq!(self.mapped, self.iter().map(mapped).sum::<u64>());
        let is_direct = |kept: &&Kept| kept.direct;
        debug_assert_eq!(self.direct_count as usize, self.extents.iter().filter(is_direct).count());
        let is_unwritten = |extent: &&Extent| extent.unwritten;
        debug_assert_eq!(self.unwritten_count as usize, self.iter().filter(is_unwritten).count());
        Ok(())
    }
}
