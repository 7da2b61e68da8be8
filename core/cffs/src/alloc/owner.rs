//! The owners of reservations.

use crate::units::Key;

/// The owner of a reservation: files or metadata that are placed side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// One key: most often a directory.
    Key(Key),
    /// All keys: files that fit no reservation of their key are placed here in the order in which they are
    /// written.
    Shared,
    /// Small files of several keys that an fsync waits for: they are placed near the sectors.
    Urgent,
    /// Files that are moved together, by a regrouping.
    Moved,
}
