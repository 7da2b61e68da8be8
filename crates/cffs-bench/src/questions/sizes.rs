//! Sizes of files, the disk's time that small files take, and sizes of options in configuration files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{Plan, Table, called, in_words};
use crate::disk::Profile;
use crate::library::trees::Tree;
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
        let (small, large) = library.by_size(peer, tree, plan.pick(80, 10), SMALL_BYTES)?;
        let of = |small: u64, large: u64| percent(small as f64 / (small + large) as f64);
        time.row([
            called(peer),
            of(small.files, large.files),
            of(small.bytes, large.bytes),
            figure(small.seconds),
            figure(large.seconds),
        ]);
    }
    Ok(vec![table, time])
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
