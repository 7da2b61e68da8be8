//! `cffs scrub`: verifies the checksums of a volume, mounted or not.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use cffs::format::superblock::State;
use cffs::fsck::{self, CheckOptions};
use cffs::vfs::{ScrubProgress, Volume, read_superblock};
use cffs_object::{Location, LogDevice, Unusable};
use cffs_serve::served::control::{self, AskError, Pace, Request, ScrubStatus, Stage};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use super::fsck::Bars;
use crate::names::{self, OnMount};
use crate::output::{self, counted, say};
use crate::{exit, image, progress, size};

/// The interval between queries of a scrub's status.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The exit code if problems were found, as in fsck(8).
const PROBLEMS: u8 = 4;

/// Verify the checksums of all metadata and small files
///
/// Reads everything that has a checksum from the device, bypassing the cache, and changes nothing. For a
/// volume in an object store that is not mounted, also reads all objects; a version that was made while the
/// volume was in use is checked as by cffs fsck -n --contents, and --rate limits only the reads of objects
/// after that. A mounted or served volume is scrubbed by its server and can be used meanwhile; interrupting
/// this command does not end the scrub, --stop does. Exits with 0 if there is no problem, 4 if there is one
/// (also listed in the server's log), 8 if the scrub could not be made, 16 for wrong usage. To repair
/// problems, run cffs fsck on the unmounted volume.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs scrub mnt                   verify a mounted volume at 50 MiB per second
  cffs scrub --rate 5M mnt         with less load
  cffs scrub --stop mnt            end it
  cffs scrub --rate 0 tree.cffs    verify an image at full speed")]
pub struct Scrub {
    /// A directory of a mounted volume, an image, a device, or the URL of a volume in an object store.
    #[arg(value_name = "DIR|IMAGE|DEVICE|URL")]
    target: PathBuf,
    /// The bytes to read per second; 0 for no limit.
    #[arg(long, value_name = "SIZE", default_value = "50M", value_parser = size::parse)]
    rate: u64,
    /// End the scrub of a mounted or served volume. Exits with 8 if none is running.
    #[arg(long, conflicts_with = "rate")]
    stop: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Scrub {
    /// Scrubs, and prints the problems.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let status = self.scrub().with_context(|| self.target.display().to_string())?;
        exit::unless_unread(match self.json {
            true => output::json(&json!(status)),
            false => self.print(&status),
        })?;
        Ok(if status.progress.problem_count > 0 {
            ExitCode::from(PROBLEMS)
        } else {
            ExitCode::SUCCESS
        })
    }

    fn scrub(&self) -> anyhow::Result<ScrubStatus> {
        let request = if self.stop { Request::StopScrub } else { Request::StartScrub(self.rate) };
        if let Some(OnMount { path, .. }) = names::mounted(&self.target)? {
            self.check_running(|| control::scrub_status(&path))?;
            match control::request(&path, request.clone()) {
                // The image of a read-only mount can be read concurrently.
                Err(AskError::ReadOnly) if !self.target.is_dir() && !self.stop => {
                    return self.scrub_image();
                }
                started => started?,
            }
            return self.follow(|| control::scrub_status(&path));
        }
        if self.target.is_dir() {
            bail!(AskError::NotMounted);
        }
        // A version never changes, so it can be read while a server has it open, and the server refuses those
        // that were not left clean.
        if image::is_version(&self.target) && !self.stop {
            return self.scrub_image();
        }
        match self.check_running(|| control::scrub_status_of_server(&self.target)) {
            Err(AskError::NotMounted) => {
                bail!("the volume is not mounted or served: there is nothing to stop")
            }
            checked => checked?,
        }
        match control::request_of_server(&self.target, request) {
            Err(AskError::NotMounted) => self.scrub_image(),
            started => {
                started?;
                self.follow(|| control::scrub_status_of_server(&self.target))
            }
        }
    }

    /// If a scrub is to be stopped, fails unless one is running.
    fn check_running(
        &self,
        status: impl Fn() -> Result<ScrubStatus, AskError>,
    ) -> Result<(), AskError> {
        if self.stop && status()?.stage != Stage::Running {
            return Err(AskError::Refused(String::from(
                "no scrub is running: there is nothing to stop",
            )));
        }
        Ok(())
    }

