//! Whether small files are stored together: after years of use, and on current file systems.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cffs::files::layout::survey;
use cffs::units::InodeNo;

use super::{OF_THE_THESIS, Plan, Table, called};
use crate::compare;
use crate::disk::{Profile, Stroke};
use crate::library::Disk;
use crate::library::trees::{Tree, regroup, walk_cold};
use crate::peer::{Peer, Transport, Volume, VolumeSpec};
use crate::report::table::figure;
use crate::workload::catalog::{Scale, Workload};
use crate::workload::{Phase, Session, Site};

/// The fractions of the volumes that stay in use.
const FULL: [f64; 4] = [0.3, 0.5, 0.7, 0.9];

/// Costs of a cold scan of volumes that were filled and churned.
pub fn aged(plan: &Plan) -> Result<Vec<Table>> {
    let header = [
        "full",
        "",
        "files",
        "scattered",
        "of one directory",
        "requests per file",
        "MB/s of a scan",
    ];
    let mut table = Table::inexact(header, 2);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
    let operations = plan.pick(20_000, 1_000);
    for peer in OF_THE_THESIS {
        for full in FULL {
            let tree = Tree::Aged { full, operations };
            let (disk, files) = library.grown(peer, tree, plan.pick(100, 20))?;
            table.row(scanned(&disk, files, full, called(peer))?);
            if peer == Peer::Cffs {
                regroup(&disk)?;
                table.row(scanned(&disk, files, full, String::from("C-FFS, regrouped"))?);
            }
        }
    }
    Ok(vec![table.grouped()])
}

/// The row of a volume: the placement of its files, and the costs of a cold scan.
fn scanned(disk: &Disk, files: u64, full: f64, name: String) -> Result<[String; 7]> {
    let scan = walk_cold(disk, files, 0)?.pop().context("a scan")?;
    let layout = survey(disk.clone(), InodeNo::ROOT)?;
    let scattered: u64 = layout.directories.iter().map(|dir| dir.scattered_files).sum();
    let together = layout.of_one_key as f64 / layout.neighbours.max(1) as f64;
    Ok([
        format!("{:.0}%", full * 100.0),
        name,
        files.to_string(),
        scattered.to_string(),
        format!("{:.0}%", together * 100.0),
        figure(scan.requests_per_file().context("requests were counted")?),
        figure(scan.megabytes_per_sec()),
    ])
}

/// The longest duration of a scan of a mounted volume; requests per file do not depend on it.
const SCAN_TIME_MAX: Duration = Duration::from_secs(3);

/// Trees on current file systems, on emulated disks.
pub fn today(plan: &Plan) -> Result<Vec<Table>> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root may mount");
    }
    let header =
        ["tree", "", "behind the one before", "requests per file", "ms of the disk per file"];
    let mut table = Table::inexact(header, 2);
    let peers: &[Peer] = match plan.scale {
        Scale::Full => &[Peer::Ext4, Peer::Xfs, Peer::Btrfs, Peer::Cffs],
        Scale::Quick => &[Peer::Ext4],
    };
    for (tree, workload) in [("fresh", Workload::FreshTree), ("aged", Workload::AgedTree)] {
        for &peer in peers {
            let measured = mounted(plan, peer, workload);
            let (scan, adjacent) = measured.with_context(|| format!("{peer}, {tree}"))?;
            let busy = scan.device.unwrap_or_default().busy_secs() * 1e3 / scan.files.max(1) as f64;
            table.row([
                tree.to_owned(),
                peer.to_string(),
                adjacent.map_or("-".to_owned(), |share| format!("{:.0}%", share * 100.0)),
                figure(scan.requests_per_file().context("requests were counted")?),
                figure(busy),
            ]);
        }
    }
    Ok(vec![table.grouped()])
}

/// Scans a tree on a mounted volume. Also returns the share of files that begin where the previous file ends.
fn mounted(plan: &Plan, peer: Peer, workload: Workload) -> Result<(Phase, Option<f64>)> {
    let mut volume = Volume::make(VolumeSpec {
        peer,
        profile: Profile::Hdd7200,
        stroke: Stroke::Whole,
        size: workload.volume_size(Scale::Quick),
        scratch: PathBuf::from("/dev/shm"),
        cffs: plan.cffs.clone(),
        transport: Transport::default(),
    })?;
    let never = AtomicBool::new(false);
    let progress = compare::bar("{msg} {wide_bar} {pos}/{len}");
    let mut session = Session::new(&mut volume, &never, progress, SCAN_TIME_MAX);
    workload.run(&mut session, Scale::Quick, plan.seed)?;
    let scan = session.finish().into_iter().find(|phase| phase.name == "scan").context("a scan")?;
    volume.set_free(true);
    let adjacent = if peer.is_cffs() { None } else { Some(adjacent(volume.root())?) };
    volume.dismantle()?;
    Ok((scan, adjacent))
}

fn adjacent(root: &Path) -> Result<f64> {
    let volume = cffs_place::volume::Volume::of(root)?;
    let (directories, _) = cffs_place::tree::walk(root, true, |_| {})?;
    let found = cffs_place::predict::predict(&volume, &directories);
    let files: u64 = found.iter().map(|found| found.files).sum();
    let adjacent: u64 = found.iter().map(|found| found.adjacent).sum();
    Ok(adjacent as f64 / files.max(1) as f64)
}
