//! Trim: discards all free space, so that an image gives its space back to the host, and an SSD or a thin
//! volume has less to keep.
//!
//! Free space is looked up and discarded under one hold of the lock of epochs (`epoch::discard`).

use std::ops::Range;

use crate::epoch::{BATCH_RUNS, Discarder, EpochWriter, Trimmed};
use crate::error::Result;
use crate::inode::InodeCache;
use crate::lock::Rule;
use crate::trace::OpKind;
use crate::units::{BlockNo, CgIndex, FragRun};

/// Discards the free space of a volume.
pub(crate) struct Trim<'a> {
    inodes: &'a InodeCache,
    writer: &'a EpochWriter,
}

impl<'a> Trim<'a> {
    pub(crate) fn new(writer: &'a EpochWriter) -> Trim<'a> {
        Trim { inodes: &writer.inodes, writer }
    }
}

impl Trim<'_> {
    /// Discards the free space of a range; see [`Admin::trim`](crate::vfs::Admin::trim).
    pub(crate) fn run(&self, range: Range<u64>, least_bytes: u64) -> Result<Trimmed> {
        let _op = self.writer.enter_volume(OpKind::Maintenance);
        self.writer.commit()?;
        let block_bytes = u64::from(self.inodes.layout.block_bytes);
        let mut discarder = Discarder::new(self.inodes, least_bytes.div_ceil(block_bytes));
        let mut from = BlockNo(range.start.div_ceil(block_bytes));
        let until = BlockNo((range.end / block_bytes).min(self.inodes.layout.blocks));
        while from < until {
            let _epochs = Rule::TrimHoldsEpochs.holds().then(|| self.writer.epochs.lock());
            self.writer.health.check_writable()?;
            let cg = self.inodes.layout.cg_of(from);
            from = if cg.0 < self.inodes.alloc.groups_used() {
                self.trim_used(&mut discarder, cg, from..until)?
            } else {
                trim_unused(&mut discarder, from..until)?
            };
        }
        Ok(discarder.trimmed)
    }

    /// Discards the next free runs of a group, and returns where to continue.
    fn trim_used(
        &self,
        discarder: &mut Discarder<'_>,
        cg: CgIndex,
        part: Range<BlockNo>,
    ) -> Result<BlockNo> {
        let layout = &self.inodes.layout;
        let group_end = layout.cg_start(cg).0 + u64::from(layout.cg_len_blocks(cg));
        let end = BlockNo(part.end.0.min(group_end));
        let start = layout.block_start(part.start);
        let len = (layout.block_start(end).0 - start.0) as u32;
        let runs = self.inodes.alloc.free_blocks(FragRun::new(start, len), BATCH_RUNS)?;
        for run in &runs {
            discarder.discard_run(*run)?;
        }
        match runs.last() {
            Some(last) if runs.len() == BATCH_RUNS => Ok(layout.block_of(last.end())),
            _ => Ok(end),
        }
    }
}

/// Discards the next piece of the groups that were never used, up to the next system blocks, and returns
/// where to continue.
fn trim_unused(discarder: &mut Discarder<'_>, part: Range<BlockNo>) -> Result<BlockNo> {
    let system = discarder.next_system_run(part.start);
    if system.start <= part.start {
        return Ok(system.end);
    }
    let end = system.start.min(part.end);
    discarder.discard_blocks(part.start..end)?;
    Ok(end)
}
