//! The number of processors that a thread may use.

use std::sync::OnceLock;

use rustix::thread::sched_getaffinity;

/// The processors to which this thread is bound, and no more than the quota of the control group allows. The
/// first call reads the quota from files, which takes longer than opening a small volume.
pub fn available() -> usize {
    static QUOTA: OnceLock<usize> = OnceLock::new();
    let allowed = || std::thread::available_parallelism().map_or(1, usize::from);
    // It fails if the machine has more processors than the set has bits.
    let Ok(bound) = sched_getaffinity(None) else { return allowed() };
    let bound = bound.count() as usize;
    let quota = *QUOTA.get_or_init(|| match allowed() {
        allowed if allowed < bound => allowed,
        _ => usize::MAX,
    });
    bound.min(quota).max(1)
}

#[cfg(test)]
mod tests;
