//! The bars: goals of C-FFS, each for a figure of one run.

use serde::Serialize;

use super::summary::{Row, Summary};
use crate::disk::Profile;
use crate::peer::Peer;
use crate::workload::catalog::Workload;

/// The quantity that a bar limits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    /// Files per second over the best of ext4, XFS and btrfs.
    OverBestPeer,
    /// Files per second of C-FFS with its journal on a device without delays, over the best of ext4, XFS and
    /// btrfs.
    JournalDeviceOverBestPeer,
    /// Files per second of C-FFS.
    FilesPerSec,
    /// Flushes per file of C-FFS, at most.
    FlushesPerFile,
    /// The share of the device's busy time that C-FFS spends writing its journal to its places, at most.
    JournalHomeShare,
    /// The time of C-FFS over that without a journal, at most.
    OverNoJournal,
    /// Files per second over those of another peer.
    Over(Peer),
    /// Files per second of a client on any core, over those of one that is pinned to a core.
    OverPinned(Peer),
    /// Files per second of the library over those of ext4 through system calls.
    LibraryOverExt4,
    /// Files per second over C-FFS with all of its techniques off.
    OverPlain,
    /// Requests per file of C-FFS with its techniques off, over those of C-FFS.
    RequestsUnderPlain,
    MegabytesPerSec,
    /// Megabytes of contents per second, of C-FFS that compresses them.
    CompressedMegabytesPerSec,
    /// Files per second of C-FFS that compresses contents, over the best of ext4, XFS and btrfs without
    /// compression.
    CompressedOverBestPlain,
    /// Files per second of C-FFS that compresses contents, over those of another peer.
    CompressedOver(Peer),
    /// Contents moved per second, over the device's streaming rate.
    OfLimit,
    /// Contents moved per second, over those when the same file system reads one large file.
    OfLargeFile,
    /// Requests per file, at most.
    RequestsPerFile,
}

