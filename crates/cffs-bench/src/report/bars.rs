//! The bars: what C-FFS sets out to reach, each a figure within one run.

use serde::Serialize;

use super::summary::{Row, Summary};
use crate::disk::Profile;
use crate::peer::Peer;
use crate::workload::catalog::Workload;

/// What a bar is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// Files per second over the best of ext4, XFS and btrfs.
    OverBestPeer,
    /// Files per second over a FUSE server that does nothing.
    OverNull,
    /// Files per second of the library over those of ext4 through system calls.
    LibraryOverExt4,
    /// Files per second over C-FFS with all of its techniques off.
    OverPlain,
    /// Requests per file of C-FFS with its techniques off, over ours.
    RequestsUnderPlain,
    /// Megabytes per second.
    MegabytesPerSec,
    /// Contents moved over what the device can stream.
    OfLimit,
    /// Contents moved over the reading of one large file, by the same file system.
    OfLargeFile,
    /// Requests per file: the only figure that should be small.
    RequestsPerFile,
}

/// A bar: at least `goal` (at most, for [`Figure::RequestsPerFile`]) in a phase of a workload.
struct Bar(Workload, &'static str, Figure, f64);

use Figure::{
    LibraryOverExt4, MegabytesPerSec, OfLargeFile, OfLimit, OverBestPeer, OverNull, OverPlain,
    RequestsPerFile, RequestsUnderPlain,
};
use Workload as W;

const ON_7200_RPM: &[Bar] = &[
    Bar(W::Small1k, "create", OverBestPeer, 1.0),
    Bar(W::Small1k, "read", OverBestPeer, 4.0),
    Bar(W::Small1k, "read shuffled", OverBestPeer, 6.0),
    Bar(W::Small1k, "overwrite", OverBestPeer, 2.0),
    Bar(W::Small1k, "remove", OverBestPeer, 1.0),
    Bar(W::Small4k, "create", OverBestPeer, 1.2),
    Bar(W::Small4k, "read", OverBestPeer, 4.0),
    Bar(W::Small4k, "read shuffled", OverBestPeer, 15.0),
    Bar(W::Small4k, "overwrite", OverBestPeer, 2.0),
    Bar(W::Small4k, "remove", OverBestPeer, 1.0),
    Bar(W::AgedTree, "scan", OverBestPeer, 25.0),
    Bar(W::AgedTree, "scan", MegabytesPerSec, 40.0),
    Bar(W::AgedTree, "find", OverBestPeer, 2.0),
    Bar(W::AgedTree, "du", OverBestPeer, 2.0),
    Bar(W::FreshTree, "scan", RequestsPerFile, 0.02),
    Bar(W::AgedTree, "scan", RequestsPerFile, 0.15),
    Bar(W::Small16k, "read", OfLimit, 0.9),
    Bar(W::DurableTiny, "write+fsync", OverBestPeer, 1.9),
    Bar(W::Durable4k, "write+fsync", OverBestPeer, 2.5),
    Bar(W::LargeFile, "write", OverBestPeer, 0.95),
    Bar(W::LargeFile, "read", OverBestPeer, 0.95),
    Bar(W::LargeFile, "overwrite", OverBestPeer, 0.95),
    Bar(W::Apps, "unpack", OverBestPeer, 1.0),
    Bar(W::Apps, "search", OverBestPeer, 1.0),
    Bar(W::Apps, "copy", OverBestPeer, 1.0),
    Bar(W::Apps, "rm -rf", OverBestPeer, 1.0),
];

const ON_PAPERS_DISKS: &[Bar] = &[
    Bar(W::Small1k, "create", OverPlain, 7.0),
    Bar(W::Small1k, "read", OverPlain, 7.0),
    Bar(W::Small1k, "overwrite", OverPlain, 7.0),
    Bar(W::Small1k, "create", RequestsUnderPlain, 20.0),
    Bar(W::Small1k, "read", RequestsUnderPlain, 10.0),
    Bar(W::Small1k, "overwrite", RequestsUnderPlain, 10.0),
    Bar(W::Thesis, "read", OfLargeFile, 0.95),
];

const IN_MEMORY: &[Bar] = &[
    Bar(W::Hot2, "create", OverNull, 0.85),
    Bar(W::Hot2, "create+write", OverNull, 0.85),
    Bar(W::Hot2, "open+read", OverNull, 0.85),
    Bar(W::Hot2, "stat", OverNull, 0.85),
    Bar(W::Hot2, "unlink", OverNull, 0.85),
    Bar(W::Hot1, "create", LibraryOverExt4, 2.0),
    Bar(W::Hot1, "create+write", LibraryOverExt4, 2.0),
    Bar(W::Hot1, "open+read", LibraryOverExt4, 2.0),
    Bar(W::Hot1, "stat", LibraryOverExt4, 2.0),
    Bar(W::Hot1, "unlink", LibraryOverExt4, 2.0),
];

/// The applications whose ratios are also judged together.
const TOGETHER: [&str; 4] = ["unpack", "search", "copy", "rm -rf"];

/// A bar, and whether it was met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What was asked.
    pub bar: String,
    /// The goal.
    pub goal: f64,
    /// What was measured.
    pub measured: f64,
    /// Whether that is good enough.
    pub met: bool,
    /// What a FUSE server reached that does nothing and has no device: no other can reach more.
    pub fuse_limit: Option<f64>,
}