    /// Waits until the server's scrub has ended.
    fn follow(
        &self,
        status: impl Fn() -> Result<ScrubStatus, AskError>,
    ) -> anyhow::Result<ScrubStatus> {
        let bar = self.bar();
        loop {
            let status = status().context(
                "the volume was unmounted, or its server stopped, before the scrub was complete",
            )?;
            show(&bar, &status.progress);
            if status.stage != Stage::Running {
                bar.finish_and_clear();
                return Ok(status);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn scrub_image(&self) -> anyhow::Result<ScrubStatus> {
        let location = image::location(&self.target)?;
        let open = |location| self.open_store(location, false);
        let store = location.as_ref().map(open).transpose()?;
        let pace = Pace::new(self.rate);
        let mut done = match (&store, &location) {
            (Some(device), Some(location))
                if location.version().is_some() && !is_clean(device)? =>
            {
                self.check_version(&*self.open_store(location, true)?)?
            }
            (Some(device), _) => {
                let device = Arc::clone(device);
                self.walk(&*image::open_volume(&self.target, device, image::read_only())?, &pace)?
            }
            (None, _) => {
                let files = image::open_files(&self.target, image::read_only())?;
                self.walk(files.volume(), &pace)?
            }
        };
        if let Some(device) = store {
            scrub_objects(&device, &pace, &mut done)?;
        }
        Ok(ScrubStatus { stage: Stage::Done, progress: done })
    }

    /// Opens a volume in a store; one `without_objects` also if some are missing or damaged.
    fn open_store(
        &self,
        location: &Location,
        without_objects: bool,
    ) -> anyhow::Result<Arc<LogDevice>> {
        let options = image::command_options(false);
        let options = cffs_object::OpenOptions { read_only: true, without_objects, ..options };
        image::open_store(&self.target, location, options)
    }

    fn walk(&self, volume: &Volume, pace: &Pace) -> anyhow::Result<ScrubProgress> {
        let bar = self.bar();
        let done = volume.admin().scrub(&mut |progress| {
            if progress.inodes % 64 == 0 {
                show(&bar, progress);
            }
            thread::sleep(pace.wait_after(progress.read_bytes));
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        Ok(done?)
    }

    /// Checks a version that was made while the volume was in use. A scrub finds inodes by tables, which are
    /// complete only on a clean volume, and a version cannot be recovered; a check walks the directories.
    fn check_version(&self, device: &LogDevice) -> anyhow::Result<ScrubProgress> {
        let options = CheckOptions { contents: true, ..CheckOptions::default() };
        let bars = Bars::new(self.json);
        let report = fsck::check(device, &options, &bars);
        bars.finish();
        let report = report?;
        let met = device.met().into_iter().map(|(object, why)| format!("object {object}: {why}"));
        let problems = report.problems.iter().map(ToString::to_string).chain(met);
        let problems = problems.collect::<Vec<_>>();
        Ok(ScrubProgress {
            inodes: report.inodes,
            inodes_total: report.inodes,
            read_bytes: report.read_bytes,
            problem_count: problems.len() as u64,
            problems,
        })
    }

    fn bar(&self) -> ProgressBar {
        progress::counter("scrub", Some(0), "inodes", self.json)
    }

    fn print(&self, status: &ScrubStatus) -> anyhow::Result<()> {
        let name = self.target.display();
        let progress = &status.progress;
        for problem in &progress.problems {
            say!("{name}: {problem}")?;
        }
        let more = progress.problem_count - progress.problems.len() as u64;
        if more > 0 {
            say!("{name}: and {more} more, in the log")?;
        }
        let outcome = match status.stage {
            Stage::Never => "no scrub was started",
            Stage::Running => "under way",
            Stage::Done => "complete",
            Stage::Stopped => "ended before it was complete",
        };
        say!(
            "{name}: {}, {} read, {}; {outcome}",
            counted(progress.inodes, "inode"),
            size::show(progress.read_bytes),
            counted(progress.problem_count, "problem")
        )
    }
}

fn is_clean(device: &LogDevice) -> anyhow::Result<bool> {
    Ok(read_superblock(device)?.state == State::Clean)
}

/// Reads all objects of a volume in a store, and adds the missing and damaged ones to the problems.
fn scrub_objects(device: &LogDevice, pace: &Pace, done: &mut ScrubProgress) -> anyhow::Result<()> {
    let mut bytes = done.read_bytes;
    let mut count = |len| {
        bytes += len;
        thread::sleep(pace.wait_after(bytes));
    };
    let unusable = device.verify(Some(&mut count))?;
    done.read_bytes = bytes;
    for Unusable { object, why, .. } in unusable {
        if !done.problems.iter().any(|problem| problem.contains(&object)) {
            done.problem_count += 1;
            done.problems.push(format!("object {object}: {why}"));
        }
    }
    Ok(())
}

fn show(bar: &ProgressBar, progress: &ScrubProgress) {
    bar.set_length(progress.inodes_total.max(progress.inodes));
    bar.set_position(progress.inodes);
    bar.set_message(size::show(progress.read_bytes));
}
