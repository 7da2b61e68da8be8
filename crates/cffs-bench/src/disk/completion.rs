//! Requests by their names, and when they complete.

use super::Nanos;

/// Names a request until it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A request that is done, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub id: RequestId,
    /// When it completed, in device time.
    pub at: Nanos,
}
