//! Tracks waiting requests, so that their callers can be killed.
//!
//! Once the server has a request, no signal ends the call that made it, not even SIGKILL: the kernel waits
//! for the answer. A server that itself waits for a network may take long to answer. So a thread, the watch,
//! checks the callers of waiting requests. If one was killed, its request is answered with `EINTR`, which no
//! program sees, and it can end. The request continues; the kernel refuses its own answer.
//!
//! Callers with another signal keep waiting, as on other file systems. The kernel announces signals
//! (`INTERRUPT`), but only the first one for each request, and without its number; so this module does not
//! use that.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::device::Device;
use crate::protocol::{Frame, Unique, encode};

/// The interval between checks. A request that was running at the previous check counts as waiting.
const PERIOD: Duration = Duration::from_millis(250);

/// The requests in progress, and the thread that checks them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    /// Wakes the watch: a request has begun, or serving has ended.
    woken: Condvar,
    /// Whether the watch sleeps, since there is no request.
    is_asleep: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<Arc<Place>>,
    ended: bool,
}

/// A slot of a serving thread: it has at most one request.
#[derive(Debug)]
pub(super) struct Place {
    /// The descriptor from which requests are read, and on which they must be answered.
    device: Arc<Device>,
    request: Mutex<Option<Request>>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    unique: Unique,
    /// The caller's thread.
    process: u32,
}

impl Waiting {
    /// Adds a slot, which [`leave`](Waiting::leave) removes.
    pub(super) fn enter(&self, device: &Arc<Device>) -> Arc<Place> {
        let (device, request) = (Arc::clone(device), Mutex::new(None));
        let place = Arc::new(Place { device, request });
        self.lock().places.push(Arc::clone(&place));
        place
    }

    pub(super) fn leave(&self, place: &Arc<Place>) {
        self.lock().places.retain(|other| !Arc::ptr_eq(other, place));
    }

    /// Records that a request begins; [`Place::end`] ends it.
    pub(super) fn begin(&self, place: &Place, frame: &Frame<'_>) {
        let request = Request { unique: frame.unique(), process: frame.process() };
        *lock(&place.request) = Some(request);
        // If the watch fell asleep before it could see the request, it had set the flag first.
        if self.is_asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Checks requests until the end.
    pub(crate) fn watch(&self) {
        let mut seen = HashSet::new();
        loop {
            self.is_asleep.store(true, Ordering::Relaxed);
            let places = self.lock().places.clone();
            let served: Vec<_> = places.iter().filter_map(|place| place.request()).collect();
            if !served.is_empty() {
                self.is_asleep.store(false, Ordering::Relaxed);
            }
            for (place, request) in
                places.iter().filter_map(|place| Some((place, place.request()?)))
            {
                if seen.contains(&request.unique) && is_killed(request.process) {
                    place.interrupt(request);
                }
            }
            seen = served.iter().map(|request| request.unique).collect();
            if !self.pause() {
                return;
            }
        }
    }

    /// Waits until the next check; false at the end.
    fn pause(&self) -> bool {
        let mut state = self.lock();
        while self.is_asleep.load(Ordering::Relaxed) && !state.ended {
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let waited = self.woken.wait_timeout_while(state, PERIOD, |state| !state.ended);
        !waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Records that serving has ended.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.woken.notify_all();
    }

    fn wake(&self) {
        let state = self.lock();
        self.is_asleep.store(false, Ordering::Relaxed);
        drop(state);
        self.woken.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Place {
    fn request(&self) -> Option<Request> {
        *lock(&self.request)
    }

    /// Records that the request is about to be answered.
    pub(super) fn end(&self) {
        *lock(&self.request) = None;
    }

    /// Answers a request whose caller was killed.
    fn interrupt(&self, request: Request) {
        // It may have been answered meanwhile, so that the kernel no longer knows it.
        let _ = self.device.send(&encode::header(request.unique.0, Err(Errno::INTR)), &[]);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a thread is being ended by a signal. False if the thread is invisible, as in another PID
/// namespace.
fn is_killed(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    has_sigkill(&status)
}

/// Whether SIGKILL is pending for a thread. The kernel turns every signal that ends a process into SIGKILL.
fn has_sigkill(status: &str) -> bool {
    const SIGKILL: u64 = 1 << 8;
    ["SigPnd:", "ShdPnd:"].iter().any(|line| {
        let signals = status.lines().find_map(|found| found.strip_prefix(line));
        let signals = signals.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
        signals.is_some_and(|signals| signals & SIGKILL != 0)
    })
}

#[cfg(test)]
mod tests;
