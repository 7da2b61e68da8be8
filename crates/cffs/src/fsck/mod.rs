//! Check and repair of a whole volume.
//!
//! Offers [`check`], which walks everything that cannot be recomputed (DESIGN: truth and derived
//! state), holds it against the format's rules, holds everything derived against it, and repairs
//! both. It serves `cffs fsck`, and the recovery of a volume that was not left clean. Stands on
//! `device`, `format` and `log` alone: it never trusts the allocator that it audits. `docs/FSCK.md`
//! explains what it finds, code by code.
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
//! Repairs change an overlay in memory, never the device itself, so that a check without repair
//! takes the same way and reports the same. A repair that the walk's own record can follow (a count,
//! a name that goes) needs no further round: after a crash each block of metadata is read once.
//!
//! Invariants: repairs are idempotent, and a repair that is cut short is one that can be started
//! again: the superblock says "damaged" before the first write of truth and "clean" after the last
//! write. Lengths and counts from the device are held against what can be before anything is
//! allocated or repeated by them.

mod contents;
mod disk;
mod duplicates;
mod editor;
mod fast;
mod index;
mod interrupted_renames;
mod inventory;
mod journal_update;
mod loss;
mod lost_found;
mod lost_writes;
mod map;
mod pass0;
mod pass1;
mod pass2;
mod pass3;
mod pass4;
pub mod problems;
mod rebuild;
mod report;
mod salvage;
mod scope;
mod search;
mod sectors;
mod stable_log;
mod used;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};

use self::disk::Disk;
use self::fast::Fast;
pub use self::fast::FastReport;
use self::loss::Losses;
use self::lost_writes::LostWrites;
pub use self::problems::{Code, Severity};
pub use self::report::{Loss, LossKind, Place, Problem, Report};
use self::scope::Scope;
use self::search::Search;
use self::stable_log::Source;
use self::walk::Walk;
use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::format::superblock::State;
use crate::format::{Checksum, Layout, Superblock};
use crate::units::{BlockNo, CgIndex, FragRun, InodeNo};

/// What may be repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// Nothing: the device is only read (`-n`).
    #[default]
    No,
    /// What a crash leaves behind, and what is derived; with other damage, nothing (`-p`).
    Preen,
    /// Everything (`-y`).
    Yes,
}

/// How to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// What may be repaired.
    pub repair: Repair,
    /// Checks the whole of the volume, however it was left. Without it, `Preen` passes over one that
    /// was left clean, and looks only at what is busy on one that was in use.
    pub force: bool,
    /// Passes over a volume that was left clean, unless `force` is set, whatever may be repaired.
    pub pass_over_clean: bool,
    /// Reads the contents of small files and checks their checksums.
    pub contents: bool,
    /// Searches the whole device for directories that nothing leads to, deleted ones among them.
    /// Not with `Preen`.
    pub salvage: bool,
    /// The volume is in use, and its user has written everything that is derived and keeps
    /// still: what is derived has to be right. Only with [`Repair::No`].
    pub settled: bool,
    /// The check goes on if the stable log is lost or damaged, and the volume was in use: changes that were
    /// reported as durable are lost then. Of a damaged log, what comes before the damage is used. With
    /// [`Repair::Yes`], what the log has does not count from then on.
    pub without_log: bool,
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
            without_log: false,
            threads: 4,
        }
    }
}

/// What a check is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Pass 1: counts inodes.
    Walk,
    /// Contents of small files: counts files.
    Contents,
    /// The search for what is lost: counts cylinder groups.
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

/// More rounds than any accident needs.
const ROUNDS_MAX: u32 = 12;

/// Checks the volume on the device and repairs it as far as the options allow.
///
/// The device must not change meanwhile. Fails only if the check could not be made: there is no
/// superblock to be found, the format is not known, changes may be lost with the stable log and the
/// options do not accept that, the device could not be asked, or a write failed.
pub fn check(
    device: &dyn BlockDevice,
    options: &CheckOptions,
    progress: &dyn Progress,
) -> Result<Report> {
    let begun = Begun::new(device, options)?;
    begun.source.check(begun.superblock, options, progress, begun.report)
}

/// Checks the volume as [`check`] does, and calls `claim` before anything is written, once it is certain
/// that the check can be made: `claim` may record this program as the user in the superblock, and fails
/// if another program has it open.
pub fn check_claimed(
    device: &dyn BlockDevice,
    options: &CheckOptions,
    progress: &dyn Progress,
    claim: &dyn Fn() -> Result<()>,
) -> Result<Report> {
    let begun = Begun::new(device, options)?;
    claim()?;
    // What was claimed is in the superblock. The log stays as it is.
    let (superblock, report) = find_superblock(device, options)?;
    begun.source.check(superblock, options, progress, report)
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
        let is_copy = !report.problems.is_empty();
        let source = Source::find(device, &superblock, is_copy, options)?;
        Ok(Begun { superblock, report, source })
    }
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

