//! `cffs fsck`, `fsck.cffs`: checks a volume and repairs it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use cffs::clock::{Clock, SystemClock};
use cffs::device::file::Access;
use cffs::device::{BlockDevice, Failure};
use cffs::error::Error;
use cffs::format::Superblock;
use cffs::format::superblock::State;
use cffs::fsck::{self, CheckOptions, Code, Phase, Problem, Progress, Repair, Report};
use cffs::host::SystemHost;
use cffs::journal;
use cffs::vfs::{mark, read_superblock};
use cffs_object::Location;
use cffs_serve::describe::{self, CheckReport};
use cffs_serve::served::control::{self, AskError, CheckStatus, Request, Stage};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use crate::names::{self, OnMount};
use crate::output::note;
use crate::{exit, image, keys, output, progress};

mod objects;
mod report;

use objects::Objects;
use report::{Printed, is_left};

/// The device of a volume, and its objects if it is in a store.
type Opened = (Arc<dyn BlockDevice>, Option<Objects>);

/// The interval between queries of a check's status.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The exit code if problems remain, as in fsck(8).
const PROBLEMS_LEFT: u8 = 4;

/// Check a volume and repair it
///
/// Changes nothing without -p or -y. Without -f, -n or -y, skips a volume that was left clean. A mounted or
/// served volume is checked by its server, without changes, unless it is read-only. Exits with 0 if there is
/// no problem, 1 if all were repaired, 4 if some were not, 8 if the check could not be made, or a volume in
/// an object store has missing or damaged objects, 16 for wrong usage. Each kind of problem has a code,
/// explained in docs/FSCK.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs fsck tree.cffs          skip a volume that was left clean, otherwise check it
  cffs fsck -n tree.cffs       check all of it, change nothing
  cffs fsck -p tree.cffs       repair the effects of a crash; skip a clean volume
  cffs fsck -y tree.cffs       check all of it, repair everything
  cffs fsck --online mnt       check a volume that is mounted and in use
  cffs fsck --salvage -n DEV   the last resort: list what a search of the whole device finds")]
pub struct Fsck {
    /// The image or the device, or the URL of a volume in an object store; for a mounted volume also a
    /// directory on it.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    target: PathBuf,
    /// Check the whole volume and change nothing.
    #[arg(short, group = "repair")]
    no: bool,
    /// Repair the effects of a crash; if there is other damage, change nothing.
    #[arg(short, visible_short_alias = 'a', group = "repair")]
    preen: bool,
    /// Check the whole volume and repair everything.
    #[arg(short, group = "repair")]
    yes: bool,
    /// Check the whole volume, even if it was left clean, or the intent log lists the changes that a crash
    /// interrupted.
    #[arg(short, long)]
    force: bool,
    /// Also read the contents of small files and all compressed contents, and verify their checksums; for a
    /// volume in an object store, also read all its objects.
    #[arg(long)]
    contents: bool,
    /// Check a mounted or served volume and change nothing; fail if it is neither. Calls that make changes
    /// durable wait until the check has finished.
    #[arg(long, conflicts_with_all = ["repair", "salvage"])]
    online: bool,
    /// Search the whole device for directories to which nothing refers; also finds deleted ones.
    #[arg(long, conflicts_with = "preen")]
    salvage: bool,
    /// Check and repair the volume even if it is marked as in use by another host, or by a process without a
    /// lock, and remove the mark. Only if that host or process is certainly gone.
    #[arg(long, requires = "repair", conflicts_with = "no")]
    take_over: bool,
    /// The device or file with the journal of the volume, if cffs does not find it.
    #[arg(long, value_name = "DEVICE", conflicts_with = "online")]
    journal_device: Option<PathBuf>,
    /// Continue although the journal is lost, damaged or an older copy, and the volume was not left clean.
    /// Changes that only the journal had are lost, although fsync had reported them as durable. Records
    /// before the damage in the journal are still used; after -y the rest is ignored, even if the journal is
    /// found again.
    #[arg(long, conflicts_with_all = ["preen", "online"])]
    without_journal: bool,
    /// Give up the contents of missing and damaged objects of a volume in an object store: with -y, files and
    /// directories with data in them are lost, even if the objects are found again. With -n, list what -y
    /// would lose.
    #[arg(long, requires = "repair", conflicts_with_all = ["preen", "online"])]
    without_objects: bool,
    /// Show progress even with --json. Nothing is shown if standard error is not a terminal.
    #[arg(long)]
    progress: bool,
    /// Accepted, for fsck(8): progress is always shown on a terminal.
    #[arg(short = 'C', value_name = "FD", hide = true)]
    progress_to: Option<i32>,
    /// The number of threads that read.
    #[arg(short = 'j', long, default_value_t = 4)]
    threads: usize,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// Accepted, for fsck(8).
    #[arg(short, hide = true)]
    verbose: bool,
    /// Accepted, for fsck(8).
    #[arg(short = 'T', hide = true)]
    title: bool,
    /// Accepted, for fsck(8).
    #[arg(short = 'M', hide = true)]
    mounted: bool,
}

