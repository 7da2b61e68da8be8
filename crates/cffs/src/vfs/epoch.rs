//! Epochs: how changes go to the device (DESIGN: epochs).
//!
//! An epoch starts with the gate closed: in memory alone, changed pages are placed, inodes are put
//! into their sectors, and a snapshot is taken of all that is to be written. Then the gate opens,
//! and the snapshot is written, phase by phase, while new changes go on in the next epoch.
//!
//! ```text
//!   gate closed            gate open
//!   place ─ encode ─ seal │ New ┆ Table ┆ Change ┆ Settle ┆ sync │ freed space is allocatable
//!                         │     barriers between                │ pages leave for the cache
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::clean::Attempt;
use super::discard::{Freed, Trimmed};
use super::early::Early;
use super::fsync::Choice;
use super::placing::{Hints, Placer, Rank, rank, rewritten};
use super::{Volume, count};
use crate::cache::{Block, Phase, Step, WriteSet};
use crate::error::{Corruption, Result};
use crate::format::sector::{self, Sector};
use crate::format::{Checksum, Superblock, index, locator};
use crate::inode::{Locked, Store, Vnode};
use crate::units::{BlockNo, EpochNo, FileBlock, InodeNo, Key};

/// How far epochs have come.
pub(super) struct Progress {
    /// The last epoch that is on the device.
    pub(super) done: EpochNo,
    /// The last one that left nothing behind.
    pub(super) complete: EpochNo,
    /// From when on changes may have waited for the next one: since the last one that left nothing behind
    /// started, or since nothing waited.
    waited_from: Instant,
    /// When the last one that wrote anything did; at first, when the volume was opened.
    pub(super) written: Instant,
    /// The last attempt to reach a clean point.
    pub(super) attempt: Option<Attempt>,
    /// When the volume was opened.
    pub(super) opened: Instant,
    /// What was written of the open epoch already.
    pub(super) early: Early,
    /// What is to be discarded.
    pub(super) freed: Freed,
}

impl Progress {
    /// As it is on a device that has all epochs up to `done`.
    pub(super) fn new(done: EpochNo) -> Progress {
        let now = Instant::now();
        Progress {
            done,
            complete: done,
            waited_from: now,
            written: now,
            attempt: None,
            opened: now,
            early: Early::default(),
            freed: Freed::default(),
        }
    }
}

/// What an epoch writes of what was changed, and what beside it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EpochKind {
    /// All that was changed, but for the contents of files that nobody waits for (see `fsync`).
    Wanted,
    /// All that was changed; nothing beside it, unless changed pages of derived state take much
    /// memory.
    Plain,
    /// The locator table and the indexes too.
    Derived,
    /// And all else that is derived: when the epoch is on the device, it is the new clean point.
    CleanPoint,
}

/// Pages that are being written, by file.
pub(super) type InFlight = Vec<(Arc<Vnode>, Vec<FileBlock>)>;

/// An epoch that was prepared: what to write, and which pages are in flight.
pub(super) struct Prepared {
    pub(super) epoch: EpochNo,
    pub(super) writes: WriteSet,
    in_flight: InFlight,
    /// The files that wait for a later epoch.
    left: HashSet<InodeNo>,
    /// The superblock to be written after, if this is a clean point.
    pub(super) superblock: Option<Superblock>,
}

impl Volume {
    /// Writes an epoch if one is due, and a clean point if nothing has been changed for a while. A
    /// thread of the front end calls this about once a second ([`Volume::with_background`]).
    pub fn background(&self) -> Result<()> {
        if self.check_writable().is_err() {
            return Ok(());
        }
        let mut progress = match self.epochs.try_lock() {
            Some(progress) => progress,
            // Others may be waiting for an epoch that begins after the one that is being written.
            None if self.is_filling() => self.epochs.lock(),
            None => return Ok(()),
        };
        self.save_damage()?;
        if self.store().queue_len() == 0 {
            progress.waited_from = Instant::now();
        }
        let is_due = progress.waited_from.elapsed() >= self.options.epoch_interval;
        if !is_due && self.is_early_due() {
            self.run_early(&mut progress)?;
        }
        if (is_due || self.is_filling()) && self.store().queue_len() > 0 {
            self.run_epoch(&mut progress, EpochKind::Plain)?;
        }
        if self.is_clean_point_due(&progress) {
            self.reach_clean_point(&mut progress)?;
        } else if self.is_busy_clean_point_due(&progress) {
            self.pass_clean_point(&mut progress)?;
        }
        self.discard_some(&mut progress, &mut Trimmed::default());
        Ok(())
    }

