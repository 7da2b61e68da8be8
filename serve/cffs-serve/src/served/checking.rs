//! A check of a served volume, in a thread of the server; commands start it and read its status.

use std::sync::{Arc, Mutex, PoisonError};

use cffs::fsck::{Phase, Progress};
use cffs::vfs::Volume;
use serde::{Deserialize, Serialize};

use super::{Stage, job};
use crate::describe::{self, CheckReport};

/// The most problems listed in an answer; the rest are counted.
const PROBLEMS_MAX: usize = 200;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CheckStatus {
    pub stage: Stage,
    pub pass: String,
    /// The unit of the pass's progress.
    pub unit: String,
    pub done: u64,
    /// The total of units, approximately.
    pub total: u64,
    /// The report, once the check is complete.
    pub report: Option<CheckReport>,
    /// The reason if it failed.
    pub failure: Option<String>,
}

/// The check of a server's volume.
#[derive(Default)]
pub(super) struct Checking {
    status: Mutex<CheckStatus>,
}

impl Checking {
    pub fn status(&self) -> CheckStatus {
        self.lock().clone()
    }

    /// Starts a check, unless one is running.
    pub fn start(self: &Arc<Self>, volume: &Arc<Volume>, contents: bool) {
        {
            let mut status = self.lock();
            if status.stage == Stage::Running {
                return;
            }
            *status = CheckStatus { stage: Stage::Running, ..CheckStatus::default() };
        }
        let (checking, status) = (Arc::clone(self), Arc::clone(self));
        let run = move |volume: &Arc<Volume>| checking.run(volume, contents);
        job::spawn(volume, run, move || {
            let mut status = status.lock();
            (status.stage, status.failure) = (Stage::Done, Some(job::PANICKED.into()));
        });
    }

    fn run(&self, volume: &Volume, contents: bool) {
        let result = cffs::check_in_use(volume, contents, self);
        let mut status = CheckStatus { stage: Stage::Done, ..CheckStatus::default() };
        match result {
            Ok(report) => {
                for problem in &report.problems {
                    tracing::error!("check: {problem}");
                }
                let mut report = CheckReport::new(&report);
                report.problems.truncate(PROBLEMS_MAX);
                report.losses.truncate(PROBLEMS_MAX);
                status.report = Some(report);
            }
            Err(error) => status.failure = Some(error.to_string()),
        }
        *self.lock() = status;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CheckStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Checking {
    fn report(&self, phase: Phase, done: u64, total: u64) {
        let (pass, unit) = describe::phase(phase);
        let mut status = self.lock();
        (status.pass, status.unit) = (pass.to_owned(), unit.to_owned());
        (status.done, status.total) = (done, total);
    }
}
