//! The regrouping of a served volume, in a thread of the server; commands start it, read its status and end
//! it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::{IdleRegrouping, RegroupOptions, RegroupProgress, Scattered, Turns, Volume};
use serde::{Deserialize, Serialize};

use super::{Stage, job};
use crate::shared::log_fault;

#[cfg(test)]
mod tests;

/// The interval between checks whether the volume is idle.
const IDLE_POLL: Duration = Duration::from_secs(1);
/// If no call arrives for this time, which is longer than a call takes, no caller waits and the next step may
/// begin.
const PAUSE: Duration = Duration::from_millis(100);
/// The interval between checks whether the next step may begin.
const TURN_POLL: Duration = Duration::from_millis(10);
/// Longer than a step takes on a working device.
const STEP_MAX: Duration = Duration::from_secs(10);

/// The files to regroup, and whether only to count them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegroupRequest {
    /// Whether to count without moving anything.
    pub dry_run: bool,
    pub which: Which,
}

/// The files to regroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// Those of the tree below the request's directory.
    #[default]
    Tree,
    /// These, in the order in which they are read.
    Files(Vec<InodeNo>),
    /// Those that the server has observed to be read together.
    Used,
}

impl RegroupRequest {
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::from(if self.dry_run { "count" } else { "move" });
        match &self.which {
            Which::Tree => text.push_str(" tree"),
            Which::Used => text.push_str(" used"),
            Which::Files(files) => files.iter().for_each(|ino| text.push_str(&format!(" {ino}"))),
        }
        text
    }

    pub(crate) fn from_text(text: &str) -> Option<RegroupRequest> {
        let (verb, what) = text.split_once(' ').unwrap_or((text, ""));
        let dry_run = match verb {
            "count" => true,
            "move" => false,
            _ => return None,
        };
        let numbers = || what.split_ascii_whitespace().map(|number| number.parse().map(InodeNo));
        let which = match what {
            "tree" => Which::Tree,
            "used" => Which::Used,
            _ => Which::Files(numbers().collect::<std::result::Result<_, _>>().ok()?),
        };
        Some(RegroupRequest { dry_run, which })
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RegroupStatus {
    pub stage: Stage,
    #[serde(flatten)]
    pub progress: RegroupProgress,
    /// Whether the server began it because the volume was idle.
    #[serde(default)]
    pub idle: bool,
    /// The reason if it failed.
    pub failure: Option<String>,
}

impl RegroupStatus {
    pub fn new(stage: Stage, progress: &RegroupProgress) -> RegroupStatus {
        RegroupStatus { stage, progress: progress.clone(), ..RegroupStatus::default() }
    }
}

/// The regrouping of a server's volume.
#[derive(Default)]
pub(super) struct Regrouping {
    status: Mutex<RegroupStatus>,
    stop: AtomicBool,
}

impl Regrouping {
    pub fn status(&self) -> RegroupStatus {
        self.lock().clone()
    }

    /// Starts a regrouping.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] during another one that a command started.
    pub fn start(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        dir: InodeNo,
        request: RegroupRequest,
    ) -> Result<()> {
        self.end_idle();
        {
            let mut status = self.lock();
            if status.stage == Stage::Running {
                return Err(Error::Invalid(
                    "a regrouping is under way; cffs regroup --stop ends it",
                ));
            }
            *status = RegroupStatus { stage: Stage::Running, ..RegroupStatus::default() };
        }
        self.stop.store(false, Ordering::Release);
        let (regrouping, status) = (Arc::clone(self), Arc::clone(self));
        let run = move |volume: &Arc<Volume>| regrouping.run(volume, dir, &request, PAUSE);
        job::spawn(volume, run, move || status.panicked());
        Ok(())
    }

    /// Ends a regrouping that the server began because the volume was idle, after its current step.
    pub fn end_idle(&self) {
        let until = Instant::now() + STEP_MAX;
        while Instant::now() < until {
            let status = self.status();
            if !status.idle || status.stage != Stage::Running {
                return;
            }
            self.stop();
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Regroups whenever the volume has been idle for `after`, until the sender of `ended` is dropped. Asks
    /// `may_go_on` before each step.
    pub fn run_when_idle(
        &self,
        volume: &Volume,
        after: Duration,
        ended: &Receiver<()>,
        may_go_on: &dyn Fn() -> bool,
    ) {
        let mut idle = IdleRegrouping::new(after);
        while ended.recv_timeout(IDLE_POLL) == Err(RecvTimeoutError::Timeout) {
            let is_running = self.status().stage == Stage::Running;
            if !is_running && !self.run_idle(volume, &mut idle, may_go_on) {
                return;
            }
        }
    }

    /// Regroups an idle volume once. Returns false if it failed and would fail again.
    fn run_idle(
        &self,
        volume: &Volume,
        idle: &mut IdleRegrouping,
        may_go_on: &dyn Fn() -> bool,
    ) -> bool {
        self.stop.store(false, Ordering::Release);
        let before = self.status();
        let result = idle.run(volume, &mut |progress| {
            let running = RegroupStatus::new(Stage::Running, progress);
            *self.lock() = RegroupStatus { idle: true, ..running };
            // A remount that makes the volume read-only sees that this is running, or this sees the remount.
            match self.stop.load(Ordering::Acquire) || !may_go_on() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        match result {
            Ok(None) => {
                let mut status = self.lock();
                if status.idle && status.stage == Stage::Running {
                    *status = before;
                }
                true
            }
            Ok(Some(progress)) => {
                let files = progress.moved_files;
                if files > 0 {
                    tracing::info!(files, bytes = progress.moved_bytes, "regrouped while idle");
                }
                *self.lock() =
                    RegroupStatus { idle: true, ..RegroupStatus::new(Stage::Done, &progress) };
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the volume is not regrouped while it is idle");
                let stopped = RegroupStatus::new(Stage::Stopped, &RegroupProgress::default());
                let failure = Some(error.to_string());
                *self.lock() = RegroupStatus { idle: true, failure, ..stopped };
                false
            }
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Runs a regrouping. Each step begins when enough other calls were served, or no call has arrived for
    /// `pause`.
    fn run(&self, volume: &Volume, dir: InodeNo, request: &RegroupRequest, pause: Duration) {
        let what = match &request.which {
            Which::Tree => Scattered::Tree(dir),
            Which::Files(files) => Scattered::Files(files),
            Which::Used => Scattered::Used,
        };
        let options = RegroupOptions { dry_run: request.dry_run, ..RegroupOptions::default() };
        let mut last = RegroupProgress::default();
        let mut turns = Turns::new(volume, pause);
        let result = volume.regroup(what, &options, &mut |progress| {
            let is_stopped = || self.stop.load(Ordering::Acquire);
            // Waits only after progress: otherwise the blocks read for the next step could leave the cache
            // during the wait.
            if *progress != last {
                last = progress.clone();
                *self.lock() = RegroupStatus::new(Stage::Running, progress);
                turns.step_ended(volume);
                while !turns.may_go_on(volume) && !is_stopped() {
                    thread::sleep(TURN_POLL);
                }
            }
            if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let stopped = self.stop.load(Ordering::Acquire) || result.is_err();
        let stage = if stopped { Stage::Stopped } else { Stage::Done };
        let mut status = RegroupStatus::new(stage, result.as_ref().unwrap_or(&last));
        if let Err(error) = &result {
            log_fault("regrouping", error);
            status.failure = Some(error.to_string());
        }
        *self.lock() = status;
    }

    fn panicked(&self) {
        let mut status = self.lock();
        (status.stage, status.failure) = (Stage::Stopped, Some(job::PANICKED.into()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RegroupStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
