//! The threads that execute calls, shared by all connections, so that calls that wait for the device share
//! its writes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(test)]
mod tests;

/// A call to execute.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end when all jobs given to them are done.
pub(super) struct Pool {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The waiting jobs. One idle thread is woken at a time: after it has taken a job, it wakes the next one if
/// more jobs wait. So few threads do quick calls that arrive together, and all threads do calls that wait for
/// the device.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// The number of idle threads, including one that was woken.
    idle: usize,
    /// Whether a woken thread has not looked for a job yet.
    is_waking: bool,
    /// Whether no more jobs will come.
    has_ended: bool,
}

impl Jobs {
    /// Whether to wake another thread.
    fn wakes_another(&mut self) -> bool {
        let wakes = !self.waiting.is_empty() && self.idle > 0 && !self.is_waking;
        self.is_waking |= wakes;
        wakes
    }
}

impl Pool {
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

    /// Queues a job; false if the pool has ended.
    pub fn run(&self, job: Job) -> bool {
        let mut jobs = self.queue.jobs.lock();
        if jobs.has_ended {
            return false;
        }
        jobs.waiting.push_back(job);
        self.queue.go_on(jobs);
        true
    }

    /// Ends the threads, and waits until they have done all queued jobs.
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
