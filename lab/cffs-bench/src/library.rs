//! C-FFS as a library: on a disk in virtual time, exactly and without a kernel; and with warm caches, in
//! memory.
//!
//! Runs the papers' benchmarks on the papers' disks, for C-FFS and for its variants with techniques switched
//! off. The results are the time of the device alone, as if the processor were infinitely fast, and the exact
//! number of requests. The same run always gives the same figures.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use cffs::clock::{SystemClock, TestClock};
use cffs::device::{Geometry, MemoryDevice};
use cffs::format::superblock::Policy;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{AtimeMode, Caller, NewFile, NewKind, OpenOptions, Volume};

use crate::disk::{Profile, Stroke};
use crate::instructions::Instructions;
use crate::peer::Peer;
use crate::results::Results;
use crate::virtual_disk::VirtualDisk;
use crate::workload::Phase;
use crate::workload::catalog::Workload;
use crate::workload::contents::Contents;
use crate::workload::hot::{self, Hot};
use crate::workload::random::Random;

pub mod changes;
pub mod documents;
pub mod durable;
pub mod epoch;
pub mod keys;
pub mod load;
pub mod programs;
pub mod tiny;
pub mod trees;

#[cfg(test)]
mod tests;

/// The size of one read or write of a large file, in bytes.
const CHUNK: usize = 1 << 20;

/// The workloads of a run.
#[derive(Clone, Copy, Debug)]
pub struct LibraryPlan {
    pub profile: Profile,
    /// The placement of the volume on the disk.
    pub stroke: Stroke,
    /// The size of the volume in bytes.
    pub size: u64,
    /// Files in the small-file benchmark.
    pub files: u64,
    pub large_bytes: u64,
    /// Bytes of the journal; 0 for none.
    pub journal_bytes: u64,
    /// Whether the small-file benchmark makes each change durable by itself.
    pub each_durable: bool,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The variants, in the order of the report.
pub const VARIANTS: [Peer; 5] =
    [Peer::Cffs, Peer::CffsNoEmbed, Peer::CffsNoInline, Peer::CffsNoGroups, Peer::CffsPlain];

impl LibraryPlan {
    /// Runs everything on every variant.
    pub fn run(&self) -> Result<Results> {
        let mut results = Results::default();
        for peer in VARIANTS {
            for (workload, files, size) in
                [(Workload::Small1k, self.files, 1024), (Workload::Thesis, 1000, 4096)]
            {
                let phases = self.small_file(peer, files, size)?;
                results.add(workload, peer, phases);
            }
            results.add(Workload::LargeFile, peer, self.large_file(peer)?);
        }
        Ok(results)
    }

    /// The small-file benchmark: create, read in both orders, overwrite, remove.
    pub fn small_file(&self, peer: Peer, files: u64, size: usize) -> Result<Vec<Phase>> {
        self.small_file_on(&self.disk(peer)?, files, size)
    }

    /// The small-file benchmark on a volume that may have other files.
    pub(crate) fn small_file_on(&self, disk: &Disk, files: u64, size: usize) -> Result<Vec<Phase>> {
        self.small_file_opened(disk, &OpenOptions::default(), files, size)
    }

    /// The same, on a volume that is opened with these options.
    pub(crate) fn small_file_opened(
        &self,
        disk: &Disk,
        options: &OpenOptions,
        files: u64,
        size: usize,
    ) -> Result<Vec<Phase>> {
        let measured = |name: &str, bytes: usize, work: &dyn Fn(&Volume) -> Result<()>| {
            let counts = (name, files, files * bytes as u64);
            phase_after(disk, options.clone(), counts, |_| Ok(()), work)
        };
        let contents = Contents::new(self.seed, size);
        let names: Vec<(String, String)> =
            (0..files).map(|i| (format!("d{:03}", i / 100), format!("f{i:06}"))).collect();
        let mut shuffled: Vec<usize> = (0..names.len()).collect();
        let in_order = shuffled.clone();
        Random::new(self.seed).shuffle(&mut shuffled);

        let mut phases = Vec::new();
        phases.push(measured("create", size, &|volume| {
            let mut dir = InodeNo::ROOT;
            for (i, (dir_name, name)) in names.iter().enumerate() {
                if i % 100 == 0 {
                    dir = make(volume, InodeNo::ROOT, dir_name, NewKind::Directory)?;
                }
                let file = make(volume, dir, name, NewKind::Regular)?;
                volume.write(&Caller::ROOT, file, 0, contents.of(i as u64, size))?;
                volume.release(file, 1);
                self.settle(volume)?;
            }
            Ok(())
        })?);
        for (name, order) in [("read", &in_order), ("read shuffled", &shuffled)] {
            phases.push(measured(name, size, &|volume| {
                let mut buffer = vec![0; size];
                for &i in order {
                    let file = find(volume, &names[i])?;
                    volume.read(file, 0, &mut buffer)?;
                    volume.release(file, 1);
                }
                Ok(())
            })?);
        }
        phases.push(measured("overwrite", size, &|volume| {
            for (i, path) in names.iter().enumerate() {
                let file = find(volume, path)?;
                volume.write(&Caller::ROOT, file, 0, contents.of(i as u64 + 1, size))?;
                volume.release(file, 1);
                self.settle(volume)?;
            }
            Ok(())
        })?);
        phases.push(measured("remove", 0, &|volume| {
            for (dir_name, name) in &names {
                let dir = volume.lookup(InodeNo::ROOT, dir_name.as_bytes())?.ino;
                volume.unlink(&Caller::ROOT, dir, name.as_bytes())?;
                volume.release(dir, 1);
                self.settle(volume)?;
            }
            Ok(())
        })?);
        Ok(phases)
    }

