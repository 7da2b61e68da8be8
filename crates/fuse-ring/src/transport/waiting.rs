//! Requests that wait, and callers that are killed meanwhile.
//!
//! Once the server has a request, a signal does not end the call that made it, SIGKILL neither: the kernel
//! waits for the answer. A server that waits for a network itself may take long to give it. So a thread, the
//! watch, looks at the callers of requests that wait. One that was killed gets the answer that it was
//! interrupted, which no program sees, and can end. The request goes on; the kernel refuses its own answer.
//!
//! Callers with another signal keep waiting, as on other file systems. The kernel announces signals
//! (`INTERRUPT`), but only the first one of each request, and not which it is; so it is not relied on.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::device::Device;
use crate::protocol::{Frame, Unique, encode};

/// How often requests are looked at. One that was there the last time waits.
const PERIOD: Duration = Duration::from_millis(250);

/// The requests that are served, and the thread that looks at them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    /// The watch is to wake up: something is served, or nothing more will be.
    woken: Condvar,
    /// The watch sleeps, since nothing is served.
    is_asleep: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<Arc<Place>>,
    ended: bool,
}

/// Where a request is served, one at a time.
#[derive(Debug)]
pub(super) struct Place {
    /// Where requests are read, and must be answered.
    device: Arc<Device>,
    request: Mutex<Option<Request>>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    unique: Unique,
    /// The thread of the caller.
    process: u32,
}

impl Waiting {
    /// Adds a place, which [`leave`](Waiting::leave) takes away.
    pub(super) fn enter(&self, device: &Arc<Device>) -> Arc<Place> {
        let (device, request) = (Arc::clone(device), Mutex::new(None));
        let place = Arc::new(Place { device, request });
        self.lock().places.push(Arc::clone(&place));
        place
    }

    pub(super) fn leave(&self, place: &Arc<Place>) {
        self.lock().places.retain(|other| !Arc::ptr_eq(other, place));
    }

    /// Begins a request, which [`Place::end`] ends.
    pub(super) fn begin(&self, place: &Place, frame: &Frame<'_>) {
        let request = Request { unique: frame.unique(), process: frame.process() };
        *lock(&place.request) = Some(request);
        // A watch that fell asleep before it could see the request has said so before.
        if self.is_asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Looks at requests until the end.
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

    /// Waits until it is time to look again; false at the end.
    fn pause(&self) -> bool {
        let mut state = self.lock();
        while self.is_asleep.load(Ordering::Relaxed) && !state.ended {
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let waited = self.woken.wait_timeout_while(state, PERIOD, |state| !state.ended);
        !waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Serving has ended.
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

    /// The request is about to be answered.
    pub(super) fn end(&self) {
        *lock(&self.request) = None;
    }

    /// Answers a request whose caller was killed.
    fn interrupt(&self, request: Request) {
        // It may have been answered meanwhile, and is not known to the kernel any more.
        let _ = self.device.send(&encode::header(request.unique.0, Err(Errno::INTR)), &[]);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a thread is about to end by a signal. Not, if it cannot be seen, as in another PID namespace.
fn is_killed(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    has_sigkill(&status)
}

/// Whether SIGKILL is among the signals that wait for a thread. Another signal that ends a process has become
/// that, too.
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
