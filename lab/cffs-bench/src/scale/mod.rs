//! How costs grow with more clients, longer directories, larger trees and larger volumes.
//!
//! Each part does the same work at several sizes, and records the costs of each step. [`growth`] judges the
//! costs: none may grow faster than n log n. Programs are run as by a user, and measured from outside
//! ([`program`]). The directory is measured in the library, where instructions can be counted.
//!
//! - [`growth`]: costs, and the arithmetic of their growth: pure;
//! - [`program`]: the costs of a program and of a server;
//! - [`stream`]: the archive from which a tree is extracted;
//! - [`clients`], [`directory`], [`tree`], [`volume`]: the parts;
//! - [`report`]: the document.

pub mod clients;
pub mod directory;
pub mod growth;
pub mod program;
pub mod report;
pub mod stream;
pub mod tree;
pub mod volume;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::Serialize;

use growth::Sample;

/// A question about scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Clients at the same time, on warm caches.
    Clients,
    /// Names in one directory.
    Directory,
    /// Files in a tree.
    Tree,
    /// Bytes of a volume that is 60% full.
    Volume,
}

/// The sizes of each part, ascending. A part without sizes is left out.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    pub clients: Vec<u64>,
    pub names: Vec<u64>,
    pub files: Vec<u64>,
    pub volumes_gib: Vec<u64>,
}

impl Sizes {
    /// The sizes of the full report.
    pub fn full() -> Sizes {
        Sizes {
            clients: vec![1, 2, 4, 8, 16],
            names: vec![1_000, 10_000, 100_000, 1_000_000],
            files: vec![10_000, 100_000, 1_000_000, 10_000_000],
            volumes_gib: vec![1, 32, 1024],
        }
    }

    pub fn quick() -> Sizes {
        Sizes {
            clients: vec![1, 2, 4],
            names: vec![1_000, 10_000, 100_000],
            files: vec![1_000, 10_000, 100_000],
            volumes_gib: vec![1, 32],
        }
    }

    pub fn of(part: Part, sizes: &[u64]) -> Sizes {
        let all = || sizes.to_vec();
        Sizes { clients: all(), names: all(), files: all(), volumes_gib: all() }.only(&[part])
    }

    pub fn only(self, parts: &[Part]) -> Sizes {
        let pick = |part, sizes| if parts.contains(&part) { sizes } else { Vec::new() };
        Sizes {
            clients: pick(Part::Clients, self.clients),
            names: pick(Part::Directory, self.names),
            files: pick(Part::Tree, self.files),
            volumes_gib: pick(Part::Volume, self.volumes_gib),
        }
    }
}

/// The parts and sizes to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    pub sizes: Sizes,
    /// Operations of each kind, over all clients.
    pub operations: u64,
    /// The number of small files that are created on a mounted volume and before a crash.
    pub small_files: u64,
    /// The directory for images.
    pub scratch: PathBuf,
    /// The directory for the disks of the clients' volumes; should be a tmpfs.
    pub memory: PathBuf,
    pub cffs: PathBuf,
}

#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The samples, in the order in which they were measured.
    pub samples: Vec<Sample>,
    /// The parts that could not be measured, with reasons.
    pub failures: Vec<String>,
}

impl Plan {
    /// Runs everything, or until `interrupt` is set.
    pub fn run(&self, interrupt: &AtomicBool) -> Measured {
        let mut measured = Measured::default();
        let mut take = |what: String, samples: Result<Vec<Sample>>| match samples {
            Ok(samples) => measured.samples.extend(samples),
            Err(error) => {
                eprintln!("{what}: {error:#}");
                measured.failures.push(format!("{what}: {error:#}"));
            }
        };
        let go_on =
            || if interrupt.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) };
        for &count in &self.sizes.clients {
            let samples = go_on().and_then(|()| clients::measure(self, count, interrupt));
            take(format!("{count} clients"), samples);
        }
        for &names in &self.sizes.names {
            let samples = go_on().and_then(|()| directory::measure(names));
            take(format!("a directory of {names} names"), samples);
        }
        for &files in &self.sizes.files {
            let samples = go_on().and_then(|()| tree::measure(self, files));
            take(format!("a tree of {files} files"), samples);
        }
        for &gib in &self.sizes.volumes_gib {
            let samples = go_on().and_then(|()| volume::measure(self, gib));
            take(format!("a volume of {gib} GiB"), samples);
        }
        measured
    }
}

/// Prints the current step.
fn announce(what: &str) {
    eprintln!("scale: {what}");
}
