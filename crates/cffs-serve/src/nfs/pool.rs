//! Threads that carry calls out: shared by all connections, so that calls that wait for the device wait
//! for the same write of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

/// A call to be carried out.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end when all that was given to them is done.
pub(super) struct Pool {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What is to be done. Each job wakes one thread that has nothing to do, if there is one, and no other.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// No more will come.
    has_ended: bool,
}

impl Pool {
    /// Starts so many threads.
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
        drop(jobs);
        self.queue.changed.notify_one();
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
        self.changed.wait_while(&mut jobs, |jobs| jobs.waiting.is_empty() && !jobs.has_ended);
        jobs.waiting.pop_front()
    }
}
