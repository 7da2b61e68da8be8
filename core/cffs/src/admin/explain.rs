//! The places of a file, and the number of requests for reading it cold.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::alloc::Clusters;
use crate::epoch::EpochWriter;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::InodeFlags;
use crate::format::sector::Body;
use crate::inode::{Content, InodeCache, Vnode};
use crate::namespace::scan;
use crate::units::{BlockNo, Container, FileBlock, FragRun, InodeNo};

/// A run of a file's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The byte of the file at which it begins.
    pub offset: u64,
    /// Where it is, in fragments.
    pub run: FragRun,
    /// Reserved and never written.
    pub unwritten: bool,
    /// Compressed with other contents: the run is that of the whole cluster.
    pub in_cluster: bool,
}

/// A cluster with contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterPlace {
    /// The bytes that it takes.
    pub stored_bytes: u64,
    /// The bytes to which it expands; `None` if it is not written yet.
    pub expanded_bytes: Option<u64>,
    /// The number of its parts that belong to other files.
    pub other_parts: u64,
}

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The file.
    pub ino: InodeNo,
    /// The sector that has its inode, and, if that is a directory's, its name; `None` if the file
    /// has no name.
    pub container: Option<Container>,
    /// The block of that sector; `None` if it has no place yet.
    pub container_block: Option<BlockNo>,
    /// Whether the contents are in the inode.
    pub inline: bool,
    /// The contents, in the order of the file.
    pub pieces: Vec<Piece>,
    /// The clusters with parts of the contents, in the order of the device, up to 100.
    pub clusters: Vec<ClusterPlace>,
    /// Bytes of the contents that are only in memory.
    pub unplaced_bytes: u64,
    /// The segments that name, inode and contents are in.
    pub segments: Vec<u64>,
    /// Files of the same directory that have contents in one of those segments, up to 1000.
    pub shares_with: Vec<InodeNo>,
    /// The requests for reading name, inode and contents with cold caches, without those for the directories
    /// above.
    pub cold_requests: u64,
}

/// More neighbours than this are not listed.
const NEIGHBOURS_MAX: usize = 1000;
/// At most this many clusters are listed, because the header of each is read.
const CLUSTERS_MAX: usize = 100;

/// Tells where files are.
pub(crate) struct Explain<'a> {
    inodes: &'a InodeCache,
    writer: &'a EpochWriter,
}

impl<'a> Explain<'a> {
    pub(crate) fn new(writer: &'a EpochWriter) -> Explain<'a> {
        Explain { inodes: &writer.inodes, writer }
    }
}

impl Explain<'_> {
    /// The places of a file, its neighbours, and the cost of reading it cold.
    ///
    /// # Errors
    ///
    /// Those of [reading](crate::vfs#errors).
    pub(crate) fn placement(&self, vnode: &Vnode) -> Result<Placement> {
        let ino = vnode.ino;
        let inodes = self.inodes;
        let layout = &inodes.layout;
        let (container, parent, inline, pieces, unplaced_bytes) = {
            let state = vnode.state.read();
            let fragment_bytes = u64::from(layout.fragment_bytes);
            let pieces: Vec<Piece> = match &state.inode.content {
                Content::Inline(_) => Vec::new(),
                Content::Map(map) => map
                    .iter()
                    .map(|extent| Piece {
                        offset: extent.logical * fragment_bytes,
                        run: extent.run(),
                        unwritten: extent.unwritten,
                        in_cluster: extent.cluster.is_some(),
                    })
                    .collect(),
            };
            let inline = matches!(state.inode.content, Content::Inline(_));
            let unplaced = state.pages.dirty_count() as u64 * u64::from(layout.block_bytes);
            (state.container, state.inode.parent, inline, pieces, unplaced)
        };
        let container_block = match container {
            Some(container) => self.writer.health.noted(self.block_of(container))?,
            None => None,
        };
        let per_segment = u64::from(layout.segment_blocks());
        let mut segments: Vec<u64> = container_block.iter().map(|b| b.0 / per_segment).collect();
        for piece in &pieces {
            let first = layout.block_of(piece.run.start).0 / per_segment;
            let last = layout.block_of(crate::units::FragNo(piece.run.end().0 - 1)).0 / per_segment;
            segments.extend(first..=last);
        }
        segments.sort_unstable();
        segments.dedup();
        let shares_with = self.neighbours(parent, ino, &segments)?;
        let clusters = self.writer.health.noted(self.clusters(&pieces))?;
        // A group read fetches the run of a segment; each further piece takes at most one more request.
        let cold_requests = segments.len() as u64;
        Ok(Placement {
            ino,
            container,
            container_block,
            inline,
            pieces,
            clusters,
            unplaced_bytes,
            segments,
            shares_with,
            cold_requests,
        })
    }

