//! The identifiers and the completions of requests.

use super::Nanos;

/// Identifies a request until it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A completed request, with its completion time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub id: RequestId,
    /// When it completed, in device time.
    pub at: Nanos,
}
