//! Clusters on their way to the device: contents of several files that were compressed together.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ExtentMap, Mapping, Neighbours, Vnode, VnodeGuard, VnodeState, WriteBack};
use crate::alloc::{Clusters, Kind, Owner, Request, Spender};
use crate::cache::Block;
use crate::error::{Error, Result};
use crate::format::LiveLayout;
use crate::format::extent::Extent;
use crate::lock::Rule;
use crate::units::{FileBlock, FileFrag, FragRun};

/// Contents of one file in a cluster: a whole small file, or a piece of a larger one.
pub struct ClusterPart {
    /// The file.
    pub vnode: Arc<Vnode>,
    /// The first block of the file that the part has.
    pub first: FileBlock,
    /// The pages as they were compressed.
    pub pages: Vec<Arc<Block>>,
    /// The bytes of the file, up to its end or the end of the part, whichever comes first.
    pub size: u64,
    /// The first fragment of the part in the expanded cluster.
    pub offset: u32,
    /// The fragments of the part.
    pub len: u32,
    /// The checksum of the contents, if this is a whole small file.
    pub checksum: Option<u32>,
}

/// Contents that move from one cluster to another.
pub struct MovedPart {
    /// The file.
    pub vnode: Arc<Vnode>,
    /// Its extent in the old cluster.
    pub extent: Extent,
    /// The first fragment of the part in the new expanded cluster.
    pub offset: u32,
}

impl MovedPart {
    /// Whether the file has the extent, and a name.
    fn is_current(&self, file: &VnodeState) -> bool {
        let Some(of) = self.extent.cluster else { return false };
        let place = Mapping::InCluster {
            run: self.extent.run(),
            offset: of.offset.into(),
            len: self.extent.len.into(),
        };
        let has_extent = |map: &ExtentMap| map.find(FileFrag(self.extent.logical)) == place;
        file.container.is_some()
            && !file.inode.is_protected()
            && file.inode.map().is_some_and(has_extent)
    }
}

/// Contents that were compressed together.
pub struct Cluster {
    /// Its parts, in the order of the expanded bytes.
    pub parts: Vec<ClusterPart>,
    /// The bytes of the cluster as it goes to the device.
    pub stored: Vec<u8>,
}

impl ClusterPart {
    /// The part with these blocks of a file, in their present state; `None` unless all of them wait for an
    /// epoch. Its offset, and the checksum of a whole small file, are for the caller to set.
    pub fn new(
        layout: &LiveLayout,
        vnode: &Arc<Vnode>,
        file: &VnodeState,
        blocks: Range<u64>,
        is_whole: bool,
    ) -> Option<ClusterPart> {
        let per_block = u64::from(layout.block_fragments());
        let end = (blocks.end * per_block).min(layout.fragments_for(file.inode.size));
        let page = |position| file.pages.get(position).cloned();
        let part = ClusterPart {
            vnode: vnode.clone(),
            first: FileBlock(blocks.start),
            pages: (blocks.start..blocks.end).map(FileBlock).map(page).collect::<Option<_>>()?,
            size: file.inode.size.min(layout.file_offset(FileBlock(blocks.end))),
            offset: 0,
            len: (end - blocks.start * per_block) as u32,
            checksum: is_whole.then_some(0),
        };
        part.is_current(layout, file).then_some(part)
    }

    /// The positions of the pages.
    pub fn positions(&self) -> impl Iterator<Item = FileBlock> {
        (self.first.0..).map(FileBlock).take(self.pages.len())
    }

    /// The block of the file after the part.
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0 + self.pages.len() as u64)
    }

    /// The first fragment of the file that the part has.
    fn logical(&self, layout: &LiveLayout) -> FileFrag {
        layout.file_frag(self.first)
    }

    /// Whether the file still has these contents, and they may go to the device in a cluster.
    pub fn is_current(&self, layout: &LiveLayout, file: &VnodeState) -> bool {
        let has_page = |(position, page): (FileBlock, &Arc<Block>)| {
            file.pages.is_dirty(position)
                && file
                    .pages
                    .get(position)
                    .is_some_and(|now| Arc::ptr_eq(now, page) || !Rule::ClustersCompared.holds())
        };
        let size = file.inode.size;
        file.container.is_some()
            && file.promised.fragments >= self.len.into()
            && self.positions().zip(&self.pages).all(has_page)
            && match self.checksum {
                Some(_) => size == self.size && file.pages.dirty_count() == self.pages.len(),
                // A large file may grow after the part while the part is compressed.
                None => {
                    size > layout.small_bytes_max()
                        && size.min(layout.file_offset(self.end())) == self.size
                        && is_unmapped(file, self.logical(layout), self.len.into())
                }
            }
    }
}

/// Whether no fragment of the range has a place.
fn is_unmapped(file: &VnodeState, logical: FileFrag, len: u64) -> bool {
    let find = |map: &ExtentMap| map.find(logical);
    file.inode.map().is_some_and(|map| matches!(find(map), Mapping::Hole(hole) if hole >= len))
}

