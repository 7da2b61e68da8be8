//! Sizes of files and of directories, the disk's time that small files take, and sizes of options in
//! configuration files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cffs::files::layout::survey;
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind};
use cffs_place::volume::{Inodes, Volume};

use super::{Plan, Table, called, in_words};
use crate::disk::Profile;
use crate::library::phase;
use crate::library::trees::{self, Tree};
use crate::peer::Peer;
use crate::report::table::figure;
use crate::workload::random::{LogNormal, Random};

/// The largest small file in bytes, as in figure 3 of the first paper.
const SMALL_BYTES: u64 = 8 << 10;

/// Sizes of files on this machine, and the time that a scan spends on small files.
pub fn matter(plan: &Plan) -> Result<Vec<Table>> {
    let sizes_of = |tree: &PathBuf| (format!("`{}`", tree.display()), sizes_below(tree));
    let mut sets: Vec<(String, Vec<u64>)> = plan.trees.iter().map(sizes_of).collect();
    let mut random = Random::new(plan.seed);
    let drawn = (0..100_000).map(|_| LogNormal::churn().sample(&mut random)).collect();
    sets.push((String::from("the model that ages volumes"), drawn));
    if let Some((name, _)) = sets.iter().find(|(_, sizes)| sizes.is_empty()) {
        bail!("{name} has no files to count: name other directories with --trees");
    }
    let header = ["", "files", "up to 1 KiB", "4 KiB", "8 KiB", "64 KiB", "their bytes"];
    let mut table = Table::inexact(header, 1);
    for (name, sizes) in sets {
        let kib = |kib: u64| percent(share(&sizes, kib << 10, |_| 1));
        let bytes = percent(share(&sizes, 64 << 10, |size| size));
        table.row([name, sizes.len().to_string(), kib(1), kib(4), kib(8), kib(64), bytes]);
    }
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 128 << 20));
    let header =
        ["files of up to 8 KiB", "of the files", "of the bytes", "seconds", "of all others"];
    let mut time = Table::new(header, 1);
    for peer in [Peer::CffsPlain, Peer::Cffs] {
        let tree = Tree::Fresh { files: plan.pick(8_000, 400) };
        let (small, large) = trees::by_size(&library, peer, tree, plan.pick(80, 10), SMALL_BYTES)?;
        let of = |small: u64, large: u64| percent(small as f64 / (small + large) as f64);
        time.row([
            called(peer),
            of(small.files, large.files),
            of(small.bytes, large.bytes),
            figure(small.seconds),
            figure(large.seconds),
        ]);
    }
    let [entries, whole] = directories(plan)?;
    Ok(vec![table, time, entries, whole])
}

/// A directory of this machine, with the numbers of the inodes that it names.
struct Directory {
    path: PathBuf,
    inodes: Vec<u64>,
}

/// The entries of directories, and the blocks with their inodes: figure 4 of USENIX'97.
fn directories(plan: &Plan) -> Result<[Table; 2]> {
    let header = ["directories of", "", "median", "90%", "99%", "largest", "names for each"];
    let mut entries = Table::inexact(header, 2);
    let header =
        ["", "directories", "with inodes in 8 KiB", "names", "of files with several names"];
    let mut whole = Table::inexact(header, 1);
    for tree in &plan.trees {
        let name = format!("`{}`", tree.display());
        let (found, bytes) = copied(plan, tree)?;
        let counts: Vec<u64> = found.iter().map(|dir| dir.inodes.len() as u64).collect();
        let names: u64 = counts.iter().sum();
        let mut spread = |what: &str, mut of_each: Vec<u64>| {
            of_each.sort_unstable();
            let at = |percent: usize| of_each[(of_each.len() - 1) * percent / 100].to_string();
            let each = figure(names as f64 / of_each.iter().sum::<u64>().max(1) as f64);
            entries.row([name.clone(), what.to_owned(), at(50), at(90), at(99), at(100), each]);
        };
        spread("entries", counts);
        if let Some(each) = Volume::of(tree).ok().and_then(|volume| inodes_per_block(&volume)) {
            let blocks = |dir: &Directory| {
                dir.inodes.iter().map(|inode| (inode - 1) / each).collect::<BTreeSet<_>>().len()
            };
            let referenced = found.iter().map(|dir| blocks(dir) as u64).collect();
            spread(&format!("blocks of {each} inodes"), referenced);
        }
        spread("4 KiB on C-FFS", bytes.iter().map(|bytes| bytes.div_ceil(4096)).collect());
        let mut known: BTreeMap<u64, u64> = BTreeMap::new();
        found.iter().flat_map(|dir| &dir.inodes).for_each(|i| *known.entry(*i).or_default() += 1);
        let several: u64 = known.values().filter(|count| **count > 1).sum();
        let small = bytes.iter().filter(|bytes| **bytes <= SMALL_BYTES).count();
        whole.row([
            name,
            found.len().to_string(),
            percent(small as f64 / found.len() as f64),
            names.to_string(),
            percent(several as f64 / names.max(1) as f64),
        ]);
    }
    Ok([entries.grouped(), whole])
}

