//! A watchdog, which logs work that makes no progress for long, and the cause.
//!
//! ```text
//!   requests of the kernel ──┐
//!   requests to the device ──┼─▶ every tick: older than the limit? ──▶ one line in the log, again after
//!   the step of an epoch   ──┤                                        twice the time; and a shutdown
//!   closing the volume     ──┘                                        report
//! ```
//!
//! The watchdog's thread counts ticks, so that recording a start does not read the clock, and tests control
//! time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use fuse_ring::protocol::{NodeId, Opcode};

use super::underway::{Job, Underway};
use crate::served::Served;
use crate::served::shutdown::ShutdownReport;

/// The default time after which unfinished work is logged.
pub const STALL: Duration = Duration::from_secs(30);

/// The shortest and the longest tick.
const TICK_MIN: Duration = Duration::from_millis(50);
const TICK_MAX: Duration = Duration::from_secs(1);
/// The number of ticks in the limit, within these bounds.
const TICKS: u32 = 30;
/// How long an unmount waits before its callers are told the reason.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most jobs of one kind that a line lists; the rest are counted.
const JOBS_NAMED_MAX: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceCall {
    Read,
    Write,
    Flush,
    Discard,
}

impl DeviceCall {
    const ALL: [DeviceCall; 4] =
        [DeviceCall::Read, DeviceCall::Write, DeviceCall::Flush, DeviceCall::Discard];
}

/// The running work of a server, and its time limit.
pub struct Watch {
    tick: Duration,
    /// In ticks.
    limit: u64,
    now: AtomicU64,
    requests: Underway,
    device: Underway,
    /// One more than the tick at which closing began; 0 before that.
    closing: AtomicU64,
    seen: Mutex<Seen>,
}

/// The state at the watchdog's last tick.
#[derive(Default)]
struct Seen {
    step: Option<&'static str>,
    device_calls: u64,
    /// The tick since which `step` and `device_calls` are unchanged.
    since: u64,
    /// While there is no progress: the tick of the next message, and the interval before it.
    next: Option<(u64, u64)>,
    /// The tick since which there has been no progress.
    stuck: u64,
    /// Whether the callers of an unmount were told why it waits.
    has_said: bool,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch::new(STALL)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("tick", &self.tick).field("limit", &self.limit).finish()
    }
}

impl Watch {
    /// Logs work that takes `stall` or longer.
    pub fn new(stall: Duration) -> Watch {
        let tick = (stall / TICKS).clamp(TICK_MIN, TICK_MAX);
        Watch {
            tick,
            limit: (stall.as_millis().div_ceil(tick.as_millis()) as u64).max(1),
            now: AtomicU64::new(0),
            requests: Underway::default(),
            device: Underway::default(),
            closing: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    /// Records that this thread begins to serve a kernel request.
    pub(super) fn request(&self, opcode: Opcode, node: NodeId) {
        self.requests.begin(Job { kind: opcode as u64, at: node.0, len: 0, since: self.now() });
    }

    /// Records that this thread has answered its request.
    pub(super) fn answered(&self) {
        self.requests.end();
    }

    /// Records a call to the device by this thread, until the returned guard is dropped.
    pub(super) fn device(&self, call: DeviceCall, at: u64, len: u64) -> DeviceJob<'_> {
        self.device.begin(Job { kind: call as u64, at, len, since: self.now() });
        DeviceJob(self)
    }

    /// Records that closing the volume begins.
    pub(super) fn closing(&self) {
        self.closing.store(self.now() + 1, Ordering::Release);
    }

    /// Watches until the sender of `ended` is dropped.
    pub(super) fn run(&self, served: &Served, ended: mpsc::Receiver<()>) {
        while ended.recv_timeout(self.tick) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Reads learn of a remount from this.
            served.is_read_only();
            let (line, word) = self.pass(served.volume().admin().step());
            // A volume in a store has no other device.
            let of_store = |text: String| match served.store.get() {
                Some(_) => text.replace("the device", "the store"),
                None => text,
            };
            if let Some(line) = line {
                tracing::warn!("{}", of_store(line));
            }
            if let Some(word) = word {
                let word = served.outage().unwrap_or_else(|| of_store(word));
                served.shutdown.send(&ShutdownReport::Waiting(word));
            }
        }
    }

