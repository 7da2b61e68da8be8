//! Operations of several clients at the same time on warm caches: on C-FFS over FUSE, on a server that does
//! nothing, and on ext4 in the kernel.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};

use super::growth::{Costs, Measure, Sample};
use super::{Part, Plan, announce};
use crate::compare;
use crate::disk::{Profile, Stroke};
use crate::peer::{Peer, Transport, Volume, VolumeSpec};
use crate::workload::Session;
use crate::workload::hot::Hot;

pub const PEERS: [Peer; 3] = [Peer::Cffs, Peer::Null, Peer::Ext4];
/// The phases of the report.
pub const PHASES: [&str; 4] = ["create+write", "open+read", "stat", "unlink"];
/// The size of a volume: large enough for the inodes of all phases in ext4.
const VOLUME_BYTES: u64 = 4 << 30;

/// Measures `clients` clients on each peer. A cost is the cost of `operations` by each client, so it grows
/// linearly if several clients together are no faster than one.
pub fn measure(plan: &Plan, clients: u64, interrupt: &AtomicBool) -> Result<Vec<Sample>> {
    Transport::Rings.prepare()?;
    let mut samples = Vec::new();
    for peer in PEERS {
        announce(&format!("{clients} clients on {peer}"));
        let of_it = one(plan, clients, peer, interrupt).with_context(|| format!("on {peer}"))?;
        samples.extend(of_it);
    }
    Ok(samples)
}

fn one(plan: &Plan, clients: u64, peer: Peer, interrupt: &AtomicBool) -> Result<Vec<Sample>> {
    let mut volume = Volume::make(VolumeSpec {
        peer,
        profile: Profile::None,
        stroke: Stroke::Whole,
        size: VOLUME_BYTES,
        scratch: plan.memory.clone(),
        cffs: plan.cffs.clone(),
        transport: Transport::Rings,
    })?;
    let progress = compare::bar("  {msg} {wide_bar} {pos}/{len} {per_sec}");
    let mut session = Session::new(&mut volume, interrupt, progress, Duration::MAX);
    let hot = Hot { operations: plan.operations, clients, pinned: false, seed: 1 };
    hot.run(&mut session)?;
    let phases = session.finish();
    volume.dismantle()?;
    let of_report = phases.iter().filter(|phase| PHASES.contains(&phase.name.as_str()));
    Ok(of_report
        .map(|phase| {
            let seconds = clients as f64 * plan.operations as f64 / phase.files_per_sec();
            Sample {
                part: Part::Clients,
                step: step(&phase.name, peer),
                size: clients,
                work: Some(plan.operations),
                costs: Costs::from([(Measure::Seconds, seconds)]),
            }
        })
        .collect())
}

pub fn step(phase: &str, peer: Peer) -> String {
    format!("{phase}, {peer}")
}
