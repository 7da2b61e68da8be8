//! The writes of an epoch, and their order (DESIGN: epochs).
//!
//! Within a phase the writes go in device order, adjacent blocks of any files in one request (group write); a
//! barrier separates the phases. A set is a snapshot: later changes in memory belong to the next epoch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::take;
use std::sync::Arc;

use super::stage::Stage;
use super::unwritten::{self, Unwritten};
use super::{Block, BufferCache};
use crate::error::{Corruption, Result};
use crate::format::Layout;
use crate::trace::{self, Causes};
use crate::units::{BlockNo, FragNo};

#[cfg(test)]
mod tests;

/// The phase of an epoch in which a block is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// File data, new sectors, new extent blocks: nothing on the device points to them yet.
    New = 0,
    /// The external inode table and the system area, without their deferred changes: a name that
    /// replaces another must not refer to an inode that is not there.
    Table = 1,
    /// Directory sectors, without their deferred changes.
    Change = 2,
    /// Sectors with the deferred changes.
    Settle = 3,
    /// Sectors with new files under former names of other files.
    Appear = 4,
    /// Derived state, once everything that it is derived from is on the device.
    Derived = 5,
}

impl Phase {
    const ALL: [Phase; 6] =
        [Phase::New, Phase::Table, Phase::Change, Phase::Settle, Phase::Appear, Phase::Derived];
}

enum Image {
    Whole(Arc<Block>),
    /// A block of which some fragments are written. Of the others, those in use do not change; free ones may
    /// get any contents.
    Part {
        block: Block,
        covered: u64,
        kept: u64,
    },
}

/// The writes of an epoch.
#[derive(Default)]
pub struct WriteSet {
    phases: [BTreeMap<BlockNo, Image>; 6],
    /// Whether blocks of the first phase were written before, without a flush since.
    follows: bool,
    /// The operations that changed the written blocks, by block.
    causes: HashMap<BlockNo, Causes>,
    unwritten: Unwritten,
}

impl WriteSet {
    /// An empty set that records the fragments that it covers.
    pub(super) fn expecting(unwritten: Unwritten) -> WriteSet {
        WriteSet { unwritten, ..WriteSet::default() }
    }

    /// Adds a whole block.
    pub fn put_block(&mut self, phase: Phase, number: BlockNo, block: Arc<Block>) {
        self.unwritten.expect(number, u64::MAX);
        self.phases[phase as usize].insert(number, Image::Whole(block));
    }

