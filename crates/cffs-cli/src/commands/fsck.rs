//! `cffs fsck`, `fsck.cffs`: checks a volume and repairs it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use cffs::clock::{Clock, SystemClock};
use cffs::device::BlockDevice;
use cffs::device::file::Access;
use cffs::error::Error;
use cffs::format::superblock::State;
use cffs::fsck::{self, CheckOptions, Phase, Progress, Repair, Report};
use cffs::host::SystemHost;
use cffs::vfs::{mark, read_superblock};
use cffs_serve::describe::{self, CheckLoss, CheckProblem, CheckReport};
use cffs_serve::fuse::control::{self, Request, Stage};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use crate::output::{self, counted, say};
use crate::{image, progress, size};

/// How often a server is asked how its check stands.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The exit code where problems are left, as fsck(8) has it.
const PROBLEMS_LEFT: u8 = 4;
/// Losses that are listed for people; the others are only counted.
const LOSSES_SHOWN_MAX: usize = 1000;

/// Check a volume and repair it
///
/// Without -p or -y nothing is changed. Exits with 0 if there is no problem, 1 if all were repaired, 4 if
/// some were not, 8 if the check could not be made, 16 for wrong usage. Each kind of problem has a code,
/// explained in docs/FSCK.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs fsck -n tree.cffs       look, change nothing
  cffs fsck -p tree.cffs       repair what a crash leaves behind; pass over a clean volume
  cffs fsck -f -y tree.cffs    check in any case, repair everything
  cffs fsck --online mnt       check a volume that is mounted and in use
  cffs fsck --salvage -n DEV   the last resort: list what a search of the whole device finds")]
