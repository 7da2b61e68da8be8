//! The scrub of a served volume, in a thread of the server; commands start it, read its status and end it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cffs::vfs::{ScrubProgress, Volume};
use serde::{Deserialize, Serialize};

use super::job;

/// The longest pause between two checks of the stop flag.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The state of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// None has run since the volume was mounted.
    #[default]
    Never,
    Running,
    Done,
    /// It was ended before it was complete.
    Stopped,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ScrubStatus {
    pub stage: Stage,
    #[serde(flatten)]
    pub progress: ScrubProgress,
}

impl ScrubStatus {
    fn new(stage: Stage, progress: &ScrubProgress) -> ScrubStatus {
        ScrubStatus { stage, progress: progress.clone() }
    }
}

/// Limits a scrub to a rate, in bytes per second; 0 for no limit.
#[derive(Debug)]
pub struct Pace {
    bytes_per_sec: u64,
    started: Instant,
}

impl Pace {
    /// A pace that starts now.
    pub fn new(bytes_per_sec: u64) -> Pace {
        Pace { bytes_per_sec, started: Instant::now() }
    }

    /// The time to wait after this number of bytes.
    pub fn wait_after(&self, bytes: u64) -> Duration {
        if self.bytes_per_sec == 0 {
            return Duration::ZERO;
        }
        let due = Duration::from_secs_f64(bytes as f64 / self.bytes_per_sec as f64);
        due.saturating_sub(self.started.elapsed())
    }
}

/// The scrub of a server's volume.
#[derive(Default)]
pub(super) struct Scrubbing {
    status: Mutex<ScrubStatus>,
    stop: AtomicBool,
}

impl Scrubbing {
    pub fn status(&self) -> ScrubStatus {
        self.lock().clone()
    }

    /// Starts a scrub, unless one is running.
    pub fn start(self: &Arc<Self>, volume: &Arc<Volume>, bytes_per_sec: u64) {
        {
            let mut status = self.lock();
            if status.stage == Stage::Running {
                return;
            }
            *status = ScrubStatus { stage: Stage::Running, ..ScrubStatus::default() };
        }
        self.stop.store(false, Ordering::Release);
        let (scrubbing, status) = (Arc::clone(self), Arc::clone(self));
        let run = move |volume: &Arc<Volume>| scrubbing.run(volume, &Pace::new(bytes_per_sec));
        job::spawn(volume, run, move || status.lock().stage = Stage::Stopped);
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    fn run(&self, volume: &Volume, pace: &Pace) {
        let mut last = ScrubProgress::default();
        let result = volume.admin().scrub(&mut |progress| {
            if progress.inodes % 64 == 0 || progress.problem_count > last.problem_count {
                last = progress.clone();
                *self.lock() = ScrubStatus::new(Stage::Running, progress);
            }
            self.wait(pace, progress.read_bytes)
        });
        let stopped = self.stop.load(Ordering::Acquire) || result.is_err();
        let stage = if stopped { Stage::Stopped } else { Stage::Done };
        *self.lock() = ScrubStatus::new(stage, result.as_ref().unwrap_or(&last));
    }

    fn wait(&self, pace: &Pace, read_bytes: u64) -> ControlFlow<()> {
        loop {
            if self.stop.load(Ordering::Acquire) {
                return ControlFlow::Break(());
            }
            let wait = pace.wait_after(read_bytes);
            if wait.is_zero() {
                return ControlFlow::Continue(());
            }
            thread::sleep(wait.min(PAUSE_MAX));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ScrubStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
