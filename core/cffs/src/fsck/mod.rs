//! Check and repair of a whole volume.
//!
//! Offers [`check()`], which walks the truth, everything that cannot be recomputed (DESIGN: truth and derived
//! state), checks it against the format's rules, compares all derived state with it, and repairs both. It
//! serves `cffs fsck`, and the recovery of a volume that was not left clean. Stands only on `device`,
//! `format` and `journal`: it never trusts the allocator that it audits. `docs/FSCK.md` explains what it
//! finds, code by code.
//!
//! ```text
//!   pass 0   superblock, its copies, system area
//!   pass 1   external table, directories, extents, attributes  ─┐ a round; each round sees what
//!   pass 2   names and inodes, link counts, lost+found         ─┘ the ones before it repaired
//!   ── barrier: the truth is right ──
//!   pass 3   locator table
//!   pass 4   bitmaps, group headers, counters
//!   ── barrier ── superblock: clean
//! ```
//!
//! | type | what it is |
//! | --- | --- |
//! | `Disk` | the device, and an overlay with the changes that are not written yet |
//! | `Metadata` | sectors, records and extents by inode, read and changed through the overlay |
//! | `Inventory`, `Space` | the inodes, names and fragments that a round of the walk has found |
//! | `Findings` | problems, what a crash explains, doubts |
//! | `Walk`, with `Claims`, `Duplicates`, `InterruptedRenames`, … | passes 1 and 2: they read and note `Fix`es |
//! | `Editor`, `MapWriter`, `LostFound`, `Sharers` | make the repairs that were noted, in the overlay |
//! | `Search` | finds what nothing leads to |
//! | `LocatorTable`, `Bitmaps`, `Copies` | derived state, and the superblock |
//! | `Check`, `FastRecovery` | the order of all this: for everything, or for what the intent log lists |
//!
//! Repairs change the overlay, never the device itself, so that a check without repair does and reports the
//! same. A repair that the walk can follow in its inventory (a count, a name that is removed) needs no other
//! round: after a crash each block of metadata is read once.
//!
//! Invariants: repairs are idempotent, and a repair that is interrupted can be started again: the superblock
//! says "damaged" before the first write of truth and "clean" after the last write. Lengths and counts from
//! the device are checked before they bound an allocation or a loop.

mod check;
mod claims;
mod cluster_counts;
mod clusters;
mod contents;
mod copies;
mod disk;
mod duplicates;
mod editor;
mod fast;
mod findings;
mod fix;
mod index;
mod intent_update;
mod interrupted_renames;
mod inventory;
mod journal;
mod listed_walk;
mod loss;
mod lost_found;
mod lost_writes;
mod map_writer;
mod mend_index;
mod metadata;
mod parts;
mod pass0;
mod pass1;
mod pass2;
mod pass3;
mod pass4;
pub mod problems;
mod queue;
mod quotas;
mod rebuild;
mod records;
mod report;
mod salvage;
mod scope;
mod search;
mod sharers;
mod used;
mod walk;

#[cfg(test)]
mod tests;

use std::ops::Range;

use self::check::Check;
use self::disk::Disk;
use self::journal::Source;
use self::lost_writes::LostWrites;
pub use self::problems::{Code, Severity};
pub use self::report::{FastReport, Loss, LossKind, Place, Problem, Report};
use self::scope::Scope;
use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::superblock::State;

/// The repairs that a check may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// Nothing: the device is only read (`-n`).
    #[default]
    No,
    /// Repairs the effects of a crash, and derived state; if there is other damage, nothing (`-p`).
    Preen,
    /// Everything (`-y`).
    Yes,
}

