//! Regrouping next to callers, which go first.

use std::time::{Duration, Instant};

use crate::vfs::Volume;

/// The calls that are served for each request of a step. While a step keeps the device busy, about one call
/// waits for each of its requests: one in two hundred, so that the slowest hundredth of the calls hardly
/// changes (005).
const CALLS_PER_REQUEST: u64 = 200;

/// Decides when the next step of a regrouping may begin on a volume in use: after so large a number of calls
/// that few of them wait, or when no call arrived for a moment.
pub struct Turns {
    pause: Duration,
    calls: u64,
    since: Instant,
    /// The requests of the device when the step began.
    requests: u64,
    /// The calls with which the next step may begin.
    due_at: u64,
}

impl Turns {
    /// The first step begins now. The volume counts as idle after no call for `pause`, which must be longer
    /// than a call takes.
    pub fn new(volume: &Volume, pause: Duration) -> Turns {
        let (calls, _) = volume.calls.so_far();
        let requests = requests(volume);
        let since = volume.inodes().clock.monotonic();
        Turns { pause, calls, since, requests, due_at: calls }
    }

    /// A step has ended.
    pub fn step_ended(&mut self, volume: &Volume) {
        let made = requests(volume) - self.requests;
        self.due_at = volume.calls.so_far().0 + made * CALLS_PER_REQUEST;
    }

    /// Whether the next step may begin; if so, it begins. Called repeatedly in between.
    pub fn may_go_on(&mut self, volume: &Volume) -> bool {
        let (calls, _) = volume.calls.so_far();
        let now = volume.inodes().clock.monotonic();
        if calls != self.calls {
            (self.calls, self.since) = (calls, now);
        }
        let is_due = calls >= self.due_at || now - self.since >= self.pause;
        if is_due {
            self.requests = requests(volume);
        }
        is_due
    }
}

/// How many requests the device was sent.
fn requests(volume: &Volume) -> u64 {
    let cache = volume.inodes().cache.stats();
    cache.reads + cache.writes + cache.syncs
}