/// Judges every bar for which there is a measurement.
pub fn judge(profile: Profile, summary: &Summary) -> Vec<Verdict> {
    let bars = match profile {
        Profile::Hdd7200 => ON_7200_RPM,
        Profile::St31200 | Profile::AtlasIi => ON_PAPERS_DISKS,
        Profile::None => IN_MEMORY,
        Profile::Net3000 | Profile::Net500 => &[],
    };
    let mut verdicts: Vec<Verdict> = bars.iter().filter_map(|bar| bar.judge(summary)).collect();
    if profile == Profile::Hdd7200 {
        verdicts.extend(applications_together(summary));
    }
    verdicts
}

impl Bar {
    fn judge(&self, summary: &Summary) -> Option<Verdict> {
        let &Bar(workload, phase, figure, goal) = self;
        let other = |peer| summary.find(workload, phase, peer);
        let plain = || other(Peer::CffsPlain);
        let ours = match figure {
            LibraryOverExt4 => other(Peer::Library)?,
            _ => other(Peer::Cffs)?,
        };
        let measured = match figure {
            OverBestPeer => ours.ratio_to_best?,
            OverNull => ours.files_per_sec / other(Peer::Null)?.files_per_sec,
            LibraryOverExt4 => ours.files_per_sec / other(Peer::Ext4)?.files_per_sec,
            OverPlain => ours.files_per_sec / plain()?.files_per_sec,
            RequestsUnderPlain => plain()?.requests_per_file? / ours.requests_per_file?,
            MegabytesPerSec => ours.megabytes_per_sec,
            OfLimit => ours.ratio_to_limit?,
            OfLargeFile => {
                let large: &Row = summary.find(Workload::LargeFile, "read", Peer::Cffs)?;
                ours.megabytes_per_sec / large.megabytes_per_sec
            }
            RequestsPerFile => ours.requests_per_file?,
        };
        let (unit, met) = match figure {
            OverBestPeer => ("× best peer", measured >= goal),
            OverNull => ("× a FUSE server that does nothing", measured >= goal),
            LibraryOverExt4 => ("library, × ext4", measured >= goal),
            OverPlain => ("× all techniques off", measured >= goal),
            RequestsUnderPlain => ("× fewer requests than all techniques off", measured >= goal),
            MegabytesPerSec => ("MB/s", measured >= goal),
            OfLimit => ("of the device's bandwidth", measured >= goal),
            OfLargeFile => ("of large-file bandwidth", measured >= goal),
            RequestsPerFile => ("requests per file, at most", measured <= goal),
        };
        let bar = format!("{}: {phase}, {unit}", workload.name());
        let fuse_limit = match figure {
            OverBestPeer => other(Peer::Null).and_then(|null| null.ratio_to_best),
            _ => None,
        };
        Some(Verdict { bar, goal, measured, met, fuse_limit })
    }
}

fn applications_together(summary: &Summary) -> Option<Verdict> {
    let measured = mean_ratio(summary, Peer::Cffs)?;
    let bar = String::from("apps: geometric mean, × best peer");
    let fuse_limit = mean_ratio(summary, Peer::Null);
    Some(Verdict { bar, goal: 3.0, measured, met: measured >= 3.0, fuse_limit })
}

/// The geometric mean of a file system's ratios to the best peer over the applications.
fn mean_ratio(summary: &Summary, peer: Peer) -> Option<f64> {
    let mut product = 1.0;
    for phase in TOGETHER {
        product *= summary.find(Workload::Apps, phase, peer)?.ratio_to_best?;
    }
    Some(f64::powf(product, 1.0 / TOGETHER.len() as f64))
}
