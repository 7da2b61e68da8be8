//! Instructions of a thread, counted by the processor: what software costs, whatever else the
//! machine does at the time.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// Counts the instructions of the thread that made it, those of the kernel left out.
///
/// Many virtual machines have no such counter, and a kernel may keep it to itself.
pub struct Instructions(io::Result<Counter>);

impl Instructions {
    /// Counts from now on.
    pub fn start() -> Instructions {
        let counter = Builder::new(Hardware::INSTRUCTIONS).build();
        Instructions(counter.and_then(|mut counter| counter.enable().map(|()| counter)))
    }

    /// How many there were so far; `None` if they cannot be counted.
    pub fn so_far(&mut self) -> Option<u64> {
        self.0.as_mut().ok()?.read().ok()
    }

    /// Why they cannot be counted, if so.
    pub fn obstacle(&self) -> Option<&io::Error> {
        self.0.as_ref().err()
    }
}