pub struct Fsck {
    /// The image or the device, or the URL of a volume in an object store; with --online, a directory of
    /// a mounted volume.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    target: PathBuf,
    /// Change nothing.
    #[arg(short, group = "repair")]
    no: bool,
    /// Repair what a crash leaves behind; if there is other damage, change nothing.
    #[arg(short, visible_short_alias = 'a', group = "repair")]
    preen: bool,
    /// Repair everything.
    #[arg(short, group = "repair")]
    yes: bool,
    /// Check the whole volume, even if it was left clean, or the busy log lists what a crash interrupted.
    #[arg(short, long)]
    force: bool,
    /// Read the contents of small files, too, and check their checksums.
    #[arg(long)]
    contents: bool,
    /// Check a mounted volume, given by one of its directories, and change nothing. Calls that make changes
    /// durable wait until the check has finished.
    #[arg(long, conflicts_with_all = ["repair", "salvage"])]
    online: bool,
    /// Search the whole device for directories that nothing refers to; finds deleted ones, too.
    #[arg(long, conflicts_with = "preen")]
    salvage: bool,
    /// Check and repair the volume even if it is marked as in use by another host, or by a process without a
    /// lock, and remove the mark. Only if that is certainly gone.
    #[arg(long, requires = "repair", conflicts_with = "no")]
    take_over: bool,
    /// The device or file with the stable log of the volume, if it is not found by itself.
    #[arg(long, value_name = "DEVICE", conflicts_with = "online")]
    log_device: Option<PathBuf>,
    /// Check the volume without its stable log, which was on another device and is lost. Changes that only
    /// the log had are lost, too; after -y the log is ignored, even if it turns up again.
    #[arg(long, conflicts_with_all = ["log_device", "preen", "online"])]
    without_log: bool,
    /// Show progress even with --json. Nothing is shown if standard error is not a terminal.
    #[arg(long)]
    progress: bool,
    /// Accepted, for fsck(8): progress shows by itself.
    #[arg(short = 'C', value_name = "FD", hide = true)]
    progress_to: Option<i32>,
    /// How many threads read.
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
    /// Checks, and prints what was found.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let name = || self.target.display().to_string();
        let (report, code) = if self.online {
            let report = self.check_online().with_context(name)?;
            let code = if report.problem_count > 0 { PROBLEMS_LEFT } else { 0 };
            (report, code)
        } else {
            let report = self.check()?;
            (CheckReport::new(&report), report.exit_code())
        };
        if self.json {
            output::json(&json!(report))?;
        } else {
            self.print(&report)?;
        }
        Ok(ExitCode::from(code))
    }

    fn check(&self) -> anyhow::Result<Report> {
        let repair = match (self.preen, self.yes) {
            (true, _) => Repair::Preen,
            (_, true) => Repair::Yes,
            _ => Repair::No,
        };
        let access = if repair == Repair::No { Access::ReadOnly } else { Access::ReadWrite };
        let device = match self.without_log {
            true => Arc::new(image::open_device(&self.target, access)?),
            false => {
                let log_device = self.log_device.as_deref();
                image::open_with_log(&self.target, access, self.take_over, log_device)?
            }
        };
        let options = CheckOptions {
            repair,
            force: self.force || self.salvage || repair == Repair::No,
            contents: self.contents,
            salvage: self.salvage,
            without_log: self.without_log,
            threads: self.threads.max(1),
            ..CheckOptions::default()
        };
        self.claim(&*device, &options).with_context(|| self.target.display().to_string())?;
        let bars = Bars::new(self.is_quiet());
        let report = fsck::check(&*device, &options, &bars);
        bars.finish();
        if repair != Repair::No && report.is_ok() {
            // A superblock that is still damaged, or of a volume that was cut off, has no mark that
            // could be taken away.
            match mark::release(&*device, &SystemHost) {
                Err(Error::Corruption(_) | Error::Unsupported(_)) => {}
                released => released.with_context(|| self.target.display().to_string())?,
            }
        }
        report.with_context(|| self.target.display().to_string())
    }

    /// Marks the volume as this process's before it is repaired; one that preening passes over is only
    /// looked at. A superblock that is damaged has no mark.
    fn claim(&self, device: &dyn BlockDevice, options: &CheckOptions) -> Result<(), Error> {
        let superblock = match read_superblock(device) {
            Ok(superblock) => superblock,
            Err(Error::Corruption(_) | Error::Unsupported(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let is_passed_over = options.repair == Repair::Preen
            && !options.force
            && superblock.state == State::Clean
            && superblock.damage.is_none()
            && !self.take_over;
        if options.repair == Repair::No {
            image::warn_of_writer(&self.target, &superblock);
        } else if !is_passed_over {
            mark::claim(device, &SystemHost, SystemClock.now(), self.take_over)?;
        } else if let Some(user) = mark::user(&superblock, &SystemHost, device.is_exclusive()) {
            return Err(Error::InUse(user));
        }
        Ok(())
    }

    /// Has the server of a mounted volume check it, and waits for the report.
    fn check_online(&self) -> anyhow::Result<CheckReport> {
        control::request(&self.target, Request::StartCheck { contents: self.contents })?;
        let bars = Bars::new(self.is_quiet());
        loop {
            let status = control::check_status(&self.target)
                .context("the volume was unmounted before the check was complete")?;
            if status.stage == Stage::Running {
                bars.show(&status.pass, &status.unit, status.done, status.total);
                thread::sleep(POLL_INTERVAL);
                continue;
            }
            bars.finish();
            return match (status.report, status.failure) {
                (Some(report), _) => Ok(report),
                (None, Some(why)) => bail!("{why}"),
                (None, None) => bail!("the server has no report"),
            };
        }
    }

    fn is_quiet(&self) -> bool {
        self.json && !self.progress && self.progress_to.is_none()
    }

    fn print(&self, report: &CheckReport) -> anyhow::Result<()> {
        let name = self.target.display();
        if let Some(damage) = &report.damage_seen {
            say!("{name}: {damage}: everything is checked")?;
        }
        for CheckProblem { code, place, message, fixed, .. } in &report.problems {
            let outcome = if *fixed { " (repaired)" } else { "" };
            say!("{name}: {code} {place}: {message}{outcome}")?;
        }
        self.print_rest(report)?;
        if report.skipped {
            return say!("{name}: clean, not checked");
        }
        if let Some(fast) = &report.fast {
            say!(
                "{name}: recovered from the busy log: {}, {}; {}, {} read",
                counted(fast.directories, "directory"),
                counted(fast.groups, "cylinder group"),
                counted(report.read_requests, "request"),
                size::show(report.read_bytes)
            )?;
            return Ok(());
        }
        if let Some(why) = &report.full_because {
            say!("{name}: everything was checked: {why}")?;
        }
        let used = report.used_fragments * u64::from(report.fragment_bytes);
        let all =
            (report.used_fragments + report.free_fragments) * u64::from(report.fragment_bytes);
        say!(
            "{name}: {}, {}, {} of {} in use; {}, {} read",
            counted(report.inodes, "inode"),
            counted(report.directories, "directory"),
            size::show(used),
            size::show(all),
            counted(report.read_requests, "request"),
            size::show(report.read_bytes)
        )?;
        if report.unreadable_sectors > 0 {
            say!(
                "{name}: {} of the device cannot be read; copy what you need to another device",
                counted(report.unreadable_sectors, "sector")
            )?;
        }
        self.print_losses(report)?;
        let left = report.problems.iter().filter(|problem| !problem.fixed).count();
        let is_hopeless = report.problems.iter().any(|p| !p.fixed && !p.repairable);
        let all = counted(report.problem_count, "problem");
        let them = if left == 1 { "it" } else { "them" };
        match (report.problem_count, left) {
            (0, _) if report.unreadable_sectors > 0 => {
                say!("{name}: no other problem was found")?;
            }
            (0, _) if report.consistent || self.online => say!("{name}: clean")?,
            (0, _) => say!("{name}: was not left clean; cffs fsck -p {name} completes it")?,
            (_, 0) => say!("{name}: {all}, repaired")?,
            _ if self.online => {
                say!("{name}: {all}; unmount it, and cffs fsck -y repairs {them}")?;
            }
            _ if is_hopeless => {
                say!(
                    "{name}: {all}, {left} not repaired, and no repair helps; {}",
                    self.way_out(report)
                )?;
            }
            _ => say!("{name}: {all}, {left} not repaired; cffs fsck -y {name} repairs {them}")?,
        }
        Ok(())
    }

    /// Prints how many problems are not listed: those too many, and those that a crash explains.
    fn print_rest(&self, report: &CheckReport) -> anyhow::Result<()> {
        let name = self.target.display();
        let shown = report.problems.len() as u64;
        if report.problem_count > shown {
            say!("{name}: and {} more, in the log", report.problem_count - shown)?;
        }
        for (code, count) in &report.recovered {
            let why = match (self.online, report.crashed) {
                (true, _) => "explained by files in use",
                (false, true) => "recovered after a crash",
                (false, false) => "follows from the above",
            };
            say!("{name}: {why}: {code} ({count})")?;
        }
        Ok(())
    }

    /// What to do where a repair does not help.
    fn way_out(&self, report: &CheckReport) -> String {
        let name = self.target.display();
        match report.problems.iter().any(|problem| problem.code == "CF0103") {
            true => format!(
                "copy it again in full; if there is no more of it, truncate(1) or a larger device \
                 brings it to that size, and cffs fsck -y {name} then saves what is left"
            ),
            false => String::from(
                "mount it read-only, or run cffs export, to copy what can be read, and make it anew",
            ),
        }
    }

    /// Lists what the damage has cost, and counts it.
    fn print_losses(&self, report: &CheckReport) -> anyhow::Result<()> {
        let name = self.target.display();
        for CheckLoss { what, path, inode } in report.losses.iter().take(LOSSES_SHOWN_MAX) {
            let path = output::printable(path.as_bytes());
            let which = match path.as_str() {
                "" => format!("inode {inode}, of which no name is known"),
                path if path.ends_with('/') => format!("inode {inode}, a file in {path}"),
                path => format!("{path} (inode {inode})"),
            };
            say!("{name}: {what}: {which}")?;
        }
        let counts: Vec<String> = (report.loss_counts.iter())
            .map(|(what, count)| format!("{} {what}", counted(*count, "file")))
            .collect();
        if !counts.is_empty() {
            let when = if report.changed { "" } else { "with a repair: " };
            say!("{name}: {when}{}", counts.join(", "))?;
        }
        Ok(())
    }
}

/// One bar for each phase.
struct Bars {
    quiet: bool,
    current: Mutex<Option<(String, ProgressBar)>>,
}

impl Bars {
    fn new(quiet: bool) -> Bars {
        Bars { quiet, current: Mutex::new(None) }
    }

    fn finish(&self) {
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
