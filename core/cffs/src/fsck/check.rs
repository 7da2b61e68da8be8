//! A check of everything: the rounds of the walk, and the order of writes.

use std::collections::BTreeSet;

use super::copies::Copies;
use super::disk::Disk;
use super::editor::Editor;
use super::fast::FastRecovery;
use super::findings::Findings;
use super::inventory::Found;
use super::metadata::Metadata;
use super::pass0::SystemArea;
use super::pass3::LocatorTable;
use super::pass4::Bitmaps;
use super::quotas::Accounts;
use super::search::{Search, Tried};
use super::sharers::Sharers;
use super::walk::Walk;
use super::{CheckOptions, Code, Place, Problem, Progress, ROUNDS_MAX, Repair, Report, Severity};
use crate::error::Result;
use crate::format::Superblock;
use crate::format::inode::FileType;
use crate::units::BlockNo;

/// A check in progress.
pub(super) struct Check<'c> {
    pub walk: Walk<'c>,
    /// The searches that were made; each is made once.
    tried: Tried,
    /// Blocks of bad copies of the superblock and the system area.
    bad_copies: BTreeSet<BlockNo>,
}

impl<'c> Check<'c> {
    pub fn new(
        disk: Disk<'c>,
        superblock: Superblock,
        options: &'c CheckOptions,
        progress: &'c dyn Progress,
        report: Report,
    ) -> Check<'c> {
        let mut findings = Findings::new(report, superblock.state);
        let meta = Metadata::new(disk, superblock);
        findings.report.fragment_bytes = meta.layout.fragment_bytes;
        let walk = Walk::new(meta, findings, options, progress);
        Check { walk, tried: Tried::default(), bad_copies: BTreeSet::new() }
    }

    fn search(&mut self) -> Search<'_, 'c> {
        Search { walk: &mut self.walk, tried: &mut self.tried }
    }

    fn copies(&mut self) -> Copies<'_, 'c> {
        let Walk { meta, findings, .. } = &mut self.walk;
        Copies { meta, findings, bad: &mut self.bad_copies }
    }

    fn bitmaps(&mut self) -> Bitmaps<'_, 'c> {
        let Walk { meta, findings, space, progress, .. } = &mut self.walk;
        Bitmaps { meta, findings, space, progress: *progress }
    }
}