/// How to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// The repairs that are allowed.
    pub repair: Repair,
    /// Checks the whole volume, however it was left. Otherwise `Preen` skips a volume that was left clean,
    /// and reads only what the intent log lists of one that was in use.
    pub force: bool,
    /// Skips a volume that was left clean, unless `force` is set, whatever may be repaired.
    pub pass_over_clean: bool,
    /// Reads the contents of small files, and all clusters, and checks their checksums.
    pub contents: bool,
    /// Searches the whole device for directories that nothing refers to, including deleted ones.
    /// Not with `Preen`.
    pub salvage: bool,
    /// The volume is open, and its server has written all derived state and changes nothing during the
    /// check, so derived state must be right. Only with [`Repair::No`].
    pub settled: bool,
    /// The check continues if the journal is lost or damaged, and the volume was in use: changes that were
    /// reported as durable are lost then. The records of a damaged journal before the damage are used. With
    /// [`Repair::Yes`], the contents of the journal do not count from then on.
    pub without_journal: bool,
    /// Ranges of the device, in order and disjoint, whose bytes it lost: files with contents in them are
    /// listed.
    pub lost: Vec<Range<u64>>,
    /// Threads that read.
    pub threads: usize,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions {
            repair: Repair::No,
            force: false,
            pass_over_clean: false,
            contents: false,
            salvage: false,
            settled: false,
            without_journal: false,
            lost: Vec::new(),
            threads: 4,
        }
    }
}

/// The phases of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Pass 1: counts inodes.
    Walk,
    /// Contents of small files, and then clusters: counts files and clusters.
    Contents,
    /// The search for lost directories: counts cylinder groups.
    Search,
    /// Pass 2: counts inodes.
    Links,
    /// Pass 3: counts blocks of the locator table.
    Locator,
    /// Pass 4: counts cylinder groups.
    Bitmaps,
}

/// Receives how far the check is.
pub trait Progress: Sync {
    /// `done` of about `total` are done.
    fn report(&self, phase: Phase, done: u64, total: u64);
}

/// Reports nothing.
impl Progress for () {
    fn report(&self, _: Phase, _: u64, _: u64) {}
}

/// A check that needs more rounds gives up: a single accident never needs that many.
const ROUNDS_MAX: u32 = 12;

/// Checks the volume on the device and repairs it as far as the options allow.
///
/// The device must not change meanwhile. Fails only if the check is impossible: no superblock is found, the
/// format is unknown, changes may be lost with the journal and the options do not accept that, the device
/// does not answer, or a write fails.
pub fn check(
    device: &dyn BlockDevice,
    options: &CheckOptions,
    progress: &dyn Progress,
) -> Result<Report> {
    Begun::new(device, options)?.check(options, progress)
}

/// Checks the volume as [`check()`] does, and calls `claim` before anything is written, once it is certain
/// that the check can be made: `claim` may record this program as the user in the superblock, and fails
/// if another program has it open. If the superblock is lost, it gets the copy that takes its place, with the
/// newest mark in a copy.
pub fn check_claimed(
    device: &dyn BlockDevice,
    options: &CheckOptions,
    progress: &dyn Progress,
    claim: &dyn Fn(&Superblock) -> Result<()>,
) -> Result<Report> {
    let begun = Begun::new(device, options)?;
    claim(&begun.superblock)?;
    // The claim changed the superblock. The journal stays as it is.
    let (superblock, report) = find_superblock(device, options)?;
    Begun { superblock, report, ..begun }.check(options, progress)
}

/// A check that can be made.
struct Begun<'d> {
    superblock: Superblock,
    report: Report,
    source: Source<'d>,
}