impl Fsck {
    /// Checks the volume, and prints the report.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let name = || self.target.display().to_string();
        // The store fences the server of a mount whose volume is taken over, so that server may not even
        // answer.
        let is_taken_over = self.take_over && image::location(&self.target)?.is_some();
        let mounted = if is_taken_over { None } else { names::mounted(&self.target)? };
        let source = mounted.as_ref().map_or(&self.target, |found| &found.mounted.shown_source);
        let in_store = Location::url_of(source).is_some();
        let found = match mounted {
            Some(mounted) => self.check_mounted(&mounted).with_context(name)?,
            None if is_taken_over => None,
            None => self.check_served().with_context(name)?,
        };
        let online = found.is_some();
        let (report, code) = match found {
            Some(report) => {
                let code = if report.problem_count > 0 { PROBLEMS_LEFT } else { 0 };
                (report, code)
            }
            None => {
                let (report, code) = self.check()?;
                (CheckReport::new(&report), code)
            }
        };
        exit::unless_unread(match self.json {
            true => output::json(&json!(report)),
            false => {
                let (name, options) = (&name(), self.repair_options(&report));
                Printed { name, online, in_store, options, report: &report }.print()
            }
        })?;
        Ok(ExitCode::from(code))
    }

    /// The options that a repair needs in addition to -y: the one that accepts the loss of the journal, and
    /// those of this check without which it would not find the same problems.
    fn repair_options(&self, report: &CheckReport) -> String {
        let options = [
            (is_left(report, Code::JournalLost), " --without-journal"),
            (self.contents, " --contents"),
            (self.salvage, " --salvage"),
            (self.without_objects, " --without-objects"),
        ];
        options.into_iter().filter(|(is_given, _)| *is_given).map(|(_, option)| option).collect()
    }

    /// Checks the volume without a server; returns the report and the exit code.
    fn check(&self) -> anyhow::Result<(Report, u8)> {
        let repair = match (self.preen, self.yes) {
            (true, _) => Repair::Preen,
            (_, true) => Repair::Yes,
            _ => Repair::No,
        };
        let mut options = CheckOptions {
            repair,
            // As e2fsck does. Options that select repairs imply a reason to check.
            pass_over_clean: !(self.no || self.yes || self.contents || self.without_journal),
            force: self.force || self.salvage,
            contents: self.contents,
            salvage: self.salvage,
            without_journal: self.without_journal,
            threads: self.threads.max(1),
            ..CheckOptions::default()
        };
        let (device, mut objects) = self.open(&options)?;
        let name = || self.target.display().to_string();
        let bars = Bars::new(self.is_quiet());
        if let Some(objects) = objects.as_mut().filter(|_| self.without_objects) {
            let found = objects.find_lost(&mut options, &bars);
            bars.finish();
            found.with_context(name)?;
        }
        let claim = |found: &Superblock| self.claim(&*device, found, &options);
        let mut report = fsck::check_claimed(&*device, &options, &bars, &claim);
        bars.finish();
        let has_met = objects.as_ref().is_some_and(|objects| objects.have_met());
        if let Some(objects) =
            objects.as_ref().filter(|_| has_met && repair != Repair::No && report.is_err())
        {
            objects.drop_repairs().with_context(name)?;
        }
        let given_up = objects.as_mut().filter(|_| self.without_objects);
        if let (Some(objects), Ok(report)) = (given_up, &mut report)
            && repair == Repair::Yes
            && report.consistent
        {
            objects.give_up(report).with_context(name)?;
        }
        let is_refused = has_met && !self.without_objects;
        if repair != Repair::No && (report.is_ok() || is_refused) {
            // A superblock that is still damaged or lost, or belongs to a truncated volume, has no mark to
            // remove.
            match mark::release(&*device, &SystemHost) {
                Err(Error::Corruption(_) | Error::Unsupported(_)) => {}
                Err(Error::Io(_)) if report.as_ref().is_ok_and(has_lost_superblock) => {}
                // It is in a missing or damaged object.
                Err(Error::Io(error)) if is_refused && Failure::of(&error).is_of_data() => {}
                released => released.with_context(name)?,
            }
        }
        let mut code_of_objects = 0;
        if let Some(mut objects) = objects {
            objects.take_met();
            if !self.without_objects {
                objects.refuse()?;
            } else {
                objects.count_missed().with_context(name)?;
                code_of_objects = objects.print_lost(report.as_ref().ok());
            }
        }
        let report = report.with_context(name)?;
        let is_found = |problem: &&Problem| problem.code == Code::LostDirectory;
        if let Some(found) = report.problems.iter().find(is_found).filter(|_| self.salvage) {
            // The report has no lines for the contents of these directories.
            let outcome = if found.fixed { "is back" } else { "would come back" };
            note!(
                "cffs: {}: with the directories in lost+found, all that they contain {outcome}; the number \
                 of inodes includes it",
                name()
            );
        }
        let code = report.exit_code().max(code_of_objects);
        Ok((report, code))
    }

    /// Opens the device; of a volume in a store, looks for missing objects, unless the check passes over it.
    fn open(&self, options: &CheckOptions) -> anyhow::Result<Opened> {
        let is_read_only = options.repair == Repair::No;
        let access = if is_read_only { Access::ReadOnly } else { Access::ReadWrite };
        let journal_device = self.journal_device.as_deref();
        let target = &self.target;
        if let Some(location) = image::location(target)? {
            let store_options = cffs_object::OpenOptions {
                read_only: is_read_only,
                without_objects: self.without_objects,
                ..image::command_options(self.take_over)
            };
            let device = image::open_store(target, &location, store_options)?;
            let mut objects = Objects::new(target, Arc::clone(&device));
            let superblock = read_superblock(&*device).ok();
            if !superblock.is_some_and(|superblock| self.passes_over(options, &superblock)) {
                objects.find(self.contents)?;
            }
            if !self.without_objects {
                objects.refuse()?;
            }
            return Ok((device, Some(objects)));
        }
        if self.without_objects {
            bail!("{}: only volumes in object stores have objects", target.display());
        }
        keys::check_none_named().with_context(|| target.display().to_string())?;
        let device = match self.without_journal && journal_device.is_none() {
            true => Arc::new(image::open_device(target, access)?),
            false => image::open_with_journal(target, access, self.take_over, journal_device)?,
        };
        if journal_device.is_some()
            && !self.without_journal
            && let Ok(superblock) = read_superblock(&*device)
        {
            // A clean volume is checked without its journal, but a mount would refuse this one.
            journal::medium(&*device, &superblock).with_context(|| target.display().to_string())?;
        }
        Ok((device, None))
    }

    /// Whether the check skips the volume.
    fn passes_over(&self, options: &CheckOptions, superblock: &Superblock) -> bool {
        options.pass_over_clean
            && !options.force
            && superblock.state == State::Clean
            && superblock.damage.is_none()
            && !self.take_over
    }

    /// Marks the volume as in use by this process before a repair; does not mark one that preening skips. If
    /// the superblock is damaged or lost, `found` is a copy of it, whose mark counts, and no mark is made.
    fn claim(
        &self,
        device: &dyn BlockDevice,
        found: &Superblock,
        options: &CheckOptions,
    ) -> Result<(), Error> {
        let is_lost = match read_superblock(device) {
            Ok(_) => false,
            Err(Error::Corruption(_) | Error::Unsupported(_)) => true,
            Err(Error::Io(error)) if Failure::of(&error) == Failure::Medium => true,
            Err(error) => return Err(error),
        };
        if options.repair == Repair::No {
            image::warn_of_writer(&self.target, found);
            return Ok(());
        }
        let is_passed_over = self.passes_over(options, found);
        if !is_lost && !is_passed_over {
            return mark::claim(device, &SystemHost, SystemClock.now(), self.take_over).map(drop);
        }
        match mark::user(found, &SystemHost, device.hints().excludes) {
            Some(user) if !self.take_over => Err(Error::InUse(user)),
            _ => Ok(()),
        }
    }

    /// Asks the server of a mounted volume to check it, without changes. `None` for a volume that is mounted
    /// read-only, whose image can be read concurrently.
    fn check_mounted(&self, mounted: &OnMount) -> anyhow::Result<Option<CheckReport>> {
        if !self.is_for_server() {
            let directory = mounted.mounted.directory.display();
            bail!(
                "it is mounted on {directory}; unmount it first (cffs umount {directory}), or check it \
                 without changes: cffs fsck --online {directory}"
            );
        }
        let path = &mounted.path;
        let request = Request::StartCheck { contents: self.contents };
        let started = control::request(path, request);
        let checked = started
            .map_err(anyhow::Error::from)
            .and_then(|()| self.report_of_server(|| control::check_status(path)));
        match checked {
            Err(error) if matches!(error.downcast_ref(), Some(AskError::ReadOnly)) => {
                if self.online || self.target.is_dir() { Err(error) } else { Ok(None) }
            }
            checked => checked.map(Some),
        }
    }

    /// Asks the server of a volume that is served without a mount to check it, without changes. `None` if the
    /// volume has no such server or can be read concurrently, or the check is not one for a server.
    fn check_served(&self) -> anyhow::Result<Option<CheckReport>> {
        if !self.is_for_server() || self.without_objects || (!self.online && self.can_be_read()) {
            return Ok(None);
        }
        let request = Request::StartCheck { contents: self.contents };
        match control::request_of_server(&self.target, request) {
            Err(AskError::NotMounted) if !self.online => Ok(None),
            started => {
                started?;
                self.report_of_server(|| control::check_status_of_server(&self.target)).map(Some)
            }
        }
    }

    /// Whether the volume can be read while a server has it open: it is a version, or that server only reads.
    fn can_be_read(&self) -> bool {
        let server = || control::identity_of_server(&self.target);
        image::is_version(&self.target) || server().is_ok_and(|server| server.opened_read_only)
    }

    /// Whether the server of a volume can make this check.
    fn is_for_server(&self) -> bool {
        let changes = self.preen || self.yes || self.take_over;
        !changes && !self.salvage && !self.without_journal && self.journal_device.is_none()
    }

    /// Waits until the server has checked the volume.
    fn report_of_server(
        &self,
        status: impl Fn() -> Result<CheckStatus, AskError>,
    ) -> anyhow::Result<CheckReport> {
        let bars = Bars::new(self.is_quiet());
        loop {
            let status = status().context(
                "the volume was unmounted, or its server stopped, before the check was complete",
            )?;
            if status.stage == Stage::Running {
                bars.show(&status.pass, &status.unit, status.done, status.total);
                thread::sleep(POLL_INTERVAL);
                continue;
            }
            bars.finish();
            return match (status.report, status.failure) {
                (Some(report), _) => Ok(report),
                (None, Some(why)) => bail!("{why}"),
                (None, None) => bail!("the server was restarted and lost the report; check again"),
            };
        }
    }

    fn is_quiet(&self) -> bool {
        self.json && !self.progress && self.progress_to.is_none()
    }
}

