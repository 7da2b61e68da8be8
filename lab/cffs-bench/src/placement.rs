//! The placement of threads on cores during a measurement.
//!
//! The emulated disk runs on the last core, so that it does not migrate. Everything else (the workload and
//! the programs that it starts, file-system servers, the kernel's threads) runs where the scheduler puts it,
//! as for any user of the file system.

use std::fmt;

use rustix::thread::{CpuSet, sched_setaffinity};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    cores: usize,
}

impl Placement {
    pub fn here() -> Placement {
        Placement { cores: std::thread::available_parallelism().map_or(1, usize::from) }
    }

    /// Moves the calling thread, and those that it will start, to the disk's core.
    pub fn pin_disk(self) {
        pin(self.cores - 1);
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "The emulated disk runs on core {}, everything else anywhere.", self.cores - 1)
    }
}

/// Keeps the calling thread on a core. Has no effect if the core is not available (containers may forbid it).
pub fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}
