//! The stable log of a volume that is checked: whether it can be used, and how a check goes on without it.
//!
//! A log that is lost or damaged while the volume was in use may have had the only copy of changes that were
//! reported as durable. A repair never decides by itself that those are gone: without
//! [`CheckOptions::without_log`] it refuses, and nothing is written.

use std::io::IoSlice;
use std::sync::Arc;

use super::{CheckOptions, Code, Place, Problem, Progress, Repair, Report, check_logged};
use crate::device::BlockDevice;
use crate::error::{Corruption, Error, Result};
use crate::format::Superblock;
use crate::format::superblock::{Damage, LogFlags, State};
use crate::log::{self, LoggedDevice};
use crate::units::BlockNo;

/// The devices that a volume is read from.
pub(super) enum Source<'d> {
    /// Its device: it has no log, or an empty one.
    Device(&'d dyn BlockDevice),
    /// Its device, although its log may have contents: the log is lost.
    WithoutLog(&'d dyn BlockDevice),
    /// With its log over it.
    Log(Box<Log<'d>>),
}

pub(super) struct Log<'d> {
    device: &'d dyn BlockDevice,
    logged: LoggedDevice<&'d dyn BlockDevice>,
    /// The device that has the log, if it is another.
    medium: Option<Arc<dyn BlockDevice>>,
    /// What is wrong with the log. What comes before the damage is used.
    doubt: Option<Corruption>,
}

impl<'d> Source<'d> {
    /// Finds the log of a volume. `is_copy` says that the superblock is a copy, which does not know whether
    /// the log is empty.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if changes may be lost with the log and the options do not accept that.
    pub fn find(
        device: &'d dyn BlockDevice,
        superblock: &Superblock,
        is_copy: bool,
        options: &CheckOptions,
    ) -> Result<Source<'d>> {
        if !log::has_log(superblock) || device.journal().is_some() {
            return Ok(Source::Device(device));
        }
        let is_empty = log::is_empty(superblock) && !is_copy;
        let medium = match log::medium(device, superblock) {
            Err(_) if is_empty => return Ok(Source::Device(device)),
            Err(Error::Unsupported(_)) if options.without_log => {
                return Ok(Source::WithoutLog(device));
            }
            medium => medium?,
        };
        let (logged, doubt) = LoggedDevice::open_with(device, medium.clone(), superblock);
        match &doubt {
            Some(doubt) if !is_empty && !options.without_log && options.repair != Repair::No => {
                Err(log::lost(doubt))
            }
            _ => Ok(Source::Log(Box::new(Log { device, logged, medium, doubt }))),
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
            Source::Device(device) => check_logged(device, superblock, options, progress, report),
            Source::WithoutLog(device) => {
                check_without_log(device, superblock, options, progress, report)
            }
            Source::Log(log) => log.check(superblock, options, progress, report),
        }
    }
}

impl Log<'_> {
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
        let report = check_logged(&self.logged, superblock.clone(), options, progress, report)?;
        let is_log = |code| matches!(code, Code::LogHeader | Code::LogLost);
        if report.problems.iter().any(|problem| is_log(problem.code) && problem.fixed) {
            superblock.log.sequence = log::noted_header(self.device).max(superblock.log.sequence);
            log::erase(self.medium.as_deref().unwrap_or(self.device), &superblock)?;
        }
        Ok(report)
    }
}

/// Checks the volume on its device. A repair marks the log as unused for good.
fn check_without_log(
    device: &dyn BlockDevice,
    mut superblock: Superblock,
    options: &CheckOptions,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report> {
    superblock.log.flags |= LogFlags::UNUSED;
    report.problems.push(Problem {
        code: Code::LogLost,
        place: Place::Volume,
        message: String::from(
            "the volume is checked without its log, as asked: changes that only the log had are lost",
        ),
        fixed: false,
    });
    if options.repair == Repair::Yes && superblock.writable() {
        // Before anything else is written: a log that turns up again later must not count.
        let lost = Corruption::LogHeader { block: BlockNo(superblock.log.start) };
        remember(device, &mut superblock, &lost)?;
    }
    check_logged(device, superblock, options, progress, report)
}

/// A log that is damaged. Where the volume was left clean, there was nothing in it.
fn problem(superblock: &Superblock, doubt: &Corruption) -> Problem {
    let (code, message) = match superblock.state {
        State::Clean => (Code::LogHeader, doubt.to_string()),
        State::InUse | State::Damaged => (Code::LogLost, log::stake(doubt)),
    };
    Problem { code, place: Place::Volume, message, fixed: false }
}

/// Notes the damage in the superblock: a repair takes what is left of the log home, and one that is cut
/// short then must not be taken for a crash that the busy log explains.
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
