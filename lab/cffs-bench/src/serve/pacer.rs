//! The emulated disk in real time.
//!
//! [`Pacer::perform`] submits a request and returns when it would have completed. Device time is real time
//! since the pacer was made. A caller that wakes late does not slow down the device: in the model, the next
//! request begins when the previous one ended. A loaded machine therefore delays each answer only by its own
//! lateness, which does not accumulate.
//!
//! The pacer has no thread of its own. One of the waiting callers is the *driver*: it sleeps until the
//! device's next event, executes it, and wakes the callers whose requests completed. When its own request is
//! done, it passes on the role. A single caller is therefore woken by its own timer, and no other thread is
//! scheduled.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::disk::{Counters, Emulator, Nanos, Profile, Request, RequestId, Stroke};

/// A device in real time, shared by the threads that serve requests.
pub struct Pacer {
    epoch: Instant,
    size: u64,
    stroke: Stroke,
    state: Mutex<State>,
}

struct State {
    emulator: Emulator,
    profile: Profile,
    /// The counters of earlier emulators, before the profile was changed.
    before: Counters,
    /// The number of submitted requests for which a thread waits or will wait.
    in_flight: usize,
    waiting: HashMap<RequestId, Arc<Condvar>>,
    done: HashMap<RequestId, Nanos>,
    /// The thread that sleeps until the next event, and the time of that event.
    driver: Option<(RequestId, Nanos)>,
}

impl Pacer {
    /// A device of `size` bytes.
    pub fn new(profile: Profile, size: u64, stroke: Stroke) -> Pacer {
        let state = State {
            emulator: Emulator::new(profile, size, stroke),
            profile,
            before: Counters::default(),
            in_flight: 0,
            waiting: HashMap::new(),
            done: HashMap::new(),
            driver: None,
        };
        Pacer { epoch: Instant::now(), size, stroke, state: Mutex::new(state) }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Submits a request and returns when it has completed.
    pub fn perform(&self, request: Request) {
        self.wait(self.submit(request));
    }

    /// Submits a request; call [`Pacer::wait`] for it.
    pub fn submit(&self, request: Request) -> RequestId {
        let mut state = self.state.lock();
        state.in_flight += 1;
        state.emulator.submit(request, self.now())
    }

    /// Returns when a request that was submitted would have completed.
    pub fn wait(&self, id: RequestId) {
        let mut state = self.state.lock();
        let mut bell: Option<Arc<Condvar>> = None;
        loop {
            state.let_happen(self.now());
            if state.done.remove(&id).is_some() {
                state.leave(id);
                return;
            }
            let bell = bell.get_or_insert_with(|| {
                let bell = Arc::new(Condvar::new());
                state.waiting.insert(id, bell.clone());
                bell
            });
            let Some(event) = state.emulator.next_event() else {
                // Every request in flight has a future completion, unless the device lost it.
                unreachable!("the device forgot a request");
            };
            let drives = match state.driver {
                Some((driver, until)) => driver == id || event < until,
                None => true,
            };
            if drives {
                state.driver = Some((id, event));
                bell.wait_until(&mut state, self.instant(event));
            } else {
                bell.wait(&mut state);
            }
        }
    }

    /// The counters of the device since it was made, over all profiles.
    pub fn counters(&self) -> Counters {
        let mut state = self.state.lock();
        // An unfinished event belongs to the thread that waits for it; only the clock is moved here.
        state.let_happen(self.now());
        state.before.plus(&state.emulator.counters())
    }

    pub fn profile(&self) -> Profile {
        self.state.lock().profile
    }

    /// Continues as another device, at rest; waits until the present device has nothing in flight. So an
    /// experiment can be prepared on a fast device.
    pub fn become_profile(&self, profile: Profile) {
        loop {
            let mut state = self.state.lock();
            state.let_happen(self.now());
            if state.in_flight == 0 {
                let before = state.before.plus(&state.emulator.counters());
                state.before = before;
                state.emulator = Emulator::new(profile, self.size, self.stroke);
                state.profile = profile;
                return;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.epoch.elapsed().as_nanos() as u64)
    }

    fn instant(&self, at: Nanos) -> Instant {
        self.epoch + Duration::from_nanos(at.0)
    }
}

impl State {
    fn let_happen(&mut self, now: Nanos) {
        for completion in self.emulator.advance(now) {
            self.done.insert(completion.id, completion.at);
            if let Some(bell) = self.waiting.get(&completion.id) {
                bell.notify_one();
            }
        }
    }

    /// Passes on the role of driver if the returning caller had it.
    fn leave(&mut self, id: RequestId) {
        self.in_flight -= 1;
        self.waiting.remove(&id);
        if self.driver.is_none_or(|(driver, _)| driver == id) {
            self.driver = None;
            if let Some(bell) = self.waiting.values().next() {
                bell.notify_one();
            }
        }
    }
}
