//! Preparing an epoch: with the gate closed and without I/O, changed pages are placed, inodes are encoded
//! into their sectors, and a snapshot of all writes is taken (`seal`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::batch::Batch;
use super::chosen::Chosen;
use super::early::has_new_contents;
use super::fsync::Choice;
use super::packing::{Packed, Waiting};
use super::placing::{Hints, PlacedClusters, Placer, rank, rewritten};
use super::progress::InFlight;
use crate::cache::WriteSet;
use crate::error::{Corruption, Error, Result};
use crate::format::sector;
use crate::format::superblock::Compression;
use crate::format::{Superblock, index};
use crate::inode::{InodeCache, Vnode, VnodeGuard, WriteBack};
use crate::trace;
use crate::units::{EpochNo, FileBlock, InodeNo, Key, SectorIndex};

/// A prepared epoch: its writes, and the pages in flight.
pub(crate) struct Prepared {
    pub(crate) epoch: EpochNo,
    pub(crate) writes: WriteSet,
    pub(crate) in_flight: InFlight,
    /// The clusters among the writes.
    pub(crate) clusters: PlacedClusters,
    /// The files that wait for a later epoch.
    pub(crate) left: HashSet<InodeNo>,
    /// The superblock to be written after, if this is a checkpoint.
    pub(crate) superblock: Option<Superblock>,
    /// Why directories above a change could not be stamped.
    pub(crate) unread: Option<Error>,
}

/// The kind of a vnode's pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    Data,
    Sectors,
    Locator,
}

pub(crate) fn page_kind(file: &VnodeGuard<'_>) -> PageKind {
    match file.inode.ino {
        InodeNo::LOCATOR => PageKind::Locator,
        InodeNo::EXTERNAL | InodeNo::SYSTEM => PageKind::Sectors,
        _ if file.inode.is_dir() => PageKind::Sectors,
        _ => PageKind::Data,
    }
}

/// The most bytes of contents that are compressed with the gate closed at Zstandard's level 1. Higher levels
/// are slower: the limit is divided by the level.
const COMPRESSED_AT_GATE_MAX: u64 = 32 << 20;

/// An epoch that is being prepared, with the gate closed.
pub(crate) struct Preparation<'a> {
    pub(crate) inodes: &'a InodeCache,
    pub(crate) write_back: WriteBack<'a>,
    pub(crate) batch: Batch,
    /// Container pages that got a block in this epoch, in order: nothing on the device points to these blocks
    /// yet.
    pub(crate) new_pages: HashMap<InodeNo, Vec<FileBlock>>,
    pub(crate) in_flight: InFlight,
    /// The hints of files that were placed ahead of the epoch.
    hints: Hints,
    /// Which files wait for a later epoch; none if there is no choice.
    choice: Option<Choice>,
    left: Vec<Arc<Vnode>>,
    /// The compression of contents that were not written ahead of the epoch; `None` if the epoch compresses
    /// nothing.
    compression: Option<Compression>,
    clusters: PlacedClusters,
    pub(crate) with_derived: bool,
    /// Changed pages of derived state that may stay in memory.
    derived_bytes_max: u64,
    /// Why directories above a change could not be stamped.
    pub(super) unread: Option<Error>,
}

