//! A lane of its own for requests that wait for the device: `FSYNC` and its kind.
//!
//! A thread that reads `/dev/fuse` and served these itself would be missing for as long as the device
//! takes, and with it the other callers' next requests, which would have shared the wait. So these
//! requests go to threads that do nothing else, and many callers can wait for one write.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

use super::answer::{cut, reply};
use super::device::Device;
use crate::Handler;
use crate::dispatch::Dispatcher;
use crate::protocol::Opcode;

/// Callers that can wait at once; more of them queue.
pub(crate) const THREADS: usize = 32;

struct Job<'d> {
    /// Where the request was read, and must be answered.
    device: &'d Device,
    message: Vec<u8>,
}

#[derive(Default)]
struct State<'d> {
    jobs: VecDeque<Job<'d>>,
    ended: bool,
}

/// The requests that wait to be served.
#[derive(Default)]
pub(crate) struct Lane<'d> {
    state: Mutex<State<'d>>,
    changed: Condvar,
}

impl<'d> Lane<'d> {
    /// Whether a request belongs here.
    pub(crate) fn is_for(opcode: Option<Opcode>) -> bool {
        matches!(opcode, Some(Opcode::Fsync | Opcode::FsyncDir | Opcode::SyncFs))
    }

    /// Leaves a request to the lane.
    pub(crate) fn put(&self, device: &'d Device, message: &[u8]) {
        let job = Job { device, message: message.to_vec() };
        self.state.lock().unwrap_or_else(PoisonError::into_inner).jobs.push_back(job);
        self.changed.notify_one();
    }

    /// Nothing more will come.
    pub(crate) fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.changed.notify_all();
    }

    /// Serves what comes until the end.
    pub(crate) fn serve<H: Handler>(&self, dispatcher: &Dispatcher<H>) -> io::Result<()> {
        while let Some(job) = self.next() {
            let frame = cut(dispatcher, &job.message)?;
            // These answers are a header and nothing else.
            reply(dispatcher, job.device, &frame, &mut [])?;
        }
        Ok(())
    }

    fn next(&self) -> Option<Job<'d>> {
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