    /// The byte of the device at which the contents of a file begin. If they are in the inode or have no
    /// place yet, where the inode is, and 0 if that has no place either. So files in the order of this
    /// number are in the order of the device.
    ///
    /// # Errors
    ///
    /// Those of [reading](crate::vfs#errors).
    pub(crate) fn device_offset(&self, vnode: &Vnode) -> Result<u64> {
        let layout = &self.inodes.layout;
        let container = {
            let state = vnode.state.read();
            let first = state.inode.map().and_then(|map| map.iter().next());
            if let Some(extent) = first {
                return Ok(extent.start.0 * u64::from(layout.fragment_bytes));
            }
            state.container
        };
        let block = match container {
            Some(container) => self.writer.health.noted(self.block_of(container))?,
            None => None,
        };
        Ok(block.map_or(0, |block| block.0 * u64::from(layout.block_bytes)))
    }

    fn block_of(&self, container: Container) -> Result<Option<BlockNo>> {
        let layout = &self.inodes.layout;
        let holder = self.inodes.get(container.file)?;
        let state = holder.state.read();
        let position = FileBlock(u64::from(container.sector.0 / layout.block_sectors()));
        let fragments = layout.block_fragments();
        let map = state.inode.map();
        Ok(map.and_then(|map| map.block_at(position, fragments)))
    }

    fn clusters(&self, pieces: &[Piece]) -> Result<Vec<ClusterPlace>> {
        let inodes = self.inodes;
        let mut parts: BTreeMap<FragRun, u64> = BTreeMap::new();
        for piece in pieces.iter().filter(|piece| piece.in_cluster) {
            *parts.entry(piece.run).or_default() += 1;
        }
        let place = |(run, own): (FragRun, u64)| {
            let references = Clusters::of(&inodes.alloc).references_to(run)?;
            Ok(ClusterPlace {
                stored_bytes: u64::from(run.len) * u64::from(inodes.layout.fragment_bytes),
                expanded_bytes: inodes.contents().expanded_bytes(run)?,
                other_parts: u64::from(references).saturating_sub(own),
            })
        };
        parts.into_iter().take(CLUSTERS_MAX).map(place).collect()
    }

    fn neighbours(&self, parent: InodeNo, ino: InodeNo, segments: &[u64]) -> Result<Vec<InodeNo>> {
        let inodes = self.inodes;
        let per_segment = u64::from(inodes.layout.segment_fragments());
        let Ok(dir) = inodes.get(parent) else { return Ok(Vec::new()) };
        let state = dir.state.read();
        let mut found = Vec::new();
        if !state.inode.is_dir() {
            return Ok(found);
        }
        scan(inodes, &state, 0..u32::MAX, |_, entry| {
            let Body::Embedded(record) = &entry.body else { return ControlFlow::Continue(()) };
            let is_inline = record.inode.inode_flags().contains(InodeFlags::INLINE);
            let is_near = !is_inline
                && Extent::decode_list(record.data)
                    .any(|extent| segments.contains(&(extent.start.0 / per_segment)));
            if is_near && entry.ino() != ino {
                found.push(entry.ino());
            }
            let is_enough = found.len() == NEIGHBOURS_MAX;
            if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found)
    }
}