/// The inodes in a block of ext4, or in a cluster of XFS.
fn inodes_per_block(volume: &Volume) -> Option<u64> {
    match &volume.inodes {
        Inodes::Tables(tables) => Some(tables.inodes_per_block),
        Inodes::Clusters { inodes } => Some(*inodes),
        Inodes::Leaves { .. } => None,
    }
}

/// Makes a tree of this machine on a new volume, where a file has at most the first KiB of its contents.
/// Returns its directories, and the bytes of names and inodes of each on C-FFS.
fn copied(plan: &Plan, top: &Path) -> Result<(Vec<Directory>, Vec<u64>)> {
    const CONTENTS_MAX: u64 = 1 << 10;
    let library = plan.library(Profile::AtlasIi, plan.pick(2 << 30, 64 << 20));
    let disk = library.disk(Peer::Cffs)?;
    let mut found = Vec::new();
    phase(&disk, ("copy", 0, 0), |volume| {
        let mut pending = vec![(top.to_owned(), InodeNo::ROOT)];
        while let Some((path, dir)) = pending.pop() {
            let mut inodes = Vec::new();
            let listed = fs::read_dir(&path).into_iter().flatten().flatten();
            for (entry, metadata) in listed.filter_map(|e| e.metadata().ok().map(|m| (e, m))) {
                let target = fs::read_link(entry.path()).unwrap_or_default();
                let kind = match metadata.file_type() {
                    kind if kind.is_dir() => NewKind::Directory,
                    kind if kind.is_symlink() => NewKind::Symlink(target.as_os_str().as_bytes()),
                    _ => NewKind::Regular,
                };
                let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
                let made = volume.make(&Caller::ROOT, dir, entry.file_name().as_bytes(), &new)?;
                inodes.push(metadata.ino());
                if metadata.is_dir() {
                    pending.push((entry.path(), made.ino));
                    continue;
                }
                if metadata.is_file() {
                    let contents = vec![b'a'; metadata.len().min(CONTENTS_MAX) as usize];
                    volume.write(&Caller::ROOT, made.ino, 0, &contents)?;
                }
                volume.release(made.ino, 1);
            }
            found.push(Directory { path, inodes });
        }
        Ok(())
    })?;
    let layout = survey(disk, InodeNo::ROOT)?;
    let bytes_of: BTreeMap<PathBuf, u64> = layout
        .directories
        .iter()
        .map(|dir| {
            let bytes = dir.names.iter().map(|names| names.end - names.start).sum();
            (top.join(OsStr::from_bytes(&dir.path)), bytes)
        })
        .collect();
    let bytes = found.iter().map(|dir| bytes_of.get(&dir.path).copied());
    let bytes = bytes.collect::<Option<Vec<u64>>>().context("a directory was not copied")?;
    Ok((found, bytes))
}

/// Configuration files, and the sizes of files with one option each.
pub fn configuration(plan: &Plan) -> Result<Vec<Table>> {
    let mut options = Vec::new();
    let mut files = Vec::new();
    for path in files_below(&plan.configuration) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        files.push(text.len() as u64);
        options.extend(text.lines().filter_map(value_bytes));
    }
    if options.is_empty() {
        let directory = plan.configuration.display();
        bail!("{directory} has no file with options: name another directory with --configuration");
    }
    let header = ["", "number", "up to 128 bytes", "1 KiB", "4 KiB", "median"];
    let mut table = Table::inexact(header, 1);
    for (name, mut sizes) in [("text files", files), ("values of options", options)] {
        sizes.sort_unstable();
        let up_to = |limit| percent(share(&sizes, limit, |_| 1));
        let median = in_words(sizes.get(sizes.len() / 2).copied().unwrap_or_default());
        let count = sizes.len().to_string();
        table.row([name.to_owned(), count, up_to(128), up_to(1 << 10), up_to(4 << 10), median]);
    }
    Ok(vec![table])
}

/// The length of the value, if the line is an option with a value.
fn value_bytes(line: &str) -> Option<u64> {
    let (name, value) = line.split_once(['=', ':'])?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_option = !name.is_empty() && name.chars().all(is_name) && !value.is_empty();
    is_option.then_some(value.len() as u64)
}

/// The share of the files up to a size, weighted by `weight`.
fn share(sizes: &[u64], limit: u64, weight: impl Fn(u64) -> u64) -> f64 {
    let of =
        |sizes: &mut dyn Iterator<Item = &u64>| sizes.map(|size| weight(*size)).sum::<u64>() as f64;
    of(&mut sizes.iter().filter(|size| **size <= limit)) / of(&mut sizes.iter()).max(1.0)
}

fn percent(share: f64) -> String {
    format!("{}%", figure(share * 100.0))
}

fn sizes_below(top: &Path) -> Vec<u64> {
    let sizes = files_below(top).into_iter().filter_map(|path| fs::symlink_metadata(path).ok());
    sizes.map(|metadata| metadata.len()).filter(|size| *size > 0).collect()
}

/// The regular files below a directory, without directories that cannot be listed.
fn files_below(top: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}
