//! The counts of a regrouping.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The progress of a regrouping.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegroupProgress {
    /// Directories seen so far.
    pub directories: u64,
    /// Regular files seen so far.
    pub files: u64,
    /// Files that were moved, or would be.
    pub moved_files: u64,
    /// Their contents, in bytes.
    pub moved_bytes: u64,
    /// Accesses that reading those files took before.
    pub accesses_before: u64,
    /// Accesses that it takes now.
    pub accesses_after: u64,
    /// Scattered files that were not moved, since no free run is long enough.
    pub without_room: u64,
    /// Files that stay because they are immutable or append-only.
    pub protected: u64,
    /// Files that stay because their contents cannot be read, or do not match their checksum.
    pub damaged: u64,
    /// Bytes of dead contents in clusters that compaction freed.
    #[serde(default)]
    pub freed_bytes: u64,
}

/// Adds up the progress of several regroupings.
impl AddAssign<&RegroupProgress> for RegroupProgress {
    fn add_assign(&mut self, more: &RegroupProgress) {
        self.directories += more.directories;
        self.files += more.files;
        self.moved_files += more.moved_files;
        self.moved_bytes += more.moved_bytes;
        self.accesses_before += more.accesses_before;
        self.accesses_after += more.accesses_after;
        self.without_room += more.without_room;
        self.protected += more.protected;
        self.damaged += more.damaged;
        self.freed_bytes += more.freed_bytes;
    }
}
