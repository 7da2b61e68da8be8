//! Which threads run on which cores while something is measured.
//!
//! The emulated disk has the last core, so that it does not wander. Everything else (the workload
//! and the programs that it starts, file-system servers, the kernel's threads) runs where the
//! scheduler puts it, as it would for any user of the file system.

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

    /// Puts the calling thread, and those that it will start, where the disk belongs.
    pub fn pin_disk(self) {
        pin(self.cores - 1);
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "The emulated disk runs on core {}, everything else anywhere.", self.cores - 1)
    }
}

/// Keeps the calling thread on a core. One that cannot be had (containers may forbid it) leaves it
/// where it is.
pub fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}
