//! Trees in virtual time: the aged and the fresh tree of the comparison, walked with cold caches.
//!
//! Sizes, the choice of directories, and syncs are those of [`crate::workload`], so that a test can pin
//! requests per file without a mount and without noise.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use cffs::clock::TestClock;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::{
    AtimeMode, Caller, NewKind, OpenOptions, RegroupOptions, RegroupProgress, Scattered, Volume,
};

use super::{Disk, LibraryPlan, make, phase};
use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::contents::Contents;
use crate::workload::random::{LogNormal, Random};

/// The size of one read of a file in bytes, like the kernel's read-ahead.
pub(crate) const READ: usize = 256 << 10;
/// Operations between two syncs while aging.
const SYNC_EVERY: u64 = 1000;
/// The largest size of a file, in bytes.
const SIZE_MAX: usize = 8 << 20;

#[derive(Clone, Copy, Debug)]
pub enum Tree {
    /// Written directory by directory.
    Fresh { files: u64 },
    /// Filled to a fraction of the volume, then churned.
    Aged {
        /// The fraction of the volume that stays in use.
        full: f64,
        /// The number of creates and deletes at that utilization.
        operations: u64,
    },
}

/// Creates a tree of this many directories and walks it with cold caches: names, attributes, contents. With
/// `threads` threads that read ahead, reads reach the disk in an unpredictable order, so figures differ
/// slightly between runs.
pub fn walks(
    plan: &LibraryPlan,
    peer: Peer,
    tree: Tree,
    directories: u64,
    threads: usize,
) -> Result<Vec<Phase>> {
    let (disk, files) = grown(plan, peer, tree, directories)?;
    walk_cold(&disk, files, threads)
}

/// A volume with a tree, and the number of its files.
pub(crate) fn grown(
    plan: &LibraryPlan,
    peer: Peer,
    tree: Tree,
    directories: u64,
) -> Result<(Disk, u64)> {
    let disk = plan.disk(peer)?;
    let options = OpenOptions { atime: AtimeMode::Never, ..OpenOptions::default() };
    let volume = Volume::open(disk.clone(), Arc::new(TestClock::default()), options)?;
    let mut churner = Churner {
        dirs: (0..directories)
            .map(|i| make(&volume, InodeNo::ROOT, &format!("a{i:03}"), NewKind::Directory))
            .collect::<Result<_>>()?,
        volume: &volume,
        files: Vec::new(),
        random: Random::new(plan.seed),
        contents: Contents::new(plan.seed, SIZE_MAX),
        sizes: LogNormal::churn(),
        used: 0,
        made: 0,
        done: 0,
    };
    match tree {
        Tree::Fresh { files } => {
            for dir in churner.dirs.clone() {
                for _ in 0..files / directories {
                    churner.create(dir)?;
                }
            }
        }
        Tree::Aged { full, operations } => {
            churner.churn((plan.size as f64 * full) as u64, operations)?;
        }
    }
    let files = churner.files.len() as u64;
    volume.close()?;
    Ok((disk, files))
}

/// Creates a tree and reads all of its files with cold caches: those of up to `limit` bytes, then the
/// others.
pub(crate) fn by_size(
    plan: &LibraryPlan,
    peer: Peer,
    tree: Tree,
    directories: u64,
    limit: u64,
) -> Result<(Phase, Phase)> {
    let (disk, _) = grown(plan, peer, tree, directories)?;
    let read = |is_small: bool| -> Result<Phase> {
        let (mut files, mut bytes) = (0, 0);
        let mut phase = phase(&disk, ("read", 0, 0), |volume| {
            let chosen = files_of(volume, |size| (size <= limit) == is_small)?;
            let mut buffer = vec![0; READ];
            for file in &chosen {
                bytes += read_all(volume, *file, &mut buffer)?;
                volume.release(*file, 1);
            }
            files = chosen.len() as u64;
            Ok(())
        })?;
        (phase.files, phase.bytes) = (files, bytes);
        Ok(phase)
    };
    Ok((read(true)?, read(false)?))
}

/// Moves scattered files together, as `cffs regroup` does.
pub(crate) fn regroup(disk: &Disk) -> Result<RegroupProgress> {
    let mut done = RegroupProgress::default();
    phase(disk, ("regroup", 0, 0), |volume| {
        let all = Scattered::Tree(InodeNo::ROOT);
        let options = RegroupOptions::default();
        done = volume.regroup(all, &options, &mut |_| ControlFlow::Continue(()))?;
        Ok(())
    })?;
    Ok(done)
}

