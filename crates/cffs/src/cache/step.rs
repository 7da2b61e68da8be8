//! What is being done to bring changes to the device, for reports of why it takes long.

use std::sync::atomic::{AtomicU8, Ordering};

use super::Phase;

/// A step of an epoch or a clean point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Changes under way are waited for, with the gate about to close.
    Gate,
    /// What was changed is placed and encoded, in memory.
    Preparing,
    /// The writes of this phase.
    Writing(Phase),
    /// All phases as one record of the log.
    Logging,
    /// A barrier between two phases.
    Barrier,
    /// The sync at the end.
    Syncing,
}

impl Step {
    const ALL: [Step; 11] = [
        Step::Gate,
        Step::Preparing,
        Step::Logging,
        Step::Barrier,
        Step::Syncing,
        Step::Writing(Phase::New),
        Step::Writing(Phase::Table),
        Step::Writing(Phase::Change),
        Step::Writing(Phase::Settle),
        Step::Writing(Phase::Appear),
        Step::Writing(Phase::Derived),
    ];

    /// The step in words.
    pub fn describe(self) -> &'static str {
        match self {
            Step::Gate => "waiting for changes under way to end",
            Step::Preparing => "placing and encoding an epoch",
            Step::Writing(Phase::New) => "writing new contents and sectors",
            Step::Writing(Phase::Table) => "writing the table of inodes",
            Step::Writing(Phase::Change) => "writing directory sectors",
            Step::Writing(Phase::Settle) => "writing deferred changes",
            Step::Writing(Phase::Appear) => "writing new files with vacated names",
            Step::Writing(Phase::Derived) => "writing derived tables",
            Step::Logging => "writing an epoch to the log",
            Step::Barrier => "waiting for a barrier of the device",
            Step::Syncing => "waiting for the device to complete a flush",
        }
    }
}

/// The step under way; none if nothing goes to the device.
#[derive(Default)]
pub struct CurrentStep(AtomicU8);

impl CurrentStep {
    /// Notes what is done from here on.
    pub fn set(&self, step: Option<Step>) {
        let at = step.and_then(|step| Step::ALL.iter().position(|known| *known == step));
        self.0.store(at.map_or(0, |at| at as u8 + 1), Ordering::Relaxed);
    }

    /// What is being done.
    pub fn get(&self) -> Option<Step> {
        let at = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        Step::ALL.get(usize::from(at)).copied()
    }
}