/// Whether the superblock is lost, and was not restored.
fn has_lost_superblock(report: &Report) -> bool {
    report.problems.iter().any(|problem| problem.code == Code::SuperblockLost && !problem.fixed)
}

/// A progress bar for each phase.
pub(super) struct Bars {
    quiet: bool,
    current: Mutex<Option<(String, ProgressBar)>>,
}

impl Bars {
    pub fn new(quiet: bool) -> Bars {
        Bars { quiet, current: Mutex::new(None) }
    }

    pub fn finish(&self) {
        if let Ok(mut current) = self.current.lock()
            && let Some((_, bar)) = current.take()
        {
            bar.finish_and_clear();
        }
    }

    fn show(&self, pass: &str, unit: &str, done: u64, total: u64) {
        let Ok(mut current) = self.current.lock() else { return };
        if !matches!(&*current, Some((at, _)) if at == pass) {
            if let Some((_, bar)) = current.take() {
                bar.finish_and_clear();
            }
            let bar = progress::counter(pass, Some(total), unit, self.quiet);
            *current = Some((pass.to_owned(), bar));
        }
        if let Some((_, bar)) = &*current {
            bar.set_length(total.max(done));
            bar.set_position(done);
        }
    }
}

impl Progress for Bars {
    fn report(&self, phase: Phase, done: u64, total: u64) {
        let (pass, unit) = describe::phase(phase);
        self.show(pass, unit, done, total);
    }
}
