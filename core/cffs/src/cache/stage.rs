//! The stages of write-back, for reports about slow ones.

use std::sync::atomic::{AtomicU8, Ordering};

use super::Phase;

/// A stage of an epoch or a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waiting for changes in progress, with the gate about to close.
    Gate,
    /// Placing and encoding changes, in memory.
    Preparing,
    /// The writes of this phase.
    Writing(Phase),
    /// All phases as one record of the journal.
    Journaling,
    /// A barrier between two phases.
    Barrier,
    /// The sync at the end.
    Syncing,
}

impl Stage {
    const ALL: [Stage; 11] = [
        Stage::Gate,
        Stage::Preparing,
        Stage::Journaling,
        Stage::Barrier,
        Stage::Syncing,
        Stage::Writing(Phase::New),
        Stage::Writing(Phase::Table),
        Stage::Writing(Phase::Change),
        Stage::Writing(Phase::Settle),
        Stage::Writing(Phase::Appear),
        Stage::Writing(Phase::Derived),
    ];

    /// The stage in words.
    pub fn describe(self) -> &'static str {
        match self {
            Stage::Gate => "waiting for changes under way to end",
            Stage::Preparing => "placing and encoding an epoch",
            Stage::Writing(Phase::New) => "writing new contents and sectors",
            Stage::Writing(Phase::Table) => "writing the table of inodes",
            Stage::Writing(Phase::Change) => "writing directory sectors",
            Stage::Writing(Phase::Settle) => "writing deferred changes",
            Stage::Writing(Phase::Appear) => "writing new files with vacated names",
            Stage::Writing(Phase::Derived) => "writing derived tables",
            Stage::Journaling => "writing an epoch to the journal",
            Stage::Barrier => "waiting for a barrier of the device",
            Stage::Syncing => "waiting for the device to complete a flush",
        }
    }
}

/// The current stage; none if nothing is written.
#[derive(Default)]
pub struct CurrentStage(AtomicU8);

impl CurrentStage {
    /// Sets the current stage.
    pub fn set(&self, stage: Option<Stage>) {
        let at = stage.and_then(|stage| Stage::ALL.iter().position(|known| *known == stage));
        self.0.store(at.map_or(0, |at| at as u8 + 1), Ordering::Relaxed);
    }

    /// The current stage.
    pub fn get(&self) -> Option<Stage> {
        let at = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        Stage::ALL.get(usize::from(at)).copied()
    }
}
