//! Workloads: the operations on a file system while it is measured.
//!
//! A workload is a function over a [`Session`]. The session has the [`Site`] (a directory, with ways to empty
//! caches and to make changes durable), times the phases, and collects the counters of the device. These
//! rules hold for every workload:
//!
//! - a phase that writes ends with everything durable, inside its time;
//! - a phase that reads begins with cold caches;
//! - everything random comes from the seed, so that every file system sees the same operations;
//! - preparation happens outside the phases, with the device's delays switched off;
//! - every loop passes through a [`Tally`], which shows progress, checks for interrupts, and ends a phase
//!   that may stop early.

pub mod aging;
pub mod apps;
pub mod catalog;
pub mod contents;
pub mod database;
pub mod delivery;
pub mod durable;
pub mod hot;
pub mod large_file;
pub mod random;
pub mod scan;
pub mod small_file;
pub mod tree;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use self::contents::Contents;
use crate::disk::Counters;
use crate::processor::Used;

/// Where a workload runs.
pub trait Site {
    /// An empty directory for the workload.
    fn root(&self) -> &Path;

    /// Makes everything durable that was written below the root.
    fn settle(&self) -> Result<()>;

    /// Empties all caches between the root and the device.
    fn chill(&mut self) -> Result<()>;

    /// The counters of the device, if they are known.
    fn counters(&self) -> Option<Counters> {
        None
    }

    /// The time that a volume has spent writing its journal to its places since it was mounted.
    fn journal_home(&self) -> Option<Duration> {
        None
    }

    /// The processor time so far, in seconds, of the file system's server, if it has one.
    fn server_secs(&self) -> Option<f64> {
        None
    }

    /// Switches the delays of an emulated device off, or back on.
    fn set_free(&self, _free: bool) {}

    /// The size of the volume in bytes, if the workload may fill it.
    fn volume_size(&self) -> Option<u64> {
        None
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// The name of the phase within the workload.
    pub name: String,
    /// Files touched, or operations done.
    pub files: u64,
    /// Bytes of contents moved.
    pub bytes: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    pub device: Option<Counters>,
    /// Instructions of the program, if it does all the work itself and the machine counts them.
    pub instructions: Option<u64>,
    /// Seconds spent writing the journal to its places, if the volume has one.
    pub journal_home_secs: Option<f64>,
    /// Seconds of processor time of the programs that the phase ran.
    pub programs_secs: Option<f64>,
    /// The same of the file system's server, if it has one.
    pub server_secs: Option<f64>,
}

impl Phase {
    pub fn files_per_sec(&self) -> f64 {
        self.files as f64 / self.seconds
    }

    /// Megabytes (10^6 bytes) per second.
    pub fn megabytes_per_sec(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    pub fn instructions_per_file(&self) -> Option<f64> {
        self.instructions.filter(|_| self.files > 0).map(|n| n as f64 / self.files as f64)
    }

    /// The share of the device's busy time spent writing the journal to its places.
    pub fn journal_home_share(&self) -> Option<f64> {
        let busy = self.device.as_ref()?.busy_secs();
        self.journal_home_secs.filter(|_| busy > 0.0).map(|secs| secs / busy)
    }

    pub fn flushes_per_file(&self) -> Option<f64> {
        let device = self.device.as_ref()?;
        (self.files > 0).then(|| device.flushes as f64 / self.files as f64)
    }

    pub fn requests_per_file(&self) -> Option<f64> {
        let device = self.device.as_ref()?;
        (self.files > 0).then(|| device.requests() as f64 / self.files as f64)
    }
}

/// The run of one workload on one site.
pub struct Session<'a> {
    site: &'a mut dyn Site,
    interrupt: &'a AtomicBool,
    progress: ProgressBar,
    /// The longest duration of a phase that can stop early.
    read_time_max: Duration,
    /// The contents of files; `None` for noise.
    contents: Option<Contents>,
    phases: Vec<Phase>,
}

impl<'a> Session<'a> {
    /// A session at `site` that fails soon after `interrupt` is set.
    pub fn new(
        site: &'a mut dyn Site,
        interrupt: &'a AtomicBool,
        progress: ProgressBar,
        read_time_max: Duration,
    ) -> Session<'a> {
        Session { site, interrupt, progress, read_time_max, contents: None, phases: Vec::new() }
    }