    /// Makes the last change durable if the plan makes each change durable.
    fn settle(&self, volume: &Volume) -> Result<()> {
        if self.each_durable {
            volume.sync()?;
        }
        Ok(())
    }

    /// The large-file benchmark: write, read, overwrite.
    pub fn large_file(&self, peer: Peer) -> Result<Vec<Phase>> {
        let disk = self.disk(peer)?;
        let contents = Contents::new(self.seed, CHUNK);
        let chunks = self.large_bytes / CHUNK as u64;
        let count = |name| (name, 1, chunks * CHUNK as u64);
        let mut phases = Vec::new();
        for name in ["write", "read", "overwrite"] {
            phases.push(phase(&disk, count(name), |volume| {
                let file = match name {
                    "write" => make(volume, InodeNo::ROOT, "large", NewKind::Regular)?,
                    _ => volume.lookup(InodeNo::ROOT, b"large")?.ino,
                };
                let mut buffer = vec![0; CHUNK];
                for i in 0..chunks {
                    let offset = i * CHUNK as u64;
                    if name == "read" {
                        volume.read(file, offset, &mut buffer)?;
                    } else {
                        volume.write(&Caller::ROOT, file, offset, contents.of(i, CHUNK))?;
                    }
                }
                volume.release(file, 1);
                Ok(())
            })?);
        }
        Ok(phases)
    }

    pub(crate) fn disk(&self, peer: Peer) -> Result<Disk> {
        let defaults = MkfsOptions::default();
        let policy = match peer {
            Peer::CffsNoGroups | Peer::CffsFirstFit => Policy::None,
            Peer::CffsPlain => Policy::Scattered,
            _ => defaults.policy,
        };
        self.disk_with(peer, policy)
    }