impl<'a> Preparation<'a> {
    /// Prepares an epoch with all changes but for the files that `choice` leaves behind. It takes derived
    /// state if `with_derived`, or if more than `derived_bytes_max` of it is in memory. `hints` are those of
    /// files that were placed ahead of it.
    pub(crate) fn new(
        inodes: &'a InodeCache,
        choice: Option<Choice>,
        hints: Hints,
        with_derived: bool,
        derived_bytes_max: u64,
    ) -> Preparation<'a> {
        Preparation {
            inodes,
            write_back: WriteBack::new(inodes, inodes.cache.write_set()),
            batch: Batch::default(),
            new_pages: HashMap::new(),
            in_flight: Vec::new(),
            hints,
            choice,
            left: Vec::new(),
            compression: None,
            clusters: PlacedClusters::default(),
            with_derived,
            derived_bytes_max,
            unread: None,
        }
    }

    /// Sets how the epoch compresses contents; `None` if it compresses nothing.
    pub(crate) fn compressed(self, compression: Option<Compression>) -> Preparation<'a> {
        Preparation { compression, ..self }
    }

    /// Takes the changes, and prepares their writes.
    pub(crate) fn run(mut self) -> Result<Prepared> {
        // The writes are attributed to the operations that made the changes.
        let _on_behalf = trace::hide();
        self.collect();
        self.stamp();
        self.with_derived |= self.many_derived();
        self.place()?;
        self.encode()?;
        self.seal()?;
        self.write_back.writes.keep_used(|block| self.inodes.alloc.used_fragments(block));
        self.inodes.alloc.epoch_started()?;
        self.inodes.locator.epoch_started();
        self.log_intents()?;
        self.left.iter().for_each(|vnode| self.inodes.queue(vnode));
        self.inodes.next_epoch();
        let Preparation { write_back, in_flight, clusters, left, unread, .. } = self;
        let WriteBack { epoch, writes, .. } = write_back;
        let left = left.iter().map(|vnode| vnode.ino).collect();
        Ok(Prepared { epoch, writes, in_flight, clusters, left, superblock: None, unread })
    }

    /// Records all changes of the epoch in the intent log, ahead of them.
    fn log_intents(&mut self) -> Result<()> {
        let InodeCache { intent_log, alloc, .. } = self.inodes;
        let (nameless, touched) = (intent_log.take_nameless(), intent_log.touched_clusters());
        intent_log.space(alloc.take_changes(&nameless, &touched)?);
        // A checkpoint that only writes bitmaps is recorded as well.
        let has_any =
            !self.write_back.writes.is_empty() || self.with_derived && alloc.has_changed_groups();
        if self.with_derived && has_any {
            intent_log.settling();
        }
        if has_any {
            intent_log.write(&mut self.write_back.writes);
        }
        Ok(())
    }

    /// Takes the queue, except files that wait.
    pub(super) fn collect(&mut self) {
        let mut taken = Vec::new();
        for vnode in self.inodes.take_queue() {
            let rank = {
                let state = vnode.state.read();
                let choice = self.choice.as_ref();
                if choice.is_some_and(|choice| choice.leaves(self.inodes, vnode.ino, &state)) {
                    self.left.push(vnode.clone());
                    continue;
                }
                rank(&state)
            };
            taken.push((rank, vnode));
        }
        self.batch.add(taken);
    }

    /// Whether changed pages of derived state take so much memory that they go with this epoch.
    fn many_derived(&self) -> bool {
        let base = FileBlock(index::index_base(self.inodes.layout.block_bytes));
        let pages: usize = self
            .batch
            .containers()
            .map(|vnode| {
                let state = vnode.state.read();
                match vnode.ino {
                    InodeNo::LOCATOR => state.pages.dirty_count(),
                    _ if state.inode.bucket_count > 0 => {
                        state.pages.dirty_in(base..FileBlock::END).count()
                    }
                    _ => 0,
                }
            })
            .sum();
        pages as u64 * u64::from(self.inodes.layout.block_bytes) > self.derived_bytes_max
    }

    /// The keys whose urgent small files go to one place: callers wait for the epoch, and separate places
    /// would cost a seek per key for a few blocks. Empty if there is only one such key.
    ///
    /// If a journal takes the epoch, callers do not wait for these seeks, but the checkpoint of the journal
    /// makes them later: only keys with very few pages are joined.
    fn joined_keys(&self) -> HashSet<Key> {
        let mut keys: HashMap<Key, u64> = HashMap::new();
        for vnode in self.batch.vnodes().filter(|_| self.choice.is_some()) {
            let file = vnode.state.read();
            let is_small = file.inode.size <= self.inodes.layout.small_bytes_max();
            if is_small && !vnode.ino.is_system() && !file.inode.is_dir() {
                *keys.entry(file.inode.placement_key()).or_default() +=
                    file.pages.dirty_count() as u64;
            }
        }
        let has_journal = self.inodes.cache.device().journal().is_some();
        let part = if has_journal { self.inodes.cache.tuning().placing.journaled_part } else { 1 };
        let layout = &self.inodes.layout;
        let end = u64::from(layout.segment_bytes / layout.block_bytes) / part;
        keys.retain(|_, pages| (1..end).contains(pages));
        if keys.len() > 1 { keys.into_keys().collect() } else { HashSet::new() }
    }

    /// Compresses the first part of the new contents of these files. The part is limited, because callers
    /// wait while the gate is closed.
    fn pack(&self, files: &[&Arc<Vnode>]) -> Waiting {
        let Some(compression) = self.compression else { return Waiting::default() };
        let bytes_max = COMPRESSED_AT_GATE_MAX / compression.level() as u64;
        let pages_max = bytes_max / u64::from(self.inodes.layout.block_bytes);
        let mut chosen = Vec::new();
        let mut pages = 0;
        for vnode in files {
            let file = vnode.state.read();
            if has_new_contents(&file) && compression.applies_to(file.inode.flags) {
                let positions: Vec<FileBlock> = file.pages.dirty_in(FileBlock::ALL).collect();
                // Contents that do not fit are written as they are; later files may fit.
                if pages + positions.len() as u64 > pages_max {
                    continue;
                }
                pages += positions.len() as u64;
                chosen.push(Chosen { rank: rank(&file), vnode: Arc::clone(vnode), positions });
            }
        }
        let packed = Packed::new(self.inodes, compression, &chosen);
        packed.map(|packed| packed.unchanged(&chosen)).unwrap_or_default()
    }

    fn place(&mut self) -> Result<()> {
        let base = FileBlock(index::index_base(self.inodes.layout.block_bytes));
        let joined = self.joined_keys();
        let rewritten = rewritten(self.inodes, self.batch.vnodes());
        let hints = std::mem::take(&mut self.hints);
        let mut placer = Placer::new(self.inodes, hints, rewritten).asked(self.choice.is_some());
        let files = self.batch.in_order();
        let mut waiting = self.pack(&files);
        for vnode in files {
            for cluster in waiting.take(vnode.ino) {
                self.in_flight.extend(placer.place_cluster(cluster, &mut self.write_back)?);
            }
            let mut file = VnodeGuard::new(vnode);
            let range = match page_kind(&file) {
                PageKind::Sectors if !self.with_derived => FileBlock(0)..base,
                PageKind::Sectors => FileBlock::ALL,
                PageKind::Locator if self.with_derived => FileBlock::ALL,
                PageKind::Locator => continue,
                PageKind::Data => {
                    let positions: Vec<_> = file.pages.dirty_in(FileBlock::ALL).collect();
                    if positions.is_empty() {
                        continue;
                    }
                    let joins = joined.contains(&file.inode.placement_key())
                        && file.inode.size <= self.inodes.layout.small_bytes_max();
                    drop(file);
                    let placed = placer.place(vnode, positions, joins, &mut self.write_back)?;
                    self.in_flight.push((vnode.clone(), placed));
                    continue;
                }
            };
            let new = self.write_back.place_blocks(&mut file, range)?;
            self.new_pages.insert(vnode.ino, new);
        }
        self.clusters = placer.placed;
        for (parent, run) in std::mem::take(placer.hints()) {
            // A file that was recorded ahead of the epoch may have been deleted.
            let Some(vnode) = self.inodes.peek(parent) else { continue };
            let mut dir = VnodeGuard::new(&vnode);
            if dir.inode.is_dir() && dir.inode.hint.len == 0 && dir.inode.nlink > 0 {
                dir.inode.hint = run;
                self.inodes.mark_dirty(&mut dir);
            }
        }
        self.collect();
        Ok(())
    }

    /// Puts every changed inode into its sector.
    fn encode(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        for vnode in batch.vnodes() {
            let (dirty, container, waits) = {
                let state = vnode.state.read();
                let choice = self.choice.as_ref();
                let waits = choice.is_some_and(|choice| choice.leaves_times(vnode.ino, &state));
                (state.changes.dirty, state.container, state.changes.dirty && waits)
            };
            let system = matches!(vnode.ino, InodeNo::LOCATOR if !self.with_derived);
            match container {
                _ if waits => self.left.push(vnode.clone()),
                Some(container) if dirty && !system => {
                    let holder = self.inodes.get(container.file)?;
                    let (mut holder, mut file) = VnodeGuard::with_holder(&holder, vnode);
                    self.encode_into(&mut holder, &mut file, container.sector)?;
                    file.durable = Some(container);
                    file.motion.tags.clear();
                    file.set_encoded();
                }
                // An inode without a name stays in memory until its last reference is dropped.
                None if dirty => self.write_back.encode_nameless(vnode)?,
                _ => {}
            }
        }
        self.batch = batch;
        self.collect();
        Ok(())
    }

    fn encode_into(
        &mut self,
        holder: &mut VnodeGuard<'_>,
        file: &mut VnodeGuard<'_>,
        index: SectorIndex,
    ) -> Result<()> {
        let ino = file.inode.ino;
        let lost = |what| Corruption::Inode { ino, what };
        let (slot, room) = {
            let image = self.inodes.containers().sector(holder, index)?;
            let sector = image.get();
            let entry =
                sector.find_inode(ino).ok_or(lost("its sector does not have it any more"))?;
            let head = sector::entry_bytes(entry.name.len(), 0);
            (entry.slot, sector.entry_room(entry.slot) - head)
        };
        let encoded = self.write_back.encode_to_fit(file, room)?;
        let image = self.inodes.containers().sector_mut(holder, index)?;
        if !sector::replace(image, slot, &sector::Body::Embedded(encoded.record())) {
            return Err(lost("its sector has no room for it").into());
        }
        let position = FileBlock(u64::from(index.0 / self.inodes.layout.block_sectors()));
        holder.pages.note_causes(position, &file.changes.causes);
        Ok(())
    }
}
