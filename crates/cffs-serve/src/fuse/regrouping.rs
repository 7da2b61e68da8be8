//! Regrouping a mounted volume: a thread of the server does it, others start it, watch it and end it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::{RegroupOptions, RegroupProgress, Scattered, Volume};
use serde::{Deserialize, Serialize};

use super::scrubbing::Stage;

/// What is to be regrouped, and whether it is only to be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegroupRequest {
    /// Nothing is moved.
    pub dry_run: bool,
    /// These files, in the order in which they are read; `None` for the tree below the directory that is
    /// asked.
    pub files: Option<Vec<InodeNo>>,
}

impl RegroupRequest {
    pub(super) fn to_text(&self) -> String {
        let mut text = String::from(if self.dry_run { "count" } else { "move" });
        match &self.files {
            None => text.push_str(" tree"),
            Some(files) => files.iter().for_each(|ino| text.push_str(&format!(" {ino}"))),
        }
        text
    }

    pub(super) fn from_text(text: &str) -> Option<RegroupRequest> {
        let (verb, what) = text.split_once(' ').unwrap_or((text, ""));
        let dry_run = match verb {
            "count" => true,
            "move" => false,
            _ => return None,
        };
        if what == "tree" {
            return Some(RegroupRequest { dry_run, files: None });
        }
        let numbers = what.split_ascii_whitespace().map(|number| number.parse().map(InodeNo));
        Some(RegroupRequest {
            dry_run,
            files: Some(numbers.collect::<std::result::Result<_, _>>().ok()?),
        })
    }
}

/// How a regrouping stands; see [`RegroupProgress`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RegroupStatus {
    /// What it is doing.
    pub stage: Stage,
    /// Directories that were looked at.
    pub directories: u64,
    /// Regular files that were looked at.
    pub files: u64,
    /// Files that were moved, or would be.
    pub moved_files: u64,
    /// Their contents, in bytes.
    pub moved_bytes: u64,
    /// Accesses that reading those files took before.
    pub accesses_before: u64,
    /// Accesses that it takes now.
    pub accesses_after: u64,
    /// Scattered files that stay for want of a free run that is long enough.
    pub without_room: u64,
    /// Files that stay because they are immutable or append-only.
    pub protected: u64,
    /// Files that stay because they cannot be read.
    pub damaged: u64,
    /// Why it ended before it was complete, if it failed.
    pub failure: Option<String>,
}

impl RegroupStatus {
    /// The status that shows this progress.
    pub fn new(stage: Stage, progress: &RegroupProgress) -> RegroupStatus {
        RegroupStatus {
            stage,
            directories: progress.directories,
            files: progress.files,
            moved_files: progress.moved_files,
            moved_bytes: progress.moved_bytes,
            accesses_before: progress.accesses_before,
            accesses_after: progress.accesses_after,
            without_room: progress.without_room,
            protected: progress.protected,
            damaged: progress.damaged,
            failure: None,
        }
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

    /// Starts one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] while another one is under way.
    pub fn start(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        dir: InodeNo,
        request: RegroupRequest,
    ) -> Result<()> {
        {
            let mut status = self.lock();
            if status.stage == Stage::Running {
                return Err(Error::Invalid("a regrouping is under way"));
            }
            *status = RegroupStatus { stage: Stage::Running, ..RegroupStatus::default() };
        }
        self.stop.store(false, Ordering::Release);
        let (regrouping, volume) = (Arc::clone(self), Arc::clone(volume));
        thread::spawn(move || regrouping.run(&volume, dir, &request));
        Ok(())
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    fn run(&self, volume: &Volume, dir: InodeNo, request: &RegroupRequest) {
        let what = request.files.as_deref().map_or(Scattered::Tree(dir), Scattered::Files);
        let options = RegroupOptions { dry_run: request.dry_run, ..RegroupOptions::default() };
        let mut last = RegroupProgress::default();
        let result = volume.regroup(what, &options, &mut |progress| {
            last = progress.clone();
            *self.lock() = RegroupStatus::new(Stage::Running, progress);
            match self.stop.load(Ordering::Acquire) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let stopped = self.stop.load(Ordering::Acquire) || result.is_err();
        let stage = if stopped { Stage::Stopped } else { Stage::Done };
        let mut status = RegroupStatus::new(stage, result.as_ref().unwrap_or(&last));
        if let Err(error) = &result {
            tracing::error!(%error, "regrouping failed");
            status.failure = Some(error.to_string());
        }
        *self.lock() = status;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RegroupStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
