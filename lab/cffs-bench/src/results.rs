//! The results of a comparison, of mounted volumes or of the library: the phases of each workload on each
//! peer, and the failures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::catalog::Workload;

/// A cell of the results: one phase of one workload on one peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    pub workload: Workload,
    /// The phase, by its position and name.
    pub phase: (usize, String),
    /// The file system.
    pub peer: Peer,
}

#[derive(Clone, Debug, Default)]
pub struct Results {
    pub cells: BTreeMap<Cell, Vec<Phase>>,
    /// The longest request in KiB that reached the disk, if there was a disk.
    pub request_kib: Option<u64>,
    /// Runs that failed, with the reason. A missing cell is always explained.
    pub failures: Vec<Failure>,
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub workload: Workload,
    /// The file system.
    pub peer: Peer,
    /// The cause of the failure.
    pub reason: String,
}

impl Results {
    /// Adds the phases of one run.
    pub fn add(&mut self, workload: Workload, peer: Peer, phases: Vec<Phase>) {
        for (i, phase) in phases.into_iter().enumerate() {
            let cell = Cell { workload, phase: (i, phase.name.clone()), peer };
            self.cells.entry(cell).or_default().push(phase);
        }
    }
}