    /// A new volume with this policy.
    pub(crate) fn disk_with(&self, peer: Peer, policy: Policy) -> Result<Disk> {
        let geometry = Geometry { size_bytes: self.size, sector_bytes: self.profile.sector_size() };
        let memory = MemoryDevice::with_geometry(geometry);
        let disk = VirtualDisk::new(memory, self.profile, self.stroke);
        let is_plain = matches!(peer, Peer::CffsPlain | Peer::CffsFirstFit);
        let options = MkfsOptions {
            embed: !is_plain && peer != Peer::CffsNoEmbed,
            inline: !is_plain && peer != Peer::CffsNoInline,
            policy,
            journal_bytes: self.journal_bytes,
            // A fixed value, so that two runs are identical.
            uuid: Some([7; 16]),
            hash_seed: Some([7; 16]),
            ..MkfsOptions::default()
        };
        mkfs::make(&disk, &options).context("make the volume")?;
        Ok(Arc::new(disk))
    }
}

/// Single operations on warm caches, on a device in memory, in real time.
pub fn hot(plan: Hot) -> Result<Vec<Phase>> {
    let device = MemoryDevice::new(1 << 30);
    mkfs::make(&device, &MkfsOptions::default()).context("make the volume")?;
    let options = OpenOptions { atime: AtimeMode::Never, ..OpenOptions::default() };
    let volume = Volume::open(Arc::new(device), Arc::new(SystemClock), options)?;
    let dir = make(&volume, InodeNo::ROOT, "c000", NewKind::Directory)?;
    let contents = Contents::new(plan.seed, hot::SIZE);
    let mut buffer = vec![0; hot::SIZE];
    let mut phases = Vec::new();
    let mut instructions = Instructions::start();
    for name in hot::PHASES {
        let (started, before) = (Instant::now(), instructions.so_far());
        for i in 0..plan.operations {
            let kind = if matches!(name, "create" | "unlink") { "empty" } else { "full" };
            let file_name = format!("{kind}{i:06}");
            match name {
                "create" => volume.release(make(&volume, dir, &file_name, NewKind::Regular)?, 1),
                "create+write" => {
                    let file = make(&volume, dir, &file_name, NewKind::Regular)?;
                    volume.write(&Caller::ROOT, file, 0, contents.of(i, hot::SIZE))?;
                    volume.release(file, 1);
                }
                "open+read" => {
                    let file = volume.lookup(dir, file_name.as_bytes())?.ino;
                    volume.read(file, 0, &mut buffer)?;
                    volume.release(file, 1);
                }
                "stat" => volume.release(volume.lookup(dir, file_name.as_bytes())?.ino, 1),
                _ => volume.unlink(&Caller::ROOT, dir, file_name.as_bytes())?,
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let instructions = instructions.so_far().zip(before).map(|(now, before)| now - before);
        let moves_data = matches!(name, "create+write" | "open+read");
        let bytes = if moves_data { plan.operations * hot::SIZE as u64 } else { 0 };
        let files = plan.operations;
        let name = name.to_owned();
        phases.push(Phase { name, files, bytes, seconds, instructions, ..Phase::default() });
    }
    volume.close()?;
    Ok(phases)
}

/// A volume on a disk in virtual time.
pub(crate) type Disk = Arc<VirtualDisk<MemoryDevice>>;

/// Opens the volume with cold caches, does the work, and makes it durable.
pub(crate) fn phase(
    disk: &Disk,
    counts: (&str, u64, u64),
    work: impl FnOnce(&Volume) -> Result<()>,
) -> Result<Phase> {
    phase_after(disk, OpenOptions::default(), counts, |_| Ok(()), work)
}

/// Like `phase`, with a cache of another size.
pub(crate) fn phase_with(
    disk: &Disk,
    cache_bytes: u64,
    counts: (&str, u64, u64),
    work: impl FnOnce(&Volume) -> Result<()>,
) -> Result<Phase> {
    let options = OpenOptions { cache_bytes, ..OpenOptions::default() };
    phase_after(disk, options, counts, |_| Ok(()), work)
}

/// Like `phase`, with these options, and after `first`, which is not measured.
pub(crate) fn phase_after(
    disk: &Disk,
    options: OpenOptions,
    (name, files, bytes): (&str, u64, u64),
    first: impl FnOnce(&Volume) -> Result<()>,
    work: impl FnOnce(&Volume) -> Result<()>,
) -> Result<Phase> {
    let options = OpenOptions { atime: AtimeMode::Never, ..options };
    let volume = Volume::open(disk.clone(), Arc::new(TestClock::default()), options)
        .with_context(|| format!("open the volume before {name}"))?;
    first(&volume).with_context(|| format!("before phase {name}"))?;
    disk.power_cycle();
    let (before, started) = (disk.counters(), disk.now());
    work(&volume).with_context(|| format!("phase {name}"))?;
    volume.sync().with_context(|| format!("make {name} durable"))?;
    let seconds = disk.now().since(started).as_secs();
    let device = Some(disk.counters().since(&before));
    volume.close().with_context(|| format!("close the volume after {name}"))?;
    let name = name.to_owned();
    Ok(Phase { name, files, bytes, seconds, device, ..Phase::default() })
}

/// Creates a file and keeps the reference that the volume returns.
pub(crate) fn make(volume: &Volume, dir: InodeNo, name: &str, kind: NewKind) -> Result<InodeNo> {
    let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    Ok(volume.make(&Caller::ROOT, dir, name.as_bytes(), &new)?.ino)
}

/// Looks up a file by its path; the caller must release the reference to the file.
pub(crate) fn find(volume: &Volume, path: &(String, String)) -> Result<InodeNo> {
    let dir = volume.lookup(InodeNo::ROOT, path.0.as_bytes())?.ino;
    let file = volume.lookup(dir, path.1.as_bytes());
    volume.release(dir, 1);
    Ok(file.with_context(|| format!("{}", Path::new(&path.0).join(&path.1).display()))?.ino)
}