    /// Adds a run of fragments, in the first phase. In a block that the set covers in part, the other
    /// fragments do not change.
    pub fn put_fragments(&mut self, layout: &Layout, start: FragNo, bytes: &[u8]) {
        let fragment_bytes = layout.fragment_bytes as usize;
        let per_block = u64::from(layout.block_fragments());
        let phase = &mut self.phases[Phase::New as usize];
        let mut next = start.0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let number = BlockNo(next / per_block);
            let first = next % per_block;
            let room = (per_block - first) as usize * fragment_bytes;
            let (piece, after) = rest.split_at(rest.len().min(room));
            let fragments = piece.len().div_ceil(fragment_bytes) as u64;
            let covers = unwritten::fragments(first, fragments);
            self.unwritten.expect(number, covers);
            if fragments == per_block && piece.len() == layout.block_bytes as usize {
                phase.insert(number, Image::Whole(Arc::new(Block::new(piece))));
            } else {
                let image = phase.entry(number).or_insert_with(|| Image::Part {
                    block: Block::zeroed(layout.block_bytes as usize),
                    covered: 0,
                    kept: u64::MAX,
                });
                let at = first as usize * fragment_bytes;
                match image {
                    Image::Whole(block) => {
                        Arc::make_mut(block)[at..at + piece.len()].copy_from_slice(piece);
                    }
                    Image::Part { block, covered, .. } => {
                        block[at..at + piece.len()].copy_from_slice(piece);
                        *covered |= covers;
                    }
                }
            }
            next += fragments;
            rest = after;
        }
    }

    /// Records the operations that caused the write of a block, in any phase.
    pub fn note_causes(&mut self, number: BlockNo, causes: &Causes) {
        if !causes.is_empty() {
            self.causes.entry(number).or_default().note_all(causes);
        }
    }

    /// Sets which fragments of a block are in use, one bit for each: the others need not be kept,
    /// and so not be read. Called when the set is complete.
    pub fn keep_used(&mut self, used: impl Fn(BlockNo) -> u64) {
        for (number, image) in self.phases.iter_mut().flatten() {
            if let Image::Part { kept, .. } = image {
                *kept = used(*number);
            }
        }
    }

    /// The number of blocks to be written.
    pub fn block_count(&self) -> u64 {
        self.phases.iter().map(|phase| phase.len() as u64).sum()
    }

    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.phases.iter().all(BTreeMap::is_empty)
    }

    /// Writes the first phase ahead of the rest. Its blocks are then in the cache, but the device may receive
    /// them after later writes.
    pub fn write_ahead(mut self, cache: &BufferCache) -> Result<()> {
        let _for = trace::write_for(take(&mut self.causes), cache.layout.block_bytes);
        let [new, rest @ ..] = self.phases;
        debug_assert!(rest.iter().all(BTreeMap::is_empty), "only what is new is written ahead");
        write_phase(cache, new)?;
        self.unwritten.clear();
        Ok(())
    }

    /// Records that blocks of the first phase were written ahead of the rest.
    pub fn follow(&mut self) {
        self.follows = true;
    }

    /// Writes the set, phase by phase, and returns when it is durable. The cache then has every block with
    /// its contents on the device.
    pub fn commit(mut self, cache: &BufferCache) -> Result<()> {
        let _for = trace::write_for(take(&mut self.causes), cache.layout.block_bytes);
        let written = self.write(cache);
        // No thread waits for the device from here on, and a stage that stayed set would look like a hang.
        cache.stage.set(None);
        written?;
        self.unwritten.clear();
        Ok(())
    }

    /// Fails if a block is in two phases that exclude each other, or only in a phase that follows another.
    /// Debug builds check this before a set is written. On a damaged volume, two files may claim one block.
    fn check(&self, layout: &Layout) -> Result<(), Corruption> {
        let has = |phase: Phase, number: &BlockNo| self.phases[phase as usize].contains_key(number);
        for (phase, writes) in Phase::ALL.into_iter().zip(&self.phases) {
            for (number, image) in writes {
                let changes = has(Phase::Table, number) || has(Phase::Change, number);
                let (is_new, is_part) =
                    (has(Phase::New, number), matches!(image, Image::Part { .. }));
                let is_right = match phase {
                    Phase::New => !is_part || !changes,
                    Phase::Table => !is_part && !has(Phase::Change, number),
                    Phase::Change => !is_part,
                    Phase::Settle => !is_part && changes,
                    Phase::Appear => !is_part && (is_new || changes),
                    Phase::Derived => !is_part && !is_new && !changes,
                };
                if !is_right {
                    let what = "a block of it is written for two of its users";
                    return Err(Corruption::CgHeader { cg: layout.cg_of(*number), what });
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, cache: &BufferCache) -> Result<()> {
        if cfg!(debug_assertions) {
            self.check(&cache.layout)?;
        }
        if self.commit_at_once(cache)? {
            return Ok(());
        }
        let mut written = self.follows;
        for (number, phase) in take(&mut self.phases).into_iter().enumerate() {
            if phase.is_empty() {
                continue;
            }
            if written && number > Phase::New as usize {
                cache.stage.set(Some(Stage::Barrier));
                cache.barrier()?;
            }
            cache.stage.set(Phase::ALL.get(number).copied().map(Stage::Writing));
            write_phase(cache, phase)?;
            written = true;
        }
        if written {
            cache.stage.set(Some(Stage::Syncing));
            cache.sync()?;
        }
        Ok(())
    }

    /// Writes the set, or all that is not new, as one record of the device's journal, which needs no phases;
    /// returns false if it has no journal, or the record would be too long; the rest of the set is then still
    /// to be written.
    fn commit_at_once(&mut self, cache: &BufferCache) -> Result<bool> {
        let max = cache.atomic_blocks_max();
        if max == 0 {
            return Ok(false);
        }
        let [new, rest @ ..] = &self.phases;
        let others: BTreeSet<BlockNo> = rest.iter().flat_map(BTreeMap::keys).copied().collect();
        let more = new.keys().filter(|number| !others.contains(number)).count();
        // The superblock goes first, since no record may contain it.
        let is_direct = |number: BlockNo| others.len() + more > max || number == BlockNo(0);
        if others.len() > max || others.is_empty() && more > max {
            return Ok(false);
        }
        let (direct, journaled) =
            take(&mut self.phases[0]).into_iter().partition(|(number, _)| is_direct(*number));
        self.phases[0] = journaled;
        self.follows |= !BTreeMap::is_empty(&direct);
        cache.stage.set(Some(Stage::Writing(Phase::New)));
        write_phase(cache, direct)?;
        let mut record = BTreeMap::new();
        for phase in self.phases.iter_mut().rev() {
            for (number, image) in phase {
                if let Image::Part { block, covered, kept } = image {
                    let part = Image::Part { block: block.clone(), covered: *covered, kept: *kept };
                    *image = Image::Whole(complete(cache, *number, part)?);
                }
                if let Image::Whole(whole) = image {
                    record.entry(*number).or_insert_with(|| Arc::clone(whole));
                }
            }
        }
        cache.stage.set(Some(Stage::Journaling));
        let is_written = {
            let _as = trace::as_record(record.keys().copied());
            !record.is_empty() && cache.write_atomic(&record)?
        };
        if !is_written {
            return Ok(false);
        }
        for (number, image) in record {
            cache.clean.install(number, image);
        }
        Ok(true)
    }
}

fn write_phase(cache: &BufferCache, phase: BTreeMap<BlockNo, Image>) -> Result<()> {
    let longest = run_blocks(cache);
    let mut first = BlockNo(0);
    let mut run: Vec<Arc<Block>> = Vec::new();
    for (number, image) in phase {
        let image = complete(cache, number, image)?;
        if number.0 != first.0 + run.len() as u64 || run.len() == longest {
            write_run(cache, first, &mut run)?;
            first = number;
        }
        run.push(image);
    }
    write_run(cache, first, &mut run)
}

/// The longest run that is written at once, in blocks: whole requests.
fn run_blocks(cache: &BufferCache) -> usize {
    let request = cache.request_blocks();
    let requests = cache.tuning.writing.run_bytes / u64::from(cache.layout.block_bytes) / request;
    (requests.max(1) * request) as usize
}

fn write_run(cache: &BufferCache, first: BlockNo, run: &mut Vec<Arc<Block>>) -> Result<()> {
    if run.is_empty() {
        return Ok(());
    }
    cache.write_run(first, run)?;
    for (number, image) in (first.0..).zip(run.drain(..)) {
        cache.clean.install(BlockNo(number), image);
    }
    Ok(())
}

/// Fills the fragments of a block that are in use and not written with the device's contents.
fn complete(cache: &BufferCache, number: BlockNo, image: Image) -> Result<Arc<Block>> {
    match image {
        Image::Whole(block) => Ok(block),
        Image::Part { block, covered, kept }
            if kept & !covered & unwritten::fragments(0, cache.layout.block_fragments().into())
                == 0 =>
        {
            Ok(Arc::new(block))
        }
        Image::Part { mut block, covered, .. } => {
            let old = cache.read(number)?;
            let fragment_bytes = cache.layout.fragment_bytes as usize;
            let fragments = block.chunks_exact_mut(fragment_bytes);
            for (index, (new, old)) in fragments.zip(old.chunks_exact(fragment_bytes)).enumerate() {
                if covered >> index & 1 == 0 {
                    new.copy_from_slice(old);
                }
            }
            Ok(Arc::new(block))
        }
    }
}
