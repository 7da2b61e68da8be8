//! Whether small files are stored together: after years of use, and on current file systems.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cffs::clock::SystemClock;
use cffs::device::{Access, FileDevice};
use cffs::files::layout::survey;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::OpenOptions;
use cffs_place::extents;

use super::{OF_THE_THESIS, Plan, Table, called};
use crate::compare;
use crate::disk::{Profile, Stroke};
use crate::library::Disk;
use crate::library::trees::{self, Tree, regroup, walk_cold};
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
            let (disk, files) = trees::grown(&library, peer, tree, plan.pick(100, 20))?;
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
    let header = ["tree", "", "requests per file", "ms of the disk per file"];
    let mut table = Table::inexact(header, 2);
    let header =
        ["tree", "", "behind its directory", "the one before, as listed", "by name", "at best"];
    let mut adjacent = Table::inexact(header, 2);
    let peers: &[Peer] = match plan.quick {
        false => &[Peer::Ext4, Peer::Xfs, Peer::Btrfs, Peer::Cffs],
        true => &[Peer::Ext4],
    };
    for (tree, workload) in [("fresh", Workload::FreshTree), ("aged", Workload::AgedTree)] {
        for &peer in peers {
            let measured = mounted(plan, peer, workload);
            let (scan, placed) = measured.with_context(|| format!("{peer}, {tree}"))?;
            let busy = scan.device.unwrap_or_default().busy_secs() * 1e3 / scan.files.max(1) as f64;
            table.row([
                tree.to_owned(),
                peer.to_string(),
                figure(scan.requests_per_file().context("requests were counted")?),
                figure(busy),
            ]);
            let [first, listed, by_name, best] = adjacency(&placed);
            adjacent.row([tree.to_owned(), peer.to_string(), first, listed, by_name, best]);
        }
    }
    Ok(vec![table.grouped(), adjacent.grouped()])
}

/// Scans a tree on a mounted volume. Also returns the places of its files.
fn mounted(plan: &Plan, peer: Peer, workload: Workload) -> Result<(Phase, Vec<Placed>)> {
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
    let placed = if peer.is_cffs() {
        on_cffs(volume.at_rest()?)?
    } else {
        cffs_place::tree::walk(volume.root(), true, |_| {})?.0.iter().map(by_kernel).collect()
    };
    volume.dismantle()?;
    Ok((scan, placed))
}

/// A directory and its files that have blocks.
struct Placed {
    /// Where the blocks of the directory end, if it has any.
    end: Option<u64>,
    /// The names of the files, and where the blocks of each begin and end, in the order of a listing.
    files: Vec<(Vec<u8>, u64, u64)>,
}

/// A directory as the kernel reports it.
fn by_kernel(directory: &cffs_place::tree::Directory) -> Placed {
    let listed = fs::read_dir(&directory.path).into_iter().flatten().flatten();
    let files = listed.filter_map(|entry| {
        let path = entry.path();
        let file = directory.files.iter().find(|file| file.path == path)?;
        let last = file.extents.iter().rfind(|extent| extent.kind == extents::Kind::Plain)?;
        Some((entry.file_name().as_bytes().to_vec(), file.begin()?, last.physical_end()))
    });
    let last = directory.extents.iter().rfind(|extent| extent.kind == extents::Kind::Plain);
    Placed { end: last.map(extents::Extent::physical_end), files: files.collect() }
}

/// All directories on a device with C-FFS that is not in use.
fn on_cffs(device: &Path) -> Result<Vec<Placed>> {
    let device = Arc::new(FileDevice::open(device, Access::ReadOnly)?);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = cffs::vfs::Volume::open(device, Arc::new(SystemClock), options)?;
    let (mut found, mut pending) = (Vec::new(), vec![InodeNo::ROOT]);
    while let Some(dir) = pending.pop() {
        let mut listed = Vec::new();
        volume.read_dir(dir, 0, true, &mut |entry| {
            listed.push((entry.name.to_vec(), entry.ino, entry.file_type));
            true
        })?;
        let end = volume.admin().places(dir)?.last().map(|place| place.end);
        let mut files = Vec::new();
        for (name, ino, file_type) in listed {
            if file_type == FileType::Directory {
                pending.push(ino);
            } else {
                let places = volume.admin().places(ino)?;
                let ends = places.first().zip(places.last());
                files.extend(ends.map(|(first, last)| (name, first.start, last.end)));
            }
        }
        found.push(Placed { end, files });
    }
    Ok(found)
}

/// How many of the directories are followed by the first file that they list; and how many of the files begin
/// where the one before ends: as listed, by name, and in the order of the device.
fn adjacency(directories: &[Placed]) -> [String; 4] {
    let (mut first, mut directory_count, mut file_count) = (0, 0, 0);
    let mut adjacent = [0; 3];
    for Placed { end, files } in directories.iter().filter(|directory| !directory.files.is_empty())
    {
        first += u64::from(*end == Some(files[0].1));
        directory_count += 1;
        file_count += files.len() as u64;
        let (mut by_name, mut best) = (files.clone(), files.clone());
        by_name.sort();
        best.sort_by_key(|(_, begin, _)| *begin);
        for (count, files) in adjacent.iter_mut().zip([files, &by_name, &best]) {
            *count += files.windows(2).filter(|pair| pair[0].2 == pair[1].1).count() as u64;
        }
    }
    let percent = |part: u64, all: u64| format!("{:.0}%", part as f64 * 100.0 / all.max(1) as f64);
    let [listed, by_name, best] = adjacent.map(|count| percent(count, file_count));
    [percent(first, directory_count), listed, by_name, best]
}
