//! Statistics of a journal over a device, for callers that do not know the journal.

use std::time::Duration;

use super::Durations;

/// Whether a journal is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalState {
    /// It is.
    #[default]
    On,
    /// It was stopped, or could not be written or read: the volume continues without it.
    Off,
    /// A sync failed: the contents of the device are unknown.
    Failed,
}

impl JournalState {
    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            JournalState::On => "on",
            JournalState::Off => "off",
            JournalState::Failed => "failed",
        }
    }
}

/// The activity of a journal since its volume was opened, and its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Whether it is written.
    pub state: JournalState,
    /// Records that became durable.
    pub records: u64,
    /// Their bytes, each with its first block.
    pub written_bytes: u64,
    /// Flushes for records: one for each, and one more if writes had bypassed the journal before it.
    pub flushes: u64,
    /// Images of blocks in the records.
    pub images: u64,
    /// Images that a newer one of the same block replaced before they were written home.
    pub superseded_images: u64,
    /// How often the journal was emptied.
    pub drains: u64,
    /// Drains because the next record had no room, so that its writer waited.
    pub drains_full: u64,
    /// Drains because of another write to the place of an image.
    pub drains_overlap: u64,
    /// How long emptying it took, in all.
    pub drain_time: Duration,
    /// The time for which writers waited for the last two kinds of drains.
    pub stalled: Duration,
    /// Bytes that went home.
    pub drained_bytes: u64,
    /// The times until records were durable, including waits.
    pub commits: Durations,
    /// Writes of the journal that failed.
    pub failures: u64,
    /// Bytes of images in memory, which are not at home yet.
    pub live_bytes: u64,
    /// The most of them.
    pub live_bytes_max: u64,
}