    pub(super) fn run_epoch(&self, progress: &mut Progress, kind: EpochKind) -> Result<()> {
        let started = Instant::now();
        let has_changes = self.store().queue_len() > 0;
        let result = self.try_epoch(progress, kind);
        self.store().cache.step.set(None);
        // What was left behind has waited since an epoch before.
        if progress.complete == progress.done {
            progress.waited_from = started;
        }
        if let Err(error) = &result {
            self.loses_changes.fetch_or(has_changes, Ordering::AcqRel);
            self.latch(error);
        } else if progress.complete == progress.done {
            *self.durable_until.lock() = started;
        }
        result
    }

    fn try_epoch(&self, progress: &mut Progress, kind: EpochKind) -> Result<()> {
        let step = &self.store().cache.step;
        step.set(Some(Step::Gate));
        let prepared = {
            let _gate = self.gate.write();
            step.set(Some(Step::Preparing));
            match kind {
                EpochKind::CleanPoint => self.prepare_clean_point(progress, |_| {})?,
                _ => self.prepare(progress, kind)?,
            }
        };
        self.taken_over();
        self.complete(progress, prepared)
    }

    /// With the gate closed, writes an epoch with everything that is derived.
    pub(super) fn write_all(&self, progress: &mut Progress) -> Result<()> {
        progress.waited_from = Instant::now();
        let prepared = self.prepare(progress, EpochKind::Derived)?;
        self.complete(progress, prepared)
    }

    pub(super) fn prepare(&self, progress: &mut Progress, kind: EpochKind) -> Result<Prepared> {
        assert!(self.gate.is_locked_exclusive(), "no change is under way");
        let wanted = self.callers.take();
        let leaves_bytes = self.options.fsync_leaves_bytes;
        let derived_bytes_max = self.store().cache.tuning().writing.derived_bytes_max;
        Preparation {
            store: self.store(),
            epoch: self.store().epoch(),
            writes: WriteSet::default(),
            batch: BTreeMap::new(),
            new_pages: HashMap::new(),
            in_flight: Vec::new(),
            hints: std::mem::take(&mut progress.early.hints),
            choice: (kind == EpochKind::Wanted).then_some(Choice { wanted, leaves_bytes }),
            left: Vec::new(),
            with_derived: matches!(kind, EpochKind::Derived | EpochKind::CleanPoint),
            derived_bytes_max: derived_bytes_max.min(self.options.dirty_bytes_max / 4),
        }
        .run()
    }

    /// Writes an epoch that was prepared.
    pub(super) fn complete(&self, progress: &mut Progress, prepared: Prepared) -> Result<()> {
        let store = self.store();
        let Prepared { epoch, mut writes, in_flight, left, superblock } = prepared;
        if !writes.is_empty() {
            // What the first phase writes is nobody's yet, so the mark may be in motion with it.
            let mark = self.in_use();
            if let Some(mark) = &mark {
                self.check_mark()?;
                writes.put_block(Phase::New, BlockNo(0), self.superblock_block(mark));
            }
            if std::mem::take(&mut progress.early.is_in_motion) {
                writes.follow();
            }
            store.commit(writes)?;
            if let Some(mark) = mark {
                *self.superblock.lock() = mark;
            }
            progress.written = Instant::now();
        }
        if let Some(next) = superblock {
            self.write_superblock(&next, false)?;
            *self.superblock.lock() = next;
        }
        finish_writes(in_flight, epoch);
        let freed = store.alloc.epoch_done()?;
        if self.options.discard {
            progress.freed.add(freed);
        }
        store.locator.epoch_done();
        store.alloc.fill_pool()?;
        progress.done = epoch;
        if left.is_empty() {
            progress.complete = epoch;
        }
        self.callers.reached(epoch, left);
        count(&self.calls.epochs);
        Ok(())
    }
}

struct Preparation<'a> {
    store: &'a Store,
    epoch: EpochNo,
    writes: WriteSet,
    batch: BTreeMap<Rank, Arc<Vnode>>,
    /// Container pages that were given a block in this epoch: nothing on the device leads to them.
    new_pages: HashMap<InodeNo, Vec<FileBlock>>,
    in_flight: InFlight,
    /// What was placed ahead of the epoch.
    hints: Hints,
    /// Which files wait for a later epoch; none if there is no choice.
    choice: Option<Choice>,
    left: Vec<Arc<Vnode>>,
    with_derived: bool,
    /// Changed pages of derived state that may stay in memory.
    derived_bytes_max: u64,
}

