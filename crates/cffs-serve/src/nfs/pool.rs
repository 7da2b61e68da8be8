//! Threads that carry calls out: shared by all connections, so that calls that wait for the device wait
//! for the same write of it.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

/// A call to be carried out.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads. Dropped, they end when all that was given to them is done.
pub(super) struct Pool {
    jobs: Mutex<Option<Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// Starts so many threads.
    pub fn start(count: usize) -> std::io::Result<Pool> {
        let (sender, receiver) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let start = |number| {
            let receiver: Arc<Mutex<Receiver<Job>>> = Arc::clone(&receiver);
            thread::Builder::new().name(format!("nfs {number}")).spawn(move || work(&receiver))
        };
        let threads = (0..count).map(start).collect::<std::io::Result<_>>()?;
        Ok(Pool { jobs: Mutex::new(Some(sender)), threads: Mutex::new(threads) })
    }

    /// Has a job done; false if the pool has ended.
    pub fn run(&self, job: Job) -> bool {
        self.jobs.lock().as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Ends when all that was given is done.
    pub fn end(&self) {
        self.jobs.lock().take();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the NFS server has panicked");
            }
        }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        // Bound to a name, the lock is given back before the job is done.
        let job = jobs.lock().recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
