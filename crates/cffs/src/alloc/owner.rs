//! The owners of reservations.

use crate::units::Key;

/// Whose files, or whose metadata, lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// One key: most often a directory.
    Key(Key),
    /// All keys together: what no key's own reservation takes lies here in the order in which it is
    /// written.
    Shared,
    /// Small files of several keys for which an fsync waits: they lie near the sectors.
    Urgent,
    /// Files that are moved together, by a regrouping.
    Moved,
}