/// A bar: at least `goal` (at most, if a small figure is better) in a phase of a workload.
struct Bar(Workload, &'static str, Figure, f64);

use Figure::{
    CompressedMegabytesPerSec, CompressedOver, CompressedOverBestPlain, FilesPerSec,
    FlushesPerFile, JournalDeviceOverBestPeer, JournalHomeShare, LibraryOverExt4, MegabytesPerSec,
    OfLargeFile, OfLimit, Over, OverBestPeer, OverNoJournal, OverPinned, OverPlain,
    RequestsPerFile, RequestsUnderPlain,
};
use Workload as W;

const ON_7200_RPM: &[Bar] = &[
    Bar(W::Small1k, "create", OverBestPeer, 1.0),
    Bar(W::Small1k, "read", OverBestPeer, 8.0),
    Bar(W::Small1k, "read shuffled", OverBestPeer, 25.0),
    Bar(W::Small1k, "overwrite", OverBestPeer, 1.5),
    Bar(W::Small1k, "remove", OverBestPeer, 1.5),
    Bar(W::Small4k, "create", OverBestPeer, 1.2),
    Bar(W::Small4k, "read", OverBestPeer, 8.0),
    Bar(W::Small4k, "read shuffled", OverBestPeer, 70.0),
    Bar(W::Small4k, "overwrite", OverBestPeer, 2.0),
    Bar(W::Small4k, "remove", OverBestPeer, 2.0),
    Bar(W::Small16k, "read", OfLimit, 0.92),
    Bar(W::Small16k, "read shuffled", OverBestPeer, 30.0),
    Bar(W::AgedTree, "scan", OverBestPeer, 30.0),
    Bar(W::AgedTree, "scan", MegabytesPerSec, 90.0),
    Bar(W::AgedTree, "find", OverBestPeer, 0.8),
    Bar(W::AgedTree, "du", OverBestPeer, 2.5),
    Bar(W::FreshTree, "scan", RequestsPerFile, 0.02),
    Bar(W::AgedTree, "scan", RequestsPerFile, 0.15),
    Bar(W::DurableTiny, "write+fsync", OverBestPeer, 1.9),
    Bar(W::Durable4k, "write+fsync", OverBestPeer, 2.5),
    Bar(W::LargeFile, "write", OverBestPeer, 0.97),
    Bar(W::LargeFile, "read", OverBestPeer, 0.97),
    Bar(W::LargeFile, "overwrite", OverBestPeer, 0.97),
    Bar(W::Apps, "unpack", OverBestPeer, 1.0),
    Bar(W::Apps, "search", OverBestPeer, 3.0),
    Bar(W::Apps, "git status", OverBestPeer, 1.5),
    Bar(W::Apps, "build", OverBestPeer, 1.0),
    Bar(W::Apps, "rm -rf", OverBestPeer, 1.5),
    // XFS and btrfs share the contents of a copy by default.
    Bar(W::Apps, "copy", Over(Peer::Ext4), 2.0),
    Bar(W::Apps, "copy unshared", Over(Peer::Xfs), 0.8),
];

const ON_NETWORK_VOLUME: &[Bar] = &[
    Bar(W::AgedTree, "scan", OverBestPeer, 10.0),
    Bar(W::Apps, "unpack", OverBestPeer, 2.0),
    Bar(W::Small4k, "read shuffled", OverBestPeer, 20.0),
];

const ON_SOLID_STATE_DISK: &[Bar] = &[
    Bar(W::AgedTree, "scan", OverBestPeer, 1.0),
    Bar(W::Apps, "unpack", Over(Peer::Ext4), 0.45),
    Bar(W::Apps, "copy", Over(Peer::Ext4), 0.45),
];

const COMPRESSED_ON_7200_RPM: &[Bar] = &[
    Bar(W::FreshTree, "scan", CompressedMegabytesPerSec, 320.0),
    Bar(W::AgedTree, "scan", CompressedOverBestPlain, 50.0),
    Bar(W::AgedTree, "scan", CompressedOver(Peer::BtrfsCompressed), 50.0),
    Bar(W::Apps, "search", CompressedOverBestPlain, 4.0),
    Bar(W::Apps, "search", CompressedOver(Peer::BtrfsCompressed), 2.5),
    Bar(W::Apps, "copy", CompressedOver(Peer::Btrfs), 1.0),
];

const COMPRESSED_ON_NETWORK_VOLUME: &[Bar] = &[
    Bar(W::Unpack, "unpack", CompressedOverBestPlain, 2.0),
    Bar(W::AgedTree, "scan", CompressedOverBestPlain, 10.0),
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

/// The goals for a journal. `through` is set for a drive without a write cache, in which each write waits for
/// a rotation.
fn with_journal(through: bool) -> Vec<Bar> {
    let pick = |cached, written_through| if through { written_through } else { cached };
    let gains = [
        (W::Durable4k1, "write+fsync", pick(8.0, 4.0)),
        (W::DurableTiny, "write+fsync", pick(8.0, 4.0)),
        (W::Durable4k, "write+fsync", pick(6.0, 3.5)),
        (W::SqliteRollback, "transactions", pick(2.0, 1.5)),
        (W::SqliteWal, "transactions", pick(2.0, 1.5)),
        (W::Delivery, "deliver", pick(3.0, 2.0)),
    ];
    let on_disk = gains.map(|(w, phase, goal)| Bar(w, phase, OverBestPeer, goal));
    let apart = [W::Durable4k1, W::DurableTiny, W::Durable4k]
        .map(|w| Bar(w, "write+fsync", JournalDeviceOverBestPeer, 10.0));
    let others = [
        Bar(W::Durable4k, "write+fsync", FilesPerSec, 800.0),
        Bar(W::Delivery, "deliver", FlushesPerFile, 2.0),
        Bar(W::Durable4k1, "write+fsync", JournalHomeShare, 0.1),
        Bar(W::Durable4k, "write+fsync", JournalHomeShare, 0.1),
        Bar(W::Unpack, "unpack", OverNoJournal, 1.02),
        Bar(W::LargeFile, "write", OverNoJournal, 1.02),
    ];
    on_disk.into_iter().chain(apart).chain(others).collect()
}

/// Judges the bars of a journal for which there is a measurement.
pub fn judge_journal(profile: Profile, summary: &Summary) -> Vec<Verdict> {
    let bars = match profile {
        Profile::Hdd7200 => with_journal(false),
        Profile::Hdd7200WriteThrough => with_journal(true),
        _ => Vec::new(),
    };
    bars.iter().filter_map(|bar| bar.judge(summary)).collect()
}

/// Judges the bars of compressed contents for which there is a measurement.
pub fn judge_compressed(profile: Profile, summary: &Summary) -> Vec<Verdict> {
    let bars = match profile {
        Profile::Hdd7200 => COMPRESSED_ON_7200_RPM,
        Profile::Net3000 => COMPRESSED_ON_NETWORK_VOLUME,
        _ => &[],
    };
    bars.iter().filter_map(|bar| bar.judge(summary)).collect()
}

/// The phases of the operations on warm caches, and the goal of C-FFS with two clients relative to ext4 in
/// the kernel, if there is one.
const IN_MEMORY: [(&str, Option<f64>); 5] = [
    ("create", Some(0.6)),
    ("create+write", Some(0.5)),
    ("open+read", Some(0.5)),
    ("stat", None),
    ("unlink", Some(0.5)),
];

fn in_memory() -> Vec<Bar> {
    let bars = |(phase, of_ext4): (&'static str, Option<f64>)| {
        [
            Some(Bar(W::Hot1, phase, Over(Peer::Null), 0.85)),
            Some(Bar(W::Hot2, phase, Over(Peer::Null), 0.85)),
            of_ext4.map(|goal| Bar(W::Hot2, phase, Over(Peer::Ext4), goal)),
            Some(Bar(W::Hot1, phase, OverPinned(Peer::Null), 0.8)),
            Some(Bar(W::Hot1, phase, OverPinned(Peer::Cffs), 0.8)),
            Some(Bar(W::Hot1, phase, LibraryOverExt4, 2.0)),
        ]
    };
    IN_MEMORY.into_iter().flat_map(bars).flatten().collect()
}

/// A bar over other file systems requires at most this share of the rate of a server that does nothing.
const OF_FUSE_LIMIT: f64 = 0.75;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The goal in words.
    pub bar: String,
    /// The goal as a number, limited to a share of `fuse_limit`.
    pub goal: f64,
    pub measured: f64,
    /// Whether the goal is met.
    pub met: bool,
    /// The value of a FUSE server that does nothing and has no device: an upper bound for all others.
    pub fuse_limit: Option<f64>,
}

/// Judges every bar for which there is a measurement.
pub fn judge(profile: Profile, summary: &Summary) -> Vec<Verdict> {
    let in_memory = in_memory();
    let bars = match profile {
        Profile::Hdd7200 => ON_7200_RPM,
        Profile::St31200 | Profile::AtlasIi => ON_PAPERS_DISKS,
        Profile::None => &in_memory,
        Profile::Net3000 => ON_NETWORK_VOLUME,
        Profile::Nvme => ON_SOLID_STATE_DISK,
        Profile::HpC3653a | Profile::Barracuda | Profile::Hdd7200WriteThrough | Profile::Net500 => {
            &[]
        }
    };
    bars.iter().filter_map(|bar| bar.judge(summary)).collect()
}

impl Figure {
    fn unit(self) -> String {
        match self {
            OverBestPeer => String::from("× best peer"),
            JournalDeviceOverBestPeer => format!("{}, × best peer", Peer::CffsJournalDevice),
            FilesPerSec => String::from("files/s"),
            FlushesPerFile => String::from("flushes per file, at most"),
            JournalHomeShare => {
                String::from("share of the device's busy time for draining the journal, at most")
            }
            OverNoJournal => String::from("the time without a journal, at most"),
            Over(Peer::Null) => String::from("× a FUSE server that does nothing"),
            Over(peer) => format!("× {peer}"),
            OverPinned(peer) => format!("{peer}, × the same pinned to a core"),
            LibraryOverExt4 => String::from("library, × ext4"),
            OverPlain => String::from("× all techniques off"),
            RequestsUnderPlain => String::from("× fewer requests than all techniques off"),
            MegabytesPerSec => String::from("MB/s"),
            CompressedMegabytesPerSec => String::from("compressed, MB/s"),
            CompressedOverBestPlain => {
                String::from("compressed, × the best that does not compress")
            }
            CompressedOver(peer) => format!("compressed, × {peer}"),
            OfLimit => String::from("of the device's bandwidth"),
            OfLargeFile => String::from("of large-file bandwidth"),
            RequestsPerFile => String::from("requests per file, at most"),
        }
    }
}

impl Bar {
    fn judge(&self, summary: &Summary) -> Option<Verdict> {
        let &Bar(workload, phase, figure, goal) = self;
        let other = |peer| summary.find(workload, phase, peer);
        let plain = || other(Peer::CffsPlain);
        let ours = match figure {
            LibraryOverExt4 => other(Peer::Library)?,
            OverPinned(peer) => other(peer)?,
            JournalDeviceOverBestPeer => other(Peer::CffsJournalDevice)?,
            CompressedMegabytesPerSec | CompressedOverBestPlain | CompressedOver(_) => {
                other(Peer::CffsCompressed)?
            }
            _ => other(Peer::Cffs)?,
        };
        let over = |row: &Row| ours.files_per_sec / row.files_per_sec;
        let measured = match figure {
            OverBestPeer | JournalDeviceOverBestPeer => ours.ratio_to_best?,
            FilesPerSec => ours.files_per_sec,
            FlushesPerFile => ours.flushes_per_file?,
            // A journal that never filled says nothing about the steady state.
            JournalHomeShare => ours.journal_home_share.filter(|share| *share > 0.0)?,
            OverNoJournal => other(Peer::CffsNoJournal)?.files_per_sec / ours.files_per_sec,
            Over(peer) => over(other(peer)?),
            OverPinned(peer) => over(summary.find(Workload::Hot1Pinned, phase, peer)?),
            LibraryOverExt4 => over(other(Peer::Ext4)?),
            OverPlain => over(plain()?),
            RequestsUnderPlain => plain()?.requests_per_file? / ours.requests_per_file?,
            MegabytesPerSec | CompressedMegabytesPerSec => ours.megabytes_per_sec,
            CompressedOver(peer) => over(other(peer)?),
            CompressedOverBestPlain => [Peer::Ext4, Peer::Xfs, Peer::Btrfs]
                .into_iter()
                .filter_map(|peer| other(peer).map(over))
                .min_by(f64::total_cmp)?,
            OfLimit => ours.ratio_to_limit?,
            OfLargeFile => {
                let large: &Row = summary.find(Workload::LargeFile, "read", Peer::Cffs)?;
                ours.megabytes_per_sec / large.megabytes_per_sec
            }
            RequestsPerFile => ours.requests_per_file?,
        };
        let fuse_limit = match figure {
            OverBestPeer => other(Peer::Null).and_then(|null| null.ratio_to_best),
            Over(peer) if peer.is_mainstream() => {
                let null = other(Peer::Null).map(|null| null.files_per_sec);
                null.zip(other(peer)).map(|(null, peer)| null / peer.files_per_sec)
            }
            _ => None,
        };
        let goal = fuse_limit.map_or(goal, |limit| goal.min(OF_FUSE_LIMIT * limit));
        let small =
            matches!(figure, RequestsPerFile | FlushesPerFile | JournalHomeShare | OverNoJournal);
        let met = if small { measured <= goal } else { measured >= goal };
        Some(Verdict {
            bar: format!("{}: {phase}, {}", workload.name(), figure.unit()),
            goal,
            measured,
            met,
            fuse_limit,
        })
    }
}