/// Checks a volume whose log, if it has one, is part of the device.
fn check_logged(
    device: &dyn BlockDevice,
    mut superblock: Superblock,
    options: &CheckOptions,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report> {
    let mut disk = Disk::new(device, options.threads);
    report.damage_seen = superblock.damage;
    let is_doubted = superblock.damage.is_some();
    // What the repair marks as clean has to come after whatever is there.
    if superblock.state == State::Damaged {
        superblock.generation = lost_writes::newest_generation(&mut disk, &superblock);
    } else if let Some(lost_writes) = lost_writes::find(&mut disk, &superblock) {
        superblock.generation = superblock.generation.max(lost_writes.generation);
        report.problems.push(lost_writes.problem());
    }
    disk.check_reached()?;
    // What was seen may be in the contents.
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
    let mut checker = Checker::new(disk, superblock, options, progress, report);
    checker.run()?;
    checker.disk.check_reached()?;
    Ok(checker.into_report())
}

/// Why what is busy was not enough.
struct Doubt {
    why: String,
    /// The device is to blame.
    lost_writes: Option<LostWrites>,
}

/// Fails if a device that was left clean shows that it lost what it had acknowledged as durable:
/// opening such a volume would hide it.
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

/// Recovers what the busy log lists; the reason if that is not enough.
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
    let mut checker = Checker::new(disk, superblock.clone(), options, progress, Report::default());
    if let Some(what) = scope.lost_writes.clone() {
        checker.lost_writes(what);
    }
    checker.fast.scope = Some(scope);
    checker.run_fast()?;
    checker.disk.check_reached()?;
    Ok(match checker.reason_for_doubt() {
        Some(why) => Err(Doubt { why, lost_writes: checker.fast.lost_writes.take() }),
        None => Ok(checker.into_report()),
    })
}

/// A check in progress: what it works on, what the current round found (`walk`), and what lives
/// through all rounds.
struct Checker<'c> {
    disk: Disk<'c>,
    options: &'c CheckOptions,
    progress: &'c dyn Progress,
    superblock: Superblock,
    layout: Layout,
    checksum: Checksum,
    report: Report,
    reported: HashSet<(Code, Place)>,
    /// Files that claim fragments which an earlier round found to be claimed twice are recorded.
    watched: Vec<FragRun>,
    walk: Walk,
    /// Blocks of copies of the superblock and the system area that are to be written anew.
    bad_copies: BTreeSet<BlockNo>,
    /// Inodes whose counts and parents a repair has changed, so that they are set anew.
    touched: HashSet<InodeNo>,
    losses: Losses,
    search: Search,
    /// Bitmaps from the device, of the groups in which a repair looked for space.
    old_bitmaps: HashMap<CgIndex, Vec<u8>>,
    fast: Fast,
}