/// Walks a whole volume with cold caches: names, attributes, contents.
pub(crate) fn walk_cold(disk: &Disk, files: u64, threads: usize) -> Result<Vec<Phase>> {
    let mut phases = Vec::new();
    for (name, attributes, contents) in
        [("find", false, false), ("du", true, false), ("scan", true, true)]
    {
        let mut bytes = 0;
        let mut walked = phase(disk, (name, files, 0), |volume| {
            let walk = || walk(volume, InodeNo::ROOT, attributes, contents);
            bytes = if threads == 0 { walk()? } else { volume.with_prefetch(threads, walk)? };
            Ok(())
        })?;
        walked.bytes = bytes;
        phases.push(walked);
    }
    Ok(phases)
}

struct Churner<'a> {
    volume: &'a Volume,
    dirs: Vec<InodeNo>,
    files: Vec<(InodeNo, String, u64)>,
    random: Random,
    contents: Contents,
    sizes: LogNormal,
    used: u64,
    made: u64,
    done: u64,
}

impl Churner<'_> {
    fn churn(&mut self, target: u64, operations: u64) -> Result<()> {
        while self.used < target {
            self.create_somewhere()?;
        }
        for _ in 0..operations {
            let excess = (self.used as f64 - target as f64) / target as f64;
            if self.random.fraction() < 0.5 - 25.0 * excess {
                self.create_somewhere()?;
            } else {
                self.delete()?;
            }
        }
        Ok(())
    }

    fn create_somewhere(&mut self) -> Result<()> {
        let dir = self.dirs[self.random.index(self.dirs.len())];
        self.create(dir)?;
        self.sync_at_times()
    }

    fn create(&mut self, dir: InodeNo) -> Result<()> {
        let size = self.sizes.sample(&mut self.random);
        self.made += 1;
        let name = format!("f{:06}", self.made);
        let file = make(self.volume, dir, &name, NewKind::Regular)?;
        self.volume.write(&Caller::ROOT, file, 0, self.contents.of(self.made, size as usize))?;
        self.volume.release(file, 1);
        self.used += footprint(size);
        self.files.push((dir, name, size));
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let victim = self.random.index(self.files.len());
        let (dir, name, size) = self.files.swap_remove(victim);
        self.volume.unlink(&Caller::ROOT, dir, name.as_bytes())?;
        self.used -= footprint(size);
        self.sync_at_times()
    }

    fn sync_at_times(&mut self) -> Result<()> {
        self.done += 1;
        if self.done.is_multiple_of(SYNC_EVERY) {
            self.volume.sync()?;
        }
        Ok(())
    }
}

/// The approximate space that a file takes on a volume: whole blocks, and an inode.
fn footprint(size: u64) -> u64 {
    size.div_ceil(4096) * 4096 + 256
}

/// Walks everything below a directory in the order in which directories list their entries; returns the bytes
/// read. Directories are listed with attributes, as the kernel requests for the first entries of each, so
/// each entry comes with a reference.
pub(crate) fn walk(volume: &Volume, top: InodeNo, attributes: bool, contents: bool) -> Result<u64> {
    let mut bytes = 0;
    let mut buffer = vec![0; READ];
    let mut pending = vec![top];
    while let Some(dir) = pending.pop() {
        let mut entries = Vec::new();
        volume.read_dir(dir, 0, true, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino, entry.file_type));
            true
        })?;
        let mut inner = Vec::new();
        for (name, ino, file_type) in entries {
            if file_type == FileType::Directory {
                inner.push(ino);
                continue;
            }
            if attributes {
                let file = volume.lookup(dir, &name)?.ino;
                if contents {
                    bytes += read_all(volume, file, &mut buffer)?;
                }
                volume.release(file, 1);
            }
            volume.release(ino, 1);
        }
        if dir != top {
            volume.release(dir, 1);
        }
        pending.extend(inner.into_iter().rev());
    }
    Ok(bytes)
}

/// The files of all directories below the root, by size, each with a reference.
pub(super) fn files_of(volume: &Volume, is_chosen: impl Fn(u64) -> bool) -> Result<Vec<InodeNo>> {
    let mut dirs = Vec::new();
    volume.read_dir(InodeNo::ROOT, 0, true, &mut |entry| {
        dirs.push(entry.ino);
        true
    })?;
    let mut chosen = Vec::new();
    for dir in dirs {
        let mut others = Vec::new();
        volume.read_dir(dir, 0, true, &mut |entry| {
            let is_chosen = entry.attr.as_ref().is_some_and(|attr| is_chosen(attr.size));
            if is_chosen { &mut chosen } else { &mut others }.push(entry.ino);
            true
        })?;
        others.into_iter().for_each(|ino| volume.release(ino, 1));
        volume.release(dir, 1);
    }
    Ok(chosen)
}

/// Reads a whole file, and returns its length.
pub(crate) fn read_all(volume: &Volume, file: InodeNo, buffer: &mut [u8]) -> Result<u64> {
    let mut offset = 0;
    loop {
        let n = volume.read(file, offset, buffer)?;
        offset += n as u64;
        if n < buffer.len() {
            return Ok(offset);
        }
    }
}
