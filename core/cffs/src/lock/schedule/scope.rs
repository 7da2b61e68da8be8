//! Threads that a thread of a schedule starts.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Schedule, Thread, Wait, current};

/// See [`std::thread::Scope`].
pub struct Scope<'scope, 'env: 'scope> {
    scope: &'scope std::thread::Scope<'scope, 'env>,
    schedule: Option<(Arc<Schedule>, usize)>,
    started: RefCell<Vec<usize>>,
}

/// See [`std::thread::scope`].
pub fn scope<'env, T>(work: impl for<'scope, 'a> FnOnce(&'a Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|scope| {
        let scope = Scope { scope, schedule: current(), started: RefCell::default() };
        work(&scope)
        // Dropping it waits for the threads.
    })
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread, in the schedule of this one.
    pub fn spawn(&self, body: impl FnOnce() + Send + 'scope) {
        let Some((schedule, _)) = &self.schedule else {
            self.scope.spawn(body);
            return;
        };
        let number = {
            let mut state = schedule.state.lock();
            let thread = Thread::new(&mut state.random);
            state.threads.push(thread);
            state.threads.len() - 1
        };
        self.started.borrow_mut().push(number);
        let schedule = schedule.clone();
        self.scope.spawn(move || schedule.run_thread(number, body));
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        let Some((schedule, me)) = &self.schedule else { return };
        if std::thread::panicking() {
            schedule.state.lock().give_up();
        }
        for number in self.started.take() {
            let is_over = || {
                let state = schedule.state.lock();
                state.threads[number].status == super::Status::Ended || state.is_over
            };
            while !is_over() {
                schedule.wait(*me, Wait::End(number));
            }
        }
    }
}