impl<'c> Checker<'c> {
    fn new(
        disk: Disk<'c>,
        superblock: Superblock,
        options: &'c CheckOptions,
        progress: &'c dyn Progress,
        report: Report,
    ) -> Checker<'c> {
        let layout = Layout::new(&superblock);
        let reported = report.problems.iter().map(|p| (p.code, p.place)).collect();
        let mut checker = Checker {
            disk,
            options,
            progress,
            layout,
            checksum: superblock.checksum(),
            superblock,
            report,
            reported,
            watched: Vec::new(),
            walk: Walk::new(layout),
            bad_copies: BTreeSet::new(),
            touched: HashSet::new(),
            losses: Losses::default(),
            search: Search::default(),
            old_bitmaps: HashMap::new(),
            fast: Fast::default(),
        };
        checker.report.recovery = !checker.was_clean();
        checker.report.crashed = checker.crashed();
        checker.report.fragment_bytes = layout.fragment_bytes;
        checker
    }

    /// Whether what is derived should be right.
    fn was_clean(&self) -> bool {
        self.superblock.state == State::Clean
    }

    /// Whether contradictions may be those that a crash leaves.
    fn crashed(&self) -> bool {
        self.superblock.state == State::InUse
    }

    fn run(&mut self) -> Result<()> {
        if !self.check_size() {
            return Ok(());
        }
        self.check_copies();
        let mut converged = false;
        while !converged && self.report.rounds < ROUNDS_MAX {
            self.report.rounds += 1;
            converged = self.round();
        }
        if !converged {
            let message = format!("damage was still found in round {}", self.report.rounds);
            self.problem(Code::Unrepaired, Place::Volume, message);
        }
        if converged {
            self.list_losses();
        }
        let may_write = self.may_write(converged);
        if may_write && self.disk.is_changed() {
            self.check_device_answers()?;
            // What a crash explains is recovered by the tags that stay until the end: a second crash
            // must still count as one.
            if !self.crashed() || self.is_damaged() {
                self.mark_damaged()?;
            }
            self.disk.commit()?;
        }
        if converged {
            self.pass3(may_write)?;
            self.pass4(may_write)?;
        }
        self.count();
        if may_write {
            self.mark_clean()?;
            self.settle_problems();
        }
        Ok(())
    }

    /// A device that has ceased to answer has not lost what it does not read: nothing is repaired then.
    fn check_device_answers(&mut self) -> Result<()> {
        let was_read = |problem: &Problem| problem.code != Code::SuperblockLost;
        if self.disk.unreadable_sectors() > 0 && self.report.problems.iter().all(was_read) {
            self.disk.check_answers()?;
        }
        Ok(())
    }

    /// Walks the truth once and notes repairs; true if no other round is needed.
    fn round(&mut self) -> bool {
        self.walk = Walk::new(self.layout);
        if let Some(scope) = &mut self.fast.scope {
            scope.entered.clear();
        }
        self.read_system_area();
        if !self.walk.fixes.is_empty() || self.search_system() {
            self.apply_fixes();
            return false;
        }
        if !self.pass1() {
            self.apply_fixes();
            return false;
        }
        if self.is_fast() && !self.walk.contested.is_empty() {
            self.doubt("two files claim the same blocks");
            return true;
        }
        if !self.walk.contested.is_empty() || !self.walk.sharers.is_empty() {
            return self.part_sharers();
        }
        // What a bad sector still has comes before what has to be searched.
        if !self.has_late_fixes() {
            self.search_lost();
        }
        if self.apply_fixes() {
            return false;
        }
        self.pass2();
        !self.apply_fixes()
    }

    fn may_write(&self, converged: bool) -> bool {
        let worst = self.report.problems.iter().map(|problem| problem.code.severity()).max();
        let allowed = match self.options.repair {
            Repair::No => false,
            Repair::Preen => worst.is_none_or(|worst| worst == Severity::Derived),
            Repair::Yes => true,
        };
        allowed && converged && self.superblock.writable()
    }

    /// Notes a problem, once in all rounds.
    fn problem(&mut self, code: Code, place: Place, message: impl Into<String>) {
        if self.reported.insert((code, place)) {
            let message = message.into();
            // What was met as corruption names its place itself.
            let message = match message.strip_prefix(&format!("{place}: ")) {
                Some(rest) => rest.to_owned(),
                None => message,
            };
            self.report.problems.push(Problem { code, place, message, fixed: false });
        }
    }

    /// Notes what is a problem on a volume that was left clean, and what a crash explains on
    /// another.
    fn expected(&mut self, code: Code, place: Place, message: impl Into<String>) {
        if self.crashed() {
            *self.report.recovered.entry(code).or_default() += 1;
        } else {
            self.problem(code, place, message);
        }
    }

    /// Whether the truth is to be repaired, so that what is derived changes with it.
    fn is_damaged(&self) -> bool {
        // An index that goes gives its blocks back.
        let changes_truth = |code: Code| code.severity() > Severity::Derived || code == Code::Index;
        self.report.problems.iter().any(|problem| changes_truth(problem.code))
    }

    /// Notes wrong counts and parents, unless a repair made them so.
    fn counted(&mut self, code: Code, ino: InodeNo, message: impl Into<String>) {
        if !self.touched.contains(&ino) {
            self.expected(code, Place::Inode(ino), message);
        }
    }

    /// Notes something derived that is wrong: a problem only where it should have been right.
    fn derived(&mut self, code: Code, place: Place, message: impl Into<String>) {
        if self.was_clean() && !self.is_damaged() {
            self.problem(code, place, message);
        } else {
            *self.report.recovered.entry(code).or_default() += 1;
        }
    }

    fn settle_problems(&mut self) {
        for problem in &mut self.report.problems {
            problem.fixed = !problem.code.is_final();
        }
    }

    fn count(&mut self) {
        let inventory = &self.walk.inventory;
        let users = inventory.inodes.iter().filter(|found| !found.ino.is_system());
        self.report.inodes = users.clone().count() as u64;
        let is_directory = |file_type| file_type == crate::format::inode::FileType::Directory;
        self.report.directories =
            users.filter(|found| is_directory(found.file_type)).count() as u64;
        self.report.names = self.walk.names;
        self.report.used_fragments = self.walk.used.total();
        self.report.free_fragments =
            self.layout.allocatable_fragments().saturating_sub(self.walk.used.total());
    }

    fn into_report(mut self) -> Report {
        let counts = self.disk.counts();
        self.report.read_requests = counts.read_requests;
        self.report.read_bytes = counts.read_bytes;
        self.report.write_requests = counts.write_requests;
        self.report.write_bytes = counts.write_bytes;
        self.report.changed = counts.write_requests > 0;
        self.report.unreadable_sectors = self.disk.unreadable_sectors() as u64;
        self.report
    }
}