    /// Sets the contents of files.
    pub fn with_contents(self, contents: Option<Contents>) -> Session<'a> {
        Session { contents, ..self }
    }

    /// Contents for files of up to `max` bytes: those of the session, otherwise noise.
    pub fn contents(&self, seed: u64, max: usize) -> Contents {
        self.contents.clone().unwrap_or_else(|| Contents::new(seed, max))
    }

    /// The working directory. It may change when caches are emptied, so do not store it.
    pub fn root(&self) -> &Path {
        self.site.root()
    }

    /// The size of the volume, if the workload may fill it.
    pub fn volume_size(&self) -> Option<u64> {
        self.site.volume_size()
    }

    /// Runs preparations: not measured, made durable, and on a device without delays.
    pub fn prepare<T>(
        &mut self,
        what: &str,
        work: impl FnOnce(&Path, &Tally) -> Result<T>,
    ) -> Result<T> {
        self.site.set_free(true);
        let tally = self.tally(what, 0, Duration::MAX);
        let made = work(self.site.root(), &tally).with_context(|| format!("prepare: {what}"));
        let settled = self.site.settle();
        self.site.set_free(false);
        let made = made?;
        settled?;
        Ok(made)
    }

    /// Measures a phase that writes, until everything is durable. Starts with cold caches if `cold`.
    pub fn write_phase(
        &mut self,
        name: &str,
        expected: u64,
        cold: bool,
        work: impl FnOnce(&Path, &Tally) -> Result<()>,
    ) -> Result<()> {
        self.measure(name, expected, cold, Duration::MAX, true, work)
    }

    /// Measures a phase that reads, from cold caches. It may stop early, since the result is a rate.
    pub fn read_phase(
        &mut self,
        name: &str,
        expected: u64,
        work: impl FnOnce(&Path, &Tally) -> Result<()>,
    ) -> Result<()> {
        self.measure(name, expected, true, self.read_time_max, false, work)
    }

    /// Measures a phase without emptying caches before or making anything durable after it.
    pub fn hot_phase(
        &mut self,
        name: &str,
        expected: u64,
        work: impl FnOnce(&Path, &Tally) -> Result<()>,
    ) -> Result<()> {
        self.measure(name, expected, false, Duration::MAX, false, work)
    }

    pub fn finish(self) -> Vec<Phase> {
        self.progress.finish_and_clear();
        self.phases
    }

    fn measure(
        &mut self,
        name: &str,
        expected: u64,
        cold: bool,
        limit: Duration,
        settle: bool,
        work: impl FnOnce(&Path, &Tally) -> Result<()>,
    ) -> Result<()> {
        if cold {
            self.site.set_free(true);
            let chilled = self.site.chill();
            self.site.set_free(false);
            chilled.with_context(|| format!("empty the caches before {name}"))?;
        }
        let home_before = self.site.journal_home();
        let before = self.site.counters();
        let used = || [Used::by("self").map(|used| used.children), self.site.server_secs()];
        let used_before = used();
        let tally = self.tally(name, expected, limit);
        work(self.site.root(), &tally).with_context(|| format!("phase {name}"))?;
        if settle {
            self.site.settle().with_context(|| format!("make {name} durable"))?;
        }
        let seconds = tally.started.elapsed().as_secs_f64();
        let [programs_secs, server_secs] = {
            let [programs, server] = used();
            let spent = |(after, before): (f64, f64)| after - before;
            [programs.zip(used_before[0]).map(spent), server.zip(used_before[1]).map(spent)]
        };
        let device = self.site.counters().zip(before).map(|(after, before)| after.since(&before));
        let home = self.site.journal_home().zip(home_before);
        let (files, bytes) = tally.totals();
        self.phases.push(Phase {
            name: name.to_owned(),
            files,
            bytes,
            seconds,
            device,
            instructions: None,
            journal_home_secs: home
                .map(|(after, before)| after.saturating_sub(before).as_secs_f64()),
            programs_secs,
            server_secs,
        });
        Ok(())
    }

    fn tally(&self, name: &str, expected: u64, limit: Duration) -> Tally<'a> {
        self.progress.reset();
        self.progress.set_length(expected);
        self.progress.set_message(name.to_owned());
        Tally {
            interrupt: self.interrupt,
            progress: self.progress.clone(),
            started: Instant::now(),
            limit,
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

/// Counts the work of one phase. Shared by its threads.
pub struct Tally<'a> {
    interrupt: &'a AtomicBool,
    progress: ProgressBar,
    started: Instant,
    limit: Duration,
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Tally<'_> {
    /// Counts a file. Returns whether to continue, which is false when the phase's time is over. Fails after
    /// an interrupt.
    pub fn file(&self, bytes: u64) -> Result<bool> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if files.is_multiple_of(64) {
            self.progress.set_position(files);
        }
        self.go_on()
    }

    /// Counts bytes that are not a whole file, such as a chunk of a large file.
    pub fn bytes(&self, bytes: u64) -> Result<bool> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.go_on()
    }

    /// Counts files that a separate program has processed.
    pub fn add(&self, files: u64, bytes: u64) {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether there is time left; fails after an interrupt.
    pub fn go_on(&self) -> Result<bool> {
        if self.interrupt.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(self.started.elapsed() < self.limit)
    }

    /// Time since the phase began.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Files and bytes so far.
    pub fn totals(&self) -> (u64, u64) {
        (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// The result of a worker thread; propagates its panic.
pub(crate) fn joined(worker: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