impl WriteBack<'_> {
    /// Chooses a run for contents that were compressed together, and adds them to the epoch. `None` if they
    /// would not be shorter than the contents themselves, or there is no room for them in one piece.
    /// Afterwards the file of each part [points there](WriteBack::place_part).
    pub fn place_cluster(
        &mut self,
        cluster: &Cluster,
        neighbours: Neighbours,
    ) -> Result<Option<FragRun>> {
        let layout = self.layout;
        let fragment_bytes = layout.fragment_bytes as usize;
        let len = cluster.stored.len().div_ceil(fragment_bytes) as u32;
        let len = len.max(layout.block_fragments());
        if len >= cluster.parts.iter().map(|part| part.len).sum() {
            return Ok(None);
        }
        let Ok(references) = u8::try_from(cluster.parts.len()) else { return Ok(None) };
        let request = Request {
            kind: Kind::Small,
            owner: neighbours.owner,
            len,
            goal: None,
            grown: neighbours.grown,
            replaces: false,
            room: 0,
        };
        self.put_cluster(&request, references, Spender::Privileged, cluster.stored.clone())
    }

    /// Takes a run into use for a cluster with this many references, and adds the cluster to the epoch.
    fn put_cluster(
        &mut self,
        request: &Request,
        references: u8,
        spender: Spender,
        mut stored: Vec<u8>,
    ) -> Result<Option<FragRun>> {
        let Some(run) = Clusters::of(self.alloc).place(request, references, spender)? else {
            return Ok(None);
        };
        if Rule::ExpandedForgotten.holds() {
            self.inodes.cache.expanded.forget(run.start);
        }
        stored.resize(run.len as usize * self.layout.fragment_bytes as usize, 0);
        self.writes.put_fragments(self.layout, run.start, &stored);
        Ok(Some(run))
    }

    /// Chooses a run for a cluster of contents that move, with a reference for each part, and adds it to the
    /// writes. `None` if no space was found. Files are [repointed](WriteBack::repoint) once it is written.
    pub fn place_moved(&mut self, parts: &[MovedPart], stored: Vec<u8>) -> Result<Option<FragRun>> {
        let fragment_bytes = self.layout.fragment_bytes as usize;
        let len = stored.len().div_ceil(fragment_bytes) as u32;
        let len = len.max(self.layout.block_fragments());
        let (Some(first), Ok(references)) = (parts.first(), u8::try_from(parts.len())) else {
            return Ok(None);
        };
        // No change is in progress, so the space that is free now is free when the cluster is placed.
        match self.alloc.promise(len.into(), Spender::Compaction) {
            Ok(()) => self.alloc.withdraw(len.into()),
            Err(Error::NoSpace) => return Ok(None),
            Err(error) => return Err(error),
        }
        let request = Request {
            kind: Kind::Small,
            owner: Owner::Key(first.vnode.state.read().inode.placement_key()),
            len,
            goal: None,
            grown: false,
            replaces: false,
            room: 0,
        };
        self.put_cluster(&request, references, Spender::Compaction, stored)
    }

    /// Points a file to its part of the cluster in `run`, which is written. Returns false, and the cluster
    /// has one reference less, if the file has changed meanwhile or no space for its extents was found.
    pub fn repoint(&self, part: &MovedPart, run: FragRun) -> Result<bool> {
        let extent = &part.extent;
        let mut file = VnodeGuard::new(&part.vnode);
        let promised = match part.is_current(&file) {
            true => self.space.promise_spill(&mut file, 1, true),
            false => Err(Error::NoSpace),
        };
        match promised {
            Ok(()) => {}
            Err(Error::NoSpace) => {
                Clusters::of(self.alloc).release(run);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.free_mapped(&mut file, FileFrag(extent.logical)..FileFrag(extent.logical_end()));
        if let Some(map) = file.inode.map_mut() {
            map.insert_in_cluster(Extent::of_cluster(extent.logical, extent.len, run, part.offset));
        }
        self.inodes.mark_dirty(&mut file);
        Ok(true)
    }

    /// Points a file to its part of the cluster that takes `run`. Returns the pages that are in flight from
    /// now on.
    pub fn place_part(
        &mut self,
        file: &mut VnodeGuard<'_>,
        part: &ClusterPart,
        run: FragRun,
    ) -> Vec<FileBlock> {
        let positions: Vec<FileBlock> = part.positions().collect();
        let staying = file.pages.dirty_count() - positions.len();
        self.take_promise(file, positions.len());
        if let Some(sum) = part.checksum {
            self.free_mapped(file, FileFrag::ALL);
            file.inode.content_checksum = Some(sum);
            file.verified.store(true, Ordering::Relaxed);
        } else {
            file.inode.content_checksum = None;
        }
        let logical = part.logical(self.layout).0;
        if let Some(map) = file.inode.map_mut() {
            map.insert_in_cluster(Extent::of_cluster(logical, part.len, run, part.offset));
        }
        for position in &positions {
            if let Some(causes) = file.pages.causes(*position) {
                self.writes.note_causes(self.layout.block_of(run.start), causes);
            }
        }
        file.promised.lacks_tail &= staying > 0;
        self.start_writes(file, &positions);
        positions
    }
}