impl<'d> Begun<'d> {
    fn new(device: &'d dyn BlockDevice, options: &CheckOptions) -> Result<Begun<'d>> {
        let (superblock, report) = find_superblock(device, options)?;
        let source = Source::find(device, &superblock, is_copy(&report), options)?;
        Ok(Begun { superblock, report, source })
    }

    fn check(mut self, options: &CheckOptions, progress: &dyn Progress) -> Result<Report> {
        if is_copy(&self.report) {
            // The process that it names does not use the volume.
            self.superblock.holder = None;
        }
        self.source.check(self.superblock, options, progress, self.report)
    }
}

/// Whether the superblock that was found is a copy of one that is lost.
fn is_copy(report: &Report) -> bool {
    !report.problems.is_empty()
}

fn find_superblock(
    device: &dyn BlockDevice,
    options: &CheckOptions,
) -> Result<(Superblock, Report)> {
    let mut disk = Disk::new(device, options.threads);
    let mut report = Report::default();
    let found = pass0::find_superblock(&mut disk, &mut report, options.salvage);
    disk.check_reached()?;
    Ok((found?, report))
}

/// Checks a volume whose journal, if it has one, is part of the device.
fn check_journaled(
    device: &dyn BlockDevice,
    mut superblock: Superblock,
    options: &CheckOptions,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report> {
    let mut disk = Disk::new(device, options.threads);
    report.damage_seen = superblock.damage;
    let is_doubted = superblock.damage.is_some();
    // The generation that a repair marks as clean must be newer than any on the device.
    if superblock.state == State::Damaged {
        superblock.generation = lost_writes::newest_generation(&mut disk, &superblock);
    } else if let Some(lost_writes) = lost_writes::find(&mut disk, &superblock) {
        superblock.generation = superblock.generation.max(lost_writes.generation);
        report.problems.push(lost_writes.problem());
    }
    disk.check_reached()?;
    // The damage that was seen may be in contents.
    let options = &CheckOptions { contents: options.contents || is_doubted, ..options.clone() };
    if superblock.state == State::Clean
        && report.problems.is_empty()
        && (options.repair == Repair::Preen || options.pass_over_clean)
        && !options.force
        && !is_doubted
    {
        report.skipped = true;
        return Ok(report);
    }
    let is_recovery = superblock.state == State::InUse && options.repair == Repair::Preen;
    if is_recovery && !options.force && report.problems.is_empty() && !is_doubted {
        match fast_check(device, &superblock, options, progress)? {
            Ok(report) => return Ok(report),
            Err(Doubt { why, lost_writes }) => {
                report.full_because = Some(why);
                report.problems.extend(lost_writes.map(|lost_writes| lost_writes.problem()));
            }
        }
    }
    if options.settled && options.repair == Repair::No && superblock.state == State::InUse {
        superblock.state = State::Clean;
    }
    let mut check = Check::new(disk, superblock, options, progress, report);
    check.run()?;
    check.walk.meta.disk.check_reached()?;
    Ok(check.into_report())
}

/// The reason for which a fast check cannot be trusted.
struct Doubt {
    why: String,
    /// Evidence that the device lost writes, if that is the reason.
    lost_writes: Option<LostWrites>,
}

/// Fails if a volume that was left clean shows that its device lost acknowledged writes: opening it would
/// hide the loss.
pub(crate) fn check_kept(device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
    let mut disk = Disk::new(device, 1);
    let lost_writes = lost_writes::find(&mut disk, superblock);
    disk.check_reached()?;
    match lost_writes {
        Some(lost_writes) => Err(Error::Unsupported(format!(
            "{}; run cffs fsck -y on the volume, or mount it read-only",
            lost_writes.problem()
        ))),
        None => Ok(()),
    }
}

/// Recovers what the intent log lists, or returns the reason for a check of everything.
fn fast_check(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    options: &CheckOptions,
    progress: &dyn Progress,
) -> Result<std::result::Result<Report, Doubt>> {
    let mut disk = Disk::new(device, options.threads);
    let scope = Scope::read(&mut disk, superblock);
    disk.check_reached()?;
    let scope = match scope {
        Ok(scope) => scope,
        Err(why) => return Ok(Err(Doubt { why: why.into(), lost_writes: None })),
    };
    let mut check = Check::new(disk, superblock.clone(), options, progress, Report::default());
    if let Some(what) = scope.lost_writes.clone() {
        check.walk.findings.lost_writes(what);
    }
    check.walk.meta.epoch_min = Some(scope.epoch_of_change(0));
    check.walk.scope = Some(scope);
    check.run_fast()?;
    check.walk.meta.disk.check_reached()?;
    Ok(match check.walk.findings.reason_for_doubt() {
        Some(why) => Err(Doubt { why, lost_writes: check.walk.findings.lost_writes.take() }),
        None => Ok(check.into_report()),
    })
}
