//! Whether small files lie together: after years of use, and on the file systems of today.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cffs::files::layout::survey;
use cffs::units::InodeNo;

use super::{Findings, OF_THE_THESIS, Plan, Repeats, Table, called};
use crate::compare;
use crate::disk::{Profile, Stroke};
use crate::library::Disk;
use crate::library::trees::{Tree, regroup, walk_cold};
use crate::peer::{Peer, Transport, Volume, VolumeSpec};
use crate::report::curve::{Chart, Line};
use crate::report::table::figure;
use crate::workload::catalog::{Scale, Workload};
use crate::workload::store::Store;
use crate::workload::{Phase, Session, Site};

/// How full the volumes are, and are kept.
const FULL: [f64; 4] = [0.3, 0.5, 0.7, 0.9];

/// Costs of a cold scan of volumes that were filled and churned.
pub fn aged(plan: &Plan) -> Result<Findings> {
    let header = [
        "full",
        "",
        "files",
        "scattered",
        "of one directory",
        "requests per file",
        "MB/s of a scan",
    ];
    let mut table = Table::new(header, 2).repeats(Repeats::Nearly);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
    let operations = plan.pick(20_000, 1_000);
    let mut lines = Vec::new();
    let mut mended = Vec::new();
    for peer in OF_THE_THESIS {
        let mut line = Line { name: called(peer).to_owned(), points: Vec::new() };
        for full in FULL {
            let tree = Tree::Aged { full, operations };
            let (disk, files) = library.grown(peer, tree, plan.pick(100, 20))?;
            let requests = scanned(&disk, files, (full, called(peer)), &mut table)?;
            line.points.push((full * 100.0, requests));
            if peer == Peer::Cffs {
                let without_room = regroup(&disk)?.without_room;
                let after = scanned(&disk, files, (full, "C-FFS, regrouped"), &mut table)?;
                mended.push((requests, after, without_room));
            }
        }
        lines.push(line);
    }
    let last = |peer: Peer| {
        let line = lines.iter().find(|line| line.name == called(peer));
        let (first, last) =
            line.and_then(|line| Some((line.points.first()?.1, line.points.last()?.1)))?;
        Some((last, last / first))
    };
    let [plain, ungrouped, ours] = OF_THE_THESIS.map(|peer| last(peer).unwrap_or_default());
    let verdict = if ours.0 * 5.0 <= plain.0 { "Yes" } else { "Not enough" };
    Ok(Findings {
        how: format!(
            "A volume is filled to a fraction with files of log-normal sizes (median 5 KB, mean 28 KB) in \
             random directories, then {operations} files are created and removed at that level, as the aging \
             program of USENIX'97 does. `cffs layout` says which files lie alone, and how many of the \
             files that follow each other on the disk are of one directory. Then all are read, cold. Disk: \
             `hdd7200`."
        ),
        tables: vec![table.grouped()],
        charts: vec![Chart {
            name: String::from("groups-aged"),
            title: String::from("Requests per file of a cold scan, by how full the volume is kept"),
            x_label: "percent full",
            lines,
        }],
        verdict: verdict.to_owned(),
        answer: format!(
            "On a volume that is kept {:.0}% full, a cold scan takes {} requests per file on C-FFS, {} \
             without grouping, and {} on the conventional layout: {} times as many as on C-FFS. From {:.0}% \
             to {:.0}% full, requests per file become {} times as many on C-FFS, and {} times on the \
             conventional layout. With `cffs regroup` a scan takes {} in place of {} requests per file on \
             the emptiest of these volumes, and {} in place of {} on the fullest, where {} files stay for \
             want of a free run.",
            FULL[3] * 100.0,
            figure(ours.0),
            figure(ungrouped.0),
            figure(plain.0),
            figure(plain.0 / ours.0),
            FULL[0] * 100.0,
            FULL[3] * 100.0,
            figure(ours.1),
            figure(plain.1),
            figure(mended[0].1),
            figure(mended[0].0),
            figure(mended[3].1),
            figure(mended[3].0),
            mended[3].2,
        ),
    })
}

