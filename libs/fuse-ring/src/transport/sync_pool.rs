//! A thread pool for requests that wait for the device: `FSYNC` and the like.
//!
//! If a thread that reads `/dev/fuse` served these itself, it could not read other callers' requests while it
//! waits, although these could share the same flush. So these requests are passed to separate threads, and
//! many callers can wait for one write.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::answer::{cut, reply};
use super::device::Device;
use super::waiting::{Place, Waiting};
use crate::Handler;
use crate::dispatch::Dispatcher;
use crate::protocol::{Frame, Opcode};

/// The most callers that wait concurrently; others queue.
pub(crate) const THREADS: usize = 32;

struct Job {
    /// The descriptor from which the request was read, and on which it must be answered.
    device: Arc<Device>,
    place: Arc<Place>,
    message: Vec<u8>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    ended: bool,
}

/// The queued requests.
#[derive(Default)]
pub(crate) struct SyncPool {
    state: Mutex<State>,
    changed: Condvar,
}

impl SyncPool {
    /// Whether a request should be passed to the pool.
    pub(crate) fn is_for(opcode: Option<Opcode>) -> bool {
        matches!(opcode, Some(Opcode::Fsync | Opcode::FsyncDir | Opcode::SyncFs))
    }

    /// Queues a request.
    pub(crate) fn put(
        &self,
        device: &Arc<Device>,
        waiting: &Waiting,
        frame: &Frame<'_>,
        message: &[u8],
    ) {
        let place = waiting.enter(device);
        waiting.begin(&place, frame);
        let job = Job { device: Arc::clone(device), place, message: message.to_vec() };
        self.state.lock().unwrap_or_else(PoisonError::into_inner).jobs.push_back(job);
        self.changed.notify_one();
    }

    /// Records that no more requests will come.
    pub(crate) fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.changed.notify_all();
    }

    /// Serves requests until the end.
    pub(crate) fn serve<H: Handler>(
        &self,
        dispatcher: &Dispatcher<H>,
        waiting: &Waiting,
    ) -> io::Result<()> {
        while let Some(job) = self.next() {
            let frame = cut(dispatcher, &job.message)?;
            // These answers consist of a header only.
            let replied = reply(dispatcher, &job.device, &frame, &mut []);
            waiting.leave(&job.place);
            replied?;
        }
        Ok(())
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.ended {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
