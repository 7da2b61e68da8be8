//! The threads that execute calls, shared by all connections, so that calls that wait for the device share
//! its writes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(test)]
mod tests;

/// A call to be carried out.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end when all that was given to them is done.
pub(super) struct Pool {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The jobs that wait. One idle thread is woken at a time: it wakes the next one when it has taken a job and
/// others wait. So few threads do quick calls that arrive together, and all threads do calls that wait for
/// the device.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Threads that have nothing to do, with the one that was woken.
    idle: usize,
    /// One was woken, and has not looked yet.
    is_waking: bool,
    /// No more will come.
    has_ended: bool,
}

impl Jobs {
    /// Whether another thread is to be woken.
    fn wakes_another(&mut self) -> bool {
        let wakes = !self.waiting.is_empty() && self.idle > 0 && !self.is_waking;
        self.is_waking |= wakes;
        wakes
    }
}

impl Pool {
    /// Starts `count` threads.
    pub fn start(count: usize) -> std::io::Result<Pool> {
        let pool = Pool { queue: Arc::default(), threads: Mutex::default() };
        for number in 0..count {
            let queue = Arc::clone(&pool.queue);
            let builder = thread::Builder::new().name(format!("nfs {number}"));
            match builder.spawn(move || queue.work()) {
                Ok(thread) => pool.threads.lock().push(thread),
                Err(error) => {
                    pool.end();
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }

    /// Has a job done; false if the pool has ended.
    pub fn run(&self, job: Job) -> bool {
        let mut jobs = self.queue.jobs.lock();
        if jobs.has_ended {
            return false;
        }
        jobs.waiting.push_back(job);
        self.queue.go_on(jobs);
        true
    }

    /// Ends when all that was given is done.
    pub fn end(&self) {
        self.queue.jobs.lock().has_ended = true;
        self.queue.changed.notify_all();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the NFS server has panicked");
            }
        }
    }
}

impl Queue {
    fn work(&self) {
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        while jobs.waiting.is_empty() && !jobs.has_ended {
            jobs.idle += 1;
            self.changed.wait(&mut jobs);
            jobs.idle -= 1;
            jobs.is_waking = false;
        }
        let job = jobs.waiting.pop_front();
        self.go_on(jobs);
        job
    }

    fn go_on(&self, mut jobs: MutexGuard<'_, Jobs>) {
        let wakes = jobs.wakes_another();
        drop(jobs);
        if wakes {
            self.changed.notify_one();
        }
    }
}