/// Adds the row of a volume as it lies and as it is read, and returns the requests per file of a cold scan.
fn scanned(disk: &Disk, files: u64, (full, name): (f64, &str), table: &mut Table) -> Result<f64> {
    let scan = walk_cold(disk, files, 0)?.pop().context("a scan")?;
    let layout = survey(disk.clone(), InodeNo::ROOT)?;
    let scattered: u64 = layout.directories.iter().map(|dir| dir.scattered_files).sum();
    let together = layout.of_one_key as f64 / layout.neighbours.max(1) as f64;
    let requests = scan.requests_per_file().context("requests were counted")?;
    table.row([
        format!("{:.0}%", full * 100.0),
        name.to_owned(),
        files.to_string(),
        scattered.to_string(),
        format!("{:.0}%", together * 100.0),
        figure(requests),
        figure(scan.megabytes_per_sec()),
    ]);
    Ok(requests)
}

/// The longest that a scan of a mounted volume may take; requests per file do not depend on it.
const SCAN_TIME_MAX: Duration = Duration::from_secs(3);

/// Trees on the file systems of today, on emulated disks.
pub fn today(plan: &Plan) -> Result<Findings> {
    let how = String::from(
        "Volumes of this machine's kernel on an emulated disk (`hdd7200`), made and mounted with defaults: a \
         tree that was written directory by directory, and one on a volume that was filled to 80% and \
         churned (as in the next question). `place show` says how many files begin where the one before \
         them by name ends; then the tree is read cold for up to three seconds. C-FFS is mounted over FUSE.",
    );
    let header =
        ["tree", "", "behind the one before", "requests per file", "ms of the disk per file"];
    let mut table = Table::new(header, 2).repeats(Repeats::Here);
    let peers: &[Peer] = match plan.scale {
        Scale::Full => &[Peer::Ext4, Peer::Xfs, Peer::Btrfs, Peer::Cffs],
        Scale::Quick => &[Peer::Ext4],
    };
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for (tree, workload) in [("fresh", Workload::FreshTree), ("aged", Workload::AgedTree)] {
        for &peer in peers {
            let (scan, adjacent) = match mounted(plan, peer, workload) {
                Ok(measured) => measured,
                Err(error) => {
                    failures.push(error.context(format!("{peer}, {tree}")));
                    continue;
                }
            };
            let requests = scan.requests_per_file().context("requests were counted")?;
            let busy = scan.device.unwrap_or_default().busy_secs() * 1e3 / scan.files.max(1) as f64;
            table.row([
                tree.to_owned(),
                peer.to_string(),
                adjacent.map_or("-".to_owned(), |share| format!("{:.0}%", share * 100.0)),
                figure(requests),
                figure(busy),
            ]);
            found.push((tree, peer, requests, adjacent));
        }
    }
    if let (true, Some(error)) = (found.is_empty(), failures.first()) {
        return Ok(Findings::not_measured(how, error));
    }
    let failed: String =
        failures.iter().map(|error| format!(" Not measured: {error:#}.")).collect();
    let range = |tree: &str| {
        let of_it = || found.iter().filter(|row| row.0 == tree && row.1.is_mainstream());
        let requests = span(of_it().map(|row| row.2));
        let behind = span(of_it().filter_map(|row| row.3).map(|share| share * 100.0));
        (requests, behind)
    };
    let (fresh, aged) = (range("fresh"), range("aged"));
    let ours = found.iter().find(|row| row.0 == "aged" && row.1 == Peer::Cffs);
    let beside = ours.map_or_else(String::new, |row| {
        format!(" C-FFS takes {} of the aged tree.", figure(row.2))
    });
    Ok(Findings {
        how,
        tables: vec![table.grouped()],
        charts: Vec::new(),
        verdict: String::from(if aged.0.0 >= 0.5 { "Yes" } else { "Not all of them" }),
        answer: format!(
            "Of the fresh tree, {:.0}% to {:.0}% of the files lie behind the one before, and a scan takes {} \
             to {} requests per file: a kernel reads file by file, whatever lies beside. Of the aged tree, \
             {:.0}% to {:.0}% lie so, and a scan takes {} to {}.{beside}{failed}",
            fresh.1.0,
            fresh.1.1,
            figure(fresh.0.0),
            figure(fresh.0.1),
            aged.1.0,
            aged.1.1,
            figure(aged.0.0),
            figure(aged.0.1),
        ),
    })
}

/// The smallest and the largest.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| {
        (low.min(value), high.max(value))
    })
}

/// Scans a tree on a mounted volume; and of how many of its files the one before lies just in front.
fn mounted(plan: &Plan, peer: Peer, workload: Workload) -> Result<(Phase, Option<f64>)> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root may mount");
    }
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
    workload.run(&mut session, Scale::Quick, plan.seed, Store::Files)?;
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