/// What becomes of a vnode's pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageKind {
    Data,
    Sectors,
    Locator,
}

fn page_kind(file: &Locked<'_>) -> PageKind {
    match file.inode.ino {
        InodeNo::LOCATOR => PageKind::Locator,
        InodeNo::EXTERNAL | InodeNo::SYSTEM => PageKind::Sectors,
        _ if file.inode.is_dir() => PageKind::Sectors,
        _ => PageKind::Data,
    }
}

impl Preparation<'_> {
    fn run(mut self) -> Result<Prepared> {
        self.collect();
        self.with_derived |= self.many_derived();
        self.place()?;
        self.encode()?;
        self.seal()?;
        self.writes.keep_used(|block| self.store.alloc.used_fragments(block));
        self.store.alloc.epoch_started();
        self.store.locator.epoch_started();
        self.mark_busy()?;
        self.left.iter().for_each(|vnode| self.store.queue(vnode));
        self.store.next_epoch();
        let Preparation { epoch, writes, in_flight, left, .. } = self;
        let left = left.iter().map(|vnode| vnode.ino).collect();
        Ok(Prepared { epoch, writes, in_flight, left, superblock: None })
    }

    /// Has the busy log tell of all that changes, ahead of it.
    fn mark_busy(&mut self) -> Result<()> {
        let Store { busy, alloc, .. } = self.store;
        busy.space(alloc.take_changes(&busy.take_nameless())?);
        // Bitmaps may be all that the clean point writes: they are told of even so.
        let has_any = !self.writes.is_empty() || self.with_derived && alloc.has_changed_groups();
        if self.with_derived && has_any {
            busy.settling();
        }
        if has_any {
            busy.write(&mut self.writes);
        }
        Ok(())
    }

    /// Takes the queue but for files that wait, in the order in which files are to lie.
    fn collect(&mut self) {
        for vnode in self.store.take_queue() {
            let rank = {
                let state = vnode.state.read();
                let choice = self.choice.as_ref();
                if choice.is_some_and(|choice| choice.leaves(self.store, vnode.ino, &state)) {
                    self.left.push(vnode.clone());
                    continue;
                }
                rank(&state)
            };
            self.batch.insert(rank, vnode);
        }
    }

    /// Whether changed pages of derived state take so much memory that they go with this epoch.
    fn many_derived(&self) -> bool {
        let base = FileBlock(index::index_base(self.store.layout.block_bytes));
        let pages: usize = self
            .batch
            .values()
            .map(|vnode| {
                let state = vnode.state.read();
                match vnode.ino {
                    InodeNo::LOCATOR => state.pages.dirty_count(),
                    _ if state.inode.bucket_count() > 0 => {
                        state.pages.dirty_in(base..FileBlock::END).count()
                    }
                    _ => 0,
                }
            })
            .sum();
        pages as u64 * u64::from(self.store.layout.block_bytes) > self.derived_bytes_max
    }

    /// The keys whose small files are urgent and lie side by side: somebody waits for the epoch, and the
    /// arm would have to go to each key's own place for a few blocks. Empty if there is but one.
    fn joined_keys(&self) -> HashSet<Key> {
        let mut keys: HashMap<Key, u64> = HashMap::new();
        for vnode in self.batch.values().filter(|_| self.choice.is_some()) {
            let file = vnode.state.read();
            let is_small = file.inode.size <= self.store.small_bytes_max();
            if is_small && !vnode.ino.is_system() && !file.inode.is_dir() {
                *keys.entry(file.inode.placement_key()).or_default() +=
                    file.pages.dirty_count() as u64;
            }
        }
        let block_bytes = u64::from(self.store.layout.block_bytes);
        keys.retain(|_, pages| {
            (1..u64::from(self.store.layout.segment_bytes) / block_bytes).contains(pages)
        });
        if keys.len() > 1 { keys.into_keys().collect() } else { HashSet::new() }
    }

    fn place(&mut self) -> Result<()> {
        let base = FileBlock(index::index_base(self.store.layout.block_bytes));
        let joined = self.joined_keys();
        let rewritten = rewritten(self.store, self.batch.values());
        let mut placer = Placer::new(self.store, std::mem::take(&mut self.hints), rewritten);
        for vnode in self.batch.values() {
            let mut file = Locked::new(vnode);
            let range = match page_kind(&file) {
                PageKind::Sectors if !self.with_derived => FileBlock(0)..base,
                PageKind::Sectors => FileBlock::ALL,
                PageKind::Locator if self.with_derived => FileBlock::ALL,
                PageKind::Locator => continue,
                PageKind::Data => {
                    let positions = file.pages.dirty_in(FileBlock::ALL).collect();
                    let joins = joined.contains(&file.inode.placement_key())
                        && file.inode.size <= self.store.small_bytes_max();
                    drop(file);
                    let placed =
                        placer.place(vnode, positions, joins, &mut self.writes, self.epoch)?;
                    self.in_flight.push((vnode.clone(), placed));
                    continue;
                }
            };
            let new = self.store.place_blocks(&mut file, range)?;
            self.new_pages.insert(vnode.ino, new);
        }
        for (parent, run) in std::mem::take(placer.hints()) {
            // One that was noted ahead of the epoch may be gone.
            let Some(vnode) = self.store.peek(parent) else { continue };
            let mut dir = Locked::new(&vnode);
            if dir.inode.is_dir() && dir.inode.hint.len == 0 && dir.inode.nlink > 0 {
                dir.inode.hint = run;
                self.store.mark_dirty(&mut dir);
            }
        }
        self.collect();
        Ok(())
    }

    /// Puts every changed inode into its sector.
    fn encode(&mut self) -> Result<()> {
        let vnodes: Vec<Arc<Vnode>> = self.batch.values().cloned().collect();
        for vnode in &vnodes {
            let (dirty, container, waits) = {
                let state = vnode.state.read();
                let choice = self.choice.as_ref();
                let waits = choice.is_some_and(|choice| choice.leaves_times(vnode.ino, &state));
                (state.dirty, state.container, state.dirty && waits)
            };
            let system = matches!(vnode.ino, InodeNo::LOCATOR if !self.with_derived);
            match container {
                _ if waits => self.left.push(vnode.clone()),
                Some(container) if dirty && !system => {
                    let holder = self.store.get(container.file)?;
                    let (mut holder, mut file) = Locked::with_holder(&holder, vnode);
                    self.encode_into(&mut holder, &mut file, container.sector)?;
                    file.durable = Some(container);
                    file.motion.tags.clear();
                    file.set_encoded();
                }
                // An inode without a name stays in memory until nobody uses it.
                None if dirty => self.store.encode_nameless(vnode, &mut self.writes)?,
                _ => {}
            }
        }
        self.collect();
        Ok(())
    }

    fn encode_into(
        &mut self,
        holder: &mut Locked<'_>,
        file: &mut Locked<'_>,
        index: crate::units::SectorIndex,
    ) -> Result<()> {
        let ino = file.inode.ino;
        let lost = |what| Corruption::Inode { ino, what };
        let (slot, room) = {
            let image = self.store.sector(holder, index)?;
            let sector = image.get();
            let entry =
                sector.find_inode(ino).ok_or(lost("its sector does not have it any more"))?;
            let head = sector::entry_bytes(entry.name.len(), 0);
            (entry.slot, sector.entry_room(entry.slot) - head)
        };
        let encoded = self.store.encode_to_fit(file, room, &mut self.writes)?;
        let image = self.store.sector_mut(holder, index)?;
        if sector::replace(image, slot, &sector::Body::Embedded(encoded.record())) {
            Ok(())
        } else {
            Err(lost("its sector has no room for it").into())
        }
    }

    /// Snapshots the pages of containers and of derived state.
    fn seal(&mut self) -> Result<()> {
        let base = FileBlock(index::index_base(self.store.layout.block_bytes));
        let vnodes: Vec<Arc<Vnode>> = self.batch.values().cloned().collect();
        for vnode in &vnodes {
            let mut file = Locked::new(vnode);
            let kind = page_kind(&file);
            if kind == PageKind::Data {
                continue;
            }
            file.entries.leaving.clear();
            let sectors_end = if kind == PageKind::Sectors { base } else { FileBlock(0) };
            let positions: Vec<FileBlock> = file.pages.dirty_in(FileBlock::ALL).collect();
            let mut taken = Vec::with_capacity(positions.len());
            for position in positions {
                if position < sectors_end {
                    self.seal_sectors(&mut file, position)?;
                } else if self.with_derived {
                    self.seal_derived(&mut file, position, kind)?;
                } else {
                    self.store.queue(vnode);
                    continue;
                }
                taken.push(position);
            }
            if file.dirty {
                self.store.queue(vnode);
            }
            self.in_flight.push((vnode.clone(), taken));
        }
        Ok(())
    }

    fn number_of(&self, file: &Locked<'_>, position: FileBlock) -> Result<BlockNo> {
        let fragments = self.store.layout.block_fragments();
        let map = file.inode.map();
        let what = "a changed block of it has no place";
        map.and_then(|map| map.block_at(position, fragments))
            .ok_or(Corruption::Inode { ino: file.inode.ino, what }.into())
    }

    fn take_page(&self, file: &mut Locked<'_>, position: FileBlock) -> Option<Arc<Block>> {
        let epoch = self.epoch;
        self.store.count_dirty(file, |file| file.pages.start_write(position, epoch))
    }

    fn seal_sectors(&mut self, file: &mut Locked<'_>, position: FileBlock) -> Result<()> {
        let number = self.number_of(file, position)?;
        let len = self.store.layout.sector_bytes as usize;
        let (epoch, checksum) = (self.epoch, self.store.checksum);
        let change = if file.inode.ino.is_system() && file.inode.ino != InodeNo::ROOT {
            Phase::Table
        } else {
            Phase::Change
        };
        let new = self.new_pages.get(&file.inode.ino).is_some_and(|new| new.contains(&position));
        let waits = new && self.names_wait(file, position);
        if waits {
            let empty = self.store.empty_block(file, position);
            self.writes.put_block(Phase::New, number, sealed(empty, len, epoch, checksum));
        }
        let Some(page) = self.store.dirty_page(file, position) else { return Ok(()) };
        let deferred = page.chunks_exact(len).any(|image| Sector::new(image).has_deferred());
        if deferred && !new {
            let mut before = page.clone();
            before.chunks_exact_mut(len).for_each(sector::before_deferred);
            self.writes.put_block(change, number, sealed(before, len, epoch, checksum));
        }
        for image in page.chunks_exact_mut(len) {
            sector::settle(image);
            sector::seal(image, epoch, checksum);
        }
        let phase = match (new, deferred) {
            (true, _) if waits => Phase::Change,
            (true, _) => Phase::New,
            (false, true) => Phase::Settle,
            (false, false) => change,
        };
        if let Some(block) = self.take_page(file, position) {
            self.writes.put_block(phase, number, block);
        }
        Ok(())
    }

    /// Whether a new block of a directory has to be written without its names first: the inode of
    /// the directory, which leads to it, and those of names that moved here are changed in one
    /// phase, and a name must not be there before the tag that tells of its move.
    fn names_wait(&self, dir: &Locked<'_>, position: FileBlock) -> bool {
        let is_external = dir.container.is_some_and(|place| place.file == InodeNo::EXTERNAL);
        let Some(page) = dir.pages.get(position).filter(|_| is_external) else { return false };
        let moved = |ino| {
            let vnode = self.store.peek(ino);
            vnode.is_some_and(|vnode| vnode.state.read().motion.lost_name == Some(self.epoch))
        };
        page.chunks_exact(self.store.layout.sector_bytes as usize).any(|image| {
            let mut entries = Sector::new(image).entries();
            entries.any(|entry| match entry.body {
                sector::Body::Reference { ino, .. } => moved(ino),
                sector::Body::Embedded(_) => false,
            })
        })
    }

    fn seal_derived(
        &mut self,
        file: &mut Locked<'_>,
        position: FileBlock,
        kind: PageKind,
    ) -> Result<()> {
        let number = self.number_of(file, position)?;
        let checksum = self.store.checksum;
        // A page that is there is changed only when the log tells of it.
        let new = self.new_pages.get(&file.inode.ino).is_some_and(|new| new.contains(&position));
        let phase = if new { Phase::New } else { Phase::Change };
        let Some(page) = self.store.dirty_page(file, position) else { return Ok(()) };
        match kind {
            PageKind::Locator => locator::seal(page, checksum),
            _ => index::seal(page, checksum),
        }
        if let Some(block) = self.take_page(file, position) {
            self.writes.put_block(phase, number, block);
        }
        Ok(())
    }
}

/// Lets go of pages that were written and not changed since: the cache has them.
pub(super) fn finish_writes(in_flight: InFlight, epoch: EpochNo) {
    for (vnode, positions) in in_flight {
        let mut state = vnode.state.write();
        for position in positions {
            state.pages.finish_write(position, epoch);
        }
    }
}

/// A block of sectors of `len` bytes, sealed.
fn sealed(mut block: Block, len: usize, epoch: EpochNo, checksum: Checksum) -> Arc<Block> {
    block.chunks_exact_mut(len).for_each(|image| sector::seal(image, epoch, checksum));
    Arc::new(block)
}