impl Check<'_> {
    /// Checks everything.
    pub fn run(&mut self) -> Result<()> {
        if !self.check_size() {
            return Ok(());
        }
        self.copies().check_copies();
        let mut converged = false;
        while !converged && self.walk.findings.report.rounds < ROUNDS_MAX {
            self.walk.findings.report.rounds += 1;
            converged = self.round();
            self.walk.meta.disk.check_reached()?;
        }
        if !converged {
            let message =
                format!("damage was still found in round {}", self.walk.findings.report.rounds);
            self.walk.findings.problem(Code::Unrepaired, Place::Volume, message);
        }
        if converged {
            self.search().list_losses();
        }
        let may_write = self.may_write(converged);
        if may_write && self.walk.meta.disk.is_changed() {
            self.check_device_answers()?;
            // The effects of a crash are recovered by tags that stay until the end, so that a second crash
            // still counts as a crash.
            if !self.walk.findings.crashed() || self.walk.findings.is_damaged() {
                self.copies().mark_damaged()?;
            }
            self.walk.meta.disk.commit()?;
        }
        if converged {
            LocatorTable { walk: &mut self.walk }.pass3(may_write)?;
            self.bitmaps().pass4(may_write)?;
            Accounts { walk: &mut self.walk }.check();
        }
        self.count();
        if may_write {
            self.copies().mark_clean()?;
            self.walk.findings.settle_problems();
        }
        Ok(())
    }

    /// A device that no longer answers has not lost its data: nothing is repaired then.
    fn check_device_answers(&mut self) -> Result<()> {
        let was_read = |problem: &Problem| problem.code != Code::SuperblockLost;
        if self.walk.meta.disk.unreadable_sectors() > 0
            && self.walk.findings.report.problems.iter().all(was_read)
        {
            self.walk.meta.disk.check_answers()?;
        }
        Ok(())
    }

    /// Walks the primary metadata once and records repairs; returns true if no other round is needed.
    pub(super) fn round(&mut self) -> bool {
        let is_last = self.walk_once();
        if cfg!(debug_assertions) {
            self.walk.check();
        }
        let is_done = self.walk.round.fixes.is_empty() || self.walk.findings.doubt.is_some();
        debug_assert!(is_done || !is_last, "a repair was not made");
        is_last
    }

    fn walk_once(&mut self) -> bool {
        self.walk.start_round();
        SystemArea { walk: &mut self.walk }.read_system_area();
        if self.walk.meta.disk.check_reached().is_err() {
            return false;
        }
        if !self.walk.round.fixes.is_empty() || self.search().search_system() {
            Editor { walk: &mut self.walk }.apply_fixes();
            return false;
        }
        if !self.walk.pass1() {
            Editor { walk: &mut self.walk }.apply_fixes();
            return false;
        }
        // A search would read much and find nothing.
        if self.walk.meta.disk.check_reached().is_err() {
            return false;
        }
        if self.walk.is_fast() && !self.walk.space.contested.is_empty() {
            self.walk.findings.doubt("two files claim the same blocks");
            return true;
        }
        if !self.walk.space.contested.is_empty() || !self.walk.space.sharers.is_empty() {
            return Sharers { walk: &mut self.walk }.part_sharers();
        }
        // The valid rest of a bad sector is used before anything is searched.
        if !self.walk.has_late_fixes() {
            self.search().search_lost();
        }
        if (Editor { walk: &mut self.walk }).apply_fixes() {
            return false;
        }
        self.walk.pass2();
        !Editor { walk: &mut self.walk }.apply_fixes()
    }

    /// Whether the options and the format allow repairs of the problems found.
    fn may_write(&self, converged: bool) -> bool {
        let worst =
            self.walk.findings.report.problems.iter().map(|problem| problem.code.severity()).max();
        let allowed = match self.walk.options.repair {
            Repair::No => false,
            Repair::Preen => worst.is_none_or(|worst| worst == Severity::Derived),
            Repair::Yes => true,
        };
        allowed && converged && self.walk.meta.superblock.writable()
    }

    /// Counts used space and inodes, for the report.
    fn count(&mut self) {
        let Walk { meta, findings: Findings { report, .. }, space, round, .. } = &mut self.walk;
        let is_directory = |found: &&Found| found.file_type == FileType::Directory;
        report.inodes = meta.inventory.users().count() as u64;
        report.directories = meta.inventory.users().filter(is_directory).count() as u64;
        report.names = round.names;
        report.lost_contents = std::mem::take(&mut space.lost_contents);
        report.used_fragments = space.used.total();
        report.free_fragments =
            meta.layout.allocatable_fragments().saturating_sub(report.used_fragments);
    }

    /// The report, with the requests that were made.
    pub fn into_report(self) -> Report {
        let Walk { meta, findings: Findings { mut report, .. }, .. } = self.walk;
        let counts = meta.disk.counts();
        report.read_requests = counts.read_requests;
        report.read_bytes = counts.read_bytes;
        report.write_requests = counts.write_requests;
        report.write_bytes = counts.write_bytes;
        report.changed = counts.write_requests > 0;
        report.unreadable_sectors = meta.disk.unreadable_sectors() as u64;
        report
    }

    /// Returns false and records a problem if the device is too short for the volume.
    pub(super) fn check_size(&mut self) -> bool {
        let layout = self.walk.meta.layout;
        let volume = layout.block_offset(BlockNo(layout.blocks));
        let device = self.walk.meta.disk.size_bytes();
        if volume > device {
            let message = format!("the volume has {volume} bytes, the device {device}");
            self.walk.findings.problem(Code::DeviceTooSmall, Place::Volume, message);
        }
        volume <= device
    }

    /// Recovers what the intent log lists; stops at the first doubt.
    pub fn run_fast(&mut self) -> Result<()> {
        if !self.check_size() {
            return Ok(());
        }
        let mut released = Vec::new();
        let mut converged = false;
        while !converged && self.walk.findings.report.rounds < ROUNDS_MAX {
            self.walk.findings.report.rounds += 1;
            converged = self.round();
            released.append(&mut self.walk.space.used.take_released());
            self.walk.meta.disk.check_reached()?;
            if self.walk.findings.reason_for_doubt().is_some() {
                return Ok(());
            }
        }
        if !converged || !self.walk.meta.superblock.writable() {
            self.walk.findings.doubt("recovery did not converge");
            return Ok(());
        }
        if (FastRecovery { walk: &mut self.walk, released }).run()? {
            self.copies().mark_clean()?;
        }
        Ok(())
    }
}
