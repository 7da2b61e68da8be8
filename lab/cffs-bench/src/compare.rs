//! The comparison: runs every workload on every peer, several times.
//!
//! Peers take turns within a repetition, so that other load on the machine affects all of them. Each run
//! starts on a new volume. Results are recorded as soon as they are known, so that an interrupted comparison
//! still reports them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::disk::{Profile, Stroke};
use crate::library;
use crate::peer::{Peer, Transport, Volume, VolumeSpec};
use crate::placement::Placement;
use crate::results::{Failure, Results};
use crate::workload::catalog::{Scale, Workload};
use crate::workload::contents::Contents;
use crate::workload::{Phase, Session};

/// The peers and workloads of a comparison.
#[derive(Clone, Debug)]
pub struct Plan {
    pub profile: Profile,
    /// The placement of volumes on the device.
    pub stroke: Stroke,
    /// The file systems.
    pub peers: Vec<Peer>,
    pub workloads: Vec<Workload>,
    pub scale: Scale,
    pub repetitions: u32,
    /// The longest duration of a phase that only reads.
    pub read_time_max: Duration,
    /// The seed of all random choices. Each repetition adds one to it.
    pub seed: u64,
    /// The contents of files; `None` for noise.
    pub contents: Option<Contents>,
    /// The directory for backing files.
    pub scratch: PathBuf,
    pub cffs: PathBuf,
    /// The transport of FUSE requests.
    pub transport: Transport,
    /// The placement of threads on cores.
    pub placement: Placement,
}

impl Plan {
    /// Whether the comparison measures the gain of a journal.
    pub fn has_journal(&self) -> bool {
        self.peers.contains(&Peer::CffsNoJournal)
    }

    /// Runs everything, or until `interrupt` is set.
    pub fn run(&self, interrupt: &AtomicBool) -> Results {
        let mut results = Results::default();
        let total = u64::from(self.repetitions) * (self.workloads.len() * self.peers.len()) as u64;
        let overall = bar("{elapsed_precise} {wide_bar} {pos}/{len} runs, {eta} left");
        overall.set_length(total);
        for repetition in 0..self.repetitions {
            for &workload in &self.workloads {
                for &peer in &self.peers {
                    if interrupt.load(Ordering::Relaxed) {
                        return results;
                    }
                    overall.inc(1);
                    let applies = match peer {
                        Peer::Null => workload.is_hot() || workload.has_fuse_limit(),
                        // The only workload with bars that changes nothing after its preparation.
                        Peer::Squashfs | Peer::Erofs => workload == Workload::FreshTree,
                        // The bar of the library is for one thread.
                        Peer::Library => workload == Workload::Hot1,
                        // Data that is not made durable immediately bypasses the journal.
                        Peer::CffsJournalDevice => {
                            !matches!(workload, Workload::Unpack | Workload::LargeFile)
                        }
                        _ => true,
                    };
                    if !applies {
                        continue;
                    }
                    let seed = self.seed + u64::from(repetition);
                    match self.run_one(workload, peer, seed, interrupt) {
                        Ok((phases, request_kib)) => {
                            results.request_kib = request_kib.or(results.request_kib);
                            results.add(workload, peer, phases);
                        }
                        Err(_) if interrupt.load(Ordering::Relaxed) => return results,
                        Err(error) => {
                            let reason = format!("{error:#}");
                            overall.suspend(|| {
                                eprintln!("{} on {peer}: {reason}", workload.name());
                            });
                            results.failures.push(Failure { workload, peer, reason });
                        }
                    }
                }
            }
        }
        overall.finish_and_clear();
        results
    }

    fn run_one(
        &self,
        workload: Workload,
        peer: Peer,
        seed: u64,
        interrupt: &AtomicBool,
    ) -> anyhow::Result<(Vec<Phase>, Option<u64>)> {
        if peer == Peer::Library {
            return Ok((library::hot(workload.hot(self.scale, seed))?, None));
        }
        let mut volume = Volume::make(VolumeSpec {
            peer,
            profile: self.profile,
            stroke: self.stroke,
            size: workload.volume_size(self.scale),
            scratch: self.scratch.clone(),
            cffs: self.cffs.clone(),
            transport: self.transport,
        })?;
        let request_kib = volume.request_kib()?;
        let progress = bar("  {prefix}: {msg} {wide_bar} {pos}/{len} {per_sec}");
        progress.set_prefix(format!("{} on {peer}", workload.name()));
        let mut session = Session::new(&mut volume, interrupt, progress, self.read_time_max)
            .with_contents(self.contents.clone());
        workload.run(&mut session, self.scale, seed)?;
        let phases = session.finish();
        volume.dismantle()?;
        Ok((phases, Some(request_kib)))
    }
}

/// A progress bar that draws nothing without a terminal.
pub fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
