//! The journal of a volume that is checked: whether it can be used, and how a check continues without it.
//!
//! A journal that is lost or damaged while the volume was in use may have had the only copy of changes that
//! were reported as durable. A repair never gives these up by itself: without
//! [`CheckOptions::without_journal`] it refuses, and nothing is written.

use std::io::IoSlice;
use std::sync::Arc;

use super::{CheckOptions, Code, Place, Problem, Progress, Repair, Report, check_journaled};
use crate::device::BlockDevice;
use crate::error::{Corruption, Error, Result};
use crate::format::Superblock;
use crate::format::superblock::{Damage, JournalFlags, State};
use crate::journal::{self, JournaledDevice};
use crate::units::BlockNo;

/// The devices that a volume is read from.
pub(super) enum Source<'d> {
    /// Its device: it has no journal, or an empty one.
    Device(&'d dyn BlockDevice),
    /// Its device, although its journal may have contents: the journal is lost.
    WithoutJournal(&'d dyn BlockDevice),
    /// With its journal over it.
    Journal(Box<Journal<'d>>),
}

pub(super) struct Journal<'d> {
    device: &'d dyn BlockDevice,
    journaled: JournaledDevice<&'d dyn BlockDevice>,
    /// The device that has the journal, if it is another.
    medium: Option<Arc<dyn BlockDevice>>,
    /// The damage of the journal. Records before it are used.
    doubt: Option<Corruption>,
}

impl<'d> Source<'d> {
    /// Finds the journal of a volume. `is_copy` says that the superblock is a copy, which does not know
    /// whether the journal is empty.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if changes may be lost with the journal and the options do not accept that.
    pub fn find(
        device: &'d dyn BlockDevice,
        superblock: &Superblock,
        is_copy: bool,
        options: &CheckOptions,
    ) -> Result<Source<'d>> {
        if !journal::has_journal(superblock) || device.journal().is_some() {
            return Ok(Source::Device(device));
        }
        let is_empty = journal::is_empty(superblock) && !is_copy;
        let medium = match journal::medium(device, superblock) {
            Err(_) if is_empty => return Ok(Source::Device(device)),
            Err(Error::Unsupported(_)) if options.without_journal => {
                return Ok(Source::WithoutJournal(device));
            }
            medium => medium?,
        };
        let (journaled, doubt) = JournaledDevice::open_with(device, medium.clone(), superblock);
        match &doubt {
            Some(doubt)
                if !is_empty && !options.without_journal && options.repair != Repair::No =>
            {
                Err(journal::lost(doubt))
            }
            _ => Ok(Source::Journal(Box::new(Journal { device, journaled, medium, doubt }))),
        }
    }

    /// Checks the volume.
    pub fn check(
        self,
        superblock: Superblock,
        options: &CheckOptions,
        progress: &dyn Progress,
        report: Report,
    ) -> Result<Report> {
        match self {
            Source::Device(device) => {
                check_journaled(device, superblock, options, progress, report)
            }
            Source::WithoutJournal(device) => {
                check_without_journal(device, superblock, options, progress, report)
            }
            Source::Journal(journal) => journal.check(superblock, options, progress, report),
        }
    }
}

impl Journal<'_> {
    fn check(
        self,
        mut superblock: Superblock,
        options: &CheckOptions,
        progress: &dyn Progress,
        mut report: Report,
    ) -> Result<Report> {
        if let Some(doubt) = &self.doubt {
            report.problems.push(problem(&superblock, doubt));
            if options.repair == Repair::Yes && superblock.writable() {
                remember(self.device, &mut superblock, doubt)?;
            }
        }
        let report =
            check_journaled(&self.journaled, superblock.clone(), options, progress, report)?;
        let is_journal = |code| matches!(code, Code::JournalHeader | Code::JournalLost);
        if report.problems.iter().any(|problem| is_journal(problem.code) && problem.fixed) {
            journal::renew_note(self.device, &mut superblock);
            journal::erase(self.medium.as_deref().unwrap_or(self.device), &superblock)?;
        }
        Ok(report)
    }
}

/// Checks the volume on its device. A repair marks the journal as unused for good.
fn check_without_journal(
    device: &dyn BlockDevice,
    mut superblock: Superblock,
    options: &CheckOptions,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report> {
    superblock.journal.flags |= JournalFlags::UNUSED;
    report.problems.push(Problem {
        code: Code::JournalLost,
        place: Place::Volume,
        message: String::from(
            "the volume is checked without its journal, as asked: changes that only the journal had are lost",
        ),
        fixed: false,
    });
    if options.repair == Repair::Yes && superblock.writable() {
        // Before anything else is written: a journal that reappears later must not count.
        let lost = Corruption::JournalHeader { block: BlockNo(superblock.journal.start) };
        remember(device, &mut superblock, &lost)?;
    }
    check_journaled(device, superblock, options, progress, report)
}

/// A damaged journal. If the volume was left clean, the journal was empty.
fn problem(superblock: &Superblock, doubt: &Corruption) -> Problem {
    let (code, message) = match superblock.state {
        State::Clean => (Code::JournalHeader, doubt.to_string()),
        State::InUse | State::Damaged => (Code::JournalLost, journal::stake(doubt)),
    };
    Problem { code, place: Place::Volume, message, fixed: false }
}

/// Records the damage in the superblock: a repair writes the rest of the journal to its places, and an
/// interrupted repair must not be taken for a crash that the intent log explains.
fn remember(
    device: &dyn BlockDevice,
    superblock: &mut Superblock,
    doubt: &Corruption,
) -> Result<()> {
    let (code, ino, now) = (doubt.code(), doubt.ino(), superblock.mounted_at);
    superblock.damage = Some(Damage::met_again(superblock.damage, code, ino, now));
    let mut sector = superblock.encode().to_vec();
    sector.resize(sector.len().max(device.geometry().sector_bytes as usize), 0);
    device.write_at(0, &[IoSlice::new(&sector)])?;
    Ok(device.sync()?)
}
