//! The instructions of a thread, counted by the processor: the cost of software, independent of other load.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// Counts the instructions of the thread that created it, without those of the kernel.
///
/// Many virtual machines have no such counter, and the kernel may deny access to it.
pub struct Instructions(io::Result<Counter>);

impl Instructions {
    pub fn start() -> Instructions {
        let counter = Builder::new(Hardware::INSTRUCTIONS).build();
        Instructions(counter.and_then(|mut counter| counter.enable().map(|()| counter)))
    }

    /// The number so far; `None` if instructions cannot be counted.
    pub fn so_far(&mut self) -> Option<u64> {
        self.0.as_mut().ok()?.read().ok()
    }

    /// The reason why instructions cannot be counted, if they cannot.
    pub fn obstacle(&self) -> Option<&io::Error> {
        self.0.as_ref().err()
    }
}