    /// Processes one tick, given the current step of the volume. Returns a message for the log, and one for
    /// the callers of an unmount.
    fn pass(&self, step: Option<&'static str>) -> (Option<String>, Option<String>) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let device_calls = self.device.ended();
        if step.is_none() || (step, device_calls) != (seen.step, seen.device_calls) {
            (seen.step, seen.device_calls, seen.since) = (step, device_calls, now);
        }
        let closing = self.closing.load(Ordering::Acquire).checked_sub(1);
        let old = now.checked_sub(self.limit);
        let is_old = |since: u64| old.is_some_and(|old| since <= old);
        let requests = old.map(|old| self.requests.since(old)).unwrap_or_default();
        let device = old.map(|old| self.device.since(old)).unwrap_or_default();
        let is_stuck = !requests.is_empty()
            || !device.is_empty()
            || is_old(seen.since)
            || closing.is_some_and(is_old);
        let mut word = None;
        let patience = (PATIENCE.as_millis() / self.tick.as_millis()) as u64;
        if closing.is_some_and(|since| now - since >= patience) && !seen.has_said {
            seen.has_said = true;
            word = Some(self.describe(
                &self.requests.since(now),
                &self.device.since(now),
                &seen,
                closing,
            ));
        }
        if !is_stuck {
            let resumed = seen.next.take();
            let resumed =
                resumed.map(|_| format!("progress resumed after {}", self.age(seen.stuck)));
            return (resumed, word);
        }
        let pause = match seen.next {
            Some((next, _)) if now < next => return (None, word),
            Some((_, pause)) => pause * 2,
            None => {
                seen.stuck = now.saturating_sub(self.limit);
                self.limit
            }
        };
        seen.next = Some((now + pause, pause));
        let waiting = self.describe(&requests, &device, &seen, closing);
        let line = format!("no progress for {}: {waiting}", self.age(seen.stuck));
        (Some(line), word.or(closing.map(|_| waiting)))
    }

    fn describe(
        &self,
        requests: &[Job],
        device: &[Job],
        seen: &Seen,
        closing: Option<u64>,
    ) -> String {
        let mut parts = Vec::new();
        if let Some(since) = closing {
            parts.push(format!("the volume has been closing for {}", self.age(since)));
        }
        if let Some(step) = seen.step {
            parts.push(format!("{step}, for {}", self.age(seen.since)));
        }
        let device = device.iter().map(|job| {
            let age = self.age(job.since);
            match DeviceCall::ALL.get(job.kind as usize) {
                Some(DeviceCall::Flush) | None => format!("flush for {age}"),
                Some(call) => format!("{call:?} of {} bytes at {} for {age}", job.len, job.at),
            }
        });
        parts.extend(list("the device has not answered", device.collect()));
        let requests = requests.iter().map(|job| {
            let opcode = Opcode::ALL.iter().find(|opcode| **opcode as u64 == job.kind);
            let name = opcode.map_or_else(|| job.kind.to_string(), |opcode| format!("{opcode:?}"));
            format!("{} of inode {} for {}", name.to_lowercase(), job.at, self.age(job.since))
        });
        parts.extend(list("requests wait", requests.collect()));
        parts.join("; ")
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn age(&self, since: u64) -> String {
        self.seconds(self.now().saturating_sub(since))
    }

    fn seconds(&self, ticks: u64) -> String {
        let time = self.tick.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
        format!("{} s", time.as_secs())
    }
}

/// A heading with a list of jobs; `None` without jobs.
fn list(head: &str, jobs: Vec<String>) -> Option<String> {
    let named = jobs.get(..jobs.len().min(JOBS_NAMED_MAX))?.join(", ");
    let others = match jobs.len().saturating_sub(JOBS_NAMED_MAX) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    (!jobs.is_empty()).then(|| format!("{head}: {}{others}", named.to_lowercase()))
}

/// A running call to the device.
pub(super) struct DeviceJob<'a>(&'a Watch);

impl Drop for DeviceJob<'_> {
    fn drop(&mut self) {
        self.0.device.end();
    }
}

#[cfg(test)]
mod tests;
